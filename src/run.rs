//! `forerun run`: one prompt, one answer.

use crate::chat::message_of;
use crate::explain;
use crate::session::Session;
use crate::telling::{Telling, closing_line, rate};
use anyhow::{Context, Result, bail};
use engine::Round;
use engine::judge::Relaxed;
use engine::sampling::Sampling;
use launch::{Answer, Finish, Question, answer};
use launch::{ModelFlags, Prefill, PrefillFlags, Running, SamplingFlags};
use serde_json::{Value, json};
use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use text::{Prompt, Specials};

/// Arguments of `forerun run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to answer; read from standard input where it is missing or `-`
    prompt: Option<String>,
    /// Tokens of the answer at most; as many as the context holds unless given
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Ask the model not to think first
    #[arg(long)]
    no_think: bool,
    /// Go on with the conversation of that name, or begin it; `forerun sessions` lists them
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "no_think", "session"])]
    raw: bool,
    /// Continue these tokens: `1,2,3`
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["prompt", "raw", "system", "no_think", "session"])]
    prompt_ids: Option<Vec<u32>>,
    /// Print one JSON object at the end instead of the text
    #[arg(long)]
    json: bool,
    /// Print a line for each round on standard error
    #[arg(short, long)]
    verbose: bool,
    /// Colour each token by where it came from, and show how long accepted runs were
    #[arg(long, conflicts_with = "json")]
    explain: bool,
    /// Inside `<think>`, let drafted tokens stand that the target nearly chose; not exact, greedy
    /// only
    #[arg(long)]
    relaxed_thinking: bool,
    #[command(flatten)]
    prefill: PrefillFlags,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    sampling: SamplingFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let prompt = match &args.prompt_ids {
        Some(_) => String::new(),
        None => prompt_text(args.prompt.as_deref())?,
    };
    let start = Instant::now();
    let mut model = args.model.clone();
    model.identified = args.session.is_some();
    let mut running = model.load()?;
    let prefill = Prefill::start(&args.prefill, &model.device, &running.text.tokenizer)?;
    let load_s = start.elapsed().as_secs_f64();
    let sampling = args.sampling.over(&running.text.sampling, running.vocab())?;
    let mut session = Session::open(args.session.as_deref(), &running)?;
    session.begin(args.system.as_deref())?;
    session.messages.push(json!({"role": "user", "content": prompt}));
    let (ids, rendered) = prompt_ids(args, &running, &prompt, &session.messages)?;
    let asked = ids.len();
    let stop = AtomicBool::new(false);
    let (ids, read) = match prefill {
        Some(mut prefill) => prefill.shorten(&running, ids, &stop)?,
        None => (ids, None),
    };
    let relaxed = relaxed(args, &running, &sampling, &ids)?;
    let start = Instant::now();
    let (cached, sequence) = match args.session {
        Some(_) => session.recall(&mut running, &ids, &stop)?,
        None => (0, running.engine.sequence()),
    };
    let recall_s = start.elapsed().as_secs_f64();
    let question = Question {
        sequence,
        prompt: &ids,
        sampling: &sampling,
        max_tokens: args.max_tokens.unwrap_or(usize::MAX),
        relaxed,
        stop: &stop,
    };
    let mut out = std::io::stdout().lock();
    // Plain text has no thinking to tell apart.
    let mut telling = rendered.as_deref().map(|prompt| Telling::new(std::io::stdout(), prompt));
    let mut rounds = 0;
    let mut given = answer(&mut running, question, |piece| {
        let colour = args.explain.then(|| explain::colour(&piece));
        match &mut telling {
            _ if args.json => {}
            Some(telling) => telling.push(&piece, colour)?,
            None => explain::write(&mut out, piece.text, colour)?,
        }
        if let Some(round) = piece.round.filter(|_| args.verbose) {
            rounds += 1;
            explain::round_line(&mut std::io::stderr(), rounds, round)?;
        }
        Ok(())
    })?;
    // A session has read the most of its prompt by then.
    given.prefill_s += recall_s;
    if let Some(rendered) = rendered.as_deref().filter(|_| args.session.is_some()) {
        session.messages.push(message_of(rendered, &given.text));
        session.save(&running.name)?;
    }
    if args.json {
        let mut object = describe(&running, &sampling, asked, load_s, relaxed.is_some(), &given);
        object["cached_tokens"] = json!(cached);
        if let Some(read) = &read {
            object["prefill"] = json!(read);
        }
        writeln!(out, "{object}")?;
        return Ok(out.flush()?);
    }
    match &mut telling {
        Some(telling) => telling.finish()?,
        None => writeln!(out)?,
    }
    if given.finish == Finish::Length {
        eprintln!("(cut at {} tokens)", given.ids.len());
    }
    if args.explain {
        explain::histogram(&mut out, &given)?;
    }
    let sampled = sampling.temperature > 0.0;
    if std::io::stderr().is_terminal() || sampled || read.is_some() {
        let line = closing_line(&mut running, &ids, &given);
        let exact = if relaxed.is_some() { ", not exact: relaxed thinking" } else { "" };
        let read = read.map_or_else(String::new, |read| format!("; {read}"));
        eprintln!("{line}; seed {}{exact}{read}", sampling.seed);
    }
    Ok(out.flush()?)
}

fn prompt_text(given: Option<&str>) -> Result<String> {
    let text = match given {
        Some(text) if text != "-" => text.to_owned(),
        None if std::io::stdin().is_terminal() => {
            bail!("no prompt: give one, or `-` to read standard input")
        }
        _ => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
            text
        }
    };
    if text.trim().is_empty() {
        bail!("the prompt is empty");
    }
    Ok(text)
}

/// The tokens of the prompt, and its text where the chat template wrote it.
fn prompt_ids(
    args: &Args,
    running: &Running,
    prompt: &str,
    messages: &[Value],
) -> Result<(Vec<u32>, Option<String>)> {
    if let Some(ids) = &args.prompt_ids {
        let vocab = running.engine.model().config().vocab;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!("token {id} of `--prompt-ids` is not below the vocabulary of {vocab}");
        }
        return Ok((ids.clone(), None));
    }
    let text = &running.text;
    if args.raw {
        let bos = text.tokenizer.bos();
        let ids = text.tokenizer.encode(prompt, Specials::Parse);
        return Ok((bos.into_iter().chain(ids).collect(), None));
    }
    let template = match &text.template {
        Ok(template) => template,
        Err(why) => {
            bail!("{why}: give `--raw` to continue the prompt as it is, or `--chat-template FILE`")
        }
    };
    let thinking = args.no_think.then_some(false);
    let rendered =
        template.render(&Prompt { messages, enable_thinking: thinking, ..Prompt::default() })?;
    Ok((text.tokenizer.encode(&rendered, Specials::Parse), Some(rendered)))
}

/// Relaxed acceptance, where it was asked for and the prompt leaves the model thinking.
fn relaxed(
    args: &Args,
    running: &Running,
    sampling: &Sampling,
    prompt: &[u32],
) -> Result<Option<Relaxed>> {
    if !args.relaxed_thinking {
        return Ok(None);
    }
    if sampling.temperature > 0.0 {
        bail!("`--relaxed-thinking` is for greedy decoding: give `--temp 0`");
    }
    let special = |name: &str| running.text.tokenizer.special(name);
    let (Some(start), Some(think_end)) = (special("<think>"), special("</think>")) else {
        bail!("`--relaxed-thinking`: the model has no `<think>` tokens");
    };
    let last = |token: u32| prompt.iter().rposition(|t| *t == token);
    Ok((last(start) > last(think_end)).then_some(Relaxed { think_end }))
}

/// The object of `--json`.
fn describe(
    running: &Running,
    sampling: &Sampling,
    prompt: usize,
    load_s: f64,
    relaxed: bool,
    given: &Answer,
) -> serde_json::Value {
    let lengths: Vec<usize> = given.rounds.iter().map(Round::accept_length).collect();
    let sum = |part: fn(&Round) -> f64| given.rounds.iter().map(part).fold(0.0, |a, b| a + b);
    let count = |part: fn(&Round) -> usize| given.rounds.iter().map(part).sum::<usize>();
    let mut told = json!({
        "ids": given.ids,
        "text": given.text,
        "finish": given.finish,
        "prompt_tokens": prompt,
        "completion_tokens": given.ids.len(),
        "model": running.name,
        "seed": sampling.seed,
        "spec": {
            "mode": running.mode.name(),
            "rounds": lengths.len(),
            "accepted": count(|r| r.accepted),
            "drafted": count(|r| r.drafted),
            "mean_accept_length":
                lengths.iter().sum::<usize>() as f64 / lengths.len().max(1) as f64,
            "accept_lengths": lengths,
            "fallback": given.fallback,
            "exact": !relaxed,
        },
        "timing": {
            "load_s": load_s,
            "prefill_s": given.prefill_s,
            "decode_s": given.decode_s,
            "tokens_per_s": rate(given),
            "draft_s": sum(|r| r.draft_s),
            "verify_s": sum(|r| r.verify_s),
            "judge_s": sum(|r| r.judge_s),
            "commit_s": sum(|r| r.commit_s),
        }
    });
    if let Some(device) = running.engine.drafter_device() {
        told["spec"]["draft_device"] = json!(device);
    }
    told
}
