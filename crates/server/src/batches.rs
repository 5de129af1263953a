//! Which answers share a pass. All of them, unless it was measured that few at a time give more
//! tokens a second: where weights have to be fetched a pass should serve everybody, and where the
//! answers' own states do not fit a cache, each should have some rounds to itself.

use std::collections::VecDeque;

/// Seconds of rounds that a turn has. On two cores a token of one of eight texts cost 7 % more
/// processor time than a single text's with turns of 5 ms, and 3 % with turns of 25 ms.
const TURN: f64 = 0.025;
/// Turns until everybody has had one, at most; more answers than that share turns.
const MOST_TURNS: usize = 8;
/// Seconds of rounds for each second of prompts. A prompt begins and ends with a chunk, so with
/// even shares a short one left others 0.46 of their rate.
const ROUNDS_A_CHUNK: f64 = 1.25;
/// The other size of a batch has one turn in so many: trials cost less than one part in so many.
const PROBE_EVERY: usize = 100;
/// What was measured earlier counts for about so many turns, or rounds where they are longer.
const MEMORY: f64 = 4.0;

/// The answers being written, and which of them are in the passes of this turn.
pub(crate) struct Batches<T> {
    /// Whose turn it is.
    pub(crate) batch: Vec<T>,
    /// The others, who has waited longest first.
    waiting: VecDeque<T>,
    /// Tokens that rounds of few answers, or of a single one, and of all gave, and their seconds.
    rates: [(f64, f64); 2],
    /// Turns until everybody has had one.
    groups: usize,
    /// Seconds of this turn's rounds.
    writing: f64,
    /// Seconds of rounds since a chunk of a prompt was read, and what the chunk took.
    since_chunk: f64,
    chunk: f64,
    /// Turns since the other size was tried.
    turns: usize,
}

impl<T> Batches<T> {
    pub(crate) fn new() -> Self {
        let (batch, waiting, rates) = (Vec::new(), VecDeque::new(), [(0.0, 0.0); 2]);
        let (groups, writing, since_chunk, chunk, turns) = (1, 0.0, 0.0, 0.0, 0);
        Self { batch, waiting, rates, groups, writing, since_chunk, chunk, turns }
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len() + self.waiting.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.batch.iter().chain(&self.waiting)
    }

    /// Takes everybody out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.batch.drain(..).chain(self.waiting.drain(..))
    }

    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.batch.retain(&mut stays);
        self.waiting.retain(stays);
    }

    /// Takes out the one whose `age` is the greatest: who came last.
    pub(crate) fn take_youngest<A: Ord>(&mut self, age: impl Fn(&T) -> A) -> Option<T> {
        let youngest = self.iter().enumerate().max_by_key(|(_, answer)| age(answer))?.0;
        match youngest.checked_sub(self.batch.len()) {
            None => Some(self.batch.remove(youngest)),
            Some(youngest) => self.waiting.remove(youngest),
        }
    }

    /// Another one, whose turn comes after everybody else's.
    pub(crate) fn push(&mut self, answer: T) {
        self.waiting.push_back(answer);
    }

    /// Whether a chunk of prompts may be read: rounds have had more time since the last one than it
    /// did. So whoever writes keeps half of their rate however long a prompt is.
    pub(crate) fn may_read(&self) -> bool {
        self.batch.is_empty() || self.since_chunk >= ROUNDS_A_CHUNK * self.chunk
    }

    /// Whether the next ones should go on. Where all go on together, whoever is new joins them at
    /// once. A long chunk is followed by as long rounds, so those who wait do not wait for several.
    pub(crate) fn is_turn_over(&self) -> bool {
        let joined = self.groups == 1 && !self.waiting.is_empty();
        self.batch.is_empty() || joined || self.writing >= TURN
    }

    /// Ends a turn and begins the next: of all answers or of few, whichever has given more, or of
    /// the other size where that is unknown or was not tried for long.
    pub(crate) fn next_turn(&mut self) {
        self.waiting.extend(self.batch.drain(..));
        let all = self.waiting.len();
        let few = all.div_ceil(MOST_TURNS);
        let [of_few, of_all] = self.rates.map(|(tokens, seconds)| tokens / seconds.max(1e-12));
        let is_due = self.turns >= PROBE_EVERY || of_few == 0.0;
        let is_probe = few < all && of_all > 0.0 && is_due;
        let answers = if (of_all > 0.0 && of_few > of_all) != is_probe { few } else { all };
        self.turns = if is_probe { 0 } else { self.turns + 1 };
        self.batch.extend(self.waiting.drain(..answers));
        self.groups = all.div_ceil(answers.max(1));
        self.writing = 0.0;
    }

    /// A round of the batch gave so many tokens.
    pub(crate) fn add_round(&mut self, tokens: usize, seconds: f64) {
        self.since_chunk += seconds;
        self.writing += seconds;
        let keep = 1.0 - (seconds / TURN).min(1.0) / MEMORY;
        let rate = &mut self.rates[usize::from(self.groups == 1 && self.len() > 1)];
        *rate = (keep * rate.0 + tokens as f64, keep * rate.1 + seconds);
    }

    /// A chunk of prompts was read.
    pub(crate) fn add_chunk(&mut self, seconds: f64) {
        (self.since_chunk, self.chunk) = (0.0, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that take turns for so many seconds, where a round of `n` of them takes `cost(n)` and
    /// gives a token each, and a chunk of a prompt that does not end takes `chunk`. Tokens of each
    /// text, and the longest anyone waited for one.
    fn simulate(
        batches: &mut Batches<usize>,
        seconds: f64,
        chunk: Option<f64>,
        cost: impl Fn(usize) -> f64,
    ) -> (Vec<usize>, f64) {
        let count = batches.len();
        let (mut now, mut longest) = (0.0, 0.0f64);
        let (mut tokens, mut last) = (vec![0; count], vec![0.0; count]);
        while now < seconds {
            if let Some(seconds) = chunk.filter(|_| batches.may_read()) {
                now += seconds;
                batches.add_chunk(seconds);
            }
            if batches.is_turn_over() {
                batches.next_turn();
            }
            let batch = batches.batch.clone();
            let seconds = cost(batch.len());
            now += seconds;
            batches.add_round(batch.len(), seconds);
            for text in batch {
                tokens[text] += 1;
                longest = longest.max(now - last[text]);
                last[text] = now;
            }
        }
        (tokens, longest)
    }

    fn texts(count: usize) -> Batches<usize> {
        let mut batches = Batches::new();
        (0..count).for_each(|text| batches.push(text));
        batches
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
        // Sizes between one and all are not tried: they are never much better than both.
        for (best, least) in [(1, 0.98), (2, 0.9), (4, 0.86), (8, 0.98)] {
            let share = share(&cached(best), best);
            assert!(share > least, "{share} of what {best} at a time give");
        }
        let share = share(&fetched, 8);
        assert!(share > 0.98, "{share} of what all together give");
    }

    #[test]
    fn stalls_do_not_drive_the_best_size_away() {
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
    fn a_machine_that_changes_its_pace_keeps_its_batches() {
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
    fn texts_keep_half_their_rate_and_prompts_have_the_rest() {
        let cached = &cached(1) as &dyn Fn(usize) -> f64;
        for (chunk, cost) in [(1e-3, cached), (6e-3, cached), (4e-3, &fetched), (3e-2, &fetched)] {
            let (tokens, _) = simulate(&mut texts(8), 20.0, Some(chunk), cost);
            let texts = tokens.iter().sum::<usize>() as f64;
            // A token costs what it does in the better batch. A chunk comes after a round, or after
            // as many as take longer than it did.
            let each = cost(1).min(cost(8) / 8.0);
            let round = if cost(1) <= each { cost(1) } else { cost(8) };
            let between = round * (ROUNDS_A_CHUNK * chunk / round).ceil().max(1.0);
            let expected = 20.0 / each * between / (chunk + between);
            assert!(
                (0.95..1.1).contains(&(texts / expected)),
                "{texts} tokens where {expected} would be right, chunks of {chunk} s"
            );
        }
    }

    #[test]
    fn what_was_best_for_few_or_before_does_not_bind() {
        let mut batches = texts(1);
        simulate(&mut batches, 5.0, None, fetched);
        (1..8).for_each(|text| batches.push(text));
        let (tokens, _) = simulate(&mut batches, 2.0, None, fetched);
        assert!(tokens.iter().sum::<usize>() as f64 > 0.95 * 16.0 / fetched(8), "{tokens:?}");
        simulate(&mut batches, 60.0, None, cached(1));
        let (tokens, _) = simulate(&mut batches, 5.0, None, cached(1));
        assert!(tokens.iter().sum::<usize>() as f64 > 0.95 * 5.0 / cached(1)(1), "{tokens:?}");
    }

    #[test]
    fn turns_are_fair_and_come_soon() {
        for count in [2, 3, 5, 8, 13, 32] {
            for room in [1, 2, 4, 32] {
                for chunk in [None, Some(6e-3)] {
                    let (tokens, longest) = simulate(&mut texts(count), 20.0, chunk, cached(room));
                    let (least, most) =
                        (tokens.iter().min().unwrap(), tokens.iter().max().unwrap());
                    assert!(
                        *least as f64 > 0.95 * *most as f64,
                        "{count} texts, room for {room}: {tokens:?}"
                    );
                    assert!(
                        longest < 2.5 * MOST_TURNS as f64 * TURN,
                        "{count} texts, room for {room}: waited {longest} s"
                    );
                }
            }
        }
    }

    #[test]
    fn nobody_is_lost_and_who_leaves_is_not_waited_for() {
        let mut batches = texts(5);
        batches.next_turn();
        batches.retain(|text| *text != 0);
        assert_eq!(batches.len(), 4);
        batches.batch.clear();
        assert!(batches.is_turn_over());
        batches.push(7);
        batches.next_turn();
        assert_eq!(batches.iter().filter(|text| **text == 7).count(), 1);
    }
}
