//! How text falls into pieces before BPE: the split patterns that `tokenizer.ggml.pre` names. They
//! run on a linear-time engine; a backtracking one gives up on a run of a million spaces and leaves
//! the rest of the prompt unsplit.

use regex::Regex;

/// The one alternative with a lookahead: a run of spaces leaves its last one to the word that
/// follows.
const SPACES_BEFORE_WORD: &str = r"\s+(?!\S)|";

/// `(tokenizer.ggml.pre, pattern)`, the patterns as they stand in `tokenizer.json`.
const KNOWN: [(&str, &str); 2] = [
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// The names of the known splits, for messages.
pub(super) const KNOWN_NAMES: &str = "qwen35, qwen2";

/// The name of a pattern found in a `tokenizer.json`.
pub(super) fn name_of(pattern: &str) -> Option<&'static str> {
    KNOWN.iter().find(|known| known.1 == pattern).map(|known| known.0)
}

/// The pattern of a known split.
pub(super) fn pattern_of(name: &str) -> Option<&'static str> {
    KNOWN.iter().find(|known| known.0 == name).map(|known| known.1)
}

/// A compiled split.
pub(super) struct Split(Regex);

impl Split {
    /// The split called `pre`, if it is a known one.
    pub(super) fn named(pre: &str) -> Option<Self> {
        let (_, pattern) = KNOWN.iter().find(|known| known.0 == pre)?;
        let linear = pattern.replace(SPACES_BEFORE_WORD, "");
        Some(Self(Regex::new(&linear).expect("a pattern of ours compiles")))
    }

    /// The pieces of `text`, in order and without gaps.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == text.len() {
                return None;
            }
            let piece = match self.0.find_at(text, start) {
                Some(found) if found.start() == start => {
                    &text[start..before_word(text, start, found.end())]
                }
                Some(found) => &text[start..found.start()],
                None => &text[start..],
            };
            start += piece.len();
            Some(piece)
        })
    }
}

/// What `\s+(?!\S)` does: the end of the piece `text[start..end]`, less its last space if a word
/// follows. Only the last alternative, `\s+`, ends in a space that is not a line break.
fn before_word(text: &str, start: usize, end: usize) -> usize {
    match text[start..end].chars().next_back() {
        Some(last) if last.is_whitespace() && !matches!(last, '\r' | '\n') => {
            let shorter = end - last.len_utf8();
            if end < text.len() && shorter > start { shorter } else { end }
        }
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        Split::named(pre).expect("known").pieces(text).collect()
    }

    #[test]
    fn spaces_stay_with_the_next_word() {
        assert_eq!(pieces("qwen35", "a   b"), ["a", "  ", " b"]);
        assert_eq!(pieces("qwen35", "a   "), ["a", "   "]);
        assert_eq!(pieces("qwen35", "\t1 \t\n \n  x"), ["\t", "1", " \t\n \n", " ", " x"]);
        assert_eq!(pieces("qwen35", "\u{3000}\u{3000}1"), ["\u{3000}", "\u{3000}", "1"]);
    }

    #[test]
    fn marks_tell_the_two_patterns_apart() {
        assert_eq!(pieces("qwen35", "को"), ["को"]);
        assert_eq!(pieces("qwen2", "को"), ["क", "ो"]);
    }

    #[test]
    fn every_known_split_is_named() {
        for (name, pattern) in KNOWN {
            assert!(KNOWN_NAMES.contains(name) && Split::named(name).is_some());
            assert_eq!(name_of(pattern), Some(name));
        }
        assert!(Split::named("llama-bpe").is_none());
    }
}
