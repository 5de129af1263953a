//! `POST /tokenize` and `/detokenize`: what the server makes of a text, and of tokens. `GET
//! /tokenizer_info`: what else a client must know to count them.

use crate::completions::{encode, read_ids};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;
use crate::responses::parameter;
use crate::router::{Body, Shared};
use crate::{aliases, chat, known};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::{Controls, Kind, Specials};

/// What a text is made of.
#[derive(Serialize)]
struct Tokenized {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: usize,
    /// Their names, where those are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Tokens of `prompt` (or `content`), or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (_, (told, ignored)) = body.read(&models, read_text).await?;
    let answer = ([(header::CONTENT_TYPE, "application/json")], told).into_response();
    Ok(known::tell(answer, &ignored))
}

/// The answer as it is sent, and what was ignored: of a long text the answer is long itself, and
/// written where the text is read.
pub(crate) fn read_text(
    body: &Map<String, Value>,
    shared: &Shared,
) -> Result<(String, Vec<String>), ApiError> {
    let ignored = known::check(known::TOKENIZE, body)?;
    let body = aliases::settle(body)?;
    let fields = Fields::of(&body);
    let tokens = if fields.get("messages").is_some() {
        let tools = fields.array("tools")?.unwrap_or_default();
        chat::render(&fields, tools, shared)?.tokens(shared)
    } else {
        match (fields.string("prompt")?, fields.string("content")?) {
            (Some(text), _) | (None, Some(text)) => match fields.bool("add_special_tokens")? {
                Some(false) => shared.tokenizer.encode(text, Specials::Parse),
                _ => encode(text, shared),
            },
            (None, None) => return Err(fields.missing("prompt")),
        }
    };
    let named = fields.bool("return_token_strs")?.unwrap_or(false);
    let name = |token: &u32| shared.tokenizer.decode(&[*token], Controls::Show);
    let token_strs = named.then(|| tokens.iter().map(name).collect());
    let max_model_len = shared.limits.context;
    let told = Tokenized { count: tokens.len(), max_model_len, tokens, token_strs };
    let told =
        serde_json::to_string(&told).map_err(|error| ApiError::Internal(error.to_string()))?;
    Ok((told, ignored))
}

/// The tokenizer as `tokenizer_config.json` describes it; evaluators ask before they send tokens.
/// Of several models the first's, unless the query names another.
pub(crate) async fn info(
    State(models): State<Arc<Models>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let shared = models.choose(parameter(query.as_deref(), "model"))?;
    let tokenizer = &shared.tokenizer;
    let name = |token: Option<u32>| token.map(|token| tokenizer.decode(&[token], Controls::Show));
    let added = (0..tokenizer.len() as u32).filter_map(|id| {
        let special = match tokenizer.kind(id) {
            Kind::Control => true,
            Kind::UserDefined => false,
            Kind::Normal | Kind::Unused => return None,
        };
        let token = tokenizer.decode(&[id], Controls::Show);
        Some((id.to_string(), json!({"content": token, "special": special})))
    });
    Ok(Json(json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "vocab_size": tokenizer.len(),
        "model_max_length": shared.limits.context,
        "add_bos_token": tokenizer.bos().is_some(),
        "bos_token": name(tokenizer.bos()),
        "eos_token": name(tokenizer.eos().or_else(|| tokenizer.ends().first().copied())),
        "pad_token": name(tokenizer.pad()),
        "added_tokens_decoder": added.collect::<Map<_, _>>(),
        "chat_template": shared.template.as_ref().ok().and_then(|template| template.source()),
    })))
}

/// The text of `tokens`, control tokens included.
pub(crate) async fn detokenize(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (_, (text, ignored)) = body.read(&models, read_tokens).await?;
    Ok(known::tell(Json(json!({"prompt": text, "content": text})).into_response(), &ignored))
}

pub(crate) fn read_tokens(
    body: &Map<String, Value>,
    shared: &Shared,
) -> Result<(String, Vec<String>), ApiError> {
    let ignored = known::check(known::DETOKENIZE, body)?;
    let fields = Fields::of(body);
    fields.required("tokens")?;
    let ids = read_ids(fields.array("tokens")?.unwrap_or_default(), "tokens", shared.limits.vocab)?;
    Ok((shared.tokenizer.decode(&ids, Controls::Show), ignored))
}
