//! What an answer itself may be held to, as rules of a grammar.

use super::{GrammarError, bounds, compact, gbnf, lark};
use llguidance::regex_to_lark;
use serde_json::Value;

/// Bytes of a regular expression at most.
const MAX_REGEX: usize = bounds::MAX_PATTERN;
/// Choices at most, and bytes of all of them.
const MAX_CHOICES: usize = 10_000;
const MAX_CHOICE_BYTES: usize = 256 << 10;

/// What an answer has to fit.
#[derive(Clone, Copy, Debug)]
pub enum Form<'a> {
    /// JSON of this schema.
    Json(&'a Value),
    /// This regular expression, from beginning to end.
    Regex(&'a str),
    /// One of these texts.
    Choice(&'a [String]),
    /// A grammar in GBNF or in Lark's notation.
    Grammar(&'a str),
}

impl Form<'_> {
    /// What a client calls it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Json(_) => "schema",
            Self::Regex(_) => "regular expression",
            Self::Choice(_) => "list of choices",
            Self::Grammar(_) => "grammar",
        }
    }

    /// Rules whose `value` is the form.
    pub(super) fn rules(&self) -> Result<String, GrammarError> {
        let most = |what: &'static str, found: usize, most: usize| match found > most {
            true => Err(GrammarError::TooLarge { what, found, most }),
            false => Ok(()),
        };
        match self {
            Self::Json(schema) => {
                bounds::check(schema)?;
                Ok(format!("value: %json {}\n", compact(schema)))
            }
            Self::Regex(regex) => {
                most("bytes", regex.len(), MAX_REGEX)?;
                Ok(match &*unanchored(regex) {
                    "" => "value: \"\"\n".to_owned(),
                    regex => format!("value: /{}/\n", regex_to_lark(regex, "dw")),
                })
            }
            Self::Choice(choices) => {
                if choices.is_empty() {
                    let reason = "it has none".to_owned();
                    return Err(GrammarError::Refused { what: self.name(), reason });
                }
                most("choices", choices.len(), MAX_CHOICES)?;
                most("bytes", choices.iter().map(String::len).sum(), MAX_CHOICE_BYTES)?;
                // As one terminal, so that a choice may begin with another.
                let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
                Ok(format!("value: CHOICE\nCHOICE: {}\n", choices.join(" | ")))
            }
            Self::Grammar(text) => {
                most("bytes", text.len(), lark::MAX_BYTES)?;
                let own = gbnf::is_gbnf(text).then(|| gbnf::to_lark(text)).transpose()?;
                let text = own.as_deref().unwrap_or(text);
                lark::check(text)?;
                Ok(format!("value: %lark {{\n{text}\n}}\n"))
            }
        }
    }
}

/// A regular expression that has to fit all of a text says so without anchors, and so does each of
/// its alternatives.
fn unanchored(regex: &str) -> String {
    let (mut depth, mut in_class, mut escaped) = (0i32, false, false);
    let parts = regex.split(|c| {
        let was_escaped = std::mem::take(&mut escaped);
        match c {
            _ if was_escaped => {}
            '\\' => escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth -= 1,
            c => return c == '|' && depth == 0,
        }
        false
    });
    let bare = |part: &str| {
        let part = part.strip_prefix('^').unwrap_or(part);
        match part.strip_suffix('$') {
            // An even number of backslashes leaves the anchor one.
            Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 0 => rest,
            _ => part,
        }
        .to_owned()
    };
    parts.map(bare).collect::<Vec<String>>().join("|")
}

/// A text as a literal of the grammar.
pub(super) fn quoted(text: &str) -> String {
    // The notation takes this one only as an escape.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
