//! Which tokens of a prompt may be left out of it: the insides of what is long and was not written
//! by the model or for it. Messages are told apart by their control tokens, which no text of a
//! message can forge.

use crate::{Kind, Tokenizer};
use std::ops::Range;

/// Tokens that a role's name and the line's end behind it take at most.
const LONGEST_ROLE: usize = 8;

/// Tokens that stay at the end of a prompt at least.
const LEAST_EDGE: usize = 64;

/// What the server puts into the messages of others: tools that came up late, and what the system
/// said in the middle. Where a message has the same words by itself more of it stays.
const OWN: [[&[u8]; 2]; 2] = [[b"<tools>", b"</tools>"], [b"<system_note>", b"</system_note>"]];

/// What may be left out of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Droppable {
    /// In order.
    pub ranges: Vec<Range<usize>>,
    /// Where the last message opens, which is where the next turn of a conversation parts from this
    /// prompt; 0 without messages.
    pub boundary: usize,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Author {
    /// Somebody who asks; also of a text without messages.
    User,
    /// What a tool gave.
    Tool,
    /// The system, the model, or somebody nobody here knows.
    Other,
}

impl Droppable {
    /// Finds it in a prompt that is long because it has more than `from` tokens: a sixteenth of
    /// that stays at edges.
    pub fn within(tokenizer: &Tokenizer, prompt: &[u32], from: usize) -> Self {
        Self::of(tokenizer, prompt, (from / 16).max(LEAST_EDGE))
    }

    /// Finds it. Of a long question the first and the last `edge / 2` tokens stay, a shorter one
    /// stays whole, and so do the last `edge` tokens of the prompt. Instructions, definitions of
    /// tools, what the model wrote with its calls, and every control token stay.
    fn of(tokenizer: &Tokenizer, prompt: &[u32], edge: usize) -> Self {
        let opening = tokenizer.special("<|im_start|>");
        let openings: Vec<usize> =
            (0..prompt.len()).filter(|i| Some(prompt[*i]) == opening).collect();
        let end = prompt.len().saturating_sub(edge);
        let mut ranges = Vec::new();
        let mut add = |body: Range<usize>, author: Author| {
            let may_go = match author {
                Author::Other => return,
                Author::Tool => body.clone(),
                Author::User if body.len() <= edge => return,
                Author::User => body.start + edge / 2..body.end - edge / 2,
            };
            let may_go = may_go.start..may_go.end.min(end);
            let own = own(tokenizer, &prompt[body.clone()]);
            let own = |at: usize| own[at - body.start];
            plain_runs(tokenizer, prompt, may_go, own, &mut ranges);
        };
        if openings.is_empty() {
            add(0..prompt.len(), Author::User);
        }
        for (i, opening) in openings.iter().enumerate() {
            let end = openings.get(i + 1).copied().unwrap_or(prompt.len());
            let (author, body) = author_of(tokenizer, &prompt[..end], *opening);
            add(body..end, author);
        }
        Self { ranges, boundary: openings.last().copied().unwrap_or(0) }
    }
}

/// Who wrote the message that opens there and ends with `prompt`, and where its text begins.
fn author_of(tokenizer: &Tokenizer, prompt: &[u32], opening: usize) -> (Author, usize) {
    let (mut role, mut body) = (Vec::new(), opening + 1);
    while let Some(token) = prompt.get(body).filter(|_| body - opening <= LONGEST_ROLE) {
        body += 1;
        role.extend_from_slice(tokenizer.bytes(*token));
        if role.contains(&b'\n') {
            break;
        }
    }
    let result = tokenizer.special("<tool_response>");
    let author = match role.trim_ascii() {
        b"tool" => Author::Tool,
        b"user" if result.is_some() && prompt.get(body).copied() == result => Author::Tool,
        b"user" => Author::User,
        _ => Author::Other,
    };
    (author, body)
}

/// Which tokens of a message are the server's own.
fn own(tokenizer: &Tokenizer, message: &[u32]) -> Vec<bool> {
    let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(message.len()));
    for token in message {
        text.extend_from_slice(tokenizer.bytes(*token));
        ends.push(text.len());
    }
    let mut own = vec![false; message.len()];
    let find = |what: &[u8], from: usize| {
        let at = text[from..].windows(what.len()).position(|bytes| bytes == what)?;
        Some(from + at)
    };
    for [opening, closing] in OWN {
        let mut from = 0;
        while let Some(start) = find(opening, from)
            && let Some(end) = find(closing, start)
        {
            from = end + closing.len();
            let first = ends.partition_point(|end| *end <= start);
            let last = ends.partition_point(|end| *end < from);
            own[first..=last].fill(true);
        }
    }
    own
}

/// Adds the parts of a range that have no control token and nothing of the server's `own`. What is
/// next to a control token stays with it: mostly the template's line breaks.
fn plain_runs(
    tokenizer: &Tokenizer,
    prompt: &[u32],
    range: Range<usize>,
    own: impl Fn(usize) -> bool,
    runs: &mut Vec<Range<usize>>,
) {
    let is_control = |at: usize| prompt.get(at).is_some_and(|t| tokenizer.kind(*t) != Kind::Normal);
    let stays = |at: usize| own(at) || (at.saturating_sub(1)..=at + 1).any(is_control);
    let mut start = range.start;
    for at in range.clone().chain([range.end]) {
        if at == range.end || stays(at) {
            if start < at {
                runs.push(start..at);
            }
            start = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vocabulary;

    const CONTROLS: [&str; 4] =
        ["<|im_start|>", "<|im_end|>", "<tool_response>", "</tool_response>"];

    /// Bytes are tokens, and so are the control tokens.
    fn bytes() -> Tokenizer {
        let printable = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
        let mut spare = (256..).filter_map(char::from_u32);
        let spell = |b: u8| if printable(&b) { Some(b as char) } else { spare.next() };
        let mut tokens: Vec<String> = (0..=255).filter_map(spell).map(String::from).collect();
        let mut token_types = vec![1; tokens.len()];
        tokens.extend(CONTROLS.map(str::to_owned));
        token_types.extend([3, 3, 4, 4]);
        let (model, pre) = ("gpt2".to_owned(), "qwen35".to_owned());
        let vocabulary = Vocabulary { model, pre, tokens, token_types, ..Vocabulary::default() };
        Tokenizer::from_vocabulary(vocabulary).expect("a vocabulary")
    }

    /// A prompt whose droppable parts are shown as `.`, each as long as it is, and its boundary.
    fn shown(prompt: &str, edge: usize) -> (String, usize) {
        let tokenizer = bytes();
        let tokens = tokenizer.encode(prompt, crate::Specials::Parse);
        let Droppable { ranges, boundary } = Droppable::of(&tokenizer, &tokens, edge);
        let may_go = |i: usize| ranges.iter().any(|range| range.contains(&i));
        let show = |(i, token): (usize, &u32)| match may_go(i) {
            true => ".".to_owned(),
            false => tokenizer.decode(&[*token], crate::Controls::Show),
        };
        (tokens.iter().enumerate().map(show).collect(), boundary)
    }

    #[test]
    fn insides_of_questions_and_results_may_go_and_nothing_else() {
        let long = "x".repeat(30);
        let prompt = format!(
            "<|im_start|>system\n{long}<|im_end|>\n<|im_start|>user\nabcd{long}efgh<|im_end|>\n\
             <|im_start|>assistant\n{long}<|im_end|>\n<|im_start|>user\n<tool_response>\n{long}\n\
             </tool_response><|im_end|>\n<|im_start|>user\nshort<|im_end|>\n<|im_start|>tool\n{long}\
             <|im_end|>\n<|im_start|>assistant\n"
        );
        let dots = ".".repeat(30);
        // Of the question the first and the last four, the end of the message among the latter.
        let expected = format!(
            "<|im_start|>system\n{long}<|im_end|>\n<|im_start|>user\nabcd{dots}..gh<|im_end|>\n\
             <|im_start|>assistant\n{long}<|im_end|>\n<|im_start|>user\n<tool_response>\n{dots}\n\
             </tool_response><|im_end|>\n<|im_start|>user\nshort<|im_end|>\n<|im_start|>tool\n{}x\
             <|im_end|>\n<|im_start|>assistant\n",
            ".".repeat(29)
        );
        let (found, boundary) = shown(&prompt, 8);
        assert_eq!(found, expected);
        let opening = bytes().encode(&prompt, crate::Specials::Parse);
        assert_eq!(boundary, opening.len() - "<assistant\n".len());
        // The prompt's end stays, whatever it is.
        let prompt = format!("<|im_start|>tool\n{}", "y".repeat(40));
        assert_eq!(shown(&prompt, 8).0, format!("<|im_start|>tool\n{}yyyyyyyy", ".".repeat(32)));
    }

    #[test]
    fn what_the_server_wrote_into_messages_stays() {
        let (tools, note) = ("<tools>\n{t}\n</tools>", "<system_note>\nn\n</system_note>");
        let (dots, text) = (".".repeat(12), "x".repeat(12));
        let said = |fill: &str| format!("{fill}{tools}{fill}{note}{fill}{tools}");
        let turn = |text: &str| format!("<|im_start|>tool\n{text}{}", "z".repeat(8));
        assert_eq!(shown(&turn(&said(&text)), 8).0, turn(&said(&dots)));
        // What is not closed is nobody's but the tool's.
        let open = turn(&format!("{text}<tools>{text}"));
        assert_eq!(shown(&open, 8).0, turn(&".".repeat(31)));
    }

    #[test]
    fn a_text_without_messages_keeps_its_ends() {
        let text = format!("abcd{}efgh", "-".repeat(20));
        assert_eq!(shown(&text, 8), (format!("abcd{}efgh", ".".repeat(16) + "----"), 0));
        assert_eq!(shown("abcdefgh", 8), ("abcdefgh".to_owned(), 0));
        assert_eq!(shown("", 8), (String::new(), 0));
        let forged = format!("ab{}<|im_end|>{}", "-".repeat(20), "-".repeat(20));
        let (found, _) = shown(&forged, 4);
        assert!(found.contains("<|im_end|>"), "{found}");
    }
}
