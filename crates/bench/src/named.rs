//! A run of `bench` as one that pages quote.

use crate::cost::Cost;
use crate::results::{Cell, Results};
use crate::served::Served;
use crate::statistics::Interval;
use crate::sweep::Sweep;
use runs::number;
pub(crate) use runs::{Figure, Named, Table};
use std::collections::BTreeMap;

/// A run of `bench` under the command that made it.
pub(crate) fn named(results: &Results, command: &str) -> Named {
    let machine = &results.machine;
    let mut tables = BTreeMap::new();
    let mut shapes = Vec::new();
    if let Some(settings) = &results.settings {
        tables.insert("modes".to_owned(), modes(&results.cells, &settings.modes));
        tables.insert("lengths".to_owned(), lengths(results.cells.iter(), &settings.modes));
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
        if let Some(settings) = &results.settings {
            let cells = sweep.points.iter().map(|point| &point.cell);
            let name = format!("{}-lengths", sweep.axis.name());
            tables.insert(name, lengths(cells, &settings.modes));
        }
    }
    if let Some(cost) = &results.cost {
        tables.insert("rows".to_owned(), rows(cost));
        shapes.push(format!(
            "{}: {:.1} MB of weights, {:.1} MB read by a token, floor at {:.1} GB/s ({}); plain \
             decode {}, prompt of {} {} tok/s",
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
    Named {
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

fn spread(interval: &Interval) -> Figure {
    Figure::from([interval.value, interval.low, interval.high])
}

/// A line for each suite: plain decoding in tok/s, the other modes by their ratio to it.
fn modes(cells: &[Cell], modes: &[String]) -> Table {
    let mut columns = vec!["suite".to_owned()];
    for mode in modes {
        columns.push(if mode == "off" {
            "off, tok/s".to_owned()
        } else {
            format!("{mode}, times off")
        });
    }
    let drafting: Vec<&String> = modes.iter().filter(|m| *m != "off").collect();
    columns.extend(drafting.iter().map(|m| format!("AL {m}")));
    let mut suites: Vec<&str> = cells.iter().map(|c| c.suite.as_str()).collect();
    suites.dedup();
    let row = |suite: &&str| {
        let cell = |mode: &str| cells.iter().find(|c| c.suite == *suite && c.mode == mode);
        let mut row = vec![(*suite).into()];
        for mode in modes {
            row.push(match cell(mode) {
                Some(c) if mode == "off" => spread(&c.tokens_per_s),
                Some(c) => c.ratio.as_ref().map_or_else(|| spread(&c.tokens_per_s), spread),
                None => "".into(),
            });
        }
        row.extend(drafting.iter().map(|m| Figure::from(cell(m).map(|c| c.accept_length.value))));
        row
    };
    Table { columns, rows: suites.iter().map(row).collect() }
}

/// Acceptance lengths alone, which depend on no machine: a line for each suite, or each value of a
/// sweep.
fn lengths<'a>(cells: impl Iterator<Item = &'a Cell>, modes: &[String]) -> Table {
    let cells: Vec<&Cell> = cells.collect();
    let modes: Vec<&str> = modes.iter().map(String::as_str).filter(|m| *m != "off").collect();
    let mut suites: Vec<&str> = cells.iter().map(|c| c.suite.as_str()).collect();
    suites.dedup();
    let row = |suite: &&str| {
        let cell = |mode: &&str| cells.iter().find(|c| c.suite == *suite && c.mode == **mode);
        let length = |mode| Figure::from(cell(mode).map(|c| c.accept_length.value));
        std::iter::once((*suite).into()).chain(modes.iter().map(length)).collect()
    };
    let columns: Vec<&str> = std::iter::once("AL").chain(modes.iter().copied()).collect();
    Table::new(&columns, suites.iter().map(row).collect())
}

fn stages(cells: &[Cell]) -> Table {
    let names =
        ["suite", "mode", "draft ms", "verify ms", "judge ms", "commit ms", "host ms", "state MB"];
    let row = |c: &Cell| {
        let mut row = vec![c.suite.as_str().into(), c.mode.as_str().into()];
        row.extend(c.round_ms.each().map(|(_, ms)| ms.into()));
        row.push((c.state_bytes as f64 / 1e6).into());
        row
    };
    Table::new(&names, cells.iter().map(row).collect())
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
    let row = |p: &crate::sweep::Point| {
        let c = &p.cell;
        vec![
            (p.value as f64).into(),
            c.suite.as_str().into(),
            c.mode.as_str().into(),
            spread(&c.tokens_per_s),
            c.ratio.as_ref().map(spread).into(),
            c.accept_length.value.into(),
            c.round_ms.verify.into(),
            c.prefill_tokens_per_s.value.into(),
            (c.state_bytes as f64 / 1e6).into(),
        ]
    };
    Table::new(&names, sweep.points.iter().map(row).collect())
}

fn rows(cost: &Cost) -> Table {
    let names = ["rows", "verify ms", "single-row passes", "floor ms", "times floor"];
    let single = cost.rows.iter().find(|r| r.rows == 1).map(|r| r.ms.value);
    let row = |r: &crate::cost::RowCost| {
        vec![
            (r.rows as f64).into(),
            spread(&r.ms),
            single.map(|one| r.ms.value / one).into(),
            r.floor_ms.into(),
            (r.ms.value / r.floor_ms).into(),
        ]
    };
    Table::new(&names, cost.rows.iter().map(row).collect())
}

fn loads(served: &Served) -> Table {
    let names = [
        "at a time",
        "tok/s",
        "tok/s an answer",
        "first token ms",
        "p95",
        "p99",
        "ms a token",
        "p95",
        "p99",
        "AL",
    ];
    let row = |p: &crate::served::Load| {
        vec![
            (p.concurrency as f64).into(),
            spread(&p.tokens_per_s),
            spread(&p.answer_tokens_per_s),
            spread(&p.first_token_ms),
            p.first_token_tail_ms.p95.into(),
            p.first_token_tail_ms.p99.into(),
            spread(&p.token_ms),
            p.token_tail_ms.p95.into(),
            p.token_tail_ms.p99.into(),
            p.accept_length.into(),
        ]
    };
    Table::new(&names, served.points.iter().map(row).collect())
}
