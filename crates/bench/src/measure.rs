//! Answers that are timed: modes take turns on every prompt, and all prompts again in every repeat,
//! so that whatever the machine does meanwhile meets all modes alike.

use crate::ask::Asked;
use crate::compare;
use crate::machine::Pace;
use crate::modes::Mode;
use crate::progress::Progress;
use crate::results::{Sample, Stages};
use crate::suites::Suite;
use anyhow::{Result, bail};
use engine::sampling::Sampling;
use engine::{Generation, Round};
use launch::Answer;
use launch::Running;
use runs::machine::checksum;
use std::time::{Duration, Instant};

/// How answers are asked for.
#[derive(Clone)]
pub(crate) struct Asking {
    /// Percent of its time that is wasted after each round, to see whether `compare` notices.
    pub(crate) slow_down: f64,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) repeats: usize,
    /// Whether rounds count as long as imposed prices say.
    pub(crate) imposed: bool,
    /// How long to go on after that until the figures have settled.
    pub(crate) patience: Duration,
}

impl Asking {
    fn of<'a>(&'a self, mode: &'a Mode, prompt: &'a [u32]) -> Asked<'a> {
        Asked { mode, prompt, sampling: &self.sampling, max_tokens: self.max_tokens }
    }
}

/// Figures have settled when they hang on single repeats by no more than this.
const SETTLED: f64 = 0.02;

/// Every prompt in every mode, as often as asked for.
pub(crate) fn samples(
    running: &mut Running,
    suites: &[Suite],
    modes: &[Mode],
    asking: &Asking,
) -> Result<Vec<Sample>> {
    for mode in modes {
        asking.of(mode, &suites[0].prompts[0]).answer(running)?;
    }
    let pace = Pace::new();
    pace.measure();
    let prompts: usize = suites.iter().map(|s| s.prompts.len()).sum();
    let progress = Progress::new(asking.repeats * prompts, &suites[0].name);
    let mut samples = Vec::new();
    let begin = Instant::now();
    for repeat in 0.. {
        let another = begin.elapsed() * (repeat as u32 + 1) / (repeat as u32).max(1);
        let go_on = || another < asking.patience && compare::unsettled(&samples) > SETTLED;
        if repeat >= asking.repeats && !go_on() {
            break;
        }
        if repeat >= asking.repeats {
            progress.lengthen(prompts);
        }
        for suite in suites {
            for (index, prompt) in suite.prompts.iter().enumerate() {
                for turn in 0..modes.len() {
                    let mode = &modes[(turn + index + repeat) % modes.len()];
                    let now = pace.measure();
                    let given = asking.of(mode, prompt).answer_slowly(running, asking.slow_down)?;
                    let sample = sample(
                        &suite.name,
                        index,
                        repeat,
                        mode,
                        prompt.len(),
                        &given,
                        asking.imposed,
                    );
                    samples.push(Sample { pace: Some(now), ..sample });
                }
                progress.step(&suite.name);
            }
        }
    }
    for suite in suites {
        if !samples.iter().any(|s| s.suite == suite.name && s.tokens > 1) {
            bail!(
                "every answer to `{}` ends with its first token: there is nothing to time",
                suite.name
            );
        }
    }
    Ok(samples)
}

/// So many prompts written at once, every round of them in one pass, for each number in `slots`:
/// samples whose suite is that number, whose tokens and seconds are those of all texts together.
pub(crate) fn together(
    running: &mut Running,
    prompts: &[&[u32]],
    slots: &[usize],
    modes: &[Mode],
    asking: &Asking,
) -> Result<Vec<Sample>> {
    let progress = Progress::new(asking.repeats * slots.len(), "slots");
    let mut samples = Vec::new();
    for repeat in 0..asking.repeats {
        for (&count, turn) in slots.iter().zip(0..) {
            for k in 0..modes.len() {
                let mode = &modes[(k + turn + repeat) % modes.len()];
                let these: Vec<&[u32]> = prompts.iter().cycle().take(count).copied().collect();
                samples.push(at_once(running, mode, &these, repeat, asking)?);
            }
            progress.step(&format!("{count} slots"));
        }
    }
    Ok(samples)
}

fn at_once(
    running: &mut Running,
    mode: &Mode,
    prompts: &[&[u32]],
    repeat: usize,
    asking: &Asking,
) -> Result<Sample> {
    let Running { engine, text, context, .. } = running;
    engine.set_spec(mode.spec);
    let ends = text.tokenizer.ends();
    let begin = Instant::now();
    let mut texts: Vec<(Generation, Vec<u32>)> = Vec::new();
    for prompt in prompts {
        let sequence = engine.sequence();
        let text = engine.begin(
            sequence,
            prompt,
            prompt,
            asking.sampling.clone(),
            ends.to_vec(),
            |_| (),
        )?;
        let first = text.tip();
        texts.push((text, vec![first]));
    }
    let prefill_s = begin.elapsed().as_secs_f64();
    let most = |prompt: &[u32]| asking.max_tokens.min(context.saturating_sub(prompt.len())).max(1);
    let begin = Instant::now();
    let mut rounds: Vec<Round> = Vec::new();
    let mut stages = Stages::default();
    loop {
        let mut open: Vec<(&mut Generation, &mut Vec<u32>, usize)> = Vec::new();
        for ((text, ids), prompt) in texts.iter_mut().zip(prompts) {
            let room = most(prompt).saturating_sub(ids.len());
            if room > 0 && !ids.last().is_some_and(|id| ends.contains(id)) {
                open.push((text, ids, room));
            }
        }
        if open.is_empty() {
            break;
        }
        let mut step: Vec<(&mut Generation, usize)> =
            open.iter_mut().map(|(t, _, room)| (&mut **t, *room)).collect();
        let found = engine.step_all(&mut step)?.into_iter().collect::<Result<Vec<Round>, _>>()?;
        // The texts of a round share its verify.
        stages.verify += found.first().map_or(0.0, |r| r.verify_s);
        for ((_, ids, _), round) in open.iter_mut().zip(found) {
            ids.extend(&round.emitted);
            stages.draft += round.draft_s;
            stages.judge += round.judge_s;
            stages.commit += round.commit_s;
            rounds.push(round);
        }
    }
    let decode_s = begin.elapsed().as_secs_f64();
    stages.host = (decode_s - stages.draft - stages.verify - stages.judge - stages.commit).max(0.0);
    let written: usize = texts.iter().map(|(_, ids)| ids.len()).sum();
    let ids = texts.iter().flat_map(|(_, ids)| ids.iter().flat_map(|id| id.to_le_bytes()));
    Ok(Sample {
        suite: prompts.len().to_string(),
        prompt: 0,
        repeat,
        mode: mode.name.clone(),
        prompt_tokens: prompts.iter().map(|p| p.len()).sum(),
        // The first token of each text is its prompt's.
        tokens: written + 1 - texts.len(),
        prefill_s,
        decode_s,
        stages,
        drafted: rounds.iter().map(|r| r.drafted).sum(),
        accepted: rounds.iter().map(|r| r.accepted).sum(),
        accept_lengths: rounds.iter().map(Round::accept_length).collect(),
        round_us: Vec::new(),
        state_bytes: texts.iter().map(|(text, _)| text.sequence().bytes()).sum(),
        text: format!("{:016x}", checksum(ids)),
        pace: None,
    })
}

fn sample(
    suite: &str,
    prompt: usize,
    repeat: usize,
    mode: &Mode,
    prompt_tokens: usize,
    given: &Answer,
    imposed: bool,
) -> Sample {
    let sum = |part: fn(&Round) -> f64| given.rounds.iter().map(part).sum::<f64>();
    let (draft, verify) = (sum(|r| r.draft_s), sum(|r| r.verify_s));
    let (judge, commit) = (sum(|r| r.judge_s), sum(|r| r.commit_s));
    // What imposed prices say is all that counts.
    let decode_s = if imposed { draft + verify + judge + commit } else { given.decode_s };
    let host = (decode_s - draft - verify - judge - commit).max(0.0);
    Sample {
        suite: suite.to_owned(),
        prompt,
        repeat,
        mode: mode.name.clone(),
        prompt_tokens,
        tokens: given.ids.len(),
        prefill_s: given.prefill_s,
        decode_s,
        stages: Stages { draft, verify, judge, commit, host },
        drafted: given.rounds.iter().map(|r| r.drafted).sum(),
        accepted: given.rounds.iter().map(|r| r.accepted).sum(),
        accept_lengths: given.rounds.iter().map(Round::accept_length).collect(),
        round_us: given.round_s.iter().map(|s| (s * 1e7).round() / 10.0).collect(),
        state_bytes: given.sequence.bytes(),
        text: format!("{:016x}", checksum(given.ids.iter().flat_map(|id| id.to_le_bytes()))),
        pace: None,
    }
}
