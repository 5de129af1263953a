//! Prompts to measure with: the suites of the repository, and files of a user's own.

use crate::loading::TextSide;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use text::Specials;

/// Every suite with its file.
const SUITES: [(&str, &str); 8] = [
    ("code", include_str!("../../suites/code.jsonl")),
    ("math", include_str!("../../suites/math.jsonl")),
    ("plan", include_str!("../../suites/plan.jsonl")),
    ("tools", include_str!("../../suites/tools.jsonl")),
    ("complete", include_str!("../../suites/complete.jsonl")),
    ("prose", include_str!("../../suites/prose.jsonl")),
    ("repeat", include_str!("../../suites/repeat.jsonl")),
    ("long", include_str!("../../suites/long.jsonl")),
];

/// Prompts under one name.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    /// The tokens of each prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
}

impl Suite {
    /// The same with fewer prompts.
    pub(crate) fn first(&self, count: usize) -> Self {
        Self { name: self.name.clone(), prompts: self.prompts.iter().take(count).cloned().collect() }
    }
}

/// A line of a file: `prompt` (or `question`), or `messages` with `tools`.
#[derive(Deserialize)]
struct Line {
    #[serde(alias = "question")]
    prompt: Option<String>,
    system: Option<String>,
    #[serde(default)]
    messages: Vec<Value>,
    #[serde(default)]
    tools: Vec<Value>,
    thinking: Option<bool>,
    /// Continued as it is, without the chat template.
    #[serde(default)]
    raw: bool,
}

/// The names of all suites.
pub(crate) fn names() -> Vec<String> {
    SUITES.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The first `count` prompts of the suite of that name.
pub(crate) fn suite(name: &str, count: usize, text: &TextSide) -> Result<Suite> {
    suite_as(name, count, text, None)
}

/// The same, with thinking or without, whatever the prompts say.
pub(crate) fn suite_as(name: &str, count: usize, text: &TextSide, thinking: Option<bool>) -> Result<Suite> {
    let Some((_, lines)) = SUITES.iter().find(|(n, _)| *n == name) else {
        bail!("unknown suite `{name}`: {} expected", names().join(", "));
    };
    read(name, lines, count, text, thinking)
}

/// The first `count` prompts of a file of JSON lines; the suite has the file's name.
pub(crate) fn file(path: &Path, count: usize, text: &TextSide) -> Result<Suite> {
    file_as(path, count, text, None)
}

/// The same, with thinking or without, whatever the prompts say.
pub(crate) fn file_as(path: &Path, count: usize, text: &TextSide, thinking: Option<bool>) -> Result<Suite> {
    let shown = path.display().to_string();
    let lines = std::fs::read_to_string(path).with_context(|| shown.clone())?;
    let name = path.file_stem().map_or_else(|| shown.clone(), |s| s.to_string_lossy().into_owned());
    read(&name, &lines, count, text, thinking).context(shown)
}

fn read(
    name: &str,
    lines: &str,
    count: usize,
    text: &TextSide,
    thinking: Option<bool>,
) -> Result<Suite> {
    let mut prompts = Vec::new();
    let full = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (i, line) in full.take(count) {
        let at = || format!("line {} of `{name}`", i + 1);
        let mut line: Line = serde_json::from_str(line).with_context(at)?;
        line.thinking = thinking.or(line.thinking);
        prompts.push(encode(line, text).with_context(at)?);
    }
    if prompts.is_empty() {
        bail!("`{name}` has no prompts");
    }
    Ok(Suite { name: name.to_owned(), prompts })
}

fn encode(line: Line, text: &TextSide) -> Result<Vec<u32>> {
    let encoded = |rendered: &str| text.tokenizer.encode(rendered, Specials::Parse);
    let mut messages = line.messages;
    if let Some(prompt) = line.prompt {
        if line.raw {
            return Ok(text.tokenizer.bos().into_iter().chain(encoded(&prompt)).collect());
        }
        messages.extend(line.system.map(|s| json!({"role": "system", "content": s})));
        messages.push(json!({"role": "user", "content": prompt}));
    }
    if messages.is_empty() {
        bail!("neither `prompt` nor `messages`");
    }
    let template =
        text.template.as_ref().context("the model has no chat template, and the prompt is not `raw`")?;
    let prompt = text::Prompt {
        messages: &messages,
        tools: &line.tools,
        enable_thinking: line.thinking,
        ..text::Prompt::default()
    };
    Ok(encoded(&template.render(&prompt)?))
}
