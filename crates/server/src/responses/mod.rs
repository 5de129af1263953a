//! `/v1/responses`: OpenAI's Responses API. A request is translated into a chat and read as one;
//! answers come back as items, whole or as a stream of events. Responses are kept where the server
//! was told to.

mod events;
mod input;
mod kept;
mod plain;
mod recall;
mod store;
mod tools;

pub(crate) use kept::{fetch, input_items, parameter, remove};
pub(crate) use store::Store;

use crate::chat::{self, Chat};
use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::known;
use crate::models::Models;
use crate::router::{Body, Shared, unix_time};
use crate::settings::random;
use crate::shape::Changes;
use crate::sse::{self, Chunks, Whole};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use events::{ItemChunks, Thinking};
use recall::Recalled;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tools::{Forms, Offer};

/// A request that was understood.
pub(crate) struct Asked {
    pub(crate) chat: Chat,
    /// What the response repeats of it.
    head: Value,
    /// What calls come back as.
    forms: Forms,
    thinking: Thinking,
    /// All items that the answer depends on, where the response is kept.
    input: Option<Vec<Value>>,
}

/// Answers a request.
pub(crate) async fn respond(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (shared, asked) = body.read(&models, read).await?;
    let Asked { chat, mut head, forms, thinking, input } = asked;
    let Chat { settings, mut job, parser, ignored } = chat;
    job.ignored.clone_from(&ignored);
    head["model"] = json!(shared.about.called(settings.model.as_deref()));
    head["temperature"] = json!(settings.sampling.temperature);
    head["top_p"] = json!(settings.sampling.top_p);
    let keep = shared.store.clone().zip(input);
    head["store"] = json!(keep.is_some());
    let events = shared.handle.submit(vec![job]).await?;
    let mut chunks = ItemChunks::new(head, parser, forms, thinking, keep);
    if settings.stream {
        return Ok(known::tell(sse::stream(events, chunks, 1), &ignored));
    }
    let Some(Whole { delta, outcome }) = sse::collect(events, 1).await?.pop() else {
        return Err(ApiError::Internal("the answer was lost".to_owned()));
    };
    // The events of the whole answer at once; the last of them has the response.
    chunks.open();
    chunks.text(0, &delta);
    let last = chunks.done(0, outcome).pop();
    let answer = Json(last.map(|mut event| event["response"].take()));
    Ok(known::tell(answer.into_response(), &ignored))
}

/// How many tokens the input of a request would have.
pub(crate) async fn count(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (tokens, ignored) = match body.read(&models, read).await {
        // Who asks wants to know by how much it is too long.
        Err(ApiError::TooLong { tokens, .. }) => (tokens, Vec::new()),
        read => read.map(|(_, Asked { chat, .. })| (chat.job.prompt.len(), chat.ignored))?,
    };
    let answer = json!({"object": "response.input_tokens", "input_tokens": tokens});
    Ok(known::tell(Json(answer).into_response(), &ignored))
}

/// Reads a request.
pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Asked, ApiError> {
    let unknown = known::check(known::RESPONSES, body)?;
    let said = Fields::of(body);
    let Recalled { body: whole, before } = recall::recall(body, shared.store.as_deref())?;
    let fields = Fields::of(&whole);
    let own = |error| recall::own(error, before);
    let (chat, Offer { forms, ignored, .. }) = input::translate(&fields).map_err(own)?;
    let mut chat = chat::read_known(&chat, &Changes::default(), shared).map_err(renamed)?;
    chat.ignored.splice(..0, unknown.into_iter().chain(ignored));
    let thinking = read_thinking(&fields)?;
    chat.ignored.extend(not_included(&fields)?);
    let kept = said.bool("store")?.unwrap_or(true) && shared.store.is_some();
    let input = kept.then(|| fields.array("input").ok().flatten().unwrap_or_default());
    let input = input.map(|items| items.iter().cloned().map(recall::told).collect());
    let repeated = |name: &str, absent: Value| said.get(name).cloned().unwrap_or(absent);
    let head = json!({
        "id": format!("resp_{:016x}", random()), "object": "response", "created_at": unix_time(),
        "status": "in_progress", "error": null, "incomplete_details": null,
        "instructions": said.get("instructions"), "max_output_tokens": said.get("max_output_tokens"),
        "model": "", "output": [], "parallel_tool_calls": repeated("parallel_tool_calls", json!(true)),
        "previous_response_id": said.get("previous_response_id"),
        "reasoning": repeated("reasoning", json!({"effort": null, "summary": null})),
        "store": false, "temperature": null, "text": repeated("text", json!({"format": {"type": "text"}})),
        "tool_choice": repeated("tool_choice", json!("auto")), "tools": repeated("tools", json!([])),
        "top_p": null, "truncation": "disabled", "usage": null, "user": said.get("user"),
        "metadata": repeated("metadata", json!({})),
    });
    Ok(Asked { chat, head, forms, thinking, input })
}

/// `reasoning.summary`, and whether thinking is to be sealed.
fn read_thinking(fields: &Fields<'_>) -> Result<Thinking, ApiError> {
    let mut summary = false;
    if let Some(reasoning) = fields.object("reasoning")? {
        for name in ["summary", "generate_summary"] {
            summary |= match reasoning.string(name)? {
                None | Some("none") => false,
                Some("auto" | "concise" | "detailed") => true,
                Some(_) => return Err(reasoning.unlisted(name, "`auto`, `concise` or `detailed`")),
            };
        }
    }
    let include = fields.array("include")?.unwrap_or_default();
    Ok(Thinking {
        summary,
        sealed: include.iter().any(|part| part == "reasoning.encrypted_content"),
    })
}

/// What `include` asks for and is not told. What it says of tools that OpenAI runs is about nothing
/// here.
fn not_included(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let mut missed = Vec::new();
    for (i, part) in fields.array("include")?.unwrap_or_default().iter().enumerate() {
        let Some(name) = part.as_str() else {
            return Err(wrong(format!("{}[{i}]", fields.path("include")), part, "a string"));
        };
        let item = name.split('.').next().unwrap_or_default();
        if name != "reasoning.encrypted_content"
            && !item.ends_with("_call")
            && !item.ends_with("_output")
        {
            missed.push(format!("include: {}", crate::parts::short(name)));
        }
    }
    Ok(missed)
}

/// Errors name the fields of this API.
fn renamed(error: ApiError) -> ApiError {
    let names = [
        ("messages", "input"),
        ("response_format", "text.format"),
        ("reasoning_effort", "reasoning.effort"),
    ];
    match error {
        ApiError::Field { field, message } => match names.iter().find(|(name, _)| *name == field) {
            Some((old, new)) => {
                ApiError::field(*new, message.replacen(&format!("`{old}`"), &format!("`{new}`"), 1))
            }
            None => ApiError::Field { field, message },
        },
        ApiError::TooLong { tokens, context, .. } => {
            ApiError::TooLong { field: "input", tokens, context }
        }
        error => error,
    }
}
