//! Writing an answer: read the prompt, then round after round until the model or the room ends it.

use crate::model_flags::Running;
use anyhow::{Result, bail};
use engine::judge::Relaxed;
use engine::sampling::Sampling;
use engine::{Round, Sequence};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use text::{Controls, Stream};

/// A prompt is worth a progress bar from this many tokens on.
const LONG_PROMPT: usize = 2048;

/// Why a prompt was not read.
pub(crate) const STOPPED: &str = "stopped while the prompt was read";

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model said so.
    Stop,
    /// `--max-tokens` or the context was reached.
    Length,
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// An answer and what it took.
pub struct Answer {
    /// Its tokens, the end token included.
    pub ids: Vec<u32>,
    /// What was written.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Seconds until the prompt was read.
    pub prefill_s: f64,
    /// Seconds from there to the end.
    pub decode_s: f64,
    /// What each round did.
    pub rounds: Vec<Round>,
    /// Seconds from the end of the round before to the end of each, giving its text away included.
    pub round_s: Vec<f64>,
    /// Why proposals ended before their time.
    pub fallback: Option<String>,
    /// Holds the prompt and every token of the answer but the last.
    pub sequence: Sequence,
}

impl Running {
    /// Reads tokens of a prompt; where they are many a bar tells how far it is. Fails once `stop`
    /// is set: what was read until then is no prompt to answer.
    pub fn read(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        stop: &AtomicBool,
    ) -> Result<()> {
        let bar = prompt_bar(tokens.len());
        for chunk in tokens.chunks(self.engine.model().options().max_rows) {
            self.engine.read(sequence, chunk)?;
            bar.inc(chunk.len() as u64);
            if stop.load(Ordering::Relaxed) {
                bail!(STOPPED);
            }
        }
        Ok(())
    }
}

/// What an answer is asked with.
pub struct Question<'a> {
    /// Holds the beginning of the prompt, perhaps nothing.
    pub sequence: Sequence,
    /// All tokens of the prompt.
    pub prompt: &'a [u32],
    /// How tokens are drawn.
    pub sampling: &'a Sampling,
    /// Tokens of the answer at most.
    pub max_tokens: usize,
    /// By how much drafted tokens may miss, where an answer need not be exact.
    pub relaxed: Option<Relaxed>,
    /// Set to end the answer after the round at hand, or the reading of the prompt.
    pub stop: &'a AtomicBool,
}

/// A new token as it comes.
pub struct Piece<'a> {
    /// Its text, as far as it is whole.
    pub text: &'a str,
    /// Whether it had been drafted.
    pub drafted: bool,
    /// The round that made it, after its last token.
    pub round: Option<&'a Round>,
}

/// Answers a question, giving the text away piece by piece.
pub fn answer(
    running: &mut Running,
    question: Question<'_>,
    mut emit: impl FnMut(Piece<'_>) -> Result<()>,
) -> Result<Answer> {
    let Question { mut sequence, prompt, sampling, max_tokens, relaxed, stop } = question;
    refuse_too_long(prompt.len(), running.context)?;
    let room = max_tokens.min(running.context - prompt.len());
    if room == 0 {
        bail!("`--max-tokens 0` leaves no room for an answer");
    }
    let start = Instant::now();
    let unread = &prompt[sequence.committed()..];
    if unread.is_empty() {
        return Err(engine::Error::NothingToRead.into());
    }
    running.read(&mut sequence, unread, stop)?;
    let Running { engine, text, .. } = running;
    let ends = text.tokenizer.ends().to_vec();
    let mut generation = engine.begin_read(0, None, sequence, prompt, 0, sampling.clone(), ends)?;
    let prefill_s = start.elapsed().as_secs_f64();
    if let Some(relaxed) = relaxed {
        generation.relax(relaxed);
    }

    let start = Instant::now();
    let mut stream = Stream::new(&text.tokenizer, Controls::Hide, []);
    let mut written = String::new();
    let mut ids = vec![generation.tip()];
    let (mut rounds, mut round_s): (Vec<Round>, Vec<f64>) = (Vec::new(), Vec::new());
    let mut give = |token: u32, drafted: bool, round: Option<&Round>| {
        let text = stream.push(token);
        written.push_str(&text);
        emit(Piece { text: &text, drafted, round })
    };
    give(ids[0], false, None)?;
    let mut round_began = Instant::now();
    let finish = loop {
        if text.tokenizer.is_end(ids[ids.len() - 1]) {
            break Finish::Stop;
        }
        if ids.len() >= room {
            break Finish::Length;
        }
        if stop.load(Ordering::Relaxed) {
            break Finish::Interrupted;
        }
        let round = engine.step(&mut generation, room - ids.len())?;
        let last = round.emitted.len() - 1;
        for (i, &token) in round.emitted.iter().enumerate() {
            give(token, i < round.accepted, (i == last).then_some(&round))?;
        }
        ids.extend(&round.emitted);
        rounds.push(round);
        let now = Instant::now();
        round_s.push(now.duration_since(round_began).as_secs_f64());
        round_began = now;
    };
    let rest = stream.finish();
    emit(Piece { text: &rest, drafted: false, round: None })?;
    written.push_str(&rest);
    let (decode_s, fallback) =
        (start.elapsed().as_secs_f64(), generation.fallback().map(str::to_owned));
    let sequence = generation.into_sequence();
    Ok(Answer {
        ids,
        text: written,
        finish,
        prefill_s,
        decode_s,
        rounds,
        round_s,
        fallback,
        sequence,
    })
}

/// Refuses a prompt that the context has no room for.
pub(crate) fn refuse_too_long(tokens: usize, context: usize) -> Result<()> {
    if tokens >= context {
        bail!(
            "the prompt has {tokens} tokens, which leaves no room for an answer in `--ctx \
             {context}`"
        );
    }
    Ok(())
}

/// A bar that goes when it is let go of.
fn prompt_bar(tokens: usize) -> ProgressBar {
    if tokens < LONG_PROMPT {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("reading {bar:40} {pos}/{len} tokens {per_sec} {eta}");
    let bar = ProgressBar::new(tokens as u64).with_finish(ProgressFinish::AndClear);
    bar.with_style(style.expect("the template is a constant"))
}
