//! `forerun bench compare`: what changed between two runs beyond noise. Prompts are compared with themselves; a change
//! counts when its interval leaves out "none" and it is larger than what either run drifted between its repeats. Speeds
//! are those of a prompt's fastest repeat, since whatever else a machine does only ever slows it. Where the machine
//! itself ran at another pace, speeds say nothing of the build and only ratios within a run are judged.

use super::cost::Cost;
use super::results::{Results, Sample, by_prompt, table};
use super::served::Served;
use super::statistics::{Estimate, Interval, deviation, median};
use super::tables;
use anyhow::{Result, bail};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// results.json of the run to compare with
    before: PathBuf,
    /// results.json of the other run
    after: PathBuf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// A figure in both runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) suite: String,
    pub(crate) mode: String,
    pub(crate) figure: &'static str,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// After by before.
    pub(crate) change: Interval,
    /// What a change must exceed, as a share.
    pub(crate) noise: f64,
    /// Whether the two runs can be compared in this figure.
    pub(crate) judged: bool,
    pub(crate) changed: bool,
}

/// No machine is steadier than this from run to run, whatever its repeats say: runs of one build on two shared cores
/// lay up to 5 % apart in all their cells at once. `bench versus` sees smaller changes.
const STEADIEST: f64 = 0.03;
/// What is assumed of a run that repeated nothing.
const UNKNOWN: f64 = 0.05;
/// What is assumed of costs, which are measured in one go, while the machine may be in any mood.
const COST_DRIFT: f64 = 0.1;
/// Paces this far apart, in logarithm, are not those of one machine.
const OTHER_PACE: f64 = 0.2;
/// Standard deviations that 95 % of normal numbers lie within.
const WITHIN: f64 = 1.96;

pub(crate) fn run(args: &Args) -> Result<()> {
    let (before, after) = (Results::open(&args.before)?, Results::open(&args.after)?);
    let pace = pace(&before, &after);
    let same_pace = pace.is_none_or(|p| p.ln().abs() < OTHER_PACE);
    let mut changes = of_answers(&before, &after, same_pace);
    if let (Some(before), Some(after)) = (&before.cost, &after.cost) {
        changes.extend(of_costs(before, after, same_pace));
    }
    if let (Some(before), Some(after)) = (&before.served, &after.served) {
        changes.extend(of_servers(before, after));
    }
    if changes.is_empty() {
        bail!("the two runs have no figure in common");
    }
    print((&before, &after), &changes, pace.filter(|_| !same_pace), args.json)
}

/// Says what changed; `pace` is that of a machine that is another one than before.
pub(crate) fn print(
    (before, after): (&Results, &Results),
    changes: &[Change],
    pace: Option<f64>,
    json: bool,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let changed: Vec<&Change> = changes.iter().filter(|c| c.changed).collect();
    if json {
        let object =
            serde_json::json!({"figures": changes.len(), "pace": pace, "changed": changed, "all": changes});
        writeln!(out, "{object}")?;
        return Ok(());
    }
    for (name, results) in [("before", before), ("after", after)] {
        let machine = &results.machine;
        writeln!(out, "{name}: {}, program {}, load {:.1}", machine.line(), machine.program, machine.load)?;
    }
    if before.machine.processor != after.machine.processor || before.machine.threads != after.machine.threads
    {
        writeln!(out, "the machines differ: only ratios can be compared")?;
    }
    if let Some(pace) = pace {
        writeln!(
            out,
            "the machine ran at {pace:.2} of its earlier pace, whatever the build: speeds are not judged, ratios to plain \
             decoding are"
        )?;
    }
    let row = |c: &&Change| {
        let percent = |ratio: f64| format!("{:+.1}", 100.0 * (ratio - 1.0));
        vec![
            c.suite.clone(),
            c.mode.clone(),
            c.figure.to_owned(),
            format!("{:.2}", c.before),
            format!("{:.2}", c.after),
            format!("{} [{}, {}]", percent(c.change.value), percent(c.change.low), percent(c.change.high)),
            format!("{:.1}", 100.0 * c.noise),
        ]
    };
    if !changed.is_empty() {
        let header = ["suite", "mode", "figure", "before", "after", "change %", "noise %"];
        tables::table(&mut out, &header, changed.iter().map(row).collect())?;
    }
    let judged = changes.iter().filter(|c| c.judged).count();
    writeln!(out, "\n{} of {judged} figures changed beyond noise", changed.len())?;
    Ok(())
}

const SPEED: &str = "tok/s";
const PROMPT_SPEED: &str = "prompt tok/s";

/// A figure of samples: its name, and its values by prompt and repeat.
pub(crate) type Figure = (&'static str, fn(&[Sample], &str, &str) -> Vec<Vec<f64>>);

pub(crate) const FIGURES: [Figure; 4] = [
    (SPEED, |samples, suite, mode| table(&by_prompt(samples, suite, mode), Sample::tokens_per_s)),
    ("times plain", ratios),
    ("accept length", |samples, suite, mode| {
        let mean =
            |s: &Sample| s.accept_lengths.iter().sum::<usize>() as f64 / s.accept_lengths.len().max(1) as f64;
        table(&by_prompt(samples, suite, mode), mean)
    }),
    (PROMPT_SPEED, |samples, suite, mode| {
        table(&by_prompt(samples, suite, mode), Sample::prefill_tokens_per_s)
    }),
];

/// Speed by that of plain decoding of the same prompt in the same repeat.
fn ratios(samples: &[Sample], suite: &str, mode: &str) -> Vec<Vec<f64>> {
    let rates = |mode: &str| table(&by_prompt(samples, suite, mode), Sample::tokens_per_s);
    let (these, plain) = (rates(mode), rates("off"));
    if mode == "off" || plain.len() != these.len() {
        return Vec::new();
    }
    let row = |(these, plain): (&Vec<f64>, &Vec<f64>)| these.iter().zip(plain).map(|(a, b)| a / b).collect();
    these.iter().zip(&plain).map(row).collect()
}

/// After by before, of the machine's own pace, where both runs have it.
fn pace(before: &Results, after: &Results) -> Option<f64> {
    let middle = |results: &Results| {
        let paces: Vec<f64> = results.samples.iter().filter_map(|s| s.pace).collect();
        (!paces.is_empty()).then(|| median(paces))
    };
    Some(middle(after)? / middle(before)?)
}

fn of_answers(before: &Results, after: &Results, same_pace: bool) -> Vec<Change> {
    let (Some(a), Some(b)) = (&before.settings, &after.settings) else { return Vec::new() };
    let mut changes = Vec::new();
    for (figure, values) in FIGURES {
        let is_speed = figure == SPEED || figure == PROMPT_SPEED;
        let of_repeats: fn(&[f64]) -> f64 = if is_speed { fastest } else { middle };
        let judged = same_pace || !is_speed;
        let pairs = || a.suites.iter().flat_map(|suite| a.modes.iter().map(move |mode| (suite, mode)));
        let drift = |results: &Results| {
            let cells: Vec<Vec<Vec<f64>>> = pairs().map(|(s, m)| values(&results.samples, s, m)).collect();
            drift(&cells, of_repeats)
        };
        let noise = WITHIN * drift(before).hypot(drift(after));
        for (suite, mode) in pairs().filter(|(s, m)| b.suites.contains(s) && b.modes.contains(m)) {
            let (x, y) = (values(&before.samples, suite, mode), values(&after.samples, suite, mode));
            // Other prompts would be another suite.
            if x.is_empty() || x.len() != y.len() {
                continue;
            }
            let change = paired(&x, &y, of_repeats);
            let beyond = change.value.ln().abs() > noise && !(change.low <= 1.0 && 1.0 <= change.high);
            let over_prompts = |values: &[Vec<f64>]| median(values.iter().map(|v| of_repeats(v)));
            changes.push(Change {
                suite: suite.clone(),
                mode: mode.clone(),
                figure,
                before: over_prompts(&x),
                after: over_prompts(&y),
                change,
                noise,
                judged,
                changed: judged && beyond,
            });
        }
    }
    changes
}

/// The median over prompts of after by before, with its interval.
fn paired(before: &[Vec<f64>], after: &[Vec<f64>], of_repeats: fn(&[f64]) -> f64) -> Interval {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(a, b)| of_repeats(b) / of_repeats(a)).collect();
    Estimate::of(ratios.len(), 1, |drawn| median(drawn.iter().map(|i| ratios[*i]))).interval()
}

fn middle(repeats: &[f64]) -> f64 {
    median(repeats.iter().copied())
}

fn fastest(repeats: &[f64]) -> f64 {
    repeats.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// How far a cell's figure hangs on single repeats, over all cells: [cells][prompts][repeats]. By the jackknife: the
/// figure again and again with one repeat left out.
fn drift(cells: &[Vec<Vec<f64>>], of_repeats: fn(&[f64]) -> f64) -> f64 {
    let mut squares = Vec::new();
    for prompts in cells {
        let repeats = prompts.iter().map(Vec::len).min().unwrap_or(0);
        if repeats < 2 {
            continue;
        }
        let without = |r: usize| {
            let rest = |p: &Vec<f64>| {
                let kept: Vec<f64> = p.iter().enumerate().filter(|(i, _)| *i != r).map(|(_, x)| *x).collect();
                of_repeats(&kept)
            };
            median(prompts.iter().map(rest)).ln()
        };
        let figures: Vec<f64> = (0..repeats).map(without).filter(|f| f.is_finite()).collect();
        let count = figures.len() as f64;
        squares.push(deviation(&figures).powi(2) * (count - 1.0).powi(2) / count);
    }
    match squares.is_empty() {
        true => UNKNOWN,
        false => (squares.iter().sum::<f64>() / squares.len() as f64).sqrt().max(STEADIEST),
    }
}

/// Costs have no prompts: a change counts when the intervals lie apart.
fn of_costs(before: &Cost, after: &Cost, same_pace: bool) -> Vec<Change> {
    let mut pairs = vec![
        ("prompt tok/s".to_owned(), before.prompt_tokens_per_s, after.prompt_tokens_per_s),
        ("ms a token".to_owned(), before.token_ms, after.token_ms),
    ];
    for row in &before.rows {
        if let Some(other) = after.rows.iter().find(|r| r.rows == row.rows) {
            pairs.push((format!("ms, {} rows", row.rows), row.ms, other.ms));
        }
    }
    pairs.into_iter().map(|(mode, a, b)| apart(&after.model, mode, "cost", (a, b), same_pace)).collect()
}

/// Nor have loads of a server.
fn of_servers(before: &Served, after: &Served) -> Vec<Change> {
    let mut changes = Vec::new();
    for a in &before.points {
        let Some(b) = after.points.iter().find(|b| b.concurrency == a.concurrency) else { continue };
        let pairs = [
            ("tok/s", a.tokens_per_s, b.tokens_per_s),
            ("first token ms", a.first_token_ms, b.first_token_ms),
            ("ms a token", a.token_ms, b.token_ms),
        ];
        let mode = || format!("{} at a time", a.concurrency);
        changes.extend(pairs.map(|(figure, x, y)| apart(&after.model, mode(), figure, (x, y), true)));
    }
    changes
}

/// A change of a figure that was measured in one go.
fn apart(
    suite: &str,
    mode: String,
    figure: &'static str,
    (a, b): (Interval, Interval),
    judged: bool,
) -> Change {
    let noise = WITHIN * COST_DRIFT.hypot(COST_DRIFT);
    let change = Interval { value: b.value / a.value, low: b.low / a.high, high: b.high / a.low };
    let lies_apart = b.low > a.high || b.high < a.low;
    let changed = judged && lies_apart && change.value.ln().abs() > noise;
    let (before, after) = (a.value, b.value);
    Change { suite: suite.to_owned(), mode, figure, before, after, change, noise, judged, changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_what_repeats_differ_by() {
        let calm = vec![vec![vec![100.0, 100.0, 100.0]; 4]];
        let shaky = vec![vec![vec![100.0, 120.0, 80.0]; 4]];
        assert_eq!(drift(&calm, middle), STEADIEST);
        assert!((0.1..0.3).contains(&drift(&shaky, middle)), "{}", drift(&shaky, middle));
        // A repeat that was disturbed says nothing of the fastest.
        assert_eq!(drift(&[vec![vec![100.0, 100.0, 60.0]; 4]], fastest), STEADIEST);
        assert_eq!(drift(&[vec![vec![100.0]; 4]], middle), UNKNOWN);
    }

    #[test]
    fn a_prompt_is_compared_with_itself() {
        let before: Vec<Vec<f64>> = (1..=9).map(|p| vec![100.0 * f64::from(p)]).collect();
        let after: Vec<Vec<f64>> = before.iter().map(|p| vec![p[0] * 0.9]).collect();
        let found = paired(&before, &after, middle);
        assert!((found.low - 0.9).abs() < 1e-9 && (found.high - 0.9).abs() < 1e-9, "{found:?}");
    }
}
