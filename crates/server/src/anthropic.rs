//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's form of a chat. A request is translated into
//! OpenAI's form and read as one; answers come back as content blocks.

use crate::chat::{self, Chat};
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::job::{Finish, Outcome, Said};
use crate::router::{Body, Shared};
use crate::settings::random;
use crate::speech::{Message, Part, Speech};
use crate::sse::{self, Chunks, Whole};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Anthropic's error object.
pub(crate) struct AnthropicError(ApiError);

impl From<ApiError> for AnthropicError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        self.0.respond(error_object(&self.0))
    }
}

fn error_object(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.to_string()}})
}

/// Answers a chat.
pub(crate) async fn messages(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Response, AnthropicError> {
    let Chat { settings, job, mut speech } = body.read(&shared, read).await?;
    let id = format!("msg_{:016x}", random());
    let model = shared.about.called(settings.model.as_deref()).to_owned();
    let prompt_tokens = job.prompt.len();
    let stops = settings.stops;
    let news = shared.handle.submit(vec![job])?;
    if settings.stream {
        let chunks = BlockChunks { id, model, prompt_tokens, speech, stops, open: None, blocks: 0 };
        return Ok(sse::stream(news, chunks, 1));
    }
    let Some(Whole { said, outcome }) = sse::collect(news, 1).await?.pop() else {
        return Err(ApiError::Internal("the answer was lost".to_owned()).into());
    };
    let mut message = Message::default();
    let parts = speech.push(&said.text);
    parts.into_iter().chain(speech.finish()).for_each(|part| message.add(part));
    let (stop_reason, stop_sequence) = reason(&speech, &outcome, &stops);
    Ok(Json(json!({"id": id, "type": "message", "role": "assistant", "model": model,
        "content": blocks(&message), "stop_reason": stop_reason, "stop_sequence": stop_sequence,
        "usage": usage(&outcome), "forerun": outcome.report}))
    .into_response())
}

/// How many tokens a chat would have.
pub(crate) async fn count_tokens(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, AnthropicError> {
    let chat = body.read(&shared, |body, shared| {
        let mut body = body.clone();
        body.entry("max_tokens").or_insert(json!(1));
        read(&body, shared)
    });
    Ok(Json(json!({"input_tokens": chat.await?.job.prompt.len()})))
}

fn usage(outcome: &Outcome) -> Value {
    let Outcome { prompt_tokens, completion_tokens, cached_tokens, .. } = outcome;
    json!({"input_tokens": prompt_tokens - cached_tokens, "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": 0, "output_tokens": completion_tokens})
}

fn reason<'s>(speech: &Speech, outcome: &Outcome, stops: &'s [String]) -> (&'static str, Option<&'s String>) {
    let stop = outcome.stop.and_then(|index| stops.get(index));
    let reason = match (speech.finish_reason(outcome.finish), outcome.finish) {
        ("tool_calls", _) => "tool_use",
        (_, Finish::Length) => "max_tokens",
        (_, Finish::Stop) if stop.is_some() => "stop_sequence",
        (_, Finish::Stop) => "end_turn",
    };
    (reason, stop)
}

/// A whole answer's content blocks.
fn blocks(message: &Message) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !message.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": message.reasoning, "signature": ""}));
    }
    if !message.content.is_empty() {
        blocks.push(json!({"type": "text", "text": message.content}));
    }
    for (id, name, arguments) in &message.calls {
        // A call that was cut has no whole arguments; the reason to stop tells.
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }
    blocks
}

/// Reads a request.
pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Chat, ApiError> {
    chat::read(&translate(&Fields::of(body))?, shared)
}

/// The same request in OpenAI's form. Fields that both know under one name are checked there.
fn translate(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut body = Map::new();
    for name in ["model", "max_tokens", "temperature", "top_p", "top_k", "seed", "stream"] {
        if let Some(value) = fields.get(name) {
            body.insert(name.into(), value.clone());
        }
    }
    fields.required("max_tokens")?;
    if let Some(stops) = fields.array("stop_sequences")? {
        body.insert("stop".into(), json!(stops));
    }
    let thinking = match fields.object("thinking")? {
        None => false,
        Some(thinking) => match thinking.string("type")? {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => return Err(thinking.wrong("type", "`enabled`, `adaptive` or `disabled`")),
        },
    };
    body.insert("chat_template_kwargs".into(), json!({"enable_thinking": thinking}));
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        messages.push(json!({"role": "system", "content": text_of(system, "system")?}));
    }
    fields.required("messages")?;
    for (i, message) in fields.array("messages")?.unwrap_or_default().iter().enumerate() {
        translate_message(&Fields::within(message, format!("messages[{i}]"))?, &mut messages)?;
    }
    body.insert("messages".into(), json!(messages));
    if let Some(tools) = fields.array("tools")? {
        let tools = tools.iter().enumerate().map(|(i, tool)| {
            let tool = Fields::within(tool, format!("tools[{i}]"))?;
            let (name, about) = (tool.required("name")?, tool.get("description"));
            let parameters = tool.required("input_schema")?;
            let function =
                json!({"name": name, "description": about.unwrap_or(&json!("")), "parameters": parameters});
            Ok(json!({"type": "function", "function": function}))
        });
        body.insert("tools".into(), tools.collect::<Result<_, ApiError>>()?);
    }
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
            _ => return Err(choice.wrong("type", "`auto`, `any`, `tool` or `none`")),
        };
        let one = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
        body.insert("parallel_tool_calls".into(), json!(!one));
    }
    Ok(body)
}

/// A message of blocks: results of tools become messages of their own, before the text that comes with them.
fn translate_message(fields: &Fields<'_>, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    fields.required("role")?;
    let role = match fields.string("role")? {
        Some(role @ ("user" | "assistant")) => role,
        _ => return Err(fields.wrong("role", "`user` or `assistant`")),
    };
    let blocks = match fields.required("content")? {
        Value::Array(blocks) => blocks,
        Value::String(text) => {
            messages.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        _ => return Err(fields.wrong("content", "a string or an array of blocks")),
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let mut only_results = false;
    for (i, block) in blocks.iter().enumerate() {
        let block = Fields::within(block, format!("{}[{i}]", fields.path("content")))?;
        block.required("type")?;
        match (role, block.string("type")?.unwrap_or_default()) {
            (_, "text") => text += block.string("text")?.unwrap_or_default(),
            ("assistant", "thinking") => reasoning += block.string("thinking")?.unwrap_or_default(),
            ("assistant", "redacted_thinking") => {}
            ("assistant", "tool_use") => {
                let (name, input) = (block.required("name")?, block.required("input")?);
                let function = json!({"name": name, "arguments": input});
                calls.push(json!({"id": block.get("id"), "type": "function", "function": function}));
            }
            ("user", "tool_result") => {
                let path = block.path("content");
                let content = block.get("content").map(|content| text_of(content, &path)).transpose()?;
                let id = block.required("tool_use_id")?;
                messages.push(
                    json!({"role": "tool", "tool_call_id": id, "content": content.unwrap_or_default()}),
                );
                only_results = true;
            }
            (_, kind @ ("image" | "document")) => return Err(not_text(&fields.path("content"), i, kind)),
            _ => return Err(block.wrong("type", "a block that the role can have")),
        }
    }
    if role == "user" {
        if !(only_results && text.is_empty()) {
            messages.push(json!({"role": "user", "content": text}));
        }
        return Ok(());
    }
    let mut message = json!({"role": "assistant", "content": text, "tool_calls": calls});
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    messages.push(message);
    Ok(())
}

/// A string, or blocks of text.
fn text_of(value: &Value, path: &str) -> Result<String, ApiError> {
    let blocks = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        other => return Err(wrong(path.to_owned(), other, "a string or an array of blocks")),
    };
    let text = blocks.iter().enumerate().map(|(i, block)| {
        let block = Fields::within(block, format!("{path}[{i}]"))?;
        match block.string("type")? {
            Some("text") => Ok(block.string("text")?.unwrap_or_default()),
            Some(kind @ ("image" | "document")) => Err(not_text(path, i, kind)),
            _ => Err(block.wrong("type", "`text`")),
        }
    });
    text.collect()
}

fn not_text(path: &str, index: usize, kind: &str) -> ApiError {
    let message = format!("`{path}[{index}]` is of type `{kind}`: the model that is served reads text only");
    ApiError::field(format!("{path}[{index}]"), message)
}

/// Events of a streamed answer.
struct BlockChunks {
    id: String,
    model: String,
    prompt_tokens: usize,
    speech: Speech,
    stops: Vec<String>,
    /// The kind of the block that is open.
    open: Option<&'static str>,
    /// Blocks begun so far.
    blocks: usize,
}

impl BlockChunks {
    /// Opens a block of this kind, unless it is open and can go on.
    fn begin(&mut self, kind: &'static str, block: Value, events: &mut Vec<Value>) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.end(events);
        events.push(json!({"type": "content_block_start", "index": self.blocks, "content_block": block}));
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn end(&mut self, events: &mut Vec<Value>) {
        if self.open.take().is_some() {
            events.push(json!({"type": "content_block_stop", "index": self.blocks - 1}));
        }
    }

    fn part(&mut self, part: Part, events: &mut Vec<Value>) {
        let delta = match part {
            Part::Reasoning(text) => {
                let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                self.begin("thinking", block, events);
                json!({"type": "thinking_delta", "thinking": text})
            }
            Part::Content(text) => {
                self.begin("text", json!({"type": "text", "text": ""}), events);
                json!({"type": "text_delta", "text": text})
            }
            Part::CallBegins { id, name, .. } => {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                return self.begin("tool_use", block, events);
            }
            Part::CallArguments { text, .. } => json!({"type": "input_json_delta", "partial_json": text}),
        };
        events.push(json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta}));
    }
}

impl Chunks for BlockChunks {
    const NAMED: bool = true;

    fn open(&mut self) -> Vec<Value> {
        let usage = json!({"input_tokens": self.prompt_tokens, "output_tokens": 0});
        let message = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
        vec![json!({"type": "message_start", "message": message})]
    }

    fn text(&mut self, _: usize, said: &Said) -> Vec<Value> {
        let mut events = Vec::new();
        self.speech.push(&said.text).into_iter().for_each(|part| self.part(part, &mut events));
        events
    }

    fn done(&mut self, _: usize, outcome: Outcome) -> Vec<Value> {
        let mut events = Vec::new();
        self.speech.finish().into_iter().for_each(|part| self.part(part, &mut events));
        self.end(&mut events);
        let (stop_reason, stop_sequence) = reason(&self.speech, &outcome, &self.stops);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        events.push(json!({"type": "message_delta", "delta": delta, "usage": usage(&outcome),
            "forerun": outcome.report}));
        events
    }

    fn close(&mut self) -> Vec<Value> {
        vec![json!({"type": "message_stop"})]
    }

    fn failed(&mut self, error: &ApiError) -> Value {
        error_object(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(body: Value) -> Result<Value, String> {
        translate(&Fields::of(body.as_object().unwrap())).map(Value::Object).map_err(ApiError::named)
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
    fn what_is_wrong_is_named() {
        let content = |role: &str, block: Value| json!({"max_tokens": 1, "messages": [{"role": role, "content": [block]}]});
        for (body, field) in [
            (json!({"messages": []}), "max_tokens"),
            (json!({"max_tokens": 1}), "messages"),
            (json!({"max_tokens": 1, "system": 3, "messages": []}), "system"),
            (json!({"max_tokens": 1, "thinking": {"type": "much"}, "messages": []}), "thinking.type"),
            (json!({"max_tokens": 1, "messages": [], "tools": [{"name": "f"}]}), "tools[0].input_schema"),
            (json!({"max_tokens": 1, "messages": [], "tool_choice": {"type": "all"}}), "tool_choice.type"),
            (json!({"max_tokens": 1, "messages": [], "tool_choice": {"type": "any"}}), "tool_choice.type"),
            (json!({"max_tokens": 1, "messages": [{"role": "system", "content": "x"}]}), "messages[0].role"),
            (json!({"max_tokens": 1, "messages": [{"role": "user"}]}), "messages[0].content"),
            (content("user", json!({"type": "image"})), "messages[0].content[0]"),
            (content("user", json!({"type": "tool_use"})), "messages[0].content[0].type"),
            (content("user", json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
            (content("assistant", json!({"type": "tool_use", "name": "f"})), "messages[0].content[0].input"),
        ] {
            assert_eq!(translated(body.clone()), Err(field.to_owned()), "{body}");
        }
    }
}
