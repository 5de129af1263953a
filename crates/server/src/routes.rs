//! What is served, in one table: the router is made from it, and `/openapi.json` tells it.

use crate::error::ApiError;
use crate::known;
use crate::models::Models;
use crate::openapi::{self, Asked};
use crate::router;
use crate::{anthropic, chat, completions, loads, models, ollama, responses, tokens};
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::json;
use std::sync::Arc;

/// A path under one method.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    /// `get`, `post` or `delete`, as OpenAPI spells it.
    pub(crate) method: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
    /// What is asked, where there is a body.
    pub(crate) asked: Option<Asked>,
    /// Kinds of answers.
    pub(crate) kinds: &'static [&'static str],
    /// Whether anybody may take it, also where there are keys.
    pub(crate) is_open: bool,
    pub(crate) serve: fn() -> MethodRouter<Arc<Models>>,
}

const JSON: &[&str] = &["application/json"];
const STREAMED: &[&str] = &["application/json", "text/event-stream"];
const TEXT: &[&str] = &["text/plain", "application/openmetrics-text"];

const CHAT: Asked = Asked {
    name: "Chat",
    tables: known::CHAT,
    examples: || vec![json!({"messages": [{"role": "user", "content": "hi"}]})],
    read: |body, shared| chat::read(body, shared).map(drop),
};

const COMPLETION: Asked = Asked {
    name: "Completion",
    tables: known::COMPLETIONS,
    examples: || vec![json!({"prompt": "hi"})],
    read: |body, shared| completions::read(body, shared).map(drop),
};

const RESPONSE: Asked = Asked {
    name: "Response",
    tables: known::RESPONSES,
    examples: || vec![json!({"input": "hi"})],
    read: |body, shared| responses::read(body, shared).map(drop),
};

const COUNTED_RESPONSE: Asked = Asked { name: "CountedResponse", ..RESPONSE };

const MESSAGES: Asked = Asked {
    name: "Messages",
    tables: known::MESSAGES,
    examples: || vec![json!({"max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]})],
    read: |body, shared| anthropic::read(body, shared).map(drop),
};

const COUNTED: Asked = Asked {
    name: "CountedMessages",
    tables: known::MESSAGES,
    examples: || vec![json!({"messages": [{"role": "user", "content": "hi"}]})],
    read: |body, shared| anthropic::read_counted(body, shared).map(drop),
};

const TOKENIZE: Asked = Asked {
    name: "Tokenize",
    tables: known::TOKENIZE,
    examples: || {
        let messages = json!([{"role": "user", "content": "hi"}]);
        vec![json!({"prompt": "hi"}), json!({"content": "hi"}), json!({"messages": messages})]
    },
    read: |body, shared| tokens::read_text(body, shared).map(drop),
};

const DETOKENIZE: Asked = Asked {
    name: "Detokenize",
    tables: known::DETOKENIZE,
    examples: || vec![json!({"tokens": [1]})],
    read: |body, shared| tokens::read_tokens(body, shared).map(drop),
};

const fn asks(
    path: &'static str,
    about: &'static str,
    asked: Asked,
    kinds: &'static [&'static str],
    serve: fn() -> MethodRouter<Arc<Models>>,
) -> Route {
    Route { path, method: "post", about, asked: Some(asked), kinds, is_open: false, serve }
}

const fn tells(
    path: &'static str,
    about: &'static str,
    serve: fn() -> MethodRouter<Arc<Models>>,
) -> Route {
    Route { path, method: "get", about, asked: None, kinds: JSON, is_open: false, serve }
}

const fn open(route: Route) -> Route {
    Route { is_open: true, ..route }
}

/// All of them but the page and Ollama's, which `ollama` has.
pub(crate) const ROUTES: &[Route] = &[
    asks("/v1/chat/completions", "Answers a chat", CHAT, STREAMED, || post(chat::complete)),
    asks("/v1/completions", "Continues texts", COMPLETION, STREAMED, || {
        post(completions::complete)
    }),
    asks("/v1/responses", "Answers a chat, as items", RESPONSE, STREAMED, || {
        post(responses::respond)
    }),
    asks("/v1/responses/input_tokens", "Counts a request's tokens", COUNTED_RESPONSE, JSON, || {
        post(responses::count)
    }),
    tells("/v1/responses/{id}", "Tells a response that was kept", || get(responses::fetch)),
    Route {
        method: "delete",
        ..tells("/v1/responses/{id}", "Forgets a response", || delete(responses::remove))
    },
    tells("/v1/responses/{id}/input_items", "What a response was made from", || {
        get(responses::input_items)
    }),
    asks("/v1/messages", "Answers a chat, as Anthropic does", MESSAGES, STREAMED, || {
        post(anthropic::messages)
    }),
    asks("/v1/messages/count_tokens", "Counts a chat's tokens", COUNTED, JSON, || {
        post(anthropic::count_tokens)
    }),
    tells("/v1/models", "Lists the names of models", || get(models::list)),
    tells("/v1/models/{*name}", "Tells of a model", || get(models::one)),
    asks("/tokenize", "Turns text into tokens", TOKENIZE, JSON, || post(tokens::tokenize)),
    asks("/detokenize", "Turns tokens into text", DETOKENIZE, JSON, || post(tokens::detokenize)),
    tells("/tokenizer_info", "Tells of the tokenizer", || get(tokens::info)),
    Route { kinds: TEXT, ..tells("/metrics", "Counts, for Prometheus", || get(router::metrics)) },
    tells("/v1/loads", "How busy the engine is, for gateways", || get(loads::loads)),
    open(tells("/health", "Whether the process is any good", || get(router::health))),
    open(tells("/ping", "The same", || get(router::health))),
    open(Route { method: "post", ..tells("/ping", "The same", || post(router::health)) }),
    open(tells("/ready", "Whether the next request should come here", || get(router::ready))),
    open(tells("/version", "The version of the program", || get(router::version))),
    open(tells("/openapi.json", "This document", || get(openapi::document))),
];

/// What is said to a request for a path that is not there. Mostly the address that a client was
/// given lacks `/v1` or has it where the client adds it too: then the path that was meant is known.
pub(crate) fn unknown(path: &str) -> ApiError {
    let asked = path.trim_end_matches('/');
    let known = ROUTES.iter().map(|route| route.path).chain(ollama::PATHS);
    let tail = |path: &'static str| path.strip_prefix("/v1").unwrap_or(path);
    let is_meant = |path: &&'static str| asked.ends_with(tail(path));
    let meant = known.filter(is_meant).max_by_key(|path| tail(path).len());
    ApiError::NotFound { path: path.to_owned(), meant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_was_likely_meant_is_named() {
        for (asked, meant) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/v1/messages/count_tokens/", Some("/v1/messages/count_tokens")),
            ("/api/v1/models", Some("/v1/models")),
            ("/completions", Some("/v1/completions")),
            ("/v1/api/tags", Some("/api/tags")),
            ("/v1/tokenize", Some("/tokenize")),
            ("/v1/embeddings", None),
            ("/", None),
        ] {
            let path = asked.to_owned();
            assert_eq!(unknown(asked), ApiError::NotFound { path, meant });
        }
        let told = unknown("/models").to_string();
        assert_eq!(told, "nothing is served at /models, but at /v1/models");
    }

    #[test]
    fn tables_say_each_path_once() {
        let mut all: Vec<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        let tables: Vec<known::Tables> =
            ROUTES.iter().filter_map(|route| Some(route.asked.as_ref()?.tables)).collect();
        assert!(tables.iter().all(|tables| !tables.is_empty()));
    }
}
