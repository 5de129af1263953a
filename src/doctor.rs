//! `forerun doctor`: what this machine can do, and why a drafter's tokens are accepted or not. Ends with one sentence of
//! advice.

mod advice;
mod alternatives;
mod examine;
mod machine;
mod texts;
mod trial;

use crate::model_flags::ModelFlags;
use anyhow::Result;
use examine::Examination;
use machine::Machine;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `forerun doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prompts of your own to look at acceptance with, one JSON object a line with `prompt` or `messages`
    #[arg(long, value_name = "FILE")]
    prompts: Vec<PathBuf>,
    /// The drafter before it was quantised, to see what that costs
    #[arg(long, value_name = "FILE")]
    draft_source: Option<PathBuf>,
    /// Tokens before the chats of a long text; unless given, half more than the drafter's window
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..))]
    length: Option<u32>,
    /// How many texts of each kind are looked at
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(4..=1024))]
    texts: u16,
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
    /// Nothing where there is no drafter.
    drafter: Option<Examination>,
    advice: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let machine = Machine::look(&args.model)?;
    let drafter = examine::examine(args)?;
    let advice = match &drafter {
        Some(drafter) => drafter.advice.clone(),
        None => "Nothing to advise: give a drafter with `--draft FILE` to have it looked at.".to_owned(),
    };
    let findings = Findings { machine, drafter, advice };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&findings)?)?;
    } else {
        findings.machine.print(&mut out)?;
        if let Some(drafter) = &findings.drafter {
            drafter.print(&mut out)?;
        }
        writeln!(out, "\n{}", findings.advice)?;
    }
    Ok(out.flush()?)
}

/// A heading with what follows from it, one line each.
fn section(out: &mut impl Write, title: &str, lines: &[(&str, String)]) -> std::io::Result<()> {
    writeln!(out, "{title}")?;
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    lines.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<width$}  {value}"))
}
