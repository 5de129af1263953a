//! Writing an answer: read the prompt, then draw, emit and commit one token after the other.

use crate::model_flags::Running;
use anyhow::{Result, bail};
use engine::sampling::{History, Sampler, Sampling};
use engine::{Row, Sequence};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use text::{Controls, Stream};

/// A prompt is worth a progress bar from this many tokens on.
const LONG_PROMPT: usize = 2048;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    /// The model said so.
    Stop,
    /// `--max-tokens` or the context was reached.
    Length,
    /// The user pressed Ctrl-C.
    Interrupted,
}

/// An answer and what it took.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The end token included.
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) finish: Finish,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
    /// Of `decode_s`.
    pub(crate) verify_s: f64,
    pub(crate) commit_s: f64,
}

/// What an answer is asked with.
pub(crate) struct Question<'a> {
    /// Tokens that `sequence` does not hold yet; at least one.
    pub(crate) unread: &'a [u32],
    /// All tokens of the prompt.
    pub(crate) prompt: &'a [u32],
    pub(crate) sampling: &'a Sampling,
    pub(crate) max_tokens: usize,
    /// Set to end the answer after the token at hand.
    pub(crate) stop: &'a AtomicBool,
}

/// Answers a question, giving the text away piece by piece. Afterwards `sequence` holds the prompt and every token of
/// the answer but the last.
pub(crate) fn answer(
    running: &mut Running,
    sequence: &mut Sequence,
    question: &Question<'_>,
    mut emit: impl FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let Running { cpu, model, text, context, .. } = running;
    if question.prompt.len() >= *context {
        bail!(
            "the prompt has {} tokens, which leaves no room for an answer in `--ctx {context}`",
            question.prompt.len()
        );
    }
    let start = Instant::now();
    let bar = prompt_bar(question.unread.len());
    model.read(cpu, sequence, question.unread, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let prefill_s = start.elapsed().as_secs_f64();

    let mut stream = Stream::new(&text.tokenizer, Controls::Hide, []);
    let mut history = History::new(question.prompt);
    let mut sampler = Sampler::default();
    let mut answer = Answer {
        ids: Vec::new(),
        text: String::new(),
        finish: Finish::Length,
        prefill_s,
        decode_s: 0.0,
        verify_s: 0.0,
        commit_s: 0.0,
    };
    let start = Instant::now();
    let room = question.max_tokens.min(*context - question.prompt.len());
    while answer.ids.len() < room {
        let token = sampler.draw(question.sampling, &history, model.logits(0), sequence.committed())?;
        history.push(token);
        answer.ids.push(token);
        let piece = stream.push(token);
        if !piece.is_empty() {
            emit(&piece)?;
            answer.text.push_str(&piece);
        }
        if text.tokenizer.is_end(token) {
            answer.finish = Finish::Stop;
            break;
        }
        if question.stop.load(Ordering::Relaxed) {
            answer.finish = Finish::Interrupted;
            break;
        }
        if answer.ids.len() == room {
            break;
        }
        let pass = Instant::now();
        model.forward(cpu, &[Row { token, sequence: 0, parent: None }], &[0], &[sequence])?;
        answer.verify_s += pass.elapsed().as_secs_f64();
        let commit = Instant::now();
        model.commit(cpu, 0, sequence, &[0])?;
        answer.commit_s += commit.elapsed().as_secs_f64();
    }
    let rest = stream.finish();
    emit(&rest)?;
    answer.text.push_str(&rest);
    answer.decode_s = start.elapsed().as_secs_f64();
    Ok(answer)
}

fn prompt_bar(tokens: usize) -> ProgressBar {
    if tokens < LONG_PROMPT {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("reading {bar:40} {pos}/{len} tokens {per_sec} {eta}");
    ProgressBar::new(tokens as u64).with_style(style.expect("the template is a constant"))
}
