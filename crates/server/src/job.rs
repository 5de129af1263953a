//! What the HTTP side asks of the engine's thread, and what it hears back.

use crate::constraint::Held;
use crate::error::ApiError;
use crate::log::Record;
use crate::output::OutputParser;
use crate::shorten::Wish;
use engine::sampling::{Likelihood, Sampling};
use engine::{PrefillReport, Round};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use text::{Controls, Reasoning};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

/// A prompt and the answers wanted to it.
#[derive(Debug)]
pub(crate) struct Job {
    /// Never empty.
    pub(crate) prompt: Vec<u32>,
    /// One a wanted answer.
    pub(crate) choices: Vec<Sampling>,
    /// Index of the first of them in the response.
    pub(crate) first_choice: usize,
    /// Tokens at the prompt's end that were written for this answer elsewhere, where that is known.
    pub(crate) written: usize,
    /// That it is shortened before it is read, until it has been.
    pub(crate) wish: Option<Wish>,
    /// What became of that, where it was wished.
    pub(crate) prefill: Option<PrefillReport>,
    /// From here on the prompt is read with the arithmetic of decoding; where it is no place in it,
    /// nothing is.
    pub(crate) decoded_from: usize,
    /// Tokens of an answer at most, within the context; where it is 0 the prompt is read and
    /// nothing is written.
    pub(crate) room: usize,
    /// Texts that end an answer wherever they occur.
    pub(crate) stops: Vec<String>,
    /// Tokens that do.
    pub(crate) ends: Vec<u32>,
    /// Whether an answer ends with what ended it.
    pub(crate) include_stop: bool,
    /// Follows an answer and knows when one of its own stop strings has ended it.
    pub(crate) parser: Option<OutputParser>,
    /// Likeliest tokens to tell beside each one written, where likelihoods are wanted.
    pub(crate) likelihoods: Option<usize>,
    /// The same beside each token of the prompt.
    pub(crate) scores: Option<usize>,
    /// Whether the likelihood of an end token is told: not where the answer is a message.
    pub(crate) tells_ends: bool,
    /// Whether text is wanted as it comes.
    pub(crate) stream: bool,
    /// Whether to tell which tokens were drafted.
    pub(crate) origins: bool,
    /// Whether to tell tokens beside their text.
    pub(crate) ids: bool,
    /// Whether to tell how much of the prompt has been read.
    pub(crate) progress: bool,
    /// Whether control tokens are part of an answer's text.
    pub(crate) controls: Controls,
    /// Fields of the request that were ignored, to be told with the answer.
    pub(crate) ignored: Vec<String>,
    /// What answers are held to, at their beginning.
    pub(crate) held: Held,
    /// What takes thinking and answer apart, where thinking is to be counted.
    pub(crate) reasoning: Option<Reasoning>,
}

impl Job {
    /// Where in the prompt the answer begins that is gone on with, as far as that is known.
    pub(crate) fn told_from(&self) -> usize {
        self.decoded_from.min(self.prompt.len() - self.written)
    }
}

/// What is done once for a request.
#[derive(Debug, Default)]
pub(crate) struct Once {
    pub(crate) counted: AtomicBool,
    pub(crate) siblings: AtomicBool,
    pub(crate) scores: AtomicBool,
}

/// A job on its way through the scheduler.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) job: Job,
    /// What the log is told, where the request has a line there.
    pub(crate) record: Option<Arc<Record>>,
    pub(crate) arrived: Instant,
    /// What is done once, though a prompt that found no room is read again.
    pub(crate) done: Once,
    pub(crate) deadline: Option<Instant>,
    /// Its places in the request's share, given back when it is done.
    pub(crate) _place: OwnedSemaphorePermit,
    /// The share itself, given back when all jobs of the request are.
    pub(crate) _share: Arc<OwnedSemaphorePermit>,
    /// Closed when the client has gone away. Dropped last: when the client's side sees that all
    /// senders are gone, the places are free.
    pub(crate) events: UnboundedSender<Event>,
}

/// What happened to one answer.
#[derive(Debug)]
pub(crate) struct Event {
    /// Which answer of the request.
    pub(crate) choice: usize,
    pub(crate) kind: EventKind,
}

/// What it was.
#[derive(Debug)]
pub(crate) enum EventKind {
    /// More of the prompt has been read.
    Progress(Progress),
    /// More text.
    Delta(Delta),
    /// The answer is whole.
    Done(Box<Outcome>),
    /// There will be no more of it.
    Failed(ApiError),
}

/// How far the reading of a prompt has come, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    pub(crate) read: usize,
    pub(crate) of: usize,
    /// Of those read, how many were known already.
    pub(crate) cached: usize,
    /// Milliseconds it has taken so far.
    pub(crate) ms: u64,
}

/// Where a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Bytes of the text that came with it.
    pub(crate) bytes: usize,
    pub(crate) drafted: bool,
    /// With the first token of a round: how many tokens were proposed in it.
    pub(crate) proposed: Option<usize>,
}

/// Text of an answer and what is told about its tokens, where that is wanted; not all of it is
/// empty. Text may come later than its tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    pub(crate) text: String,
    pub(crate) likelihoods: Vec<Likelihood>,
    /// How likely the tokens of the prompt were, from its second on: told once, before anything
    /// else.
    pub(crate) scores: Vec<Likelihood>,
    /// One for each token.
    pub(crate) origins: Vec<Origin>,
    /// Tokens that were written for it.
    pub(crate) tokens: usize,
    /// Which, where that is wanted.
    pub(crate) ids: Vec<u32>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { text, likelihoods, scores, origins, ids, .. } = self;
        let is_silent = text.is_empty() && ids.is_empty() && origins.is_empty();
        is_silent && likelihoods.is_empty() && scores.is_empty()
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model said so, or a stop string occurred.
    Stop,
    /// The room was used up.
    Length,
}

/// What an answer took.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) finish: Finish,
    /// Which of the job's stop strings occurred.
    pub(crate) stop: Option<usize>,
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Those of them that were thinking, its closing tag included.
    pub(crate) reasoning_tokens: usize,
    /// Tokens of the prompt that were not read again.
    pub(crate) cached_tokens: usize,
    pub(crate) report: Report,
}

/// The `forerun` object of an answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) cached_tokens: usize,
    /// Where these came from: `memory`, `host` or `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_from: Option<&'static str>,
    pub(crate) spec: SpecReport,
    pub(crate) timing: Timing,
    /// How a long prompt was read, where it might have been shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefill: Option<PrefillReport>,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) ignored: Vec<String>,
}

/// How speculation went.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct SpecReport {
    pub(crate) mode: &'static str,
    /// Where the drafter runs, if not with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) draft_device: Option<String>,
    pub(crate) rounds: usize,
    pub(crate) accepted: usize,
    pub(crate) drafted: usize,
    pub(crate) mean_accept_length: f64,
    pub(crate) accept_lengths: Vec<usize>,
    pub(crate) fallback: Option<String>,
}

/// Seconds. Rounds are shared with other answers: a verify counts as it took, drafting by this
/// answer's part.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Timing {
    pub(crate) load_s: f64,
    pub(crate) queue_s: f64,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) draft_s: f64,
    pub(crate) verify_s: f64,
    pub(crate) judge_s: f64,
    pub(crate) commit_s: f64,
}

impl Report {
    /// Counts a round.
    pub(crate) fn add(&mut self, round: &Round) {
        let Self { spec, timing, .. } = self;
        spec.accept_lengths.push(round.accept_length());
        spec.rounds += 1;
        spec.accepted += round.accepted;
        spec.drafted += round.drafted;
        spec.mean_accept_length =
            spec.accept_lengths.iter().sum::<usize>() as f64 / spec.rounds as f64;
        timing.draft_s += round.draft_s;
        timing.verify_s += round.verify_s;
        timing.judge_s += round.judge_s;
        timing.commit_s += round.commit_s;
    }

    /// Adds what another answer of the same response took: counts are summed, waits are the
    /// longest.
    pub(crate) fn merge(&mut self, other: Self) {
        let (spec, more) = (&mut self.spec, other.spec);
        spec.rounds += more.rounds;
        spec.accepted += more.accepted;
        spec.drafted += more.drafted;
        spec.accept_lengths.extend(more.accept_lengths);
        spec.mean_accept_length =
            spec.accept_lengths.iter().sum::<usize>() as f64 / spec.rounds.max(1) as f64;
        spec.fallback = spec.fallback.take().or(more.fallback);
        match (&mut self.prefill, other.prefill) {
            (Some(read), Some(more)) => read.merge(more),
            (read, more) => *read = read.take().or(more),
        }
        let (timing, more) = (&mut self.timing, other.timing);
        timing.queue_s = timing.queue_s.max(more.queue_s);
        timing.prefill_s = timing.prefill_s.max(more.prefill_s);
        timing.decode_s = timing.decode_s.max(more.decode_s);
        timing.draft_s += more.draft_s;
        timing.verify_s += more.verify_s;
        timing.judge_s += more.judge_s;
        timing.commit_s += more.commit_s;
    }
}
