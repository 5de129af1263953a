//! Which fields requests may have, and what becomes of each: done, refused, harmless, or ignored
//! and said so. What nobody here knows is let through and named in the answer too, so that nothing
//! that was asked is passed over in silence.
//!
//! The tables are pages to read: `openai`, `anthropic` and, for what other servers have added,
//! `peers`. A test sends every field that the APIs' own packages publish and holds the answers
//! against them.

mod anthropic;
mod openai;
mod peers;
mod walk;

pub(crate) use peers::PASSED;
pub(crate) use walk::{HEADER, check, named, tell};

/// The tables of an API; a name is in one of them at most.
pub type Tables = &'static [&'static [Field]];

/// Chat Completions.
pub const CHAT: Tables = &[
    openai::CHAT,
    openai::SAMPLING,
    peers::CHAT,
    peers::SAMPLING,
    peers::EXTENSIONS,
    peers::OURS,
    peers::REFUSED,
    peers::IGNORED,
    peers::HARMLESS,
];
/// Completions.
pub const COMPLETIONS: Tables = &[
    openai::COMPLETIONS,
    openai::SAMPLING,
    peers::COMPLETIONS,
    peers::SAMPLING,
    peers::EXTENSIONS,
    peers::OURS,
    peers::REFUSED,
    peers::IGNORED,
    peers::HARMLESS,
];
/// Responses.
pub const RESPONSES: Tables = &[
    openai::RESPONSES,
    peers::TRANSLATED,
    peers::EXTENSIONS,
    peers::KEEP,
    peers::REFUSED,
    peers::IGNORED,
    peers::HARMLESS,
];
/// Anthropic's Messages, and counting their tokens.
pub const MESSAGES: Tables = &[
    anthropic::MESSAGES,
    peers::TRANSLATED,
    peers::EXTENSIONS,
    peers::KEEP,
    peers::REFUSED,
    peers::IGNORED,
    peers::HARMLESS,
];
/// `/tokenize`.
pub const TOKENIZE: Tables = &[peers::TOKENIZE];
/// `/detokenize`.
pub const DETOKENIZE: Tables = &[peers::DETOKENIZE];

/// A field and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the request.
    pub name: &'static str,
    /// What becomes of it.
    pub fate: Fate,
    /// What it is about, in a few words.
    pub about: &'static str,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is read, and what it says is done or refused there.
    Done,
    /// It is read, and so are these fields of it: of the object that it is, or of each object in
    /// the array.
    Within(&'static [Field]),
    /// The same where `type` or `role` says which fields there are. What other types become is
    /// decided where they are read.
    Kinds(&'static [(&'static str, &'static [Field])]),
    /// It would change the answer and is not done: nothing but null and these values (in JSON) is
    /// taken.
    Refused(&'static [&'static str]),
    /// It is a wish that is not granted and that no client depends on: any value but null and these
    /// (in JSON) is let through, and the answer names it.
    Ignored(&'static [&'static str]),
    /// It cannot change the answer.
    Harmless,
}

const fn done(name: &'static str, about: &'static str) -> Field {
    Field { name, fate: Fate::Done, about }
}

const fn within(name: &'static str, fields: &'static [Field], about: &'static str) -> Field {
    Field { name, fate: Fate::Within(fields), about }
}

const fn kinds(
    name: &'static str,
    kinds: &'static [(&'static str, &'static [Field])],
    about: &'static str,
) -> Field {
    Field { name, fate: Fate::Kinds(kinds), about }
}

const fn refused(name: &'static str, but: &'static [&'static str], about: &'static str) -> Field {
    Field { name, fate: Fate::Refused(but), about }
}

const fn ignored(name: &'static str, but: &'static [&'static str], about: &'static str) -> Field {
    Field { name, fate: Fate::Ignored(but), about }
}

const fn harmless(name: &'static str, about: &'static str) -> Field {
    Field { name, fate: Fate::Harmless, about }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_in_one_table() {
        for tables in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENIZE, DETOKENIZE] {
            let mut names: Vec<&str> =
                tables.iter().flat_map(|table| table.iter()).map(|field| field.name).collect();
            names.sort_unstable();
            let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
            assert_eq!(twice, None);
        }
    }

    #[test]
    fn values_that_are_taken_are_json() {
        let all = [CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENIZE, DETOKENIZE];
        for field in all.iter().flat_map(|tables| tables.iter()).flat_map(|table| table.iter()) {
            if let Fate::Refused(values) | Fate::Ignored(values) = field.fate {
                let parse = serde_json::from_str::<serde_json::Value>;
                assert!(values.iter().all(|value| parse(value).is_ok()), "{}", field.name);
            }
        }
    }
}
