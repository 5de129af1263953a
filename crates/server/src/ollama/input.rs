//! A request of Ollama's API in the form of a chat request. Fields that both know under one name
//! are checked there.

use super::options;
use crate::chat::{self, Chat};
use crate::completions::encode;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages;
use crate::output::OutputParser;
use crate::router::Shared;
use crate::settings::{self, Settings};
use crate::shape::{self, Tools};
use serde_json::{Map, Value, json};

/// A request that was understood.
pub(super) struct Asked {
    pub(super) question: Question,
    /// Fields that were not done; they change nothing but how much fits, or nobody knows them.
    pub(super) ignored: Vec<String>,
}

/// What a request wants.
pub(super) enum Question {
    Answer(Box<Chat>),
    /// Nothing is asked; clients send such a request to have a model loaded or unloaded.
    Load {
        reason: &'static str,
    },
}

/// Fields of both requests. How long a model stays loaded is no question here: it stays. A text
/// that is too long is refused and an answer that reaches the end of the context ends, whatever
/// `truncate` and `shift` say.
const KNOWN: [&str; 12] = [
    "model",
    "forerun",
    "stream",
    "format",
    "options",
    "think",
    "logprobs",
    "top_logprobs",
    "images",
    "keep_alive",
    "truncate",
    "shift",
];
const OF_CHAT: [&str; 2] = ["messages", "tools"];
const OF_GENERATE: [&str; 6] = ["prompt", "system", "raw", "suffix", "template", "context"];

/// Reads a request to `/api/chat`.
pub(super) fn read_chat(body: &Map<String, Value>, shared: &Shared) -> Result<Asked, ApiError> {
    let fields = Fields::of(body);
    let (mut chat, mut ignored) = translate(&fields, shared)?;
    ignored.extend(unknown(&fields, &OF_CHAT));
    let messages = fields.array("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(Asked { question: load(&fields), ignored });
    }
    chat.insert("messages".into(), Value::Array(translate_messages(messages)?));
    if let Some(tools) = fields.array("tools")? {
        chat.insert("tools".into(), tools.iter().map(translate_tool).collect());
    }
    let chat = chat::read(&chat, shared).map_err(|error| renamed(error, "messages"))?;
    Ok(Asked { question: Question::Answer(Box::new(chat)), ignored })
}

/// Reads a request to `/api/generate`.
pub(super) fn read_generate(body: &Map<String, Value>, shared: &Shared) -> Result<Asked, ApiError> {
    let fields = Fields::of(body);
    let (mut chat, mut ignored) = translate(&fields, shared)?;
    ignored.extend(unknown(&fields, &OF_GENERATE));
    let raw = fields.bool("raw")?.unwrap_or(false);
    let given =
        |name: &str| Ok::<_, ApiError>(fields.string(name)?.filter(|text| !text.is_empty()));
    let system = given("system")?;
    if given("suffix")?.is_some() {
        return Err(fields.wrong("suffix", "nothing (the model does not fill in)"));
    }
    if given("template")?.is_some() {
        let expected = "nothing (the model's own template is used; `raw` goes without)";
        return Err(fields.wrong("template", expected));
    }
    if fields.array("context")?.is_some_and(|context| !context.is_empty()) {
        return Err(fields.wrong("context", "nothing (send the conversation to /api/chat)"));
    }
    if raw && system.is_some() {
        return Err(fields.wrong("system", "nothing with `raw`"));
    }
    let Some(prompt) = given("prompt")? else {
        return Ok(Asked { question: load(&fields), ignored });
    };
    let chat = if raw {
        read_raw(&chat, prompt, shared)
    } else {
        let system = system.map(|system| json!({"role": "system", "content": system}));
        let user = json!({"role": "user", "content": prompt});
        chat.insert("messages".into(), system.into_iter().chain([user]).collect());
        chat::read(&chat, shared)
    };
    let chat = chat.map_err(|error| renamed(error, "prompt"))?;
    Ok(Asked { question: Question::Answer(Box::new(chat)), ignored })
}

/// A text that no template surrounds.
fn read_raw(body: &Map<String, Value>, prompt: &str, shared: &Shared) -> Result<Chat, ApiError> {
    let fields = Fields::of(body);
    let settings = Settings::read(&fields, &shared.limits)?;
    let parser = OutputParser::new(prompt, &[], true);
    let mut job = settings.job(encode(prompt, shared), "prompt", 0, &shared.limits)?;
    job.held = shape::held(&fields, &Tools::none(), parser.is_thinking(), &settings, shared)?;
    job.reasoning = Some(parser.reasoning());
    Ok(Chat { settings, job, parser, ignored: Vec::new() })
}

/// Fields that nobody knows.
fn unknown(fields: &Fields<'_>, own: &[&str]) -> Vec<String> {
    let names = fields.entries().map(|(name, _)| name);
    let unknown =
        names.filter(|name| !KNOWN.contains(&name.as_str()) && !own.contains(&name.as_str()));
    unknown.cloned().collect()
}

/// Ollama's word for it: with a stay of 0 the model would go.
fn load(fields: &Fields<'_>) -> Question {
    let stay = fields.get("keep_alive");
    let none = stay.is_some_and(|stay| stay.as_f64() == Some(0.0) || stay == "0" || stay == "0s");
    Question::Load { reason: if none { "unload" } else { "load" } }
}

/// What both requests have in common.
fn translate(
    fields: &Fields<'_>,
    shared: &Shared,
) -> Result<(Map<String, Value>, Vec<String>), ApiError> {
    let mut body = Map::new();
    for name in ["model", "logprobs", "top_logprobs"] {
        if let Some(value) = fields.get(name) {
            body.insert(name.into(), value.clone());
        }
    }
    settings::pass_keep(fields, &mut body)?;
    let own = fields.object("forerun")?;
    let own = own.iter().flat_map(|own| own.entries().map(|(name, _)| name));
    let own = own.filter(|name| *name != "prefill_keep").map(|name| format!("forerun.{name}"));
    let mut ignored: Vec<String> = own.collect();
    // Streams are the rule here.
    body.insert("stream".into(), json!(fields.bool("stream")?.unwrap_or(true)));
    if let Some(options) = fields.object("options")? {
        ignored.extend(options::translate(&options, &shared.limits, &mut body)?);
    }
    match fields.get("think") {
        None => {}
        Some(Value::Bool(true)) if !shared.weights.thinks => {
            return Err(
                fields.wrong("think", "false (the model's chat template knows no thinking)")
            );
        }
        Some(Value::Bool(think)) => {
            body.insert("chat_template_kwargs".into(), json!({"enable_thinking": think}));
        }
        Some(Value::String(effort)) => {
            body.insert("reasoning_effort".into(), json!(effort));
        }
        Some(_) => return Err(fields.wrong("think", "true, false, `low`, `medium` or `high`")),
    }
    match fields.get("format") {
        None => {}
        Some(Value::String(format)) if format.is_empty() => {}
        Some(Value::String(format)) if format == "json" => {
            body.insert("response_format".into(), json!({"type": "json_object"}));
        }
        Some(schema @ Value::Object(_)) => {
            let described = json!({"name": "format", "schema": schema});
            body.insert(
                "response_format".into(),
                json!({"type": "json_schema", "json_schema": described}),
            );
        }
        Some(_) => return Err(fields.wrong("format", "`json` or a JSON schema")),
    }
    refuse_images(fields)?;
    Ok((body, ignored))
}

fn translate_messages(messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    let newest = messages::newest(messages);
    let translated = messages.iter().enumerate().map(|(i, message)| {
        let message = Fields::within(message, format!("messages[{i}]"))?;
        if newest == Some(i) {
            refuse_images(&message)?;
        }
        let mut chat = Map::new();
        let own = [
            ("role", "role"),
            ("thinking", "reasoning_content"),
            ("tool_name", "name"),
            ("tool_call_id", "tool_call_id"),
            ("tool_calls", "tool_calls"),
        ];
        for (name, of_chat) in own {
            if let Some(value) = message.get(name) {
                chat.insert(of_chat.into(), value.clone());
            }
        }
        let mut content = message.get("content").cloned().unwrap_or_else(|| json!(""));
        // Images that were answered once are noted in the text as they are in other APIs.
        let images = message.array("images")?.unwrap_or_default();
        if let (Value::String(text), false) = (&content, images.is_empty()) {
            let text = json!({"type": "text", "text": text});
            let images = images.iter().map(|_| json!({"type": "image_url"}));
            content = [text].into_iter().chain(images).collect();
        }
        chat.insert("content".into(), content);
        Ok(Value::Object(chat))
    });
    translated.collect()
}

/// Tools are functions here, said or not.
fn translate_tool(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(object) = tool.as_object_mut()
        && object.get("type").is_none_or(|kind| kind.is_null() || kind == "")
    {
        object.insert("type".into(), json!("function"));
    }
    tool
}

fn refuse_images(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.array("images")?.unwrap_or_default().len() {
        0 => Ok(()),
        _ => Err(fields.wrong("images", "none (the model that is served reads text only)")),
    }
}

/// Errors name the fields of this API; `text` is the one that has the text.
fn renamed(error: ApiError, text: &'static str) -> ApiError {
    let (field, message) = match error {
        ApiError::TooLong { tokens, context, .. } => {
            return ApiError::TooLong { field: text, tokens, context };
        }
        ApiError::Field { field, message } => (field, message),
        error => return error,
    };
    let options = options::DONE.iter().map(|(new, old)| (*old, format!("options.{new}")));
    let others = [("messages", text), ("response_format", "format"), ("reasoning_effort", "think")];
    let mut names = options.chain(others.map(|(old, new)| (old, new.to_owned())));
    let named = names.find_map(|(old, new)| {
        let rest = field.strip_prefix(old)?;
        let whole = rest.is_empty() || rest.starts_with(['[', '.']);
        whole.then(|| {
            (format!("{new}{rest}"), message.replacen(&format!("`{old}"), &format!("`{new}"), 1))
        })
    });
    let (field, message) = named.unwrap_or((field, message));
    ApiError::Field { field, message }
}
