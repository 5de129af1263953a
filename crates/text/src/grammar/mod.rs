//! Grammars: which tokens may come next so that an answer is JSON of a schema, fits a regular
//! expression, a list or a grammar, or is a call of a tool. Thinking stays free; the grammar begins
//! where it ends, and nothing ends before the grammar does. Whoever asks is not trusted: sizes are
//! bounded before anything recurses, and compiling has its own threads.

mod bounds;
mod calls;
mod compile;
mod forms;
mod gbnf;
mod lark;

use crate::{Kind, Tokenizer};
use compile::Compilers;
pub use forms::Form;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::sync::Arc;
use thiserror::Error;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Bytes of everything that one answer is held to.
const MAX_BYTES: usize = 1 << 20;

/// States that following a grammar may make, at 1 to 2 KB each.
const MAX_STATES: usize = 50_000;

/// Work for one mask, in the compiler's own units: about 10 ms.
const MAX_WORK: u64 = 100_000;

/// Ways that are open at one place: four for each property that need not be there.
const MAX_OPEN: usize = 5_000;

/// Symbols of a grammar; those who follow it count no further than 65536.
const MAX_SYMBOLS: usize = 60_000;

/// The largest whole number of 18 digits.
const MOST: i64 = 999_999_999_999_999_999;

/// Bytes of a reason at most: what does not parse is repeated in it.
const MAX_REASON: usize = 300;

/// Why there is no grammar.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum GrammarError {
    /// The vocabulary cannot be searched.
    #[error("no grammars over this tokenizer: {0}")]
    Tokenizer(String),
    /// There is no thread to compile on.
    #[error("no thread for a grammar's compiler: {0}")]
    Thread(String),
    /// Larger than any in use.
    #[error("it has {found} {what}, at most {most} are taken")]
    TooLarge { what: &'static str, found: usize, most: usize },
    /// The schema of a tool's parameters is at fault.
    #[error("the parameters of `{name}`: {cause}")]
    Tool { name: String, cause: Box<GrammarError> },
    /// A schema that says nothing but to look elsewhere, forever.
    #[error("its references (`$ref`) lead back to themselves and to nothing else")]
    Loop,
    /// It says what cannot be followed exactly.
    #[error("the {what} cannot be followed: {reason}")]
    Refused { what: &'static str, reason: String },
    /// It takes too long to compile.
    #[error("the {what} is too hard: it was not compiled within {seconds} seconds")]
    Slow { what: &'static str, seconds: u64 },
    /// Other grammars are being compiled, and have been for a while.
    #[error("too many grammars are being compiled: try again later")]
    Busy,
}

/// What an answer may be: of a form, calls of tools, or either.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape<'a> {
    /// The answer itself.
    pub answer: Option<Form<'a>>,
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
/// use text::{Form, Grammars, Shape, Tokenizer};
/// let tokenizer = Tokenizer::from_json("tests/fixtures/tokenizer.json")?;
/// let grammars = Grammars::new(&tokenizer)?;
/// let schema = serde_json::json!({"type": "boolean"});
/// let shape = Shape { answer: Some(Form::Json(&schema)), ..Shape::default() };
/// let mut answer = grammars.grammar(&shape)?;
/// let first = |text: &str| tokenizer.encode(text, text::Specials::Literal)[0];
/// assert!(!answer.push(first("x")) && answer.push(first("t")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Grammars {
    factory: Arc<ParserFactory>,
    compilers: Arc<Compilers>,
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
        factory.limits_mut().max_lexer_states = MAX_STATES;
        factory.limits_mut().max_grammar_size = MAX_SYMBOLS;
        factory.limits_mut().step_lexer_fuel = MAX_WORK;
        factory.limits_mut().max_items_in_row = MAX_OPEN;
        let call_tokens = ["<tool_call>", "</tool_call>"].map(|name| tokenizer.special(name));
        Ok(Self {
            factory: Arc::new(factory),
            compilers: Arc::default(),
            ends: tokenizer.ends().into(),
            think_end: tokenizer.special("</think>"),
            call_tokens,
        })
    }

    /// The grammar of answers of a shape.
    pub fn grammar(&self, shape: &Shape) -> Result<Grammar, GrammarError> {
        let (mut ways, mut rules) = (Vec::new(), String::new());
        let what = shape.answer.map_or("schema of a tool", |form| form.name());
        if let Some(form) = shape.answer {
            ways.push("value");
            rules += &form.rules()?;
        }
        if !shape.calls.is_empty() {
            ways.push(if shape.several { "call (\"\\n\" call)*" } else { "call" });
            rules += &calls::rules(shape.calls, self.call_tokens)?;
        }
        if rules.len() > MAX_BYTES {
            return Err(GrammarError::TooLarge {
                what: "bytes",
                found: rules.len(),
                most: MAX_BYTES,
            });
        }
        // What chat templates have between thinking and answer.
        let lead = if shape.thinking { "\"\\n\\n\" " } else { "" };
        let lark = format!("start: {lead}answer\nanswer: {}\n{rules}", ways.join(" | "));
        let factory = Arc::clone(&self.factory);
        let matcher = self.compilers.run(what, move || matcher(&factory, lark, what))?;
        let opening = if shape.thinking { self.think_end } else { None };
        let open = opening.is_none();
        Ok(Grammar {
            matcher,
            ends: Arc::clone(&self.ends),
            opening,
            open,
            before: 0,
            inside: 0,
            after: 0,
        })
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
    let spacing =
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    schema.insert("x-guidance".to_owned(), spacing);
    let mut schema = Value::Object(schema);
    narrow(&mut schema);
    schema
}

/// Brings bounds of numbers within what the compiler counts: the ends of 64 bits, as types of other
/// languages have them, become those of 18 digits, so that what fits still fits the schema as it
/// was.
fn narrow(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (name, bound) in object.iter_mut() {
                match (name.as_str(), bound.as_f64()) {
                    ("minimum" | "exclusiveMinimum", Some(least)) if least < -(MOST as f64) => {
                        *bound = json!(-MOST);
                    }
                    ("maximum" | "exclusiveMaximum", Some(most)) if most > MOST as f64 => {
                        *bound = json!(MOST);
                    }
                    _ => {}
                }
            }
            // What has to be there as it is stays as it is.
            let schemas = object.iter_mut().filter(|(name, _)| *name != "const" && *name != "enum");
            schemas.for_each(|(_, value)| narrow(value));
        }
        Value::Array(items) => items.iter_mut().for_each(narrow),
        _ => {}
    }
}

/// Compiles a grammar and asks it for its first tokens: what cannot even begin is refused here, and
/// what takes long is not left to whoever writes answers.
fn matcher(
    factory: &ParserFactory,
    lark: String,
    what: &'static str,
) -> Result<Matcher, GrammarError> {
    let refused = |error: &str| GrammarError::Refused { what, reason: reason(error) };
    let parser = factory.create_parser(TopLevelGrammar::from_lark(lark));
    let mut matcher = Matcher::new(Ok(parser.map_err(|error| refused(&error.to_string()))?));
    matcher.compute_mask_or_eos().map_err(|error| refused(&error.to_string()))?;
    Ok(matcher)
}

/// What the compiler says, without the places in a text that nobody has seen.
fn reason(error: &str) -> String {
    if error.contains("NoExtensionBias") {
        return "nothing fits it".to_owned();
    }
    if error.contains("without 'referencing' feature") {
        return "a `$ref` leads elsewhere, only references within it (`#/...`) are followed"
            .to_owned();
    }
    // A regular expression is repeated over several lines before it is said what is wrong with it.
    if error.contains("regex parse error:")
        && let Some((_, wrong)) = error.rsplit_once("error: ")
    {
        return format!("a regular expression does not parse: {}", first_line(wrong));
    }
    match first_line(error).as_str() {
        line if line.starts_with("panic:") && line.contains("overflow") => {
            "a number in it is too large".to_owned()
        }
        line if line.starts_with("panic:") => "its compiler gave up".to_owned(),
        line => line.trim_start_matches("failed to compile JSON schema: ").to_owned(),
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let place = line.strip_prefix("at ").and_then(|rest| rest.split_once("): "));
    let line = place.map_or(line, |(_, rest)| rest);
    match line.char_indices().find(|(at, _)| *at >= MAX_REASON) {
        Some((at, _)) => format!("{} ...", &line[..at]),
        None => line.to_owned(),
    }
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
        let mask =
            self.matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))?;
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
        let known =
            self.matcher.tok_env().is_ok_and(|env| (token as usize) < env.tok_trie().vocab_size());
        let fits =
            known && self.matcher.try_consume_tokens(&[token]).is_ok_and(|consumed| consumed == 1);
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
            && (self.after > 0
                || self.matcher.is_stopped()
                || self.matcher.is_accepting().unwrap_or(false))
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
mod abuse_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod tests;
