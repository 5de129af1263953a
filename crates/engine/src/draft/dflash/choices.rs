//! From the candidates of a block's rows to a lattice: how likely each is after each candidate of
//! the position before.

use crate::draft::Lattice;

/// Candidates of the positions of one text, as `Op::Top` and `Op::Pairs` leave them.
pub(super) struct Choices<'a> {
    /// A row for each position.
    pub(super) rows: &'a [f32],
    /// Candidates of a position.
    pub(super) count: usize,
    /// How likely a position's best candidate is to stand after a token, where somebody tells.
    pub(super) confidence: Option<&'a dyn Fn(usize, u32) -> f32>,
    /// The token before the first position.
    pub(super) tip: u32,
}

impl Choices<'_> {
    /// The `ranks` likeliest candidates after each one that a path can have reached; a chain's are
    /// one a position. Nothing where a number is none.
    pub(super) fn lattice(&self, ranks: usize) -> Option<Lattice> {
        let mut lattice = Lattice::default();
        let mut before = vec![self.tip];
        let mut reached = vec![true];
        for (position, row) in self.rows.chunks_exact(self.count * (2 + self.count)).enumerate() {
            if !row.iter().all(|number| number.is_finite()) {
                return None;
            }
            let (ids, rest) = row.split_at(self.count);
            let (logs, pairs) = rest.split_at(self.count);
            let tokens: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            let together = log_sum(logs);
            let mut after = Vec::with_capacity(before.len());
            let mut next = vec![false; self.count];
            for ((pairs, token), reached) in
                pairs.chunks_exact(self.count).zip(&before).zip(reached)
            {
                if !reached {
                    after.push(Vec::new());
                    continue;
                }
                let mut scored = likelihoods(logs, together, pairs)?;
                if let Some(confidence) = self.confidence {
                    lower(&mut scored, confidence(position, *token));
                }
                let likeliest = likeliest(&scored, &tokens, ranks);
                likeliest.iter().for_each(|(candidate, _)| next[*candidate] = true);
                after.push(likeliest);
            }
            before.clone_from(&tokens);
            reached = next;
            lattice.push_after(tokens, after);
        }
        Some(lattice)
    }
}

/// The `ranks` likeliest candidates, best first and of equals the lowest id.
fn likeliest(logs: &[f32], tokens: &[u32], ranks: usize) -> Vec<(usize, f32)> {
    let order = |a: &(usize, f32), b: &(usize, f32)| {
        b.1.total_cmp(&a.1).then(tokens[a.0].cmp(&tokens[b.0]))
    };
    let all = logs.iter().copied().enumerate();
    if ranks == 1 {
        return all.min_by(order).into_iter().collect();
    }
    let mut all: Vec<(usize, f32)> = all.collect();
    all.sort_unstable_by(order);
    all.truncate(ranks);
    all
}

/// Log-probabilities of candidates whose own are `logs`, `together` that of any of them, and whose
/// scores have `pairs` added. What they weigh together stays what the drafter gave them, so scores
/// that add nothing change nothing.
fn likelihoods(logs: &[f32], together: f32, pairs: &[f32]) -> Option<Vec<f32>> {
    let mut scores: Vec<f32> = logs.iter().zip(pairs).map(|(log, pair)| log + pair).collect();
    let shift = together - log_sum(&scores);
    scores.iter_mut().for_each(|score| *score += shift);
    scores.iter().all(|log| log.is_finite()).then_some(scores)
}

fn log_sum(numbers: &[f32]) -> f32 {
    let highest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    highest + numbers.iter().map(|x| (x - highest).exp()).sum::<f32>().ln()
}

/// Makes candidates less likely where the best of them is less likely to stand than it looks.
fn lower(logs: &mut [f32], confidence: f32) {
    let best = logs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let by = (confidence.max(1e-6).ln() - best).min(0.0);
    logs.iter_mut().for_each(|log| *log += by);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two positions of two candidates, the second of which depend on the first.
    fn rows(pairs: [f32; 4]) -> Vec<f32> {
        let log = |p: f32| p.ln();
        let first = [7.0, 9.0, log(0.6), log(0.3), 0.0, 0.0, 0.0, 0.0];
        let second = [3.0, 4.0, log(0.5), log(0.25), pairs[0], pairs[1], pairs[2], pairs[3]];
        [first, second].concat()
    }

    fn lattice(
        rows: &[f32],
        confidence: Option<&dyn Fn(usize, u32) -> f32>,
        ranks: usize,
    ) -> Lattice {
        Choices { rows, count: 2, confidence, tip: 1 }.lattice(ranks).expect("numbers")
    }

    #[test]
    fn each_child_is_scored_under_its_own_parent() {
        // After 7 as it stands; after 9 the second is ten times likelier than it looks.
        let rows = rows([0.0, 0.0, 0.0, 10f32.ln()]);
        let draft = lattice(&rows, None, 2).best_first(4);
        let told: Vec<_> = draft.nodes.iter().map(|n| (n.token, n.parent, n.depth)).collect();
        // 0.6, 0.3, 0.6 * 0.5, 0.3 * 0.75 * 2.5 / 3
        assert_eq!(told[0], (7, None, 1));
        assert_eq!(told[3], (4, Some(told.iter().position(|n| n.0 == 9).unwrap() as u32), 2));
        assert!((draft.nodes[3].probability - 0.75 * 2.5 / 3.0).abs() < 1e-6);
        // A chain is the walk: the best after the best.
        let chain = lattice(&rows, None, 1).best_first(9);
        let told: Vec<_> = chain.nodes.iter().map(|n| (n.token, n.depth)).collect();
        assert_eq!(told, [(7, 1), (3, 2)]);
    }

    #[test]
    fn scores_that_add_nothing_keep_the_bits() {
        let rows = rows([0.0; 4]);
        let draft = lattice(&rows, None, 2).best_first(6);
        let of = |token: u32| draft.nodes.iter().find(|n| n.token == token).expect("a node");
        assert_eq!(of(7).probability.to_bits(), rows[2].exp().to_bits());
        assert_eq!(of(3).probability.to_bits(), rows[10].exp().to_bits());
    }

    #[test]
    fn of_equals_the_lower_id_comes_first() {
        // 4 was ahead of 3 by its logit, and is behind by as much after 7.
        let rows = [3.0f32, 2.0, 0.5f32.ln(), 0.5f32.ln(), 0.0, 0.0, 0.0, 0.0];
        let draft = lattice(&rows, None, 2).best_first(2);
        assert_eq!(draft.nodes[0].token, 2);
    }

    #[test]
    fn doubt_shortens_and_faith_changes_nothing() {
        let rows = rows([0.0; 4]);
        let doubt = |position: usize, before: u32| match (position, before) {
            (1, 7) => 0.05,
            _ => 1.0,
        };
        let draft = lattice(&rows, Some(&doubt), 2).best_first(6);
        let of = |token: u32, parent: Option<u32>| {
            draft.nodes.iter().find(|n| n.token == token && n.parent == parent).expect("a node")
        };
        assert_eq!(of(7, None).probability.to_bits(), rows[2].exp().to_bits());
        assert!((of(3, Some(0)).probability - 0.05).abs() < 1e-6);
        assert!((of(4, Some(0)).probability - 0.025).abs() < 1e-6);
    }

    #[test]
    fn what_no_path_reaches_is_left_out() {
        let rows = rows([0.0, 0.0, 0.0, 10f32.ln()]);
        let (chain, all) = (lattice(&rows, None, 1), lattice(&rows, None, 2));
        assert_eq!(chain.after(2, 0).next(), all.after(2, 0).next());
        assert_eq!(chain.after(2, 1).next(), None, "no chain comes to the second candidate");
        assert_eq!(all.after(2, 1).count(), 2);
        assert_eq!(chain.last_token(), Some(3));
    }

    /// Also where no path reads it.
    #[test]
    fn what_is_not_a_number_is_no_lattice() {
        for place in [3, 11, 15] {
            let mut rows = rows([0.0; 4]);
            rows[place] = f32::NAN;
            let choices = Choices { rows: &rows, count: 2, confidence: None, tip: 1 };
            assert_eq!((choices.lattice(1), choices.lattice(2)), (None, None), "number {place}");
        }
    }
}
