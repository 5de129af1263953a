//! How much of a prompt is read between two rounds of other answers: as much as keeps them waiting
//! for a moment only, where a longer chunk is read faster at all. A pass over few tokens costs a
//! large card nearly what one over many does; on a processor every token costs the same, and a
//! longer chunk would only make the others wait.

/// Tokens of a chunk at least, and at first.
const LEAST: usize = 64;

/// Seconds that a chunk may take.
const LONGEST: f64 = 0.06;

/// A chunk twice as long that takes more than this many times as long does not pay.
const WORTH: f64 = 1.7;

/// A chunk that is as long as it should be, by what the ones before took.
pub(crate) struct Chunk {
    tokens: usize,
    most: usize,
    /// Seconds of one of half as many, where it was tried.
    half: Option<f64>,
    /// Whether the last one took too long: twice in a row is no accident.
    was_bad: bool,
    /// Whether longer ones are still worth trying.
    grows: bool,
}

impl Chunk {
    /// Of `most` tokens at most.
    pub(crate) fn new(most: usize) -> Self {
        Self { tokens: LEAST.min(most), most, half: None, was_bad: false, grows: true }
    }

    /// Tokens to read.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// A chunk of so many tokens was read. One that the prompt or a mark in it cut short says
    /// nothing, unless it took too long.
    pub(crate) fn add(&mut self, tokens: usize, seconds: f64) {
        let is_late = seconds > LONGEST;
        if tokens < self.tokens && !is_late {
            return;
        }
        let is_bad = is_late || self.half.is_some_and(|half| seconds > WORTH * half);
        let was_bad = std::mem::replace(&mut self.was_bad, is_bad);
        if is_bad && was_bad {
            *self = Self {
                tokens: (self.tokens / 2).max(LEAST).min(self.most),
                grows: false,
                ..Self::new(self.most)
            };
        } else if !is_bad && self.grows && self.tokens < self.most {
            self.half = Some(seconds);
            self.tokens = (2 * self.tokens).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the last of fifty chunks where they take so long.
    fn settle(seconds: impl Fn(usize) -> f64, most: usize) -> Vec<usize> {
        let mut chunk = Chunk::new(most);
        let mut sizes = Vec::new();
        for _ in 0..50 {
            chunk.add(chunk.tokens(), seconds(chunk.tokens()));
            sizes.push(chunk.tokens());
        }
        sizes.split_off(40)
    }

    #[test]
    fn chunks_are_as_long_as_others_can_wait() {
        // An H200 with 27B, one with the 35B mixture, a processor that reads 10,000 tokens a
        // second, a slow one.
        let card =
            |tokens: usize| [26.7e-3, 30.0e-3, 41.5e-3, 72.5e-3][tokens.ilog2() as usize - 6];
        assert_eq!(settle(card, 2048), [256; 10]);
        let mixture =
            |tokens: usize| [16.5e-3, 20.2e-3, 23.2e-3, 30.4e-3][tokens.ilog2() as usize - 6];
        assert_eq!(settle(mixture, 512), [512; 10]);
        assert_eq!(settle(|tokens| 1e-4 * tokens as f64, 256), [64; 10]);
        assert_eq!(settle(|tokens| tokens as f64, 256), [64; 10]);
    }

    #[test]
    fn accidents_and_short_prompts_say_nothing() {
        let mut chunk = Chunk { tokens: 256, half: Some(0.03), ..Chunk::new(512) };
        chunk.add(256, 0.2);
        chunk.add(10, 1e-3);
        assert_eq!(chunk.tokens(), 256);
        chunk.add(256, 0.04);
        assert_eq!(chunk.tokens(), 512);
        // A slower hour.
        (0..2).for_each(|_| chunk.add(512, 0.2));
        assert_eq!(chunk.tokens(), 256);
        chunk.add(256, 0.01);
        assert_eq!(chunk.tokens(), 256);
    }
}
