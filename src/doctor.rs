//! `forerun doctor`: what this machine can do, and why a drafter's tokens are accepted or not. Ends
//! with one sentence of advice.

mod advice;
mod alternatives;
mod device;
mod examine;
mod faults;
mod machine;
mod texts;
mod trial;

use anyhow::Result;
use device::Devices;
use examine::Examination;
use launch::ModelFlags;
use launch::{Choice, Plan};
use machine::Machine;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `forerun doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prompts of your own to look at acceptance with, one JSON object a line with `prompt` or
    /// `messages`
    #[arg(long, value_name = "FILE")]
    prompts: Vec<PathBuf>,
    /// The drafter before it was quantised, to see what that costs
    #[arg(long, value_name = "FILE")]
    draft_source: Option<PathBuf>,
    /// Tokens before the chats of a long text; unless given, half more than the drafter's window
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    length: Option<u32>,
    /// How many texts of each kind are looked at
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(4..=1024))]
    texts: u16,
    /// Check every op of the GPU that `--device` names against the reference, twice, and the model
    /// in every mode
    #[arg(long, conflicts_with_all = ["prompts", "draft_source", "json"])]
    selftest: bool,
    /// With the kernels that a card without ones of its own would use; the ops only, not the model
    #[arg(long, requires = "selftest")]
    ptx: bool,
    /// The ops only, and once
    #[arg(long, requires = "selftest")]
    once: bool,
    /// Only the groups of checks whose name has PATTERN in it (`product`, `attention F16`,
    /// `deltanet`), once
    #[arg(long, value_name = "PATTERN", requires = "selftest")]
    only: Option<String>,
    /// Write texts while every call of the backend fails once, and check what that costs
    #[arg(long, conflicts_with_all = ["prompts", "draft_source", "json", "selftest"])]
    faults: bool,
    /// Print every check
    #[arg(short, long, requires = "selftest")]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelFlags,
}

/// Everything that was seen.
#[derive(Serialize)]
struct Findings {
    machine: Machine,
    gpu: Devices,
    /// What the model needs of the card asked for, else of the first.
    device_memory: Option<Plan>,
    /// Ways to place a model that does not fit whole.
    placements: Vec<Choice>,
    /// Nothing where there is no drafter.
    drafter: Option<Examination>,
    /// The best model of the catalogue that fits, in a sentence.
    best: String,
    advice: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.selftest {
        return device::selftest(args);
    }
    if args.faults {
        return faults::survey(args);
    }
    let machine = Machine::look(&args.model)?;
    let gpu = Devices::look();
    let (device_memory, placements) = match compute::cuda::devices() {
        Ok(count) if count > 0 && args.model.plans_for_card()? => {
            let (plan, choices) = args.model.plan_memory(machine.room().1)?;
            (Some(plan), choices)
        }
        _ => (None, Vec::new()),
    };
    let drafter = examine::examine(args)?;
    let advice = match &drafter {
        Some(drafter) => drafter.advice.clone(),
        None => {
            "Nothing to advise: give a drafter with `--draft FILE` to have it looked at.".to_owned()
        }
    };
    let best = best_model(gpu.first().unwrap_or_else(|| machine.room()));
    let findings = Findings { machine, gpu, device_memory, placements, drafter, best, advice };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&findings)?)?;
    } else {
        findings.machine.print(&mut out)?;
        findings.gpu.print(&mut out)?;
        if let Some(plan) = &findings.device_memory {
            section(&mut out, "", &[("model", plan.line())])?;
        }
        let placements = findings.placements.iter().map(|choice| ("--place", choice.line()));
        if !findings.placements.is_empty() {
            section(&mut out, "", &placements.collect::<Vec<_>>())?;
        }
        if let Some(drafter) = &findings.drafter {
            drafter.print(&mut out)?;
        }
        writeln!(out, "\n{}\n\n{}", findings.best, findings.advice)?;
    }
    Ok(out.flush()?)
}

/// Which model of the catalogue a machine of so much memory, which it reads at such a rate, runs
/// best.
fn best_model((memory, read_rate): (f64, f64)) -> String {
    use hub::catalogue::USEFUL;
    let Some((entry, build)) = hub::catalogue::best(memory as u64, read_rate) else {
        return "No model of the catalogue fits this machine.".to_owned();
    };
    let word = match entry.builds[0] == *build {
        true => entry.name.to_owned(),
        false => format!("{}:{}", entry.name, build.quant),
    };
    let rate = read_rate / entry.bytes_a_token(build) as f64;
    let next = match hub::find(std::path::Path::new(&word), &hub::Settings::from_env()) {
        Ok(_) => format!("`forerun chat --model {word}`"),
        Err(_) => format!("`forerun pull {word}`"),
    };
    format!(
        "The best model of the catalogue that fits this machine, by memory and with {USEFUL} \
         tokens a second or more, is {word} ({}, {}): {next}. Its weights are read at most \
         {rate:.0} times a second here; that is plain decoding's limit, and a drafter's tokens \
         come on top.",
        build.quant,
        hub::gigabytes(build.bytes)
    )
}

/// A heading with what follows from it, one line each.
fn section(out: &mut impl Write, title: &str, lines: &[(&str, String)]) -> std::io::Result<()> {
    writeln!(out, "{title}")?;
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<width$}  {value}"))
}
