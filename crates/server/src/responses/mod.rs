//! `POST /v1/responses`: OpenAI's Responses API. A request is translated into a chat and read as one; answers come back
//! as items, whole or as a stream of events. Nothing is stored.

mod events;
mod input;
mod plain;
mod tools;

use crate::chat::{self, Chat};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::known;
use crate::router::{Body, Shared, unix_time};
use crate::settings::random;
use crate::sse::{self, Chunks, Whole};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use events::ItemChunks;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tools::{Forms, Offer};

/// Answers a request.
pub(crate) async fn respond(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, ApiError> {
    let (Chat { settings, mut job, speech, ignored }, mut head, forms) = body.read(&shared, read).await?;
    job.ignored.clone_from(&ignored);
    head["model"] = json!(shared.model.called(settings.model.as_deref()));
    head["temperature"] = json!(settings.sampling.temperature);
    head["top_p"] = json!(settings.sampling.top_p);
    let news = shared.handle.submit(vec![job])?;
    let mut chunks = ItemChunks::new(head, speech, forms, Arc::clone(&shared.tokenizer));
    if settings.stream {
        return Ok(known::tell(sse::stream(news, chunks, 1), &ignored));
    }
    let Some(Whole { said, outcome }) = sse::collect(news, 1).await?.pop() else {
        return Err(ApiError::Internal("the answer was lost".to_owned()));
    };
    // The events of the whole answer at once; the last of them has the response.
    chunks.open();
    chunks.text(0, &said);
    let last = chunks.done(0, outcome).pop();
    let answer = Json(last.map(|mut event| event["response"].take()));
    Ok(known::tell(answer.into_response(), &ignored))
}

/// Reads a request; also tells what a response repeats of it, and what calls come back as.
pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<(Chat, Value, Forms), ApiError> {
    let unknown = known::check(known::RESPONSES, body)?;
    let fields = Fields::of(body);
    let (chat, Offer { forms, ignored, .. }) = input::translate(&fields)?;
    let mut chat = chat::read_known(&chat, shared).map_err(renamed)?;
    chat.ignored.splice(..0, unknown.into_iter().chain(ignored));
    let repeated = |name: &str, absent: Value| fields.get(name).cloned().unwrap_or(absent);
    let head = json!({
        "id": format!("resp_{:016x}", random()), "object": "response", "created_at": unix_time(),
        "status": "in_progress", "error": null, "incomplete_details": null,
        "instructions": fields.get("instructions"), "max_output_tokens": fields.get("max_output_tokens"),
        "model": "", "output": [], "parallel_tool_calls": repeated("parallel_tool_calls", json!(true)),
        "previous_response_id": null, "reasoning": repeated("reasoning", json!({"effort": null, "summary": null})),
        "store": false, "temperature": null, "text": repeated("text", json!({"format": {"type": "text"}})),
        "tool_choice": repeated("tool_choice", json!("auto")), "tools": repeated("tools", json!([])),
        "top_p": null, "truncation": "disabled", "usage": null, "user": fields.get("user"),
        "metadata": repeated("metadata", json!({})),
    });
    Ok((chat, head, forms))
}

/// Errors name the fields of this API.
fn renamed(error: ApiError) -> ApiError {
    let names =
        [("messages", "input"), ("response_format", "text.format"), ("reasoning_effort", "reasoning.effort")];
    match error {
        ApiError::Field { field, message } => match names.iter().find(|(name, _)| *name == field) {
            Some((old, new)) => {
                ApiError::field(*new, message.replacen(&format!("`{old}`"), &format!("`{new}`"), 1))
            }
            None => ApiError::Field { field, message },
        },
        ApiError::TooLong { tokens, context, .. } => ApiError::TooLong { field: "input", tokens, context },
        error => error,
    }
}
