//! The prompt of a chat: messages, tools and variables, rendered by the model's template.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::router::Shared;
use crate::{fold, guard, messages};
use serde_json::{Map, Value, json};
use text::{Prompt, TemplateError};

/// Bytes that conversations and their tokens may take, so that a turn is encoded from where it is
/// new: some 70 of 30,000 tokens.
pub(crate) const BEGINNINGS: usize = 16 << 20;

/// The text that the model goes on from.
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Stands inside what looks like a control token in the messages and is none.
    mark: Option<char>,
    /// Where the last message is left open: whether that is inside its thinking.
    pub(crate) goes_on: Option<bool>,
}

impl Rendered {
    pub(crate) fn tokens(&self, shared: &Shared) -> Vec<u32> {
        shared.beginnings.encode(&shared.tokenizer, &self.text, self.mark)
    }
}

/// Renders the messages of a request, with `tools` on offer.
pub(crate) fn render<'a>(
    fields: &Fields<'_>,
    tools: impl IntoIterator<Item = &'a Value>,
    shared: &Shared,
) -> Result<Rendered, ApiError> {
    let template = shared.template.as_ref().map_err(|why| {
        let message = format!("{why}: use /v1/completions, or serve with `--chat-template FILE`");
        ApiError::field("messages", message)
    })?;
    let messages = fold::fold(messages::read(fields)?, template.manners());
    let Variables { thinking, extra } = Variables::read(fields)?;
    let (goes_on, add_generation_prompt) = read_opening(fields, &messages)?;
    let tools: Vec<&Value> = tools.into_iter().collect();
    let mut said = Value::Array(vec![messages.into(), json!(tools), extra.into()]);
    let break_off = match goes_on {
        Some(thinking) => {
            let last = said[0].as_array().map_or(0, |messages| messages.len().saturating_sub(1));
            let place = if thinking { "reasoning_content" } else { "content" };
            Some(guard::break_off(&mut said, &format!("/0/{last}/{place}"))?)
        }
        None => None,
    };
    let mark = guard::mark(&mut said, &shared.tokenizer)?;
    let part = |i: usize| said[i].as_array().map(Vec::as_slice).unwrap_or_default();
    let extra = said[2].as_object().cloned().unwrap_or_default();
    let (messages, tools) = (part(0), part(1));
    let prompt =
        Prompt { messages, tools, add_generation_prompt, enable_thinking: thinking, extra };
    let mut text = template.render(&prompt).map_err(|error| match error {
        TemplateError::Thread(_) => ApiError::Internal(error.to_string()),
        error => ApiError::field("messages", error.to_string()),
    })?;
    if let Some(break_off) = break_off {
        let Some(end) = text.rfind(break_off) else {
            let message = "the chat template leaves out the message that is to be continued";
            return Err(ApiError::field("continue_final_message", message));
        };
        text.truncate(end);
        text = text.replace(break_off, "");
    }
    Ok(Rendered { text, mark, goes_on })
}

/// How the prompt ends: whether the last message is left open (and inside its thinking), and
/// whether the assistant's turn is opened.
fn read_opening(fields: &Fields<'_>, messages: &[Value]) -> Result<(Option<bool>, bool), ApiError> {
    let goes_on = fields.bool("continue_final_message")?.unwrap_or(false);
    let opens = fields.bool("add_generation_prompt")?;
    if !goes_on {
        return Ok((None, opens.unwrap_or(true)));
    }
    if opens == Some(true) {
        return Err(fields.wrong("add_generation_prompt", "false with `continue_final_message`"));
    }
    let last = messages
        .last()
        .filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    let Some(last) = last else {
        let message =
            "`continue_final_message` is true, but the last message is not an answer in words";
        return Err(ApiError::field("continue_final_message", message));
    };
    let silent = last["content"].as_str().is_none_or(str::is_empty);
    let thought = last["reasoning_content"].as_str().is_some_and(|thought| !thought.is_empty());
    Ok((Some(silent && thought), false))
}

/// Variables of the template.
struct Variables {
    thinking: Option<bool>,
    extra: Map<String, Value>,
}

impl Variables {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let mut extra = Map::new();
        let mut thinking = match fields.string("reasoning_effort")? {
            None => None,
            Some("none" | "minimal") => Some(false),
            Some(effort @ ("low" | "medium" | "high" | "xhigh" | "max")) => {
                // The highest that templates know has this name.
                let effort = if effort == "max" { "xhigh" } else { effort };
                extra.insert("reasoning_effort".to_owned(), json!(effort));
                Some(true)
            }
            Some(_) => {
                let efforts = "`none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`";
                return Err(fields.unlisted("reasoning_effort", efforts));
            }
        };
        if let Some(variables) = fields.object("chat_template_kwargs")? {
            thinking = variables.bool("enable_thinking")?.or(thinking);
            // What the request says elsewhere is not said again here.
            let own =
                ["messages", "tools", "documents", "add_generation_prompt", "enable_thinking"];
            let others = variables.entries().filter(|(name, _)| !own.contains(&name.as_str()));
            extra.extend(others.map(|(name, value)| (name.clone(), value.clone())));
        }
        Ok(Self { thinking, extra })
    }
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
