//! `forerun bench versus`: two builds, or two ways to run one, in turns. What a shared machine does
//! to one of them it does to the other a few seconds later, so a difference that every turn shows
//! is theirs and not the machine's.

use crate::compare::{self, Change, FIGURES};
use crate::progress::Progress;
use crate::results::{Results, Sample};
use crate::statistics::{Interval, deviation, median};
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A command that measures, in one argument: `old/forerun bench --suite code`; it is given
    /// `--json --repeats 1`
    before: String,
    /// The other one
    after: String,
    /// How often each takes its turn, 3 to 100
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u16).range(3..=100))]
    times: u16,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// No difference smaller than this is worth a word.
const SMALLEST: f64 = 0.02;
/// Standard errors that 99 % of figures lie within, where a handful of turns say what the error is.
const WITHIN: f64 = 3.0;

pub(crate) fn run(args: &Args) -> Result<()> {
    let commands = [&args.before, &args.after];
    let mut found: [Option<Results>; 2] = [None, None];
    let progress = Progress::new(2 * usize::from(args.times), "before");
    for turn in 0..usize::from(args.times) {
        for k in 0..2 {
            let side = (turn + k) % 2;
            let mut results = once(commands[side])?;
            results.samples.iter_mut().for_each(|s| s.repeat = turn);
            match &mut found[side] {
                Some(all) => all.samples.extend(results.samples),
                none => *none = Some(results),
            }
            progress.step(if k == 0 { "after" } else { "before" });
        }
    }
    drop(progress);
    let [Some(before), Some(after)] = found else { bail!("nothing was measured") };
    let changes = of_turns(&before, &after)?;
    compare::print((&before, &after), &changes, None, args.json)
}

fn once(command: &str) -> Result<Results> {
    // Whoever reads of a failure sees what was added, too.
    let command = format!("{command} --json --repeats 1");
    let mut words = command.split_whitespace();
    let program = words.next().context("an empty command")?;
    let output = Command::new(program)
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| program.to_owned())?;
    if !output.status.success() {
        bail!("`{command}` failed: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("what `{command}` printed"))
}

fn of_turns(before: &Results, after: &Results) -> Result<Vec<Change>> {
    let (Some(a), Some(b)) = (&before.settings, &after.settings) else {
        bail!("both commands must measure answers");
    };
    let mut changes = Vec::new();
    for (figure, values) in FIGURES {
        for suite in a.suites.iter().filter(|s| b.suites.contains(s)) {
            for mode in a.modes.iter().filter(|m| b.modes.contains(m)) {
                let of = |samples: &[Sample]| values(samples, suite, mode);
                let (x, y) = (of(&before.samples), of(&after.samples));
                let same = x.len() == y.len() && x.iter().zip(&y).all(|(a, b)| a.len() == b.len());
                if !same || x.is_empty() {
                    continue;
                }
                let turns = turns(&x, &y);
                let (value, error) = (
                    median(turns.iter().copied()),
                    deviation(&turns) / (turns.len() as f64).sqrt(),
                );
                let middle = |v: &[Vec<f64>]| median(v.iter().map(|p| median(p.iter().copied())));
                let reach = WITHIN * error;
                changes.push(Change {
                    suite: suite.clone(),
                    mode: mode.clone(),
                    figure,
                    before: middle(&x),
                    after: middle(&y),
                    change: Interval {
                        value: value.exp(),
                        low: (value - reach).exp(),
                        high: (value + reach).exp(),
                    },
                    noise: reach.max(SMALLEST),
                    judged: true,
                    changed: value.abs() > reach.max(SMALLEST),
                });
            }
        }
    }
    Ok(changes)
}

/// For each turn the median over prompts of the logarithm of after by before: `[prompts][turns]` to
/// `[turns]`.
fn turns(before: &[Vec<f64>], after: &[Vec<f64>]) -> Vec<f64> {
    let count = before.iter().map(Vec::len).min().unwrap_or(0);
    let one = |t: usize| median(before.iter().zip(after).map(|(a, b)| (b[t] / a[t]).ln()));
    (0..count).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_changes_its_pace_leaves_turns_alone() {
        let pace = [1.0, 2.0, 1.4, 0.7];
        let before: Vec<Vec<f64>> =
            (1..=5).map(|p| pace.map(|x| x * 100.0 * f64::from(p)).to_vec()).collect();
        let after: Vec<Vec<f64>> =
            before.iter().map(|p| p.iter().map(|x| x / 1.1).collect()).collect();
        assert!(turns(&before, &after).iter().all(|t| (t + 1.1f64.ln()).abs() < 1e-9));
    }
}
