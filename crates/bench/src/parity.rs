//! `forerun bench parity`: every mode writes the same tokens. Compares with plain decoding token by
//! token, over suites, ways of sampling, seeds and cache types; one difference fails.

use crate::ask::{Asked, read};
use crate::modes::{Means, Mode};
use crate::progress::Progress;
use crate::suites::{self, Suite};
use anyhow::{Result, bail};
use compute::KvType;
use engine::sampling::Sampling;
use launch::{ModelFlags, Running};
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args, Clone)]
#[command(mut_arg("spec", |arg| arg.hide(true)), mut_arg("budget", |arg| arg.hide(true)))]
#[command(mut_arg("block", |arg| arg.hide(true)), mut_arg("kv", |arg| arg.hide(true)))]
pub(crate) struct Args {
    /// A small part of it: one prompt a suite, five modes, three ways of sampling, one cache type
    #[arg(long)]
    quick: bool,
    /// Suites; all unless given
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    suite: Vec<String>,
    /// Prompts of your own instead, one JSON object a line with `prompt` or `messages`
    #[arg(long, value_name = "FILE", conflicts_with = "suite")]
    prompts: Option<PathBuf>,
    /// Modes to compare with `off`; unless given, chains, trees, MTP and lookup of several sizes,
    /// and auto
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    modes: Vec<String>,
    /// Cache types; all unless given
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(value_parser = CACHES.map(|(_, name)| name))]
    caches: Vec<String>,
    /// Prompts of each suite; all unless given
    #[arg(long, value_name = "N")]
    per_suite: Option<usize>,
    /// Seeds for each prompt and way of sampling; prompts take different ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    #[command(flatten)]
    model: ModelFlags,
}

const MODES: [&str; 17] = [
    "chain:4",
    "chain:8",
    "chain:16",
    "tree:1",
    "tree:8",
    "tree:15",
    "tree:16",
    "tree:22",
    "tree:40",
    "tree:63",
    "mtp:1",
    "mtp:3",
    "mtp:5",
    "mtp:7",
    "lookup",
    "lookup:40",
    "auto",
];
/// Logits this close may swap between devices, whose activations round differently.
const NEAR_TIE: f32 = 0.1;
const QUICK_MODES: [&str; 5] = ["chain", "tree:22", "mtp:3", "lookup", "auto"];
const CACHES: [(KvType, &str); 4] = [
    (KvType::F16, "f16"),
    (KvType::Q8_0, "q8_0"),
    (KvType::Q4_0, "q4_0"),
    (KvType::Q4_0H, "q4_0h"),
];

/// Ways of sampling, with names; the first and the last two suffice for a quick look.
fn ways(quick: bool) -> Vec<(&'static str, Sampling)> {
    let base = Sampling::default();
    let plain = Sampling { temperature: 0.9, top_k: 50, top_p: 0.95, ..base.clone() };
    let mut ways = vec![
        ("greedy", base.clone()),
        (
            "greedy with penalties",
            Sampling {
                repetition_penalty: 1.1,
                presence_penalty: 0.3,
                frequency_penalty: 0.2,
                ..base.clone()
            },
        ),
        (
            "temperature 0.7",
            Sampling {
                temperature: 0.7,
                top_k: 40,
                top_p: 0.95,
                repetition_penalty: 1.05,
                ..base.clone()
            },
        ),
        (
            "temperature 1.0",
            Sampling {
                temperature: 1.0,
                min_p: 0.02,
                presence_penalty: 0.5,
                frequency_penalty: 0.1,
                ..base
            },
        ),
    ];
    if quick {
        ways.drain(1..3);
    }
    // Draws that depend on nothing but the logits, which a device makes itself.
    ways.push(("temperature 0.9, no penalties", plain));
    ways
}

/// A mode that wrote something else than plain decoding.
struct Difference {
    /// The first token that differs, from 0.
    step: usize,
    expected: Option<u32>,
    found: Option<u32>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match args.model.pinned() {
        Some("--kv") => bail!("`--kv`: several types of cache are compared; `--caches` says which"),
        Some(flag) => {
            bail!(
                "`{flag}`: several modes are compared; `--modes` says which, such as \
                 `chain:8,tree:22`"
            )
        }
        None => all(args),
    }
}

fn all(args: &Args) -> Result<()> {
    let is_asked_for = |name: &str| match args.caches.as_slice() {
        [] => !args.quick || name == CACHES[0].1,
        caches => caches.iter().any(|asked| asked == name),
    };
    let (mut answers, mut differences) = (0, 0);
    let mut out = std::io::stdout().lock();
    for (kv, cache) in CACHES.into_iter().filter(|(_, name)| is_asked_for(name)) {
        let mut running = args.model.load_with(kv)?;
        let modes = modes(args, &running)?;
        let suites = suites(args, &running)?;
        let prompts: usize = suites.iter().map(|s| s.prompts.len()).sum();
        let ways = ways(args.quick);
        let progress = Progress::new(prompts * (modes.len() + 1), cache);
        let mut number = 0;
        for suite in &suites {
            for (index, prompt) in suite.prompts.iter().enumerate() {
                let draws = draws(&ways, args.seeds, &mut number);
                let expected = answers_of(&mut running, &plain(), prompt, &draws, args.max_tokens)?;
                progress.step(&format!("{cache} {}", suite.name));
                for mode in &modes {
                    let found = answers_of(&mut running, mode, prompt, &draws, args.max_tokens)?;
                    answers += found.len();
                    for (((way, sampling), expected), found) in
                        draws.iter().zip(&expected).zip(&found)
                    {
                        let Some(difference) = first_difference(expected, found) else { continue };
                        differences += 1;
                        let margin = margin(&mut running, prompt, sampling, &difference)?;
                        let Difference { step, expected, found } = difference;
                        let name = |token: Option<u32>| {
                            token.map_or("the end".to_owned(), |t| t.to_string())
                        };
                        writeln!(
                            out,
                            "{}: {} {index}, {way}, seed {}, KV {cache}: token {step} is {} \
                             instead of {}, whose logit is {margin:.6} higher",
                            mode.name,
                            suite.name,
                            sampling.seed,
                            name(found),
                            name(expected),
                        )?;
                    }
                    progress.step(&format!("{cache} {}", suite.name));
                }
            }
        }
        drop(progress);
        writeln!(
            out,
            "KV {cache}: {} modes beside `off` ({}), {prompts} prompts, {} ways of sampling",
            modes.len(),
            modes.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(" "),
            ways.len(),
        )?;
    }
    if differences > 0 {
        bail!("{differences} of {answers} answers differ from plain decoding");
    }
    writeln!(out, "{answers} answers, all equal to plain decoding")?;
    Ok(())
}

/// A prompt of each suite in every mode, and greedily on the processor beside: what `doctor
/// --selftest` asks.
pub(crate) fn of(model: &ModelFlags) -> Result<()> {
    let args = Args {
        quick: false,
        suite: Vec::new(),
        prompts: None,
        modes: Vec::new(),
        caches: Vec::new(),
        per_suite: Some(1),
        seeds: 1,
        max_tokens: 48,
        model: model.clone(),
    };
    all(&args)?;
    let (mut device, mut processor) = (model.load()?, model.on_processor().load()?);
    let plain = plain();
    let (mut answers, mut out) = (0, std::io::stdout().lock());
    for suite in suites(&Args { per_suite: Some(4), ..args.clone() }, &device)? {
        for prompt in &suite.prompts {
            let sampling = Sampling::default();
            let asked = Asked { mode: &plain, prompt, sampling: &sampling, max_tokens: 64 };
            let [found, expected] =
                [asked.answer(&mut device)?.ids, asked.answer(&mut processor)?.ids];
            answers += 1;
            let Some(difference) = first_difference(&expected, &found) else { continue };
            let margin = margin(&mut processor, prompt, &sampling, &difference)?;
            let step = difference.step;
            writeln!(
                out,
                "{}: token {step} differs from the processor's, whose logit is {margin:.4} higher",
                suite.name
            )?;
            let is_near = margin.abs() <= NEAR_TIE;
            if !is_near {
                bail!("a difference of {margin} between device and processor is no near tie");
            }
        }
    }
    writeln!(
        out,
        "{answers} greedy answers equal the processor's, or differ at the near ties above"
    )?;
    let mut texts = 0;
    for prompt in suites(&args, &device)?.iter().flat_map(|suite| &suite.prompts) {
        let [undisturbed, disturbed] =
            [0, 5].map(|dropped| with_dropped(&mut device, prompt, dropped));
        if let Some(Difference { step, .. }) = first_difference(&undisturbed?, &disturbed?) {
            bail!("after rounds that were dropped before their commit, token {step} differs");
        }
        texts += 1;
    }
    writeln!(
        out,
        "{texts} texts in which every round follows one that was dropped: the same as without"
    )?;
    Ok(())
}

/// A text in which before every round a verify of `dropped` rows was made and not committed, as
/// when a client goes away.
fn with_dropped(running: &mut Running, prompt: &[u32], dropped: usize) -> Result<Vec<u32>> {
    let engine = &mut running.engine;
    engine.set_spec(engine::Spec::Auto { block: 16, budget: 63 });
    let sampling = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    let sequence = engine.sequence();
    let mut text = engine.begin(sequence, prompt, prompt, sampling, Vec::new(), |_| ())?;
    let mut ids = vec![text.tip()];
    while ids.len() < 48 {
        if dropped > 0 {
            engine.time_verify(&mut text, dropped)?;
        }
        ids.extend(engine.step(&mut text, 48 - ids.len())?.emitted);
    }
    Ok(ids)
}

fn modes(args: &Args, running: &Running) -> Result<Vec<Mode>> {
    let means = Means::of(running);
    if !args.modes.is_empty() {
        return args.modes.iter().map(|name| means.mode(name)).collect();
    }
    let modes = means.possible(if args.quick { &QUICK_MODES } else { &MODES });
    if modes.is_empty() {
        bail!(
            "there is nothing to compare: the model has no drafter (`--draft FILE`) and no MTP \
             block"
        );
    }
    Ok(modes)
}

fn suites(args: &Args, running: &Running) -> Result<Vec<Suite>> {
    let names = if args.suite.is_empty() { suites::names() } else { args.suite.clone() };
    let count = args.per_suite.unwrap_or(if args.quick { 1 } else { usize::MAX });
    if let Some(path) = &args.prompts {
        return Ok(vec![suites::file(path, count, &running.text)?]);
    }
    names.iter().map(|name| suites::suite(name, count, &running.text)).collect()
}

fn plain() -> Mode {
    Mode { name: "off".to_owned(), spec: engine::Spec::Off }
}

/// Every way of sampling with as many seeds as are asked for; `number` counts them through.
fn draws(
    ways: &[(&'static str, Sampling)],
    seeds: u64,
    number: &mut u64,
) -> Vec<(&'static str, Sampling)> {
    let mut draws = Vec::new();
    for (way, sampling) in ways {
        let seeds = if sampling.temperature > 0.0 { seeds } else { 1 };
        for _ in 0..seeds {
            *number += 1;
            draws.push((*way, Sampling { seed: *number, ..sampling.clone() }));
        }
    }
    draws
}

/// A mode's answers to a prompt that it reads once.
fn answers_of(
    running: &mut Running,
    mode: &Mode,
    prompt: &[u32],
    draws: &[(&str, Sampling)],
    max_tokens: usize,
) -> Result<Vec<Vec<u32>>> {
    let read = read(running, mode, prompt)?;
    let answer = |(_, sampling): &(&str, Sampling)| {
        let asked = Asked { mode, prompt, sampling, max_tokens };
        Ok(asked.answer_from(running, read.clone())?.ids)
    };
    draws.iter().map(answer).collect()
}

/// By how much plain decoding preferred its own token where a mode wrote another.
fn margin(
    running: &mut Running,
    prompt: &[u32],
    sampling: &Sampling,
    difference: &Difference,
) -> Result<f32> {
    // Plain decoding again, up to the token in question: its logits are those of the last pass.
    let asked = Asked { mode: &plain(), prompt, sampling, max_tokens: difference.step + 1 };
    asked.answer(running)?;
    let logits = running.engine.logits(0)?;
    let logit = |token: Option<u32>| token.map_or(f32::NAN, |t| logits[t as usize]);
    Ok(logit(difference.expected) - logit(difference.found))
}

fn first_difference(expected: &[u32], found: &[u32]) -> Option<Difference> {
    let step = (0..expected.len().max(found.len())).find(|i| expected.get(*i) != found.get(*i))?;
    Some(Difference {
        step,
        expected: expected.get(step).copied(),
        found: found.get(step).copied(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        assert!(first_difference(&[1, 2, 3], &[1, 2, 3]).is_none());
        let other = first_difference(&[1, 2, 3], &[1, 9, 3]).unwrap();
        assert_eq!((other.step, other.expected, other.found), (1, Some(2), Some(9)));
        let shorter = first_difference(&[1, 2], &[1]).unwrap();
        assert_eq!((shorter.step, shorter.expected, shorter.found), (1, Some(2), None));
    }
}
