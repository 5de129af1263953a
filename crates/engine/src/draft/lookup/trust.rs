//! How often what followed a match follows again. That depends on the match's length, by a curve
//! that holds roughly for any text, and on the text, by a factor that it teaches.

/// The chance that the token after a match of so many tokens is another one this time. In 1,458
/// matches of the golden texts it was 0.31 at 3 tokens, 0.14 at 7, 0.11 from 12 to 15. So a match
/// is as likely as not to go on for as long again.
fn usual_miss(length: usize) -> f64 {
    1.0 / length as f64
}

/// Misses' worth of belief in the curve to begin with.
const PRIOR: f64 = 1.0;
/// What is left of an old observation after a newer one.
const MEMORY: f64 = 0.97;

/// Misses of a text: those that the curve promised, and those that came.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    promised: f64,
    came: f64,
}

impl Default for Trust {
    fn default() -> Self {
        Self { promised: PRIOR, came: PRIOR }
    }
}

impl Trust {
    /// A token that came after a match, be it drafted or not: whether it was the one that followed
    /// the match before.
    pub(crate) fn add(&mut self, length: usize, held: bool) {
        self.promised = self.promised * MEMORY + usual_miss(length);
        self.came = self.came * MEMORY + f64::from(u8::from(!held));
    }

    /// The chance that the token after a match of so many tokens is the same again.
    pub(crate) fn holds(&self, length: usize) -> f64 {
        let factor = (self.came + PRIOR) / (self.promised + PRIOR);
        (1.0 - factor * usual_miss(length)).max(0.01)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_copies_is_trusted_and_one_that_varies_is_not() {
        let (mut copies, mut varies) = (Trust::default(), Trust::default());
        for length in 3..30 {
            copies.add(length, true);
            varies.add(3, length % 4 == 0);
        }
        let fresh = Trust::default();
        assert!(copies.holds(8) > 0.9 && copies.holds(8) > fresh.holds(8));
        assert!(varies.holds(3) < 0.4 && varies.holds(8) < fresh.holds(8));
    }

    #[test]
    fn what_was_learned_is_what_happened() {
        // Three of four tokens after matches of five hold.
        let mut trust = Trust::default();
        (0..400).for_each(|i| trust.add(5, i % 4 != 0));
        assert!((trust.holds(5) - 0.75).abs() < 0.06, "{}", trust.holds(5));
    }
}
