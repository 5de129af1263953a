//! Which path leads where, who may take it, and how a body is read.

use crate::error::ApiError;
use crate::handle::Handle;
use crate::log::{self, Log};
use crate::metrics::{self, Metrics};
use crate::models::{About, Models};
use crate::routes::{self, ROUTES, Route};
use crate::settings::Limits;
use crate::{anthropic, hosts, known, ollama, page, responses};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use text::{Beginnings, ChatTemplate, GrammarError, Grammars, Tokenizer};
use tokio::sync::{Semaphore, SemaphorePermit};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

/// Bytes of a body at most.
const MAX_BODY: usize = 16 << 20;
/// Bytes from which on a body takes of what all large ones may.
const LARGE_BODY: usize = 1 << 20;
static LARGE_BODIES: Semaphore = Semaphore::const_new(512 << 20);

/// Bodies that are understood at the same time, one a processor; the others wait, so that many long
/// ones take neither all the processors' time nor all the memory.
static READERS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    Semaphore::new(processors.clamp(2, 16))
});

/// A body must have come by then.
const BODY_PATIENCE: Duration = Duration::from_secs(60);

/// What requests for a model work with, be it loaded or not.
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    /// What is told of the model.
    pub(crate) about: About,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Conversations that were encoded before.
    pub(crate) beginnings: Beginnings,
    /// Or why there is none.
    pub(crate) template: Result<ChatTemplate, String>,
    /// Made when the first is asked for.
    pub(crate) grammars: OnceLock<Result<Grammars, GrammarError>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    /// What Ollama's clients are told of the model.
    pub(crate) weights: ollama::About,
    /// Responses that are kept, where they are.
    pub(crate) store: Option<Arc<responses::Store>>,
}

impl Shared {
    /// What makes grammars over the tokenizer.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(&self.tokenizer));
        grammars.as_ref().map_err(|error| ApiError::Internal(error.to_string()))
    }
}

/// All paths. Pages of the origins in `cors` may take them too; where the server is `loopback` it
/// answers to no other name than this machine's.
pub(crate) fn router(
    models: Arc<Models>,
    log: Log,
    cors: &[HeaderValue],
    loopback: bool,
) -> Router {
    let (open, keyed) = ROUTES.iter().partition::<Vec<&Route>, _>(|route| route.is_open);
    let add = |app: Router<Arc<Models>>, route: &Route| app.route(route.path, (route.serve)());
    let app = keyed.into_iter().fold(Router::new(), add);
    let app = app.route_layer(middleware::from_fn_with_state(Arc::clone(&models), check_key));
    let app = open.into_iter().fold(app, add);
    let app = app
        .nest("/api", ollama::routes(&models))
        .merge(page::routes())
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_path)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::Internal("a panic while answering".to_owned()).into_response()
        }))
        .with_state(models);
    let app = match cors {
        [] => app,
        origins if origins.iter().any(|origin| origin == "*") => {
            app.layer(shares().allow_origin(Any))
        }
        origins => app.layer(shares().allow_origin(origins.to_vec())),
    };
    let app = if loopback { app.layer(middleware::from_fn(check_host)) } else { app };
    app.layer(middleware::from_fn(anthropic::own_errors))
        .layer(middleware::from_fn_with_state(log, log::follow))
}

/// What pages of other origins may send.
fn shares() -> CorsLayer {
    let methods = [Method::GET, Method::POST, Method::DELETE];
    let shares =
        CorsLayer::new().allow_methods(methods).allow_headers(AllowHeaders::mirror_request());
    shares.expose_headers([log::REQUEST_ID, known::HEADER])
}

async fn check_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match host {
        Some(host) if !hosts::is_local(host) => ApiError::Host.into_response(),
        _ => next.run(request).await,
    }
}

async fn check_key(State(models): State<Arc<Models>>, request: Request, next: Next) -> Response {
    match &models.keys {
        Some(keys) if !keys.open(request.headers()) => ApiError::Key.into_response(),
        _ => next.run(request).await,
    }
}

/// Whether the process is any good: one that drains is, one whose engine cannot work is not.
pub(crate) async fn health(State(models): State<Arc<Models>>) -> Response {
    let (code, status) = match (models.trouble(), models.is_closing()) {
        (Some(trouble), _) => (StatusCode::SERVICE_UNAVAILABLE, trouble),
        (None, true) => (StatusCode::OK, "draining".to_owned()),
        (None, false) => (StatusCode::OK, "ok".to_owned()),
    };
    (code, Json(json!({"status": status}))).into_response()
}

/// Whether the next request should come here.
pub(crate) async fn ready(State(models): State<Arc<Models>>) -> Response {
    let closing = models.is_closing().then(|| "draining".to_owned());
    match models.trouble().or(closing) {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(status) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response()
        }
    }
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(crate) async fn metrics(State(models): State<Arc<Models>>, headers: HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok());
    let is_open = accepted.is_some_and(|kinds| kinds.contains("application/openmetrics-text"));
    let kind = match is_open {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    let page = metrics::page(models.all.iter().map(|model| &*model.metrics), is_open);
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

async fn no_such_path(uri: Uri) -> ApiError {
    routes::unknown(uri.path())
}

async fn no_such_method(request: Request) -> ApiError {
    ApiError::Method(format!("{} does not answer {}", request.uri().path(), request.method()))
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The body of a request, not yet understood, and its part of the memory for large ones.
pub(crate) struct Body(Bytes, Option<SemaphorePermit<'static>>);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // A page in a browser may send other types anywhere without asking; JSON it may not.
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let essence = kind
            .unwrap_or("none")
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        if essence != "application/json" && !essence.ends_with("+json") {
            return Err(ApiError::ContentType { found: essence });
        }
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        // Who does not say how much it is mostly sends little.
        let length = length.and_then(|length| length.parse().ok()).unwrap_or(MAX_BODY / 4);
        if length > MAX_BODY {
            return Err(ApiError::TooLarge { limit: MAX_BODY });
        }
        let large = (length > LARGE_BODY).then(|| LARGE_BODIES.try_acquire_many(length as u32));
        let busy = |_| ApiError::Crowded("many large requests are being read: try again".into());
        let large = large.transpose().map_err(busy)?;
        let bytes = tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, state)).await;
        let bytes = bytes.map_err(|_| ApiError::Slow { seconds: BODY_PATIENCE.as_secs() })?;
        bytes.map(|bytes| Self(bytes, large)).map_err(|error| match error {
            BytesRejection::FailedToBufferBody(error)
                if error.status() == StatusCode::PAYLOAD_TOO_LARGE =>
            {
                ApiError::TooLarge { limit: MAX_BODY }
            }
            error => ApiError::Body(error.body_text()),
        })
    }
}

impl Body {
    /// Parses the body and reads it for the model that it names, away from the threads that serve
    /// connections: long texts take a while.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        models: &Arc<Models>,
        read: fn(&Map<String, Value>, &Shared) -> Result<T, ApiError>,
    ) -> Result<(Arc<Shared>, T), ApiError> {
        let models = Arc::clone(models);
        let turn = READERS.acquire().await;
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let Self(bytes, _large) = self;
            let body: Map<String, Value> = serde_json::from_slice(&bytes)
                .map_err(|error| ApiError::Body(error.to_string()))?;
            let shared = models.asked(&body)?;
            let is_chosen = models.all.len() > 1;
            Ok((Arc::clone(shared), read(&body, shared), is_chosen))
        });
        let panicked = |_| Err(ApiError::Internal("a panic while reading the request".to_owned()));
        let (shared, asked, is_chosen) = work.await.unwrap_or_else(panicked)?;
        if let Some(record) = log::current().filter(|_| is_chosen) {
            record.choose(&shared.metrics);
        }
        Ok((shared, asked?))
    }
}
