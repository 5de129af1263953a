//! What a client is told when a request fails: OpenAI's error object under an HTTP status.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use thiserror::Error;

/// Why a request got no answer.
#[derive(Clone, Debug, Error, PartialEq)]
#[allow(missing_docs)]
pub enum ApiError {
    /// A field has a value that it cannot have.
    #[error("{message}")]
    Field { field: String, message: String },
    /// The body is no JSON object.
    #[error("the body is not a JSON object: {0}")]
    Body(String),
    /// The body is larger than the server reads.
    #[error("the body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    /// The body did not come.
    #[error("the body has not come within {seconds} seconds")]
    Slow { seconds: u64 },
    /// The body is not declared as JSON.
    #[error("the content type is `{found}`, `application/json` was expected")]
    ContentType { found: String },
    /// More tokens than the context holds. Agents know the words by which a context is called too
    /// short, and shorten their conversations.
    #[error(
        "the prompt has {tokens} tokens, but the maximum context length is {context} tokens, \
         the answer included"
    )]
    TooLong { field: &'static str, tokens: usize, context: usize },
    /// No key, or one that is not known.
    #[error("no valid API key was given: send `Authorization: Bearer KEY`")]
    Key,
    /// The request was meant for somebody else.
    #[error("the `Host` of the request is not this machine, which is all that is served here")]
    Host,
    /// Nothing is served there.
    #[error("nothing is served at {path}{}", meant.map_or(String::new(), |path| format!(", but at {path}")))]
    NotFound { path: String, meant: Option<&'static str> },
    /// A thing that is asked for by its name is not there.
    #[error("{0}")]
    Absent(String),
    /// Served, but not with this method.
    #[error("{0}")]
    Method(String),
    /// The queue is full.
    #[error("{waiting} requests are in the works, as many as the server takes: try again later")]
    Busy { waiting: usize },
    /// Too much of the same work is being done.
    #[error("{0}")]
    Crowded(String),
    /// Not even alone does the text fit the memory that there is.
    #[error("there is no memory for a text of {tokens} tokens, not even for it alone")]
    NoRoom { tokens: usize },
    /// No model has that name.
    #[error("no model is called `{asked}`: there {}", listed(known))]
    UnknownModel { asked: String, known: Vec<String> },
    /// A model that is asked for cannot be had.
    #[error("`{model}` cannot be loaded: {reason}")]
    NotLoaded { model: String, reason: String },
    /// The device went away, and all state of answers with it.
    #[error("the device was lost while the answer was written: try again later")]
    DeviceLost,
    /// The server is about to end.
    #[error("the server is shutting down")]
    Closing,
    /// The request took longer than the server allows.
    #[error("the request took longer than {seconds} seconds")]
    Deadline { seconds: u64 },
    /// Our own fault.
    #[error("the server failed: {0}")]
    Internal(String),
}

impl ApiError {
    /// A field with a wrong value; `message` says what was expected.
    pub(crate) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { field: field.into(), message: message.into() }
    }

    /// The HTTP status.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Field { .. } | Self::Body(_) | Self::TooLong { .. } => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Key => StatusCode::UNAUTHORIZED,
            Self::Host => StatusCode::FORBIDDEN,
            Self::NotFound { .. } | Self::Absent(_) | Self::UnknownModel { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Busy { .. } | Self::Crowded(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Closing | Self::NoRoom { .. } | Self::NotLoaded { .. } | Self::DeviceLost => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Deadline { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The kind of error in a word, for the log and for `/metrics`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Field { .. } => "field",
            Self::Body(_) => "body",
            Self::TooLarge { .. } => "too_large",
            Self::Slow { .. } => "slow",
            Self::ContentType { .. } => "content_type",
            Self::TooLong { .. } => "too_long",
            Self::Key => "key",
            Self::Host => "host",
            Self::NotFound { .. } | Self::Absent(_) => "not_found",
            Self::Method(_) => "method",
            Self::Busy { .. } | Self::Crowded(_) => "busy",
            Self::Closing => "closing",
            Self::NoRoom { .. } => "no_room",
            Self::UnknownModel { .. } => "unknown_model",
            Self::NotLoaded { .. } => "not_loaded",
            Self::DeviceLost => "device_lost",
            Self::Deadline { .. } => "deadline",
            Self::Internal(_) => "internal",
        }
    }

    /// The field that is to blame.
    pub(crate) fn field_name(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } => Some(field),
            Self::TooLong { field, .. } => Some(field),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// The field that is named, for tests.
    #[cfg(test)]
    pub(crate) fn named(self) -> String {
        self.object()["error"]["param"].as_str().unwrap_or("none").to_owned()
    }

    /// OpenAI's error object.
    pub(crate) fn object(&self) -> Value {
        let param = self.field_name();
        let (kind, code) = match self {
            Self::TooLong { .. } => ("invalid_request_error", Some("context_length_exceeded")),
            Self::Key => ("invalid_request_error", Some("invalid_api_key")),
            Self::NotFound { .. } => ("invalid_request_error", Some("unknown_url")),
            Self::Busy { .. } | Self::Crowded(_) => {
                ("rate_limit_error", Some("rate_limit_exceeded"))
            }
            Self::Closing => ("server_error", Some("shutting_down")),
            Self::NoRoom { .. } => ("server_error", Some("out_of_memory")),
            Self::UnknownModel { .. } => ("invalid_request_error", Some("model_not_found")),
            Self::NotLoaded { .. } => ("server_error", Some("model_not_loaded")),
            Self::DeviceLost => ("server_error", Some("device_lost")),
            Self::Deadline { .. } => ("server_error", Some("timeout")),
            Self::Internal(_) => ("server_error", None),
            _ => ("invalid_request_error", None),
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": param, "code": code}})
    }
}

/// `are `a`, `b` and `c``, for people.
fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match names.split_last() {
        Some((last, [])) => format!("is {last}"),
        Some((last, others)) => format!("are {} and {last}", others.join(", ")),
        None => "is none".to_owned(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(self.object())
    }
}

impl ApiError {
    /// A response with this body, and the status and headers that the error asks for.
    pub(crate) fn respond(&self, body: Value) -> Response {
        let mut response = (self.status(), Json(body)).into_response();
        // For the log, and for whoever says it in other words.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        match self {
            Self::Busy { .. } | Self::Crowded(_) | Self::Closing | Self::DeviceLost => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Key => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
