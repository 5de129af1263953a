//! Sweeps: the same prompts over a range of one setting.

use crate::measure::{Asking, samples, together};
use crate::modes::{Means, Mode};
use crate::results::{Cell, cells};
use crate::suites::{self, Suite};
use anyhow::{Result, bail};
use launch::Running;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Axis {
    /// Nodes of a tree.
    Budget,
    /// Rows of a chain's block.
    Block,
    /// Rows of a verify.
    Rows,
    /// Tokens of the prompt.
    Context,
    /// Texts written at once.
    Slots,
}

impl Axis {
    /// As `--sweep` spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::Block => "block",
            Self::Rows => "rows",
            Self::Context => "context",
            Self::Slots => "slots",
        }
    }
}

/// `AXIS=VALUES`, as `--sweep` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) axis: Axis,
    pub(crate) values: Vec<usize>,
}

/// A sweep that was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sweep {
    pub(crate) axis: Axis,
    pub(crate) points: Vec<Point>,
}

/// Figures at one value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) value: usize,
    #[serde(flatten)]
    pub(crate) cell: Cell,
}

/// Prompts of a suite that a sweep takes.
const PROMPTS: usize = 3;

/// No value of an axis is larger: ranges are lists.
const MOST: usize = 1 << 20;

/// What a report shows when nothing else is asked for.
pub(crate) fn usual() -> Vec<Range> {
    let range = |axis, values: &[usize]| Range { axis, values: values.to_vec() };
    vec![
        range(Axis::Budget, &[1, 2, 4, 8, 15, 22, 32, 48, 63]),
        range(Axis::Rows, &crate::cost::ROWS),
        range(Axis::Context, &[128, 512, 2048]),
    ]
}

impl Range {
    /// Refuses what passes of so many rows have no room for.
    pub(crate) fn check(&self, rows: usize) -> Result<()> {
        let most = match self.axis {
            Axis::Budget => rows - 1,
            Axis::Block | Axis::Rows | Axis::Slots => rows,
            Axis::Context => MOST,
        };
        match self.values.iter().find(|value| **value > most) {
            Some(value) => bail!("{} is {value}, {most} at most here", self.axis.name()),
            None => Ok(()),
        }
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "AXIS=FIRST..LAST or AXIS=N,N,... expected, with budget, block, rows, context or slots"
                .to_owned()
        };
        let (axis, values) = text.split_once('=').ok_or_else(wrong)?;
        let (axis, low) = match axis {
            "budget" => (Axis::Budget, 1),
            "block" => (Axis::Block, 2),
            "rows" => (Axis::Rows, 1),
            "context" => (Axis::Context, 1),
            "slots" => (Axis::Slots, 1),
            _ => return Err(wrong()),
        };
        // How many rows a pass may have is the backend's to say, when there is one.
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number) if (low..=MOST).contains(&number) => Ok(number),
            Ok(n) => Err(format!("{} is {n}, {low} to {MOST} expected", axis.name())),
            Err(_) => Err(wrong()),
        };
        let mut values: Vec<usize> = match values.split_once("..") {
            // A range of contexts doubles, the others go one by one.
            Some((first, last)) if axis == Axis::Context => {
                let (first, last) = (number(first)?, number(last)?);
                std::iter::successors(Some(first), |n| n.checked_mul(2))
                    .take_while(|n| *n <= last)
                    .collect()
            }
            Some((first, last)) => (number(first)?..=number(last)?).collect(),
            None => values.split(',').map(number).collect::<Result<Vec<usize>, String>>()?,
        };
        values.dedup();
        if values.is_empty() { Err(wrong()) } else { Ok(Self { axis, values }) }
    }
}

/// Runs a sweep over a running model; nothing where the model has no means for it.
pub(crate) fn run(
    range: &Range,
    running: &mut Running,
    suites: &[Suite],
    modes: &[Mode],
    asking: &Asking,
) -> Result<Option<Sweep>> {
    let means = Means::of(running);
    let points = match range.axis {
        Axis::Budget | Axis::Block => {
            let kind = if range.axis == Axis::Budget { "tree" } else { "chain" };
            let Some(trained) = means.block else { return Ok(None) };
            let fits = |v: &&usize| range.axis == Axis::Budget || **v <= trained;
            let values: Vec<usize> = range.values.iter().filter(fits).copied().collect();
            let mut modes = vec![means.mode("off")?];
            for value in &values {
                modes.push(means.mode(&format!("{kind}:{value}"))?);
            }
            let suites: Vec<Suite> = suites.iter().map(|s| s.first(PROMPTS)).collect();
            let found =
                measured(running, &suites, &modes, &Asking { repeats: 1, ..asking.clone() })?;
            // Plain decoding is there for the ratio and has no place on the axis.
            let value = |cell: &Cell| cell.mode.split_once(':').and_then(|(_, v)| v.parse().ok());
            found
                .into_iter()
                .filter_map(|cell| Some(Point { value: value(&cell)?, cell }))
                .collect()
        }
        Axis::Context => {
            let long = contexts(running, &range.values)?;
            let found = measured(running, &long, modes, &Asking { repeats: 2, ..asking.clone() })?;
            let value = |cell: &Cell| cell.suite.parse::<usize>().ok();
            found
                .into_iter()
                .filter_map(|cell| Some(Point { value: value(&cell)?, cell }))
                .collect()
        }
        Axis::Slots => {
            let prompts: Vec<&[u32]> =
                suites.iter().flat_map(|s| &s.prompts).map(Vec::as_slice).collect();
            let samples = together(running, &prompts, &range.values, modes, asking)?;
            let names: Vec<String> = range.values.iter().map(usize::to_string).collect();
            let modes: Vec<String> = modes.iter().map(|m| m.name.clone()).collect();
            let found = cells(&samples, &names, &modes);
            let value = |cell: &Cell| cell.suite.parse::<usize>().ok();
            found
                .into_iter()
                .filter_map(|cell| Some(Point { value: value(&cell)?, cell }))
                .collect()
        }
        Axis::Rows => bail!("a sweep of rows needs no text"),
    };
    Ok(Some(Sweep { axis: range.axis, points }))
}

fn measured(
    running: &mut Running,
    suites: &[Suite],
    modes: &[Mode],
    asking: &Asking,
) -> Result<Vec<Cell>> {
    let samples = samples(running, suites, modes, asking)?;
    let suites: Vec<String> = suites.iter().map(|s| s.name.clone()).collect();
    let modes: Vec<String> = modes.iter().map(|m| m.name.clone()).collect();
    Ok(cells(&samples, &suites, &modes))
}

/// For each length that leaves room for an answer, two prompts of so many tokens, out of the suite
/// `long`.
fn contexts(running: &Running, lengths: &[usize]) -> Result<Vec<Suite>> {
    let long = suites::suite("long", usize::MAX, &running.text)?;
    let prompt = |length: usize, first: usize| -> Vec<u32> {
        let texts = long.prompts.iter().cycle().skip(first * long.prompts.len() / 2);
        texts.flatten().copied().take(length).collect()
    };
    let suite = |&length: &usize| Suite {
        name: length.to_string(),
        prompts: (0..2).map(|first| prompt(length, first)).collect(),
    };
    let suites: Vec<Suite> = lengths.iter().filter(|l| **l < running.context).map(suite).collect();
    if suites.is_empty() {
        bail!(
            "`--sweep context`: every length is beyond the context of {} tokens",
            running.context
        );
    }
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let values = |text: &str| text.parse::<Range>().map(|r| r.values);
        assert_eq!(values("budget=1,8,22").unwrap(), [1, 8, 22]);
        assert_eq!(values("budget=1..63").unwrap(), (1..=63).collect::<Vec<_>>());
        assert_eq!(values("context=256..2048").unwrap(), [256, 512, 1024, 2048]);
        for wrong in ["budget", "budget=", "speed=1..2", "rows=4..1", "rows=a"] {
            assert!(values(wrong).is_err(), "{wrong}");
        }
        assert_eq!(values("block=1,8").unwrap_err(), "block is 1, 2 to 1048576 expected");
        assert_eq!(values("context=0..8").unwrap_err(), "context is 0, 1 to 1048576 expected");
    }
}
