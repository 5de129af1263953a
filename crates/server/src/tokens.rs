//! `POST /tokenize` and `/detokenize`: what the server makes of a text, and of tokens.

use crate::chat;
use crate::completions::{encode, read_ids};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::router::{Body, Shared};
use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::Controls;

/// Tokens of `prompt` (or `content`), or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(State(shared): State<Arc<Shared>>, body: Body) -> Result<Json<Value>, ApiError> {
    let tokens = body.read(&shared, read_text).await?;
    let max_model_len = shared.limits.context;
    Ok(Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": max_model_len})))
}

fn read_text(body: &Map<String, Value>, shared: &Shared) -> Result<Vec<u32>, ApiError> {
    let fields = Fields::of(body);
    if fields.get("messages").is_some() {
        let tools = fields.array("tools")?.unwrap_or_default();
        return Ok(chat::render(&fields, tools, shared)?.tokens(shared));
    }
    match (fields.string("prompt")?, fields.string("content")?) {
        (Some(text), _) | (None, Some(text)) => Ok(encode(text, shared)),
        (None, None) => Err(fields.missing("prompt")),
    }
}

/// The text of `tokens`, control tokens included.
pub(crate) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let text = body.read(&shared, read_tokens).await?;
    Ok(Json(json!({"prompt": text, "content": text})))
}

fn read_tokens(body: &Map<String, Value>, shared: &Shared) -> Result<String, ApiError> {
    let fields = Fields::of(body);
    fields.required("tokens")?;
    let ids = read_ids(fields.array("tokens")?.unwrap_or_default(), "tokens", shared.limits.vocab)?;
    Ok(shared.tokenizer.decode(&ids, Controls::Show))
}
