//! How many tokens of prompts one pass reads while other answers are written, and whose they are. A
//! pass over few tokens costs a device nearly what one over many does, so it reads as many as others
//! can wait for; on a processor every token costs the same, and a longer chunk would only make them
//! wait.

/// Tokens of a chunk at least, and all there are on a processor.
const LEAST: usize = 64;

/// Seconds that others may wait for a chunk: in these an H200 reads 256 tokens of the 27B, 2.6
/// times as fast as by 64.
const WAIT: f64 = 0.04;

/// The tokens that a pass over a prompt may have beside running answers.
pub(crate) struct PrefillBudget {
    pub(crate) tokens: usize,
    most: usize,
}

impl PrefillBudget {
    /// Of `most` tokens at most where a device reads them.
    pub(crate) fn new(most: usize, on_device: bool) -> Self {
        Self { tokens: LEAST, most: if on_device { most.max(LEAST) } else { LEAST } }
    }

    /// A chunk of so many tokens was read. One that the prompt or a mark in it cut short says
    /// nothing, unless it took too long. The root makes steps half as long: one may be an accident.
    pub(crate) fn add(&mut self, tokens: usize, seconds: f64) {
        if tokens >= self.tokens || seconds > WAIT {
            let tokens = tokens as f64 * (WAIT / seconds.max(1e-6)).sqrt();
            self.tokens = (tokens.round() as usize).clamp(LEAST, self.most);
        }
    }
}

/// How many rows of a pass each prompt has, where so many tokens are `left` of each and the last of
/// them has waited longest: half of them are that one's, the others go to who has least left, so
/// that short prompts need not wait for a long one, and a long one does not wait for ever.
pub(crate) fn shares(left: &[usize], rows: usize) -> Vec<usize> {
    let (mut shares, mut room) = (vec![0; left.len()], rows);
    let Some(longest) = left.len().checked_sub(1) else { return shares };
    let mut give = |prompt: usize, most: usize| {
        let more = (left[prompt] - shares[prompt]).min(most).min(room);
        shares[prompt] += more;
        room -= more;
    };
    let mut others: Vec<usize> = (0..longest).collect();
    others.sort_by_key(|prompt| left[*prompt]);
    give(longest, rows.div_ceil(2));
    others.into_iter().chain([longest]).for_each(|prompt| give(prompt, rows));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a pass over so many tokens takes, where it is known for 64, 128, 256 and 512.
    fn between(known: [f64; 4]) -> impl Fn(usize) -> f64 {
        move |tokens| {
            let (step, rest) = (tokens.ilog2() as usize - 6, tokens as f64);
            let (from, to) = (known[step], known.get(step + 1).copied().unwrap_or(known[3]));
            from + (to - from) * (rest / f64::from(64 << step) - 1.0)
        }
    }

    /// The budget after twenty chunks that take so long.
    fn settle(budget: &mut PrefillBudget, seconds: impl Fn(usize) -> f64) -> usize {
        for _ in 0..20 {
            budget.add(budget.tokens, seconds(budget.tokens));
        }
        budget.tokens
    }

    #[test]
    fn chunks_are_as_long_as_others_can_wait() {
        // An H200 with 27B and with the 35B mixture, as measured.
        let card = between([26.7e-3, 30.0e-3, 41.5e-3, 72.5e-3]);
        let chunk = settle(&mut PrefillBudget::new(512, true), &card);
        assert!((224..=256).contains(&chunk), "{chunk}");
        let mixture = between([16.5e-3, 20.2e-3, 23.2e-3, 30.4e-3]);
        assert_eq!(settle(&mut PrefillBudget::new(512, true), mixture), 512);
        // A card that is slower than anybody would wait for, and processors of any pace.
        assert_eq!(settle(&mut PrefillBudget::new(512, true), |tokens| tokens as f64), 64);
        for pace in [1e-6, 1e-4, 1.0] {
            let chunk = settle(&mut PrefillBudget::new(256, false), |tokens| pace * tokens as f64);
            assert_eq!(chunk, 64);
        }
    }

    #[test]
    fn who_waited_longest_has_half_a_pass_and_the_shortest_the_rest() {
        assert_eq!(shares(&[], 64), [0; 0]);
        assert_eq!(shares(&[5000], 64), [64]);
        assert_eq!(shares(&[9], 64), [9]);
        assert_eq!(shares(&[20, 3, 5000], 64), [20, 3, 41]);
        assert_eq!(shares(&[40, 30, 5000], 64), [2, 30, 32]);
        assert_eq!(shares(&[5000, 4000, 10], 64), [0, 54, 10]);
        assert_eq!(shares(&[1, 1, 1], 2), [1, 0, 1]);
    }

    #[test]
    fn accidents_pass_and_short_prompts_say_nothing() {
        let card = between([26.7e-3, 30.0e-3, 41.5e-3, 72.5e-3]);
        let mut budget = PrefillBudget::new(512, true);
        let before = settle(&mut budget, &card);
        budget.add(10, 1e-3);
        assert_eq!(budget.tokens, before);
        budget.add(before, 0.2);
        assert!(budget.tokens < before);
        assert!(settle(&mut budget, &card).abs_diff(before) <= 1);
    }
}
