//! What a figure was measured on: the processor, the build, and how busy the machine was.

use anyhow::Result;
use launch::ModelFlags;
use runs::machine;
use serde::{Deserialize, Serialize};

/// A machine and a build, as a report describes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that there are.
    pub cores: usize,
    /// Threads in use.
    pub threads: usize,
    /// Instructions in use.
    pub level: String,
    /// Memory of the machine.
    pub memory_gb: f64,
    /// Operating system and architecture.
    pub system: String,
    /// Runnable threads over the minute before, ours not yet among them.
    pub load: f64,
    /// Version of the build.
    pub version: String,
    /// `release` or `debug`.
    pub profile: String,
    /// A checksum of the program, to tell builds apart.
    pub program: String,
    /// UTC.
    pub time: String,
}

impl Machine {
    /// This machine, with as many threads and the instructions that the flags say.
    pub fn describe(flags: &ModelFlags) -> Result<Self> {
        let cpu = flags.device.cpu()?;
        let program = std::env::current_exe().unwrap_or_default();
        Ok(Self {
            processor: machine::processor(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads: cpu.threads(),
            level: format!("{:?}", cpu.level()),
            memory_gb: (machine::memory() as f64 / 1e8).round() / 10.0,
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            load: machine::load(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: machine::profile().to_owned(),
            program: machine::checksum_of(&program),
            time: machine::time(),
        })
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{}, {} of {} cores, {}; forerun {} ({} build), {} UTC",
            self.processor,
            self.threads,
            self.cores,
            self.level,
            self.version,
            self.profile,
            self.time
        )
    }

    /// Says on standard error what makes figures too low.
    pub fn warn(&self) {
        if self.load > 0.5 * self.cores as f64 {
            eprintln!(
                "warning: the machine is busy (load {:.1} on {} cores): times will be too long, \
                 ratios less so",
                self.load, self.cores
            );
        }
        if self.profile == "debug" {
            eprintln!("warning: this is a debug build: `cargo build --release` is faster");
        }
    }
}

/// How fast the machine is just now, whatever the build is: gigabytes of a fixed block that one
/// thread sums in a second. Machines that are shared change their pace by a factor, for minutes.
pub(crate) struct Pace(Vec<u32>);

impl Pace {
    pub(crate) fn new() -> Self {
        Self((0..1 << 18).collect())
    }

    pub(crate) fn measure(&self) -> f64 {
        let sum = |sums: [u32; 16], words: &[u32; 16]| {
            std::array::from_fn(|i| sums[i].wrapping_mul(31) ^ words[i])
        };
        let once = || {
            let begin = std::time::Instant::now();
            let words = std::hint::black_box(&self.0).as_chunks::<16>().0;
            std::hint::black_box(words.iter().fold([0; 16], sum));
            (4 * self.0.len()) as f64 / begin.elapsed().as_secs_f64() / 1e9
        };
        // The first time brings the block into the cache, from which an answer has driven it.
        once();
        once().max(once())
    }
}
