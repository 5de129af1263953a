//! Speculative prefill: long prompts are shortened before they are sent to the engine, by a thread
//! of its own with a scorer of its own, so that the answers of others go on meanwhile. The engine,
//! the prefix cache and its files know nothing of it: what they see is a shorter prompt.

use crate::error::ApiError;
use crate::failure::guarded;
use crate::job::Job;
use crate::metrics::Metrics;
use crate::settings::Settings;
use engine::{Long, PrefillReport, Shortener};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;
use text::{Droppable, Tokenizer};
use tokio::sync::oneshot;

/// Loads the scorer, when it is started and after it has failed.
pub type LoadScorer = Box<dyn FnMut() -> Result<Shortener, String> + Send>;

/// How long prompts are shortened.
pub struct Prefill {
    /// Takes the scorer in.
    pub load: LoadScorer,
    /// For people: the scorer's name.
    pub scorer: String,
    /// What is kept of that which may be dropped, unless a request says otherwise.
    pub keep: f32,
    /// Prompts of more tokens are shortened.
    pub from: usize,
}

impl fmt::Debug for Prefill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scorer, keep, from, .. } = self;
        f.debug_struct("Prefill")
            .field("scorer", scorer)
            .field("keep", keep)
            .field("from", from)
            .finish()
    }
}

/// What is kept of prompts, and of which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares {
    pub(crate) keep: f32,
    pub(crate) from: usize,
}

/// That a prompt is to be shortened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wish {
    pub(crate) share: f32,
    /// Whether the request said so itself.
    is_asked: bool,
}

impl Settings {
    /// Whether a prompt of so many tokens is to be shortened, or what is told where the request
    /// asks for it and it is not.
    pub(crate) fn wish(
        &self,
        tokens: usize,
        shares: Option<Shares>,
    ) -> Result<(Option<Wish>, Option<PrefillReport>), ApiError> {
        let asked = self.prefill_keep.filter(|keep| *keep < 1.0);
        let Some(Shares { keep, from }) = shares else {
            return match asked {
                None => Ok((None, None)),
                Some(_) => Err(refusal("there is no scorer: serve with `--prefill-scorer MODEL`")),
            };
        };
        let share = self.prefill_keep.unwrap_or(keep);
        if asked.is_some() && self.written > 0 {
            return Err(refusal("an answer that was begun elsewhere (`forerun.written`) is exact"));
        }
        if tokens <= from {
            let why = format!("prompts of up to {from} tokens are");
            return Ok((None, asked.map(|keep| PrefillReport::whole(tokens, keep, why))));
        }
        let wish = (share < 1.0).then_some(Wish { share, is_asked: asked.is_some() });
        Ok((wish, None))
    }
}

fn refusal(why: &str) -> ApiError {
    ApiError::field("forerun.prefill_keep", format!("`forerun.prefill_keep` is below 1, but {why}"))
}

impl Job {
    /// Refuses to tell how likely tokens are that a request wants dropped.
    pub(crate) fn check_wish(&self) -> Result<(), ApiError> {
        match self.scores.is_some() && self.wish.is_some_and(|wish| wish.is_asked) {
            true => Err(refusal(
                "the prompt's tokens are to be told with their likelihoods (`prompt_logprobs`, or \
                 `echo` with `logprobs`): send one of them",
            )),
            false => Ok(()),
        }
    }

    /// Tokens of the prompt as the request has it.
    pub(crate) fn asked_tokens(&self) -> usize {
        self.prefill.as_ref().map_or(self.prompt.len(), |report| report.prompt_tokens)
    }

    /// Why its prompt is read whole although it is a long one.
    fn exempt(&self) -> Option<&'static str> {
        let told = self.scores.is_some().then_some("its tokens are told with their likelihoods");
        let begun = self.decoded_from < self.prompt.len();
        told.or(begun.then_some("the answer may have been begun elsewhere"))
    }
}

/// The way to the scorer's thread.
#[derive(Debug)]
pub(crate) struct Shortening {
    asks: Sender<Ask>,
    pub(crate) shares: Shares,
}

struct Ask {
    prompt: Vec<u32>,
    share: f32,
    /// Closed when nobody waits any more.
    reply: oneshot::Sender<(Vec<u32>, PrefillReport)>,
}

impl Shortening {
    /// Loads the scorer and starts its thread.
    pub(crate) fn start(
        mut prefill: Prefill,
        tokenizer: Arc<Tokenizer>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let shares = Shares { keep: prefill.keep, from: prefill.from };
        let shortener = Some((prefill.load)().map_err(io::Error::other)?);
        let (asks, asked) = mpsc::channel();
        let worker = Worker { prefill, shortener, tokenizer, metrics };
        let thread = std::thread::Builder::new().name("scorer".to_owned());
        thread.spawn(move || worker.run(&asked))?;
        Ok(Self { asks, shares })
    }

    /// Shortens the prompt of a job that wishes it. Whoever drops this no longer waits for it.
    pub(crate) async fn shorten(&self, job: &mut Job) {
        let Some(Wish { share, .. }) = job.wish.take() else { return };
        if let Some(why) = job.exempt() {
            job.prefill = Some(PrefillReport::whole(job.prompt.len(), share, why));
            return;
        }
        let (reply, decided) = oneshot::channel();
        let _ = self.asks.send(Ask { prompt: job.prompt.clone(), share, reply });
        let (tokens, report) = decided.await.unwrap_or_else(|_| {
            let why = "the scorer has ended";
            (job.prompt.clone(), PrefillReport::whole(job.prompt.len(), share, why))
        });
        (job.prompt, job.prefill) = (tokens, Some(report));
    }
}

/// What the thread works with.
struct Worker {
    prefill: Prefill,
    /// None after a failure, until the next prompt.
    shortener: Option<Shortener>,
    tokenizer: Arc<Tokenizer>,
    metrics: Arc<Metrics>,
}

impl Worker {
    fn run(mut self, asked: &Receiver<Ask>) {
        while let Ok(Ask { prompt, share, reply }) = asked.recv() {
            let start = Instant::now();
            let told = match self.shorten(&prompt, share, || !reply.is_closed()) {
                Ok(Some(shortened)) => {
                    let (tokens, seconds) = (prompt.len(), start.elapsed().as_secs_f64());
                    let scorer = &self.prefill.scorer;
                    let report =
                        PrefillReport::shortened(tokens, share, &shortened, scorer, seconds);
                    self.metrics.add_shortened(&report);
                    (shortened.tokens(&prompt), report)
                }
                Ok(None) => continue,
                // An answer to all of the prompt takes longer and is none the worse.
                Err(why) => {
                    tracing::warn!(cause = why, "a prompt could not be scored and is read whole");
                    self.shortener = None;
                    self.metrics.scoring_failures.inc();
                    let report = PrefillReport::whole(prompt.len(), share, why);
                    (prompt, report)
                }
            };
            let _ = reply.send(told);
        }
    }

    fn shorten(
        &mut self,
        prompt: &[u32],
        share: f32,
        goes_on: impl FnMut() -> bool,
    ) -> Result<Option<engine::Shortened>, String> {
        let shortener = match &mut self.shortener {
            Some(shortener) => shortener,
            none => none.insert((self.prefill.load)()?),
        };
        let found = Droppable::within(&self.tokenizer, prompt, self.prefill.from);
        let Droppable { ranges: droppable, boundary } = &found;
        let long = Long { prompt, droppable, boundary: *boundary, share };
        let shortened = guarded(|| shortener.shorten(long, goes_on));
        shortened.map_err(|failure| format!("the scorer failed: {}", failure.reason()))
    }
}
