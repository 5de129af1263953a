//! The figures of `forerun bench rounds`, as a table on the terminal and as a run that pages quote.

use crate::kernels::{self, Launches};
use crate::named::{Figure as Cell, Named, Table};
use crate::statistics::Interval;
use anyhow::Result;
use std::io::Write;

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) what: String,
    /// Tokens of context when it was taken.
    pub(super) context: usize,
    pub(super) ms: Interval,
    /// Bytes of weights and state it cannot do without, over the measured bandwidth.
    pub(super) floor_ms: f64,
    /// Milliseconds of draft, verify, commit, each waited for; only of rounds.
    pub(super) stages_ms: Option<[f64; 3]>,
    /// From the imposed length, or the tokens of a prompt.
    pub(super) tokens_per_s: Option<f64>,
    /// The share of choices of experts that no copy on the device was there for.
    pub(super) cold: Option<f64>,
    /// Bytes copied to the device and back, of one of them.
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

pub(super) struct Figures {
    pub(super) device: String,
    pub(super) shape: String,
    pub(super) time: String,
    pub(super) command: String,
    pub(super) weight_bytes: u64,
    pub(super) draft_bytes: u64,
    pub(super) bandwidth_gb_s: f64,
    /// Of the bus to the host's memory, where weights lie there.
    pub(super) bus_gb_s: Option<f64>,
    pub(super) assumed_accept_length: f64,
    /// What of a model that does not fit lies where, in words.
    pub(super) placed: Option<String>,
    /// Distinct experts of the last layer that a pass of 16 rows touched.
    pub(super) experts_of_16_rows: Option<f64>,
    pub(super) figures: Vec<Figure>,
    pub(super) launches: Vec<Launches>,
}

impl Figure {
    /// Of something that is no round.
    pub(super) fn new(what: String, context: usize, ms: Interval, floor_ms: f64) -> Self {
        Self {
            what,
            context,
            ms,
            floor_ms,
            stages_ms: None,
            tokens_per_s: None,
            cold: None,
            bytes_up: 0,
            bytes_down: 0,
        }
    }
}

impl Figures {
    /// How fast the host's memory is read, where that matters.
    fn bus(&self) -> String {
        self.bus_gb_s.map_or_else(String::new, |bus| format!(", the host's at {bus:.1}"))
    }

    /// The same as a run that pages quote.
    pub(super) fn named(&self) -> Named {
        let mut columns = vec![
            "",
            "context",
            "ms",
            "floor ms",
            "ratio",
            "tok/s",
            "draft + verify + commit ms",
            "bytes up / down",
        ];
        let has_copies = self.figures.iter().any(|figure| figure.cold.is_some());
        columns.extend(has_copies.then_some("choices without a copy, %"));
        let round = |x: f64, by: f64| (x * by).round() / by;
        let none = || Cell::Text(String::new());
        let row = |f: &Figure| {
            let stages = f
                .stages_ms
                .map_or_else(String::new, |[d, v, c]| format!("{d:.2} + {v:.2} + {c:.2}"));
            let bytes = if f.bytes_up > 0 {
                format!("{} / {}", f.bytes_up, f.bytes_down)
            } else {
                String::new()
            };
            let cold = f.cold.map_or_else(none, |cold| Cell::Number(round(100.0 * cold, 1e2)));
            let mut row = vec![
                Cell::Text(f.what.clone()),
                Cell::Number(f.context as f64),
                Cell::Interval([f.ms.value, f.ms.low, f.ms.high].map(|x| round(x, 1e3))),
                Cell::Number(round(f.floor_ms, 1e3)),
                Cell::Number(round(f.ms.value / f.floor_ms, 1e2)),
                f.tokens_per_s.map_or_else(none, |t| Cell::Number(t.round())),
                Cell::Text(stages),
                Cell::Text(bytes),
            ];
            row.extend(has_copies.then_some(cold));
            row
        };
        let table = Table {
            columns: columns.into_iter().map(str::to_owned).collect(),
            rows: self.figures.iter().map(row).collect(),
        };
        let experts = self.experts_of_16_rows.map_or_else(String::new, |n| {
            format!("; 16 rows touched {n} experts of the last layer")
        });
        let placed = self.placed.as_ref().map_or_else(String::new, |plan| format!("; {plan}"));
        Named {
            machine: format!(
                "{}, memory read at {:.0} GB/s{}",
                self.device,
                self.bandwidth_gb_s,
                self.bus()
            ),
            build: runs::machine::build(&std::env::current_exe().unwrap_or_default()),
            date: self.time.clone(),
            command: self.command.clone(),
            shapes: format!(
                "{}, random weights: target {:.2} GB, drafter {:.2} GB; acceptance of {} \
                 imposed{experts}{placed}",
                self.shape,
                self.weight_bytes as f64 / 1e9,
                self.draft_bytes as f64 / 1e9,
                self.assumed_accept_length
            ),
            tables: [("rounds", table), ("kernels", kernels::table(&self.launches))]
                .into_iter()
                .filter(|(_, table)| !table.rows.is_empty())
                .map(|(name, table)| (name.to_owned(), table))
                .collect(),
        }
    }

    pub(super) fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} on {}, {} UTC", self.shape, self.device, self.time)?;
        writeln!(
            out,
            "target {:.2} GB, drafter {:.2} GB, memory read at {:.0} GB/s{}; acceptance of {} \
             imposed",
            self.weight_bytes as f64 / 1e9,
            self.draft_bytes as f64 / 1e9,
            self.bandwidth_gb_s,
            self.bus(),
            self.assumed_accept_length
        )?;
        if let Some(experts) = self.experts_of_16_rows {
            writeln!(out, "experts of the last layer that 16 rows touched: {experts}")?;
        }
        writeln!(
            out,
            "{:24} {:>7} {:>9} {:>9} {:>6} {:>9}  draft+verify+commit, bytes up/down",
            "", "context", "ms", "floor ms", "ratio", "tok/s"
        )?;
        for f in &self.figures {
            let tokens = f.tokens_per_s.map_or_else(String::new, |t| format!("{t:.0}"));
            let (floor, ratio) = (f.floor_ms, f.ms.value / f.floor_ms);
            let stages = f
                .stages_ms
                .map_or_else(String::new, |[d, v, c]| format!("{d:.3} + {v:.3} + {c:.3}"));
            let bytes = if f.bytes_up > 0 {
                format!("{}/{}", f.bytes_up, f.bytes_down)
            } else {
                String::new()
            };
            writeln!(
                out,
                "{:24} {:>7} {:>9.3} {floor:>9.3} {ratio:>6.2} {tokens:>9}  {stages} {bytes}",
                f.what, f.context, f.ms.value
            )?;
        }
        kernels::print(&mut out, &self.launches)?;
        Ok(out.flush()?)
    }
}
