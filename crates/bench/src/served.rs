//! `bench --server`: the same prompts over HTTP, so many requests at a time, against any
//! OpenAI-compatible server.

use crate::http::{Client, Streamed};
use crate::progress::Progress;
use crate::statistics::{Interval, Tail, interval};
use crate::suites::Line;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a server was asked, and how it did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Served {
    pub(crate) server: String,
    pub(crate) model: String,
    pub(crate) suites: Vec<String>,
    pub(crate) prompts: usize,
    pub(crate) repeats: usize,
    pub(crate) max_tokens: usize,
    pub(crate) temperature: f32,
    pub(crate) points: Vec<Load>,
}

/// Figures with so many requests at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) concurrency: usize,
    pub(crate) requests: usize,
    /// Of all answers together.
    pub(crate) tokens_per_s: Interval,
    /// Of one answer, after its first token.
    pub(crate) answer_tokens_per_s: Interval,
    pub(crate) first_token_ms: Interval,
    #[serde(default)]
    pub(crate) first_token_tail_ms: Tail,
    /// From token to token, by answer.
    pub(crate) token_ms: Interval,
    #[serde(default)]
    pub(crate) token_tail_ms: Tail,
    pub(crate) prompt_tokens: f64,
    pub(crate) completion_tokens: f64,
    /// Where the server says.
    pub(crate) accept_length: Option<f64>,
    pub(crate) accepted_per_drafted: Option<f64>,
}

/// What to ask.
pub(crate) struct Asking {
    pub(crate) concurrency: Vec<usize>,
    pub(crate) repeats: usize,
    pub(crate) max_tokens: usize,
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
}

/// A request's figures.
struct Sample {
    first_s: f64,
    decode_s: f64,
    prompt_tokens: f64,
    tokens: f64,
    spec: Option<Spec>,
}

/// The part of the `forerun` object that is of interest.
#[derive(Clone, Copy, Deserialize)]
struct Spec {
    rounds: f64,
    accepted: f64,
    drafted: f64,
}

/// Asks a server all prompts, with every number of requests at a time, as often as asked for.
pub(crate) fn measure(
    url: &str,
    client: &Client,
    suites: &[(String, Vec<Line>)],
    asking: &Asking,
) -> Result<Served> {
    let model = client.model()?;
    let lines: Vec<&Line> = suites.iter().flat_map(|(_, lines)| lines).collect();
    let requests = lines.iter().map(|l| request(l, &model, asking)).collect::<Result<Vec<_>>>()?;
    client.stream(requests[0].0, &requests[0].1).context("the first request")?;
    let all = |concurrency: &usize| requests.len() * concurrency.div_ceil(requests.len());
    let asked: usize = asking.concurrency.iter().map(all).sum();
    let progress = Progress::new(asking.repeats * asked, "asking");
    let mut found: Vec<(Vec<f64>, Vec<Sample>)> =
        asking.concurrency.iter().map(|_| Default::default()).collect();
    for _ in 0..asking.repeats {
        for (concurrency, (rates, samples)) in asking.concurrency.iter().zip(&mut found) {
            let start = Instant::now();
            let these = ask_all(client, &requests, *concurrency, &progress)?;
            let tokens: f64 = these.iter().map(|s| s.tokens).sum();
            rates.push(tokens / start.elapsed().as_secs_f64());
            samples.extend(these);
        }
    }
    if !found.iter().all(|(_, samples)| samples.iter().any(|s| s.tokens > 1.0 && s.decode_s > 0.0))
    {
        bail!("every answer comes in one piece: there is nothing to time");
    }
    let points = asking.concurrency.iter().zip(&found);
    Ok(Served {
        server: url.to_owned(),
        model,
        suites: suites.iter().map(|(name, _)| name.clone()).collect(),
        prompts: requests.len(),
        repeats: asking.repeats,
        max_tokens: asking.max_tokens,
        temperature: asking.temperature,
        points: points
            .map(|(concurrency, (rates, samples))| load(*concurrency, rates, samples))
            .collect(),
    })
}

/// The path and body of a request.
fn request(line: &Line, model: &str, asking: &Asking) -> Result<(&'static str, Value)> {
    let mut body = json!({
        "model": model, "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": asking.max_tokens,
        "temperature": asking.temperature, "seed": asking.seed,
    });
    match &line.prompt {
        Some(prompt) if line.raw => {
            body["prompt"] = json!(prompt);
            return Ok(("/completions", body));
        }
        _ => body["messages"] = json!(line.all_messages()?),
    }
    if !line.tools.is_empty() {
        body["tools"] = json!(line.tools);
    }
    if let Some(thinking) = line.thinking {
        body["chat_template_kwargs"] = json!({"enable_thinking": thinking});
    }
    Ok(("/chat/completions", body))
}

/// All requests, `concurrency` at a time; where there are fewer, again and again.
fn ask_all(
    client: &Client,
    requests: &[(&'static str, Value)],
    concurrency: usize,
    progress: &Progress,
) -> Result<Vec<Sample>> {
    let again = concurrency.div_ceil(requests.len());
    let all = (0..again).flat_map(|_| requests).collect();
    let waiting: Mutex<VecDeque<&(&str, Value)>> = Mutex::new(all);
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        while let Some((path, body)) = next() {
            samples.push(Sample::of(&client.stream(path, body)?));
            progress.step(&format!("{concurrency} at a time"));
        }
        Ok(samples)
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency).map(|_| scope.spawn(worker)).collect();
        let mut samples = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(found) => samples.extend(found?),
                Err(_) => bail!("a request ended without a word"),
            }
        }
        Ok(samples)
    })
}

impl Sample {
    fn of(streamed: &Streamed) -> Self {
        let count = |name: &str| streamed.usage[name].as_f64();
        Self {
            first_s: streamed.first_s,
            decode_s: streamed.last_s - streamed.first_s,
            prompt_tokens: count("prompt_tokens").unwrap_or(0.0),
            // A server that counts nothing sends a chunk a token, more or less.
            tokens: count("completion_tokens").unwrap_or(streamed.chunks as f64),
            spec: serde_json::from_value(streamed.forerun["spec"].clone()).ok(),
        }
    }
}

fn load(concurrency: usize, rates: &[f64], samples: &[Sample]) -> Load {
    let long = || samples.iter().filter(|s| s.tokens > 1.0 && s.decode_s > 0.0);
    let over = |figure: fn(&Sample) -> f64| long().map(figure).collect::<Vec<_>>();
    let mean = |figure: fn(&Sample) -> f64| {
        samples.iter().map(figure).sum::<f64>() / samples.len().max(1) as f64
    };
    let specs: Vec<Spec> = samples.iter().filter_map(|s| s.spec).collect();
    let sum = |part: fn(&Spec) -> f64| specs.iter().map(part).sum::<f64>();
    let (rounds, accepted, drafted) = (sum(|s| s.rounds), sum(|s| s.accepted), sum(|s| s.drafted));
    let firsts: Vec<f64> = samples.iter().map(|s| s.first_s * 1e3).collect();
    let between = over(|s| s.decode_s / (s.tokens - 1.0) * 1e3);
    Load {
        concurrency,
        requests: samples.len(),
        tokens_per_s: interval(rates),
        answer_tokens_per_s: interval(&over(|s| (s.tokens - 1.0) / s.decode_s)),
        first_token_ms: interval(&firsts),
        first_token_tail_ms: Tail::of(&firsts),
        token_ms: interval(&between),
        token_tail_ms: Tail::of(&between),
        prompt_tokens: mean(|s| s.prompt_tokens),
        completion_tokens: mean(|s| s.tokens),
        accept_length: (rounds > 0.0).then(|| 1.0 + accepted / rounds),
        accepted_per_drafted: (drafted > 0.0).then(|| accepted / drafted),
    }
}
