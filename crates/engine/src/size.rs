//! Sizing: what a verify of so many rows costs on this machine, how often the drafter is right, and
//! from both how much of the drafts is worth judging.

use crate::draft::Draft;

/// Weight of a new measurement in what follows it, and of one in the table of verifies, whose
/// common part is for the drift to tell.
pub(crate) const NEW: f64 = 0.2;
const CORRECTION: f64 = 0.05;

/// What of measured seconds counts where some are usual: what took twice as long was stalled, and
/// says something of the machine.
pub(crate) fn unless_stalled(usual: f64, seconds: f64) -> f64 {
    if usual > 0.0 { seconds.min(2.0 * usual) } else { seconds }
}

/// Seconds by a number of rows or texts, from 1 on: measured at some, interpolated between.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve(pub(crate) Vec<(usize, f64)>);

impl Curve {
    /// Follows what is measured.
    pub(crate) fn add(&mut self, count: usize, seconds: f64, weight: f64) {
        match self.0.binary_search_by_key(&count, |(n, _)| *n) {
            Ok(i) => self.0[i].1 += weight * (unless_stalled(self.0[i].1, seconds) - self.0[i].1),
            Err(i) => self.0.insert(i, (count, seconds)),
        }
    }

    /// Nothing where no number is known. Beyond what was measured, more is taken to cost what the
    /// last that was measured did.
    pub(crate) fn get(&self, count: usize) -> Option<f64> {
        let (below, above) = self.0.split_at(self.0.partition_point(|(n, _)| *n <= count));
        let slope = |(a, x): (usize, f64), (b, y): (usize, f64)| (y - x) / (b - a) as f64;
        let further = |n: usize| (count - n) as f64;
        match (below, above) {
            ([.., a], [b, ..]) => Some(a.1 + slope(*a, *b) * further(a.0)),
            ([.., a, b], []) => Some(b.1 + slope(*a, *b).max(0.0) * further(b.0)),
            ([known], []) | ([], [known, ..]) => Some(known.1),
            ([], []) => None,
        }
    }
}

/// Seconds of a verify. They are those of the machine as it was when they were first measured, at
/// the beginning of a text: a longer context or a slower minute slows whoever happens to propose
/// then, and says nothing of how one drafter compares with another.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// By rows, of one text.
    pub(crate) table: Curve,
    /// How much slower than the table verifies are by now: what to divide measured seconds by.
    pub(crate) drift: f64,
    /// Of each text of a pass but the first, whose state has to be read too.
    further_text: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { table: Curve::default(), drift: 1.0, further_text: 0.0 }
    }
}

impl Costs {
    /// A verify of a round. Of one text it makes its size known, or tells how far costs have
    /// drifted; of several, what further texts cost, of which a drift passes for a part.
    pub(crate) fn add(&mut self, rows: usize, texts: usize, seconds: f64) {
        let is_known = self.table.0.iter().any(|(n, _)| *n == rows);
        let usual = self.verify(rows, texts);
        if texts > 1 {
            let seconds = unless_stalled(usual, seconds / self.drift);
            let further = (seconds - self.verify(rows, 1)).max(0.0) / (texts - 1) as f64;
            self.further_text += NEW * (further - self.further_text);
        } else {
            if is_known {
                let seconds = unless_stalled(usual * self.drift, seconds);
                self.drift += NEW * (seconds / usual - self.drift);
            }
            self.table.add(rows, seconds / self.drift, CORRECTION);
        }
    }

    /// Seconds of a verify of `rows` rows of `texts` texts together.
    pub(crate) fn verify(&self, rows: usize, texts: usize) -> f64 {
        let further = texts.saturating_sub(1) as f64 * self.further_text;
        self.table.get(rows).unwrap_or(1e-3) + further
    }

    /// Seconds of a verify for each of `texts` texts that judge `rows` rows each.
    pub(crate) fn verify_each(&self, rows: usize, texts: usize) -> f64 {
        self.verify(rows * texts, texts) / texts as f64
    }
}

/// Rounds' worth of belief in the drafter's own numbers to begin with, and what is left of an old
/// observation after a newer one.
const PRIOR: f64 = 2.0;
const MEMORY: f64 = 0.97;

/// How often a drafted token is accepted, compared with the probability its drafter gave it, by
/// depth: (what the drafter promised, what was accepted).
#[derive(Clone, Debug, Default)]
pub(crate) struct Calibration(Vec<(f64, f64)>);

impl Calibration {
    /// Looks at a walk: at each row that had children, what they promised together, and whether one
    /// was followed.
    pub(crate) fn add(&mut self, draft: &Draft, path: &[u32]) {
        self.0.resize(self.0.len().max(path.len()), (PRIOR, PRIOR));
        for (i, &row) in path.iter().enumerate() {
            let promised: f64 = draft.children(row).map(|(_, n)| f64::from(n.probability)).sum();
            if promised > 0.0 {
                let (sum, accepted) = &mut self.0[i];
                *sum = *sum * MEMORY + promised.min(1.0);
                *accepted = *accepted * MEMORY + f64::from(i + 1 < path.len());
            }
        }
    }

    /// For each node, the probability that its whole path is accepted.
    pub(crate) fn paths(&self, draft: &Draft) -> Vec<f64> {
        let mut paths: Vec<f64> = Vec::with_capacity(draft.nodes.len());
        for node in &draft.nodes {
            let before = node.parent.map_or(1.0, |p| paths[p as usize]);
            let known = self.0.get(node.depth as usize - 1);
            let honesty = known.map_or(1.0, |(promised, accepted)| accepted / promised);
            paths.push(before * (f64::from(node.probability) * honesty).min(1.0));
        }
        paths
    }
}

/// How many more tokens, whose probabilities come likeliest first, are worth their seconds where so
/// many are expected without them: those with the most expected tokens per second, and that rate.
pub(crate) fn best_count(
    mut expected: f64,
    paths: impl IntoIterator<Item = f64>,
    seconds: impl Fn(usize) -> f64,
) -> (usize, f64) {
    let mut best = (0, expected / seconds(0));
    for (path, count) in paths.into_iter().zip(1..) {
        expected += path;
        let rate = expected / seconds(count);
        best = if rate > best.1 { (count, rate) } else { best };
    }
    best
}

/// How many nodes of each text's draft to judge in one pass of at most `most` rows: nodes are taken
/// likeliest first, whosever they are. `paths` has the probability of each node's path, by text,
/// and `fixed` is what the round costs besides the verify. Whoever drafted keeps a node: a draft
/// that is thrown away teaches nothing.
pub(crate) fn best_sizes(paths: &[Vec<f64>], costs: &Costs, fixed: f64, most: usize) -> Vec<usize> {
    let texts = paths.len();
    let kept = usize::from(2 * texts <= most);
    let mut sizes: Vec<usize> = paths.iter().map(|paths| paths.len().min(kept)).collect();
    let rows = texts + sizes.iter().sum::<usize>();
    let expected = paths.iter().flat_map(|paths| paths.iter().take(kept)).sum::<f64>();
    let mut nodes: Vec<(f64, usize)> = Vec::new();
    for (text, paths) in paths.iter().enumerate() {
        nodes.extend(paths.iter().skip(kept).map(|path| (*path, text)));
    }
    nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
    nodes.truncate(most.saturating_sub(rows));
    let seconds = |count| fixed + costs.verify(rows + count, texts);
    let (count, _) = best_count(texts as f64 + expected, nodes.iter().map(|n| n.0), seconds);
    nodes[..count].iter().for_each(|(_, text)| sizes[*text] += 1);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Node;

    /// Rows of a pass at most.
    const MOST: usize = 64;

    fn costs(points: &[(usize, f64)]) -> Costs {
        let mut costs = Costs::default();
        points.iter().for_each(|(rows, seconds)| costs.table.add(*rows, *seconds, 1.0));
        costs
    }

    #[test]
    fn costs_are_interpolated_and_drift() {
        let mut costs = costs(&[(1, 1.0), (16, 2.5), (64, 10.0)]);
        assert_eq!((costs.verify(1, 1), costs.verify(16, 1)), (1.0, 2.5));
        assert!((costs.verify(4, 1) - 1.3).abs() < 1e-9);
        assert!((costs.verify(40, 1) - 6.25).abs() < 1e-9);
        // What rounds measure besides leaves the first measurements as they are.
        costs.add(8, 1, 1.7);
        assert_eq!([1, 8, 16].map(|rows| costs.verify(rows, 1)), [1.0, 1.7, 2.5]);
        // Everything half as slow again, seen at one size only, is a drift of all and leaves their
        // ratios alone.
        for _ in 0..100 {
            costs.add(16, 1, 3.75);
        }
        let (one, sixteen, drift) = (costs.verify(1, 1), costs.verify(16, 1), costs.drift);
        assert!((sixteen * drift - 3.75).abs() < 0.2 && drift > 1.2, "{one} {sixteen} {drift}");
    }

    #[test]
    fn a_stalled_verify_moves_little() {
        let mut costs = costs(&[(1, 1.0), (16, 2.5)]);
        (0..20).for_each(|_| costs.add(1, 1, 1.0));
        costs.add(1, 1, 10.0);
        (0..5).for_each(|_| costs.add(1, 1, 1.0));
        let (verify, drift) = (costs.verify(1, 1), costs.drift);
        assert!((0.7..1.4).contains(&verify) && (0.7..1.4).contains(&drift), "{verify} {drift}");
    }

    #[test]
    fn sizes_never_measured_follow_the_slope() {
        let costs = costs(&[(1, 1.0), (16, 1.3)]);
        assert!((costs.verify(32, 1) - 1.62).abs() < 1e-9, "{}", costs.verify(32, 1));
    }

    #[test]
    fn further_texts_cost_what_they_were_seen_to() {
        let mut costs = costs(&[(1, 1.0), (8, 1.4), (16, 2.0)]);
        assert_eq!(costs.verify_each(1, 8), 1.4 / 8.0);
        (0..50).for_each(|_| costs.add(8, 8, 2.1));
        assert!(
            (costs.verify(8, 8) - 2.1).abs() < 1e-3 && (costs.verify(16, 8) - 2.7).abs() < 1e-3
        );
        // The table of one text and the drift are left as they were.
        assert_eq!((costs.verify(8, 1), costs.drift), (1.4, 1.0));
        // A pass that was quicker than one text's is not believed for good.
        (0..50).for_each(|_| costs.add(8, 8, 1.0));
        assert!((costs.verify(8, 8) - 1.4).abs() < 1e-3);
        (0..50).for_each(|_| costs.add(8, 8, 2.1));
        assert!((costs.verify(8, 8) - 2.1).abs() < 1e-3);
    }

    #[test]
    fn wide_blocks_pay_where_their_rows_are_cheaper() {
        let device = costs(&[(1, 6.1), (8, 6.3), (16, 7.5), (64, 20.0)]);
        let processor = costs(&[(1, 0.34), (8, 0.89), (16, 1.87), (64, 11.3)]);
        assert!(device.is_wide_worth(8, 16, 1) && !processor.is_wide_worth(8, 16, 1));
        // With others in the pass there are rows enough.
        assert!(!device.is_wide_worth(8, 16, 8));
    }

    #[test]
    fn size_follows_probability_and_cost() {
        let flat = costs(&[(1, 1.0), (64, 1.1)]);
        let steep = costs(&[(1, 1.0), (64, 64.0)]);
        let sure = [0.9f64, 0.81, 0.73, 0.66];
        let doubtful = [0.3f64, 0.09, 0.03, 0.01];
        let best_size =
            |paths: &[f64], costs, fixed| best_sizes(&[paths.to_vec()], costs, fixed, MOST)[0];
        assert_eq!(best_size(&sure, &flat, 0.1), 4);
        let gentle = costs(&[(1, 1.0), (64, 16.0)]);
        assert!(best_size(&doubtful, &gentle, 0.5) < best_size(&sure, &gentle, 0.5));
        assert_eq!(best_size(&doubtful, &steep, 0.0), 1);
    }

    #[test]
    fn rows_go_to_the_likeliest_nodes_of_all_texts() {
        let sure: Vec<f64> = (1..=15).map(|depth| 0.98f64.powi(depth)).collect();
        let doubtful: Vec<f64> = (1..=15).map(|depth| 0.4f64.powi(depth)).collect();
        let flat_to_16 = costs(&[(1, 1.0), (16, 1.1), (17, 2.0), (64, 8.0)]);
        let texts = [sure.clone(), doubtful.clone(), Vec::new()];
        let sizes = best_sizes(&texts, &flat_to_16, 0.2, MOST);
        assert_eq!(sizes.iter().sum::<usize>() + 3, 16, "{sizes:?}");
        assert!(sizes[0] > 4 * sizes[1] && sizes[1] >= 1 && sizes[2] == 0, "{sizes:?}");
        // No more than a pass holds, and a row for everybody.
        let free = costs(&[(1, 1.0)]);
        let sizes = best_sizes(&vec![sure; 8], &free, 0.0, MOST);
        assert_eq!(sizes.iter().sum::<usize>(), MOST - 8, "{sizes:?}");
        assert_eq!(
            best_sizes(&vec![doubtful; 32], &costs(&[(1, 1.0), (64, 64.0)]), 0.0, MOST),
            [1; 32]
        );
    }

    #[test]
    fn a_boastful_drafter_is_believed_less() {
        let node =
            |depth: u32| Node { token: 0, parent: depth.checked_sub(2), depth, probability: 0.9 };
        let draft = Draft { nodes: vec![node(1), node(2)] };
        let mut calibration = Calibration::default();
        let before = calibration.paths(&draft);
        (0..50).for_each(|_| calibration.add(&draft, &[0]));
        let after = calibration.paths(&draft);
        assert!(before[0] > 0.85 && after[0] < 0.2, "{before:?} {after:?}");
    }
}
