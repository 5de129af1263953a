//! Runs that pages quote: what was measured, on what, when and by which command, with tables of figures. Runs of `bench`
//! become such files by `bench tables --add`; other programs may write them too.

use super::cost::Cost;
use super::results::{Cell, Results};
use super::served::Served;
use super::statistics::Interval;
use super::sweep::Sweep;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A run with a name, which is the name of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) machine: String,
    pub(crate) build: String,
    /// UTC.
    pub(crate) date: String,
    /// What makes the figures again.
    pub(crate) command: String,
    /// Models, their types, and how much of them was run.
    pub(crate) shapes: String,
    pub(crate) tables: BTreeMap<String, Table>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Figure>>,
}

/// What stands in a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Figure {
    Number(f64),
    /// Value, low and high.
    Interval([f64; 3]),
    Text(String),
}

impl Named {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(shown)?;
        let named: Self = serde_json::from_str(&text).with_context(shown)?;
        for (name, table) in &named.tables {
            if let Some(row) = table.rows.iter().find(|r| r.len() != table.columns.len()) {
                bail!(
                    "{}: a row of `{name}` has {} figures, {} expected",
                    shown(),
                    row.len(),
                    table.columns.len()
                );
            }
        }
        Ok(named)
    }

    /// A run of `bench` under the command that made it.
    pub(crate) fn of(results: &Results, command: &str) -> Self {
        let machine = &results.machine;
        let mut tables = BTreeMap::new();
        let mut shapes = Vec::new();
        if let Some(settings) = &results.settings {
            tables.insert("modes".to_owned(), modes(&results.cells, &settings.modes));
            tables.insert("stages".to_owned(), stages(&results.cells));
            shapes.push(format!(
                "{}, KV {}, {} prompts of each suite, {} repeats, up to {} tokens, temperature {}",
                settings.model,
                settings.kv,
                results.cells.first().map_or(0, |c| c.prompts),
                settings.repeats,
                settings.max_tokens,
                settings.temperature
            ));
        }
        for sweep in &results.sweeps {
            tables.insert(sweep.axis.name().to_owned(), swept(sweep));
        }
        if let Some(cost) = &results.cost {
            tables.insert("rows".to_owned(), rows(cost));
            shapes.push(format!(
                "{}: {:.1} MB of weights, {:.1} MB read by a token, floor at {:.1} GB/s ({}); plain decode {}, prompt of {} {} \
                 tok/s",
                cost.model,
                cost.weight_bytes as f64 / 1e6,
                cost.token_bytes as f64 / 1e6,
                cost.bandwidth_gb_s,
                cost.bandwidth_from,
                number(1e3 / cost.token_ms.value),
                cost.prompt_tokens,
                number(cost.prompt_tokens_per_s.value)
            ));
        }
        if let Some(served) = &results.served {
            tables.insert("served".to_owned(), loads(served));
            shapes.push(format!(
                "{} over HTTP, {} prompts, {} repeats, up to {} tokens",
                served.model, served.prompts, served.repeats, served.max_tokens
            ));
        }
        Self {
            machine: format!(
                "{}, {} threads, {}, load {:.1} before",
                machine.processor, machine.threads, machine.level, machine.load
            ),
            build: format!("{} {}, program {}", machine.version, machine.profile, machine.program),
            date: machine.time.clone(),
            command: command.to_owned(),
            shapes: shapes.join("; "),
            tables,
        }
    }
}

fn text(text: &str) -> Figure {
    Figure::Text(text.to_owned())
}

/// Three significant digits suffice to tell figures apart, and keep files small.
fn rounded(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

fn exact(value: f64) -> Figure {
    Figure::Number(rounded(value))
}

fn spread(interval: &Interval) -> Figure {
    Figure::Interval([interval.value, interval.low, interval.high].map(rounded))
}

/// A line for each suite: plain decoding in tok/s, the other modes by their ratio to it.
fn modes(cells: &[Cell], modes: &[String]) -> Table {
    let mut columns = vec!["suite".to_owned()];
    for mode in modes {
        columns.push(if mode == "off" { "off, tok/s".to_owned() } else { format!("{mode}, times off") });
    }
    let drafting: Vec<&String> = modes.iter().filter(|m| *m != "off").collect();
    columns.extend(drafting.iter().map(|m| format!("AL {m}")));
    let mut suites: Vec<&str> = cells.iter().map(|c| c.suite.as_str()).collect();
    suites.dedup();
    let row = |suite: &&str| {
        let cell = |mode: &str| cells.iter().find(|c| c.suite == *suite && c.mode == mode);
        let mut row = vec![text(suite)];
        for mode in modes {
            row.push(match cell(mode) {
                Some(c) if mode == "off" => spread(&c.tokens_per_s),
                Some(c) => c.ratio.as_ref().map_or_else(|| spread(&c.tokens_per_s), spread),
                None => text("-"),
            });
        }
        row.extend(drafting.iter().map(|m| cell(m).map_or(text("-"), |c| exact(c.accept_length.value))));
        row
    };
    Table { columns, rows: suites.iter().map(row).collect() }
}

fn stages(cells: &[Cell]) -> Table {
    let names = ["suite", "mode", "draft ms", "verify ms", "judge ms", "commit ms", "host ms", "state MB"];
    let row = |c: &Cell| {
        let mut row = vec![text(&c.suite), text(&c.mode)];
        row.extend(c.round_ms.each().map(|(_, ms)| exact(ms)));
        row.push(exact(c.state_bytes as f64 / 1e6));
        row
    };
    Table { columns: names.map(str::to_owned).to_vec(), rows: cells.iter().map(row).collect() }
}

fn swept(sweep: &Sweep) -> Table {
    let names = [
        sweep.axis.name(),
        "suite",
        "mode",
        "tok/s",
        "times off",
        "AL",
        "verify ms",
        "prompt tok/s",
        "state MB",
    ];
    let row = |p: &super::sweep::Point| {
        let c = &p.cell;
        vec![
            Figure::Number(p.value as f64),
            text(&c.suite),
            text(&c.mode),
            spread(&c.tokens_per_s),
            c.ratio.as_ref().map_or(text("-"), spread),
            exact(c.accept_length.value),
            exact(c.round_ms.verify),
            exact(c.prefill_tokens_per_s.value),
            exact(c.state_bytes as f64 / 1e6),
        ]
    };
    Table { columns: names.map(str::to_owned).to_vec(), rows: sweep.points.iter().map(row).collect() }
}

fn rows(cost: &Cost) -> Table {
    let names = ["rows", "verify ms", "single-row passes", "floor ms", "times floor"];
    let single = cost.rows.iter().find(|r| r.rows == 1).map(|r| r.ms.value);
    let row = |r: &super::cost::RowCost| {
        vec![
            Figure::Number(r.rows as f64),
            spread(&r.ms),
            single.map_or(text("-"), |one| exact(r.ms.value / one)),
            exact(r.floor_ms),
            exact(r.ms.value / r.floor_ms),
        ]
    };
    Table { columns: names.map(str::to_owned).to_vec(), rows: cost.rows.iter().map(row).collect() }
}

fn loads(served: &Served) -> Table {
    let names = ["at a time", "tok/s", "tok/s an answer", "first token ms", "ms a token", "AL"];
    let row = |p: &super::served::Load| {
        vec![
            Figure::Number(p.concurrency as f64),
            spread(&p.tokens_per_s),
            spread(&p.answer_tokens_per_s),
            spread(&p.first_token_ms),
            spread(&p.token_ms),
            p.accept_length.map_or(text("-"), exact),
        ]
    };
    Table { columns: names.map(str::to_owned).to_vec(), rows: served.points.iter().map(row).collect() }
}

/// A number with as many digits as say something.
pub(crate) fn number(number: f64) -> String {
    match number.abs() {
        n if n == n.trunc() && n < 1e15 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(n) => f.write_str(&number(*n)),
            Self::Interval([value, low, high]) => {
                write!(f, "{} [{}, {}]", number(*value), number(*low), number(*high))
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}
