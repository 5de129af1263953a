//! The plan of device memory before a byte is copied: what a model needs at a context, what is
//! free, and what would make it fit.

use crate::place::Room;
use anyhow::{Result, bail};
use compute::cuda::{Bill, Ledger};
use engine::Engine;
use serde::Serialize;

/// Bytes a device needs beside what we ask for: its context, kernels, graphs, and what fragments.
pub(crate) const OVERHEAD: usize = 1 << 30;
/// What a model needs.
pub struct Need {
    bill: Bill,
    /// Bytes the device takes for itself.
    overhead: usize,
    /// Loaded on nothing: knows what a sequence takes.
    engine: Engine,
}

/// The same at one context, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Tokens of a text.
    pub context: usize,
    /// All weights that lie on the device.
    pub weights: usize,
    /// Those of them that are experts'.
    pub experts: usize,
    /// Those of them whose rows are looked up.
    pub tables: usize,
    /// Weights that lie in the host's memory, which are no part of the total.
    pub host_weights: usize,
    /// Those of them that are experts', of which a pass reads what it has chosen.
    pub host_experts: usize,
    /// Copies on the device of experts that lie in the host's memory.
    pub copies: usize,
    /// What plans work on.
    pub buffers: usize,
    /// The state of one text.
    pub state: usize,
    /// What kernels ask for as they run.
    pub scratch: usize,
    /// What the device takes for itself.
    pub overhead: usize,
}

impl Plan {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.copies + self.buffers + self.state + self.scratch + self.overhead
    }

    /// Bytes of everything but the state of texts.
    pub fn besides_state(&self) -> usize {
        self.total() - self.state
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let (unit, size) = if self.total() < 1 << 30 { ("MB", 1e6) } else { ("GB", 1e9) };
        let gb = |bytes: usize| format!("{:.1}", bytes as f64 / size);
        let copies = match self.copies {
            0 => String::new(),
            bytes => format!("copies of experts {}, ", gb(bytes)),
        };
        let elsewhere = match self.host_weights {
            0 => String::new(),
            bytes => format!(", and weights of {} {unit} in the host's memory", gb(bytes)),
        };
        format!(
            "{} {unit} at {} tokens: weights {}, {copies}a sequence {}, buffers {}, scratch {}, the \
             device's own {}{elsewhere}",
            gb(self.total()),
            self.context,
            gb(self.weights),
            gb(self.state),
            gb(self.buffers),
            gb(self.scratch),
            gb(self.overhead)
        )
    }
}

impl Need {
    /// A context that is always asked for; less is no use to anyone.
    pub(crate) const LEAST: usize = 4096;

    /// Counts what `load` would take from a device that reads prompts in passes of `prompt_rows`.
    pub fn count(prompt_rows: usize, load: impl FnOnce(Ledger) -> Result<Engine>) -> Result<Self> {
        let ledger = Ledger::new(prompt_rows);
        let engine = load(ledger.clone())?;
        Ok(Self { bill: ledger.bill(), overhead: OVERHEAD, engine })
    }

    /// The same in memory of which the device takes less, or more, for itself.
    pub(crate) fn within(self, room: Room) -> Self {
        Self { overhead: room.overhead, ..self }
    }

    /// What it takes at that context.
    pub fn at(&self, context: usize) -> Plan {
        Plan {
            context,
            weights: self.bill.weights,
            experts: self.bill.experts,
            tables: self.bill.tables,
            host_weights: self.bill.host_weights,
            host_experts: self.bill.host_experts,
            copies: self.bill.copies,
            buffers: self.bill.buffers,
            state: self.engine.state_bytes(context),
            scratch: self.bill.scratch(),
            overhead: self.overhead,
        }
    }

    /// The longest context up to `limit` that fits in `free` bytes, in steps of 1024; none where
    /// nothing useful does.
    pub fn longest(&self, free: usize, limit: usize) -> Option<usize> {
        if self.at(limit).total() <= free {
            return Some(limit);
        }
        let (mut fits, mut too_long) = (0, limit.div_ceil(1024));
        while fits + 1 < too_long {
            let middle = (fits + too_long) / 2;
            if self.at(middle * 1024).total() <= free { fits = middle } else { too_long = middle }
        }
        (fits * 1024 >= Self::LEAST.min(limit)).then_some(fits * 1024)
    }

    /// The context to run with: the one asked for, or the longest that fits. Refuses what does not
    /// fit.
    pub fn fit(
        &self,
        asked: Option<usize>,
        limit: usize,
        free: usize,
        has_floats: bool,
    ) -> Result<usize> {
        let longest = self.longest(free, limit.max(asked.unwrap_or(0)));
        match (asked, longest) {
            (Some(asked), _) if self.at(asked).total() <= free => Ok(asked),
            (None, Some(longest)) => Ok(longest.min(limit)),
            (_, longest) => {
                let plan = self.at(asked.unwrap_or(Self::LEAST.min(limit)));
                let mut advice = vec!["`--kv q8_0` or `--kv q4_0` shrinks the cache".to_owned()];
                if let Some(longest) = longest {
                    advice.insert(0, format!("`--ctx {longest}` fits"));
                }
                if has_floats {
                    advice.push("`--draft-type q8_0` shrinks the drafter".to_owned());
                }
                advice.push("`--device cpu` runs without it".to_owned());
                bail!(
                    "the model does not fit on the device, which has {:.1} GB free: it needs {}. \
                     {}",
                    free as f64 / 1e9,
                    plan.line(),
                    advice.join("; ")
                )
            }
        }
    }
}
