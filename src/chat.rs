//! `forerun chat`: a conversation. Ctrl-C ends the answer, Ctrl-D the program.

use crate::is_broken_pipe;
use crate::session::Session;
use crate::telling::{Telling, closing_line};
use anyhow::{Context, Result, anyhow, bail};
use engine::sampling::Sampling;
use launch::{Finish, Question, answer};
use launch::{ModelFlags, Prefill, PrefillFlags, Running, SamplingFlags};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use text::{Prompt, Reasoning, Specials};

const HELP: &str = "/new starts over, /quit (or Ctrl-D) leaves, Ctrl-C ends an answer; a line that \
                    ends in \\ goes on; a message that begins with / is written with two of them";

/// Arguments of `forerun chat`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tokens of an answer at most; as many as the context holds unless given
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// A system message before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Ask the model not to think first
    #[arg(long)]
    no_think: bool,
    /// Go on with the conversation of that name, or begin it; `forerun sessions` lists them
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    #[command(flatten)]
    prefill: PrefillFlags,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

/// A conversation and what answers in it, whose memory its states let go of first.
struct Chat<'a> {
    args: &'a Args,
    session: Session,
    running: Running,
    prefill: Option<Prefill>,
    sampling: Sampling,
    interrupts: Interrupts,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut model = args.model.clone();
    model.identified = args.session.is_some();
    let running = model.load()?;
    let prefill = Prefill::start(&args.prefill, &model.device, &running.text.tokenizer)?;
    if let Err(why) = &running.text.template {
        bail!(
            "{why}; `forerun run --raw` continues plain text, `--chat-template FILE` gives another \
             template"
        );
    }
    let sampling = args.sampling.over(&running.text.sampling, running.vocab())?;
    let mut lines = rustyline::DefaultEditor::new()?;
    let interrupts = Interrupts::catch()?;
    eprintln!("{}: {HELP}", running.name);
    if sampling.temperature > 0.0 {
        eprintln!("seed {}", sampling.seed);
    }

    let mut session = Session::open(args.session.as_deref(), &running)?;
    if !session.messages.is_empty() {
        let turns = session.messages.iter().filter(|m| m["role"] == "user").count();
        eprintln!("the session has {turns} turns; /new starts over");
    }
    session.begin(args.system.as_deref())?;
    let mut chat = Chat { args, session, running, prefill, sampling, interrupts };
    while let Some(line) = chat.interrupts.reading(|| read_message(&mut lines))? {
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/help" => eprintln!("{HELP}"),
            "/new" => {
                chat.session.clear();
                chat.session.begin(args.system.as_deref())?;
                chat.session.save(&chat.running.name)?;
            }
            command if command.starts_with('/') && !command.starts_with("//") => {
                eprintln!("unknown command `{command}`; {HELP}");
            }
            said => {
                // Two slashes are one that begins no command.
                let said = if said.starts_with("//") { &said[1..] } else { line.as_str() };
                chat.session.messages.push(json!({"role": "user", "content": said}));
                chat.interrupts.stop.store(false, Ordering::Relaxed);
                match chat.take_turn() {
                    Ok(message) => {
                        chat.session.messages.push(message);
                        chat.session.save(&chat.running.name)?;
                    }
                    // Nobody reads further answers either.
                    Err(error) if is_broken_pipe(&error) => return Err(error),
                    Err(error) => {
                        // The turn is undone; the conversation goes on.
                        chat.session.messages.pop();
                        eprintln!("forerun: {error:#}");
                    }
                }
            }
        }
    }
    Ok(())
}

impl Chat<'_> {
    /// Answers the last message and returns the answer as a message. Where there is no room, states
    /// that earlier turns left make some, the last of them only when the others were not enough:
    /// reading it all again takes longest.
    fn take_turn(&mut self) -> Result<Value> {
        let mut turn = self.answer();
        for last in [1, 0] {
            if turn.as_ref().is_err_and(is_out_of_memory) && self.session.let_go(last) {
                eprintln!(
                    "(short of memory: the answer begins again, without what earlier ones left)"
                );
                turn = self.answer();
            }
        }
        turn
    }

    fn answer(&mut self) -> Result<Value> {
        let Self { args, running, prefill, sampling, session, interrupts } = self;
        let stop = &interrupts.stop;
        let template = running.text.template.as_ref().map_err(|why| anyhow!("{why}"))?;
        let thinking = args.no_think.then_some(false);
        let messages = &session.messages;
        let rendered = template.render(&Prompt {
            messages,
            enable_thinking: thinking,
            ..Prompt::default()
        })?;
        let prompt = running.text.tokenizer.encode(&rendered, Specials::Parse);
        let (prompt, read) = match prefill {
            Some(prefill) => prefill.shorten(running, prompt, stop)?,
            None => (prompt, None),
        };
        let (_, sequence) = session.recall(running, &prompt, stop)?;

        let max_tokens = args.max_tokens.unwrap_or(usize::MAX);
        let question =
            Question { sequence, prompt: &prompt, sampling, max_tokens, relaxed: None, stop };
        let mut telling = Telling::new(std::io::stdout().lock(), &rendered);
        let given = answer(running, question, |piece| Ok(telling.push(&piece, None)?))?;
        telling.finish()?;
        match given.finish {
            Finish::Stop => {}
            Finish::Length => eprintln!("(cut at {} tokens)", given.ids.len()),
            Finish::Interrupted => eprintln!("(stopped)"),
        }
        if let Some(read) = read {
            eprintln!("({read})");
        }
        if std::io::stderr().is_terminal() {
            eprintln!("\x1b[2m{}\x1b[0m", closing_line(running, &prompt, &given));
        }
        Ok(message_of(&rendered, &given.text))
    }
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(engine::Error::is_out_of_memory)
}

/// What becomes of signals: at a line they end the program, else an answer.
#[derive(Default)]
struct Interrupts {
    is_reading: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Interrupts {
    /// Comes after the editor of lines, which takes Ctrl-C for itself and forgets it while no line
    /// is read. At a line Ctrl-C is a key, so what comes then is no key: the terminal has gone, or
    /// somebody wants the program to end.
    fn catch() -> Result<Self> {
        let caught = Self::default();
        let (is_reading, stop) = (Arc::clone(&caught.is_reading), Arc::clone(&caught.stop));
        ctrlc::set_handler(move || match is_reading.load(Ordering::Relaxed) {
            true => std::process::exit(1),
            false => stop.store(true, Ordering::Relaxed),
        })?;
        Ok(caught)
    }

    /// Runs what reads a line.
    fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.is_reading.store(true, Ordering::Relaxed);
        let line = read();
        self.is_reading.store(false, Ordering::Relaxed);
        line
    }
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

/// The message that an answer is. Thoughts go where the template looks for them; most drop them from
/// earlier turns.
pub(crate) fn message_of(rendered: &str, text: &str) -> Value {
    let mut reasoning = Reasoning::new(rendered);
    let (parts, rest) = (reasoning.push(text), reasoning.finish());
    let (content, thoughts) = (parts.content + &rest.content, parts.reasoning + &rest.reasoning);
    match thoughts.is_empty() {
        true => json!({"role": "assistant", "content": content}),
        false => json!({"role": "assistant", "content": content, "reasoning_content": thoughts}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_turn_without_room_takes_that_of_kept_states() {
        let line = ["chat", "--temp", "0", "--max-tokens", "4", "--device", "cpu"];
        let Cli { args } = Cli::parse_from(line);
        let running = args.model.load().expect("the embedded pair");
        let sampling = args.sampling.over(&running.text.sampling, running.vocab()).expect("fits");
        let session = Session::open(None, &running).expect("one in memory");
        let interrupts = Interrupts::default();
        let mut chat = Chat { args: &args, running, prefill: None, sampling, session, interrupts };
        let say = |chat: &mut Chat<'_>| {
            chat.session.messages.push(json!({"role": "user", "content": "word ".repeat(300)}));
            let said = chat.take_turn();
            said.map(|message| chat.session.messages.push(message))
        };
        // Each conversation leaves states that the next does not begin with.
        for system in ["one", "two", "three"] {
            chat.session.messages.clear();
            chat.session.begin(Some(system)).expect("a new one");
            say(&mut chat).expect("there is room");
        }
        let budget = chat.running.engine.backend().budget().clone();
        budget.set_limit(budget.held());
        say(&mut chat).expect("kept states make room");
        budget.set_limit(1);
        assert!(say(&mut chat).is_err_and(|error| is_out_of_memory(&error)));
        assert!(!chat.session.let_go(0), "all were let go of");
    }
}
