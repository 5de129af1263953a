//! What a request says about how to answer, the same for every endpoint: sampling, stops, length,
//! number, streaming.

use crate::completions::read_ids;
use crate::constraint::Held;
use crate::error::ApiError;
use crate::fields::{Fields, whole, wrong};
use crate::job::Job;
use crate::shorten::Shares;
use engine::sampling::Sampling;
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, Hasher};
use std::ops::RangeInclusive;
use text::Controls;

/// Answers to one prompt at most.
const MAX_CHOICES: i64 = 16;
/// Stop strings at most, and bytes of one.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Likeliest tokens told at most.
pub(crate) const MAX_LIKELIEST: i64 = 20;
/// Tokens that end an answer at most, beside the model's own.
const MAX_STOP_TOKENS: usize = 128;
/// OpenAI ends at 2; clients of other servers go on.
const MAX_TEMPERATURE: f64 = 100.0;
/// What is kept of a long prompt at least.
const LEAST_SHARE: f64 = 0.001;
/// Tokens with a bias at most.
const MAX_BIASES: usize = 1024;

/// Fields of vLLM and SGLang that every API takes.
pub(crate) const EXTENSIONS: [&str; 7] = [
    "ignore_eos",
    "min_tokens",
    "min_new_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "bad_words",
    "allowed_token_ids",
];

/// Hands on what every API takes of `forerun`.
pub(crate) fn pass_keep(
    fields: &Fields<'_>,
    body: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    if let Some(own) = fields.object("forerun")?
        && let Some(keep) = own.get("prefill_keep")
    {
        body.insert("forerun".into(), json!({"prefill_keep": keep}));
    }
    Ok(())
}

/// How to answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The name that the model was asked for by.
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    pub(crate) stops: Vec<String>,
    /// Tokens that end an answer, beside the model's own.
    pub(crate) stop_tokens: Vec<u32>,
    /// Whether an answer ends with what ended it.
    pub(crate) include_stop: bool,
    /// Whether the model's own ends are tokens like any other.
    pub(crate) ignore_eos: bool,
    /// Tokens that are written before an answer may end.
    pub(crate) min_tokens: usize,
    /// Whether calls are told as they were before there were tools.
    pub(crate) legacy: bool,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) choices: usize,
    /// Likeliest tokens to tell beside each one written, where likelihoods are wanted.
    pub(crate) likelihoods: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether every chunk tells the usage so far.
    pub(crate) continuous_usage: bool,
    /// Whether to tell which tokens were drafted.
    pub(crate) origins: bool,
    /// Whether to tell how much of the prompt has been read.
    pub(crate) progress: bool,
    /// Tokens at the prompt's end that are the answer's own, written elsewhere.
    pub(crate) written: usize,
    /// What is kept of a long prompt, where the request says so.
    pub(crate) prefill_keep: Option<f32>,
    /// Whether control tokens are part of an answer's text.
    pub(crate) controls: Controls,
    /// How much of a prompt is kept where it is too long; all of it has to fit otherwise.
    pub(crate) keep: Option<Keep>,
}

/// How much of a prompt is kept; what is too much goes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keep {
    Tokens(usize),
    /// As much as the context has room for beside the answer.
    Room,
}

/// What the loaded model allows and recommends.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) sampling: Sampling,
    pub(crate) vocab: usize,
    /// Tokens of prompt and answer together.
    pub(crate) context: usize,
    /// Answers that can be in the works at once.
    pub(crate) capacity: usize,
    /// Tokens that the model ends answers with.
    pub(crate) ends: Vec<u32>,
    /// What is kept of long prompts, where they are shortened.
    pub(crate) shares: Option<Shares>,
}

impl Settings {
    /// Reads the fields; what is not there is as the model recommends.
    pub(crate) fn read(fields: &Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        Self::read_from(fields, limits, 1)
    }

    /// The same where an answer of `least` tokens may be asked for.
    pub(crate) fn read_from(
        fields: &Fields<'_>,
        limits: &Limits,
        least: i64,
    ) -> Result<Self, ApiError> {
        let file = &limits.sampling;
        let any = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
        let sampling = Sampling {
            temperature: fields
                .number("temperature", 0.0..=MAX_TEMPERATURE)?
                .unwrap_or(file.temperature),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(file.top_p),
            // -1 is how some clients say all.
            top_k: fields
                .integer("top_k", -1..=i64::MAX)?
                .map_or(file.top_k, |k| k.max(0) as usize),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(file.min_p),
            repetition_penalty: read_either(fields, "repetition_penalty", "repeat_penalty", any)?
                .unwrap_or(file.repetition_penalty),
            presence_penalty: fields
                .number("presence_penalty", -2.0..=2.0)?
                .unwrap_or(file.presence_penalty),
            frequency_penalty: fields
                .number("frequency_penalty", -2.0..=2.0)?
                .unwrap_or(file.frequency_penalty),
            logit_bias: read_biases(fields, limits.vocab)?,
            seed: read_seed(fields)?.unwrap_or_else(|| random() >> 32),
            choice: 0,
        };
        let most = MAX_CHOICES.min(limits.capacity as i64);
        let choices = fields.integer("n", 1..=most)?.unwrap_or(1) as usize;
        let stream_options = fields.object("stream_options")?;
        let stream = fields.bool("stream")?.unwrap_or(false);
        // Some clients send them always; whole answers have no need of them.
        let (include_usage, continuous_usage) = match &stream_options {
            Some(options) => {
                let continuous = options.bool("continuous_usage_stats")?.unwrap_or(false);
                (options.bool("include_usage")?.unwrap_or(continuous), continuous)
            }
            None => (false, false),
        };
        let max_tokens = fields.limit("max_tokens", least)?.or(fields.limit("n_predict", least)?);
        let max_tokens = fields.limit("max_completion_tokens", least)?.or(max_tokens);
        fields.string("user")?;
        let model = fields.string("model")?.map(str::to_owned);
        let stops = read_stops(fields)?;
        let stop_tokens = read_stop_tokens(fields, limits.vocab)?;
        let min_tokens = read_least(fields, max_tokens)?;
        let include_stop = fields.bool("include_stop_str_in_output")?.unwrap_or(false);
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
        let legacy = fields.get("functions").is_some();
        let likelihoods = read_likelihoods(fields)?;
        let own = fields.object("forerun")?;
        let wanted = |name| match &own {
            Some(own) => Ok::<_, ApiError>(own.bool(name)?.unwrap_or(false)),
            None => Ok(false),
        };
        // The second name is llama.cpp's.
        let progress = wanted("progress")? | fields.bool("return_progress")?.unwrap_or(false);
        let (origins, progress) = (wanted("origins")?, progress && stream);
        let written = match &own {
            Some(own) => own.integer("written", 0..=i64::MAX)?.unwrap_or(0) as usize,
            None => 0,
        };
        let prefill_keep = match &own {
            Some(own) => own.number("prefill_keep", LEAST_SHARE..=1.0)?,
            None => None,
        };
        let controls = match fields.bool("skip_special_tokens")? {
            Some(false) => Controls::Show,
            _ => Controls::Hide,
        };
        Ok(Self {
            model,
            sampling,
            stops,
            stop_tokens,
            include_stop,
            ignore_eos,
            min_tokens,
            legacy,
            max_tokens,
            choices,
            likelihoods,
            stream,
            include_usage,
            continuous_usage,
            origins,
            progress,
            written,
            prefill_keep,
            controls,
            keep: read_keep(fields)?,
        })
    }

    /// Tokens after which nothing follows.
    pub(crate) fn ends(&self, limits: &Limits) -> Vec<u32> {
        let own = if self.ignore_eos { &[] } else { limits.ends.as_slice() };
        own.iter().chain(&self.stop_tokens).copied().collect()
    }

    /// What is kept of a prompt.
    pub(crate) fn kept(&self, mut prompt: Vec<u32>, limits: &Limits) -> Vec<u32> {
        let most = match self.keep {
            None => usize::MAX,
            Some(Keep::Tokens(tokens)) => tokens,
            Some(Keep::Room) => {
                limits.context.saturating_sub(self.max_tokens.unwrap_or(1).max(1)).max(1)
            }
        };
        prompt.drain(..prompt.len().saturating_sub(most));
        prompt
    }

    /// The job of answering `prompt`, which came in `field`.
    pub(crate) fn job(
        &self,
        prompt: Vec<u32>,
        field: &'static str,
        first_choice: usize,
        limits: &Limits,
    ) -> Result<Job, ApiError> {
        let context = limits.context;
        let prompt = self.kept(prompt, limits);
        if prompt.is_empty() {
            return Err(ApiError::field(field, format!("`{field}` has no tokens")));
        }
        if prompt.len() >= context {
            return Err(ApiError::TooLong { field, tokens: prompt.len(), context });
        }
        if self.written >= prompt.len() {
            let message = format!(
                "`forerun.written` is {}, but all of the prompt and what was written has {} tokens",
                self.written,
                prompt.len()
            );
            return Err(ApiError::field("forerun.written", message));
        }
        let decoded_from = if self.written > 0 { prompt.len() - self.written } else { usize::MAX };
        let room = self.max_tokens.unwrap_or(usize::MAX).min(context - prompt.len());
        let (wish, prefill) = self.wish(prompt.len(), limits.shares)?;
        let choices =
            (0..self.choices as u32).map(|choice| Sampling { choice, ..self.sampling.clone() });
        let (choices, stops, likelihoods) =
            (choices.collect(), self.stops.clone(), self.likelihoods);
        Ok(Job {
            prompt,
            choices,
            first_choice,
            written: self.written,
            wish,
            prefill,
            decoded_from,
            room,
            stops,
            ends: self.ends(limits),
            include_stop: self.include_stop,
            parser: None,
            likelihoods,
            scores: None,
            tells_ends: false,
            stream: self.stream,
            origins: self.origins,
            ids: false,
            progress: self.progress,
            controls: self.controls,
            ignored: Vec::new(),
            held: Held::default(),
            reasoning: None,
        })
    }
}

/// A number nobody can guess, from the randomness that the standard library keys its hash maps
/// with.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A number under the name that is known here or the one it has elsewhere.
fn read_either(
    fields: &Fields<'_>,
    name: &str,
    elsewhere: &str,
    range: RangeInclusive<f64>,
) -> Result<Option<f32>, ApiError> {
    let other = fields.number(elsewhere, range.clone())?;
    Ok(fields.number(name, range)?.or(other))
}

/// Any 64-bit integer, of either sign; -1 is how some clients say that there is none.
fn read_seed(fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(value) = fields.get("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| whole(value).map(|seed| seed as u64));
    let seed = seed.ok_or_else(|| fields.wrong("seed", "an integer of 64 bits"))?;
    Ok(Some(seed).filter(|seed| *seed != u64::MAX))
}

/// vLLM's `truncate_prompt_tokens`.
fn read_keep(fields: &Fields<'_>) -> Result<Option<Keep>, ApiError> {
    let name = "truncate_prompt_tokens";
    match fields.integer(name, -1..=i64::MAX)? {
        None => Ok(None),
        Some(-1) => Ok(Some(Keep::Room)),
        Some(0) => Err(fields.wrong(name, "an integer from 1 on, or -1 for what has room")),
        Some(tokens) => Ok(Some(Keep::Tokens(tokens as usize))),
    }
}

/// `logprobs` with `top_logprobs`, as chats have it, or a number of `logprobs`, as completions do.
fn read_likelihoods(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let top = fields.integer("top_logprobs", 0..=MAX_LIKELIEST)?;
    let wanted = match fields.get("logprobs") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(top.unwrap_or(0)),
        Some(Value::Number(_)) => fields.integer("logprobs", 0..=MAX_LIKELIEST)?,
        Some(_) => return Err(fields.wrong("logprobs", "true, false or a number")),
    };
    if top.is_some_and(|top| top > 0) && wanted.is_none() {
        return Err(fields.wrong("top_logprobs", "nothing without `logprobs`"));
    }
    Ok(wanted.map(|top| top as usize))
}

/// Strings that end an answer. An empty one, which forms send where nothing was filled in, ends
/// nothing.
fn read_stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stops: Vec<String> = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            let strings = stops.iter().enumerate().map(|(i, stop)| match stop {
                Value::String(stop) => Ok(stop.clone()),
                other => Err(wrong(format!("{}[{i}]", fields.path("stop")), other, "a string")),
            });
            strings.collect::<Result<_, _>>()?
        }
        Some(_) => return Err(fields.wrong("stop", "a string or an array of strings")),
    };
    if stops.len() > MAX_STOPS {
        return Err(fields.wrong("stop", &format!("at most {MAX_STOPS}")));
    }
    if let Some(i) = stops.iter().position(|stop| stop.len() > MAX_STOP_BYTES) {
        let path = format!("{}[{i}]", fields.path("stop"));
        let message =
            format!("`{path}` has {} bytes, at most {MAX_STOP_BYTES} are taken", stops[i].len());
        return Err(ApiError::field(path, message));
    }
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

/// vLLM's `stop_token_ids`.
fn read_stop_tokens(fields: &Fields<'_>, vocab: usize) -> Result<Vec<u32>, ApiError> {
    let ids = fields.array("stop_token_ids")?.unwrap_or_default();
    if ids.len() > MAX_STOP_TOKENS {
        return Err(fields.wrong("stop_token_ids", &format!("at most {MAX_STOP_TOKENS}")));
    }
    read_ids(ids, &fields.path("stop_token_ids"), vocab)
}

/// vLLM's `min_tokens`, which SGLang calls `min_new_tokens`.
fn read_least(fields: &Fields<'_>, most: Option<usize>) -> Result<usize, ApiError> {
    let name = if fields.get("min_tokens").is_some() { "min_tokens" } else { "min_new_tokens" };
    let least = fields.integer(name, 0..=i64::MAX)?.unwrap_or(0) as usize;
    match most.filter(|most| *most < least) {
        Some(most) => Err(fields.wrong(name, &format!("at most the {most} of `max_tokens`"))),
        None => Ok(least),
    }
}

/// Token ids as strings, biases from -100 (never) to 100.
fn read_biases(fields: &Fields<'_>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let bias = |(name, value): (&String, &Value)| {
        let token = name.parse::<u32>().ok().filter(|token| (*token as usize) < vocab);
        let token = token.ok_or_else(|| {
            let message = format!("a key of `logit_bias` is not a token id below {vocab}");
            ApiError::field("logit_bias", message)
        })?;
        let bias = value.as_f64().filter(|b| (-100.0..=100.0).contains(b));
        let bias =
            bias.ok_or_else(|| wrong(biases.path(name), value, "a number from -100 to 100"))?;
        Ok((token, bias as f32))
    };
    let list: Vec<(u32, f32)> = biases.entries().map(bias).collect::<Result<_, _>>()?;
    if list.len() > MAX_BIASES {
        return Err(fields.wrong("logit_bias", &format!("at most {MAX_BIASES} tokens")));
    }
    Ok(list)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
