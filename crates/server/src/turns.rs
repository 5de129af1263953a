//! Whose turn it is. As many texts share a pass as give the most tokens per second together, which
//! is measured: where weights have to be fetched a pass should serve all of them, and where it is
//! the texts' own states that do not fit a cache, few at a time. Those who are not in the pass have
//! their turn a moment later.

use std::collections::VecDeque;

/// Every text has a turn within this many seconds of rounds, or a round in a cycle where rounds
/// take longer. Short enough to look like a flow, long enough that a state is worth fetching: on
/// two cores, with turns of 5 ms, a token of one of eight texts cost 7 % more processor time than
/// one of a single text, with turns of 25 ms 3 %.
const CYCLE: f64 = 0.2;

/// The same where another company is tried, and where prompts are read beside a turn for so long
/// that everybody would wait a cycle more.
const SHORT_CYCLE: f64 = 0.04;

/// Turns of a cycle at most; more texts than that share passes, so that nobody waits for too many
/// others.
const MOST_TURNS: usize = 8;

/// Companies that are compared: 1, 2, 4 ... texts.
const SIZES: usize = 6;

/// What was measured before a turn counts for so many short cycles at most, or turns where they are
/// longer.
const MEMORY: f64 = 4.0;

/// Another company is tried, for a cycle, only after so many times the seconds that the last trial
/// lost have passed: trials cost less than one part in so many. At least a tenth of a trial counts
/// as lost.
const PATIENCE: f64 = 100.0;

/// Those who take turns.
pub(crate) struct Turns<T> {
    /// Whose turn it is.
    on: Vec<T>,
    /// The others, who has waited longest first.
    off: VecDeque<T>,
    company: Company,
}

impl<T> Turns<T> {
    pub(crate) fn new() -> Self {
        Self { on: Vec::new(), off: VecDeque::new(), company: Company::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.on.len() + self.off.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.on.iter().chain(&self.off)
    }

    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.on.retain(&mut stays);
        self.off.retain(stays);
    }

    /// Takes out the one whose `age` is the greatest: who came last.
    pub(crate) fn take_youngest<A: Ord>(&mut self, age: impl Fn(&T) -> A) -> Option<T> {
        let on = self.on.iter().enumerate().max_by_key(|(_, text)| age(text));
        let off = self.off.iter().enumerate().max_by_key(|(_, text)| age(text));
        match (on, off) {
            (Some((i, on)), Some((_, off))) if age(on) > age(off) => Some(self.on.remove(i)),
            (_, Some((i, _))) => self.off.remove(i),
            (Some((i, _)), None) => Some(self.on.remove(i)),
            (None, None) => None,
        }
    }

    /// Another one, whose turn comes after everybody else's.
    pub(crate) fn push(&mut self, text: T) {
        self.off.push_back(text);
    }

    /// Whether a chunk of a prompt may be read: everybody would have had a round since the last
    /// one, had they gone on together.
    pub(crate) fn let_read(&self) -> bool {
        let Turn { groups, rounds_since_chunk, .. } = self.company.turn;
        self.on.is_empty() || rounds_since_chunk >= groups
    }

    /// Whether the next ones should go on. Where all go on together, whoever is new joins them at
    /// once.
    pub(crate) fn is_over(&self) -> bool {
        let Turn { groups, seconds, is_trial, reading, .. } = self.company.turn;
        let joined = groups == 1 && !self.off.is_empty();
        let cycle = if is_trial || reading * groups as f64 > CYCLE { SHORT_CYCLE } else { CYCLE };
        self.on.is_empty() || joined || seconds * groups as f64 >= cycle
    }

    /// Ends a turn and begins the next.
    pub(crate) fn next(&mut self) {
        self.off.extend(self.on.drain(..));
        let texts = self.company.next(self.off.len());
        self.on.extend(self.off.drain(..texts));
    }

    /// Whose turn it is.
    pub(crate) fn on(&mut self) -> &mut Vec<T> {
        &mut self.on
    }

    /// A round of so many texts gave so many tokens.
    pub(crate) fn add_round(&mut self, texts: usize, tokens: usize, seconds: f64) {
        self.company.add(texts, tokens as f64, seconds);
    }

    /// A chunk of a prompt was read. Its seconds are nobody's turn.
    pub(crate) fn add_chunk(&mut self, seconds: f64) {
        self.company.turn.rounds_since_chunk = 0;
        self.company.turn.reading += seconds;
    }
}

/// How many texts should share a pass.
#[derive(Default)]
struct Company {
    /// By the power of two that holds the texts of a pass.
    sizes: [Measured; SIZES],
    turn: Turn,
    /// The size that is tried or was last, turns left of its trial, seconds since then, and how
    /// many to let pass.
    trial: usize,
    left: usize,
    idle: f64,
    wait: f64,
}

/// A turn so far.
#[derive(Default)]
struct Turn {
    size: usize,
    /// Turns that everybody's having one takes.
    groups: usize,
    rounds_since_chunk: usize,
    seconds: f64,
    /// What its rounds gave before anybody's end made the company another one.
    measured: Measured,
    is_trial: bool,
    /// Seconds of prompts that were read meanwhile.
    reading: f64,
}

/// What passes gave.
#[derive(Clone, Copy, Default)]
struct Measured {
    tokens: f64,
    seconds: f64,
}

impl Measured {
    fn is_known(self) -> bool {
        self.seconds > 0.0
    }

    fn rate(self) -> f64 {
        self.tokens / self.seconds.max(1e-12)
    }
}

impl Company {
    /// Begins a turn; how many of `texts` take part.
    fn next(&mut self, texts: usize) -> usize {
        self.learn();
        let least = size_of(texts.div_ceil(MOST_TURNS));
        let most = size_of(texts);
        let (size, is_trial) = match self.left {
            0 => self.size(least, most),
            _ => (self.trial.clamp(least, most), true),
        };
        let together = (1 << size).min(texts);
        let groups = texts.div_ceil(together.max(1));
        self.left = match (is_trial, self.left) {
            (false, _) => 0,
            (true, 0) => groups.saturating_sub(1),
            (true, left) => left - 1,
        };
        let rounds_since_chunk = self.turn.rounds_since_chunk;
        self.turn = Turn { size, groups, rounds_since_chunk, is_trial, ..Turn::default() };
        together
    }

    /// Takes in the turn that has ended.
    fn learn(&mut self) {
        let Turn { size, seconds, measured, is_trial, .. } = self.turn;
        if is_trial {
            let best = self.sizes.iter().map(|size| size.rate()).fold(1e-12, f64::max);
            self.wait += PATIENCE * (seconds - measured.tokens / best).max(0.1 * seconds);
        } else {
            self.idle += seconds;
        }
        if measured.is_known() {
            let known = &mut self.sizes[size];
            let keep = (MEMORY * seconds.max(SHORT_CYCLE) / known.seconds.max(1e-12)).min(1.0);
            known.tokens = known.tokens * keep + measured.tokens;
            known.seconds = known.seconds * keep + measured.seconds;
        }
    }

    /// The best size of these, or another whose time for a trial has come; whether it is a trial.
    fn size(&mut self, least: usize, most: usize) -> (usize, bool) {
        let known = (least..=most).filter(|size| self.sizes[*size].is_known());
        let Some(best) =
            known.max_by(|a, b| self.sizes[*a].rate().total_cmp(&self.sizes[*b].rate()))
        else {
            return (most, false);
        };
        let unknown = (least..=most).rev().find(|size| !self.sizes[*size].is_known());
        let due = self.idle >= self.wait;
        // The others have a trial one after the other.
        let after =
            ((self.trial + 1).max(least)..=most).chain(least..=most).find(|size| *size != best);
        match unknown.or(after.filter(|_| due)) {
            Some(trial) => {
                (self.trial, self.idle, self.wait) = (trial, 0.0, 0.0);
                (trial, true)
            }
            None => (best, false),
        }
    }

    fn add(&mut self, texts: usize, tokens: f64, seconds: f64) {
        let turn = &mut self.turn;
        turn.rounds_since_chunk += 1;
        turn.seconds += seconds;
        if size_of(texts) == turn.size {
            turn.measured.tokens += tokens;
            turn.measured.seconds += seconds;
        }
    }
}

/// The index of the smallest company that holds so many texts.
fn size_of(texts: usize) -> usize {
    (texts.max(1).next_power_of_two().ilog2() as usize).min(SIZES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that take turns for so many seconds, where a round of `n` of them takes `cost(n)` and
    /// gives a token each, and a chunk of a prompt that does not end takes `chunk`. Tokens of each
    /// text, and the longest anyone waited for one.
    fn simulate(
        turns: &mut Turns<usize>,
        seconds: f64,
        chunk: Option<f64>,
        cost: impl Fn(usize) -> f64,
    ) -> (Vec<usize>, f64) {
        let count = turns.len();
        let (mut now, mut longest) = (0.0, 0.0f64);
        let (mut tokens, mut last) = (vec![0; count], vec![0.0; count]);
        while now < seconds {
            if let Some(seconds) = chunk.filter(|_| turns.let_read()) {
                now += seconds;
                turns.add_chunk(seconds);
            }
            if turns.is_over() {
                turns.next();
            }
            let on = turns.on().clone();
            let seconds = cost(on.len());
            now += seconds;
            turns.add_round(on.len(), on.len(), seconds);
            for text in on {
                tokens[text] += 1;
                longest = longest.max(now - last[text]);
                last[text] = now;
            }
        }
        (tokens, longest)
    }

    fn texts(count: usize) -> Turns<usize> {
        let mut turns = Turns::new();
        (0..count).for_each(|text| turns.push(text));
        turns
    }

    /// Weights that take 6 ms to fetch.
    fn fetched(texts: usize) -> f64 {
        6e-3 + 2e-4 * texts as f64
    }

    /// Weights in the cache, and states of which `room` fit beside them.
    fn cached(room: usize) -> impl Fn(usize) -> f64 {
        move |texts| 4e-5 + 2e-4 * texts as f64 * if texts > room { 1.5 } else { 1.0 }
    }

    #[test]
    fn as_many_share_a_pass_as_is_fastest() {
        let share = |cost: &dyn Fn(usize) -> f64, best: usize| {
            let (tokens, _) = simulate(&mut texts(8), 20.0, None, cost);
            tokens.iter().sum::<usize>() as f64 / (20.0 * best as f64 / cost(best))
        };
        for best in [1, 2, 4, 8] {
            let share = share(&cached(best), best);
            assert!(share > 0.98, "{share} of what {best} at a time give");
        }
        let share = share(&fetched, 8);
        assert!(share > 0.98, "{share} of what all together give");
    }

    #[test]
    fn stalls_do_not_drive_the_best_company_away() {
        // Some 40 times a second, by chance, everything stands still for 5 ms; that costs a fifth.
        let chance = std::cell::Cell::new(1u32);
        let stalled = |texts: usize| {
            let seconds = cached(1)(texts);
            chance.set(chance.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            let drawn = f64::from(chance.get() >> 8) / f64::from(1 << 24);
            if drawn < 40.0 * seconds { seconds + 5e-3 } else { seconds }
        };
        let (tokens, _) = simulate(&mut texts(8), 60.0, None, stalled);
        let share = tokens.iter().sum::<usize>() as f64 / (60.0 / 1.2 / cached(1)(1));
        assert!(share > 0.95, "{share} of what one at a time gives");
    }

    #[test]
    fn a_machine_that_changes_its_pace_keeps_its_company() {
        for best in [1, 8] {
            let now = std::cell::Cell::new(0.0f64);
            let cost = |texts: usize| if best == 1 { cached(1)(texts) } else { fetched(texts) };
            // Slower by two fifths for some moments, again and again.
            let pace = |now: f64| if (now / 0.7).sin() > 0.2 { 1.4 } else { 1.0 };
            let uneven = |texts: usize| {
                let seconds = cost(texts) * pace(now.get());
                now.set(now.get() + seconds);
                seconds
            };
            let (tokens, _) = simulate(&mut texts(8), 60.0, None, uneven);
            let mean = (0..6000).map(|i| 1.0 / pace(0.01 * f64::from(i))).sum::<f64>() / 6000.0;
            let share =
                tokens.iter().sum::<usize>() as f64 / (60.0 * mean * best as f64 / cost(best));
            assert!(share > 0.97, "{share} of what {best} at a time give");
        }
    }

    #[test]
    fn prompts_have_the_share_they_have_beside_all() {
        for (chunk, cost) in [(6e-3, &cached(1) as &dyn Fn(usize) -> f64), (3e-2, &fetched)] {
            let (tokens, _) = simulate(&mut texts(8), 20.0, Some(chunk), cost);
            let texts = tokens.iter().sum::<usize>() as f64;
            // Eight tokens a chunk, each at what it costs in the better company.
            let each = cost(1).min(cost(8) / 8.0);
            let expected = 20.0 * 8.0 / (8.0 * each + chunk);
            assert!(
                (0.95..1.05).contains(&(texts / expected)),
                "{texts} tokens where {expected} would be right"
            );
        }
    }

    #[test]
    fn what_was_best_for_few_or_before_does_not_bind() {
        let mut turns = texts(1);
        simulate(&mut turns, 5.0, None, fetched);
        (1..8).for_each(|text| turns.push(text));
        let (tokens, _) = simulate(&mut turns, 2.0, None, fetched);
        assert!(tokens.iter().sum::<usize>() as f64 > 0.95 * 16.0 / fetched(8), "{tokens:?}");
        simulate(&mut turns, 60.0, None, cached(1));
        let (tokens, _) = simulate(&mut turns, 5.0, None, cached(1));
        assert!(tokens.iter().sum::<usize>() as f64 > 0.95 * 5.0 / cached(1)(1), "{tokens:?}");
    }

    #[test]
    fn turns_are_fair_and_come_soon() {
        for count in [2, 3, 5, 8, 13, 32] {
            for room in [1, 2, 4, 32] {
                for (chunk, bound) in [(None, 2.5 * CYCLE), (Some(6e-3), 10.0 * SHORT_CYCLE)] {
                    let (tokens, longest) = simulate(&mut texts(count), 20.0, chunk, cached(room));
                    let (least, most) =
                        (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
                    assert!(
                        *least as f64 > 0.95 * *most as f64,
                        "{count} texts, room for {room}: {tokens:?}"
                    );
                    assert!(longest < bound, "{count} texts, room for {room}: waited {longest} s");
                }
            }
        }
    }

    #[test]
    fn nobody_is_lost_and_who_leaves_is_not_waited_for() {
        let mut turns = texts(5);
        turns.next();
        turns.retain(|text| *text != 0);
        assert_eq!(turns.len(), 4);
        turns.on().clear();
        assert!(turns.is_over());
        turns.push(7);
        turns.next();
        assert_eq!(turns.iter().filter(|text| **text == 7).count(), 1);
    }
}
