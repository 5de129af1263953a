//! Grammars: which tokens may come next so that an answer is JSON of a schema, or a call of a tool. Thinking stays
//! free; the grammar begins where it ends, and nothing ends before the grammar does.

mod calls;

use crate::{Kind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::Arc;
use thiserror::Error;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Bytes of a schema at most.
const MAX_SCHEMA: usize = 256 << 10;

/// Why there is no grammar.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum GrammarError {
    /// The vocabulary cannot be searched.
    #[error("no grammars over this tokenizer: {0}")]
    Tokenizer(String),
    /// The schema is larger than any in use.
    #[error("the schema has {bytes} bytes, at most {MAX_SCHEMA} are taken")]
    TooLarge { bytes: usize },
    /// The schema says what cannot be followed exactly.
    #[error("the schema cannot be followed: {0}")]
    Schema(String),
}

/// What an answer may be: JSON, calls of tools, or either.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape<'a> {
    /// JSON of this schema.
    pub json: Option<&'a Value>,
    /// Calls of these tools, in OpenAI's form.
    pub calls: &'a [Value],
    /// Whether there may be more than one call.
    pub several: bool,
    /// Whether the prompt has left `<think>` open.
    pub thinking: bool,
}

/// Makes grammars over one vocabulary.
///
/// ```
/// use text::{Grammars, Shape, Tokenizer};
/// let tokenizer = Tokenizer::from_json("tests/fixtures/tokenizer.json")?;
/// let grammars = Grammars::new(&tokenizer)?;
/// let schema = serde_json::json!({"type": "boolean"});
/// let mut answer = grammars.grammar(&Shape { json: Some(&schema), ..Shape::default() })?;
/// let first = |text: &str| tokenizer.encode(text, text::Specials::Literal)[0];
/// assert!(!answer.push(first("x")) && answer.push(first("t")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Grammars {
    factory: ParserFactory,
    ends: Arc<[u32]>,
    think_end: Option<u32>,
    /// `<tool_call>` and `</tool_call>`, where they are tokens of their own.
    call_tokens: [Option<u32>; 2],
}

impl Grammars {
    /// Sorts the vocabulary for searching.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let none = || GrammarError::Tokenizer("it has no token that ends an answer".to_owned());
        let end = *tokenizer.ends().first().ok_or_else(none)?;
        let words: Vec<Vec<u8>> = (0..tokenizer.len() as u32)
            .map(|id| match tokenizer.kind(id) {
                Kind::Normal => tokenizer.bytes(id).to_vec(),
                // Structure is no text: a grammar has to name it.
                Kind::Control | Kind::UserDefined => {
                    [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.bytes(id)].concat()
                }
                Kind::Unused => Vec::new(),
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(tokenizer.ends())));
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|error| GrammarError::Tokenizer(error.to_string()))?;
        factory.quiet();
        // Errors would repeat what was said.
        factory.limits_mut().verbose_errors = false;
        let call_tokens = ["<tool_call>", "</tool_call>"].map(|name| tokenizer.special(name));
        Ok(Self {
            factory,
            ends: tokenizer.ends().into(),
            think_end: tokenizer.special("</think>"),
            call_tokens,
        })
    }

    /// The grammar of answers of a shape.
    pub fn grammar(&self, shape: &Shape) -> Result<Grammar, GrammarError> {
        let (mut ways, mut rules) = (Vec::new(), String::new());
        if let Some(schema) = shape.json {
            check_size(schema)?;
            ways.push("value");
            rules += &format!("value: %json {}\n", compact(schema));
        }
        if !shape.calls.is_empty() {
            ways.push(if shape.several { "call (\"\\n\" call)*" } else { "call" });
            rules += &calls::rules(shape.calls, self.call_tokens)?;
        }
        // What chat templates have between thinking and answer.
        let lead = if shape.thinking { "\"\\n\\n\" " } else { "" };
        let lark = format!("start: {lead}answer\nanswer: {}\n{rules}", ways.join(" | "));
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(lark));
        let parser = parser.map_err(|error| GrammarError::Schema(first_line(&error.to_string())))?;
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(GrammarError::Schema(first_line(&error)));
        }
        let opening = if shape.thinking { self.think_end } else { None };
        let open = opening.is_none();
        Ok(Grammar { matcher, ends: Arc::clone(&self.ends), opening, open, before: 0, inside: 0, after: 0 })
    }
}

/// A schema with one way to space its values, so that an answer cannot get lost in white space.
fn compact(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => serde_json::Map::new(),
        // Nothing fits; the compiler says so.
        other => return other.clone(),
    };
    let spacing = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.insert("x-guidance".to_owned(), spacing);
    Value::Object(schema)
}

fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let bytes = schema.to_string().len();
    if bytes > MAX_SCHEMA { Err(GrammarError::TooLarge { bytes }) } else { Ok(()) }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// A place in an answer under a grammar. Tokens are followed by `push` and taken back by `pop`.
pub struct Grammar {
    matcher: Matcher,
    ends: Arc<[u32]>,
    /// The token that ends thinking, where the answer begins with it.
    opening: Option<u32>,
    /// Whether thinking is over.
    open: bool,
    /// Tokens pushed before the grammar began, inside it, and from the end on.
    before: usize,
    inside: usize,
    after: usize,
}

impl Grammar {
    /// Sets the logits of tokens that may not come next to minus infinity.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if !self.open {
            for end in &*self.ends {
                logits.get_mut(*end as usize).map(forbid);
            }
            return Ok(());
        }
        if self.after > 0 {
            return Ok(());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))?;
        let known = mask.len().min(logits.len());
        for (word, logits) in mask.as_slice().iter().zip(logits[..known].chunks_mut(32)) {
            if *word != u32::MAX {
                let refused = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                refused.for_each(|(_, logit)| forbid(logit));
            }
        }
        logits[known..].iter_mut().for_each(forbid);
        Ok(())
    }

    /// Follows a token; says no, and stays where it is, where it may not come next.
    pub fn push(&mut self, token: u32) -> bool {
        let end = self.ends.contains(&token);
        if self.after > 0 {
            self.after += 1;
            return true;
        }
        if !self.open {
            if !end {
                self.before += 1;
                self.open = self.opening == Some(token);
            }
            return !end;
        }
        if end {
            let whole = self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false);
            self.after += usize::from(whole);
            return whole;
        }
        let known = self.matcher.tok_env().is_ok_and(|env| (token as usize) < env.tok_trie().vocab_size());
        let fits = known && self.matcher.try_consume_tokens(&[token]).is_ok_and(|consumed| consumed == 1);
        self.inside += usize::from(fits);
        fits
    }

    /// Takes back the last tokens that were pushed.
    pub fn pop(&mut self, count: usize) {
        let after = count.min(self.after);
        self.after -= after;
        let inside = (count - after).min(self.inside);
        if inside > 0 {
            self.inside -= inside;
            // A matcher that has failed says so when it is asked next.
            let _ = self.matcher.rollback(inside);
        }
        let before = count - after - inside;
        if before > 0 {
            self.before -= before;
            self.open = false;
        }
    }

    /// Whether an answer may end here.
    pub fn is_whole(&mut self) -> bool {
        self.open
            && (self.after > 0 || self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false))
    }
}

impl Clone for Grammar {
    /// Independent of this one, so that it can go to another thread.
    fn clone(&self) -> Self {
        let (matcher, ends) = (self.matcher.deep_clone(), Arc::clone(&self.ends));
        let Self { opening, open, before, inside, after, .. } = *self;
        Self { matcher, ends, opening, open, before, inside, after }
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { before, inside, after, .. } = self;
        write!(f, "a grammar {before} + {inside} + {after} tokens on")
    }
}

fn forbid(logit: &mut f32) {
    *logit = f32::NEG_INFINITY;
}

#[cfg(test)]
mod tests;
