//! `forerun bench keep`: what speculative prefill costs in answers. Tasks whose answer lies
//! somewhere in a long prompt are asked whole and shortened; beside whether the answer is right it
//! says whether what it follows from was kept, which needs no target that can do the task.

mod tasks;

use crate::plot::{Labels, Series, WHOLE, lines};
use crate::report::STYLE;
use crate::statistics::Interval;
use anyhow::{Context, Result, bail};
use engine::sampling::Sampling;
use engine::{Long, Shortener};
use launch::{ModelFlags, PrefillFlags, Question, Running, answer};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use tasks::{Chance, KINDS, Task, task};
use text::{Controls, Droppable, Prompt, Specials};

/// Tokens of an answer at most; a function that is asked for has less than a hundred.
const ANSWER: usize = 160;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kinds of tasks: needle, needles, code, calls
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_values = KINDS)]
    #[arg(value_parser = KINDS)]
    tasks: Vec<String>,
    /// Tokens of a prompt, about
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [8192usize, 32768])]
    lengths: Vec<usize>,
    /// What is kept of that which may be dropped; 1 is the whole prompt
    #[arg(long, value_name = "SHARE,...", value_delimiter = ',')]
    #[arg(default_values_t = [0.05f32, 0.1, 0.2, 0.4, 1.0])]
    keep: Vec<f32>,
    /// Tasks of each kind and length
    #[arg(long, value_name = "N", default_value_t = 8)]
    count: u64,
    /// Which tasks are made
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Ask the scorer alone: nothing is answered
    #[arg(long)]
    recall_only: bool,
    /// Write keep.json and keep.html with a plot into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the JSON instead of a table
    #[arg(long)]
    json: bool,
    /// The model that scores: a name or a file
    #[arg(long, value_name = "NAME|FILE")]
    prefill_scorer: PathBuf,
    #[command(flatten)]
    model: ModelFlags,
}

/// All tasks of a kind and a length at one share.
#[derive(Clone, Debug, Default, Serialize)]
struct Cell {
    task: String,
    length: usize,
    keep: f32,
    tasks: usize,
    /// Tokens of the prompts, and those that were kept.
    prompt_tokens: usize,
    kept_tokens: usize,
    /// Texts that answers follow from, and those that were kept whole.
    evidence: usize,
    found: usize,
    /// Answers, and those that were right.
    answers: usize,
    right: usize,
    /// Seconds that the scorer took, where it read the prompt for this share, and the target.
    scoring_s: f64,
    reading_s: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(keep) = args.keep.iter().find(|keep| !(**keep > 0.0 && **keep <= 1.0)) {
        bail!("`--keep {keep}`: a share above 0 up to 1 is expected");
    }
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let mut running = args.model.load()?;
    let scorer = PrefillFlags::of_scorer(args.prefill_scorer.clone());
    let scorer = scorer.open(&args.model.device, &running.text.tokenizer)?;
    let scorer = scorer.context("`--prefill-scorer`: which model is to score?")?;
    let mut shortener = scorer.start()?;
    let (mut cells, mut out) = (Vec::new(), std::io::stdout().lock());
    if !args.json {
        writeln!(out, "{HEAD}")?;
    }
    for kind in &args.tasks {
        for length in &args.lengths {
            let measured = measure(args, &mut running, &mut shortener, kind, *length)?;
            if !args.json {
                print(&mut out, &measured)?;
            }
            cells.extend(measured);
        }
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&cells)?)?;
    }
    if let Some(folder) = &args.out {
        let put = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| path.display().to_string())
        };
        put("keep.json", serde_json::to_string(&cells)? + "\n")?;
        put("keep.html", page(&cells, &running.name, &scorer.name))?;
        eprintln!("written: {}", folder.join("keep.html").display());
    }
    Ok(out.flush()?)
}

/// The tasks of a kind and a length at every share.
fn measure(
    args: &Args,
    running: &mut Running,
    shortener: &mut Shortener,
    kind: &str,
    length: usize,
) -> Result<Vec<Cell>> {
    let cell = |keep: &f32| Cell { task: kind.to_owned(), length, keep: *keep, ..Cell::default() };
    let mut cells: Vec<Cell> = args.keep.iter().map(cell).collect();
    for number in 0..args.count {
        let (task, prompt) = fitting(running, kind, length, args.seed * 1000 + number)?;
        // As where prompts of more than half as many tokens are shortened.
        let Droppable { ranges, boundary } =
            Droppable::within(&running.text.tokenizer, &prompt, length / 2);
        for cell in &mut cells {
            let start = Instant::now();
            let long = Long { prompt: &prompt, droppable: &ranges, boundary, share: cell.keep };
            let shortened = shortener.shorten(long, || true)?.context("nobody stops it")?;
            cell.scoring_s += start.elapsed().as_secs_f64();
            let kept = shortened.tokens(&prompt);
            let text = running.text.tokenizer.decode(&kept, Controls::Show);
            cell.tasks += 1;
            cell.prompt_tokens += prompt.len();
            cell.kept_tokens += kept.len();
            cell.evidence += task.evidence.len();
            cell.found += task.evidence.iter().filter(|part| text.contains(*part)).count();
            if !args.recall_only {
                let (given, seconds) = ask(running, &kept)?;
                cell.answers += 1;
                cell.right += usize::from(task.is_right(&given));
                cell.reading_s += seconds;
            }
        }
    }
    Ok(cells)
}

/// A task of about so many tokens, and its prompt.
fn fitting(running: &Running, kind: &str, length: usize, seed: u64) -> Result<(Task, Vec<u32>)> {
    let template = running.text.template.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
    let made = |units: usize| {
        let task = task(kind, units, &mut Chance::new(seed));
        let (messages, tools) = (&task.messages, &task.tools);
        let enable_thinking = Some(false);
        let prompt = Prompt { messages, tools, enable_thinking, ..Prompt::default() };
        let text = template.render(&prompt)?;
        let tokens = running.text.tokenizer.encode(&text, Specials::Parse);
        anyhow::Ok((task, tokens))
    };
    let (few, more) = (made(10)?.1.len(), made(60)?.1.len());
    let each = (more.saturating_sub(few) as f64 / 50.0).max(1.0);
    made(((length.saturating_sub(few)) as f64 / each) as usize + 10)
}

/// The answer to a prompt, and the seconds that reading it took.
fn ask(running: &mut Running, prompt: &[u32]) -> Result<(String, f64)> {
    let question = Question {
        sequence: running.engine.sequence(),
        prompt,
        sampling: &Sampling::default(),
        max_tokens: ANSWER,
        relaxed: None,
        stop: &AtomicBool::new(false),
    };
    let given = answer(running, question, |_| Ok(()))?;
    let written = running.text.tokenizer.decode(&given.ids, Controls::Show);
    Ok((written, given.prefill_s))
}

/// What the columns of the table are.
const HEAD: &str = "task      tokens  keep   read  evidence kept  right  scoring  reading";

fn percent(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn print(out: &mut impl std::io::Write, cells: &[Cell]) -> Result<()> {
    for cell in cells {
        let Cell { task, length, keep, tasks, .. } = cell;
        let right = match cell.answers {
            0 => "-".to_owned(),
            answers => format!("{}/{answers}", cell.right),
        };
        writeln!(
            out,
            "{task:<8} {length:>7} {keep:>5} {:>5.0}% {:>14} {right:>6} {:>7.2}s {:>7.2}s",
            percent(cell.kept_tokens, cell.prompt_tokens),
            format!("{}/{}", cell.found, cell.evidence),
            cell.scoring_s / *tasks as f64,
            cell.reading_s / *tasks as f64
        )?;
    }
    Ok(())
}

/// A page with a plot for each length: evidence kept, and answers that were right, by what of the
/// prompts was read.
fn page(cells: &[Cell], target: &str, scorer: &str) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n\
         <title>forerun bench keep</title>\n<style>\n{STYLE}</style>\n\
         <header><h1><i>forerun</i> bench keep</h1></header>\n\
         <p>Target {}, scorer {}.</p>\n",
        crate::plot::escape(target),
        crate::plot::escape(scorer)
    );
    let mut lengths: Vec<usize> = cells.iter().map(|cell| cell.length).collect();
    lengths.dedup();
    lengths.sort_unstable();
    lengths.dedup();
    for length in lengths {
        let title = format!("Prompts of {length} tokens");
        let labels = Labels {
            title: &title,
            x: "percent of the prompt read",
            y: "percent",
            width: WHOLE,
            mark: None,
        };
        let svg = lines(&labels, &series(cells, length));
        write!(page, "<section>\n<h2>{title}</h2>\n{svg}</section>\n").expect("a string takes it");
    }
    page
}

fn series(cells: &[Cell], length: usize) -> Vec<Series> {
    let of_length = || cells.iter().filter(|cell| cell.length == length);
    let mut kinds: Vec<&str> = of_length().map(|cell| cell.task.as_str()).collect();
    kinds.dedup();
    let mut all = Vec::new();
    for kind in kinds {
        let points = |count: fn(&Cell) -> (usize, usize)| {
            let point = |cell: &Cell| {
                let (part, of) = count(cell);
                let value = percent(part, of);
                let exact = Interval { value, low: value, high: value };
                (percent(cell.kept_tokens, cell.prompt_tokens), (of > 0).then_some(exact))
            };
            let mut points: Vec<_> =
                of_length().filter(|cell| cell.task == kind).map(point).collect();
            points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            points
        };
        let (kept, right) =
            (points(|cell| (cell.found, cell.evidence)), points(|c| (c.right, c.answers)));
        all.push(Series { name: format!("{kind}, kept"), points: kept, dashed: true });
        if right.iter().any(|(_, found)| found.is_some()) {
            all.push(Series { name: format!("{kind}, right"), points: right, dashed: false });
        }
    }
    all
}
