//! `POST /v1/completions`: plain text or tokens, continued as they are.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use crate::job::{Delta, Finish, Job, Outcome};
use crate::models::Models;
use crate::router::{Body, Shared, unix_time};
use crate::settings::{Settings, random};
use crate::shape::{self, Tools};
use crate::sse::{self, Chunks, Whole};
use crate::totals::Totals;
use crate::{known, logprobs};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::sampling::Likelihood;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use text::{Controls, Specials, Tokenizer};

/// Tokens of an answer where the request does not say, as at OpenAI.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Prompts of a request at most, as at OpenAI.
const MAX_PROMPTS: usize = 2048;

/// A request that was understood.
pub(crate) struct Completion {
    settings: Settings,
    jobs: Vec<Job>,
    form: Form,
    /// What the request asks for and does not get, each by its path. Told with the answer.
    ignored: Vec<String>,
}

impl Completion {
    /// The job of a request that has one prompt.
    pub(crate) fn into_job(mut self) -> Result<Job, ApiError> {
        match (self.jobs.pop(), self.jobs.is_empty()) {
            (Some(job), true) => Ok(job),
            _ => Err(ApiError::field("prompt", "`prompt` has to be one prompt")),
        }
    }
}

/// What answers are to look like.
struct Form {
    /// By prompt.
    heads: Vec<Head>,
    /// Answers to each prompt.
    choices: usize,
    /// Whether the prompt comes before its answers.
    echo: bool,
    /// Likeliest tokens to tell beside each, where likelihoods are wanted.
    logprobs: Option<usize>,
    /// The same of the prompt's tokens, apart from the answer's.
    prompt_logprobs: Option<usize>,
    tokenizer: Arc<Tokenizer>,
}

/// The beginning of what is told.
struct Head {
    /// The prompt, where the request wants it back.
    text: String,
    /// The prompt's first token.
    first: u32,
}

/// Continues prompts.
pub(crate) async fn complete(
    State(models): State<Arc<Models>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (shared, completion) = body.read(&models, read).await?;
    let Completion { settings, mut jobs, form, ignored } = completion;
    jobs.iter_mut().for_each(|job| job.ignored.clone_from(&ignored));
    let answers = jobs.len() * settings.choices;
    let prompts = jobs.iter().map(|job| job.prompt.len());
    let totals = Totals::new(settings.choices).for_prompts(prompts, settings.continuous_usage);
    let events = shared.handle.submit(jobs).await?;
    let id = format!("cmpl-{:016x}", random());
    let (created, model) = (unix_time(), shared.about.called(settings.model.as_deref()).to_owned());
    if settings.stream {
        let include_usage = settings.include_usage;
        let begun = vec![None; answers];
        let chunks = TextChunks { id, created, model, form, totals, include_usage, begun };
        return Ok(known::tell(sse::stream(events, chunks, answers), &ignored));
    }
    let wholes = sse::collect(events, answers).await?;
    let compose = move || {
        let (choices, totals) = form.choices(wholes, totals);
        let (usage, forerun) = (totals.usage(), totals.forerun());
        Json(json!({"id": id, "object": "text_completion", "created": created, "model": model,
            "choices": choices, "usage": usage, "forerun": forerun}))
        .into_response()
    };
    // What is told about long prompts is long itself.
    let composed = tokio::task::spawn_blocking(compose).await;
    let composed =
        composed.map_err(|_| ApiError::Internal("a panic while telling the answer".to_owned()))?;
    Ok(known::tell(composed, &ignored))
}

impl Form {
    /// The choices of a response that is whole.
    fn choices(&self, wholes: Vec<Whole>, mut totals: Totals) -> (Vec<Value>, Totals) {
        let mut choices = Vec::with_capacity(wholes.len());
        for (index, Whole { delta, outcome }) in wholes.into_iter().enumerate() {
            let head = self.head(index);
            let mut choice =
                choice(index, &format!("{}{}", head.text, delta.text), Some(outcome.finish));
            if self.logprobs.is_some() {
                choice["logprobs"] = match self.echo {
                    true => {
                        let prompt = logprobs::told_prompt(head.first, &delta.scores);
                        self.logprobs(prompt.chain(logprobs::told(&delta.likelihoods)), &mut 0)
                    }
                    false => self.logprobs(logprobs::told(&delta.likelihoods), &mut 0),
                };
            }
            if let Some(top) = self.prompt_logprobs {
                let told = logprobs::of_prompt(head.first, &delta.scores, top, &self.tokenizer);
                choice["prompt_logprobs"] = told;
            }
            choices.push(choice);
            totals.add(index, outcome);
        }
        (choices, totals)
    }

    fn head(&self, choice: usize) -> &Head {
        &self.heads[choice / self.choices]
    }

    fn logprobs<'l>(
        &self,
        told: impl Iterator<Item = logprobs::Told<'l>>,
        offset: &mut usize,
    ) -> Value {
        logprobs::of_text(told, self.logprobs.unwrap_or(0), &self.tokenizer, offset)
    }
}

fn choice(index: usize, text: &str, finish: Option<Finish>) -> Value {
    let reason = finish.map(|finish| match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    });
    json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason})
}

pub(crate) fn read(body: &Map<String, Value>, shared: &Shared) -> Result<Completion, ApiError> {
    let ignored = known::check(known::COMPLETIONS, body)?;
    let fields = Fields::of(body);
    let mut settings = Settings::read_from(&fields, &shared.limits, 0)?;
    // Who says -1 wants no limit, who says nothing takes the usual one.
    if ["max_tokens", "max_completion_tokens", "n_predict"]
        .iter()
        .all(|name| fields.get(name).is_none())
    {
        settings.max_tokens = Some(DEFAULT_MAX_TOKENS);
    }
    let choices = settings.choices;
    let echo = fields.bool("echo")?.unwrap_or(false);
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.wrong("suffix", "nothing"));
    }
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best| best != choices as i64) {
        return Err(fields.wrong("best_of", "the same as `n`"));
    }
    let prompt_logprobs = logprobs::read_prompt_top(&fields, settings.stream)?;
    let logprobs = settings.likelihoods;
    let scores = prompt_logprobs.max(logprobs.filter(|_| echo));
    let prompts = read_prompts(&fields, shared)?;
    if let Some(top) = scores {
        let tokens: usize = prompts.iter().map(|(_, tokens)| tokens.len() * choices).sum();
        let field = if prompt_logprobs.is_some() { "prompt_logprobs" } else { "logprobs" };
        logprobs::check_size(field, tokens, top)?;
    }
    let held = shape::held(&fields, &Tools::none(), false, &settings, shared)?;
    let mut jobs = Vec::with_capacity(prompts.len());
    let mut heads = Vec::with_capacity(prompts.len());
    for (i, (text, tokens)) in prompts.into_iter().enumerate() {
        let whole = tokens.len();
        let tokens = settings.kept(tokens, &shared.limits);
        let text = match text {
            _ if !echo => String::new(),
            Some(text) if tokens.len() == whole => text.to_owned(),
            _ => shared.tokenizer.decode(&tokens, Controls::Show),
        };
        let first = tokens.first().copied().unwrap_or_default();
        let job = settings.job(tokens, "prompt", i * choices, &shared.limits)?;
        let job = Job { scores, tells_ends: true, held: held.clone(), ..job };
        job.check_wish()?;
        jobs.push(job);
        heads.push(Head { text, first });
    }
    let tokenizer = Arc::clone(&shared.tokenizer);
    let form = Form { heads, choices, echo, logprobs, prompt_logprobs, tokenizer };
    Ok(Completion { settings, jobs, form, ignored })
}

/// The text of a prompt, where it was one, and its tokens.
type ReadPrompt<'b> = (Option<&'b str>, Vec<u32>);

/// A text, several texts, tokens, or several lists of tokens: each with its tokens, and its text
/// where it was one.
fn read_prompts<'b>(fields: &Fields<'b>, shared: &Shared) -> Result<Vec<ReadPrompt<'b>>, ApiError> {
    let path = || fields.path("prompt");
    let vocab = shared.limits.vocab;
    let bare = fields.bool("add_special_tokens")? == Some(false);
    let prompts = match fields.required("prompt")? {
        Value::Array(prompts) if prompts.first().is_some_and(|p| p.is_number()) => {
            return Ok(vec![(None, read_ids(prompts, &path(), vocab)?)]);
        }
        Value::Array(prompts) => prompts.as_slice(),
        prompt => std::slice::from_ref(prompt),
    };
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        return Err(fields.wrong("prompt", &format!("1 to {MAX_PROMPTS} prompts")));
    }
    let read = prompts.iter().enumerate().map(|(i, prompt)| match prompt {
        Value::String(text) if bare => {
            Ok((Some(text.as_str()), shared.tokenizer.encode(text, Specials::Parse)))
        }
        Value::String(text) => Ok((Some(text.as_str()), encode(text, shared))),
        Value::Array(ids) => Ok((None, read_ids(ids, &format!("{}[{i}]", path()), vocab)?)),
        other => Err(wrong(path(), other, "a string, an array of tokens or an array of either")),
    });
    read.collect()
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
    form: Form,
    totals: Totals,
    include_usage: bool,
    /// Characters of each answer so far, as its tokens tell them, once there are any.
    begun: Vec<Option<usize>>,
}

impl TextChunks {
    fn chunk(&self, choices: Value) -> Value {
        let Self { id, created, model, .. } = self;
        let object = "text_completion";
        let mut chunk = json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        self.totals.tell(&mut chunk, self.include_usage);
        chunk
    }

    /// Whether prompts come with likelihoods, so that they can be told only when they have been
    /// read.
    fn scores_echo(&self) -> bool {
        self.form.echo && self.form.logprobs.is_some()
    }

    /// Begins an answer: with the prompt, where that has waited for its likelihoods.
    fn begin(&mut self, index: usize, scores: &[Likelihood]) -> Vec<Value> {
        if self.begun[index].is_some() {
            return Vec::new();
        }
        let mut offset = 0;
        let mut chunks = Vec::new();
        if self.scores_echo() {
            let head = self.form.head(index);
            let mut choice = choice(index, &head.text, None);
            let told = logprobs::told_prompt(head.first, scores);
            choice["logprobs"] = self.form.logprobs(told, &mut offset);
            chunks.push(self.chunk(json!([choice])));
        }
        self.begun[index] = Some(offset);
        chunks
    }
}

impl Chunks for TextChunks {
    fn open(&mut self) -> Vec<Value> {
        if !self.form.echo || self.scores_echo() {
            return Vec::new();
        }
        let echo = |index: usize| choice(index, &self.form.head(index).text, None);
        (0..self.begun.len()).map(|index| self.chunk(json!([echo(index)]))).collect()
    }

    fn text(&mut self, index: usize, delta: &Delta) -> Vec<Value> {
        self.totals.count(index, delta);
        let mut chunks = self.begin(index, &delta.scores);
        if !delta.text.is_empty() || !delta.likelihoods.is_empty() {
            let mut choice = choice(index, &delta.text, None);
            if let Some(offset) =
                self.begun[index].as_mut().filter(|_| !delta.likelihoods.is_empty())
            {
                choice["logprobs"] = self.form.logprobs(logprobs::told(&delta.likelihoods), offset);
            }
            chunks.push(self.chunk(json!([choice])));
        }
        chunks
    }

    fn done(&mut self, index: usize, outcome: Outcome) -> Vec<Value> {
        let mut chunks = self.begin(index, &[]);
        let (finish, report) = (outcome.finish, json!(outcome.report));
        self.totals.add(index, outcome);
        let mut end = self.chunk(json!([choice(index, "", Some(finish))]));
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
