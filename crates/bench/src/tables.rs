//! Results as tables on the terminal.

use crate::cost::Cost;
use crate::results::{Cell, Results};
use crate::served::{Load, Served};
use crate::statistics::Interval;
use crate::sweep::Sweep;
use std::io::{Result, Write};

/// Everything that was measured.
pub(crate) fn print(out: &mut impl Write, results: &Results) -> Result<()> {
    writeln!(out, "{}", results.machine.line())?;
    if let Some(settings) = &results.settings {
        writeln!(
            out,
            "{}, KV {}, up to {} tokens an answer, temperature {}, {} repeats; medians with 95 % \
             intervals",
            settings.model,
            settings.kv,
            settings.max_tokens,
            settings.temperature,
            settings.repeats
        )?;
        cells(out, &results.cells)?;
        let different: usize = results.cells.iter().map(|c| c.different_texts).sum();
        match different {
            0 => writeln!(out, "\nall modes wrote the same texts")?,
            n => writeln!(
                out,
                "\n{n} answers differ from those of `off`: `forerun bench parity` says where"
            )?,
        }
    }
    for sweep in &results.sweeps {
        self::sweep(out, sweep)?;
    }
    if let Some(cost) = &results.cost {
        self::cost(out, cost)?;
    }
    if let Some(served) = &results.served {
        self::served(out, served)?;
    }
    writeln!(out, "\nmost memory held: {}", bytes(results.peak_memory_bytes as f64))
}

fn cells(out: &mut impl Write, cells: &[Cell]) -> Result<()> {
    let header = [
        "suite",
        "mode",
        "tok/s",
        "times plain",
        "accept length",
        "acc/drafted",
        "first token ms",
        "prompt tok/s",
        "prompt",
    ];
    let row = |c: &Cell| {
        vec![
            c.suite.clone(),
            c.mode.clone(),
            spread(&c.tokens_per_s, 0),
            c.ratio.as_ref().map_or("-".to_owned(), |r| spread(r, 2)),
            spread(&c.accept_length, 2),
            c.accepted_per_drafted.map_or("-".to_owned(), |a| format!("{a:.2}")),
            spread(&c.first_token_ms, 1),
            format!("{:.0}", c.prefill_tokens_per_s.value),
            format!("{:.0}", c.prompt_tokens),
        ]
    };
    table(out, &header, cells.iter().map(row).collect())?;
    let header = ["ms a round", "mode", "draft", "verify", "judge", "commit", "host", "state"];
    let row = |c: &Cell| {
        let stages = c.round_ms.each().map(|(_, ms)| format!("{ms:.3}"));
        let names = [c.suite.clone(), c.mode.clone()];
        names.into_iter().chain(stages).chain([bytes(c.state_bytes as f64)]).collect()
    };
    table(out, &header, cells.iter().map(row).collect())
}

fn sweep(out: &mut impl Write, sweep: &Sweep) -> Result<()> {
    let axis = sweep.axis.name();
    let header = [
        axis,
        "suite",
        "mode",
        "tok/s",
        "times plain",
        "accept length",
        "verify ms",
        "prompt tok/s",
    ];
    let row = |p: &crate::sweep::Point| {
        vec![
            p.value.to_string(),
            p.cell.suite.clone(),
            p.cell.mode.clone(),
            spread(&p.cell.tokens_per_s, 0),
            p.cell.ratio.as_ref().map_or("-".to_owned(), |r| spread(r, 2)),
            format!("{:.2}", p.cell.accept_length.value),
            format!("{:.3}", p.cell.round_ms.verify),
            format!("{:.0}", p.cell.prefill_tokens_per_s.value),
        ]
    };
    table(out, &header, sweep.points.iter().map(row).collect())
}

fn cost(out: &mut impl Write, cost: &Cost) -> Result<()> {
    let floor = cost.token_bytes as f64 / cost.bandwidth_gb_s / 1e9;
    let decode = &cost.token_ms;
    writeln!(
        out,
        "\n{}: {} of weights, {} read by a token; at {:.1} GB/s ({}) that takes {:.3} ms, {:.1} \
         tok/s",
        cost.model,
        bytes(cost.weight_bytes as f64),
        bytes(cost.token_bytes as f64),
        cost.bandwidth_gb_s,
        cost.bandwidth_from,
        floor * 1e3,
        1.0 / floor
    )?;
    writeln!(
        out,
        "plain decode {:.1} tok/s [{:.1}, {:.1}], {:.0} % of the floor's; prompt of {} {} tok/s",
        1e3 / decode.value,
        1e3 / decode.high,
        1e3 / decode.low,
        100.0 * floor * 1e3 / decode.value,
        cost.prompt_tokens,
        spread(&cost.prompt_tokens_per_s, 0)
    )?;
    let single = cost.rows.iter().find(|r| r.rows == 1).map(|r| r.ms.value);
    let rows = cost.rows.iter().map(|r| {
        vec![
            r.rows.to_string(),
            spread(&r.ms, 3),
            single.map_or("-".to_owned(), |one| format!("{:.2}", r.ms.value / one)),
            format!("{:.3}", r.floor_ms),
            format!("{:.2}", r.ms.value / r.floor_ms),
        ]
    });
    let header = ["rows", "verify ms", "single-row passes", "floor ms", "times floor"];
    table(out, &header, rows.collect())
}

fn served(out: &mut impl Write, served: &Served) -> Result<()> {
    writeln!(
        out,
        "{} at {}, {} prompts ({}), up to {} tokens an answer, temperature {}, {} repeats; medians \
         with 95 % intervals",
        served.model,
        served.server,
        served.prompts,
        served.suites.join(", "),
        served.max_tokens,
        served.temperature,
        served.repeats
    )?;
    let header = [
        "at a time",
        "tok/s",
        "tok/s an answer",
        "first token ms",
        "p95",
        "p99",
        "ms a token",
        "p95",
        "p99",
        "prompt",
        "answer",
        "accept length",
        "acc/drafted",
    ];
    let known = |figure: Option<f64>| figure.map_or("-".to_owned(), |f| format!("{f:.2}"));
    let row = |p: &Load| {
        vec![
            p.concurrency.to_string(),
            spread(&p.tokens_per_s, 0),
            spread(&p.answer_tokens_per_s, 0),
            spread(&p.first_token_ms, 1),
            format!("{:.1}", p.first_token_tail_ms.p95),
            format!("{:.1}", p.first_token_tail_ms.p99),
            spread(&p.token_ms, 3),
            format!("{:.3}", p.token_tail_ms.p95),
            format!("{:.3}", p.token_tail_ms.p99),
            format!("{:.0}", p.prompt_tokens),
            format!("{:.0}", p.completion_tokens),
            known(p.accept_length),
            known(p.accepted_per_drafted),
        ]
    };
    table(out, &header, served.points.iter().map(row).collect())
}

/// `value [low, high]`
pub(crate) fn spread(interval: &Interval, digits: usize) -> String {
    let Interval { value, low, high } = interval;
    format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]")
}

/// Bytes in the unit that suits them.
pub(crate) fn bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} kB", b / 1e3),
    }
}

/// Columns as wide as what is in them; names to the left, numbers to the right.
pub fn table(out: &mut impl Write, header: &[&str], rows: Vec<Vec<String>>) -> Result<()> {
    let width = |i: usize| {
        let cells = rows.iter().map(|r| r[i].chars().count());
        cells.chain([header[i].chars().count()]).max().unwrap_or(0)
    };
    let is_name = |i: usize| rows.iter().all(|r| r[i].starts_with(|c: char| c.is_alphabetic()));
    let columns: Vec<(usize, bool)> = (0..header.len()).map(|i| (width(i), is_name(i))).collect();
    let mut line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&columns).map(|(cell, (width, is_name))| match is_name {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    line(Vec::new())?;
    line(header.to_vec())?;
    let mut before: Option<&str> = None;
    for row in &rows {
        // A name is said once.
        let same = columns[0].1 && before == Some(row[0].as_str());
        before = Some(&row[0]);
        line(
            row.iter()
                .enumerate()
                .map(|(i, c)| if i == 0 && same { "" } else { c.as_str() })
                .collect(),
        )?;
    }
    Ok(())
}
