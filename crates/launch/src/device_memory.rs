//! The plan of device memory before a byte is copied: what a model needs at a context, what is
//! free, and what would make it fit.

use crate::draft_device::{Beside, DraftDevice};
use crate::place::Room;
use anyhow::{Result, bail};
use compute::Backend;
use compute::cuda::{Bill, Ledger};
use engine::{Backends, Engine};
use serde::Serialize;

/// Bytes a device needs beside what we ask for: its context, kernels, graphs, and what fragments.
pub(crate) const OVERHEAD: usize = 1 << 30;
/// What a model needs.
pub struct Need {
    bill: Bill,
    /// Bytes that are held as long as the model is there.
    held: usize,
    /// Bytes the device takes for itself.
    overhead: usize,
    /// What its drafter needs, where that has a device to itself.
    drafter: Option<DraftNeed>,
    /// Loaded on nothing: knows what a sequence takes.
    engine: Engine,
}

/// What a drafter needs of a device of its own, copies of the target's table and head included.
struct DraftNeed {
    beside: Beside,
    bill: Bill,
    held: usize,
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
    /// What of it lies in the host's memory, which is no part of the total.
    pub far_state: usize,
    /// What kernels ask for as they run.
    pub scratch: usize,
    /// What the device takes for itself.
    pub overhead: usize,
    /// What the drafter takes elsewhere, which is no part of the total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafter: Option<DraftPlan>,
}

/// What a drafter takes of a device of its own, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DraftPlan {
    /// Which that is.
    pub device: DraftDevice,
    /// Its weights, with copies of the target's embedding table and LM head.
    pub weights: usize,
    /// Those of them whose rows are looked up.
    pub tables: usize,
    /// What plans work on.
    pub buffers: usize,
    /// The state of one text.
    pub state: usize,
    /// What kernels ask for as they run.
    pub scratch: usize,
    /// What the device takes for itself.
    pub overhead: usize,
}

impl DraftPlan {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.buffers + self.state + self.scratch + self.overhead
    }

    /// Bytes of everything but the state of texts.
    pub fn besides_state(&self) -> usize {
        self.total() - self.state
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let (unit, size) = unit_of(self.total());
        let gb = |bytes: usize| format!("{:.1}", bytes as f64 / size);
        let devices = match self.scratch + self.overhead {
            0 => String::new(),
            bytes => format!(", scratch and the device's own {}", gb(bytes)),
        };
        format!(
            "the drafter on {} {} {unit}: weights {}, a sequence {}, buffers {}{devices}",
            self.device,
            gb(self.total()),
            gb(self.weights),
            gb(self.state),
            gb(self.buffers)
        )
    }
}

/// What sizes of such an order are told in.
fn unit_of(bytes: usize) -> (&'static str, f64) {
    if bytes < 1 << 30 { ("MB", 1e6) } else { ("GB", 1e9) }
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
        let (unit, size) = unit_of(self.total());
        let gb = |bytes: usize| format!("{:.1}", bytes as f64 / size);
        let copies = match self.copies {
            0 => String::new(),
            bytes => format!("copies of experts {}, ", gb(bytes)),
        };
        let elsewhere = match (self.host_weights, self.far_state) {
            (0, 0) => String::new(),
            (bytes, 0) => format!(", and weights of {} {unit} in the host's memory", gb(bytes)),
            (0, bytes) => format!(", and older keys of {} {unit} in the host's memory", gb(bytes)),
            (weights, keys) => format!(
                ", and weights of {} and older keys of {} {unit} in the host's memory",
                gb(weights),
                gb(keys)
            ),
        };
        let beside = self.drafter.map_or_else(String::new, |plan| format!("; {}", plan.line()));
        format!(
            "{} {unit} at {} tokens: weights {}, {copies}a sequence {}, buffers {}, scratch {}, the \
             device's own {}{elsewhere}{beside}",
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

    /// Counts what `load` would take from a device that reads prompts in passes of `prompt_rows`,
    /// and its drafter from one beside it where there is one.
    pub fn count(
        prompt_rows: usize,
        beside: Option<Beside>,
        load: impl FnOnce(Backends) -> Result<Engine>,
    ) -> Result<Self> {
        let ledger = Ledger::new(prompt_rows);
        let own = beside.map(|beside| (beside, Ledger::new(beside.prompt_rows)));
        let target: Box<dyn Backend> = Box::new(ledger.clone());
        let engine = load(match &own {
            Some((beside, own)) => {
                Backends::apart(target, Box::new(own.clone()), &beside.device.to_string())
            }
            None => target.into(),
        })?;
        let drafter = own.map(|(beside, own)| DraftNeed {
            beside,
            bill: own.bill(),
            held: own.budget().held(),
        });
        let (bill, held) = (ledger.bill(), ledger.budget().held());
        Ok(Self { bill, held, overhead: OVERHEAD, drafter, engine })
    }

    /// The device that the drafter has to itself, if any.
    pub(crate) fn beside(&self) -> Option<&Beside> {
        self.drafter.as_ref().map(|drafter| &drafter.beside)
    }

    fn draft_plan(&self, context: usize) -> Option<DraftPlan> {
        let DraftNeed { beside, bill, held } = self.drafter.as_ref()?;
        Some(DraftPlan {
            device: beside.device,
            weights: bill.weights,
            tables: bill.tables,
            buffers: bill.buffers,
            state: self.engine.own_state_bytes(context) + held,
            // What is counted is what a card takes.
            scratch: beside.room.map_or(0, |_| bill.scratch()),
            overhead: beside.room.map_or(0, |room| room.overhead),
        })
    }

    /// Whether it fits at that context, where `free` bytes are and where the drafter is.
    fn fits(&self, context: usize, free: usize) -> bool {
        let own = self.draft_plan(context).zip(self.beside().and_then(|beside| beside.room));
        self.at(context).total() <= free
            && own.is_none_or(|(plan, room)| plan.total() <= room.bytes)
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
            state: self.engine.state_bytes(context) + self.held,
            far_state: self.engine.model().far_bytes(context),
            scratch: self.bill.scratch() + self.engine.model().brought_bytes(context),
            overhead: self.overhead,
            drafter: self.draft_plan(context),
        }
    }

    /// The longest context up to `limit` that fits in `free` bytes, in steps of 1024; none where
    /// nothing useful does.
    pub fn longest(&self, free: usize, limit: usize) -> Option<usize> {
        if self.fits(limit, free) {
            return Some(limit);
        }
        let (mut fits, mut too_long) = (0, limit.div_ceil(1024));
        while fits + 1 < too_long {
            let middle = (fits + too_long) / 2;
            if self.fits(middle * 1024, free) { fits = middle } else { too_long = middle }
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
            (Some(asked), _) if self.fits(asked, free) => Ok(asked),
            (None, Some(longest)) => Ok(longest.min(limit)),
            (_, longest) => {
                let plan = self.at(asked.unwrap_or(Self::LEAST.min(limit)));
                if let (Some(own), true) = (plan.drafter, plan.total() <= free) {
                    bail!(
                        "the drafter does not fit on {}: {}. `--draft-type q8_0` shrinks one of \
                         floats, a shorter `--ctx` its state; `--draft-device cpu` runs it on the \
                         processor",
                        own.device,
                        own.line()
                    );
                }
                let mut advice = vec!["`--kv q8_0` or `--kv q4_0h` shrinks the cache".to_owned()];
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
