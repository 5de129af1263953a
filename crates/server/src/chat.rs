//! `POST /v1/chat/completions`: messages in, an answer out, whole or as a stream.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::job::{Delta, Job, Origin, Outcome, Progress};
use crate::models::Models;
use crate::output::{Message, OutputParser, openai_delta};
pub(crate) use crate::prompt::render;
use crate::router::{Body, Shared, unix_time};
use crate::settings::{Settings, random};
use crate::shape::{self, Changes, Tools};
use crate::sse::{self, Chunks, Whole};
use crate::totals::Totals;
use crate::{aliases, known, legacy, logprobs};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::Tokenizer;

/// A request that was understood.
pub(crate) struct Chat {
    pub(crate) settings: Settings,
    pub(crate) job: Job,
    pub(crate) parser: OutputParser,
    /// What the request asks for and does not get, each by its path: `tools[3]: web_search`. Told
    /// with the answer.
    pub(crate) ignored: Vec<String>,
}

/// Answers a chat.
pub(crate) async fn complete(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (shared, chat) = body.read(&models, read).await?;
    let Chat { settings, mut job, parser, ignored } = chat;
    job.ignored.clone_from(&ignored);
    let answers = settings.choices;
    let (prompt_logprobs, first) = (job.scores, job.prompt[0]);
    let id = format!("chatcmpl-{:016x}", random());
    let totals = Totals::new(answers).for_prompts([job.prompt.len()], settings.continuous_usage);
    let events = shared.handle.submit(vec![job]).await?;
    let (created, model) = (unix_time(), shared.about.called(settings.model.as_deref()).to_owned());
    if settings.stream {
        let parsers = vec![parser; answers];
        let include_usage = settings.include_usage;
        let tokenizer = Arc::clone(&shared.tokenizer);
        let legacy = settings.legacy;
        let chunks =
            ChatChunks { id, created, model, parsers, totals, include_usage, legacy, tokenizer };
        return Ok(known::tell(sse::stream(events, chunks, answers), &ignored));
    }
    let mut totals = totals;
    let mut choices = Vec::with_capacity(answers);
    let mut prompt_told = None;
    for (index, whole) in sse::collect(events, answers).await?.into_iter().enumerate() {
        let Whole { delta, outcome } = whole;
        let mut parser = parser.clone();
        let mut message = Message::default();
        let parts = parser.push(&delta.text);
        parts.into_iter().chain(parser.finish()).for_each(|part| message.add(part));
        let mut reason = parser.finish_reason(outcome.finish);
        let mut message = message.object();
        if settings.legacy {
            (message, reason) = (legacy::former(message), legacy::former_reason(reason));
        }
        let logprobs =
            settings.likelihoods.map(|_| logprobs::of_chat(&delta.likelihoods, &shared.tokenizer));
        choices
            .push(json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}));
        totals.add(index, outcome);
        if let Some(top) = prompt_logprobs.filter(|_| index == 0) {
            prompt_told = Some(logprobs::of_prompt(first, &delta.scores, top, &shared.tokenizer));
        }
    }
    let object = "chat.completion";
    let (usage, forerun) = (totals.usage(), totals.forerun());
    let mut answer = json!({"id": id, "object": object, "created": created, "model": model, "choices": choices,
        "usage": usage, "forerun": forerun});
    if let Some(told) = prompt_told {
        answer["prompt_logprobs"] = told;
    }
    Ok(known::tell(Json(answer).into_response(), &ignored))
}

/// Reads a request.
pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Chat, ApiError> {
    let ignored = known::check(known::CHAT, body)?;
    let mut chat = read_known(body, &Changes::default(), shared)?;
    chat.ignored.splice(..0, ignored);
    Ok(chat)
}

/// Reads a request whose fields are known, or that was made of one; `changes` are what its messages
/// tell of tools.
pub(crate) fn read_known(
    body: &Map<String, Value>,
    changes: &Changes,
    shared: &Shared,
) -> Result<Chat, ApiError> {
    let body = aliases::settle(body)?;
    let modern = legacy::modern(&body)?;
    let fields = Fields::of(modern.as_ref().unwrap_or(&body));
    let settings = Settings::read(&fields, &shared.limits)?;
    let tools = Tools::read(&fields)?;
    let listed = tools.offered.iter().filter(|tool| !changes.tells_of(tool));
    let prompt = render(&fields, listed, shared)?;
    let mut parser = OutputParser::new(&prompt.text, &tools.offered, tools.parallel);
    let tools = tools.left_by(changes)?;
    if let Some(thinking) = prompt.goes_on {
        parser.goes_on(thinking);
    }
    let mut job = settings.job(prompt.tokens(shared), "messages", 0, &shared.limits)?;
    job.reasoning = Some(parser.reasoning());
    job.scores = logprobs::read_prompt_top(&fields, settings.stream)?;
    if let Some(top) = job.scores {
        logprobs::check_size("prompt_logprobs", job.prompt.len() * settings.choices, top)?;
    }
    job.check_wish()?;
    job.held = shape::held(&fields, &tools, parser.is_thinking(), &settings, shared)?;
    if job.held.grammar.is_some() && prompt.goes_on == Some(false) {
        let message = "an answer that goes on in the middle cannot be held to a form: leave out \
            `continue_final_message` (or the assistant's last message), or what asks for the form";
        return Err(ApiError::field("continue_final_message", message));
    }
    if !job.stops.is_empty() {
        parser.stop_at(std::mem::take(&mut job.stops), settings.include_stop);
        job.parser = Some(parser.clone());
    }
    Ok(Chat { settings, job, parser, ignored: Vec::new() })
}

/// Chunks of a streamed chat.
struct ChatChunks {
    id: String,
    created: u64,
    model: String,
    parsers: Vec<OutputParser>,
    totals: Totals,
    include_usage: bool,
    legacy: bool,
    tokenizer: Arc<Tokenizer>,
}

impl ChatChunks {
    fn chunk(&self, choices: Value) -> Value {
        let Self { id, created, model, .. } = self;
        let object = "chat.completion.chunk";
        let mut chunk = json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        self.totals.tell(&mut chunk, self.include_usage);
        chunk
    }

    fn delta(&self, index: usize, delta: Value) -> Value {
        let delta = if self.legacy { legacy::former(delta) } else { delta };
        self.chunk(
            json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]),
        )
    }
}

impl ChatChunks {
    /// A chunk for each token, with its text, as far as that is certain, and where the token came
    /// from.
    fn told_by_token(&mut self, choice: usize, text: &str, origins: &[Origin]) -> Vec<Value> {
        let mut chunks = Vec::with_capacity(origins.len());
        let mut start = 0;
        for Origin { bytes, drafted, proposed } in origins {
            let parts = self.parsers[choice].push(&text[start..start + bytes]);
            start += bytes;
            let mut deltas: Vec<Value> = parts.into_iter().map(openai_delta).collect();
            if deltas.is_empty() {
                deltas.push(json!({}));
            }
            let first = chunks.len();
            chunks.extend(deltas.into_iter().map(|delta| self.delta(choice, delta)));
            chunks[first]["forerun"] = json!({"drafted": drafted});
            if let Some(proposed) = proposed {
                chunks[first]["forerun"]["round"] = json!({"drafted": proposed});
            }
        }
        chunks
    }
}

impl Chunks for ChatChunks {
    fn open(&mut self) -> Vec<Value> {
        let first = json!({"role": "assistant", "content": ""});
        (0..self.parsers.len()).map(|index| self.delta(index, first.clone())).collect()
    }

    fn read(&mut self, progress: Progress) -> Vec<Value> {
        let mut chunk = self.chunk(json!([]));
        chunk["forerun"] = json!({"progress": progress});
        // The same in llama.cpp's words.
        let Progress { read, of, cached, ms } = progress;
        let same = json!({"total": of, "cache": cached, "processed": read, "time_ms": ms});
        chunk["prompt_progress"] = same;
        vec![chunk]
    }

    fn text(&mut self, choice: usize, delta: &Delta) -> Vec<Value> {
        let Delta { text, likelihoods, origins, .. } = delta;
        self.totals.count(choice, delta);
        let mut chunks = self.told_by_token(choice, text, origins);
        let rest = &text[origins.iter().map(|origin| origin.bytes).sum()..];
        let parts = self.parsers[choice].push(rest);
        chunks.extend(parts.into_iter().map(|part| self.delta(choice, openai_delta(part))));
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
        let parts = self.parsers[choice].finish();
        let mut chunks: Vec<Value> =
            parts.into_iter().map(|part| self.delta(choice, openai_delta(part))).collect();
        let reason = self.parsers[choice].finish_reason(outcome.finish);
        let reason = if self.legacy { legacy::former_reason(reason) } else { reason };
        let end =
            json!([{"index": choice, "delta": {}, "logprobs": null, "finish_reason": reason}]);
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
