//! Choosing who proposes: the drafter, or nobody, that gave the most tokens per second of late, and
//! now and then a probe of another.

use crate::size::unless_stalled;

/// Who proposes: a drafter by its number, or nobody.
pub(crate) type Proposer = Option<usize>;

/// A probe is repeated only after so many times the seconds that it loses: probing one of them
/// costs less than one part in so many.
const PATIENCE: f64 = 100.0;
/// Who could at best be this much faster is not worth a probe.
const WORTH_TRYING: f64 = 1.1;
/// Rounds that are averaged over, and those that what other texts taught counts for in a new one,
/// as what was known before a probe does after it.
const MEMORY: f64 = 16.0;
const FROM_OTHER_TEXTS: f64 = 1.0;
/// Plain rounds that a drafter is taken to have been idle for where a text begins, so that one
/// whose probe loses less than four of them is tried at once.
const BEFORE_A_TEXT: f64 = 4.0 * PATIENCE;

/// What is known of a proposer: tokens and seconds of a round, an average over so many.
#[derive(Clone, Debug)]
struct Record {
    who: Proposer,
    tokens: f64,
    seconds: f64,
    rounds: f64,
    /// Seconds since it was last asked.
    idle: f64,
}

impl Record {
    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(1e-12)
    }
}

/// Chooses between proposers by the tokens per second each gave.
#[derive(Clone, Debug)]
pub(crate) struct Choice(Vec<Record>);

impl Choice {
    /// A choice between so many drafters and nobody.
    pub(crate) fn new(drafters: usize) -> Self {
        let record = |who| Record { who, tokens: 0.0, seconds: 0.0, rounds: 0.0, idle: 0.0 };
        Self((0..drafters).map(Some).chain([None]).map(record).collect())
    }

    /// What is known at the beginning of a new text, which may be easier or harder to draft than
    /// those before it.
    pub(crate) fn for_new_text(&self) -> Self {
        let mut choice = self.clone();
        let idle = BEFORE_A_TEXT * self.plain_round();
        for record in choice.0.iter_mut().filter(|r| r.who.is_some()) {
            record.rounds = record.rounds.min(FROM_OTHER_TEXTS);
            record.idle = record.idle.max(idle);
        }
        choice
    }

    /// Seconds of a round without a draft; none before the first.
    pub(crate) fn plain_round(&self) -> f64 {
        self.0.iter().find(|r| r.who.is_none()).map_or(0.0, |r| r.seconds)
    }

    /// Who proposes in the next round, and the tokens per second to expect: what the best gave of
    /// late, or what somebody who is probed could give. `bound` is the most tokens per second a
    /// proposer could give in it; one that cannot win is not tried.
    pub(crate) fn next(&self, bound: impl Fn(Proposer) -> f64) -> (Proposer, f64) {
        let all: Vec<(&Record, f64)> = self.0.iter().map(|r| (r, bound(r.who))).collect();
        let tried = all.iter().filter(|(r, _)| r.rounds > 0.0);
        let rates = tried.map(|(r, most)| (r.who, r.rate().min(*most)));
        let Some((best, rate)) = rates.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return (self.0.first().and_then(|r| r.who), f64::INFINITY);
        };
        let is_due = |(r, most): &&(&Record, f64)| {
            let loss = r.seconds * (1.0 - r.rate() / rate);
            r.who != best && r.idle >= PATIENCE * loss && *most > WORTH_TRYING * rate
        };
        all.iter().find(is_due).map_or((best, rate), |(r, most)| (r.who, *most))
    }

    /// A round: its tokens, and its seconds by the drift.
    pub(crate) fn add(&mut self, who: Proposer, tokens: usize, seconds: f64) {
        for record in &mut self.0 {
            if record.who != who {
                record.idle += seconds;
                continue;
            }
            let is_probe = record.idle > 0.0;
            let most = if is_probe { FROM_OTHER_TEXTS } else { MEMORY - 1.0 };
            record.rounds = record.rounds.min(most) + 1.0;
            let seconds = unless_stalled(record.seconds, seconds);
            record.tokens += (tokens as f64 - record.tokens) / record.rounds;
            record.seconds += (seconds - record.seconds) / record.rounds;
            record.idle = 0.0;
        }
    }

    /// Never asked again.
    pub(crate) fn leave_out(&mut self, drafter: usize) {
        self.0.retain(|r| r.who != Some(drafter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::Costs;

    const DFLASH: Proposer = Some(0);
    const MTP: Proposer = Some(1);
    const OFF: Proposer = None;

    /// Two drafters and nobody, in this order.
    fn index(who: Proposer) -> usize {
        who.unwrap_or(2)
    }

    /// Rounds of ten tokens at these tokens per second; the seconds each arm was used.
    fn spend(choice: &mut Choice, rounds: usize, rate: impl Fn(Proposer) -> f64) -> [f64; 3] {
        let mut spent = [0.0; 3];
        for _ in 0..rounds {
            let arm = choice.next(|_| f64::INFINITY).0;
            let seconds = 10.0 / rate(arm);
            choice.add(arm, 10, seconds);
            spent[index(arm)] += seconds;
        }
        spent
    }

    #[test]
    fn the_faster_arm_is_found_and_found_again() {
        let mut choice = Choice::new(2);
        let by_arm = |rates: [f64; 3]| move |arm: Proposer| rates[index(arm)];
        let [dflash, mtp, off] = spend(&mut choice, 4000, by_arm([0.5, 0.8, 1.0]));
        // A probe of either costs one part in a hundred: half or a fifth of its seconds.
        let lost = 0.5 * dflash + 0.2 * mtp;
        assert!(lost < 0.02 * (dflash + mtp + off), "{dflash} {mtp} {off}");
        let [dflash, mtp, off] = spend(&mut choice, 20_000, by_arm([3.0, 0.8, 1.0]));
        assert!(dflash > 0.9 * (dflash + mtp + off), "{dflash} {mtp} {off}");
        // And as soon as it loses its worth, it is left.
        let [dflash, mtp, off] = spend(&mut choice, 1000, by_arm([0.5, 0.8, 1.0]));
        assert!(off > 0.85 * (dflash + mtp + off), "{dflash} {mtp} {off}");
    }

    #[test]
    fn texts_that_grow_slower_do_not_speak_for_whoever_comes_first() {
        // Seconds of a round besides the verify, rows, and tokens, by arm: 5.3, 5 and 3.3 tokens a
        // second.
        let arms = [(1.0, 16, 16), (0.27, 4, 4), (0.0, 1, 1)];
        let mut costs = Costs::default();
        [(1, 0.3), (4, 0.53), (16, 2.0)]
            .iter()
            .for_each(|(rows, seconds)| costs.table.add(*rows, *seconds, 1.0));
        let mut choice = Choice::new(2);
        let mut spent = [0.0; 3];
        for _ in 0..200 {
            let mut position = 0;
            while position < 96 {
                let slower = 1.0 + position as f64 / 160.0;
                let arm = choice.next(|_| f64::INFINITY).0;
                let (rest, rows, tokens) = arms[index(arm)];
                let verify =
                    [(1, 0.3), (4, 0.53), (16, 2.0)].iter().find(|v| v.0 == rows).expect("known").1;
                costs.add(rows, 1, verify * slower);
                choice.add(arm, tokens, (rest + verify) * slower / costs.drift);
                spent[index(arm)] += (rest + verify) * slower;
                position += tokens;
            }
        }
        let share = spent[0] / spent.iter().sum::<f64>();
        // The other drafter is 6 % slower: a tenth of the time given to it costs less than one part
        // in a hundred.
        assert!(share > 0.88, "{spent:?}");
    }

    #[test]
    fn a_new_text_tries_drafters_with_short_rounds_and_forgets_soon() {
        // Tokens and seconds of a round by arm, in texts that suit no drafter and in texts that
        // suit each.
        let hard = |arm: Proposer| [(1, 10.0), (2, 2.5), (1, 1.0)][index(arm)];
        let easy = |arm: Proposer| [(16, 10.0), (4, 2.5), (1, 1.0)][index(arm)];
        let mut known = Choice::new(2);
        let mut text = |rounds: usize, of: &dyn Fn(Proposer) -> (usize, f64)| {
            let mut choice = known.for_new_text();
            let mut spent = [0.0; 3];
            for _ in 0..rounds {
                let arm = choice.next(|_| f64::INFINITY).0;
                let (tokens, seconds) = of(arm);
                choice.add(arm, tokens, seconds);
                known.add(arm, tokens, seconds);
                spent[index(arm)] += seconds;
            }
            spent
        };
        (0..20).for_each(|_| _ = text(100, &hard));
        // An easy one among them is found to be easy at once, and a hard one after it costs a few
        // short rounds.
        let [dflash, mtp, off] = text(20, &easy);
        assert!(off <= 1.0 && mtp > 0.0, "{dflash} {mtp} {off}");
        let [dflash, mtp, off] = text(100, &hard);
        assert!(dflash == 0.0 && mtp <= 25.0, "{dflash} {mtp} {off}");
    }

    #[test]
    fn a_stall_does_not_change_the_choice() {
        let mut choice = Choice::new(2);
        choice.leave_out(0);
        spend(&mut choice, 200, |arm| if arm == OFF { 1.0 } else { 0.8 });
        choice.add(OFF, 10, 10_000.0);
        assert_eq!(choice.next(|_| 0.0).0, OFF);
    }

    #[test]
    fn an_arm_that_cannot_win_is_not_tried() {
        let mut choice = Choice::new(2);
        choice.add(DFLASH, 10, 1.0);
        assert_eq!(choice.next(|_| 9.0), (DFLASH, 9.0));
        assert_eq!(choice.next(|_| 12.0), (MTP, 12.0));
    }
}
