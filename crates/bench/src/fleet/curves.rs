//! What a worker takes: seconds of prompts by their length, tokens per second by how many answers
//! are written at once, how much longer both take in long texts, tokens of a round, the way to the
//! worker and back. Passes over prompts differ as those did that were measured.

use super::Random;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// Tokens of prompts, and the seconds that each of several of that length took, ascending.
type Prompts = (f64, Vec<f64>);

/// Points, ascending; between them and beyond them the line through the nearest two.
#[derive(Clone, Debug)]
pub(super) struct Curves {
    prompts: Vec<Prompts>,
    /// Answers and tokens per second of all of them together.
    rates: Vec<(f64, f64)>,
    /// Tokens that an answer gets in a round.
    round: f64,
    depth: Depth,
    /// Tokens that were kept before those prompts.
    before: f64,
    /// Seconds of a request that the engine does not see.
    way: f64,
}

/// Seconds that a token takes longer for each token before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Depth {
    /// One of a prompt, behind what was kept.
    pub(super) read: f64,
    /// One of an answer.
    pub(super) write: f64,
}

impl Curves {
    pub(super) fn new(
        mut prompts: Vec<Prompts>,
        mut rates: Vec<(f64, f64)>,
        round: f64,
        depth: Depth,
        way: f64,
    ) -> Result<Self> {
        prompts.sort_by(|a, b| a.0.total_cmp(&b.0));
        prompts.dedup_by(|a, b| a.0 == b.0);
        prompts.iter_mut().for_each(|(_, seconds)| seconds.sort_by(f64::total_cmp));
        prompts.retain(|(_, seconds)| !seconds.is_empty());
        rates.sort_by(|a, b| a.0.total_cmp(&b.0));
        rates.dedup_by(|a, b| a.0 == b.0);
        if prompts.len() < 2 || rates.is_empty() {
            bail!("curves have prompts of at least two lengths, and at least one number of texts");
        }
        let depth = Depth { read: depth.read.max(0.0), write: depth.write.max(0.0) };
        let round = round.max(1.0);
        Ok(Self { prompts, rates, round, depth, before: 0.0, way })
    }

    /// With prompts that were read behind so many kept tokens.
    pub(super) fn behind(self, before: usize) -> Self {
        Self { before: before as f64, ..self }
    }

    /// Both of two measurements: what prompts took either time, and what lies between the rest.
    pub(super) fn mean(&self, other: &Self) -> Self {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        let both = |(a, b): (&Prompts, &Prompts)| {
            let mut seconds = [&a.1[..], &b.1[..]].concat();
            seconds.sort_by(f64::total_cmp);
            (a.0, seconds)
        };
        let rates = self.rates.iter().zip(&other.rates).map(|(a, b)| (a.0, mean(a.1, b.1)));
        Self {
            prompts: self.prompts.iter().zip(&other.prompts).map(both).collect(),
            rates: rates.collect(),
            round: mean(self.round, other.round),
            depth: Depth {
                read: mean(self.depth.read, other.depth.read),
                write: mean(self.depth.write, other.depth.write),
            },
            before: self.before,
            way: mean(self.way, other.way),
        }
    }

    /// From the JSON of a named run: rows `prompt of N` with milliseconds, and of rows for so many
    /// texts the one with the most tokens per second. The way to it is not counted.
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
        let (mut prompts, mut rates, mut round) = (Vec::new(), Vec::<(f64, f64)>::new(), 1.0);
        for row in table["rows"].as_array().into_iter().flatten() {
            let name = row[0].as_str().unwrap_or_default();
            if let Some(tokens) =
                name.strip_prefix("prompt of ").and_then(|n| n.parse::<f64>().ok())
            {
                prompts.extend(number(&row[ms]).map(|ms| (tokens, ms / 1e3)));
                continue;
            }
            let texts = name.strip_suffix(" texts").and_then(|n| n.rsplit_once(", "));
            let texts = texts.map_or(Some(1.0), |(_, texts)| texts.parse().ok());
            if let (Some(texts), Some(found)) = (texts, number(&row[rate])) {
                let known = rates.iter().position(|(known, _)| *known == texts);
                let known = known.unwrap_or_else(|| {
                    rates.push((texts, 0.0));
                    rates.len() - 1
                });
                if found > rates[known].1 {
                    rates[known].1 = found;
                    // Of one text: tokens of a second by the part of it that a round takes.
                    let ms = number(&row[ms]).filter(|_| texts == 1.0);
                    round = ms.map_or(round, |ms| found * ms / 1e3);
                }
            }
        }
        // What the last three prompts have of the square of their length is what a token of them
        // takes longer for those before it.
        prompts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let square = match prompts[..] {
            [.., (a, x), (b, y), (c, z)] => ((z - y) / (c - b) - (y - x) / (b - a)) / (c - a),
            _ => 0.0,
        };
        let depth = Depth { read: 2.0 * square, write: 0.0 };
        let prompts =
            prompts.into_iter().map(|(tokens, seconds)| (tokens, vec![seconds])).collect();
        Self::new(prompts, rates, round, depth, 0.0).with_context(shown)
    }

    /// Seconds of a pass over so many tokens of prompts; `before` counts for each of them those
    /// before the pass.
    pub(super) fn prompt_s(&self, before: f64, tokens: f64, random: &mut Random) -> f64 {
        let deeper = before - self.before * tokens;
        (on_line(&self.prompts_at(random.unit()), tokens) + self.depth.read * deeper).max(0.0)
    }

    /// What prompts of each length take where that share of them takes less.
    fn prompts_at(&self, share: f64) -> Vec<(f64, f64)> {
        let at = |seconds: &[f64]| seconds[(share * seconds.len() as f64) as usize];
        self.prompts.iter().map(|(tokens, seconds)| (*tokens, at(seconds))).collect()
    }

    /// Seconds of a round of so many answers, with so many tokens before them in all.
    pub(super) fn round_s(&self, answers: usize, before: f64) -> f64 {
        self.round * (answers as f64 / self.rate(answers) + self.depth.write * before)
    }

    /// Tokens of a prompt that are read in so many seconds.
    pub(super) fn prompt_tokens(&self, seconds: f64) -> f64 {
        let swapped: Vec<(f64, f64)> = self.prompts_at(0.5).iter().map(|(t, s)| (*s, *t)).collect();
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

    pub(super) fn round_tokens(&self) -> f64 {
        self.round
    }

    pub(super) fn way_s(&self) -> f64 {
        self.way
    }

    pub(super) fn line(&self) -> String {
        let prompts = self.prompts.iter().map(|(tokens, all)| {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let median = all[all.len() / 2];
            format!("{tokens:.0} tokens {:.1} ms (mean {:.1})", median * 1e3, mean * 1e3)
        });
        let rates = self.rates.iter().map(|(n, r)| format!("{n:.0} at {r:.0} tok/s"));
        let (prompts, rates): (Vec<_>, Vec<_>) = (prompts.collect(), rates.collect());
        format!(
            "prompts of {}; answers: {}, {:.2} tokens a round, behind 1000 tokens {:.2} ms \
             longer to read one, {:.2} to write one; the way {:.2} ms",
            prompts.join(", "),
            rates.join(", "),
            self.round,
            self.depth.read * 1e6,
            self.depth.write * 1e6,
            self.way * 1e3
        )
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
