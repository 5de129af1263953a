//! Results as files: JSON and CSV first, then one HTML page with its plots inside, drawn from the
//! same data.

use crate::plot::{HALF, Labels, Series, WHOLE, bars, escape, lines, piles};
use crate::results::{Cell, OVERALL, Results, Sample};
use crate::served::{Load, Served};
use crate::statistics::Interval;
use crate::sweep::{Axis, Sweep};
use crate::tables::bytes;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::Path;

/// Writes everything into a folder that exists.
pub(crate) fn write(folder: &Path, results: &Results) -> Result<()> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    put("results.json", serde_json::to_string(results)? + "\n")?;
    put("cells.csv", cells_csv(results))?;
    put("samples.csv", samples_csv(&results.samples))?;
    if let Some(served) = &results.served {
        put("served.csv", served_csv(served))?;
    }
    put("report.html", page(results))
}

fn cells_csv(results: &Results) -> String {
    let mut csv = String::from(
        "axis,value,suite,mode,prompts,tokens_per_s,low,high,ratio,ratio_low,ratio_high,\
         accept_length,accepted_per_drafted,prompt_tokens,first_token_ms,prefill_tokens_per_s,\
         draft_ms,verify_ms,judge_ms,commit_ms,host_ms,state_bytes,different_texts\n",
    );
    let mut line = |axis: &str, value: &str, c: &Cell| {
        let Interval { value: speed, low, high } = c.tokens_per_s;
        let ratio =
            c.ratio.map_or(",,".to_owned(), |r| format!("{},{},{}", r.value, r.low, r.high));
        let accepted = c.accepted_per_drafted.map_or(String::new(), |a| a.to_string());
        let stages = c.round_ms.each().map(|(_, ms)| ms.to_string()).join(",");
        let end = format!("{},{}", c.state_bytes, c.different_texts);
        csv += &format!(
            "{axis},{value},{},{},{},{speed},{low},{high},{ratio},{},{accepted},\
             {},{},{},{stages},{end}\n",
            field(&c.suite),
            c.mode,
            c.prompts,
            c.accept_length.value,
            c.prompt_tokens,
            c.first_token_ms.value,
            c.prefill_tokens_per_s.value,
        );
    };
    results.cells.iter().for_each(|c| line("", "", c));
    for sweep in &results.sweeps {
        let axis = sweep.axis.name();
        sweep.points.iter().for_each(|p| line(axis, &p.value.to_string(), &p.cell));
    }
    csv
}

fn served_csv(served: &Served) -> String {
    let mut csv = String::from(
        "concurrency,requests,tokens_per_s,low,high,answer_tokens_per_s,first_token_ms,\
         first_token_p95_ms,first_token_p99_ms,token_ms,token_p95_ms,token_p99_ms,prompt_tokens,\
         completion_tokens,accept_length,accepted_per_drafted\n",
    );
    let known = |figure: Option<f64>| figure.map_or(String::new(), |f| f.to_string());
    for p in &served.points {
        csv += &format!(
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
            p.concurrency,
            p.requests,
            p.tokens_per_s.value,
            p.tokens_per_s.low,
            p.tokens_per_s.high,
            p.answer_tokens_per_s.value,
            p.first_token_ms.value,
            p.first_token_tail_ms.p95,
            p.first_token_tail_ms.p99,
            p.token_ms.value,
            p.token_tail_ms.p95,
            p.token_tail_ms.p99,
            p.prompt_tokens,
            p.completion_tokens,
            known(p.accept_length),
            known(p.accepted_per_drafted),
        );
    }
    csv
}

fn samples_csv(samples: &[Sample]) -> String {
    let mut csv = String::from(
        "suite,prompt,repeat,mode,prompt_tokens,tokens,prefill_s,decode_s,rounds,drafted,accepted,\
         draft_s,verify_s,judge_s,commit_s,host_s,text\n",
    );
    for s in samples {
        let stages = s.stages.each().map(|(_, seconds)| seconds.to_string()).join(",");
        let counts = format!("{},{},{}", s.accept_lengths.len(), s.drafted, s.accepted);
        csv += &format!(
            "{},{},{},{},{},{},{},{},{counts},{stages},{}\n",
            field(&s.suite),
            s.prompt,
            s.repeat,
            s.mode,
            s.prompt_tokens,
            s.tokens,
            s.prefill_s,
            s.decode_s,
            s.text
        );
    }
    csv
}

/// A name as a CSV field; a file of prompts may be called anything.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

pub(crate) const STYLE: &str = include_str!("report.css");

fn page(results: &Results) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<meta name='viewport' \
         content='width=device-width'>\n\
         <title>forerun bench</title>\n<style>\n{STYLE}</style>\n<header>\n\
         <h1><i>forerun</i> bench</h1>\n"
    );
    let machine = &results.machine;
    let mut about = vec![
        machine.line(),
        format!(
            "{:.1} GB of memory, {}, load {:.1} before the run; program {}; most memory held {}",
            machine.memory_gb,
            machine.system,
            machine.load,
            machine.program,
            bytes(results.peak_memory_bytes as f64)
        ),
    ];
    if let Some(s) = &results.settings {
        about.push(format!(
            "{}, KV {}, up to {} tokens an answer, temperature {}, seed {}, {} repeats. Figures \
             are medians over prompts of the median over repeats, with bootstrap 95 % intervals; \
             overall ones are geometric means of the suites'.",
            s.model, s.kv, s.max_tokens, s.temperature, s.seed, s.repeats
        ));
    }
    about.iter().for_each(|line| page += &format!("<p>{}</p>\n", escape(line)));
    page += &format!("</header>\n{}", tiles(results));
    if let Some(settings) = &results.settings {
        let (suites, modes) = (&settings.suites, &settings.modes);
        section(&mut page, "Tokens per second by mode", &speed(results, suites, modes));
        if modes.len() > 1 && modes.iter().any(|m| m == "off") {
            section(&mut page, "Times plain decoding", &ratio(results, suites, modes));
        }
        section(&mut page, "In numbers", &cells_table(&results.cells));
        let lengths = acceptance(results, &settings.suites, &settings.modes);
        section(&mut page, "Acceptance lengths", &lengths);
        section(&mut page, "Where a round's time goes", &stages(results, &settings.modes));
    }
    for sweep in &results.sweeps {
        let (title, plot) = swept(sweep);
        section(&mut page, title, &plot);
    }
    if results.cost.is_some() {
        section(&mut page, "Cost against rows", &rows(results));
    }
    if let Some(served) = &results.served {
        section(&mut page, "A server under load", &self::served(served));
    }
    page + "<footer><p>Medians with bootstrap 95 % intervals; results.json and the CSV files \
            beside this page hold every answer.</p></footer>\n"
}

/// What somebody who looks for a second should see.
fn tiles(results: &Results) -> String {
    let mut tiles: Vec<(String, String)> = Vec::new();
    let last = results.cells.last().map_or("", |c| c.suite.as_str());
    let overall = results.cells.iter().filter(|c| c.suite == last);
    if let Some(plain) = overall.clone().find(|c| c.mode == "off") {
        let about = format!("tok/s, plain decoding, {last}");
        tiles.push((format!("{:.0}", plain.tokens_per_s.value), about));
    }
    let drafting = results.cells.iter().filter(|c| c.mode != "off");
    let by_ratio = |c: &&Cell| c.ratio.map_or(0.0, |r| r.value);
    // The best of many figures is often one that noise lifted.
    let surely = |c: &&Cell| c.ratio.map_or(0.0, |r| r.low);
    if let Some(best) = drafting.clone().max_by(|a, b| surely(a).total_cmp(&surely(b))) {
        let about = format!("times plain at best: {} on {}", best.mode, best.suite);
        tiles.push((format!("{:.2}×", by_ratio(&best)), about));
    }
    if let Some(auto) = overall.clone().find(|c| c.mode == "auto") {
        tiles.push((
            format!("{:.2}×", by_ratio(&auto)),
            format!("times plain by itself (auto), {last}"),
        ));
    }
    let longest = |a: &&Cell, b: &&Cell| a.accept_length.value.total_cmp(&b.accept_length.value);
    if let Some(best) = overall.filter(|c| c.mode != "off").max_by(longest) {
        let about = format!("tokens a round: {}, {last}", best.mode);
        tiles.push((format!("{:.1}", best.accept_length.value), about));
    }
    if let Some(cost) = &results.cost {
        let share =
            100.0 * cost.token_bytes as f64 / cost.bandwidth_gb_s / 1e6 / cost.token_ms.value;
        tiles.push((
            format!("{share:.0} %"),
            "of what memory bandwidth allows, plain decoding".to_owned(),
        ));
    }
    if let Some(most) = results.served.iter().flat_map(|s| &s.points).max_by_key(|p| p.concurrency)
    {
        let about = format!("tok/s with {} requests at a time", most.concurrency);
        tiles.push((format!("{:.0}", most.tokens_per_s.value), about));
    }
    let tile = |(figure, about): &(String, String)| {
        format!("<div><b>{}</b><span>{}</span></div>\n", escape(figure), escape(about))
    };
    match tiles.is_empty() {
        true => String::new(),
        false => {
            format!("<div class='tiles'>\n{}</div>\n", tiles.iter().map(tile).collect::<String>())
        }
    }
}

fn section(page: &mut String, title: &str, body: &str) {
    write!(page, "<section>\n<h2>{title}</h2>\n{body}</section>\n").expect("a string takes it");
}

fn series(name: &str, points: Vec<(f64, Option<Interval>)>) -> Series {
    Series { name: name.to_owned(), points, dashed: false }
}

fn exact(value: f64) -> Interval {
    Interval { value, low: value, high: value }
}

/// Bars of a figure, a group for each suite and a bar for each mode.
fn by_suite(
    results: &Results,
    labels: &Labels<'_>,
    suites: &[String],
    modes: &[String],
    figure: impl Fn(&Cell) -> Option<Interval>,
) -> String {
    let mut groups = suites.to_vec();
    groups.extend((suites.len() > 1).then(|| OVERALL.to_owned()));
    let cell =
        |suite: &str, mode: &str| results.cells.iter().find(|c| c.suite == suite && c.mode == mode);
    let one = |mode: &String| {
        let point = |suite: &String| (0.0, cell(suite, mode).and_then(&figure));
        series(mode, groups.iter().map(point).collect())
    };
    let all: Vec<Series> = modes.iter().map(one).collect();
    bars(labels, &groups, &all)
}

fn speed(results: &Results, suites: &[String], modes: &[String]) -> String {
    let labels = whole("Tokens per second by suite and mode", "", "tok/s");
    by_suite(results, &labels, suites, modes, |c| Some(c.tokens_per_s))
}

fn ratio(results: &Results, suites: &[String], modes: &[String]) -> String {
    let labels = whole("Times plain decoding by suite and mode", "", "times plain");
    let labels = Labels { mark: Some(1.0), ..labels };
    let figure = |c: &Cell| if c.mode == "off" { Some(exact(1.0)) } else { c.ratio };
    by_suite(results, &labels, suites, modes, figure)
}

fn whole<'a>(title: &'a str, x: &'a str, y: &'a str) -> Labels<'a> {
    Labels { title, x, y, width: WHOLE, mark: None }
}

/// For each mode that drafts, how many of a suite's rounds had which length.
fn acceptance(results: &Results, suites: &[String], modes: &[String]) -> String {
    let mut plots = String::from("<div class='grid2'>\n");
    for mode in modes.iter().filter(|m| *m != "off") {
        let lengths = |suite: &String| -> Vec<usize> {
            let these = results.samples.iter().filter(|s| s.mode == *mode && s.suite == *suite);
            these.flat_map(|s| s.accept_lengths.iter().copied()).collect()
        };
        let by_suite: Vec<Vec<usize>> = suites.iter().map(lengths).collect();
        let longest = by_suite.iter().flatten().copied().max().unwrap_or(1);
        let groups: Vec<String> = (1..=longest).map(|l| l.to_string()).collect();
        let share = |lengths: &[usize], length: usize| {
            100.0 * lengths.iter().filter(|l| **l == length).count() as f64
                / lengths.len().max(1) as f64
        };
        let one = |(suite, lengths): (&String, &Vec<usize>)| {
            series(suite, (1..=longest).map(|l| (0.0, Some(exact(share(lengths, l))))).collect())
        };
        let all: Vec<Series> = suites.iter().zip(&by_suite).map(one).collect();
        let title = format!("Acceptance lengths of {mode}");
        let plot = bars(
            &Labels { width: HALF, ..whole(&title, "acceptance length", "% of rounds") },
            &groups,
            &all,
        );
        write!(plots, "<div><h3>{}</h3>\n{plot}</div>\n", escape(mode)).expect("a string takes it");
    }
    plots + "</div>\n"
}

fn stages(results: &Results, modes: &[String]) -> String {
    let suite = results.cells.last().map_or("", |c| c.suite.as_str());
    let cells: Vec<&Cell> = results.cells.iter().filter(|c| c.suite == suite).collect();
    let one = |i: usize| {
        let points = cells.iter().map(|c| (0.0, Some(exact(c.round_ms.each()[i].1))));
        series(["draft", "verify", "judge", "commit", "host"][i], points.collect())
    };
    let all: Vec<Series> = (0..5).map(one).collect();
    piles(&whole("Milliseconds of a round by stage", suite, "ms a round"), modes, &all)
}

fn swept(sweep: &Sweep) -> (&'static str, String) {
    let (title, x, by_mode) = match sweep.axis {
        Axis::Budget => ("Budget sweep", "drafted nodes of a tree", false),
        Axis::Block => ("Block sweep", "rows of a chain's block", false),
        Axis::Context => ("Speed against context", "tokens of prompt", true),
        Axis::Slots => ("Texts at once", "texts written at once", true),
        Axis::Rows => ("Rows sweep", "rows", true),
    };
    let name = |cell: &Cell| if by_mode { cell.mode.clone() } else { cell.suite.clone() };
    let mut names: Vec<String> = Vec::new();
    for point in &sweep.points {
        if !names.contains(&name(&point.cell)) {
            names.push(name(&point.cell));
        }
    }
    let one = |wanted: &String| {
        let these = sweep.points.iter().filter(|p| name(&p.cell) == *wanted);
        series(wanted, these.map(|p| (p.value as f64, Some(p.cell.tokens_per_s))).collect())
    };
    let all: Vec<Series> = names.iter().map(one).collect();
    (title, lines(&whole(title, x, "tok/s"), &all))
}

fn served(served: &Served) -> String {
    let points = |figure: fn(&Load) -> Interval| {
        served.points.iter().map(|p| (p.concurrency as f64, Some(figure(p)))).collect::<Vec<_>>()
    };
    let half = |title, x, y| Labels { width: HALF, ..whole(title, x, y) };
    let x = "requests at a time";
    let rates = [
        series("all answers", points(|p| p.tokens_per_s)),
        series("one answer", points(|p| p.answer_tokens_per_s)),
    ];
    let rates = lines(&half("Tokens per second by requests at a time", x, "tok/s"), &rates);
    let first = [
        series("median", points(|p| p.first_token_ms)),
        series("p95", points(|p| exact(p.first_token_tail_ms.p95))),
        series("p99", points(|p| exact(p.first_token_tail_ms.p99))),
    ];
    let first = lines(&half("Milliseconds to the first token", x, "ms"), &first);
    // What a server gives against what its clients wait for it, a point for each load.
    let against = |figure: fn(&Load) -> Interval| {
        let point = |p: &Load| (p.tokens_per_s.value, Some(figure(p)));
        served.points.iter().map(point).collect::<Vec<_>>()
    };
    let all = "tok/s of all answers";
    let between = [
        series("median", against(|p| p.token_ms)),
        series("p95", against(|p| exact(p.token_tail_ms.p95))),
        series("p99", against(|p| exact(p.token_tail_ms.p99))),
    ];
    let between = lines(&half("Milliseconds a token by throughput", all, "ms a token"), &between);
    let begun = [
        series("median", against(|p| p.first_token_ms)),
        series("p99", against(|p| exact(p.first_token_tail_ms.p99))),
    ];
    let begun = lines(&half("Milliseconds to the first token by throughput", all, "ms"), &begun);
    let mut table = String::from(
        "<div class='wide'><table>\n<tr><th>at a time</th><th>tok/s</th>\
         <th>tok/s an answer</th><th>first token ms</th><th>p95</th><th>p99</th>\
         <th>ms a token</th><th>p95</th><th>p99</th><th>accept length</th></tr>\n",
    );
    for p in &served.points {
        let length = p.accept_length.map_or("-".to_owned(), |a| format!("{a:.2}"));
        table += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td>\
             <td>{}</td><td>{:.3}</td><td>{:.3}</td><td>{length}</td></tr>\n",
            p.concurrency,
            ranged(&p.tokens_per_s, 0),
            ranged(&p.answer_tokens_per_s, 0),
            ranged(&p.first_token_ms, 1),
            p.first_token_tail_ms.p95,
            p.first_token_tail_ms.p99,
            ranged(&p.token_ms, 3),
            p.token_tail_ms.p95,
            p.token_tail_ms.p99,
        );
    }
    format!(
        "<p>{} at {}: {} prompts ({}), up to {} tokens an answer, temperature {}, {} repeats.</p>\n\
         <div class='grid2'><div>{rates}</div><div>{first}</div>\
         <div>{between}</div><div>{begun}</div></div>\n{table}</table></div>\n",
        escape(&served.model),
        escape(&served.server),
        served.prompts,
        escape(&served.suites.join(", ")),
        served.max_tokens,
        served.temperature,
        served.repeats
    )
}

fn rows(results: &Results) -> String {
    let Some(cost) = &results.cost else { return String::new() };
    let measured = cost.rows.iter().map(|r| (r.rows as f64, Some(r.ms))).collect();
    let floor = cost.rows.iter().map(|r| (r.rows as f64, Some(exact(r.floor_ms)))).collect();
    let floor = Series { dashed: true, ..series("byte floor", floor) };
    let labels = whole("Milliseconds of a verify by rows", "rows of a verify", "ms");
    let plot = lines(&labels, &[series("verify", measured), floor]);
    format!(
        "<p>{}: {} of weights, {} read by a token, {:.1} GB/s ({}). Plain decode {:.1} tok/s, \
         prompt of {} {:.0} tok/s.</p>\n\
         {plot}",
        escape(&cost.model),
        bytes(cost.weight_bytes as f64),
        bytes(cost.token_bytes as f64),
        cost.bandwidth_gb_s,
        cost.bandwidth_from,
        1e3 / cost.token_ms.value,
        cost.prompt_tokens,
        cost.prompt_tokens_per_s.value
    )
}

/// A figure, and in small print the interval it may lie in.
fn ranged(interval: &Interval, digits: usize) -> String {
    let Interval { value, low, high } = interval;
    format!("{value:.digits$}<small>{low:.digits$}–{high:.digits$}</small>")
}

fn cells_table(cells: &[Cell]) -> String {
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
        "state",
    ];
    let mut table = String::from("<div class='wide'><table>\n<tr>");
    header.iter().for_each(|h| table += &format!("<th>{h}</th>"));
    table += "</tr>\n";
    for c in cells {
        let row = [
            escape(&c.suite),
            escape(&c.mode),
            ranged(&c.tokens_per_s, 0),
            c.ratio.map_or("-".to_owned(), |r| ranged(&r, 2)),
            format!("{:.2}", c.accept_length.value),
            c.accepted_per_drafted.map_or("-".to_owned(), |a| format!("{a:.2}")),
            ranged(&c.first_token_ms, 1),
            format!("{:.0}", c.prefill_tokens_per_s.value),
            format!("{:.0}", c.prompt_tokens),
            bytes(c.state_bytes as f64),
        ];
        table += "<tr>";
        row.iter().for_each(|cell| table += &format!("<td>{cell}</td>"));
        table += "</tr>\n";
    }
    table + "</table></div>\n"
}
