//! Sizing: what a verify of so many rows costs on this machine, how often the drafter is right, and from both how much
//! of a draft is worth judging and which drafter to ask.

use crate::draft::{Draft, MAX_NODES};

/// Weight of a new measurement in a running mean.
const NEW: f64 = 0.2;

/// A mean that follows what it measures.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    value: f64,
    seen: u32,
}

impl Mean {
    pub(crate) fn add(&mut self, value: f64) {
        let weight = NEW.max(1.0 / f64::from(self.seen + 1));
        self.value += weight * (value - self.value);
        self.seen = self.seen.saturating_add(1);
    }

    /// Seconds that are far longer than usual count as twice the usual: they say something of the machine.
    pub(crate) fn add_unless_stalled(&mut self, seconds: f64) {
        self.add(self.get().map_or(seconds, |usual| seconds.min(STALLED * usual)));
    }

    pub(crate) fn get(&self) -> Option<f64> {
        (self.seen > 0).then_some(self.value)
    }
}

/// Seconds of a verify by its number of rows: measured at some, interpolated between.
///
/// They are seconds of the machine as it was when they were first measured, at the beginning of a text. What is measured later
/// is divided by the drift: a longer context or a slower minute slows whoever happens to propose then, and says nothing
/// of how one drafter compares with another.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// By rows, from 1; none where that many were never measured.
    verify: [Option<f64>; MAX_NODES + 2],
    /// How much slower than the table verifies are by now.
    drift: Mean,
}

/// Weight of a verify in what is known of its size.
const CORRECTION: f64 = 0.05;
/// What took this many times as long as expected was stalled.
const STALLED: f64 = 2.0;

impl Costs {
    pub(crate) fn new() -> Self {
        Self { verify: [None; MAX_NODES + 2], drift: Mean::default() }
    }

    /// A first measurement.
    pub(crate) fn set(&mut self, rows: usize, seconds: f64) {
        self.verify[rows] = Some(seconds);
    }

    /// A verify of a round. Where its size is known, it tells how far costs have drifted; else it makes it known.
    pub(crate) fn add(&mut self, rows: usize, seconds: f64) {
        let Some(known) = self.verify[rows] else {
            self.verify[rows] = Some(seconds / self.drift());
            return;
        };
        let seconds = seconds.min(STALLED * known * self.drift());
        self.drift.add(seconds / known);
        // The table itself moves slowly: what all sizes have in common is for the drift to tell.
        self.verify[rows] = Some(known + CORRECTION * (seconds / self.drift() - known));
    }

    /// What to divide measured seconds by.
    pub(crate) fn drift(&self) -> f64 {
        self.drift.get().unwrap_or(1.0)
    }

    /// Seconds of a verify of `rows` rows.
    pub(crate) fn verify(&self, rows: usize) -> f64 {
        self.table(rows).unwrap_or(1e-3)
    }

    fn table(&self, rows: usize) -> Option<f64> {
        let known = |n: usize| self.verify[n].map(|v| (n as f64, v));
        let below = (1..=rows).rev().find_map(known);
        let above = (rows..self.verify.len()).find_map(known);
        match (below, above) {
            (Some((a, x)), Some((b, y))) if b > a => Some(x + (y - x) * (rows as f64 - a) / (b - a)),
            (Some((_, x)), Some(_)) => Some(x),
            // Beyond what was measured, rows are taken to cost what the last measured ones did.
            (Some((a, x)), None) => {
                let before = (1..a as usize).rev().find_map(known);
                let slope = before.map_or(0.0, |(b, y)| ((x - y) / (a - b)).max(0.0));
                Some(x + slope * (rows as f64 - a))
            }
            (None, Some((_, y))) => Some(y),
            (None, None) => None,
        }
    }
}

/// Seconds of a draft that is made token by token: the first one's, with everything a draft begins with, and each further one's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepCosts {
    first: Mean,
    next: Mean,
}

impl StepCosts {
    /// A draft of `count` tokens: its first took `first` seconds, the others `rest`.
    pub(crate) fn add(&mut self, first: f64, rest: f64, count: usize) {
        self.first.add_unless_stalled(first);
        if count > 1 {
            self.next.add_unless_stalled(rest / (count - 1) as f64);
        }
    }

    /// A further token is taken to cost no more than a first: that is always measured again, so a stall is not believed for good.
    pub(crate) fn seconds(&self, count: usize) -> f64 {
        let first = self.first.get().unwrap_or(0.0);
        first + self.next.get().unwrap_or(first).min(first) * count.saturating_sub(1) as f64
    }
}

/// How often a drafted token stands, compared with the probability its drafter gave it, by depth.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    /// (what the drafter promised, what stood).
    depths: Vec<(f64, f64)>,
}

/// Rounds' worth of belief in the drafter's own numbers to begin with.
const PRIOR: f64 = 2.0;
/// What is left of an old observation after a newer one.
const MEMORY: f64 = 0.97;

impl Calibration {
    pub(crate) fn new() -> Self {
        Self { depths: vec![(PRIOR, PRIOR); MAX_NODES + 1] }
    }

    /// Looks at a walk: at each row that had children, what they promised together, and whether one was followed.
    pub(crate) fn add(&mut self, draft: &Draft, path: &[u32]) {
        for (i, &row) in path.iter().enumerate() {
            let promised: f64 = draft.children(row).map(|(_, n)| f64::from(n.probability)).sum();
            if promised > 0.0 {
                let (sum, stood) = &mut self.depths[i];
                *sum = *sum * MEMORY + promised.min(1.0);
                *stood = *stood * MEMORY + f64::from(i + 1 < path.len());
            }
        }
    }

    /// The probability that a token stands if its parent does.
    fn stands(&self, depth: u32, probability: f32) -> f64 {
        let (promised, stood) = self.depths[depth as usize - 1];
        (f64::from(probability) * stood / promised).min(1.0)
    }

    /// For each node, the probability that its whole path stands.
    pub(crate) fn paths(&self, draft: &Draft) -> Vec<f64> {
        let mut paths: Vec<f64> = Vec::with_capacity(draft.nodes.len());
        for node in &draft.nodes {
            let before = node.parent.map_or(1.0, |p| paths[p as usize]);
            paths.push(before * self.stands(node.depth, node.probability));
        }
        paths
    }
}

/// How many nodes of `draft` to judge, so that expected tokens per second are the most; `fixed` is what the round costs
/// besides the verify.
pub(crate) fn best_size(paths: &[f64], costs: &Costs, fixed: f64) -> usize {
    let mut expected = 1.0;
    let mut best = (0, expected / (fixed + costs.verify(1)));
    for (i, path) in paths.iter().enumerate() {
        expected += path;
        let rate = expected / (fixed + costs.verify(i + 2));
        if rate > best.1 {
            best = (i + 1, rate);
        }
    }
    best.0
}

/// Whether a chain is worth another token: whether some longer one of at most `most`, whose further tokens stand as its last does,
/// gives more tokens per second. `seconds` are those of a round by tokens drafted. Passes of some sizes are cheaper than the
/// one before, so it is not enough to look at the next.
pub(crate) fn is_worth_another(paths: &[f64], most: usize, seconds: impl Fn(usize) -> f64) -> bool {
    let drafted = paths.len();
    let mut expected = 1.0 + paths.iter().sum::<f64>();
    let rate = expected / seconds(drafted);
    let mut path = paths[drafted - 1];
    let stands = path / if drafted > 1 { paths[drafted - 2] } else { 1.0 };
    (drafted + 1..=most).any(|count| {
        path *= stands;
        expected += path;
        expected / seconds(count) > rate
    })
}

/// Who proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Dflash,
    Mtp,
    Off,
}

/// A trial that loses time is repeated within a text only after so many times as much has passed: what trying an arm costs
/// stays below one part in so many, but for the first trial of a text (`SHORT_ROUND`).
const PATIENCE: f64 = 100.0;
/// After trials that keep losing, up to so many times longer.
const MOST_PATIENCE: f64 = 4.0 * PATIENCE;
/// An arm that could at best be this much faster is not worth a trial.
const WORTH_TRYING: f64 = 1.1;

/// Tokens that what other texts taught of a drafter counts for in a new one: its own first rounds say more.
const FROM_OTHER_TEXTS: f64 = 12.0;
/// A drafter whose rounds take no more plain ones than this is tried at the beginning of every text, if it could win.
const SHORT_ROUND: f64 = 4.0;

/// What is known of an arm.
#[derive(Clone, Debug)]
struct Record {
    arm: Arm,
    tokens: f64,
    seconds: f64,
    /// Seconds of a round.
    round: Mean,
    /// Seconds since it was last tried, and how many to let pass.
    idle: f64,
    wait: f64,
}

/// Chooses between drafters by the tokens per second each gave, trying the others again ever more rarely.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    arms: Vec<Record>,
}

impl Choice {
    pub(crate) fn new(arms: &[Arm]) -> Self {
        let record = |&arm: &Arm| Record {
            arm,
            tokens: 0.0,
            seconds: 0.0,
            round: Mean::default(),
            idle: 0.0,
            wait: 0.0,
        };
        Self { arms: arms.iter().map(record).collect() }
    }

    /// What is known at the beginning of a new text, which may be easier or harder to draft than those before it.
    pub(crate) fn for_new_text(&self) -> Self {
        let mut choice = self.clone();
        let plain = choice.arms.iter().find(|r| r.arm == Arm::Off).and_then(|r| r.round.get());
        let best = choice.best().map_or(0.0, Record::rate);
        for record in choice.arms.iter_mut().filter(|r| r.arm != Arm::Off) {
            // What its last round lost may have been luck; a trial here costs what its rounds lose on average.
            let loss = record.round.get().unwrap_or(0.0) * (1.0 - record.rate() / best.max(1e-12));
            record.wait = record.wait.max(PATIENCE * loss);
            let kept = (FROM_OTHER_TEXTS / record.tokens.max(1e-12)).min(1.0);
            record.tokens *= kept;
            record.seconds *= kept;
            if let (Some(plain), Some(round)) = (plain, record.round.get())
                && round <= SHORT_ROUND * plain
            {
                record.wait = 0.0;
            }
        }
        choice
    }

    /// The arm for the next round. `bound` is the most tokens per second an arm could give in it; one that cannot win is not
    /// tried, and at the end of a text one that won may not be able to any more.
    pub(crate) fn next(&self, bound: impl Fn(Arm) -> f64) -> Arm {
        let rate = |r: &Record| if r.arm == Arm::Off { r.rate() } else { r.rate().min(bound(r.arm)) };
        let tried = self.arms.iter().filter(|r| r.seconds > 0.0);
        let Some(best) = tried.max_by(|a, b| rate(a).total_cmp(&rate(b))) else {
            return self.arms.first().map_or(Arm::Off, |r| r.arm);
        };
        let due =
            |r: &&Record| r.arm != best.arm && r.idle >= r.wait && bound(r.arm) > WORTH_TRYING * rate(best);
        self.arms.iter().find(due).unwrap_or(best).arm
    }

    /// A round of an arm: its tokens, and its seconds by the drift; `caught_up` are those that taking in what others had
    /// written took before it, which a trial costs but a second round would not.
    pub(crate) fn add(&mut self, arm: Arm, tokens: usize, seconds: f64, caught_up: f64) {
        let before = self.best().map(|b| b.arm);
        for record in &mut self.arms {
            if record.arm == arm {
                // A round that took far longer than usual says something of the machine, not of the arm.
                let usual = record.round.get().unwrap_or(seconds);
                record.round.add(seconds);
                // What is remembered is some 60 tokens; a trial after a while says more than what was known before it.
                let tried_again = record.idle > 0.0;
                let keep = if tried_again { 0.3 } else { 1.0 - (tokens as f64 / 64.0).min(0.1) };
                record.tokens = record.tokens * keep + tokens as f64;
                record.seconds = record.seconds * keep + seconds.min(2.0 * usual);
                record.idle = 0.0;
            } else {
                record.idle += seconds + caught_up;
            }
        }
        let Some((best, rate)) = self.best().map(|b| (b.arm, b.rate())) else { return };
        for record in &mut self.arms {
            if record.arm == best {
                record.wait = 0.0;
            } else if record.arm == arm || Some(record.arm) == before {
                // Who was best until now would lose what its rounds take longer.
                let loss = match record.arm == arm {
                    true => (seconds + caught_up - tokens as f64 / rate).max(0.0),
                    false => record.round.get().unwrap_or(seconds) * (1.0 - record.rate() / rate),
                };
                record.wait = (2.0 * record.wait).clamp(PATIENCE * loss, MOST_PATIENCE * loss);
            }
        }
    }

    fn best(&self) -> Option<&Record> {
        let tried = self.arms.iter().filter(|r| r.seconds > 0.0);
        tried.max_by(|a, b| a.rate().total_cmp(&b.rate()))
    }

    /// Never asked again.
    pub(crate) fn drop_arm(&mut self, arm: Arm) {
        self.arms.retain(|r| r.arm != arm);
    }
}

impl Record {
    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(1e-12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Node;

    fn costs(points: &[(usize, f64)]) -> Costs {
        let mut costs = Costs::new();
        points.iter().for_each(|(rows, seconds)| costs.set(*rows, *seconds));
        costs
    }

    #[test]
    fn costs_are_interpolated_and_drift() {
        let mut costs = costs(&[(1, 1.0), (16, 2.5), (64, 10.0)]);
        assert_eq!((costs.verify(1), costs.verify(16)), (1.0, 2.5));
        assert!((costs.verify(4) - 1.3).abs() < 1e-9);
        assert!((costs.verify(40) - 6.25).abs() < 1e-9);
        // What rounds measure besides leaves the first measurements as they are.
        costs.add(8, 1.7);
        assert_eq!((costs.verify(1), costs.verify(8), costs.verify(16)), (1.0, 1.7, 2.5));
        // Everything half as slow again, seen at one size only, is a drift of all and leaves their ratios alone.
        for _ in 0..100 {
            costs.add(16, 3.75);
        }
        let (one, sixteen, drift) = (costs.verify(1), costs.verify(16), costs.drift());
        assert!((sixteen * drift - 3.75).abs() < 0.2 && drift > 1.2, "{one} {sixteen} {drift}");
    }

    #[test]
    fn a_chain_goes_on_where_a_longer_one_pays() {
        // Three rows cost two passes, four one of their own.
        let verify = |count: usize| [1.0, 1.4, 2.4, 1.9, 3.0, 3.3, 3.6, 2.5][count];
        let seconds = |count: usize| 0.1 * count as f64 + verify(count);
        assert!(is_worth_another(&[0.99], 7, seconds));
        assert!(!is_worth_another(&[0.99], 2, seconds), "two tokens are worse than one");
        assert!(!is_worth_another(&[0.5], 7, seconds));
        assert!(
            is_worth_another(&[0.99, 0.98, 0.97], 7, seconds)
                && !is_worth_another(&[0.99, 0.98, 0.97], 6, seconds)
        );
        let mut costs = StepCosts::default();
        costs.add(3.0, 0.0, 1);
        assert_eq!(costs.seconds(2), 6.0);
        costs.add(3.0, 2.0, 3);
        assert_eq!([1, 2, 4].map(|count| costs.seconds(count)), [3.0, 4.0, 6.0]);
    }

    #[test]
    fn a_stalled_token_does_not_end_longer_drafts() {
        let mut costs = StepCosts::default();
        costs.add(0.2, 0.1, 2);
        let seconds = |costs: &StepCosts, count: usize| costs.seconds(count) + 1.0 + 0.1 * count as f64;
        costs.add(20.0, 10.0, 2);
        for _ in 0..20 {
            costs.add(0.2, 0.0, 1);
        }
        assert!(is_worth_another(&[0.9], 7, |count| seconds(&costs, count)), "{costs:?}");
    }

    #[test]
    fn a_stalled_verify_moves_little() {
        let mut costs = costs(&[(1, 1.0), (16, 2.5)]);
        (0..20).for_each(|_| costs.add(1, 1.0));
        costs.add(1, 10.0);
        (0..5).for_each(|_| costs.add(1, 1.0));
        let (verify, drift) = (costs.verify(1), costs.drift());
        assert!((0.7..1.4).contains(&verify) && (0.7..1.4).contains(&drift), "{verify} {drift}");
    }

    #[test]
    fn sizes_never_measured_follow_the_slope() {
        let costs = costs(&[(1, 1.0), (16, 1.3)]);
        assert!((costs.verify(32) - 1.62).abs() < 1e-9, "{}", costs.verify(32));
    }

    #[test]
    fn size_follows_probability_and_cost() {
        let flat = costs(&[(1, 1.0), (64, 1.1)]);
        let steep = costs(&[(1, 1.0), (64, 64.0)]);
        let sure = [0.9f64, 0.81, 0.73, 0.66];
        let doubtful = [0.3f64, 0.09, 0.03, 0.01];
        assert_eq!(best_size(&sure, &flat, 0.1), 4);
        let gentle = costs(&[(1, 1.0), (64, 16.0)]);
        assert!(best_size(&doubtful, &gentle, 0.5) < best_size(&sure, &gentle, 0.5));
        assert_eq!(best_size(&doubtful, &steep, 0.0), 0);
    }

    #[test]
    fn a_boastful_drafter_is_believed_less() {
        let node = |depth: u32| Node { token: 0, parent: depth.checked_sub(2), depth, probability: 0.9 };
        let draft = Draft { nodes: vec![node(1), node(2)] };
        let mut calibration = Calibration::new();
        let before = calibration.paths(&draft);
        (0..50).for_each(|_| calibration.add(&draft, &[0]));
        let after = calibration.paths(&draft);
        assert!(before[0] > 0.85 && after[0] < 0.2, "{before:?} {after:?}");
    }

    /// Rounds of ten tokens at these tokens per second; the seconds each arm was used.
    fn spend(choice: &mut Choice, rounds: usize, rate: impl Fn(Arm) -> f64) -> [f64; 3] {
        let mut spent = [0.0; 3];
        for _ in 0..rounds {
            let arm = choice.next(|_| f64::INFINITY);
            let seconds = 10.0 / rate(arm);
            choice.add(arm, 10, seconds, 0.0);
            spent[arm as usize] += seconds;
        }
        spent
    }

    #[test]
    fn the_faster_arm_is_found_and_found_again() {
        let mut choice = Choice::new(&[Arm::Dflash, Arm::Mtp, Arm::Off]);
        let by_arm = |rates: [f64; 3]| move |arm: Arm| rates[arm as usize];
        let [dflash, mtp, off] = spend(&mut choice, 4000, by_arm([0.5, 0.8, 1.0]));
        assert!(off > 0.95 * (dflash + mtp + off), "{dflash} {mtp} {off}");
        let [dflash, mtp, off] = spend(&mut choice, 20_000, by_arm([3.0, 0.8, 1.0]));
        assert!(dflash > 0.9 * (dflash + mtp + off), "{dflash} {mtp} {off}");
        // And as soon as it loses its worth, it is left.
        let [dflash, mtp, off] = spend(&mut choice, 1000, by_arm([0.5, 0.8, 1.0]));
        assert!(off > 0.85 * (dflash + mtp + off), "{dflash} {mtp} {off}");
    }

    #[test]
    fn texts_that_grow_slower_do_not_speak_for_whoever_comes_first() {
        // Seconds of a round besides the verify, rows, and tokens, by arm: 5.3, 5 and 3.3 tokens a second.
        let arms = [(1.0, 16, 16), (0.27, 4, 4), (0.0, 1, 1)];
        let mut costs = costs(&[(1, 0.3), (4, 0.53), (16, 2.0)]);
        let mut choice = Choice::new(&[Arm::Dflash, Arm::Mtp, Arm::Off]);
        let mut spent = [0.0; 3];
        for _ in 0..200 {
            let mut position = 0;
            while position < 96 {
                let slower = 1.0 + position as f64 / 160.0;
                let arm = choice.next(|_| f64::INFINITY);
                let (rest, rows, tokens) = arms[arm as usize];
                let verify = [(1, 0.3), (4, 0.53), (16, 2.0)].iter().find(|v| v.0 == rows).expect("known").1;
                costs.add(rows, verify * slower);
                choice.add(arm, tokens, (rest + verify) * slower / costs.drift(), 0.0);
                spent[arm as usize] += (rest + verify) * slower;
                position += tokens;
            }
        }
        let share = spent[0] / spent.iter().sum::<f64>();
        // The other drafter is 6 % slower: a tenth of the time given to it costs less than one part in a hundred.
        assert!(share > 0.88, "{spent:?}");
    }

    #[test]
    fn a_new_text_tries_drafters_with_short_rounds_and_forgets_soon() {
        // Tokens and seconds of a round by arm, in texts that suit no drafter and in texts that suit each.
        let hard = |arm: Arm| [(1, 10.0), (2, 2.5), (1, 1.0)][arm as usize];
        let easy = |arm: Arm| [(16, 10.0), (4, 2.5), (1, 1.0)][arm as usize];
        let mut known = Choice::new(&[Arm::Dflash, Arm::Mtp, Arm::Off]);
        let mut text = |rounds: usize, of: &dyn Fn(Arm) -> (usize, f64)| {
            let mut choice = known.for_new_text();
            let mut spent = [0.0; 3];
            for _ in 0..rounds {
                let arm = choice.next(|_| f64::INFINITY);
                let (tokens, seconds) = of(arm);
                choice.add(arm, tokens, seconds, 0.0);
                known.add(arm, tokens, seconds, 0.0);
                spent[arm as usize] += seconds;
            }
            spent
        };
        (0..20).for_each(|_| _ = text(100, &hard));
        // An easy one among them is found to be easy at once, and a hard one after it costs a few short rounds.
        let [dflash, mtp, off] = text(20, &easy);
        assert!(off <= 1.0 && mtp > 0.0, "{dflash} {mtp} {off}");
        let [dflash, mtp, off] = text(100, &hard);
        assert!(dflash == 0.0 && mtp <= 25.0, "{dflash} {mtp} {off}");
    }

    #[test]
    fn a_stall_does_not_change_the_choice() {
        let mut choice = Choice::new(&[Arm::Mtp, Arm::Off]);
        spend(&mut choice, 200, |arm| if arm == Arm::Off { 1.0 } else { 0.8 });
        choice.add(Arm::Off, 10, 10_000.0, 0.0);
        assert_eq!(choice.next(|_| 0.0), Arm::Off);
    }

    #[test]
    fn an_arm_that_cannot_win_is_not_tried() {
        let mut choice = Choice::new(&[Arm::Dflash, Arm::Mtp]);
        choice.add(Arm::Dflash, 10, 1.0, 0.0);
        assert_eq!(choice.next(|_| 9.0), Arm::Dflash);
        assert_eq!(choice.next(|_| 12.0), Arm::Mtp);
    }
}
