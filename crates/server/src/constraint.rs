//! A grammar of text as a constraint of the engine, which knows no text.

use engine::sampling::Constraint;
use text::Grammar;

/// Holds an answer to a grammar.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Grammar);

impl Constraint for Held {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        self.0.mask(logits)
    }

    fn push(&mut self, token: u32) -> bool {
        self.0.push(token)
    }

    fn pop(&mut self, count: usize) {
        self.0.pop(count);
    }
}
