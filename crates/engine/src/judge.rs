//! Judging: walk the draft with the target's own draw at each row. The draw that matches no child
//! ends the walk and is emitted as it is; nothing is drawn twice.

use crate::Error;
use crate::draft::Draft;
use crate::sampling::{Constraint, History, Sampler, Sampling};
use compute::Drawn;
use std::borrow::Cow;

/// What was accepted of a draft.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Rows of the verify that stand, the newest token's first.
    pub path: Vec<u32>,
    /// The token after each of them: those of the next rows, then the target's own.
    pub tokens: Vec<u32>,
}

impl Verdict {
    /// Tokens of this verdict to keep, so that at most `room` are emitted and nothing follows an
    /// end. As many rows are committed: all but the last token are rows of their own, and the
    /// newest token's row comes before them.
    pub fn keep(&self, room: usize, ends: &[u32]) -> usize {
        let end =
            self.tokens.iter().position(|t| ends.contains(t)).map_or(self.tokens.len(), |i| i + 1);
        end.min(room)
    }
}

/// Acceptance of near misses inside `<think>`: opt-in, greedy only, and not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relaxed {
    /// The token that ends thinking; from a drafted one on, judging is strict again.
    pub think_end: u32,
}

/// A drafted token also stands if the target ranks it this well ...
const RELAXED_RANK: usize = 3;
/// ... and gives it a logit this close to the best.
const RELAXED_MARGIN: f32 = 1.0;

/// Everything a draw depends on besides the logits.
#[derive(Debug)]
pub struct Drawing<'a> {
    /// The settings.
    pub sampling: &'a Sampling,
    /// The tokens before the newest token's successor; follows the path.
    pub history: &'a mut History,
    /// Memory for draws.
    pub sampler: &'a mut Sampler,
    /// What may be written; follows the path like `history`.
    pub constraint: Option<&'a mut (dyn Constraint + 'static)>,
    /// Set while the text is inside `<think>` and relaxed acceptance was asked for.
    pub relaxed: Option<Relaxed>,
}

/// What the judge sees of a row: its logits, or what was drawn from them already.
pub enum RowSeen<'l> {
    /// To be drawn from.
    Logits(Cow<'l, [f32]>),
    /// Only where a draw depends on nothing but the logits and the position.
    Drawn(Drawn),
}

/// A drawn token; an error where a logit of the row was no number.
pub(crate) fn token_of(drawn: Drawn, position: usize) -> Result<u32, Error> {
    match drawn {
        Drawn::Token(token) => Ok(token),
        Drawn::NotFinite(index) => Err(Error::NotFinite { index, position, value: f32::NAN }),
    }
}

/// Walks `draft`, whose newest token stands at `position`, by the logits of its rows.
pub fn judge<'l>(
    draft: &Draft,
    position: usize,
    seen: impl Fn(usize) -> Result<RowSeen<'l>, Error>,
    drawing: &mut Drawing<'_>,
) -> Result<Verdict, Error> {
    let mut verdict = Verdict { path: vec![0], tokens: Vec::new() };
    loop {
        let row = verdict.path[verdict.path.len() - 1];
        let at = position + verdict.path.len();
        let drawn = match seen(row as usize)? {
            RowSeen::Drawn(drawn) => token_of(drawn, at)?,
            RowSeen::Logits(logits) => {
                let constraint = drawing.constraint.as_deref_mut();
                drawing.sampler.draw_within(
                    constraint,
                    drawing.sampling,
                    drawing.history,
                    &logits,
                    at,
                )?
            }
        };
        let exact = draft.children(row).find(|(_, node)| node.token == drawn);
        // By the logits that were drawn from, so that what a bias forbids stays forbidden.
        let adjusted = drawing.sampler.adjusted();
        let relaxed = || drawing.relaxed.and_then(|_| near_miss(draft, row, adjusted));
        let next = exact.map(|(row, node)| (row, node.token)).or_else(relaxed);
        let token = next.map_or(drawn, |(_, token)| token);
        drawing.history.push(token);
        if let Some(constraint) = &mut drawing.constraint {
            constraint.push(token);
        }
        verdict.tokens.push(token);
        if drawing.relaxed.is_some_and(|r| r.think_end == token) {
            drawing.relaxed = None;
        }
        match next {
            Some((row, _)) => verdict.path.push(row),
            None => return Ok(verdict),
        }
    }
}

/// The best child among the target's top few whose logit is close to the best one.
fn near_miss(draft: &Draft, row: u32, logits: &[f32]) -> Option<(u32, u32)> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let qualifies = |token: u32| {
        let logit = logits[token as usize];
        logit >= best - RELAXED_MARGIN
            && logits.iter().filter(|l| **l > logit).count() < RELAXED_RANK
    };
    draft
        .children(row)
        .filter(|(_, node)| qualifies(node.token))
        .max_by(|(_, a), (_, b)| logits[a.token as usize].total_cmp(&logits[b.token as usize]))
        .map(|(row, node)| (row, node.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Node;

    fn node(token: u32, parent: Option<u32>, depth: u32) -> Node {
        Node { token, parent, depth, probability: 0.5 }
    }

    fn drawing<'a>(
        sampling: &'a Sampling,
        history: &'a mut History,
        sampler: &'a mut Sampler,
        relaxed: Option<Relaxed>,
    ) -> Drawing<'a> {
        Drawing { sampling, history, sampler, constraint: None, relaxed }
    }

    /// Rows 0..: a tree 0 -> {1, 2}, 1 -> {3}; tokens 5, 6, 7.
    fn tree() -> Draft {
        Draft { nodes: vec![node(5, None, 1), node(6, None, 1), node(7, Some(0), 2)] }
    }

    fn walk(rows: &[[f32; 8]], relaxed: Option<Relaxed>) -> Verdict {
        let (mut history, mut sampler) = (History::default(), Sampler::default());
        let sampling = Sampling::default();
        let mut drawing = drawing(&sampling, &mut history, &mut sampler, relaxed);
        judge(&tree(), 0, |row| Ok(RowSeen::Logits(Cow::Borrowed(&rows[row][..]))), &mut drawing)
            .unwrap()
    }

    fn favour(token: usize) -> [f32; 8] {
        let mut logits = [0.0; 8];
        logits[token] = 3.0;
        logits
    }

    #[test]
    fn the_walk_follows_the_draws() {
        let all = walk(&[favour(5), favour(7), favour(1), favour(2)], None);
        assert_eq!(all, Verdict { path: vec![0, 1, 3], tokens: vec![5, 7, 2] });
        let sibling = walk(&[favour(6), favour(7), favour(1), favour(2)], None);
        assert_eq!(sibling, Verdict { path: vec![0, 2], tokens: vec![6, 1] });
        let none = walk(&[favour(4), favour(7), favour(1), favour(2)], None);
        assert_eq!(none, Verdict { path: vec![0], tokens: vec![4] });
    }

    #[test]
    fn a_logit_that_is_no_number_names_its_row() {
        let mut bad = favour(7);
        bad[3] = f32::NAN;
        let (mut history, mut sampler) = (History::default(), Sampler::default());
        let sampling = Sampling::default();
        let mut drawing = drawing(&sampling, &mut history, &mut sampler, None);
        let rows = [favour(5), bad];
        let error = judge(
            &tree(),
            40,
            |row| Ok(RowSeen::Logits(Cow::Borrowed(&rows[row][..]))),
            &mut drawing,
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "logit 3 of the row at position 42 is NaN");
    }

    #[test]
    fn relaxed_takes_near_misses_only() {
        let relaxed = Some(Relaxed { think_end: 7 });
        // 4 is best, 5 and 6 qualify, 6 more so.
        let near = [0.0, 0.0, 0.0, 0.0, 3.0, 2.1, 2.5, 0.0];
        assert_eq!(walk(&[near, favour(1), favour(1), favour(1)], relaxed).path, [0, 2]);
        assert_eq!(walk(&[near, favour(1), favour(1), favour(1)], None).path, [0]);
        let beyond_margin = [0.0, 0.0, 0.0, 0.0, 3.0, 1.9, 1.8, 0.0];
        assert_eq!(walk(&[beyond_margin, favour(1), favour(1), favour(1)], relaxed).path, [0]);
        let beyond_rank = [2.9, 2.8, 2.7, 0.0, 3.0, 2.5, 2.4, 0.0];
        assert_eq!(walk(&[beyond_rank, favour(1), favour(1), favour(1)], relaxed).path, [0]);
        // The exact child wins over a better-placed near miss, and a third-ranked one at the margin
        // stands.
        let exact = [0.0, 0.0, 0.0, 0.0, 2.0, 3.0, 2.9, 0.0];
        assert_eq!(walk(&[exact, favour(1), favour(1), favour(1)], relaxed).path, [0, 1]);
        let third = [0.0, 0.0, 0.0, 2.5, 3.0, 2.0, 0.0, 0.0];
        assert_eq!(walk(&[third, favour(1), favour(1), favour(1)], relaxed).path, [0, 1]);
    }

    #[test]
    fn relaxed_acceptance_keeps_to_the_bias() {
        let (mut history, mut sampler) = (History::default(), Sampler::default());
        let sampling = Sampling { logit_bias: vec![(5, f32::NEG_INFINITY)], ..Sampling::default() };
        let relaxed = Some(Relaxed { think_end: 7 });
        let mut drawing = drawing(&sampling, &mut history, &mut sampler, relaxed);
        let rows = [favour(5), favour(1), favour(1), favour(1)];
        let verdict = judge(
            &tree(),
            0,
            |row| Ok(RowSeen::Logits(Cow::Borrowed(&rows[row][..]))),
            &mut drawing,
        )
        .unwrap();
        assert!(!verdict.tokens.contains(&5), "{verdict:?}");
    }

    /// Whatever is drafted, what is emitted is what the target alone would write: its logits depend
    /// on the path only.
    #[test]
    fn no_draft_changes_a_token() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        // A target: logits are a function of the tokens so far.
        let logits_after = |path: &[u32]| -> Vec<f32> {
            let seed =
                path.iter().fold(7u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x100_0000_01b3));
            (0..16u64)
                .map(|t| {
                    ((seed ^ (t * 0x9e37_79b9)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32
                        / 4e6
                })
                .collect()
        };
        for trial in 0..300 {
            let sampling = Sampling {
                temperature: if trial % 3 == 0 { 0.0 } else { 0.9 },
                repetition_penalty: 1.2,
                frequency_penalty: 0.3,
                top_k: 9,
                seed: trial,
                ..Sampling::default()
            };
            // Random trees, among them the target's second choice at every step.
            let mut draft = Draft::default();
            let mut paths: Vec<Vec<u32>> = vec![vec![3]];
            for n in 0..random(20) as u32 {
                let parent =
                    (n > 0).then(|| random(u64::from(n) + 1) as u32).and_then(|p| p.checked_sub(1));
                let at = parent.map_or(0, |p| p as usize + 1);
                let second = {
                    let logits = logits_after(&paths[at]);
                    let mut order: Vec<u32> = (0..16).collect();
                    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
                    order[1]
                };
                let token = if trial % 2 == 0 { second } else { random(16) as u32 };
                draft.nodes.push(node(token, parent, paths[at].len() as u32));
                paths.push([&paths[at][..], &[token]].concat());
            }
            let rows: Vec<Vec<f32>> = paths.iter().map(|p| logits_after(p)).collect();
            let (mut history, mut sampler) = (History::new(&[3]), Sampler::default());
            let mut drawing = drawing(&sampling, &mut history, &mut sampler, None);
            let verdict = judge(
                &draft,
                1,
                |row| Ok(RowSeen::Logits(Cow::Borrowed(&rows[row][..]))),
                &mut drawing,
            )
            .unwrap();
            // The same tokens, one by one.
            let (mut history, mut sampler, mut path) =
                (History::new(&[3]), Sampler::default(), vec![3]);
            for (i, token) in verdict.tokens.iter().enumerate() {
                let drawn = sampler.draw(&sampling, &history, &logits_after(&path), 2 + i).unwrap();
                assert_eq!(drawn, *token, "trial {trial}, token {i}");
                history.push(drawn);
                path.push(drawn);
            }
        }
    }

    #[test]
    fn judging_is_strict_from_a_drafted_think_end_on() {
        let relaxed = Some(Relaxed { think_end: 5 });
        // Row 0 draws 5, the end of thinking; at row 1 child 7 would be a near miss.
        let near = [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5];
        assert_eq!(walk(&[favour(5), near, favour(1), favour(1)], relaxed).path, [0, 1]);
        assert_eq!(
            walk(&[favour(5), near, favour(1), favour(1)], Some(Relaxed { think_end: 4 })).path,
            [0, 1, 3]
        );
    }

    #[test]
    fn nothing_is_kept_beyond_an_end_or_the_room() {
        let verdict = Verdict { path: vec![0, 1, 2, 3], tokens: vec![10, 11, 12, 13] };
        assert_eq!(verdict.keep(9, &[]), 4);
        assert_eq!(verdict.keep(2, &[]), 2);
        assert_eq!(verdict.keep(9, &[11]), 2);
        assert_eq!(verdict.keep(9, &[13]), 4);
    }
}
