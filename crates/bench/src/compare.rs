//! `forerun bench compare`: what changed between two runs beyond noise. Prompts are compared with
//! themselves; a change counts when its interval leaves out "none" and it is larger than what
//! either run drifted between its repeats. Speeds are of the quietest moments, since whatever else
//! a machine does only ever slows it: a repeat does the same rounds again, so the least time that
//! each of them ever took makes the time of an answer that nobody disturbed. Where the machine
//! itself ran at another pace, speeds say nothing of the build and only ratios within a run are
//! judged.

use crate::cost::Cost;
use crate::results::{Results, Sample, by_prompt, table};
use crate::served::Served;
use crate::statistics::{Estimate, Interval, deviation, median};
use crate::tables;
use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::BTreeSet;
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

/// No machine is steadier than this from run to run, whatever its repeats say. `bench versus` sees
/// smaller changes.
const STEADIEST: f64 = 0.025;
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
        let object = serde_json::json!({"figures": changes.len(), "pace": pace,
            "changed": changed, "all": changes});
        writeln!(out, "{object}")?;
        return Ok(());
    }
    for (name, results) in [("before", before), ("after", after)] {
        let machine = &results.machine;
        writeln!(
            out,
            "{name}: {}, program {}, load {:.1}",
            machine.line(),
            machine.program,
            machine.load
        )?;
    }
    if before.machine.processor != after.machine.processor
        || before.machine.threads != after.machine.threads
    {
        writeln!(out, "the machines differ: only ratios can be compared")?;
    }
    if let Some(pace) = pace {
        writeln!(
            out,
            "the machine ran at {pace:.2} of its earlier pace, whatever the build: speeds are not \
             judged, ratios to plain decoding are"
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
            format!(
                "{} [{}, {}]",
                percent(c.change.value),
                percent(c.change.low),
                percent(c.change.high)
            ),
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
const RATIO: &str = "times plain";
const ACCEPTED: &str = "accept length";
const PROMPT_SPEED: &str = "prompt tok/s";

/// A figure of samples: its name, and its values by prompt and repeat, for those who compare repeat
/// by repeat.
pub(crate) type Figure = (&'static str, fn(&[Sample], &str, &str) -> Vec<Vec<f64>>);

pub(crate) const FIGURES: [Figure; 4] = [
    (SPEED, |samples, suite, mode| table(&by_prompt(samples, suite, mode), Sample::tokens_per_s)),
    (RATIO, ratios),
    (ACCEPTED, |samples, suite, mode| {
        table(&by_prompt(samples, suite, mode), Sample::mean_accept_length)
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
    let row = |(these, plain): (&Vec<f64>, &Vec<f64>)| {
        these.iter().zip(plain).map(|(a, b)| a / b).collect()
    };
    these.iter().zip(&plain).map(row).collect()
}

/// After by before, of the machine's own pace in its quiet moments, where both runs have it.
fn pace(before: &Results, after: &Results) -> Option<f64> {
    let quiet = |results: &Results| {
        let mut paces: Vec<f64> = results.samples.iter().filter_map(|s| s.pace).collect();
        paces.sort_by(f64::total_cmp);
        paces.get(paces.len() * 9 / 10).copied()
    };
    Some(quiet(after)? / quiet(before)?)
}

/// How far the speeds of a run hang on single repeats.
pub(crate) fn unsettled(samples: &[Sample]) -> f64 {
    let cells: BTreeSet<(&str, &str)> = samples.iter().map(|s| (&*s.suite, &*s.mode)).collect();
    let cells: Vec<Vec<Repeats<'_>>> =
        cells.iter().map(|(s, m)| repeats_of(samples, s, m)).collect();
    drift(&cells, |repeats| repeats.quiet_rate()).unwrap_or(f64::INFINITY)
}

fn of_answers(before: &Results, after: &Results, same_pace: bool) -> Vec<Change> {
    let (Some(a), Some(b)) = (&before.settings, &after.settings) else { return Vec::new() };
    let mut changes = Vec::new();
    for (figure, of) in OVER_REPEATS {
        let judged = same_pace || (figure != SPEED && figure != PROMPT_SPEED);
        let pairs =
            || a.suites.iter().flat_map(|suite| a.modes.iter().map(move |mode| (suite, mode)));
        let drift = |results: &Results| {
            let cells: Vec<Vec<Repeats<'_>>> =
                pairs().map(|(s, m)| repeats_of(&results.samples, s, m)).collect();
            drift(&cells, of).map_or(UNKNOWN, |drift| drift.max(STEADIEST))
        };
        let noise = WITHIN * drift(before).hypot(drift(after));
        for (suite, mode) in pairs().filter(|(s, m)| b.suites.contains(s) && b.modes.contains(m)) {
            let figures = |results: &Results| -> Vec<f64> {
                repeats_of(&results.samples, suite, mode).iter().map(of).collect()
            };
            let (x, y) = (figures(before), figures(after));
            // Other prompts would be another suite; plain decoding has no ratio to itself.
            if x.is_empty() || x.len() != y.len() || x.iter().all(|x| x.is_nan()) {
                continue;
            }
            let change = paired(&x, &y);
            let beyond =
                change.value.ln().abs() > noise && !(change.low <= 1.0 && 1.0 <= change.high);
            changes.push(Change {
                suite: suite.clone(),
                mode: mode.clone(),
                figure,
                before: median(x),
                after: median(y),
                change,
                noise,
                judged,
                changed: judged && beyond,
            });
        }
    }
    changes
}

/// The answers to one prompt in one mode, and beside each the plain one of the same repeat.
struct Repeats<'a>(Vec<(&'a Sample, Option<&'a Sample>)>);

fn repeats_of<'a>(samples: &'a [Sample], suite: &str, mode: &str) -> Vec<Repeats<'a>> {
    let plain = if mode == "off" { Vec::new() } else { by_prompt(samples, suite, "off") };
    let beside = |s: &Sample| {
        let prompt = plain.iter().find(|p| p[0].prompt == s.prompt)?;
        prompt.iter().find(|p| p.repeat == s.repeat).copied()
    };
    let of_prompt = |p: &Vec<&'a Sample>| {
        Repeats(p.iter().filter(|s| s.tokens > 1).map(|s| (*s, beside(s))).collect())
    };
    by_prompt(samples, suite, mode).iter().map(of_prompt).filter(|r| !r.0.is_empty()).collect()
}

impl Repeats<'_> {
    /// Without one of them.
    fn without(&self, repeat: usize) -> Self {
        Self(self.0.iter().enumerate().filter(|(i, _)| *i != repeat).map(|(_, s)| *s).collect())
    }

    /// Tokens a second when nothing disturbs.
    fn quiet_rate(&self) -> f64 {
        let first = self.0[0].0;
        let (rounds, tokens) = (first.round_us.len(), (first.tokens - 1) as f64);
        // The same rounds every time, which `auto` need not have.
        let alike = |s: &Sample| {
            s.round_us.len() == rounds
                && s.accept_lengths == first.accept_lengths
                && s.text == first.text
        };
        if rounds == 0 || !self.0.iter().all(|(s, _)| alike(s)) {
            return self.0.iter().map(|(s, _)| s.tokens_per_s()).fold(f64::NEG_INFINITY, f64::max);
        }
        let least =
            |i: usize| self.0.iter().map(|(s, _)| s.round_us[i]).fold(f64::INFINITY, f64::min);
        tokens / (0..rounds).map(least).sum::<f64>() * 1e6
    }

    fn middle(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(|(s, _)| figure(s)))
    }
}

/// A figure of an answer that was given several times.
type OverRepeats = (&'static str, fn(&Repeats<'_>) -> f64);

const OVER_REPEATS: [OverRepeats; 4] = [
    (SPEED, |repeats| repeats.quiet_rate()),
    (RATIO, |repeats| {
        let ratio = |(s, plain): &(&Sample, Option<&Sample>)| {
            plain.map_or(f64::NAN, |p| s.tokens_per_s() / p.tokens_per_s())
        };
        median(repeats.0.iter().map(ratio))
    }),
    (ACCEPTED, |repeats| repeats.middle(Sample::mean_accept_length)),
    (PROMPT_SPEED, |repeats| {
        repeats.0.iter().map(|(s, _)| s.prefill_tokens_per_s()).fold(f64::NEG_INFINITY, f64::max)
    }),
];

/// The median over prompts of after by before, with its interval.
fn paired(before: &[f64], after: &[f64]) -> Interval {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(a, b)| b / a).collect();
    Estimate::of(ratios.len(), 1, |drawn| median(drawn.iter().map(|i| ratios[*i]))).interval()
}

/// How far a cell's figure hangs on single repeats, over all cells. By the jackknife: the figure
/// again and again with one repeat left out.
fn drift(cells: &[Vec<Repeats<'_>>], of: fn(&Repeats<'_>) -> f64) -> Option<f64> {
    let mut squares = Vec::new();
    for prompts in cells {
        let repeats = prompts.iter().map(|p| p.0.len()).min().unwrap_or(0);
        if repeats < 2 {
            continue;
        }
        let without = |r: usize| median(prompts.iter().map(|p| of(&p.without(r)))).ln();
        let figures: Vec<f64> = (0..repeats).map(without).filter(|f| f.is_finite()).collect();
        if figures.len() < 2 {
            continue;
        }
        let count = figures.len() as f64;
        squares.push(deviation(&figures).powi(2) * (count - 1.0).powi(2) / count);
    }
    (!squares.is_empty()).then(|| (squares.iter().sum::<f64>() / squares.len() as f64).sqrt())
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
    pairs
        .into_iter()
        .map(|(mode, a, b)| apart(&after.model, mode, "cost", (a, b), same_pace))
        .collect()
}

/// Nor have loads of a server.
fn of_servers(before: &Served, after: &Served) -> Vec<Change> {
    let mut changes = Vec::new();
    for a in &before.points {
        let Some(b) = after.points.iter().find(|b| b.concurrency == a.concurrency) else {
            continue;
        };
        let pairs = [
            ("tok/s", a.tokens_per_s, b.tokens_per_s),
            ("first token ms", a.first_token_ms, b.first_token_ms),
            ("ms a token", a.token_ms, b.token_ms),
        ];
        let mode = || format!("{} at a time", a.concurrency);
        changes
            .extend(pairs.map(|(figure, x, y)| apart(&after.model, mode(), figure, (x, y), true)));
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
    use serde_json::json;

    /// A plain answer of as many rounds as it took microseconds for.
    fn sample(prompt: usize, repeat: usize, round_us: &[f64]) -> Sample {
        let seconds = round_us.iter().sum::<f64>() / 1e6;
        let rounds = round_us.len();
        serde_json::from_value(json!({"suite": "s", "prompt": prompt, "repeat": repeat,
            "mode": "off", "prompt_tokens": 9, "tokens": rounds + 1, "prefill_s": 0.1,
            "decode_s": seconds, "stages": {"draft": 0.0,
            "verify": 0.0, "judge": 0.0, "commit": 0.0, "host": 0.0}, "drafted": 0, "accepted": 0,
            "accept_lengths": vec![1; rounds], "round_us": round_us, "state_bytes": 0,
            "text": "same"}))
        .expect("a sample")
    }

    fn drift_of(repeats: &[[f64; 4]]) -> Option<f64> {
        let samples: Vec<Sample> =
            repeats.iter().enumerate().map(|(r, us)| sample(0, r, us)).collect();
        drift(&[repeats_of(&samples, "s", "off")], |repeats| repeats.quiet_rate())
    }

    #[test]
    fn an_undisturbed_answer_is_put_together_from_disturbed_ones() {
        let samples = [sample(0, 0, &[10.0, 90.0, 10.0]), sample(0, 1, &[70.0, 10.0, 80.0])];
        let repeats = repeats_of(&samples, "s", "off");
        assert!((repeats[0].quiet_rate() - 1e5).abs() < 1e-6);
        // Other rounds cannot be put together: the faster answer counts.
        let samples = [sample(0, 0, &[10.0, 30.0]), sample(0, 1, &[20.0, 20.0, 20.0])];
        let rate = repeats_of(&samples, "s", "off")[0].quiet_rate();
        assert!((rate - 5e4).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn drift_is_what_repeats_differ_by() {
        assert_eq!(drift_of(&[[10.0; 4]; 3]), Some(0.0));
        // A repeat that was disturbed says nothing of the quiet ones.
        assert_eq!(drift_of(&[[10.0; 4], [10.0; 4], [16.0; 4]]), Some(0.0));
        let shaky = drift_of(&[[10.0; 4], [12.0; 4], [15.0; 4]]);
        assert!(shaky.is_some_and(|s| (0.05..0.3).contains(&s)), "{shaky:?}");
        assert_eq!(drift_of(&[[10.0; 4]]), None);
    }

    #[test]
    fn a_prompt_is_compared_with_itself() {
        let before: Vec<f64> = (1..=9).map(|p| 100.0 * f64::from(p)).collect();
        let after: Vec<f64> = before.iter().map(|p| p * 0.9).collect();
        let found = paired(&before, &after);
        assert!((found.low - 0.9).abs() < 1e-9 && (found.high - 0.9).abs() < 1e-9, "{found:?}");
    }
}
