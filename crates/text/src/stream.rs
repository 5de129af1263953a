//! Tokens to text while they are being generated: never half a character, never part of a stop
//! string. However the tokens arrive, the pieces put together are the lossy decoding of all their
//! bytes, up to the first stop string.

use std::ops::Deref;

use crate::{Controls, Stops, Tokenizer};

/// An incremental detokenizer; `T` is `&Tokenizer` or `Arc<Tokenizer>`.
pub struct Stream<T> {
    tokenizer: T,
    controls: Controls,
    stops: Stops,
    /// The bytes of a character that is not yet whole.
    partial: Vec<u8>,
}

impl<T: Deref<Target = Tokenizer>> Stream<T> {
    /// A stream that ends before the first of `stops`; an empty stop string never occurs.
    pub fn new(tokenizer: T, controls: Controls, stops: impl IntoIterator<Item = String>) -> Self {
        Self { tokenizer, controls, stops: Stops::new(stops), partial: Vec::new() }
    }

    /// Goes on from tokens whose text was told elsewhere: the bytes of a character that they left
    /// broken off come with what follows.
    pub fn after(mut self, told: &[u32]) -> Self {
        for id in told {
            self.partial.extend_from_slice(self.tokenizer.visible_bytes(*id, self.controls));
            take_whole_characters(&mut self.partial, &mut String::new());
        }
        self
    }

    /// Takes a token and returns the text that is now certain; nothing once a stop string has
    /// occurred.
    pub fn push(&mut self, id: u32) -> String {
        self.partial.extend_from_slice(self.tokenizer.visible_bytes(id, self.controls));
        let mut text = String::new();
        take_whole_characters(&mut self.partial, &mut text);
        self.stops.push(&text)
    }

    /// The rest of the text, when no more tokens come.
    pub fn finish(&mut self) -> String {
        let broken = if self.partial.is_empty() { "" } else { "\u{fffd}" };
        self.partial.clear();
        self.stops.push(broken) + &self.stops.finish()
    }

    /// The stop string that has occurred, as an index into `stops`.
    pub fn stopped(&self) -> Option<usize> {
        self.stops.stopped()
    }
}

/// Moves the whole characters of `bytes` to `text`; what can never become one becomes U+FFFD, as in
/// `String::from_utf8_lossy`. Up to three bytes stay, which the next ones may complete.
fn take_whole_characters(bytes: &mut Vec<u8>, text: &mut String) {
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
            && taken + invalid.len() == bytes.len()
        {
            break;
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
    }
    bytes.drain(..taken);
}
