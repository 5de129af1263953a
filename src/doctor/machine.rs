//! What there is to compute with: the processor and its memory, measured.

use super::section;
use anyhow::Result;
use bench::{Machine as Described, measured_bandwidth};
use launch::ModelFlags;
use serde::Serialize;
use std::io::Write;

/// Enough to be read from memory and not from a cache.
const BLOCK: usize = 1 << 28;

#[derive(Serialize)]
pub(crate) struct Machine {
    #[serde(flatten)]
    described: Described,
    memory_free_gb: f64,
    /// What all threads together read from memory.
    read_gb_s: f64,
}

impl Machine {
    /// Looks at the machine as these flags would use it.
    pub(crate) fn look(flags: &ModelFlags) -> Result<Self> {
        let described = Described::describe(flags)?;
        let read_gb_s = measured_bandwidth(BLOCK, described.threads) / 1e9;
        Ok(Self { memory_free_gb: runs::machine::free_memory() as f64 / 1e9, described, read_gb_s })
    }

    /// Memory and reading rate, in bytes and bytes a second.
    pub(crate) fn room(&self) -> (f64, f64) {
        (self.described.memory_gb * 1e9, self.read_gb_s * 1e9)
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Described {
            processor, cores, threads, level, memory_gb, load, version, profile, ..
        } = &self.described;
        let lines = [
            ("processor", format!("{processor}, {}", self.described.system)),
            ("instructions", level.clone()),
            ("threads", format!("{threads} on {cores} cores, load {load:.1}")),
            ("memory", format!("{memory_gb:.1} GB, {:.1} GB free", self.memory_free_gb)),
            ("reads", format!("{:.1} GB/s from memory, measured with all threads", self.read_gb_s)),
            ("build", format!("forerun {version}, {profile}")),
        ];
        section(out, "machine", &lines)
    }
}
