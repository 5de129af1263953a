//! Answers that are timed: modes take turns on every prompt, and all prompts again in every repeat, so that whatever
//! the machine does meanwhile meets all modes alike.

use super::machine::checksum;
use super::modes::Mode;
use super::progress::Progress;
use super::results::{Sample, Stages};
use super::suites::Suite;
use crate::answer::{Answer, Question, answer};
use crate::model_flags::Running;
use anyhow::{Result, bail};
use engine::Round;
use engine::sampling::Sampling;
use std::sync::atomic::AtomicBool;

/// How answers are asked for.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) repeats: usize,
}

/// One answer in one mode.
pub(crate) fn ask(
    running: &mut Running,
    mode: &Mode,
    prompt: &[u32],
    sampling: &Sampling,
    max_tokens: usize,
) -> Result<Answer> {
    running.engine.set_spec(mode.spec);
    let sequence = running.engine.sequence();
    let stop = &AtomicBool::new(false);
    answer(running, Question { sequence, prompt, sampling, max_tokens, relaxed: None, stop }, |_| Ok(()))
}

/// Every prompt in every mode, as often as asked for.
pub(crate) fn samples(
    running: &mut Running,
    suites: &[Suite],
    modes: &[Mode],
    asking: &Asking,
) -> Result<Vec<Sample>> {
    for mode in modes {
        ask(running, mode, &suites[0].prompts[0], &asking.sampling, asking.max_tokens)?;
    }
    let prompts: usize = suites.iter().map(|s| s.prompts.len()).sum();
    let progress = Progress::new(asking.repeats * prompts, &suites[0].name);
    let mut samples = Vec::new();
    for repeat in 0..asking.repeats {
        for suite in suites {
            for (index, prompt) in suite.prompts.iter().enumerate() {
                for turn in 0..modes.len() {
                    let mode = &modes[(turn + index + repeat) % modes.len()];
                    let given = ask(running, mode, prompt, &asking.sampling, asking.max_tokens)?;
                    samples.push(sample(&suite.name, index, repeat, mode, prompt.len(), &given));
                }
                progress.step(&suite.name);
            }
        }
    }
    for suite in suites {
        if !samples.iter().any(|s| s.suite == suite.name && s.tokens > 1) {
            bail!("every answer to `{}` ends with its first token: there is nothing to time", suite.name);
        }
    }
    Ok(samples)
}

fn sample(
    suite: &str,
    prompt: usize,
    repeat: usize,
    mode: &Mode,
    prompt_tokens: usize,
    given: &Answer,
) -> Sample {
    let sum = |part: fn(&Round) -> f64| given.rounds.iter().map(part).sum::<f64>();
    let (draft, verify) = (sum(|r| r.draft_s), sum(|r| r.verify_s));
    let (judge, commit) = (sum(|r| r.judge_s), sum(|r| r.commit_s));
    let host = (given.decode_s - draft - verify - judge - commit).max(0.0);
    Sample {
        suite: suite.to_owned(),
        prompt,
        repeat,
        mode: mode.name.clone(),
        prompt_tokens,
        tokens: given.ids.len(),
        prefill_s: given.prefill_s,
        decode_s: given.decode_s,
        stages: Stages { draft, verify, judge, commit, host },
        drafted: given.rounds.iter().map(|r| r.drafted).sum(),
        accepted: given.rounds.iter().map(|r| r.stood).sum(),
        accept_lengths: given.rounds.iter().map(Round::accept_length).collect(),
        state_bytes: given.sequence.bytes(),
        text: format!("{:016x}", checksum(given.ids.iter().flat_map(|id| id.to_le_bytes()))),
    }
}
