//! Choosing who proposes: by the tokens per second that each drafter gave, and by what another try
//! would cost.

use crate::size::Mean;

/// Who proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Dflash,
    Mtp,
    Off,
}

/// A trial that loses time is repeated within a text only after so many times as much has passed:
/// what trying an arm costs stays below one part in so many, but for the first trial of a text
/// (`SHORT_ROUND`).
const PATIENCE: f64 = 100.0;
/// After trials that keep losing, up to so many times longer.
const MOST_PATIENCE: f64 = 4.0 * PATIENCE;
/// An arm that could at best be this much faster is not worth a trial.
const WORTH_TRYING: f64 = 1.1;

/// Tokens that what other texts taught of a drafter counts for in a new one: its own first rounds
/// say more.
const FROM_OTHER_TEXTS: f64 = 12.0;
/// A drafter whose rounds take no more plain ones than this is tried at the beginning of every
/// text, if it could win.
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

/// Chooses between drafters by the tokens per second each gave, trying the others again ever more
/// rarely.
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

    /// What is known at the beginning of a new text, which may be easier or harder to draft than
    /// those before it.
    pub(crate) fn for_new_text(&self) -> Self {
        let mut choice = self.clone();
        let plain = choice.arms.iter().find(|r| r.arm == Arm::Off).and_then(|r| r.round.get());
        let best = choice.best().map_or(0.0, Record::rate);
        for record in choice.arms.iter_mut().filter(|r| r.arm != Arm::Off) {
            // What its last round lost may have been luck; a trial here costs what its rounds lose
            // on average.
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

    /// The arm for the next round. `bound` is the most tokens per second an arm could give in it;
    /// one that cannot win is not tried, and at the end of a text one that won may not be able to
    /// any more.
    pub(crate) fn next(&self, bound: impl Fn(Arm) -> f64) -> Arm {
        let rate =
            |r: &Record| if r.arm == Arm::Off { r.rate() } else { r.rate().min(bound(r.arm)) };
        let tried = self.arms.iter().filter(|r| r.seconds > 0.0);
        let Some(best) = tried.max_by(|a, b| rate(a).total_cmp(&rate(b))) else {
            return self.arms.first().map_or(Arm::Off, |r| r.arm);
        };
        let due = |r: &&Record| {
            r.arm != best.arm && r.idle >= r.wait && bound(r.arm) > WORTH_TRYING * rate(best)
        };
        self.arms.iter().find(due).unwrap_or(best).arm
    }

    /// A round of an arm: its tokens, and its seconds by the drift; `caught_up` are those that
    /// taking in what others had written took before it, which a trial costs but a second round
    /// would not.
    pub(crate) fn add(&mut self, arm: Arm, tokens: usize, seconds: f64, caught_up: f64) {
        let before = self.best().map(|b| b.arm);
        for record in &mut self.arms {
            if record.arm == arm {
                // A round that took far longer than usual says something of the machine, not of the
                // arm.
                let usual = record.round.get().unwrap_or(seconds);
                record.round.add(seconds);
                // What is remembered is some 60 tokens; a trial after a while says more than what
                // was known before it.
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
    use crate::size::Costs;

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
        // Seconds of a round besides the verify, rows, and tokens, by arm: 5.3, 5 and 3.3 tokens a
        // second.
        let arms = [(1.0, 16, 16), (0.27, 4, 4), (0.0, 1, 1)];
        let mut costs = Costs::default();
        [(1, 0.3), (4, 0.53), (16, 2.0)]
            .iter()
            .for_each(|(rows, seconds)| costs.set(*rows, *seconds));
        let mut choice = Choice::new(&[Arm::Dflash, Arm::Mtp, Arm::Off]);
        let mut spent = [0.0; 3];
        for _ in 0..200 {
            let mut position = 0;
            while position < 96 {
                let slower = 1.0 + position as f64 / 160.0;
                let arm = choice.next(|_| f64::INFINITY);
                let (rest, rows, tokens) = arms[arm as usize];
                let verify =
                    [(1, 0.3), (4, 0.53), (16, 2.0)].iter().find(|v| v.0 == rows).expect("known").1;
                costs.add(rows, 1, verify * slower);
                choice.add(arm, tokens, (rest + verify) * slower / costs.drift(), 0.0);
                spent[arm as usize] += (rest + verify) * slower;
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
        // An easy one among them is found to be easy at once, and a hard one after it costs a few
        // short rounds.
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
