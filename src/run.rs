//! `forerun run`: one prompt, one answer.

use crate::answer::{Answer, Question, answer};
use crate::model_flags::{ModelFlags, Running, SamplingFlags};
use anyhow::{Context, Result, bail};
use engine::sampling::Sampling;
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use text::{Prompt, Specials};

/// Arguments of `forerun run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to answer; read from standard input where it is missing or `-`
    prompt: Option<String>,
    /// Tokens of the answer at most
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Ask the model not to think first
    #[arg(long)]
    no_think: bool,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "no_think"])]
    raw: bool,
    /// Continue these tokens: `1,2,3`
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "raw", "system", "no_think"])]
    prompt_ids: Option<Vec<u32>>,
    /// Print one JSON object at the end instead of the text
    #[arg(long)]
    json: bool,
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
    let mut running = args.model.load()?;
    let load_s = start.elapsed().as_secs_f64();
    let sampling = args.sampling.over(&running.text.sampling);
    let ids = prompt_ids(args, &running, &prompt)?;
    let mut sequence = running.model.sequence();
    let never = AtomicBool::new(false);
    let question = Question {
        unread: &ids,
        prompt: &ids,
        sampling: &sampling,
        max_tokens: args.max_tokens.unwrap_or(usize::MAX),
        stop: &never,
    };
    let mut out = std::io::stdout().lock();
    let given = answer(&mut running, &mut sequence, &question, |piece| {
        if !args.json {
            out.write_all(piece.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if args.json {
        let object = describe(&running, &sampling, ids.len(), load_s, &given);
        writeln!(out, "{object}")?;
    } else {
        writeln!(out)?;
        if std::io::stderr().is_terminal() {
            let rate = given.ids.len() as f64 / given.decode_s.max(1e-9);
            eprintln!("{} tokens, {rate:.0} a second, seed {}", given.ids.len(), sampling.seed);
        }
    }
    Ok(out.flush()?)
}

fn prompt_text(given: Option<&str>) -> Result<String> {
    let text = match given {
        Some(text) if text != "-" => text.to_owned(),
        None if std::io::stdin().is_terminal() => bail!("no prompt: give one, or `-` to read standard input"),
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

fn prompt_ids(args: &Args, running: &Running, prompt: &str) -> Result<Vec<u32>> {
    if let Some(ids) = &args.prompt_ids {
        let vocab = running.model.config().vocab;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!("token {id} of `--prompt-ids` is not below the vocabulary of {vocab}");
        }
        return Ok(ids.clone());
    }
    let text = &running.text;
    if args.raw {
        let bos = text.tokenizer.bos();
        return Ok(bos.into_iter().chain(text.tokenizer.encode(prompt, Specials::Parse)).collect());
    }
    let Some(template) = &text.template else {
        bail!("the model has no chat template: give `--raw` to continue the prompt as it is");
    };
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    let thinking = args.no_think.then_some(false);
    let rendered =
        template.render(&Prompt { messages: &messages, enable_thinking: thinking, ..Prompt::default() })?;
    Ok(text.tokenizer.encode(&rendered, Specials::Parse))
}

/// The object of `--json`.
fn describe(
    running: &Running,
    sampling: &Sampling,
    prompt: usize,
    load_s: f64,
    given: &Answer,
) -> serde_json::Value {
    // Without a drafter every pass yields the target's own token.
    let rounds = given.ids.len().saturating_sub(1);
    json!({
        "ids": given.ids,
        "text": given.text,
        "finish": given.finish,
        "prompt_tokens": prompt,
        "completion_tokens": given.ids.len(),
        "model": running.name,
        "seed": sampling.seed,
        "spec": {
            "mode": "off", "rounds": rounds, "accepted": 0, "drafted": 0,
            "mean_accept_length": if rounds > 0 { 1.0 } else { 0.0 }, "accept_lengths": vec![1; rounds], "fallback": null
        },
        "timing": {
            "load_s": load_s, "prefill_s": given.prefill_s, "decode_s": given.decode_s,
            "tokens_per_s": given.ids.len() as f64 / given.decode_s.max(1e-9),
            "draft_s": 0.0, "verify_s": given.verify_s, "commit_s": given.commit_s
        }
    })
}
