//! `POST /v1/chat/completions`: messages in, an answer out, whole or as a stream.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Job, Outcome, Said};
use crate::router::{Body, Shared, unix_time};
use crate::settings::{Settings, random};
use crate::shape::{self, Tools};
use crate::speech::{Message, Speech, delta};
use crate::sse::{self, Chunks, Whole};
use crate::totals::Totals;
use crate::{guard, logprobs, messages};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::{Prompt, Specials, TemplateError, Tokenizer};

/// A request that was understood.
pub(crate) struct Chat {
    pub(crate) settings: Settings,
    pub(crate) job: Job,
    pub(crate) speech: Speech,
}

/// Answers a chat.
pub(crate) async fn complete(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, ApiError> {
    let Chat { settings, job, speech } = body.read(&shared, read).await?;
    let answers = settings.choices;
    let id = format!("chatcmpl-{:016x}", random());
    let totals = Totals::new(answers).for_prompts([job.prompt.len()], settings.continuous_usage);
    let news = shared.handle.submit(vec![job])?;
    let (created, model) = (unix_time(), shared.name.clone());
    if settings.stream {
        let speeches = vec![speech; answers];
        let include_usage = settings.include_usage;
        let tokenizer = Arc::clone(&shared.tokenizer);
        let chunks = ChatChunks { id, created, model, speeches, totals, include_usage, tokenizer };
        return Ok(sse::stream(news, chunks, answers));
    }
    let mut totals = totals;
    let mut choices = Vec::with_capacity(answers);
    for (index, whole) in sse::collect(news, answers).await?.into_iter().enumerate() {
        let Whole { said, outcome } = whole;
        let mut speech = speech.clone();
        let mut message = Message::default();
        let parts = speech.push(&said.text);
        parts.into_iter().chain(speech.finish()).for_each(|part| message.add(part));
        let reason = speech.finish_reason(outcome.finish);
        let message = message.object();
        let logprobs = settings.likelihoods.map(|_| logprobs::of_chat(&said.likelihoods, &shared.tokenizer));
        choices
            .push(json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}));
        totals.add(index, outcome);
    }
    let object = "chat.completion";
    let (usage, forerun) = (totals.usage(), totals.forerun());
    Ok(Json(json!({"id": id, "object": object, "created": created, "model": model, "choices": choices,
        "usage": usage, "forerun": forerun}))
    .into_response())
}

/// Reads a request.
pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Chat, ApiError> {
    let fields = Fields::of(body);
    let settings = Settings::read(&fields, &shared.limits)?;
    let tools = Tools::read(&fields)?;
    let prompt = render(&fields, tools.offered, shared)?;
    let speech = Speech::new(&prompt.text, tools.offered, tools.parallel);
    let mut job = settings.job(prompt.tokens(shared), "messages", 0, &shared.limits)?;
    job.grammar = shape::grammar(&fields, &tools, speech.is_thinking(), shared)?;
    job.reasoning = Some(speech.reasoning());
    Ok(Chat { settings, job, speech })
}

/// The text that the model goes on from.
pub(crate) struct Rendered {
    text: String,
    /// Stands inside what looks like a control token in the messages and is none.
    mark: Option<char>,
}

impl Rendered {
    pub(crate) fn tokens(&self, shared: &Shared) -> Vec<u32> {
        match self.mark {
            Some(mark) => shared.tokenizer.encode_marked(&self.text, mark),
            None => shared.tokenizer.encode(&self.text, Specials::Parse),
        }
    }
}

/// Renders the messages of a request, with `tools` on offer.
pub(crate) fn render(fields: &Fields<'_>, tools: &[Value], shared: &Shared) -> Result<Rendered, ApiError> {
    let Some(template) = &shared.template else {
        let message = "the model has no chat template: use /v1/completions";
        return Err(ApiError::field("messages", message));
    };
    let messages = messages::read(fields)?;
    let mut extra = Map::new();
    let mut thinking = match fields.string("reasoning_effort")? {
        None => None,
        Some("none" | "minimal") => Some(false),
        Some("low" | "medium" | "high" | "xhigh") => Some(true),
        Some(_) => {
            let efforts = "`none`, `minimal`, `low`, `medium`, `high` or `xhigh`";
            return Err(fields.wrong("reasoning_effort", efforts));
        }
    };
    if let Some(variables) = fields.object("chat_template_kwargs")? {
        thinking = variables.bool("enable_thinking")?.or(thinking);
        // What the request says elsewhere is not said again here.
        let own = ["messages", "tools", "documents", "add_generation_prompt", "enable_thinking"];
        let others = variables.entries().filter(|(name, _)| !own.contains(&name.as_str()));
        extra.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    }
    let mut said = json!([messages, tools, extra]);
    let mark = guard::mark(&mut said, &shared.tokenizer)?;
    let part = |i: usize| said[i].as_array().map(Vec::as_slice).unwrap_or_default();
    let extra = said[2].as_object().cloned().unwrap_or_default();
    let (messages, tools) = (part(0), part(1));
    let prompt = Prompt { messages, tools, enable_thinking: thinking, extra, ..Prompt::default() };
    let text = template.render(&prompt).map_err(|error| match error {
        TemplateError::Thread(_) => ApiError::Internal(error.to_string()),
        error => ApiError::field("messages", error.to_string()),
    })?;
    Ok(Rendered { text, mark })
}

/// Chunks of a streamed chat.
struct ChatChunks {
    id: String,
    created: u64,
    model: String,
    speeches: Vec<Speech>,
    totals: Totals,
    include_usage: bool,
    tokenizer: Arc<Tokenizer>,
}

impl ChatChunks {
    fn chunk(&self, choices: Value) -> Value {
        let Self { id, created, model, .. } = self;
        let object = "chat.completion.chunk";
        let mut chunk =
            json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        self.totals.tell(&mut chunk, self.include_usage);
        chunk
    }

    fn delta(&self, index: usize, delta: Value) -> Value {
        self.chunk(json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]))
    }
}

impl ChatChunks {
    /// A chunk for each token, with its text, as far as that is certain, and where the token came from.
    fn told_by_token(&mut self, choice: usize, text: &str, origins: &[(usize, bool)]) -> Vec<Value> {
        let mut chunks = Vec::with_capacity(origins.len());
        let mut start = 0;
        for (bytes, drafted) in origins {
            let parts = self.speeches[choice].push(&text[start..start + bytes]);
            start += bytes;
            let mut deltas: Vec<Value> = parts.into_iter().map(delta).collect();
            if deltas.is_empty() {
                deltas.push(json!({}));
            }
            let first = chunks.len();
            chunks.extend(deltas.into_iter().map(|delta| self.delta(choice, delta)));
            chunks[first]["forerun"] = json!({"drafted": drafted});
        }
        chunks
    }
}

impl Chunks for ChatChunks {
    fn open(&mut self) -> Vec<Value> {
        let first = json!({"role": "assistant", "content": ""});
        (0..self.speeches.len()).map(|index| self.delta(index, first.clone())).collect()
    }

    fn text(&mut self, choice: usize, said: &Said) -> Vec<Value> {
        let Said { text, likelihoods, origins, .. } = said;
        self.totals.count(choice, said);
        let mut chunks = self.told_by_token(choice, text, origins);
        let rest = &text[origins.iter().map(|(bytes, _)| bytes).sum()..];
        let parts = self.speeches[choice].push(rest);
        chunks.extend(parts.into_iter().map(|part| self.delta(choice, delta(part))));
        if !likelihoods.is_empty() {
            // Tokens whose text is held back are told on their own.
            if chunks.is_empty() {
                chunks.push(self.delta(choice, json!({})));
            }
            chunks[0]["choices"][0]["logprobs"] = logprobs::of_chat(likelihoods, &self.tokenizer);
        }
        chunks
    }

    fn done(&mut self, choice: usize, outcome: Outcome) -> Vec<Value> {
        let parts = self.speeches[choice].finish();
        let mut chunks: Vec<Value> = parts.into_iter().map(|part| self.delta(choice, delta(part))).collect();
        let reason = self.speeches[choice].finish_reason(outcome.finish);
        let end = json!([{"index": choice, "delta": {}, "logprobs": null, "finish_reason": reason}]);
        let report = json!(outcome.report);
        self.totals.add(choice, outcome);
        let mut end = self.chunk(end);
        end["forerun"] = report;
        chunks.push(end);
        chunks
    }

    fn close(&mut self) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = self.totals.usage();
        chunk["forerun"] = self.totals.forerun();
        vec![chunk]
    }
}
