//! What is served, in Ollama's words: the models, their details, and which are loaded.

use super::{OllamaError, refuse};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Models;
use crate::router::{Body, Shared};
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The version of Ollama whose API this is: the first that tells logprobs. Clients compare it to
/// find out what they may ask; editors want at least 0.6.4.
const VERSION: &str = "0.12.11";

/// A model goes when another needs its place; clients want a date.
const NEVER: &str = "2200-01-01T00:00:00Z";

/// What is known of the weights that are served.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The architecture's name in a GGUF.
    pub family: &'static str,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// The model's shape by the names that a GGUF has for it, such as `block_count`.
    pub shape: Vec<(&'static str, usize)>,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of them in the memory of a device.
    pub device_bytes: u64,
    /// The type that most of the bytes have, such as `Q4_K`.
    pub level: String,
}

/// What is told of the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    facts: Facts,
    template: String,
    /// Whether the template knows thinking.
    pub(crate) thinks: bool,
}

impl About {
    /// For a model with that template.
    pub(crate) fn new(facts: Facts, template: String) -> Self {
        let thinks = template.contains("<think>");
        Self { facts, template, thinks }
    }

    fn details(&self) -> Value {
        let Facts { family, format, parameters, level, .. } = &self.facts;
        let size = match *parameters as f64 {
            few if few < 1e6 => format!("{:.1}K", few / 1e3),
            some if some < 1e9 => format!("{:.1}M", some / 1e6),
            many => format!("{:.1}B", many / 1e9),
        };
        json!({"parent_model": "", "format": format, "family": family, "families": [family],
            "parameter_size": size, "quantization_level": level})
    }

    fn capabilities(&self) -> Vec<&'static str> {
        let tools = self.template.contains("tools");
        let known = [("completion", true), ("tools", tools), ("thinking", self.thinks)];
        known.into_iter().filter(|(_, known)| *known).map(|(name, _)| name).collect()
    }
}

/// What `/api/tags` and `/api/ps` both say.
fn model_object(shared: &Shared) -> Value {
    let (name, about) = (shared.about.called(None), &shared.weights);
    json!({"name": name, "model": name, "size": about.facts.bytes, "digest": digest(shared),
        "details": about.details()})
}

/// Tells this model from another by its name and shape. The weights are not hashed: that would read
/// all of them.
fn digest(shared: &Shared) -> String {
    let word = |i: u64| {
        let mut hasher = DefaultHasher::new();
        (i, shared.about.called(None), shared.weights.facts.parameters, shared.weights.facts.bytes)
            .hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    (0..4).map(word).collect()
}

/// The model is as old as the server.
fn modified_at(shared: &Shared) -> String {
    Timestamp::from_second(shared.about.created as i64).unwrap_or_default().to_string()
}

pub(super) async fn tags(State(models): State<Arc<Models>>) -> Json<Value> {
    let told = |shared: &Arc<Shared>| {
        let mut model = model_object(shared);
        model["modified_at"] = json!(modified_at(shared));
        model["capabilities"] = json!(shared.weights.capabilities());
        model
    };
    Json(json!({"models": models.all.iter().map(told).collect::<Vec<Value>>()}))
}

pub(super) async fn ps(State(models): State<Arc<Models>>) -> Json<Value> {
    let told = |shared: &Arc<Shared>| {
        let mut model = model_object(shared);
        model["size_vram"] = json!(shared.weights.facts.device_bytes);
        model["context_length"] = json!(shared.limits.context);
        model["expires_at"] = json!(NEVER);
        model
    };
    let loaded = models.all.iter().filter(|model| model.handle.is_loaded());
    Json(json!({"models": loaded.map(told).collect::<Vec<Value>>()}))
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

/// A single model is told of under any name.
pub(super) async fn show(
    State(models): State<Arc<Models>>,
    body: Result<Body, ApiError>,
) -> Result<Json<Value>, OllamaError> {
    let (_, (name, _)) = body?.read(&models, read_name).await?;
    let shared = models.choose(Some(&name))?;
    let (about, context) = (&shared.weights, shared.limits.context);
    let family = about.facts.family;
    let mut info = Map::new();
    info.insert("general.architecture".into(), json!(family));
    info.insert("general.basename".into(), json!(shared.about.called(None)));
    info.insert("general.parameter_count".into(), json!(about.facts.parameters));
    // What can be asked, which may be less than the model was trained for.
    info.insert(format!("{family}.context_length"), json!(context));
    info.extend(
        about.facts.shape.iter().map(|(name, number)| (format!("{family}.{name}"), json!(number))),
    );
    let sampling = &shared.limits.sampling;
    let parameters = format!(
        "num_ctx {context}\ntemperature {}\ntop_k {}\ntop_p {}\nmin_p {}\nrepeat_penalty {}",
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty
    );
    Ok(Json(
        json!({"modelfile": format!("FROM {}\n", shared.about.called(None)), "parameters": parameters,
        "template": about.template, "details": about.details(), "model_info": info,
        "capabilities": about.capabilities(), "modified_at": modified_at(shared)}),
    ))
}

/// What is served is there already; other models cannot be had.
pub(super) async fn pull(
    State(models): State<Arc<Models>>,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    let (_, (name, stream)) = body?.read(&models, read_name).await?;
    let plain = name.strip_suffix(":latest").unwrap_or(&name);
    if !models.all.iter().any(|model| model.about.called(Some(plain)) == plain) {
        let names: Vec<&str> = models.all.iter().map(|model| model.about.called(None)).collect();
        let why = format!(
            "what is served is `{}`: other models cannot be pulled here",
            names.join("`, `")
        );
        return Ok(refuse(StatusCode::NOT_FOUND, &why));
    }
    let success = json!({"status": "success"});
    Ok(match stream {
        true => sse::finished_lines(&[json!({"status": "pulling manifest"}), success]),
        false => Json(success).into_response(),
    })
}

/// The name of a model, under its new name or its old one, and whether news of it are wanted.
fn read_name(body: &Map<String, Value>, _: &Shared) -> Result<(String, bool), ApiError> {
    let fields = Fields::of(body);
    let name = fields.string("model")?.or(fields.string("name")?);
    let name = name.ok_or_else(|| fields.missing("model"))?;
    Ok((name.to_owned(), fields.bool("stream")?.unwrap_or(true)))
}
