//! Prompts to measure with: the suites of the repository, and files of a user's own.

use anyhow::{Context, Result, anyhow, bail};
use launch::TextSide;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use text::Specials;

/// Every suite with its file.
const SUITES: [(&str, &str); 9] = [
    ("code", include_str!("../suites/code.jsonl")),
    ("math", include_str!("../suites/math.jsonl")),
    ("plan", include_str!("../suites/plan.jsonl")),
    ("tools", include_str!("../suites/tools.jsonl")),
    ("complete", include_str!("../suites/complete.jsonl")),
    ("prose", include_str!("../suites/prose.jsonl")),
    ("repeat", include_str!("../suites/repeat.jsonl")),
    ("long", include_str!("../suites/long.jsonl")),
    ("edits", include_str!("../suites/edits.jsonl")),
];

/// Prompts under one name.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The suite's name, or that of the file without its ending.
    pub name: String,
    /// The tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
}

impl Suite {
    /// The same with fewer prompts.
    pub fn first(&self, count: usize) -> Self {
        Self {
            name: self.name.clone(),
            prompts: self.prompts.iter().take(count).cloned().collect(),
        }
    }
}

/// A line of a file: `prompt` (or `question`), or `messages` with `tools`.
#[derive(Clone, Deserialize)]
pub(crate) struct Line {
    #[serde(alias = "question")]
    pub(crate) prompt: Option<String>,
    system: Option<String>,
    #[serde(default)]
    messages: Vec<Value>,
    #[serde(default)]
    pub(crate) tools: Vec<Value>,
    pub(crate) thinking: Option<bool>,
    /// Continued as it is, without the chat template.
    #[serde(default)]
    pub(crate) raw: bool,
}

impl Line {
    /// The chat that a line stands for.
    pub(crate) fn all_messages(&self) -> Result<Vec<Value>> {
        let mut messages = self.messages.clone();
        if let Some(prompt) = &self.prompt {
            messages.extend(self.system.as_ref().map(|s| json!({"role": "system", "content": s})));
            messages.push(json!({"role": "user", "content": prompt}));
        }
        if messages.is_empty() {
            bail!("neither `prompt` nor `messages`");
        }
        Ok(messages)
    }
}

/// The names of all suites.
pub fn names() -> Vec<String> {
    SUITES.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The first `count` prompts of the suite of that name.
pub fn suite(name: &str, count: usize, text: &TextSide) -> Result<Suite> {
    suite_as(name, count, text, None)
}

/// The same, with thinking or without, whatever the prompts say.
pub fn suite_as(
    name: &str,
    count: usize,
    text: &TextSide,
    thinking: Option<bool>,
) -> Result<Suite> {
    let prompts = read(&shown(name), text_of(name)?, count, text, thinking)?;
    Ok(Suite { name: name.to_owned(), prompts })
}

/// A suite as messages name it.
fn shown(name: &str) -> String {
    format!("suite `{name}`")
}

fn text_of(name: &str) -> Result<&'static str> {
    let Some((_, lines)) = SUITES.iter().find(|(n, _)| *n == name) else {
        bail!("unknown suite `{name}`: {} expected", names().join(", "));
    };
    Ok(lines)
}

/// The first `count` lines of the suite of that name, as they are.
pub(crate) fn suite_lines(name: &str, count: usize) -> Result<(String, Vec<Line>)> {
    let lines = parse(&shown(name), text_of(name)?, count)?;
    Ok((name.to_owned(), lines.into_iter().map(|(_, line)| line).collect()))
}

/// The first `count` lines of a file, as they are.
pub(crate) fn file_lines(path: &Path, count: usize) -> Result<(String, Vec<Line>)> {
    let (name, lines) = open(path)?;
    let lines = parse(&path.display().to_string(), &lines, count)?;
    Ok((name, lines.into_iter().map(|(_, line)| line).collect()))
}

/// The first `count` prompts of a file of JSON lines; the suite has the file's name.
pub fn file(path: &Path, count: usize, text: &TextSide) -> Result<Suite> {
    file_as(path, count, text, None)
}

/// The same, with thinking or without, whatever the prompts say.
pub fn file_as(
    path: &Path,
    count: usize,
    text: &TextSide,
    thinking: Option<bool>,
) -> Result<Suite> {
    let (name, lines) = open(path)?;
    let prompts = read(&path.display().to_string(), &lines, count, text, thinking)?;
    Ok(Suite { name, prompts })
}

/// The name and the text of a file of prompts.
fn open(path: &Path) -> Result<(String, String)> {
    let shown = path.display().to_string();
    let lines = std::fs::read_to_string(path).with_context(|| shown.clone())?;
    let name = path.file_stem().map_or(shown, |s| s.to_string_lossy().into_owned());
    Ok((name, lines))
}

/// The first `count` lines of `source`, as messages name it, each with its place there.
fn parse(source: &str, lines: &str, count: usize) -> Result<Vec<(String, Line)>> {
    let full = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let one = |(i, line): (usize, &str)| {
        let place = format!("{source}, line {}", i + 1);
        let object: Result<Map<String, Value>> =
            serde_json::from_str(line).context("no JSON object");
        let line = object.and_then(|object| Ok(Line::deserialize(Value::Object(object))?));
        let line = line.with_context(|| place.clone())?;
        Ok((place, line))
    };
    let lines: Vec<(String, Line)> = full.take(count).map(one).collect::<Result<_>>()?;
    if lines.is_empty() {
        bail!("{source} has no prompts");
    }
    Ok(lines)
}

/// The tokens of each prompt of `source`.
fn read(
    source: &str,
    lines: &str,
    count: usize,
    text: &TextSide,
    thinking: Option<bool>,
) -> Result<Vec<Vec<u32>>> {
    let one = |(place, mut line): (String, Line)| {
        line.thinking = thinking.or(line.thinking);
        encode(&line, text).context(place)
    };
    parse(source, lines, count)?.into_iter().map(one).collect()
}

fn encode(line: &Line, text: &TextSide) -> Result<Vec<u32>> {
    let encoded = |rendered: &str| text.tokenizer.encode(rendered, Specials::Parse);
    if let Some(prompt) = line.prompt.as_ref().filter(|_| line.raw) {
        return Ok(text.tokenizer.bos().into_iter().chain(encoded(prompt)).collect());
    }
    let messages = line.all_messages()?;
    let template =
        text.template.as_ref().map_err(|why| anyhow!("{why}, and the prompt is not `raw`"))?;
    let prompt = text::Prompt {
        messages: &messages,
        tools: &line.tools,
        enable_thinking: line.thinking,
        ..text::Prompt::default()
    };
    Ok(encoded(&template.render(&prompt)?))
}
