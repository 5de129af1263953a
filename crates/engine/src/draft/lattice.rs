//! Candidates by position, and the draft they make. How likely a candidate is may depend on the one
//! before it, so a path's probability is a product along it, and a best-first search finds the
//! likeliest paths.

use super::{Draft, Node};
use compute::Ranked;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What a drafter proposes: for each position after the newest token, candidates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lattice {
    positions: Vec<Position>,
}

/// The candidates of one position.
#[derive(Clone, Debug, PartialEq)]
struct Position {
    tokens: Vec<u32>,
    /// After each candidate of the position before, or after whichever where there is one list:
    /// (candidate, log-probability), the likeliest first. Empty after one that no path comes to.
    after: Vec<Vec<(usize, f32)>>,
}

impl Lattice {
    /// One more position, whose candidates are as likely whatever comes before them.
    pub(crate) fn push(&mut self, ranked: &Ranked) {
        let tokens = ranked.iter().map(|(token, _)| *token).collect();
        let after = vec![ranked.iter().enumerate().map(|(i, (_, log))| (i, *log)).collect()];
        self.positions.push(Position { tokens, after });
    }

    /// One more position, whose candidates are as likely as `after` says by the candidate before.
    pub(crate) fn push_after(&mut self, tokens: Vec<u32>, after: Vec<Vec<(usize, f32)>>) {
        self.positions.push(Position { tokens, after });
    }

    /// Which candidate of a position (from 1) a token is.
    pub(crate) fn find(&self, depth: usize, token: u32) -> Option<usize> {
        self.positions.get(depth - 1)?.tokens.iter().position(|t| *t == token)
    }

    /// Tokens of a position (from 1) after candidate `before` of the one before it, likeliest
    /// first, with their log-probabilities.
    pub(crate) fn after(
        &self,
        depth: usize,
        before: usize,
    ) -> impl Iterator<Item = (u32, f32)> + '_ {
        let listed = move |rank| self.candidate(depth, before, rank);
        (0..).map_while(listed).map(|(_, token, log)| (token, log))
    }

    /// Positions.
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// The likeliest token of the last position.
    pub(crate) fn last_token(&self) -> Option<u32> {
        let position = self.positions.last()?;
        let (candidate, _) = position.after.iter().find_map(|after| after.first())?;
        Some(position.tokens[*candidate])
    }

    /// The `rank`th likeliest candidate at `depth` (from 1) after candidate `before` of the
    /// position before: which it is, its token and its log-probability.
    fn candidate(&self, depth: usize, before: usize, rank: usize) -> Option<(usize, u32, f32)> {
        let position = self.positions.get(depth - 1)?;
        let after = position.after.get(before).or(position.after.first())?;
        let &(candidate, log) = after.get(rank)?;
        Some((candidate, position.tokens[candidate], log))
    }

    /// The `budget` likeliest nodes whose paths are all there: of any such tree, the one with the
    /// longest expected walk. With one candidate a position that is a chain.
    pub(crate) fn best_first(&self, budget: usize) -> Draft {
        let mut nodes = Vec::new();
        let mut heap = BinaryHeap::new();
        let mut made = 0;
        let mut open = |heap: &mut BinaryHeap<Open>, path: f32, parent, depth, before, rank| {
            if let Some((candidate, token, log)) = self.candidate(depth, before, rank) {
                let score = path + log;
                heap.push(Open { score, log, parent, depth, before, rank, candidate, token, made });
                made += 1;
            }
        };
        open(&mut heap, 0.0, None, 1, 0, 0);
        while nodes.len() < budget
            && let Some(Open { score, log, parent, depth, before, rank, candidate, token, .. }) =
                heap.pop()
        {
            nodes.push(Node { token, parent, depth: depth as u32, probability: log.exp() });
            open(&mut heap, score - log, parent, depth, before, rank + 1);
            open(&mut heap, score, Some(nodes.len() as u32 - 1), depth + 1, candidate, 0);
        }
        Draft { nodes }
    }
}

/// How many candidates a position must offer so that a tree over `depths` positions can have
/// `budget` nodes.
pub(crate) fn ranks_needed(depths: usize, budget: usize) -> usize {
    // With r ranks and d depths there are r + r^2 + ... + r^d nodes.
    let nodes = |ranks: usize| {
        let mut level = 1usize;
        (0..depths).fold(0usize, |sum, _| {
            level = level.saturating_mul(ranks);
            sum.saturating_add(level)
        })
    };
    (1..=budget.max(1)).find(|ranks| nodes(*ranks) >= budget).unwrap_or(budget).max(budget.min(8))
}

/// A node that could come next: the best of the heap is taken, and leaves its next sibling and its
/// first child.
#[derive(Clone, Copy)]
struct Open {
    /// Log-probability of the path.
    score: f32,
    /// Of its last step.
    log: f32,
    parent: Option<u32>,
    /// Positions after the newest token, from 1.
    depth: usize,
    /// Which candidate of the position before it follows, and its rank among those that do.
    before: usize,
    rank: usize,
    candidate: usize,
    token: u32,
    /// Equal scores come out in order of their making.
    made: usize,
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.made.cmp(&self.made))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Open {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Positions that are the same whatever comes before them.
    fn independent(positions: &[Ranked]) -> Lattice {
        let mut lattice = Lattice::default();
        positions.iter().for_each(|ranked| lattice.push(ranked));
        lattice
    }

    fn ranked(probabilities: &[f32]) -> Ranked {
        probabilities.iter().enumerate().map(|(i, p)| (i as u32, p.ln())).collect()
    }

    #[test]
    fn the_likeliest_paths_come_first() {
        let positions = [ranked(&[0.6, 0.3]), ranked(&[0.9, 0.05])];
        let tree = independent(&positions).best_first(4);
        let shape: Vec<_> = tree.nodes.iter().map(|n| (n.token, n.parent, n.depth)).collect();
        // 0.6, 0.6 * 0.9 = 0.54, 0.3, 0.3 * 0.9 = 0.27.
        assert_eq!(shape, [(0, None, 1), (0, Some(0), 2), (1, None, 1), (0, Some(2), 2)]);
    }

    #[test]
    fn a_budget_below_the_block_is_kept() {
        let positions: Vec<Ranked> = (0..15).map(|_| ranked(&[0.9, 0.1])).collect();
        for budget in 1..15 {
            let draft = independent(&positions).best_first(budget);
            assert_eq!(draft.nodes.len(), budget);
        }
    }

    proptest! {
        /// Against brute force: no node left out is likelier than one taken, and the budget is
        /// never starved.
        #[test]
        fn best_first_is_best(
            weights in prop::collection::vec(prop::collection::vec(0.01f32..1.0, 8), 1..5),
            budget in 1usize..64,
        ) {
            let ranks = ranks_needed(weights.len(), budget);
            let positions: Vec<Ranked> = weights.iter().map(|w| {
                // More candidates than weights: the rest ever less likely.
                let mut p: Vec<f32> = (0..ranks).map(|i| w[i % 8] / (1 << (i / 8).min(20)) as f32).collect();
                p.sort_by(|a, b| b.total_cmp(a));
                ranked(&p)
            }).collect();
            let tree = independent(&positions).best_first(budget);
            prop_assert_eq!(tree.nodes.len(), budget);
            // All paths up to the worst one taken, by enumeration.
            let mut scores = vec![];
            let mut score_of: Vec<f32> = vec![];
            for node in &tree.nodes {
                let before = node.parent.map_or(0.0, |p| score_of[p as usize]);
                score_of.push(before + node.probability.ln());
            }
            let worst = score_of.iter().copied().fold(f32::INFINITY, f32::min);
            let mut stack = vec![(0usize, 0.0f32)];
            while let Some((depth, score)) = stack.pop() {
                if depth == positions.len() { continue; }
                for (_, log) in &positions[depth] {
                    if score + log > worst + 1e-4 {
                        scores.push(score + log);
                        stack.push((depth + 1, score + log));
                    }
                }
            }
            prop_assert!(scores.len() <= budget, "{} paths are likelier than the worst of {budget}", scores.len());
        }
    }
}
