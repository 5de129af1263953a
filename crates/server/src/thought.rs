//! How many tokens of an answer were thinking: counted as they are written, because text no longer
//! tells where its tokens ended.

use std::sync::Arc;
use text::{Controls, Reasoning, Stream, Tokenizer};

/// Counts the tokens of one answer until its thinking is over, the closing tag included.
pub(crate) struct Thought {
    reasoning: Reasoning,
    /// Never holds a text back for a stop string.
    stream: Stream<Arc<Tokenizer>>,
    seen: usize,
    tokens: usize,
    begun: bool,
    ended: bool,
}

impl Thought {
    /// For an answer whose text `reasoning` would take apart.
    pub(crate) fn new(reasoning: Reasoning, tokenizer: Arc<Tokenizer>) -> Self {
        let stream = Stream::new(tokenizer, Controls::Hide, []);
        let begun = reasoning.is_thinking();
        Self { reasoning, stream, seen: 0, tokens: 0, begun, ended: false }
    }

    /// Takes the next token.
    pub(crate) fn take(&mut self, token: u32) {
        if self.ended {
            return;
        }
        self.seen += 1;
        let parts = self.reasoning.push(&self.stream.push(token));
        let thinking = self.reasoning.is_thinking();
        self.ended = !thinking && (self.begun || !parts.content.is_empty());
        self.begun |= thinking;
        if self.begun {
            self.tokens = self.seen;
        }
    }

    /// Tokens of thinking so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}
