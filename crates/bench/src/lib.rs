//! `forerun bench`: figures that anyone can make again. Modes side by side over suites of prompts,
//! the cost of a shape without a file, whether all modes write the same text, and what changed
//! between two runs.
#![forbid(unsafe_code)]

mod ask;
mod compare;
mod cost;
mod experts;
mod figures;
mod fleet;
mod floor;
mod http;
mod keep;
mod kernels;
mod machine;
mod measure;
mod modes;
mod named;
mod pages;
mod parity;
mod plot;
mod prices;
mod progress;
mod report;
mod results;
mod rounds;
mod served;
mod statistics;
pub mod suites;
mod sweep;
mod tables;
mod versus;

pub use cost::measured_bandwidth;
pub use machine::Machine;
pub use progress::Progress;
pub use statistics::deviation;
pub use tables::table;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use cost::{Cost, Plan};
use engine::sampling::Sampling;
use engine::synthetic::Mix;
use http::Client;
use launch::{Mode as Pinned, ModelFlags, Running, SamplingFlags};
use measure::Asking;
use modes::{Means, Mode};
use results::{Results, Settings};
use served::Served;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use suites::Suite;
use sweep::{Axis, Range};

/// Arguments of `forerun bench`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    measure: MeasureArgs,
}

#[derive(Subcommand)]
enum Task {
    /// Compare all modes token by token with plain decoding
    Parity(Box<parity::Args>),
    /// Say what changed between two runs beyond noise
    Compare(compare::Args),
    /// Measure rounds at a published shape, with random weights and an imposed acceptance
    Rounds(Box<rounds::Args>),
    /// Run two builds in turns and say in what they differ
    Versus(versus::Args),
    /// Say what so many workers behind a router would do, by what one was measured to take
    Fleet(Box<fleet::Args>),
    /// Say what reading only part of long prompts costs in answers
    Keep(Box<keep::Args>),
    /// Count how often each expert is chosen, for `--expert-counts`
    Experts(Box<experts::Args>),
    /// Write the tables of a page from the JSON of named runs, or name a run
    Tables(pages::Args),
}

/// What random weights and a server each make no use of. The flags that require one of the two say
/// so as well: clap does not ask for a flag that conflicts with one that is given.
const NO_SHAPE: [&str; 4] = ["prompts", "modes", "model", "draft"];
const NO_SERVER: [&str; 5] = ["synthetic", "modes", "model", "draft", "sweep"];

#[derive(clap::Args)]
struct MeasureArgs {
    /// Suites of prompts: code, math, plan, tools, complete, prose, repeat, long, edits
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "code,math,plan,complete"
    )]
    suite: Vec<String>,
    /// Prompts of your own instead, one JSON object a line with `prompt` or `messages`
    #[arg(long, value_name = "FILE", conflicts_with = "suite")]
    prompts: Vec<PathBuf>,
    /// Modes: off, chain[:BLOCK], tree[:BUDGET], mtp[:DEPTH], lookup[:BUDGET], auto; all that the
    /// model has unless given
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    modes: Vec<String>,
    /// Prompts of each suite
    #[arg(long, value_name = "N", default_value_t = 10)]
    per_suite: usize,
    /// Leave out the first N prompts of each suite: what was tuned on some is reported on others
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "server")]
    skip: usize,
    /// How often everything is measured; unless given at least 3 times, and up to 50 s until what
    /// disturbs has been seen past
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repeats: Option<u16>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 96)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    max_tokens: u32,
    /// Vary one setting: budget=1..63, block=2..16, rows=1,2,4, context=256..8192 or slots=1,2,4,8;
    /// may be given several times
    #[arg(long, value_name = "AXIS=VALUES")]
    sweep: Vec<Range>,
    /// Measure random weights of a published shape instead of a model
    #[arg(long, value_name = "SHAPE", conflicts_with_all = NO_SHAPE)]
    synthetic: Option<String>,
    /// Types of the synthetic weights
    #[arg(
        long,
        value_enum,
        default_value = "q4_k_m",
        requires = "synthetic",
        conflicts_with = "server"
    )]
    #[arg(conflicts_with_all = NO_SHAPE)]
    mix: Weights,
    /// Ask an OpenAI-compatible server instead of loading a model: `http://host:port`
    #[arg(long, value_name = "URL", conflicts_with_all = NO_SERVER)]
    server: Option<String>,
    /// Requests at a time; prompts are asked again where there are fewer
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        requires = "server",
        conflicts_with_all = NO_SERVER,
        default_value = "1,2,4,8,16"
    )]
    concurrency: Vec<u16>,
    /// A file with the key that the server asks for
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with_all = NO_SERVER)]
    api_key_file: Option<PathBuf>,
    /// Count rounds as if they ran elsewhere, at what stages took there: h200-27b, h200-35b-a3b, or
    /// a file that `--json` wrote there; texts and acceptance are the model's
    #[arg(long, value_name = "WHERE", conflicts_with_all = ["server", "synthetic", "sweep"])]
    prices: Option<String>,
    /// What memory can deliver, in GB/s, for the floor; measured unless given
    #[arg(long, value_name = "GB/S")]
    bandwidth: Option<f64>,
    /// Write results.json, CSV files and report.html into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Waste so many percent of every round's time, to see whether `bench compare` notices
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, hide = true)]
    slow_down: f64,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// Mixes of block types.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Weights {
    #[value(name = "q4_k_m")]
    Q4,
    #[value(name = "q8_0")]
    Q8,
    #[value(name = "bf16")]
    Bf16,
    #[value(name = "fp8")]
    Fp8,
    #[value(name = "nvfp4")]
    Nvfp4,
    #[value(name = "awq")]
    Awq,
    #[value(name = "iq3_s")]
    Iq3,
}

impl Weights {
    fn mix(self) -> Mix {
        match self {
            Self::Q4 => Mix::Q4_K_M,
            Self::Q8 => Mix::Q8_0,
            Self::Bf16 => Mix::BF16,
            Self::Fp8 => Mix::FP8,
            Self::Nvfp4 => Mix::NVFP4,
            Self::Awq => Mix::AWQ,
            Self::Iq3 => Mix::IQ3_S,
        }
    }
}

/// How often everything is measured at least, and how long to go on where repeats differ.
const REPEATS: usize = 3;
const SETTLING: Duration = Duration::from_secs(50);

/// Time for each kind of cost.
const PATIENCE: Duration = Duration::from_secs(2);
/// Modes side by side unless others are asked for.
const MODES: [&str; 6] = ["off", "chain", "tree", "mtp", "lookup", "auto"];

/// Whether a model writes the same text in every mode on its device: `bench parity` as the doctor
/// asks for it.
pub fn parity_of(model: &ModelFlags) -> Result<()> {
    parity::of(model)
}

/// Measures what the arguments ask for and prints it.
pub fn run(args: &Args) -> Result<()> {
    match &args.task {
        Some(Task::Parity(args)) => parity::run(args),
        Some(Task::Compare(args)) => compare::run(args),
        Some(Task::Rounds(args)) => rounds::run(args),
        Some(Task::Versus(args)) => versus::run(args),
        Some(Task::Fleet(args)) => fleet::run(args),
        Some(Task::Keep(args)) => keep::run(args),
        Some(Task::Experts(args)) => experts::run(args),
        Some(Task::Tables(args)) => pages::run(args),
        None => measured(&args.measure),
    }
}

fn measured(args: &MeasureArgs) -> Result<()> {
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if args.bandwidth.is_some_and(|b| !(b.is_finite() && b > 0.0)) {
        bail!("`--bandwidth`: a number above 0 expected");
    }
    let machine = Machine::describe(&args.model)?;
    machine.warn();
    let mut results = Results::new(machine);
    if let Some(url) = &args.server {
        results.served = Some(served(args, url)?);
    } else if args.synthetic.is_some() {
        results.cost = Some(costs(args, &cost::ROWS, &results.machine)?);
    } else {
        answers(args, &mut results)?;
    }
    results.peak_memory_bytes = runs::machine::peak_memory();
    if let Some(folder) = &args.out {
        report::write(folder, &results)?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&results)?)?;
    } else {
        tables::print(&mut out, &results)?;
    }
    if let Some(folder) = &args.out {
        eprintln!("written: {}", folder.join("report.html").display());
    }
    Ok(out.flush()?)
}

/// The prompts over HTTP.
fn served(args: &MeasureArgs, url: &str) -> Result<Served> {
    let key = match &args.api_key_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let key = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#'));
            Some(key.with_context(|| format!("{} holds no key", path.display()))?.to_owned())
        }
        None => None,
    };
    let client = Client::new(url, key)?;
    let count = args.per_suite.max(1);
    let suites = match args.prompts.is_empty() {
        true => args
            .suite
            .iter()
            .map(|name| suites::suite_lines(name, count))
            .collect::<Result<Vec<_>>>()?,
        false => args
            .prompts
            .iter()
            .map(|path| suites::file_lines(path, count))
            .collect::<Result<Vec<_>>>()?,
    };
    let sampling = args.sampling.over(&Sampling::default(), usize::MAX)?;
    let asking = served::Asking {
        concurrency: args.concurrency.iter().map(|c| usize::from(*c).max(1)).collect(),
        repeats: args.repeats.map_or(REPEATS, usize::from),
        max_tokens: args.max_tokens as usize,
        temperature: sampling.temperature,
        seed: sampling.seed,
    };
    served::measure(url, &client, &suites, &asking)
}

/// Suites in all modes, then the sweeps.
fn answers(args: &MeasureArgs, results: &mut Results) -> Result<()> {
    let mut running = args.model.load()?;
    let sampling = args.sampling.over(&Sampling::default(), running.vocab())?;
    let modes = modes(args, &running)?;
    args.sweep.iter().try_for_each(|range| range.check(running.engine.decode_rows()))?;
    let suites = suites(args, &running)?;
    let (max_tokens, repeats) =
        (args.max_tokens as usize, args.repeats.map_or(REPEATS, usize::from));
    let patience = if args.repeats.is_some() { Duration::ZERO } else { SETTLING };
    let imposed = args.prices.is_some();
    if let Some(name) = &args.prices {
        running.engine.impose(prices::prices(name)?);
    }
    let slow_down = args.slow_down;
    let asking = Asking { sampling, max_tokens, repeats, patience, imposed, slow_down };
    results.samples = measure::samples(&mut running, &suites, &modes, &asking)?;
    results.prices = Some(running.engine.prices().into());
    let repeats = results.samples.iter().map(|s| s.repeat + 1).max().unwrap_or(0);
    let asking = Asking { patience: Duration::ZERO, ..asking };
    let settings = Settings {
        model: running.name.clone(),
        kv: format!("{:?}", args.model.device.kv()),
        suites: suites.iter().map(|s| s.name.clone()).collect(),
        modes: modes.iter().map(|m| m.name.clone()).collect(),
        repeats,
        max_tokens: asking.max_tokens,
        temperature: asking.sampling.temperature,
        seed: asking.sampling.seed,
    };
    results.cells = results::cells(&results.samples, &settings.suites, &settings.modes);
    results.settings = Some(settings);
    // A report has something to show of each kind.
    let ranges = if args.sweep.is_empty() && args.out.is_some() {
        sweep::usual()
    } else {
        args.sweep.clone()
    };
    for range in ranges.iter().filter(|r| r.axis != Axis::Rows) {
        results.sweeps.extend(sweep::run(range, &mut running, &suites, &modes, &asking)?);
    }
    drop(running);
    if let Some(rows) = ranges.iter().find(|r| r.axis == Axis::Rows) {
        results.cost = Some(costs(args, &rows.values, &results.machine)?);
    }
    Ok(())
}

/// The model's cost by rows, without text.
fn costs(args: &MeasureArgs, rows: &[usize], machine: &Machine) -> Result<Cost> {
    let (mut backend, _) = args.model.device.backend()?;
    let (bandwidth, threads, kv) = (args.bandwidth, machine.threads, args.model.device.kv());
    let place = &args.model.device.place;
    let plan = Plan { bandwidth, rows, patience: PATIENCE, threads, kv, place };
    if let Some(shape) = &args.synthetic {
        let mix = args.mix.mix();
        return cost::of_shape(shape, mix, &mut *backend, &plan);
    }
    let loaded = args.model.open()?;
    cost::of_weights(
        &loaded.name,
        &loaded.target.config,
        &loaded.target.weights,
        &mut *backend,
        &plan,
    )
}

/// `--modes`, or plain decoding beside the mode that `--spec` pins, or all there are.
fn modes(args: &MeasureArgs, running: &Running) -> Result<Vec<Mode>> {
    let means = Means::of(running);
    let mut names: Vec<&str> = args.modes.iter().map(String::as_str).collect();
    names.dedup();
    if !names.is_empty() {
        return names.iter().map(|name| means.mode(name)).collect();
    }
    if running.mode == Pinned::Auto {
        return Ok(means.possible(&MODES));
    }
    let pinned = Mode { name: running.mode.name().to_owned(), spec: running.engine.spec() };
    let off = means.mode("off")?;
    Ok(if pinned == off { vec![off] } else { vec![off, pinned] })
}

/// The prompts, without those that leave no room for an answer.
fn suites(args: &MeasureArgs, running: &Running) -> Result<Vec<Suite>> {
    let count = args.per_suite.max(1).saturating_add(args.skip);
    let mut suites: Vec<Suite> = match args.prompts.is_empty() {
        true => args
            .suite
            .iter()
            .map(|name| suites::suite(name, count, &running.text))
            .collect::<Result<_>>()?,
        false => args
            .prompts
            .iter()
            .map(|path| suites::file(path, count, &running.text))
            .collect::<Result<_>>()?,
    };
    for suite in &mut suites {
        if suite.prompts.len() <= args.skip {
            bail!("`--skip {}` leaves no prompt of `{}`", args.skip, suite.name);
        }
        suite.prompts.drain(..args.skip);
        let before = suite.prompts.len();
        suite.prompts.retain(|p| p.len() < running.context);
        match before - suite.prompts.len() {
            0 => {}
            n if n == before => {
                bail!(
                    "no prompt of `{}` fits the context of {} tokens",
                    suite.name,
                    running.context
                )
            }
            n => {
                eprintln!(
                    "warning: {n} prompts of `{}` do not fit the context and are left out",
                    suite.name
                )
            }
        }
    }
    Ok(suites)
}
