//! How much of a prompt is read between two rounds of other answers: as much as keeps them waiting for a moment only. A pass over
//! few tokens costs a large card nearly what one over many does; elsewhere every token costs the same.

/// Tokens of a chunk at least, and at first.
const LEAST: usize = 64;

/// Seconds that a chunk may take.
const LONGEST: f64 = 0.06;

/// A chunk that is as long as it may be, by what the ones before took.
pub(crate) struct Chunk {
    tokens: usize,
    /// Seconds of one of half as many; nothing where no chunk was too long yet and this size is the first.
    half: Option<f64>,
    /// Whether the last one took too long: twice in a row is no accident.
    is_late: bool,
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Self { tokens: LEAST, half: None, is_late: false }
    }

    /// Tokens to read.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// A chunk of so many tokens was read. One that the prompt or a mark in it cut short says nothing, unless it took too long.
    pub(crate) fn add(&mut self, tokens: usize, seconds: f64) {
        let was_late = std::mem::replace(&mut self.is_late, seconds > LONGEST);
        let twice_as_many = self.half.map_or(seconds, |half| seconds + (seconds - half));
        if self.is_late && was_late {
            // From now on as if every token cost the same.
            *self = Self { tokens: (self.tokens / 2).max(LEAST), half: Some(0.0), is_late: false };
        } else if !self.is_late && tokens == self.tokens && twice_as_many <= LONGEST {
            *self = Self { tokens: 2 * tokens, half: Some(seconds), is_late: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size that chunks come to where they take so long.
    fn settle(seconds: impl Fn(usize) -> f64, most: usize) -> Vec<usize> {
        let mut chunk = Chunk::new();
        let mut sizes = Vec::new();
        for _ in 0..50 {
            let tokens = chunk.tokens().min(most);
            chunk.add(tokens, seconds(tokens));
            sizes.push(tokens);
        }
        sizes.split_off(40)
    }

    #[test]
    fn chunks_are_as_long_as_others_can_wait() {
        // An H200 with 27B, one with the 35B mixture, a processor that reads 1,000 tokens a second, a slower one.
        let card = |tokens: usize| [26.7e-3, 30.0e-3, 41.5e-3, 72.5e-3][tokens.ilog2() as usize - 6];
        assert_eq!(settle(card, 2048), [256; 10]);
        let mixture = |tokens: usize| [16.5e-3, 20.2e-3, 23.2e-3, 30.4e-3][tokens.ilog2() as usize - 6];
        assert_eq!(settle(mixture, 512), [512; 10]);
        assert_eq!(settle(|tokens| 1e-3 * tokens as f64, 256), [64; 10]);
        assert_eq!(settle(|tokens| 5e-4 * tokens as f64, 256), [64; 10]);
        assert_eq!(settle(|tokens| tokens as f64, 256), [64; 10]);
        // A slower hour, and a short prompt.
        let mut chunk = Chunk { tokens: 512, half: Some(0.03), is_late: false };
        [0.2, 0.05, 0.2].iter().for_each(|seconds| chunk.add(512, *seconds));
        assert_eq!(chunk.tokens(), 512);
        chunk.add(512, 0.2);
        chunk.add(10, 1e-3);
        assert_eq!(chunk.tokens(), 256);
    }
}
