//! What a model costs on this machine: the prompt, a token, a verify by its number of rows, and the
//! floor that reading the weights sets. Works on any weights, random ones of a published shape
//! included.

use crate::progress::Progress;
use crate::statistics::{Interval, interval};
use anyhow::{Result, bail};
use checkpoint::TargetConfig;
use checkpoint::target::Ffn;
use compute::{Backend, KvType};
use engine::synthetic::{self, Mix};
use engine::{Model, Options, Placement, Row, Sequence, Tensor, WeightSource, sampling};
use launch::PlaceFlags;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Costs of one model.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    pub(crate) model: String,
    /// Bytes of all weights as their types store them, the MTP block left out.
    pub(crate) weight_bytes: u64,
    /// Of them, how many one token reads.
    pub(crate) token_bytes: u64,
    /// What the floor is computed with.
    pub(crate) bandwidth_gb_s: f64,
    /// `given`, or `measured` over as many bytes as a token reads.
    pub(crate) bandwidth_from: String,
    /// Tokens of context before a pass.
    pub(crate) context: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) prompt_tokens_per_s: Interval,
    /// A token of plain decoding: pass, draw and commit.
    pub(crate) token_ms: Interval,
    pub(crate) rows: Vec<RowCost>,
}

/// A pass of so many rows, all with logits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RowCost {
    pub(crate) rows: usize,
    pub(crate) ms: Interval,
    pub(crate) floor_ms: f64,
}

/// What to measure.
pub(crate) struct Plan<'a> {
    /// GB/s; measured where it is not given.
    pub(crate) bandwidth: Option<f64>,
    pub(crate) rows: &'a [usize],
    /// Time for each kind of figure.
    pub(crate) patience: Duration,
    pub(crate) threads: usize,
    pub(crate) kv: KvType,
    /// Where weights lie.
    pub(crate) place: &'a PlaceFlags,
}

/// Row counts that a verify is measured at.
pub(crate) const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Tokens before a pass that is timed.
const CONTEXT: usize = 100;
const PROMPT: usize = 256;
const FEWEST: usize = 3;
const MOST: usize = 400;

/// Measures a model of random weights at a published shape.
pub(crate) fn of_shape(
    name: &str,
    mix: Mix,
    backend: &mut dyn Backend,
    plan: &Plan<'_>,
) -> Result<Cost> {
    let Some(config) = synthetic::named(name) else {
        bail!("unknown shape `{name}`: {} expected", synthetic::NAMES.join(", "));
    };
    let config = TargetConfig { mtp: None, ..config };
    let weights = synthetic::Weights::new(&config, mix, 1);
    if !backend.has_own_memory() && plan.place.disk().is_none() {
        launch::check_weights(weights.bytes().into_values().sum())?;
    }
    let mix = match mix {
        Mix::Q4_K_M => "Q4_K_M",
        Mix::Q8_0 => "Q8_0",
        Mix::BF16 => "BF16",
        Mix::FP8 => "FP8",
        Mix::NVFP4 => "NVFP4",
        Mix::AWQ => "AWQ",
        Mix::IQ3_S => "IQ3_S",
    };
    of_weights(&format!("synthetic {name} {mix}"), &config, &weights, backend, plan)
}

/// Measures a model.
pub(crate) fn of_weights(
    name: &str,
    config: &TargetConfig,
    weights: &dyn WeightSource,
    backend: &mut dyn Backend,
    plan: &Plan<'_>,
) -> Result<Cost> {
    let progress = Progress::new(4, "making weights");
    let config = TargetConfig { mtp: None, ..config.clone() };
    let counted = Counted { weights, bytes: RefCell::default() };
    let placement = plan.place.asked(&config)?.unwrap_or(Placement::ON_DEVICE);
    let options = Options { kv: plan.kv, max_rows: PROMPT, placement, ..Options::new(backend) };
    let mut model = Model::load(backend, &config, &counted, options)?;
    let read = Read::new(&config, &counted.bytes.borrow());
    progress.step("memory");
    let (bandwidth, from) = match plan.bandwidth {
        Some(given) => (given * 1e9, "given"),
        None => (measured_bandwidth(read.by(1) as usize, plan.threads), "measured"),
    };
    progress.step("prompt");
    let mut bench = Bench { model: &mut model, backend, vocab: config.vocab };
    let prompt = bench.prompt(plan.patience)?;
    progress.step("tokens");
    let mut start = bench.model.sequence();
    let tokens = bench.tokens(CONTEXT);
    bench.model.read(bench.backend, &mut start, &tokens, |_| ())?;
    let decode = bench.decode(&start, plan.patience)?;
    progress.step("rows");
    let rows = bench.rows(&start, plan.rows, plan.patience)?;
    let floor_ms = |rows: usize| read.by(rows) as f64 / bandwidth * 1e3;
    Ok(Cost {
        model: name.to_owned(),
        weight_bytes: read.all,
        token_bytes: read.by(1),
        bandwidth_gb_s: bandwidth / 1e9,
        bandwidth_from: from.to_owned(),
        context: CONTEXT,
        prompt_tokens: PROMPT,
        prompt_tokens_per_s: prompt,
        token_ms: decode,
        rows: rows
            .into_iter()
            .map(|(rows, ms)| RowCost { rows, ms, floor_ms: floor_ms(rows) })
            .collect(),
    })
}

/// Weights that remember how large what was taken from them is.
struct Counted<'a> {
    weights: &'a dyn WeightSource,
    bytes: RefCell<BTreeMap<String, u64>>,
}

impl WeightSource for Counted<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let tensor = self.weights.tensor(name)?;
        self.bytes.borrow_mut().insert(name.to_owned(), tensor.bytes.len() as u64);
        Some(tensor)
    }
}

/// Bytes that a pass reads.
pub(super) struct Read {
    all: u64,
    /// Whatever the rows are.
    always: u64,
    /// Of the experts, all of them.
    experts: u64,
    /// The share of rows that go to each expert of a layer, the most wanted first.
    odds: Vec<f64>,
}

impl Read {
    pub(super) fn new(config: &TargetConfig, bytes: &BTreeMap<String, u64>) -> Self {
        let sum = |part: &dyn Fn(&str) -> bool| {
            bytes.iter().filter(|(n, _)| part(n)).map(|(_, b)| b).sum::<u64>()
        };
        let (all, experts) = (sum(&|_| true), sum(&|name| name.contains("_exps")));
        // A row of an embedding that is not the head too is next to nothing.
        let looked_up = if config.tied_head { 0 } else { sum(&|name| name == "token_embd.weight") };
        let odds = match config.ffn {
            Ffn::Moe { experts, used, .. } => vec![used as f64 / experts as f64; experts],
            Ffn::Dense { .. } => vec![1.0],
        };
        Self { all, always: all - experts - looked_up, experts, odds }
    }

    /// The same where some experts are chosen more often than others.
    pub(super) fn with_odds(self, odds: Option<&[f64]>) -> Self {
        Self { odds: odds.map_or(self.odds, <[f64]>::to_vec), ..self }
    }

    /// Bytes of all weights.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// By a pass of so many rows, which go to experts independently of each other.
    pub(super) fn by(&self, rows: usize) -> u64 {
        self.always + self.beyond(rows, 0.0)
    }

    /// Bytes of experts that it reads, without a share of them all: those that are most wanted.
    pub(super) fn beyond(&self, rows: usize, share: f64) -> u64 {
        let count = self.odds.len() as f64;
        let left = &self.odds[((share * count) as usize).min(self.odds.len())..];
        let met: f64 = left.iter().map(|odds| 1.0 - (1.0 - odds).powi(rows as i32)).sum();
        (self.experts as f64 * met / count) as u64
    }
}

/// A model with what it runs on.
struct Bench<'a> {
    model: &'a mut Model,
    backend: &'a mut dyn Backend,
    vocab: usize,
}

impl Bench<'_> {
    fn tokens(&self, count: usize) -> Vec<u32> {
        (0..count).map(|i| ((100 + i * 37) % self.vocab) as u32).collect()
    }

    fn prompt(&mut self, patience: Duration) -> Result<Interval> {
        let prompt = self.tokens(PROMPT);
        let times = repeated(patience, || {
            let mut sequence = self.model.sequence();
            let begin = Instant::now();
            self.model.read(self.backend, &mut sequence, &prompt, |_| ())?;
            Ok(PROMPT as f64 / begin.elapsed().as_secs_f64())
        })?;
        Ok(interval(&times))
    }

    /// Milliseconds of a token.
    fn decode(&mut self, start: &Sequence, patience: Duration) -> Result<Interval> {
        let (mut sequence, mut token) = (start.clone(), 7);
        let times = repeated(patience, || {
            let begin = Instant::now();
            let row = Row { token, sequence: 0, parent: None };
            self.model.forward(self.backend, &[row], &[0], &[&sequence])?;
            token = sampling::greedy(&self.model.logits(self.backend, 0)?)?;
            self.model.commit(self.backend, 0, &mut sequence, &[0])?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        })?;
        Ok(interval(&times))
    }

    /// Milliseconds of a pass, by rows; the counts take turns.
    fn rows(
        &mut self,
        start: &Sequence,
        counts: &[usize],
        patience: Duration,
    ) -> Result<Vec<(usize, Interval)>> {
        let mut times = vec![Vec::new(); counts.len()];
        repeated(2 * patience, || {
            for (&count, times) in counts.iter().zip(&mut times) {
                let tokens = self.tokens(count);
                let row = |(i, &token): (usize, &u32)| Row {
                    token,
                    sequence: 0,
                    parent: (i as u32).checked_sub(1),
                };
                let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
                let chosen: Vec<u32> = (0..count as u32).collect();
                let begin = Instant::now();
                self.model.forward(self.backend, &rows, &chosen, &[start])?;
                self.backend.finish()?;
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
            Ok(0.0)
        })?;
        Ok(counts.iter().zip(&times).map(|(count, times)| (*count, interval(times))).collect())
    }
}

/// Does something once to warm up, then until patience ends, and collects what it gives.
fn repeated(patience: Duration, mut once: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    once()?;
    let (begin, mut values) = (Instant::now(), Vec::new());
    while values.len() < FEWEST || (values.len() < MOST && begin.elapsed() < patience) {
        values.push(once()?);
    }
    Ok(values)
}

/// Bytes per second that so many threads read a block of this size with, over and over: from memory
/// or, where it fits, from the cache, as a model of this size does.
pub fn measured_bandwidth(bytes: usize, threads: usize) -> f64 {
    let words = (bytes / 8).clamp(1 << 17, 1 << 27) / threads * threads;
    let block: Vec<u64> = (0..words as u64).collect();
    let passes = ((1usize << 30) / (words * 8)).max(2);
    // Several sums at once, so that the loads do not wait for an addition.
    let sum = |part: &[u64]| {
        let mut sums = [0u64; 16];
        for sixteen in part.chunks_exact(16) {
            sums.iter_mut().zip(sixteen).for_each(|(sum, word)| *sum ^= word);
        }
        sums.iter().fold(0, |a, b| a ^ b)
    };
    let once = || {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for part in block.chunks(words / threads) {
                scope.spawn(move || {
                    (0..passes)
                        .fold(0, |a, _| a ^ std::hint::black_box(sum(std::hint::black_box(part))))
                });
            }
        });
        (words * 8 * passes) as f64 / begin.elapsed().as_secs_f64()
    };
    (0..4).map(|_| once()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_reads_more_experts_the_more_rows_it_has() {
        let config = synthetic::tiny_moe();
        let bytes =
            [("token_embd.weight", 100), ("output.weight", 50), ("blk.0.ffn_up_exps.weight", 1600)];
        let read = Read::new(&config, &bytes.map(|(name, bytes)| (name.to_owned(), bytes)).into());
        // 4 of 16 experts by the first row; the second meets a quarter of the rest.
        assert_eq!((read.all, read.by(1), read.by(2)), (1750, 50 + 400, 50 + 700));
        assert_eq!(read.by(64), 50 + 1599);
        // Half of them lie elsewhere.
        assert_eq!(read.beyond(1, 0.5), 200);
        let skewed = read.with_odds(Some(&[[0.5; 8], [0.0; 8]].concat()));
        assert_eq!([skewed.by(1), skewed.by(2)], [50 + 400, 50 + 600]);
        assert_eq!(skewed.beyond(2, 0.5), 0, "nobody wants the rest");
    }
}
