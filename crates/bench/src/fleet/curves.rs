//! What a worker takes: seconds of prompts by their length, tokens per second by how many answers
//! are written at once.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// Points, ascending; between them and beyond them the line through the nearest two.
#[derive(Clone, Debug)]
pub(super) struct Curves {
    /// Tokens and seconds.
    prompts: Vec<(f64, f64)>,
    /// Answers and tokens per second of all of them together.
    rates: Vec<(f64, f64)>,
}

impl Curves {
    pub(super) fn new(mut prompts: Vec<(f64, f64)>, mut rates: Vec<(f64, f64)>) -> Result<Self> {
        for points in [&mut prompts, &mut rates] {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points.dedup_by(|a, b| a.0 == b.0);
        }
        if prompts.len() < 2 || rates.is_empty() {
            bail!("curves have prompts of at least two lengths, and at least one number of texts");
        }
        Ok(Self { prompts, rates })
    }

    /// From the JSON of a named run: rows `prompt of N` with milliseconds, and of rows for so many
    /// texts the one with the most tokens per second.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(shown)?;
        let run: Value = serde_json::from_str(&text).with_context(shown)?;
        let table = &run["tables"]["rounds"];
        let column = |name: &str| {
            let mut columns = table["columns"].as_array().into_iter().flatten();
            let at = columns.position(|column| column == name);
            at.with_context(|| format!("{}: its `rounds` have no column `{name}`", shown()))
        };
        let (ms, rate) = (column("ms")?, column("tok/s")?);
        let number = |cell: &Value| cell.as_f64().or_else(|| cell[0].as_f64());
        let (mut prompts, mut rates) = (Vec::new(), Vec::<(f64, f64)>::new());
        for row in table["rows"].as_array().into_iter().flatten() {
            let name = row[0].as_str().unwrap_or_default();
            if let Some(tokens) = name.strip_prefix("prompt of ").and_then(|n| n.parse().ok()) {
                prompts.extend(number(&row[ms]).map(|ms| (tokens, ms / 1e3)));
                continue;
            }
            let texts = name.strip_suffix(" texts").and_then(|n| n.rsplit_once(", "));
            let texts = texts.map_or(Some(1.0), |(_, texts)| texts.parse().ok());
            if let (Some(texts), Some(found)) = (texts, number(&row[rate])) {
                match rates.iter_mut().find(|(known, _)| *known == texts) {
                    Some((_, best)) => *best = best.max(found),
                    None => rates.push((texts, found)),
                }
            }
        }
        Self::new(prompts, rates).with_context(shown)
    }

    /// Seconds to read so many tokens.
    pub(super) fn prompt_s(&self, tokens: f64) -> f64 {
        on_line(&self.prompts, tokens).max(0.0)
    }

    /// Tokens of a prompt that are read in so many seconds.
    pub(super) fn prompt_tokens(&self, seconds: f64) -> f64 {
        let swapped: Vec<(f64, f64)> = self.prompts.iter().map(|(t, s)| (*s, *t)).collect();
        on_line(&swapped, seconds).max(1.0)
    }

    /// Tokens per second of so many answers together. More of them than were measured are as fast
    /// as the most that were.
    pub(super) fn rate(&self, answers: usize) -> f64 {
        let last = self.rates[self.rates.len() - 1];
        match answers as f64 {
            answers if answers >= last.0 => last.1,
            answers => on_line(&self.rates, answers),
        }
    }

    pub(super) fn line(&self) -> String {
        let prompts = self.prompts.iter().map(|(t, s)| format!("{t:.0} tokens {:.1} ms", s * 1e3));
        let rates = self.rates.iter().map(|(n, r)| format!("{n:.0} at {r:.0} tok/s"));
        let (prompts, rates): (Vec<_>, Vec<_>) = (prompts.collect(), rates.collect());
        format!("prompts of {}; answers: {}", prompts.join(", "), rates.join(", "))
    }
}

fn on_line(points: &[(f64, f64)], x: f64) -> f64 {
    if points.len() == 1 {
        return points[0].1;
    }
    let after = points.iter().position(|point| point.0 >= x).unwrap_or(points.len() - 1).max(1);
    let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}
