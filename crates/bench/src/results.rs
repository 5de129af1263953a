//! What a run of `bench` found, as its JSON has it: every answer that was timed, and figures by
//! suite and mode.

use crate::cost::Cost;
use crate::machine::Machine;
use crate::prices;
use crate::served::Served;
use crate::statistics::{Estimate, Interval, median};
use crate::sweep::Sweep;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the JSON.
const FORMAT: u32 = 1;

/// The name of the figures over all suites.
pub(crate) const OVERALL: &str = "overall";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) format: u32,
    pub(crate) machine: Machine,
    pub(crate) settings: Option<Settings>,
    /// The most memory the program held.
    pub(crate) peak_memory_bytes: u64,
    /// By suite, then by mode, in the order they were asked for; `overall` last.
    pub(crate) cells: Vec<Cell>,
    pub(crate) sweeps: Vec<Sweep>,
    pub(crate) cost: Option<Cost>,
    /// Of a server that was asked.
    #[serde(default)]
    pub(crate) served: Option<Served>,
    /// What stages of rounds took, for `--prices`.
    #[serde(default)]
    pub(crate) prices: Option<prices::Stages>,
    pub(crate) samples: Vec<Sample>,
}

/// What answers were asked with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) model: String,
    pub(crate) kv: String,
    pub(crate) suites: Vec<String>,
    pub(crate) modes: Vec<String>,
    pub(crate) repeats: usize,
    pub(crate) max_tokens: usize,
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
}

/// One answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) suite: String,
    /// Its number in the suite, from 0.
    pub(crate) prompt: usize,
    pub(crate) repeat: usize,
    pub(crate) mode: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) tokens: usize,
    /// Until the first token.
    pub(crate) prefill_s: f64,
    /// From the first token to the last.
    pub(crate) decode_s: f64,
    pub(crate) stages: Stages,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
    /// One for each verify.
    pub(crate) accept_lengths: Vec<usize>,
    /// Microseconds of each, all that is between two of them included.
    #[serde(default)]
    pub(crate) round_us: Vec<f64>,
    /// Of the sequence at the end.
    pub(crate) state_bytes: usize,
    /// A checksum of the tokens.
    pub(crate) text: String,
    /// The machine's pace just before, where it was measured.
    #[serde(default)]
    pub(crate) pace: Option<f64>,
}

/// Where the time of rounds goes: in a sample seconds of them all, in a cell milliseconds of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stages {
    pub(crate) draft: f64,
    pub(crate) verify: f64,
    pub(crate) judge: f64,
    pub(crate) commit: f64,
    /// Between the rounds: text, and what nobody accounts for.
    pub(crate) host: f64,
}

/// Figures of a mode over a suite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) suite: String,
    pub(crate) mode: String,
    pub(crate) prompts: usize,
    pub(crate) tokens_per_s: Interval,
    /// To plain decoding of the same prompt in the same repeat.
    pub(crate) ratio: Option<Interval>,
    pub(crate) accept_length: Interval,
    pub(crate) accepted_per_drafted: Option<f64>,
    pub(crate) prompt_tokens: f64,
    pub(crate) first_token_ms: Interval,
    pub(crate) prefill_tokens_per_s: Interval,
    pub(crate) round_ms: Stages,
    pub(crate) state_bytes: usize,
    /// Answers whose tokens are not those of plain decoding.
    pub(crate) different_texts: usize,
}

impl Sample {
    /// Tokens after the first, which is the prompt's, by the time they took.
    pub(crate) fn tokens_per_s(&self) -> f64 {
        (self.tokens - 1) as f64 / self.decode_s.max(1e-9)
    }

    pub(crate) fn mean_accept_length(&self) -> f64 {
        self.accept_lengths.iter().sum::<usize>() as f64 / self.accept_lengths.len().max(1) as f64
    }

    pub(crate) fn prefill_tokens_per_s(&self) -> f64 {
        self.prompt_tokens as f64 / self.prefill_s.max(1e-9)
    }
}

impl Stages {
    pub(crate) fn each(&self) -> [(&'static str, f64); 5] {
        let Self { draft, verify, judge, commit, host } = *self;
        [("draft", draft), ("verify", verify), ("judge", judge), ("commit", commit), ("host", host)]
    }
}

impl Results {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            format: FORMAT,
            machine,
            settings: None,
            peak_memory_bytes: 0,
            cells: Vec::new(),
            sweeps: Vec::new(),
            cost: None,
            served: None,
            prices: None,
            samples: Vec::new(),
        }
    }

    /// Reads a JSON that an earlier run wrote.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(shown)?;
        let results: Self = serde_json::from_str(&text).with_context(shown)?;
        if results.format != FORMAT {
            bail!("{}: format {}, {FORMAT} expected", shown(), results.format);
        }
        Ok(results)
    }
}

/// The samples of a suite and mode, by prompt, in the order of their repeats: `[prompts][repeats]`.
pub(crate) fn by_prompt<'a>(
    samples: &'a [Sample],
    suite: &str,
    mode: &str,
) -> Vec<Vec<&'a Sample>> {
    let mut prompts: Vec<Vec<&Sample>> = Vec::new();
    for sample in samples.iter().filter(|s| s.suite == suite && s.mode == mode) {
        match prompts.iter_mut().find(|p| p[0].prompt == sample.prompt) {
            Some(repeats) => repeats.push(sample),
            None => prompts.push(vec![sample]),
        }
    }
    prompts.sort_by_key(|p| p[0].prompt);
    prompts.iter_mut().for_each(|p| p.sort_by_key(|s| s.repeat));
    prompts
}

/// A figure of samples, by prompt and repeat, of those that wrote more than one token.
pub(crate) fn table(prompts: &[Vec<&Sample>], figure: impl Fn(&Sample) -> f64) -> Vec<Vec<f64>> {
    let row = |p: &Vec<&Sample>| p.iter().filter(|s| s.tokens > 1).map(|s| figure(s)).collect();
    prompts.iter().map(row).filter(|p: &Vec<f64>| !p.is_empty()).collect()
}

/// A cell and the estimates that the overall one is made of.
struct Figures {
    cell: Cell,
    tokens_per_s: Estimate,
    ratio: Option<Estimate>,
    first_token_ms: Estimate,
    prefill_tokens_per_s: Estimate,
    accept_length: Estimate,
}

/// Figures of all suites and modes, and over all suites: geometric means of the suites' figures.
pub(crate) fn cells(samples: &[Sample], suites: &[String], modes: &[String]) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut overall: Vec<Vec<Figures>> = modes.iter().map(|_| Vec::new()).collect();
    for (i, suite) in suites.iter().enumerate() {
        let plain = modes.iter().any(|m| m == "off").then(|| by_prompt(samples, suite, "off"));
        for (mode, of_mode) in modes.iter().zip(&mut overall) {
            let figures =
                figures(&by_prompt(samples, suite, mode), plain.as_deref(), suite, mode, i as u64);
            cells.push(figures.cell.clone());
            of_mode.push(figures);
        }
    }
    if suites.len() > 1 {
        cells.extend(
            modes.iter().zip(&overall).map(|(mode, figures)| over_all(mode, figures, samples)),
        );
    }
    cells
}

fn figures(
    prompts: &[Vec<&Sample>],
    plain: Option<&[Vec<&Sample>]>,
    suite: &str,
    mode: &str,
    seed: u64,
) -> Figures {
    let tokens_per_s = Estimate::of_medians(&table(prompts, Sample::tokens_per_s), seed);
    let prefill_tokens_per_s =
        Estimate::of_medians(&table(prompts, Sample::prefill_tokens_per_s), seed);
    let first_token_ms = Estimate::of_medians(&table(prompts, |s| s.prefill_s * 1e3), seed);
    let beside = |s: &Sample| {
        let row = plain?.iter().find(|p| p[0].prompt == s.prompt)?;
        row.iter().find(|p| p.repeat == s.repeat).copied()
    };
    let ratios =
        table(prompts, |s| beside(s).map_or(f64::NAN, |p| s.tokens_per_s() / p.tokens_per_s()));
    let ratio = plain.map(|_| Estimate::of_medians(&ratios, seed));
    let all: Vec<&Sample> = prompts.iter().flatten().copied().collect();
    let different_texts =
        all.iter().filter(|s| beside(s).is_some_and(|p| p.text != s.text)).count();
    let accept_length = Estimate::of(prompts.len(), seed, |drawn| {
        let lengths = || drawn.iter().flat_map(|p| &prompts[*p]).flat_map(|s| &s.accept_lengths);
        lengths().sum::<usize>() as f64 / lengths().count().max(1) as f64
    });
    let cell = Cell {
        suite: suite.to_owned(),
        mode: mode.to_owned(),
        prompts: prompts.len(),
        tokens_per_s: tokens_per_s.interval(),
        ratio: ratio.as_ref().map(Estimate::interval),
        accept_length: accept_length.interval(),
        accepted_per_drafted: accepted_per_drafted(&all),
        prompt_tokens: median(prompts.iter().map(|p| p[0].prompt_tokens as f64)),
        first_token_ms: first_token_ms.interval(),
        prefill_tokens_per_s: prefill_tokens_per_s.interval(),
        round_ms: round_ms(&all),
        state_bytes: all.iter().map(|s| s.state_bytes).max().unwrap_or(0),
        different_texts,
    };
    Figures { cell, tokens_per_s, ratio, first_token_ms, prefill_tokens_per_s, accept_length }
}

fn over_all(mode: &str, suites: &[Figures], samples: &[Sample]) -> Cell {
    let all: Vec<&Sample> = samples.iter().filter(|s| s.mode == mode).collect();
    let mean = |figure: &dyn Fn(&Figures) -> Option<Estimate>| {
        let estimates: Option<Vec<Estimate>> = suites.iter().map(figure).collect();
        estimates.map(|e| Estimate::geometric_mean(&e).interval())
    };
    let known = |figure: &dyn Fn(&Figures) -> Estimate| {
        let estimates: Vec<Estimate> = suites.iter().map(figure).collect();
        Estimate::geometric_mean(&estimates).interval()
    };
    Cell {
        suite: OVERALL.to_owned(),
        mode: mode.to_owned(),
        prompts: suites.iter().map(|p| p.cell.prompts).sum(),
        tokens_per_s: known(&|p| p.tokens_per_s.clone()),
        ratio: mean(&|p| p.ratio.clone()),
        accept_length: known(&|p| p.accept_length.clone()),
        accepted_per_drafted: accepted_per_drafted(&all),
        prompt_tokens: median(all.iter().map(|s| s.prompt_tokens as f64)),
        first_token_ms: known(&|p| p.first_token_ms.clone()),
        prefill_tokens_per_s: known(&|p| p.prefill_tokens_per_s.clone()),
        round_ms: round_ms(&all),
        state_bytes: suites.iter().map(|p| p.cell.state_bytes).max().unwrap_or(0),
        different_texts: suites.iter().map(|p| p.cell.different_texts).sum(),
    }
}

fn accepted_per_drafted(samples: &[&Sample]) -> Option<f64> {
    let drafted: usize = samples.iter().map(|s| s.drafted).sum();
    let accepted: usize = samples.iter().map(|s| s.accepted).sum();
    (drafted > 0).then(|| accepted as f64 / drafted as f64)
}

/// The median over samples of each stage's milliseconds a round.
fn round_ms(samples: &[&Sample]) -> Stages {
    let stage = |part: fn(&Stages) -> f64| {
        let rounds = samples.iter().filter(|s| !s.accept_lengths.is_empty());
        median(rounds.map(|s| part(&s.stages) / s.accept_lengths.len() as f64 * 1e3))
    };
    Stages {
        draft: stage(|s| s.draft),
        verify: stage(|s| s.verify),
        judge: stage(|s| s.judge),
        commit: stage(|s| s.commit),
        host: stage(|s| s.host),
    }
}
