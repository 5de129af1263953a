//! `forerun bench fleet`: what so many workers would do. A trace of conversations is replayed against
//! simulated workers, whose costs were measured on a real one, through routers as they are
//! published; with `--against` the same trace also goes to real workers, and both are compared.

mod compare;
mod curves;
mod real;
mod replay;
mod router;
mod trace;
mod worker;

use anyhow::{Context, Result, bail};
use curves::Curves;
use replay::{Fleet, replay};
use router::Policy;
use serde_json::json;
use std::path::PathBuf;
use trace::{Mix, Trace};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What a worker takes: a named run with prompts and several texts, such as
    /// docs/runs/h200-27b-texts.json
    #[arg(long, value_name = "FILE", required_unless_present = "against")]
    curves: Option<PathBuf>,
    /// Real workers of this machine or near it: their costs are measured, the trace is replayed
    /// against them, and the simulation is compared with that
    #[arg(long, value_name = "URL", value_delimiter = ',', conflicts_with = "curves")]
    against: Vec<String>,
    /// Workers; with `--against` as many as there are
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,10,100,1000")]
    workers: Vec<usize>,
    /// How requests are spread
    #[arg(long, value_enum, value_delimiter = ',', default_value = "round-robin,affinity,kv")]
    router: Vec<Policy>,
    /// Who asks
    #[arg(long, value_enum, default_value = "mixed")]
    trace: Mix,
    /// Conversations that begin in a minute, for each worker
    #[arg(long, value_name = "N", default_value_t = 6.0)]
    talks: f64,
    /// Minutes in which conversations begin
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    minutes: f64,
    /// Lengths of prompts and answers, as a factor
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    lengths: f64,
    /// Pauses between an answer and the next question, as a factor
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pauses: f64,
    /// Answers that a worker writes at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    slots: usize,
    /// Tokens of a prompt that a worker reads at a time beside running answers, 64 on a processor;
    /// as many as it reads in 40 ms unless given
    #[arg(long, value_name = "N")]
    chunk: Option<usize>,
    /// Tokens whose states a worker keeps for prompts to come
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    kept: usize,
    /// Deaths of a worker in an hour
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    deaths: f64,
    /// Restart all workers, one after the other, from the first minute on
    #[arg(long)]
    restart: bool,
    /// Seconds until a worker that was started answers
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    start: f64,
    /// What a worker costs in an hour, in any currency; without it costs are hours of workers
    #[arg(long, value_name = "X")]
    price: Option<f64>,
    /// Where draws begin
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// With `--against`: how often both are run; medians count
    #[arg(long, value_name = "N", default_value_t = 3, requires = "against")]
    repeats: usize,
    /// With `--against`: write a run that pages quote
    #[arg(long, value_name = "FILE", requires = "against")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.against.is_empty() {
        return compare::compare(args);
    }
    let path = args.curves.as_ref().context("`--curves` names no file")?;
    let curves = Curves::read(path)?;
    let mut rows = Vec::new();
    for count in &args.workers {
        if *count == 0 {
            bail!("`--workers` has 0: a fleet has at least one");
        }
        let trace = args.made(*count);
        for policy in &args.router {
            let figures = replay(&trace, &curves, &args.fleet(*count), *policy);
            rows.push((*count, *policy, figures));
        }
    }
    if args.json {
        let rows = rows.iter().map(|(count, policy, figures)| {
            json!({"workers": count, "router": policy.name(), "figures": figures.json(*count, args.price)})
        });
        println!("{}", json!({"fleet": rows.collect::<Vec<_>>()}));
        return Ok(());
    }
    println!("{}", head(args.price));
    for (count, policy, figures) in &rows {
        println!("{count:>7}  {:<11} {}", policy.name(), figures.line(*count, args.price));
    }
    Ok(())
}

fn head(price: Option<f64>) -> String {
    let cost = if price.is_some() { "cost" } else { "hours" };
    format!(
        "workers  router         tok/s   first token, s: median    95 %  cached  {cost} per M tokens  lost"
    )
}

impl Args {
    fn made(&self, workers: usize) -> Trace {
        let (talks, seconds) = (self.talks * workers as f64 / 60.0, self.minutes * 60.0);
        Trace::make(self.trace, talks, seconds, self.lengths, self.pauses, self.seed)
    }

    fn fleet(&self, workers: usize) -> Fleet {
        Fleet {
            workers,
            slots: self.slots,
            chunk: self.chunk,
            kept: self.kept,
            deaths_per_s: self.deaths / 3600.0,
            restart: self.restart,
            start_s: self.start,
            has_answers: self.against.is_empty(),
            seed: self.seed,
        }
    }
}

/// Numbers that are the same for the same seed, whatever machine draws them.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Of that mean, as waiting times are spread.
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// About `mean`, from half of it to twice as much.
    fn about(&mut self, mean: f64) -> usize {
        (mean * 2f64.powf(2.0 * self.unit() - 1.0)).round().max(1.0) as usize
    }
}

#[cfg(test)]
mod tests;
