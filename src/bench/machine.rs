//! What a figure was measured on: the processor, the build, and how busy the machine was.

use crate::model_flags::ModelFlags;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fs;

/// A machine and a build, as a report describes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) threads: usize,
    /// Instructions in use.
    pub(crate) level: String,
    pub(crate) memory_gb: f64,
    pub(crate) system: String,
    /// Runnable threads over the minute before, ours not yet among them.
    pub(crate) load: f64,
    pub(crate) version: String,
    /// `release` or `debug`.
    pub(crate) profile: String,
    /// A checksum of the program, to tell builds apart.
    pub(crate) program: String,
    /// UTC.
    pub(crate) time: String,
}

impl Machine {
    pub(crate) fn describe(flags: &ModelFlags) -> Result<Self> {
        let load = file("/proc/loadavg").split(' ').next().and_then(|l| l.parse().ok()).unwrap_or(0.0);
        let cpu = flags.cpu()?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let kilobytes: f64 = field(&file("/proc/meminfo"), "MemTotal").parse().unwrap_or(0.0);
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        let program = std::env::current_exe().and_then(fs::read).unwrap_or_default();
        Ok(Self {
            processor: field(&file("/proc/cpuinfo"), "model name"),
            cores,
            threads: cpu.threads(),
            level: format!("{:?}", cpu.level()),
            memory_gb: (kilobytes / 1e5).round() / 10.0,
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            load,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: profile.to_owned(),
            program: format!("{:016x}", checksum(program)),
            time: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M").to_string(),
        })
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}, {} of {} cores, {}; forerun {} ({} build), {} UTC",
            self.processor, self.threads, self.cores, self.level, self.version, self.profile, self.time
        )
    }

    /// Says on standard error what makes figures too low.
    pub(crate) fn warn(&self) {
        if self.load > 0.5 * self.cores as f64 {
            eprintln!(
                "warning: the machine is busy (load {:.1} on {} cores): times will be too long, ratios less so",
                self.load, self.cores
            );
        }
        if self.profile == "debug" {
            eprintln!("warning: this is a debug build: `cargo build --release` is faster");
        }
    }
}

/// How fast the machine is just now, whatever the build is: gigabytes of a fixed block that one thread sums in a
/// second. Machines that are shared change their pace by a factor, for minutes.
pub(crate) struct Pace(Vec<u32>);

impl Pace {
    pub(crate) fn new() -> Self {
        Self((0..1 << 18).collect())
    }

    pub(crate) fn measure(&self) -> f64 {
        let sum =
            |sums: [u32; 16], words: &[u32; 16]| std::array::from_fn(|i| sums[i].wrapping_mul(31) ^ words[i]);
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

/// The most memory the program has held, in bytes.
pub(crate) fn peak_memory() -> u64 {
    field(&file("/proc/self/status"), "VmHWM").parse::<u64>().unwrap_or(0) * 1024
}

/// Memory that a program may still take, in bytes.
pub(crate) fn free_memory() -> u64 {
    field(&file("/proc/meminfo"), "MemAvailable").parse::<u64>().unwrap_or(0) * 1024
}

/// FNV-1a.
pub(crate) fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn file(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of `name : value kB`, or nothing where the system does not say.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|l| l.split(':').next().is_some_and(|n| n.trim() == name));
    let value = line.and_then(|l| l.split_once(':')).map_or("", |(_, value)| value.trim());
    value.strip_suffix(" kB").unwrap_or(value).to_owned()
}
