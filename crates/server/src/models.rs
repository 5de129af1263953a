//! `GET /v1/models`: what is served, under which names, and what it can do. One object has
//! OpenAI's, Anthropic's, vLLM's and llama.cpp's words for it.

use crate::error::ApiError;
use crate::keys::Keys;
use crate::parts::short;
use crate::responses;
use crate::router::Shared;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Map, Value, json};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use text::{ChatTemplate, Prompt};

/// What every request finds: the models that it may name, and what is none of theirs.
pub(crate) struct Models {
    /// Never empty.
    pub(crate) all: Vec<Arc<Shared>>,
    /// Made when it is first asked for.
    pub(crate) openapi: OnceLock<Value>,
    pub(crate) keys: Option<Keys>,
    /// Responses that are kept, where they are.
    pub(crate) store: Option<Arc<responses::Store>>,
}

impl Models {
    /// The model that is meant where none is named.
    pub(crate) fn first(&self) -> io::Result<&Arc<Shared>> {
        self.all.first().ok_or_else(|| io::Error::other("there is no model to serve"))
    }

    /// The model of that name. A single one answers to any; of several one that is not known is
    /// refused, since another's answer would not be what was asked for.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<&Arc<Shared>, ApiError> {
        let first = self.first().map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(asked) = name.filter(|_| self.all.len() > 1) else { return Ok(first) };
        // Ollama's clients add a tag to a name without one.
        let plain = asked.strip_suffix(":latest").unwrap_or(asked);
        let is_meant = |name: &String| name == asked || name == plain;
        let meant = self.all.iter().find(|model| model.about.names.iter().any(is_meant));
        let known = || self.all.iter().flat_map(|model| model.about.names.clone()).collect();
        meant.ok_or_else(|| ApiError::UnknownModel { asked: short(asked), known: known() })
    }

    /// The model that a body names. One that is no name is refused by who reads the body.
    pub(crate) fn asked(&self, body: &Map<String, Value>) -> Result<&Arc<Shared>, ApiError> {
        self.choose(body.get("model").and_then(Value::as_str))
    }

    /// Why an engine cannot work now, where one is there and cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.all.iter().find_map(|model| model.handle.trouble())
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.all.iter().any(|model| model.handle.is_closing())
    }

    /// Turns new requests away and waits for those under way, at most `limit`; then they are given
    /// up.
    pub(crate) async fn drain(&self, limit: Duration) {
        self.all.iter().for_each(|model| model.handle.close());
        let answers: usize = self.all.iter().map(|model| model.handle.under_way()).sum();
        tracing::info!(answers, limit_s = limit.as_secs(), "draining");
        let end = Instant::now() + limit;
        for model in &self.all {
            model.handle.drain(end).await;
        }
    }
}

/// What is told of a model.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// Names that it is asked for by, the first of them its own.
    pub(crate) names: Vec<String>,
    /// When the server began, in seconds since 1970.
    pub(crate) created: u64,
    /// Tokens of prompt and answer together.
    pub(crate) context: usize,
    /// Tokens that it was trained to read.
    pub(crate) trained_context: usize,
    pub(crate) parameters: u64,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) can: Abilities,
}

/// What can be asked of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    chat: bool,
    tools: bool,
    thinking: bool,
    effort: bool,
}

impl Abilities {
    /// As its chat template shows when it is tried: whether a tool on offer is mentioned, and
    /// whether thinking makes a difference, and how much of it is asked for.
    pub(crate) fn of(template: Option<&ChatTemplate>) -> Self {
        let Some(template) = template else { return Self::default() };
        let messages = [json!({"role": "user", "content": "hi"})];
        let tool = json!({"type": "function", "function": {"name": "offered_tool", "description": "",
            "parameters": {"type": "object", "properties": {}}}});
        let render =
            |prompt: Prompt<'_>| template.render(&Prompt { messages: &messages, ..prompt }).ok();
        let with_tool = render(Prompt { tools: &[tool], ..Prompt::default() });
        let thinking =
            |thinks| render(Prompt { enable_thinking: Some(thinks), ..Prompt::default() });
        let effort = |effort: &str| {
            let extra = Map::from_iter([("reasoning_effort".to_owned(), json!(effort))]);
            render(Prompt { extra, ..Prompt::default() })
        };
        Self {
            chat: true,
            tools: with_tool.is_some_and(|text| text.contains("offered_tool")),
            thinking: thinking(true) != thinking(false),
            effort: effort("low") != effort("high"),
        }
    }

    /// As Anthropic's packages read them, which expect every name that they know; the first four
    /// are ours.
    fn object(self) -> Value {
        let can = |supported: bool| json!({"supported": supported});
        let Self { chat, tools, thinking, effort } = self;
        json!({
            "chat": can(chat), "completion": can(true), "tools": can(tools), "logprobs": can(true),
            "structured_outputs": can(true),
            "thinking": {"supported": thinking, "types": {"adaptive": can(thinking),
                "enabled": can(thinking), "disabled": can(true), "between_tools": can(thinking)}},
            "effort": {"supported": effort, "low": can(effort), "medium": can(effort),
                "high": can(effort), "xhigh": can(effort), "max": can(effort)},
            "image_input": can(false), "pdf_input": can(false), "citations": can(false),
            "batch": can(false), "code_execution": can(false), "context_management": can(false),
            "server_tools": {"supported": false, "web_search": can(false),
                "code_execution": can(false)},
        })
    }
}

impl About {
    /// The name to answer under: the one that was asked for where it is known, else its own.
    pub(crate) fn called(&self, asked: Option<&str>) -> &str {
        let known = self.names.iter().find(|name| Some(name.as_str()) == asked);
        known.or(self.names.first()).map_or("none", String::as_str)
    }

    fn object(&self, name: &str, is_loaded: bool) -> Value {
        let own = self.called(None);
        let seconds = i64::try_from(self.created).unwrap_or(i64::MAX);
        let created_at = jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string();
        json!({
            "id": name, "object": "model", "type": "model", "display_name": name, "owned_by": "forerun",
            "created": self.created, "created_at": created_at, "root": own, "parent": null,
            "status": {"value": if is_loaded { "loaded" } else { "unloaded" }},
            "lifecycle": "active",
            "max_model_len": self.context, "context_length": self.context,
            "max_input_tokens": self.context, "max_tokens": self.context,
            "meta": {"n_ctx_train": self.trained_context, "n_params": self.parameters,
                "n_vocab": self.vocab, "n_embd": self.hidden},
            "capabilities": self.can.object(),
        })
    }
}

/// All names of all models, and whether they are loaded.
pub(crate) async fn list(State(models): State<Arc<Models>>) -> Json<Value> {
    let objects = |model: &Arc<Shared>| {
        let is_loaded = model.handle.is_loaded();
        let named = |name: &String| model.about.object(name, is_loaded);
        model.about.names.iter().map(named).collect::<Vec<Value>>()
    };
    let data: Vec<Value> = models.all.iter().flat_map(objects).collect();
    let id = |object: Option<&Value>| object.map(|object| object["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    Json(
        json!({"object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last}),
    )
}

/// A single model is told of under any name.
pub(crate) async fn one(
    State(models): State<Arc<Models>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let model = models.choose(Some(&name))?;
    let is_loaded = model.handle.is_loaded();
    Ok(Json(model.about.object(model.about.called(Some(&name)), is_loaded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abilities_are_what_the_template_does() {
        let of = |source: &str| Abilities::of(Some(&ChatTemplate::new(source).unwrap()));
        let plain = of("{{ messages[0].content }}");
        assert_eq!(plain, Abilities { chat: true, ..Abilities::default() });
        let able = of(
            "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{% if enable_thinking %}t{% endif %}\
             {{ reasoning_effort }}",
        );
        assert_eq!(able, Abilities { chat: true, tools: true, thinking: true, effort: true });
        assert_eq!(Abilities::of(None), Abilities::default());
    }
}
