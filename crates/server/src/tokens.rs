//! `POST /tokenize` and `/detokenize`: what the server makes of a text, and of tokens.

use crate::completions::{encode, read_ids};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::router::{Body, Shared};
use crate::{aliases, chat, known};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::Controls;

/// Tokens of `prompt` (or `content`), or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, ApiError> {
    let (tokens, ignored) = body.read(&shared, read_text).await?;
    let max_model_len = shared.limits.context;
    let answer = Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": max_model_len}));
    Ok(known::tell(answer.into_response(), &ignored))
}

fn read_text(body: &Map<String, Value>, shared: &Shared) -> Result<(Vec<u32>, Vec<String>), ApiError> {
    let ignored = known::check(known::TOKENIZE, body)?;
    let body = aliases::settle(body)?;
    let fields = Fields::of(&body);
    if fields.get("messages").is_some() {
        let tools = fields.array("tools")?.unwrap_or_default();
        return Ok((chat::render(&fields, tools, shared)?.tokens(shared), ignored));
    }
    match (fields.string("prompt")?, fields.string("content")?) {
        (Some(text), _) | (None, Some(text)) => Ok((encode(text, shared), ignored)),
        (None, None) => Err(fields.missing("prompt")),
    }
}

/// The text of `tokens`, control tokens included.
pub(crate) async fn detokenize(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, ApiError> {
    let (text, ignored) = body.read(&shared, read_tokens).await?;
    Ok(known::tell(Json(json!({"prompt": text, "content": text})).into_response(), &ignored))
}

fn read_tokens(body: &Map<String, Value>, shared: &Shared) -> Result<(String, Vec<String>), ApiError> {
    let ignored = known::check(known::DETOKENIZE, body)?;
    let fields = Fields::of(body);
    fields.required("tokens")?;
    let ids = read_ids(fields.array("tokens")?.unwrap_or_default(), "tokens", shared.limits.vocab)?;
    Ok((shared.tokenizer.decode(&ids, Controls::Show), ignored))
}
