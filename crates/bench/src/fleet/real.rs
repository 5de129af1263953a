//! The same trace against real workers: this process is the router in front of them, and each
//! conversation is a thread. Prompts are tokens that nobody has seen before, made from the numbers of
//! conversation and turn, so that what two prompts share is what the trace says.

use super::Random;
use super::curves::{Curves, Depth};
use super::replay::Figures;
use super::router::{Policy, Router, View};
use super::trace::{Talk, Trace};
use crate::http::{Client, Streamed};
use crate::statistics::median;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Ids of plain tokens in every vocabulary that is served.
const TOKENS: std::ops::Range<u32> = 256..4000;
/// Lengths of prompts timed beside those of the trace; two messages have at least 4 tokens.
const PROMPTS: [usize; 4] = [4, BEHIND, 256, 1024];
/// How often everything is, on every worker.
const TIMES: usize = 4;
/// Tokens of answers that are timed together, of those behind prompts, and of a short prompt.
const ANSWER: usize = 96;
const BRIEF: usize = 32;
const SHORT: usize = 2;
/// A message that is kept, and what is read behind it.
const DEEP: usize = 1024;
const BEHIND: usize = 64;

pub(super) struct Workers {
    clients: Vec<Client>,
    /// The token that begins a message: states are kept at those.
    opening: u32,
    /// Counts what was asked, so that no prompt begins as one before it, of an earlier run either.
    salt: AtomicU64,
}

/// What a worker took in one turn: seconds of the way there and back, to the first token of a
/// prompt of each length and for each token after it, and both behind a long message.
struct Timed {
    way: f64,
    prompts: Vec<(f64, f64)>,
    behind: (f64, f64),
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
        let opening = opening.context("there is no token for a message")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok(Self { clients, opening, salt: AtomicU64::new(now.as_nanos() as u64) })
    }

    fn salt(&self) -> u64 {
        self.salt.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// What workers take, asked about as often as the trace will: one that was idle for a while is
    /// slower than one that was not, and one is slower while its neighbour is at work.
    pub(super) fn measure(&self, slots: usize, trace: &Trace) -> Result<Curves> {
        let (before, pace) = (trace.before().max(1), trace.pace(self.clients.len()));
        let mut lengths = [&PROMPTS[..], &trace.lengths()].concat();
        lengths.retain(|tokens| (PROMPTS[0]..=DEEP).contains(tokens));
        lengths.sort_unstable();
        lengths.dedup();
        let (rates, round) = self.rates(slots)?;
        let all = self.at_once(1, |worker, _| self.timed(worker, &lengths, before, pace))?;
        let of =
            |what: &dyn Fn(&Timed) -> f64| -> Vec<f64> { all.iter().flatten().map(what).collect() };
        let way = median(of(&|timed| timed.way));
        let prompts = lengths
            .iter()
            .enumerate()
            .map(|(i, tokens)| (*tokens as f64, of(&|timed| (timed.prompts[i].0 - way).max(0.0))));
        let prompts = prompts.collect();
        let plain = lengths.iter().position(|tokens| *tokens == BEHIND).unwrap_or(0);
        // One by one, a moment apart: a machine's pace changes by more than that.
        let read = median(of(&|timed| timed.behind.0 - timed.prompts[plain].0));
        let write = median(of(&|timed| timed.behind.1 - timed.prompts[plain].1));
        let depth = Depth { read: read / (BEHIND * DEEP) as f64, write: write / DEEP as f64 };
        Ok(Curves::new(prompts, rates, round, depth, way)?.behind(before))
    }

    /// Everything that is timed of one worker, in turns, after a turn that warms it up.
    fn timed(
        &self,
        worker: usize,
        lengths: &[usize],
        before: usize,
        pace: f64,
    ) -> Result<Vec<Timed>> {
        let client = &self.clients[worker];
        let mut random = Random(self.salt());
        let mut pause = || std::thread::sleep(Duration::from_secs_f64(random.exponential(pace)));
        // Both are kept with the first turn.
        let short = self.message(self.salt(), before);
        let long = self.message(self.salt(), before + DEEP);
        let mut all = Vec::new();
        for _ in 0..=TIMES {
            pause();
            // What is tokenised goes the same way and needs no engine.
            let start = Instant::now();
            client.tokens("x")?;
            let way = start.elapsed().as_secs_f64();
            let mut answer = |before: &[u32], tokens: usize| -> Result<(f64, f64)> {
                pause();
                let prompt = [before, &self.two_messages(tokens)].concat();
                let answer = ask(client, &prompt, BRIEF)?;
                Ok((answer.first_s, (answer.last_s - answer.first_s) / (BRIEF - 1) as f64))
            };
            let prompts = lengths.iter().map(|tokens| answer(&short, *tokens));
            let prompts = prompts.collect::<Result<Vec<_>>>()?;
            all.push(Timed { way, prompts, behind: answer(&long, BEHIND)? });
        }
        all.remove(0);
        Ok(all)
    }

    /// Two messages of so many tokens together: what is behind a kept state has an answer and a
    /// question, and the state between them is kept too.
    fn two_messages(&self, tokens: usize) -> Vec<u32> {
        let first = tokens / 2;
        [self.message(self.salt(), first), self.message(self.salt(), tokens - first)].concat()
    }

    /// Tokens per second by the number of answers, all workers at work, and tokens of a round.
    fn rates(&self, slots: usize) -> Result<(Vec<(f64, f64)>, f64)> {
        let (mut rates, mut rounds) = (Vec::new(), Vec::new());
        for texts in [1, 2, 4, 8].into_iter().filter(|texts| *texts <= slots) {
            let mut found = Vec::new();
            for _ in 0..TIMES {
                let all = self.at_once(texts, |worker, _| {
                    let answer = ask(&self.clients[worker], &made(self.salt(), SHORT), ANSWER)?;
                    let seconds = (answer.last_s - answer.first_s).max(1e-6);
                    Ok(((ANSWER - 1) as f64 / seconds, answer.forerun["spec"]["rounds"].as_f64()))
                })?;
                found.push(all.iter().map(|(rate, _)| rate).sum::<f64>() / self.count() as f64);
                let told = all.iter().filter_map(|(_, rounds)| *rounds);
                rounds.extend(told.map(|rounds| ANSWER as f64 / rounds.max(1.0)));
            }
            rates.push((texts as f64, median(found)));
        }
        let round = if rounds.is_empty() { 1.0 } else { median(rounds) };
        Ok((rates, round))
    }

    fn count(&self) -> usize {
        self.clients.len()
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
        let salt = self.salt();
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
        let mut prompt = self.message(salt ^ talk.system as u64, talk.system_tokens);
        for (turn, said) in talk.turns.iter().enumerate() {
            let own = salt ^ (1 << 36 | (number as u64) << 10 | turn as u64);
            prompt.extend(self.message(own, said.question));
            let asked = talk.asked(number, turn, false);
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
            prompt.extend(self.message(own ^ 1 << 37, said.answer));
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
        "ignore_eos": true, "skip_special_tokens": false, "stream": true, "stream_options": {"include_usage": true}});
    worker.stream("/completions", &body)
}
