//! What figures are of: the processor, how busy it was, and the build. Nothing, or 0, where the
//! system does not say.

use std::fs;
use std::path::Path;

/// The name of the processor.
pub fn processor() -> String {
    field("/proc/cpuinfo", "model name")
}

/// Runnable threads over the last minute.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The most memory this program has held, in bytes.
pub fn peak_memory() -> u64 {
    bytes("/proc/self/status", "VmHWM")
}

/// Memory of the machine, in bytes.
pub fn memory() -> u64 {
    bytes("/proc/meminfo", "MemTotal")
}

/// Memory that a program may still take, in bytes.
pub fn free_memory() -> u64 {
    bytes("/proc/meminfo", "MemAvailable")
}

/// Now, UTC, to the minute.
pub fn time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M").to_string()
}

/// How programs of this workspace were built.
pub fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// Version and profile, and the checksum of the file that was run.
pub fn build(program: &Path) -> String {
    format!("{} {}, program {}", env!("CARGO_PKG_VERSION"), profile(), checksum_of(program))
}

/// A checksum of a file, to tell builds apart.
pub fn checksum_of(program: &Path) -> String {
    format!("{:016x}", checksum(fs::read(program).unwrap_or_default()))
}

/// FNV-1a.
pub fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn bytes(file: &str, name: &str) -> u64 {
    field(file, name).trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// The value of the first line `name : value`.
fn field(file: &str, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(key, _)| key.trim() == name)
        .map_or_else(String::new, |(_, value)| value.trim().to_owned())
}
