//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's form of a chat. A request is
//! translated into OpenAI's form and read as one; answers come back as content blocks.

mod deferred;
mod events;
mod input;
mod tools;

use crate::chat::{self, Chat};
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use crate::job::{Finish, Outcome};
use crate::known;
use crate::models::Models;
use crate::output::{Message, OutputParser};
use crate::router::{Body, Shared};
use crate::settings::random;
use crate::sse::{self, Whole};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use events::BlockChunks;
use input::Translated;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Errors below `/v1/messages` take Anthropic's form, whoever found them.
pub(crate) async fn own_errors(request: Request, next: Next) -> Response {
    let asked = request.uri().path().strip_prefix("/v1/messages");
    let asked = asked.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>().filter(|_| asked).cloned() else {
        return response;
    };
    let (mut head, _) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, error_object(&error).to_string().into())
}

/// Anthropic's error object.
fn error_object(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    };
    let message = match error {
        // Claude Code takes these words, and no others, for a reason to shorten a conversation.
        ApiError::TooLong { tokens, context, .. } => {
            format!("prompt is too long: {tokens} tokens > {context} maximum")
        }
        error => error.to_string(),
    };
    let mut object = json!({"type": "error", "error": {"type": kind, "message": message}});
    // Anthropic's packages go on without a thread where they read this, and give up where they do not.
    if error.field_name() == Some("thread") {
        object["error"]["details"] = json!({"error_code": "thread_unsupported_request"});
    }
    object
}

/// Answers a chat.
pub(crate) async fn messages(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (shared, chat) = body.read(&models, read).await?;
    let Chat { settings, mut job, mut parser, ignored } = chat;
    job.ignored.clone_from(&ignored);
    let id = format!("msg_{:016x}", random());
    let model = shared.about.called(settings.model.as_deref()).to_owned();
    let prompt_tokens = job.prompt.len();
    let stops = settings.stops;
    let events = shared.handle.submit(vec![job]).await?;
    if settings.stream {
        let chunks = BlockChunks::new(id, model, prompt_tokens, parser, stops);
        return Ok(known::tell(sse::stream(events, chunks, 1), &ignored));
    }
    let Some(Whole { delta, outcome }) = sse::collect(events, 1).await?.pop() else {
        return Err(ApiError::Internal("the answer was lost".to_owned()));
    };
    let mut message = Message::default();
    let parts = parser.push(&delta.text);
    parts.into_iter().chain(parser.finish()).for_each(|part| message.add(part));
    let (stop_reason, stop_sequence) = reason(&parser, &outcome, &stops);
    let answer = Json(json!({"id": id, "type": "message", "role": "assistant", "model": model,
        "content": blocks(&message), "stop_reason": stop_reason, "stop_sequence": stop_sequence,
        "usage": usage(&outcome), "forerun": outcome.report}));
    Ok(known::tell(answer.into_response(), &ignored))
}

/// How many tokens a chat would have.
pub(crate) async fn count_tokens(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (tokens, ignored) = match body.read(&models, read_counted).await {
        // Who asks wants to know by how much it is too long.
        Err(ApiError::TooLong { tokens, .. }) => (tokens, Vec::new()),
        read => read.map(|(_, Chat { job, ignored, .. })| (job.prompt.len(), ignored))?,
    };
    Ok(known::tell(Json(json!({"input_tokens": tokens})).into_response(), &ignored))
}

/// Reads a request that need not say how long an answer may be.
pub(crate) fn read_counted(body: &Map<String, Value>, shared: &Shared) -> Result<Chat, ApiError> {
    let mut body = body.clone();
    body.entry("max_tokens").or_insert(json!(1));
    read(&body, shared)
}

fn usage(outcome: &Outcome) -> Value {
    let Outcome { prompt_tokens, completion_tokens, reasoning_tokens, cached_tokens, .. } = outcome;
    json!({"input_tokens": prompt_tokens - cached_tokens, "cache_read_input_tokens": cached_tokens,
        "cache_creation_input_tokens": 0, "output_tokens": completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens}})
}

fn reason<'s>(
    parser: &OutputParser,
    outcome: &Outcome,
    stops: &'s [String],
) -> (&'static str, Option<&'s String>) {
    let stop = outcome.stop.and_then(|index| stops.get(index));
    let reason = match (parser.finish_reason(outcome.finish), outcome.finish) {
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
    let unknown = known::check(known::MESSAGES, body)?;
    let Translated { mut body, changes, ignored } = input::translate(&Fields::of(body))?;
    // Without an answer, the prompt is read for the sake of the cache.
    let is_read_only = body.get("max_tokens").and_then(whole) == Some(0);
    if is_read_only {
        body.insert("max_tokens".into(), json!(1));
    }
    let mut chat = chat::read_known(&body, &changes, shared).map_err(renamed)?;
    if is_read_only {
        chat.job.room = 0;
    }
    chat.ignored.splice(..0, unknown.into_iter().chain(ignored));
    Ok(chat)
}

/// Errors name the fields of this API.
fn renamed(error: ApiError) -> ApiError {
    match error {
        ApiError::Field { field, message } if field == "response_format" => {
            let name = "output_config.format";
            ApiError::field(name, message.replacen("`response_format`", &format!("`{name}`"), 1))
        }
        ApiError::Field { field, message } if field == "stop" || field.starts_with("stop[") => {
            let own = field.replacen("stop", "stop_sequences", 1);
            ApiError::field(own.clone(), message.replacen(&field, &own, 1))
        }
        error => error,
    }
}
