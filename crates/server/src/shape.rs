//! What an answer may be: free, of a form (`structured.rs`), a call of a tool (`tool_choice`); and
//! tokens that it may not have.

use crate::budget::Budget;
use crate::completions::read_ids;
use crate::constraint::Held;
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::router::Shared;
use crate::settings::Settings;
use crate::structured::Structured;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::HashSet;
use text::{Grammar, GrammarError, Shape, Specials};

/// Tools on offer at most.
const MAX_TOOLS: usize = 1024;

/// Words that may not be written at most, and bytes of one.
const MAX_BAD_WORDS: usize = 256;
const MAX_BAD_WORD_BYTES: usize = 1024;

/// Tools on offer, and which of them must be called.
#[derive(Clone, Debug)]
pub(crate) struct Tools<'a> {
    /// None where none is to be called.
    pub(crate) offered: Cow<'a, [Value]>,
    /// Those of which one must be called; none where the model decides.
    forced: Cow<'a, [Value]>,
    /// Whether more than one call is wanted.
    pub(crate) parallel: bool,
    named: bool,
}

/// What messages tell of tools, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Tools that a message tells of and not the prompt's beginning.
    pub(crate) told: HashSet<String>,
    /// Those that were taken away: the model is told so, and no answer is held to a call of them.
    pub(crate) gone: HashSet<String>,
}

impl Changes {
    /// Whether a message tells of this tool.
    pub(crate) fn tells_of(&self, tool: &Value) -> bool {
        has(&self.told, tool)
    }
}

fn has(names: &HashSet<String>, tool: &Value) -> bool {
    tool["function"]["name"].as_str().is_some_and(|name| names.contains(name))
}

impl<'a> Tools<'a> {
    /// For answers that call nothing.
    pub(crate) fn none() -> Self {
        Self { offered: Cow::default(), forced: Cow::default(), parallel: false, named: false }
    }

    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub(crate) fn read(fields: &Fields<'a>) -> Result<Self, ApiError> {
        let tools = fields.array("tools")?.unwrap_or_default();
        if tools.len() > MAX_TOOLS {
            return Err(fields.wrong("tools", &format!("at most {MAX_TOOLS}")));
        }
        for (i, tool) in tools.iter().enumerate() {
            check_tool(&Fields::within(tool, format!("tools[{i}]"))?)?;
        }
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let all = Self { offered: Cow::Borrowed(tools), parallel, ..Self::none() };
        match fields.get("tool_choice") {
            None => Ok(all),
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => Ok(all),
                "none" => Ok(Self { offered: Cow::default(), ..all }),
                "required" if tools.is_empty() => {
                    let message = "`tool_choice` is `required`, but there are no `tools`";
                    Err(ApiError::field("tool_choice", message))
                }
                "required" => Ok(Self { forced: Cow::Borrowed(tools), ..all }),
                _ => {
                    Err(fields.unlisted("tool_choice", "`none`, `auto`, `required` or a function"))
                }
            },
            Some(Value::Object(_)) => {
                let Some(choice) = fields.object("tool_choice")? else { return Ok(all) };
                match choice.string("type")? {
                    Some("function") => {
                        let at = find_tool(&choice, tools)?;
                        Ok(Self { forced: Cow::Borrowed(&tools[at..=at]), named: true, ..all })
                    }
                    Some("allowed_tools") => all.restricted(&choice, tools),
                    _ => Err(choice.unlisted("type", "`function` or `allowed_tools`")),
                }
            }
            Some(_) => Err(fields.wrong("tool_choice", "`none`, `auto`, `required` or a function")),
        }
    }

    /// Those that an answer may be held to. The prompt tells of the others as it did, so that what
    /// is kept of it fits, and a call that the model makes of them all the same is read as one.
    pub(crate) fn left_by(mut self, changes: &Changes) -> Result<Self, ApiError> {
        if changes.gone.is_empty() {
            return Ok(self);
        }
        let is_forced = !self.forced.is_empty();
        for tools in [&mut self.offered, &mut self.forced] {
            tools.to_mut().retain(|tool| !has(&changes.gone, tool));
        }
        if is_forced && self.forced.is_empty() {
            let message = "`tool_choice` wants a call, but what could be called was taken away";
            return Err(ApiError::field("tool_choice", message));
        }
        Ok(self)
    }

    /// Only those that `allowed_tools` names are on offer.
    fn restricted(self, choice: &Fields<'a>, tools: &[Value]) -> Result<Self, ApiError> {
        choice.required("allowed_tools")?;
        let Some(named) = choice.object("allowed_tools")? else { return Ok(self) };
        named.required("tools")?;
        let mut offered: Vec<Value> = Vec::new();
        for (i, tool) in named.array("tools")?.unwrap_or_default().iter().enumerate() {
            let tool = Fields::within(tool, format!("{}[{i}]", named.path("tools")))?;
            let at = find_tool(&tool, tools)?;
            if !offered.contains(&tools[at]) {
                offered.push(tools[at].clone());
            }
        }
        if offered.is_empty() {
            return Err(named.wrong("tools", "at least one of `tools`"));
        }
        let forced = match named.string("mode")? {
            None | Some("auto") => Cow::default(),
            Some("required") => Cow::Owned(offered.clone()),
            Some(_) => return Err(named.unlisted("mode", "`auto` or `required`")),
        };
        Ok(Self { offered: Cow::Owned(offered), forced, ..self })
    }
}

/// Which of the tools a `function` with a `name` means.
fn find_tool(choice: &Fields<'_>, tools: &[Value]) -> Result<usize, ApiError> {
    choice.required("function")?;
    let function = choice.object("function")?.ok_or_else(|| choice.missing("function"))?;
    function.required("name")?;
    let name = function.string("name")?;
    let at = tools.iter().position(|tool| tool["function"]["name"].as_str() == name);
    at.ok_or_else(|| function.wrong("name", "the name of one of `tools`"))
}

fn check_tool(tool: &Fields<'_>) -> Result<(), ApiError> {
    tool.required("type")?;
    if tool.string("type")? != Some("function") {
        return Err(tool.unlisted("type", "`function`"));
    }
    tool.required("function")?;
    let Some(function) = tool.object("function")? else { return Ok(()) };
    function.required("name")?;
    if function.string("name")?.is_none_or(|name| name.trim().is_empty()) {
        return Err(function.wrong("name", "a name"));
    }
    function.string("description")?;
    function.object("parameters")?;
    Ok(())
}

/// What a request's answers are held to. `thinking` says whether the prompt has left `<think>`
/// open.
pub(crate) fn held(
    fields: &Fields<'_>,
    tools: &Tools<'_>,
    thinking: bool,
    settings: &Settings,
    shared: &Shared,
) -> Result<Held, ApiError> {
    let (grammar, field) = grammar(fields, tools, thinking, shared)?.unzip();
    if grammar.is_some() && settings.ignore_eos {
        let field = field.unwrap_or_default();
        let message =
            format!("`ignore_eos` and `{field}` contradict each other: a form has an end");
        return Err(ApiError::field("ignore_eos", message));
    }
    let allowed = match fields.array("allowed_token_ids")? {
        None => None,
        Some([]) => return Err(fields.wrong("allowed_token_ids", "at least one token")),
        Some(ids) => {
            let mut ids = read_ids(ids, &fields.path("allowed_token_ids"), shared.limits.vocab)?;
            ids.sort_unstable();
            Some(ids.into())
        }
    };
    let ends = settings.ends(&shared.limits);
    Ok(Held {
        field: field.unwrap_or_default(),
        grammar,
        // What was written elsewhere is among the tokens that it counts.
        least: match settings.min_tokens {
            least if least > 0 && !ends.is_empty() => least + settings.written,
            _ => 0,
        },
        ends: ends.into(),
        allowed,
        banned: read_bad_words(fields, shared)?.into(),
        budget: Budget::read(fields, thinking, &shared.tokenizer)?,
        written: Vec::new(),
    })
}

/// Words as rows of tokens, as they are at the beginning of a text and after a space.
fn read_bad_words(fields: &Fields<'_>, shared: &Shared) -> Result<Vec<Vec<u32>>, ApiError> {
    let words = fields.array("bad_words")?.unwrap_or_default();
    if words.len() > MAX_BAD_WORDS {
        return Err(fields.wrong("bad_words", &format!("at most {MAX_BAD_WORDS}")));
    }
    let mut rows = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let path = format!("{}[{i}]", fields.path("bad_words"));
        let fits = |word: &&str| !word.trim().is_empty() && word.len() <= MAX_BAD_WORD_BYTES;
        let Some(word) = word.as_str().filter(fits) else {
            return Err(wrong(
                path,
                word,
                &format!("a word of at most {MAX_BAD_WORD_BYTES} bytes"),
            ));
        };
        for spelt in [word.to_owned(), format!(" {}", word.trim_start())] {
            let row = shared.tokenizer.encode(&spelt, Specials::Literal);
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// The grammar that a request asks for, if it does, and the field that asks.
fn grammar(
    fields: &Fields<'_>,
    tools: &Tools<'_>,
    thinking: bool,
    shared: &Shared,
) -> Result<Option<(Grammar, String)>, ApiError> {
    let structured = Structured::read(fields)?;
    let several = tools.parallel && !tools.named;
    let (shape, field) = match (&*tools.forced, &structured) {
        ([], None) => return Ok(None),
        // Where the model may call, its answer is a call or of the form.
        ([], Some(asked)) => {
            let answer = Some(asked.form());
            (Shape { answer, calls: &tools.offered, several, thinking }, asked.field.clone())
        }
        (calls, _) => (Shape { answer: None, calls, several, thinking }, "tool_choice".to_owned()),
    };
    let grammar = shared.grammars()?.grammar(&shape).map_err(|error| match error {
        GrammarError::Tokenizer(_) | GrammarError::Thread(_) => {
            ApiError::Internal(error.to_string())
        }
        GrammarError::Busy => ApiError::Crowded(error.to_string()),
        error => ApiError::field(field.as_str(), format!("`{field}`: {error}")),
    })?;
    Ok(Some((grammar, field)))
}
