//! Tokens to text while they are being generated: never half a character, never part of a stop string. However the
//! tokens arrive, the pieces put together are the lossy decoding of all their bytes, up to the first stop string.

use std::ops::Deref;

use crate::{Controls, Tokenizer};

/// An incremental detokenizer; `T` is `&Tokenizer` or `Arc<Tokenizer>`.
pub struct Stream<T> {
    tokenizer: T,
    controls: Controls,
    stops: Vec<String>,
    /// The bytes of a character that is not yet whole.
    partial: Vec<u8>,
    /// Text that may turn out to be the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl<T: Deref<Target = Tokenizer>> Stream<T> {
    /// A stream that ends before the first of `stops`; an empty stop string never occurs.
    pub fn new(tokenizer: T, controls: Controls, stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().collect();
        Self { tokenizer, controls, stops, partial: Vec::new(), held: String::new(), stopped: None }
    }

    /// Takes a token and returns the text that is now certain; nothing once a stop string has occurred.
    pub fn push(&mut self, id: u32) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.partial.extend_from_slice(self.tokenizer.visible_bytes(id, self.controls));
        take_whole_characters(&mut self.partial, &mut self.held);
        self.release(false)
    }

    /// The rest of the text, when no more tokens come.
    pub fn finish(&mut self) -> String {
        if !self.partial.is_empty() {
            self.partial.clear();
            self.held.push(char::REPLACEMENT_CHARACTER);
        }
        self.release(true)
    }

    /// The stop string that has occurred, as an index into `stops`.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Takes from `held` what cannot belong to a stop string any more, or everything if `all`.
    fn release(&mut self, all: bool) -> String {
        // The stop that is complete first wins, so the outcome does not depend on where tokens end.
        let found = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found =
            found.filter_map(|(index, stop)| self.held.find(stop).map(|at| (at + stop.len(), at, index)));
        if let Some((_, at, index)) = found.min() {
            self.stopped = Some(index);
            self.partial.clear();
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let kept =
            if all { 0 } else { self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0) };
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
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

/// The length of the longest end of `text` that a longer text could complete to `stop`.
pub(crate) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&stop.as_bytes()[..*n])).unwrap_or(0)
}
