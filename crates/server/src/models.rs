//! `GET /v1/models`: what is served, under which names, and what it can do. One object has
//! OpenAI's, Anthropic's, vLLM's and llama.cpp's words for it.

use crate::router::Shared;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;
use text::{ChatTemplate, Prompt};

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
}

impl Abilities {
    /// As its chat template shows when it is tried: whether a tool on offer is mentioned, and
    /// whether thinking makes a difference.
    pub(crate) fn of(template: Option<&ChatTemplate>) -> Self {
        let Some(template) = template else { return Self::default() };
        let messages = [json!({"role": "user", "content": "hi"})];
        let tool = json!({"type": "function", "function": {"name": "offered_tool", "description": "",
            "parameters": {"type": "object", "properties": {}}}});
        let render = |tools: &[Value], thinking: Option<bool>| {
            let prompt = Prompt {
                messages: &messages,
                tools,
                enable_thinking: thinking,
                ..Prompt::default()
            };
            template.render(&prompt).ok()
        };
        let with_tool = render(&[tool], None);
        Self {
            chat: true,
            tools: with_tool.is_some_and(|text| text.contains("offered_tool")),
            thinking: render(&[], Some(true)) != render(&[], Some(false)),
        }
    }
}

impl About {
    /// The name to answer under: the one that was asked for where it is known, else its own.
    pub(crate) fn called(&self, asked: Option<&str>) -> &str {
        let known = self.names.iter().find(|name| Some(name.as_str()) == asked);
        known.or(self.names.first()).map_or("none", String::as_str)
    }

    fn object(&self, name: &str) -> Value {
        let own = self.called(None);
        let seconds = i64::try_from(self.created).unwrap_or(i64::MAX);
        let created_at = jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string();
        let Abilities { chat, tools, thinking } = self.can;
        json!({
            "id": name, "object": "model", "type": "model", "display_name": name, "owned_by": "forerun",
            "created": self.created, "created_at": created_at, "root": own, "parent": null,
            "max_model_len": self.context, "context_length": self.context,
            "meta": {"n_ctx_train": self.trained_context, "n_params": self.parameters,
                "n_vocab": self.vocab, "n_embd": self.hidden},
            "capabilities": {"chat": chat, "completion": true, "tools": tools, "thinking": thinking,
                "structured_output": true, "logprobs": true, "vision": false},
        })
    }
}

/// All names of the model that is served.
pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let about = &shared.about;
    let data: Vec<Value> = about.names.iter().map(|name| about.object(name)).collect();
    Json(json!({"object": "list", "data": data, "has_more": false,
        "first_id": about.names.first(), "last_id": about.names.last()}))
}

/// Any name is served by the model that is loaded.
pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
) -> Json<Value> {
    let about = &shared.about;
    Json(about.object(about.called(Some(&name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abilities_are_what_the_template_does() {
        let of = |source: &str| Abilities::of(Some(&ChatTemplate::new(source).unwrap()));
        let plain = of("{{ messages[0].content }}");
        assert_eq!(plain, Abilities { chat: true, tools: false, thinking: false });
        let able = of(
            "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{% if enable_thinking %}t{% endif %}",
        );
        assert_eq!(able, Abilities { chat: true, tools: true, thinking: true });
        assert_eq!(Abilities::of(None), Abilities::default());
    }
}
