//! A request of Anthropic's in the form of a chat request. Fields that both know under one name are
//! checked there.

use super::deferred::{self, Told};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::newest;
use crate::parts::{self, Text, Unread};
use crate::shape::Changes;
use crate::{known, settings, structured};
use serde_json::{Map, Value, json};

/// What the system says goes when the user says more.
const NEXT_TURN: &str = "next_user_message";

/// A request in OpenAI's form.
pub(super) struct Translated {
    pub(super) body: Map<String, Value>,
    /// What its messages tell of tools.
    pub(super) changes: Changes,
    /// What it asks for and does not get.
    pub(super) ignored: Vec<String>,
}

/// Brings a request into OpenAI's form.
pub(super) fn translate(fields: &Fields<'_>) -> Result<Translated, ApiError> {
    let (mut body, mut ignored) = (Map::new(), Vec::new());
    let same = ["model", "max_tokens", "temperature", "top_p", "stream"];
    for name in
        same.iter().chain(&known::PASSED).chain(&structured::FIELDS).chain(&settings::EXTENSIONS)
    {
        if let Some(value) = fields.get(name) {
            body.insert((*name).into(), value.clone());
        }
    }
    settings::pass_keep(fields, &mut body)?;
    if let Some(format) = structured::of_messages(fields)? {
        body.insert("response_format".into(), format);
    }
    fields.required("max_tokens")?;
    if let Some(stops) = fields.array("stop_sequences")? {
        body.insert("stop".into(), json!(stops));
    }
    let thinking = match fields.object("thinking")? {
        None => false,
        Some(thinking) => {
            if thinking.integer("budget_tokens", 0..=i64::MAX)?.is_some() {
                // An end that the model did not choose would make another answer of it.
                ignored.push(
                    "thinking.budget_tokens: thinking ends where the model ends it".to_owned(),
                );
            }
            match thinking.string("type")? {
                Some("enabled" | "adaptive") => true,
                Some("disabled") => false,
                _ => return Err(thinking.unlisted("type", "`enabled`, `adaptive` or `disabled`")),
            }
        }
    };
    if let Some(config) = fields.object("output_config")?
        && let Some(effort) = config.string("effort")?
    {
        if !["low", "medium", "high", "xhigh", "max"].contains(&effort) {
            return Err(config.unlisted("effort", "`low`, `medium`, `high`, `xhigh` or `max`"));
        }
        body.insert("reasoning_effort".into(), json!(effort));
    }
    let variables = body.entry("chat_template_kwargs").or_insert(json!({}));
    if let Some(variables) = variables.as_object_mut() {
        variables.entry("enable_thinking").or_insert(json!(thinking));
    }
    fields.required("messages")?;
    let messages = fields.array("messages")?.unwrap_or_default();
    let Told { messages, tools, changes } = deferred::tell(fields, messages, past(messages))?;
    let messages = translate_messages(fields, &messages)?;
    if messages.last().is_some_and(is_begun_answer) {
        body.insert("continue_final_message".into(), json!(true));
    }
    body.insert("messages".into(), json!(messages));
    body.insert("tools".into(), json!(tools));
    if let Some(choice) = fields.object("tool_choice")? {
        match choice.string("type")? {
            Some(kind @ ("auto" | "none")) => body.insert("tool_choice".into(), json!(kind)),
            Some("any") if fields.array("tools")?.unwrap_or_default().is_empty() => {
                let message = "`tool_choice.type` is `any`, but there are no `tools`";
                return Err(ApiError::field("tool_choice.type", message));
            }
            Some("any") => body.insert("tool_choice".into(), json!("required")),
            Some("tool") => {
                let function = json!({"name": choice.required("name")?});
                body.insert("tool_choice".into(), json!({"type": "function", "function": function}))
            }
            _ => return Err(choice.unlisted("type", "`auto`, `any`, `tool` or `none`")),
        };
        let one = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
        body.insert("parallel_tool_calls".into(), json!(!one));
    }
    Ok(Translated { body, changes, ignored })
}

/// Whether a last message is the beginning of the answer that is asked for.
fn is_begun_answer(message: &Value) -> bool {
    let has = |name: &str| message[name].as_str().is_some_and(|said| !said.is_empty());
    message["role"] == "assistant"
        && message.get("tool_calls").is_none()
        && (has("content") || has("reasoning_content"))
}

/// `system` and `messages`.
fn translate_messages(fields: &Fields<'_>, messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut read = Vec::new();
    if let Some(system) = fields.get("system") {
        let content = parts::read(system, "system", Unread::Refused)?;
        read.push(json!({"role": "system", "content": content}));
    }
    let newest = newest(messages);
    let past = past(messages);
    for (i, message) in messages.iter().enumerate() {
        let message = Fields::within(message, format!("messages[{i}]"))?;
        message.required("role")?;
        message.required("content")?;
        match message.string("role")? {
            Some("user") => translate_user(&message, newest == Some(i), &mut read)?,
            Some("assistant") => translate_answer(&message, &mut read)?,
            // Claude Code has such among the others.
            Some("system") => {
                check_end(&message)?;
                if past(i) {
                    continue;
                }
                let content = parts::read(
                    message.required("content")?,
                    &message.path("content"),
                    Unread::Refused,
                )?;
                read.push(json!({"role": "system", "content": content}));
            }
            _ => return Err(message.unlisted("role", "`user`, `assistant` or `system`")),
        }
    }
    Ok(read)
}

/// When what the system says goes.
fn check_end(message: &Fields<'_>) -> Result<(), ApiError> {
    match message.string("clear_at")? {
        None | Some("never" | NEXT_TURN) => Ok(()),
        Some(_) => Err(message.unlisted("clear_at", "`next_user_message` or `never`")),
    }
}

/// Which messages the system wrote for a turn that is over.
fn past(messages: &[Value]) -> impl Fn(usize) -> bool + '_ {
    let last_user = messages.iter().rposition(|message| message["role"] == "user");
    move |i| {
        let message = &messages[i];
        let is_for_a_turn = message["role"] == "system" && message["clear_at"] == NEXT_TURN;
        is_for_a_turn && last_user > Some(i)
    }
}

/// The blocks of a message; a string is one of text.
fn blocks<'a>(message: &Fields<'a>) -> Result<Vec<Fields<'a>>, ApiError> {
    let path = message.path("content");
    match message.required("content")? {
        Value::Array(blocks) => {
            let block = |(i, block)| Fields::within(block, format!("{path}[{i}]"));
            blocks.iter().enumerate().map(block).collect()
        }
        _ => Err(message.wrong("content", "a string or an array of blocks")),
    }
}

/// What the user says. Results of tools become messages of their own, before the text that comes
/// with them.
fn translate_user(
    message: &Fields<'_>,
    newest: bool,
    read: &mut Vec<Value>,
) -> Result<(), ApiError> {
    if let Some(Value::String(text)) = message.get("content") {
        read.push(json!({"role": "user", "content": text}));
        return Ok(());
    }
    let blocks = blocks(message)?;
    let is_result =
        |block: &Fields<'_>| matches!(block.get("type"), Some(kind) if kind == "tool_result");
    // What comes with results is what tools found, however it is said.
    let results = blocks.iter().any(is_result);
    let unread = if newest && !results { Unread::Refused } else { Unread::Noted };
    let mut text = Text::default();
    for block in &blocks {
        if is_result(block) {
            read.push(tool_message(block)?);
        } else {
            text.part(block, unread)?;
        }
    }
    if !(results && text.0.is_empty()) {
        read.push(json!({"role": "user", "content": text.0}));
    }
    Ok(())
}

/// What a tool found.
fn tool_message(block: &Fields<'_>) -> Result<Value, ApiError> {
    let content = match (block.string("type")?, block.get("content")) {
        (_, None) => String::new(),
        (Some("tool_result" | "mcp_tool_result"), Some(content)) => {
            parts::read(content, &block.path("content"), Unread::Noted)?
        }
        // Of tools that Anthropic runs, each with a form of its own.
        (kind, Some(content)) => match gathered(content) {
            words if words.is_empty() => parts::note(kind.unwrap_or_default()),
            words => words,
        },
    };
    let failed = block.bool("is_error")?.unwrap_or(false);
    let content = if failed { format!("[the tool failed]\n{content}") } else { content };
    block.required("tool_use_id")?;
    Ok(json!({"role": "tool", "tool_call_id": block.string("tool_use_id")?, "content": content}))
}

/// A message of the assistant's being put together.
#[derive(Default)]
struct Answer {
    text: Text,
    reasoning: String,
    calls: Vec<Value>,
}

impl Answer {
    fn message(self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text.0});
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
        }
        message
    }
}

/// An answer. Where it goes on after results of tools that Anthropic runs, it becomes several
/// messages.
fn translate_answer(message: &Fields<'_>, read: &mut Vec<Value>) -> Result<(), ApiError> {
    if let Some(Value::String(text)) = message.get("content") {
        read.push(json!({"role": "assistant", "content": text}));
        return Ok(());
    }
    let mut open = Some(Answer::default());
    for block in blocks(message)? {
        block.required("type")?;
        let kind = block.string("type")?.unwrap_or_default();
        if kind.ends_with("tool_result") {
            read.extend(open.take().map(Answer::message));
            read.push(tool_message(&block)?);
            continue;
        }
        let answer = open.get_or_insert_default();
        match kind {
            "thinking" => answer.reasoning += block.string("thinking")?.unwrap_or_default(),
            "redacted_thinking" => {}
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let (name, input) = (block.required("name")?, block.required("input")?);
                if !(input.is_object() || input.is_string()) {
                    return Err(block.wrong("input", "an object"));
                }
                let function = json!({"name": name, "arguments": input});
                let id = block.string("id")?;
                answer.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            "compaction" if block.get("content").is_some_and(Value::is_string) => {
                answer.text.paragraph(block.string("content")?.unwrap_or_default());
            }
            _ => answer.text.part(&block, Unread::Noted)?,
        }
    }
    read.extend(open.map(Answer::message));
    Ok(())
}

/// The words in a result whose form is not known: what was found, printed or went wrong, a line
/// each.
fn gathered(value: &Value) -> String {
    const WORDS: [&str; 8] =
        ["title", "url", "text", "stdout", "stderr", "content", "error_code", "data"];
    fn gather(value: &Value, named: bool, lines: &mut Vec<String>) {
        match value {
            Value::String(text) if named && !text.is_empty() => lines.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| gather(item, named, lines)),
            Value::Object(fields) => {
                let known = |name: &String| WORDS.contains(&name.as_str());
                fields.iter().for_each(|(name, item)| gather(item, known(name), lines));
            }
            _ => {}
        }
    }
    let mut lines = Vec::new();
    gather(value, false, &mut lines);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Result<Value, String> {
        translate(&Fields::of(body.as_object().unwrap()))
            .map(|translated| Value::Object(translated.body))
            .map_err(ApiError::named)
    }

    #[test]
    fn requests_take_openai_s_form() {
        let body = translated(json!({
            "max_tokens": 5, "system": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}],
            "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1000}, "metadata": {},
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I call f."},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "42"}]}, {"type": "text", "text": "And?"}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2"}]},
            ],
        }))
        .unwrap();
        let call = json!({"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        let expected = json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "I call f.", "tool_calls": [call], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "t1", "content": "42"},
            {"role": "user", "content": "And?"},
            {"role": "tool", "tool_call_id": "t2", "content": ""},
        ]);
        assert_eq!(body["messages"], expected);
        let function = json!({"name": "f", "description": "", "parameters": {"type": "object"}});
        assert_eq!(body["tools"], json!([{"type": "function", "function": function}]));
        assert_eq!((&body["stop"], &body["parallel_tool_calls"]), (&json!(["x"]), &json!(false)));
        assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true}));
    }

    #[test]
    fn what_was_said_once_can_be_said_again() {
        let image = json!({"type": "image", "source": {"type": "base64", "data": "AA"}});
        let seen = "[an image that this model cannot see]\n";
        let body = translated(json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": [image, {"type": "text", "text": "Look"}, {"type": "smell"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [
                    {"type": "web_search_result", "title": "T", "url": "u", "encrypted_content": "x"}]},
                {"type": "text", "text": "Found."},
                {"type": "mcp_tool_use", "id": "m1", "name": "f", "server_name": "s", "input": {}},
                {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "7"}]},
                {"type": "code_execution_tool_result", "tool_use_id": "x1",
                    "content": {"type": "code_execution_result", "stdout": "out", "return_code": 0, "content": []}},
                {"type": "tool_use", "id": "t1", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [image,
                    {"type": "tool_reference", "tool_name": "h"}]},
                image, {"type": "container_upload", "file_id": "f"}]},
            {"role": "system", "content": "Remember."},
        ]}))
        .unwrap();
        let call = |id: &str, name: &str, input: Value| {
            json!([{"id": id, "type": "function",
            "function": {"name": name, "arguments": input}}])
        };
        let smell = "[something of type smell that this model cannot read]";
        let expected = json!([
            {"role": "user", "content": format!("{seen}Look\n{smell}\n")},
            {"role": "assistant", "content": "", "reasoning_content": "hm",
                "tool_calls": call("s1", "web_search", json!({"query": "q"}))},
            {"role": "tool", "tool_call_id": "s1", "content": "T\nu"},
            {"role": "assistant", "content": "Found.", "tool_calls": call("m1", "f", json!({}))},
            {"role": "tool", "tool_call_id": "m1", "content": "7"},
            {"role": "tool", "tool_call_id": "x1", "content": "out"},
            {"role": "assistant", "content": "", "tool_calls": call("t1", "g", json!({}))},
            {"role": "tool", "tool_call_id": "t1",
                "content": format!("[the tool failed]\n{seen}[the tool h was found]\n")},
            {"role": "user", "content": format!("{seen}[a file that this model cannot read]\n")},
            {"role": "system", "content": "Remember."},
        ]);
        assert_eq!(body["messages"], expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let content = |role: &str, block: Value| json!({"max_tokens": 1, "messages": [{"role": role, "content": [block]}]});
        for (body, field) in [
            (json!({"messages": []}), "max_tokens"),
            (json!({"max_tokens": 1}), "messages"),
            (json!({"max_tokens": 1, "system": 3, "messages": []}), "system"),
            (
                json!({"max_tokens": 1, "thinking": {"type": "much"}, "messages": []}),
                "thinking.type",
            ),
            (
                json!({"max_tokens": 1, "messages": [], "tools": [{"name": "f"}]}),
                "tools[0].input_schema",
            ),
            (
                json!({"max_tokens": 1, "messages": [], "tool_choice": {"type": "all"}}),
                "tool_choice.type",
            ),
            (
                json!({"max_tokens": 1, "messages": [], "tool_choice": {"type": "any"}}),
                "tool_choice.type",
            ),
            (
                json!({"max_tokens": 1, "messages": [{"role": "robot", "content": "x"}]}),
                "messages[0].role",
            ),
            (json!({"max_tokens": 1, "messages": [{"role": "user"}]}), "messages[0].content"),
            (content("user", json!({"type": "image"})), "messages[0].content[0]"),
            (content("user", json!({"type": "tool_use"})), "messages[0].content[0].type"),
            (content("user", json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
            (
                content("assistant", json!({"type": "tool_use", "name": "f"})),
                "messages[0].content[0].input",
            ),
        ] {
            assert_eq!(translated(body.clone()), Err(field.to_owned()), "{body}");
        }
    }
}
