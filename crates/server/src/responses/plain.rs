//! The input of a custom tool: plain text. The model writes it as the one argument of a function;
//! here it is taken out of the JSON while that arrives.

use crate::arguments;
use serde_json::Value;

const NAME: &str = "\"input\":";

/// Finds the string under `input` in a JSON object that comes in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct PlainText {
    /// The object so far, or what is left of it to read.
    held: String,
    /// All of it, as long as there is no such string.
    whole: String,
    begun: bool,
    ended: bool,
}

impl PlainText {
    /// Takes a piece of the object and returns more of the text.
    pub(super) fn push(&mut self, piece: &str) -> String {
        if self.ended {
            return String::new();
        }
        self.held.push_str(piece);
        if !self.begun {
            self.whole.push_str(piece);
            let value = self.held.find(NAME).map(|at| at + NAME.len());
            let quote = value.and_then(|at| {
                let value = self.held[at..].trim_start();
                value.starts_with('"').then(|| self.held.len() - value.len() + 1)
            });
            let Some(start) = quote else { return String::new() };
            self.held.drain(..start);
            self.begun = true;
        }
        self.read()
    }

    /// The rest, when the call ends. A model that calls its one argument something else means the
    /// same.
    pub(super) fn finish(&mut self) -> String {
        if self.begun {
            return String::new();
        }
        let said = arguments::read(&self.whole);
        let mut values = said.values();
        match (values.next(), values.next()) {
            (None, _) => String::new(),
            (Some(Value::String(text)), None) => text.clone(),
            _ => std::mem::take(&mut self.whole),
        }
    }

    /// Takes what is certain from inside the string.
    fn read(&mut self) -> String {
        let bytes = self.held.as_bytes();
        let mut end = 0;
        while end < bytes.len() && bytes[end] != b'"' {
            let length = match (bytes[end], bytes.get(end + 1)) {
                (b'\\', Some(b'u')) if is_high_surrogate(&bytes[end..]) => 12,
                (b'\\', Some(b'u')) => 6,
                (b'\\', _) => 2,
                _ => 1,
            };
            if end + length > bytes.len() {
                break;
            }
            end += length;
        }
        self.ended = bytes.get(end) == Some(&b'"');
        // The end lies behind a whole character or a whole escape.
        let Some(sure) = self.held.get(..end) else { return String::new() };
        let text = serde_json::from_str(&format!("\"{sure}\"")).unwrap_or_else(|_| sure.to_owned());
        self.held.drain(..end);
        text
    }
}

/// Whether an escape is the first half of a character that takes two.
fn is_high_surrogate(escape: &[u8]) -> bool {
    escape.get(2).is_some_and(|c| c.eq_ignore_ascii_case(&b'd'))
        && escape
            .get(3)
            .is_some_and(|c| matches!(c.to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_taken_out_however_it_is_cut() {
        let said = "*** Begin\n\"quoted\" \\ back, é 👋 {\"input\": 1}";
        let escaped = "{\"input\": \"\\ud83d\\udc4b \\u00e9\"}";
        for (object, text) in
            [(json!({"input": said}).to_string(), said), (escaped.to_owned(), "👋 é")]
        {
            for size in [1, 2, 5, 1000] {
                let letters: Vec<char> = object.chars().collect();
                let mut plain = PlainText::default();
                let pieces =
                    letters.chunks(size).map(|piece| plain.push(&piece.iter().collect::<String>()));
                let mut found: String = pieces.collect();
                found += &plain.finish();
                assert_eq!(found, text, "{size}");
            }
        }
    }

    #[test]
    fn other_arguments_are_not_lost() {
        let all = |object: &str| {
            let mut plain = PlainText::default();
            plain.push(object) + &plain.finish()
        };
        assert_eq!(all("{}"), "");
        assert_eq!(all("{\"patch\": \"x\"}"), "x");
        assert_eq!(all("{\"a\": \"x\", \"b\": 1}"), "{\"a\": \"x\", \"b\": 1}");
        assert_eq!(all("{\"input\": \"cut o"), "cut o");
        assert_eq!(all("{\"input\": \"cut \\u00"), "cut ");
    }
}
