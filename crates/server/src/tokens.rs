//! `POST /tokenize` and `/detokenize`: what the server makes of a text, and of tokens. `GET /tokenizer_info`: what else
//! a client must know to count them.

use crate::chat;
use crate::completions::{encode, read_ids};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::router::{Body, Shared};
use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::{Controls, Kind, Specials};

/// Tokens of `prompt` (or `content`), or of `messages` as the chat template renders them.
pub(crate) async fn tokenize(State(shared): State<Arc<Shared>>, body: Body) -> Result<Json<Value>, ApiError> {
    let (tokens, names) = body.read(&shared, read_text).await?;
    let max_model_len = shared.limits.context;
    let (count, names) = (tokens.len(), json!(names));
    Ok(Json(json!({"tokens": tokens, "count": count, "max_model_len": max_model_len, "token_strs": names})))
}

/// The tokens, and their names where those are wanted.
fn read_text(
    body: &Map<String, Value>,
    shared: &Shared,
) -> Result<(Vec<u32>, Option<Vec<String>>), ApiError> {
    let fields = Fields::of(body);
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
    let names = named.then(|| tokens.iter().map(name).collect());
    Ok((tokens, names))
}

/// The tokenizer as `tokenizer_config.json` describes it; evaluators ask before they send tokens.
pub(crate) async fn info(State(shared): State<Arc<Shared>>) -> Json<Value> {
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
    Json(json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "vocab_size": tokenizer.len(),
        "model_max_length": shared.limits.context,
        "add_bos_token": tokenizer.bos().is_some(),
        "bos_token": name(tokenizer.bos()),
        "eos_token": name(tokenizer.eos().or_else(|| tokenizer.ends().first().copied())),
        "pad_token": name(tokenizer.pad()),
        "added_tokens_decoder": added.collect::<Map<_, _>>(),
        "chat_template": shared.template.as_ref().ok().and_then(|template| template.source()),
    }))
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
