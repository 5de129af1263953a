//! The command line: one file a verb. Messages go to stderr once, here; the exit code is 0 when
//! done, 1 when something failed, 2 when the command was not understood, 75 when a server has lost
//! its device.
#![forbid(unsafe_code)]

mod chat;
mod config;
mod convert;
mod doctor;
mod explain;
mod facts;
#[cfg(feature = "gateway")]
mod gateways;
mod inspect;
mod logging;
mod manual;
mod models;
mod notify;
mod pull;
mod run;
mod serve;
mod session;
mod sessions;
mod telling;
mod tokenizer;
mod welcome;

use clap::{CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// The exit code of a server without a device: what sysexits.h calls a temporary failure, so that
/// whoever watches it knows that starting it again may help.
const DEVICE_LOST: u8 = 75;

/// Exact speculative decoding of Qwen3.5/3.6/3.8 models with DFlash drafters.
#[derive(Parser)]
#[command(name = "forerun", version, propagate_version = true)]
struct Cli {
    /// Flags in a TOML file, under their names without dashes; for one verb in a table of its name
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    /// Answer one prompt
    Run(run::Args),
    /// Talk with the model
    Chat(chat::Args),
    /// Serve models over OpenAI's, Anthropic's and Ollama's APIs, with a page to chat on
    #[command(after_help = serve::EXIT_CODES)]
    Serve(Box<serve::Args>),
    /// Measure modes side by side, the cost of a shape, or whether all modes write the same text
    Bench(Box<bench::Args>),
    /// Say what a model file is, how each setting was found, and what looks wrong
    Inspect(inspect::Args),
    /// Say what this machine can do, and why a drafter's tokens are accepted or not
    Doctor(Box<doctor::Args>),
    /// Write a drafter as a GGUF that Forerun and llama.cpp load
    Convert(convert::Args),
    /// Fetch a model and its drafter from the Hugging Face Hub
    #[command(after_help = pull::ENVIRONMENT)]
    Pull(pull::Args),
    /// List models that have a short name, what of them is here and what fits this machine
    Models(models::Args),
    /// List conversations that were kept under a name (`chat --session NAME`), or remove some
    Sessions(sessions::Args),
    /// Write what gateways need of a GGUF to tokenise: tokenizer, chat template, configuration
    Tokenizer(tokenizer::Args),
    /// Print what a shell needs to complete commands
    Completions(manual::CompletionArgs),
    /// Print a manual page, or write one for every verb
    Man(manual::ManArgs),
}

fn main() -> ExitCode {
    let args = config::with_file(std::env::args_os().collect(), &Cli::command());
    match args.and_then(|args| run_verb(Cli::parse_from(args).verb.as_ref())) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output went away: nobody is left to tell.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forerun: {error:#}");
            match error.downcast_ref() {
                Some(server::ServeError::DeviceLost(_)) => ExitCode::from(DEVICE_LOST),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run_verb(verb: Option<&Verb>) -> anyhow::Result<()> {
    let Some(verb) = verb else { return welcome::show() };
    match verb {
        Verb::Run(args) => run::run(args),
        Verb::Chat(args) => chat::run(args),
        Verb::Serve(args) => serve::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::Inspect(args) => inspect::run(args),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Convert(args) => convert::run(args),
        Verb::Pull(args) => pull::run(args),
        Verb::Models(args) => models::run(args),
        Verb::Sessions(args) => sessions::run(args),
        Verb::Tokenizer(args) => tokenizer::run(args),
        Verb::Completions(args) => manual::completions(args, Cli::command()),
        Verb::Man(args) => manual::man(args, Cli::command()),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
