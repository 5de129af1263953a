//! `/api/...`: Ollama's API, for editors and interfaces that know nothing else. A request is
//! translated into a chat and read as one; answers come back as lines of JSON, or as one object.
//! Models are those that the server was started with, so what would fetch, make or remove models is
//! refused.

mod about;
mod input;
mod lines;
mod options;

pub(crate) use about::About;
pub use about::Facts;

use crate::chat::Chat;
use crate::error::ApiError;
use crate::known;
use crate::models::Models;
use crate::router::{Body, Shared};
use crate::routes;
use crate::sse::{self, Whole};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use input::{Asked, Question};
use lines::{Form, Lines};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Paths that are asked for by name.
pub(crate) const PATHS: [&str; 6] =
    ["/api/chat", "/api/generate", "/api/tags", "/api/show", "/api/ps", "/api/version"];

/// Reads a request to `/api/chat`; none where nothing is asked.
pub(crate) fn read_chat(
    body: &Map<String, Value>,
    shared: &Shared,
) -> Result<Option<Chat>, ApiError> {
    Ok(match input::read_chat(body, shared)?.question {
        Question::Answer(chat) => Some(*chat),
        Question::Load { .. } => None,
    })
}

/// Ollama's error object.
pub(crate) struct OllamaError(ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        self.0.respond(error_object(&self.0))
    }
}

fn error_object(error: &ApiError) -> Value {
    json!({"error": error.to_string()})
}

/// The paths below `/api`.
pub(crate) fn routes(models: &Arc<Models>) -> Router<Arc<Models>> {
    let fixed = "the server has the models that it was started with: models are neither made, \
        copied, removed nor pushed here";
    let no_embeddings = "this server writes text: it has no embeddings";
    let refused =
        |why: &'static str| any(move || async move { refuse(StatusCode::NOT_IMPLEMENTED, why) });
    Router::new()
        .route("/chat", post(chat))
        .route("/generate", post(generate))
        .route("/tags", get(about::tags))
        .route("/show", post(about::show))
        .route("/ps", get(about::ps))
        .route("/version", get(about::version))
        .route("/pull", post(about::pull))
        .route("/embed", refused(no_embeddings))
        .route("/embeddings", refused(no_embeddings))
        .route("/create", refused(fixed))
        .route("/copy", refused(fixed))
        .route("/delete", refused(fixed))
        .route("/push", refused(fixed))
        .route("/blobs/{digest}", refused(fixed))
        .route_layer(middleware::from_fn_with_state(Arc::clone(models), check_key))
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_path)
        .layer(middleware::from_fn(take_as_json))
}

fn refuse(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({"error": why}))).into_response()
}

async fn check_key(State(models): State<Arc<Models>>, request: Request, next: Next) -> Response {
    match &models.keys {
        Some(keys) if !keys.open(request.headers()) => OllamaError(ApiError::Key).into_response(),
        _ => next.run(request).await,
    }
}

async fn no_such_path(uri: Uri) -> OllamaError {
    OllamaError(routes::unknown(&format!("/api{}", uri.path())))
}

async fn no_such_method(request: Request) -> OllamaError {
    let message = format!("/api{} does not answer {}", request.uri().path(), request.method());
    OllamaError(ApiError::Method(message))
}

/// Ollama's own examples post JSON with curl and do not say that it is JSON. What browsers send
/// says where it comes from, and is held to the type as everywhere.
async fn take_as_json(mut request: Request, next: Next) -> Response {
    let headers = request.headers_mut();
    let from_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let plain = match headers.get(header::CONTENT_TYPE) {
        None => true,
        Some(kind) => kind == "application/x-www-form-urlencoded",
    };
    if plain && !from_page {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    next.run(request).await
}

async fn chat(
    State(models): State<Arc<Models>>,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    answer(models, body?, input::read_chat, Form::Chat).await
}

async fn generate(
    State(models): State<Arc<Models>>,
    body: Result<Body, ApiError>,
) -> Result<Response, OllamaError> {
    answer(models, body?, input::read_generate, Form::Generate).await
}

async fn answer(
    models: Arc<Models>,
    body: Body,
    read: fn(&Map<String, Value>, &Shared) -> Result<Asked, ApiError>,
    form: Form,
) -> Result<Response, OllamaError> {
    let (shared, Asked { question, mut ignored }) = body.read(&models, read).await?;
    let chat = match question {
        Question::Answer(chat) => *chat,
        Question::Load { reason } => {
            if reason == "load" {
                shared.handle.load().await?;
            }
            let nothing = Json(lines::nothing(form, shared.about.called(None), reason));
            return Ok(known::tell(nothing.into_response(), &known::named(ignored)));
        }
    };
    ignored.extend(chat.ignored);
    let ignored = known::named(ignored);
    let Chat { settings, job, parser, .. } = chat;
    let events = shared.handle.submit(vec![job]).await?;
    let tokenizer = Arc::clone(&shared.tokenizer);
    let called = shared.about.called(None).to_owned();
    let mut lines = Lines::new(form, called, parser, tokenizer, ignored.clone());
    if settings.stream {
        return Ok(known::tell(sse::lines(events, lines), &ignored));
    }
    let Some(Whole { delta, outcome }) = sse::collect(events, 1).await?.pop() else {
        return Err(ApiError::Internal("the answer was lost".to_owned()).into());
    };
    Ok(known::tell(Json(lines.whole(&delta, outcome)).into_response(), &ignored))
}
