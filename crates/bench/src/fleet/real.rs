//! The same trace against real workers: this process is the router in front of them, and each
//! conversation is a thread. Prompts are tokens that nobody has seen before, made from the numbers of
//! conversation and turn, so that what two prompts share is what the trace says.

use super::Random;
use super::curves::Curves;
use super::replay::Figures;
use super::router::{Asked, Policy, Router, View};
use super::trace::{Talk, Trace};
use crate::http::{Client, Streamed};
use crate::statistics::median;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ids of plain tokens in every vocabulary that is served.
const TOKENS: std::ops::Range<u32> = 256..4000;
/// Lengths of prompts that are timed, and how often.
const PROMPTS: [usize; 3] = [64, 512, 1536];
const TIMES: usize = 5;
/// Tokens of the answers that are timed.
const ANSWER: usize = 160;

pub(super) struct Workers {
    clients: Vec<Client>,
    /// The token that begins a message: states are kept at those.
    opening: u32,
}

/// What is shared by the threads of all conversations.
struct Front {
    router: Router,
    loads: Vec<usize>,
    figures: Figures,
    failed: Option<anyhow::Error>,
}

impl Workers {
    pub(super) fn new(urls: &[String]) -> Result<Self> {
        let clients = urls.iter().map(|url| Client::new(url, None));
        let clients = clients.collect::<Result<Vec<Client>>>()?;
        let first = clients.first().context("there is no worker")?;
        let opening = first.tokens("<|im_start|>")?.first().copied();
        Ok(Self { clients, opening: opening.context("there is no token for a message")? })
    }

    /// All workers are timed at the same time, as they will be at work at the same time.
    pub(super) fn measure(&self, slots: usize) -> Result<Curves> {
        let mut prompts = Vec::new();
        for (k, tokens) in PROMPTS.into_iter().enumerate() {
            let mut seconds = Vec::new();
            for i in 0..=TIMES {
                let seed = (1000 * k + i) as u64;
                let all = self.at_once(1, |worker, _| {
                    let prompt = made(seed << 8 | worker as u64, tokens);
                    ask(&self.clients[worker], &prompt, 1).map(|answer| answer.first_s)
                })?;
                // The first one warms up.
                seconds.extend(all.into_iter().filter(|_| i > 0));
            }
            prompts.push((tokens as f64, median(seconds)));
        }
        let mut rates = Vec::new();
        for texts in [1, 2, 4, 8].into_iter().filter(|texts| *texts <= slots) {
            let mut found = Vec::new();
            for i in 0..TIMES {
                let all = self.at_once(texts, |worker, text| {
                    let seed = 7_000_000 + (1000 * texts + 100 * i + 10 * worker + text) as u64;
                    let answer = ask(&self.clients[worker], &made(seed, 32), ANSWER)?;
                    Ok((ANSWER - 1) as f64 / (answer.last_s - answer.first_s).max(1e-6))
                })?;
                found.push(all.iter().sum::<f64>() / self.clients.len() as f64);
            }
            rates.push((texts as f64, median(found)));
        }
        Curves::new(prompts, rates)
    }

    /// Does something on every worker so many times at once.
    fn at_once<T: Send>(
        &self,
        times: usize,
        work: impl Fn(usize, usize) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let work = &work;
        std::thread::scope(|scope| {
            let pairs =
                (0..self.clients.len()).flat_map(|worker| (0..times).map(move |i| (worker, i)));
            let threads: Vec<_> =
                pairs.map(|(worker, i)| scope.spawn(move || work(worker, i))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<T>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            };
            threads.into_iter().map(join).collect()
        })
    }

    /// Replays a trace.
    pub(super) fn replay(&self, trace: &Trace, policy: Policy) -> Result<Figures> {
        let front = Mutex::new(Front {
            router: Router::new(policy),
            loads: vec![0; self.clients.len()],
            figures: Figures::default(),
            failed: None,
        });
        let begin = Instant::now();
        // What is kept of one replay is not found by the next.
        let salt = (policy as u64) << 40;
        std::thread::scope(|scope| {
            for (number, talk) in trace.talks.iter().enumerate() {
                let front = &front;
                scope.spawn(move || {
                    let result = self.have(number, talk, salt, begin, front);
                    if let Err(error) = result {
                        locked(front).failed.get_or_insert(error);
                    }
                });
            }
        });
        let front = front.into_inner().unwrap_or_else(PoisonError::into_inner);
        front.failed.map_or(Ok(front.figures), Err)
    }

    /// A message of so many tokens.
    fn message(&self, seed: u64, tokens: usize) -> Vec<u32> {
        let mut message = made(seed, tokens);
        message[0] = self.opening;
        message
    }

    /// Has a conversation.
    fn have(
        &self,
        number: usize,
        talk: &Talk,
        salt: u64,
        begin: Instant,
        front: &Mutex<Front>,
    ) -> Result<()> {
        let until = begin + Duration::from_secs_f64(talk.begins);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let mut prompt = self.message(salt | 1 << 32 | talk.system as u64, talk.system_tokens);
        for (turn, said) in talk.turns.iter().enumerate() {
            let own = salt | 1 << 36 | ((number as u64) << 10) | turn as u64;
            prompt.extend(self.message(own, said.question));
            let asked = Asked {
                talk: number,
                system: talk.system,
                system_tokens: talk.system_tokens,
                prompt: prompt.len(),
                question: said.question,
                has_answers: false,
            };
            let worker = {
                let mut front = locked(front);
                let view = |load: &usize| View { is_open: true, load: *load, ..View::default() };
                let views: Vec<View> = front.loads.iter().map(view).collect();
                let worker = front.router.choose(&asked, &views).context("there is no worker")?;
                front.loads[worker] += 1;
                worker
            };
            let answer = ask(&self.clients[worker], &prompt, said.answer);
            let mut front = locked(front);
            front.loads[worker] -= 1;
            let answer = answer?;
            let figures = &mut front.figures;
            figures.span = begin.elapsed().as_secs_f64();
            figures.answer_tokens += said.answer as f64;
            figures.prompt_tokens += prompt.len() as f64;
            let cached = &answer.usage["prompt_tokens_details"]["cached_tokens"];
            figures.cached_tokens += cached.as_f64().unwrap_or(0.0);
            figures.firsts.push(answer.first_s);
            drop(front);
            // The answer's own tokens are not told; others of its length stand for them.
            prompt.extend(self.message(own | 1 << 37, said.answer));
            std::thread::sleep(Duration::from_secs_f64(said.pause));
        }
        Ok(())
    }
}

fn locked(front: &Mutex<Front>) -> MutexGuard<'_, Front> {
    front.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokens that depend on the seed alone.
fn made(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9));
    let span = f64::from(TOKENS.end - TOKENS.start);
    (0..tokens).map(|_| TOKENS.start + (random.unit() * span) as u32).collect()
}

fn ask(worker: &Client, prompt: &[u32], tokens: usize) -> Result<Streamed> {
    let body = json!({"model": "any", "prompt": prompt, "max_tokens": tokens, "temperature": 1.0,
        "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}});
    worker.stream("/completions", &body)
}
