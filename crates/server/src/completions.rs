//! `POST /v1/completions`: plain text or tokens, continued as they are.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::job::{Finish, Job, Outcome, Said};
use crate::logprobs;
use crate::router::{Body, Shared, unix_time};
use crate::settings::{Settings, random};
use crate::sse::{self, Chunks, Whole};
use crate::totals::Totals;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::{Controls, Specials, Tokenizer};

/// Tokens of an answer where the request does not say, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

/// A request that was understood.
struct Completion {
    settings: Settings,
    jobs: Vec<Job>,
    /// What comes before each answer: the prompt, where the request wants it back.
    echoes: Vec<String>,
}

/// Continues prompts.
pub(crate) async fn complete(State(shared): State<Arc<Shared>>, body: Body) -> Result<Response, ApiError> {
    let Completion { settings, jobs, echoes } = body.read(&shared, read).await?;
    let answers = jobs.len() * settings.choices;
    let prompts = jobs.iter().map(|job| job.prompt.len());
    let mut totals = Totals::new(settings.choices).for_prompts(prompts, settings.continuous_usage);
    let news = shared.handle.submit(jobs)?;
    let id = format!("cmpl-{:016x}", random());
    let (created, model) = (unix_time(), shared.name.clone());
    if settings.stream {
        let include_usage = settings.include_usage;
        let offsets = echoes.iter().map(|echo| echo.chars().count()).collect();
        let tokenizer = Arc::clone(&shared.tokenizer);
        let chunks = TextChunks { id, created, model, echoes, totals, include_usage, tokenizer, offsets };
        return Ok(sse::stream(news, chunks, answers));
    }
    let mut choices = Vec::with_capacity(answers);
    for (index, whole) in sse::collect(news, answers).await?.into_iter().enumerate() {
        let Whole { said, outcome } = whole;
        let mut offset = echoes[index].chars().count();
        let text = format!("{}{}", echoes[index], said.text);
        let mut choice = choice(index, &text, Some(outcome.finish));
        if settings.likelihoods.is_some() {
            choice["logprobs"] = logprobs::of_text(&said.likelihoods, &shared.tokenizer, &mut offset);
        }
        choices.push(choice);
        totals.add(index, outcome);
    }
    let (usage, forerun) = (totals.usage(), totals.forerun());
    Ok(Json(json!({"id": id, "object": "text_completion", "created": created, "model": model,
        "choices": choices, "usage": usage, "forerun": forerun}))
    .into_response())
}

fn choice(index: usize, text: &str, finish: Option<Finish>) -> Value {
    let reason = finish.map(|finish| match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    });
    json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason})
}

fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Completion, ApiError> {
    let fields = Fields::of(body);
    let mut settings = Settings::read(&fields, &shared.limits)?;
    settings.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    let echo = fields.bool("echo")?.unwrap_or(false);
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.wrong("suffix", "nothing"));
    }
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best| best != settings.choices as i64) {
        return Err(fields.wrong("best_of", "the same as `n`"));
    }
    let prompts = read_prompts(&fields, shared)?;
    if prompts.len() * settings.choices > shared.limits.capacity {
        let most = shared.limits.capacity / settings.choices;
        return Err(fields.wrong("prompt", &format!("at most {most} prompts")));
    }
    let mut jobs = Vec::with_capacity(prompts.len());
    let mut echoes = Vec::new();
    for (i, prompt) in prompts.into_iter().enumerate() {
        let text = if echo { shared.tokenizer.decode(&prompt, Controls::Hide) } else { String::new() };
        echoes.extend(std::iter::repeat_n(text, settings.choices));
        jobs.push(settings.job(prompt, "prompt", i * settings.choices, &shared.limits)?);
    }
    Ok(Completion { settings, jobs, echoes })
}

/// A text, several texts, tokens, or several lists of tokens.
fn read_prompts(fields: &Fields<'_>, shared: &Shared) -> Result<Vec<Vec<u32>>, ApiError> {
    let path = || fields.path("prompt");
    let prompts = match fields.required("prompt")? {
        Value::Array(prompts) if prompts.first().is_some_and(|p| p.is_number()) => {
            return Ok(vec![read_ids(prompts, &path(), shared.limits.vocab)?]);
        }
        Value::Array(prompts) => prompts.as_slice(),
        prompt => std::slice::from_ref(prompt),
    };
    let read = prompts.iter().enumerate().map(|(i, prompt)| match prompt {
        Value::String(text) => Ok(encode(text, shared)),
        Value::Array(ids) => read_ids(ids, &format!("{}[{i}]", path()), shared.limits.vocab),
        other => Err(wrong(path(), other, "a string, an array of tokens or an array of either")),
    });
    let prompts: Vec<Vec<u32>> = read.collect::<Result<_, _>>()?;
    if prompts.is_empty() { Err(fields.wrong("prompt", "at least one prompt")) } else { Ok(prompts) }
}

/// Tokens of a text that no template surrounds.
pub(crate) fn encode(text: &str, shared: &Shared) -> Vec<u32> {
    let tokenizer = &shared.tokenizer;
    tokenizer.bos().into_iter().chain(tokenizer.encode(text, Specials::Parse)).collect()
}

/// Token ids below `vocab`.
pub(crate) fn read_ids(ids: &[Value], path: &str, vocab: usize) -> Result<Vec<u32>, ApiError> {
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().filter(|id| (*id as usize) < vocab).map(|id| id as u32);
        id.ok_or_else(|| wrong(format!("{path}[{i}]"), value, &format!("a token id below {vocab}")))
    };
    ids.iter().enumerate().map(id).collect()
}

/// Chunks of a streamed completion.
struct TextChunks {
    id: String,
    created: u64,
    model: String,
    echoes: Vec<String>,
    totals: Totals,
    include_usage: bool,
    tokenizer: Arc<Tokenizer>,
    /// Characters of each answer so far, as its tokens tell them.
    offsets: Vec<usize>,
}

impl TextChunks {
    fn chunk(&self, choices: Value) -> Value {
        let Self { id, created, model, .. } = self;
        let object = "text_completion";
        let mut chunk =
            json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        self.totals.tell(&mut chunk, self.include_usage);
        chunk
    }
}

impl Chunks for TextChunks {
    fn open(&mut self) -> Vec<Value> {
        let echoes = self.echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty());
        echoes.map(|(index, echo)| self.chunk(json!([choice(index, echo, None)]))).collect()
    }

    fn text(&mut self, index: usize, said: &Said) -> Vec<Value> {
        self.totals.count(index, said);
        let mut choice = choice(index, &said.text, None);
        if !said.likelihoods.is_empty() {
            choice["logprobs"] =
                logprobs::of_text(&said.likelihoods, &self.tokenizer, &mut self.offsets[index]);
        }
        vec![self.chunk(json!([choice]))]
    }

    fn done(&mut self, index: usize, outcome: Outcome) -> Vec<Value> {
        let (finish, report) = (outcome.finish, json!(outcome.report));
        self.totals.add(index, outcome);
        let mut end = self.chunk(json!([choice(index, "", Some(finish))]));
        end["forerun"] = report;
        vec![end]
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
