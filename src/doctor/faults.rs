//! What holds when a device fails: three texts are written together while one call of the backend
//! fails, for every call there is. A failure may cost its own text, or only time; the others are
//! what they would have been, the next text is written, and no memory stays behind.

use super::Args;
use anyhow::{Context, Result, bail};
use compute::{Fault, Faults};
use engine::sampling::Sampling;
use engine::{Engine, Error, Generation, Spec};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use text::{Prompt, Specials};

/// What is asked, a text each.
const ASKED: [&str; 3] =
    ["Write Python quicksort", "What is 17 times 23?", "List three primes as JSON."];
/// Tokens of each text: enough to fold an anchor.
const TOKENS: usize = 20;
/// A round that fails as a whole has changed nothing, and is tried again so many times.
const TRIES: usize = 2;

/// The texts of one run, and how many rounds were tried again.
struct Written {
    texts: Vec<Result<Vec<u32>, Error>>,
    retried: usize,
}

/// What came of all faults of a kind.
#[derive(Default)]
struct Tally {
    calls: usize,
    /// Runs in which a text ended, in which a round was tried again, and in which neither was
    /// needed.
    ended: usize,
    retried: usize,
    unharmed: usize,
}

pub(crate) fn survey(args: &Args) -> Result<()> {
    let faults = Faults::default();
    let mut running = args.model.load_faulty(faults.clone())?;
    let side = &running.text;
    let prompts = ASKED.iter().map(|asked| {
        let messages = [serde_json::json!({"role": "user", "content": asked})];
        let text = match &side.template {
            Ok(template) => {
                template.render(&Prompt { messages: &messages, ..Prompt::default() })?
            }
            Err(_) => (*asked).to_owned(),
        };
        Ok(side.tokenizer.encode(&text, Specials::Parse))
    });
    let prompts: Vec<Vec<u32>> = prompts.collect::<Result<_>>()?;
    let mut out = std::io::stdout().lock();
    let engine = &mut running.engine;
    // Where a mode is asked for, only that one.
    let pinned = args.model.pinned_mode();
    for (name, spec) in
        modes(engine).into_iter().filter(|(name, _)| pinned.is_none_or(|mode| mode == *name))
    {
        engine.set_spec(spec);
        faults.arm(None);
        let expected = write(engine, &prompts);
        let texts = expected.texts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let held = engine.held();
        let counts = Fault::ALL.map(|fault| faults.count(fault));
        for (fault, calls) in Fault::ALL.into_iter().zip(counts) {
            let mut tally = Tally { calls, ..Tally::default() };
            for n in 0..calls {
                faults.arm(Some((fault, n)));
                let run = catch_unwind(AssertUnwindSafe(|| write(engine, &prompts)));
                let run = run.ok().with_context(|| at(name, fault, n, "a panic"))?;
                faults.arm(None);
                tally.add(&run, &texts).with_context(|| at(name, fault, n, "a wrong outcome"))?;
                let next = write(engine, &prompts[..1]);
                if !matches!(&next.texts[..], [Ok(text)] if *text == texts[0]) {
                    bail!(at(name, fault, n, "the next text is wrong"));
                }
                let now = engine.held();
                if now != held {
                    bail!(at(name, fault, n, &format!("{now} bytes are held, {held} were before")));
                }
            }
            let Tally { calls, ended, retried, unharmed } = tally;
            let fault = fault.name();
            writeln!(
                out,
                "{name:<6} {fault:<10} {calls:>5} faults: {ended:>4} ended their text, \
                 {retried:>4} cost a round, {unharmed:>4} only speed"
            )?;
        }
    }
    writeln!(out, "every other text was right, every next one too, and no memory stayed behind")?;
    Ok(out.flush()?)
}

fn at(mode: &str, fault: Fault, n: usize, what: &str) -> String {
    format!("{mode}, {} {n}: {what}", fault.name())
}

/// The modes that the model has drafters for.
fn modes(engine: &Engine) -> Vec<(&'static str, Spec)> {
    let mut modes = vec![("off", Spec::Off)];
    if let Some(block) = engine.drafter("dflash").and_then(|drafter| drafter.block()) {
        modes.push(("chain", Spec::Chain { block, budget: block - 1 }));
        modes.push(("tree", Spec::Tree { block, budget: 22 }));
    }
    if engine.model().config().mtp.is_some() {
        modes.push(("mtp", Spec::Mtp { depth: 3 }));
    }
    modes.push(("lookup", Spec::Lookup { budget: 15 }));
    modes
}

impl Tally {
    fn add(&mut self, run: &Written, expected: &[Vec<u32>]) -> Result<()> {
        let failed: Vec<&Error> = run.texts.iter().filter_map(|text| text.as_ref().err()).collect();
        if failed.len() > 1 {
            bail!("{} texts ended: {}, {}", failed.len(), failed[0], failed[1]);
        }
        for (text, expected) in run.texts.iter().zip(expected) {
            if text.as_ref().is_ok_and(|text| text != expected) {
                bail!("a text is not what it is without the fault");
            }
        }
        match (failed.is_empty(), run.retried) {
            (false, _) => self.ended += 1,
            (true, 0) => self.unharmed += 1,
            (true, _) => self.retried += 1,
        }
        Ok(())
    }
}

/// Writes texts together, as the server does: a text that fails ends alone, a round that fails is
/// tried again.
fn write(engine: &mut Engine, prompts: &[Vec<u32>]) -> Written {
    let mut retried = 0;
    let begin = |engine: &mut Engine, prompt: &[u32]| {
        let sampling = Sampling { temperature: 0.8, seed: 7, ..Sampling::default() };
        let sequence = engine.sequence();
        engine.begin(sequence, prompt, prompt, sampling, Vec::new(), |_| ())
    };
    let mut texts: Vec<Result<(Generation, Vec<u32>), Error>> = Vec::new();
    for prompt in prompts {
        let begun = begin(engine, prompt).or_else(|_| {
            retried += 1;
            begin(engine, prompt)
        });
        texts.push(begun.map(|text| {
            let first = text.tip();
            (text, vec![first])
        }));
    }
    let mut failed = 0;
    loop {
        let is_going = |(_, tokens): &&mut (Generation, Vec<u32>)| tokens.len() < TOKENS;
        let going = texts.iter_mut().enumerate();
        let mut going: Vec<_> = going
            .filter_map(|(i, text)| text.as_mut().ok().filter(is_going).map(|text| (i, text)))
            .collect();
        if going.is_empty() {
            break;
        }
        let room = |tokens: &Vec<u32>| TOKENS - tokens.len();
        let asked = going.iter_mut().map(|(_, (text, tokens))| (text, room(tokens)));
        let mut asked: Vec<_> = asked.collect();
        match engine.step_all(&mut asked) {
            Ok(rounds) => {
                drop(asked);
                let mut lost = Vec::new();
                for ((i, (_, tokens)), round) in going.into_iter().zip(rounds) {
                    match round {
                        Ok(round) => tokens.extend(round.emitted),
                        Err(error) => lost.push((i, error)),
                    }
                }
                lost.into_iter().for_each(|(i, error)| texts[i] = Err(error));
                failed = 0;
            }
            Err(_) if failed < TRIES => {
                failed += 1;
                retried += 1;
            }
            Err(error) => {
                let reason = error.to_string();
                texts.iter_mut().for_each(|text| *text = Err(Error::Commit(reason.clone())));
            }
        }
    }
    let texts = texts.into_iter().map(|text| text.map(|(_, tokens)| tokens)).collect();
    Written { texts, retried }
}
