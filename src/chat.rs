//! `forerun chat`: a conversation. Ctrl-C ends the answer, Ctrl-D the program.

use crate::telling::{Telling, closing_line};
use anyhow::{Context, Result, anyhow, bail};
use engine::Sequence;
use launch::{Finish, Question, answer};
use launch::{ModelFlags, Running, SamplingFlags};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use text::{Prompt, Reasoning, Specials};

const HELP: &str = "/new starts over, /quit (or Ctrl-D) leaves, Ctrl-C ends an answer; a line that \
                    ends in \\ goes on; a message that begins with / is written with two of them";

/// Earlier states kept for the next prompt to start from.
const SNAPSHOTS: usize = 4;

/// Arguments of `forerun chat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tokens of an answer at most
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// A system message before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Ask the model not to think first
    #[arg(long)]
    no_think: bool,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// A state and the tokens that led to it.
struct Snapshot {
    tokens: Vec<u32>,
    sequence: Sequence,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut running = args.model.load()?;
    if let Err(why) = &running.text.template {
        bail!(
            "{why}; `forerun run --raw` continues plain text, `--chat-template FILE` gives another \
             template"
        );
    }
    let sampling = args.sampling.over(&running.text.sampling, running.vocab())?;
    let stop = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&stop);
    ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed))?;
    let mut lines = rustyline::DefaultEditor::new()?;
    eprintln!("{}: {HELP}", running.name);
    if sampling.temperature > 0.0 {
        eprintln!("seed {}", sampling.seed);
    }

    let opening: Vec<Value> =
        args.system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    let mut messages = opening.clone();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    while let Some(line) = read_message(&mut lines)? {
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/help" => eprintln!("{HELP}"),
            "/new" => {
                messages.clone_from(&opening);
                snapshots.clear();
            }
            command if command.starts_with('/') && !command.starts_with("//") => {
                eprintln!("unknown command `{command}`; {HELP}");
            }
            said => {
                // Two slashes are one that begins no command.
                let said = if said.starts_with("//") { &said[1..] } else { line.as_str() };
                messages.push(json!({"role": "user", "content": said}));
                stop.store(false, Ordering::Relaxed);
                match take_turn(args, &mut running, &sampling, &messages, &mut snapshots, &stop) {
                    Ok(message) => messages.push(message),
                    Err(error) => {
                        // The turn is undone; the conversation goes on.
                        messages.pop();
                        eprintln!("forerun: {error:#}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// One message; lines that end in a backslash go on. Nothing at the end of input.
fn read_message(lines: &mut rustyline::DefaultEditor) -> Result<Option<String>> {
    let mut message = String::new();
    loop {
        match lines.readline(if message.is_empty() { "> " } else { "  " }) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(part) => message = message + part + "\n",
                None => {
                    message += &line;
                    let _ = lines.add_history_entry(&message);
                    return Ok(Some(message));
                }
            },
            Err(ReadlineError::Interrupted) => {
                eprintln!("Ctrl-D leaves");
                message.clear();
            }
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error).context("standard input"),
        }
    }
}

/// Answers the last message and returns the answer as a message.
fn take_turn(
    args: &Args,
    running: &mut Running,
    sampling: &engine::sampling::Sampling,
    messages: &[Value],
    snapshots: &mut Vec<Snapshot>,
    stop: &AtomicBool,
) -> Result<Value> {
    let template = running.text.template.as_ref().map_err(|why| anyhow!("{why}"))?;
    let thinking = args.no_think.then_some(false);
    let rendered =
        template.render(&Prompt { messages, enable_thinking: thinking, ..Prompt::default() })?;
    let prompt = running.text.tokenizer.encode(&rendered, Specials::Parse);
    let sequence = recall(running, &prompt, snapshots)?;

    let max_tokens = args.max_tokens.unwrap_or(usize::MAX);
    let question =
        Question { sequence, prompt: &prompt, sampling, max_tokens, relaxed: None, stop };
    let mut telling = Telling::new(std::io::stdout().lock(), &rendered);
    let given = answer(running, question, |piece| Ok(telling.push(piece.text, None)?))?;
    telling.finish()?;
    match given.finish {
        Finish::Stop => {}
        Finish::Length => eprintln!("(cut at {} tokens)", given.ids.len()),
        Finish::Interrupted => eprintln!("(stopped)"),
    }
    if std::io::stderr().is_terminal() {
        eprintln!("\x1b[2m{}\x1b[0m", closing_line(running, &prompt, &given));
    }
    // Thoughts go where the template looks for them; most drop them from earlier turns.
    let mut reasoning = Reasoning::new(&rendered);
    let (parts, rest) = (reasoning.push(&given.text), reasoning.finish());
    let (content, thoughts) = (parts.content + &rest.content, parts.reasoning + &rest.reasoning);
    Ok(match thoughts.is_empty() {
        true => json!({"role": "assistant", "content": content}),
        false => json!({"role": "assistant", "content": content, "reasoning_content": thoughts}),
    })
}

/// The state after as much of `prompt` as an earlier turn has read, then read on to where the
/// answer's message opens: the next prompt goes on from there, whatever the template makes of this
/// answer.
fn recall(
    running: &mut Running,
    prompt: &[u32],
    snapshots: &mut Vec<Snapshot>,
) -> Result<Sequence> {
    let known = |s: &Snapshot| s.tokens.len() < prompt.len() && prompt.starts_with(&s.tokens);
    let best = snapshots.iter().filter(|s| known(s)).max_by_key(|s| s.tokens.len());
    let mut sequence = best.map_or_else(|| running.engine.sequence(), |s| s.sequence.clone());
    let opening = running.text.tokenizer.special("<|im_start|>");
    let mark = prompt.iter().rposition(|token| Some(*token) == opening).unwrap_or(0);
    if prompt.len() >= running.context || mark <= sequence.committed() {
        return Ok(sequence);
    }
    for chunk in
        prompt[sequence.committed()..mark].chunks(running.engine.model().options().max_rows)
    {
        running.engine.read(&mut sequence, chunk)?;
    }
    snapshots.push(Snapshot { tokens: prompt[..mark].to_vec(), sequence: sequence.clone() });
    if snapshots.len() > SNAPSHOTS {
        snapshots.remove(0);
    }
    Ok(sequence)
}
