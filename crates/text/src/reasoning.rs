//! Thinking apart from the answer: `<think>` and `</think>` split generated text in two while it
//! arrives. The line breaks that the template puts around both parts belong to neither.

use crate::stops::overlap;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Text that has become certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// What was thought.
    pub reasoning: String,
    /// What was answered.
    pub content: String,
}

/// Splits a text that comes in pieces; however it is cut, the parts put together are the same.
///
/// ```
/// let mut reasoning = text::Reasoning::new("<|im_start|>assistant\n<think>\n");
/// let first = reasoning.push("hm\n</thi");
/// let second = reasoning.push("nk>\n\nYes.");
/// assert_eq!((first.reasoning + &second.reasoning, second.content), ("hm".into(), "Yes.".into()));
/// ```
#[derive(Clone, Debug)]
pub struct Reasoning {
    place: Place,
    /// Text that what follows may still change.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space yet, and the prompt left no `<think>` open.
    Start,
    /// After `<think>`; line breaks are dropped.
    ThinkingBegins,
    Thinking,
    /// After `</think>`; line breaks are dropped.
    ContentBegins,
    Content,
}

impl Reasoning {
    /// For the text that follows `prompt`, which may have left a `<think>` open.
    pub fn new(prompt: &str) -> Self {
        let open = prompt.trim_end().ends_with(OPEN);
        Self { place: if open { Place::ThinkingBegins } else { Place::Start }, held: String::new() }
    }

    /// For text that goes on where an earlier one broke off, inside its thinking or inside its
    /// answer. Line breaks between the two belong to the text.
    pub fn within(thinking: bool) -> Self {
        Self { place: if thinking { Place::Thinking } else { Place::Content }, held: String::new() }
    }

    /// Whether the text is inside `<think>`.
    pub fn is_thinking(&self) -> bool {
        matches!(self.place, Place::ThinkingBegins | Place::Thinking)
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Parts {
        self.held.push_str(piece);
        let mut parts = Parts::default();
        while self.advance(&mut parts) {}
        parts
    }

    /// The rest, when no more text comes.
    pub fn finish(&mut self) -> Parts {
        let rest = std::mem::take(&mut self.held);
        match self.place {
            Place::ThinkingBegins | Place::Thinking => {
                Parts { reasoning: rest.trim_end_matches('\n').to_owned(), content: String::new() }
            }
            _ => Parts { reasoning: String::new(), content: rest },
        }
    }

    /// Moves what is certain to `parts`; whether there may be more.
    fn advance(&mut self, parts: &mut Parts) -> bool {
        match self.place {
            Place::Start => {
                let begun = self.held.trim_start();
                if let Some(rest) = begun.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.place = Place::ThinkingBegins;
                    return true;
                }
                if OPEN.starts_with(begun) {
                    return false;
                }
                self.place = Place::Content;
                true
            }
            Place::ThinkingBegins | Place::ContentBegins => {
                let kept = self.held.trim_start_matches('\n').len();
                self.held.drain(..self.held.len() - kept);
                if self.held.is_empty() {
                    return false;
                }
                let thinking = self.place == Place::ThinkingBegins;
                self.place = if thinking { Place::Thinking } else { Place::Content };
                true
            }
            Place::Thinking => {
                if let Some(at) = self.held.find(CLOSE) {
                    parts.reasoning.push_str(self.held[..at].trim_end_matches('\n'));
                    self.held.drain(..at + CLOSE.len());
                    self.place = Place::ContentBegins;
                    return true;
                }
                let sure = &self.held[..self.held.len() - overlap(&self.held, CLOSE)];
                let sure = sure.trim_end_matches('\n').len();
                parts.reasoning.push_str(&self.held[..sure]);
                self.held.drain(..sure);
                false
            }
            Place::Content => {
                parts.content.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut reasoning = Reasoning::new(prompt);
        let mut whole = Parts::default();
        let mut add = |parts: Parts| {
            whole.reasoning += &parts.reasoning;
            whole.content += &parts.content;
        };
        pieces.iter().for_each(|piece| add(reasoning.push(piece)));
        add(reasoning.finish());
        (whole.reasoning, whole.content)
    }

    #[test]
    fn thinking_and_answer_part() {
        let of = |prompt, text, reasoning: &str, content: &str| {
            assert_eq!(
                split(prompt, &[text]),
                (reasoning.to_owned(), content.to_owned()),
                "{prompt} {text}"
            );
        };
        of("<think>\n", "a\n\nb\n</think>\n\nc\n", "a\n\nb", "c\n");
        of("<think>\n", "</think>\n\nc", "", "c");
        of("<think>\n", "cut off\n</th", "cut off\n</th", "");
        of("<think>\n", "cut off\n\n", "cut off", "");
        of("<think>\n\n</think>\n\n", "no thought", "", "no thought");
        of("assistant\n", "\n<think>own</think>answer", "own", "answer");
        of("assistant\n", "  plain <think>", "", "  plain <think>");
        of("assistant\n", " <thin", "", " <thin");
        of("<think>\n", "a</think>b</think>c", "a", "b</think>c");
        let mut thinking = Reasoning::within(true);
        let parts = thinking.push("\n on</think>\n\nc");
        assert_eq!((parts.reasoning.as_str(), parts.content.as_str()), ("\n on", "c"));
        assert_eq!(Reasoning::within(false).push("\n<think>c").content, "\n<think>c");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_parts(
            words in proptest::collection::vec(
                prop_oneof![Just("<think>"), Just("</think>"), Just("\n"), Just("x"), Just("<"), Just("é")], 0..12),
            open in any::<bool>(),
        ) {
            let text: String = words.concat();
            let prompt = if open { "<think>\n" } else { "assistant\n" };
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            prop_assert_eq!(split(prompt, &letters), split(prompt, &[&text]));
            prop_assert_eq!(split(prompt, &words), split(prompt, &[&text]));
        }
    }
}
