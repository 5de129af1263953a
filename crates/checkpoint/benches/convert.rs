//! `convert` on a drafter of the Qwen3.6-27B shape, 3.46 GB of random bf16: source megabytes a second and peak memory.
//!
//! `cargo bench -p checkpoint --bench convert [-- MIX...]`, with 6 GB of disk free in the temporary folder.

#[path = "../tests/support/mod.rs"]
mod support;

use checkpoint::convert::{Mix, Progress, convert};
use checkpoint::{Drafter, Overrides};
use formats::gguf::Overwrite;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;
use support::Size;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let size =
        Size { hidden: 5120, layers: 5, q_heads: 32, kv_heads: 8, head_dim: 128, ffn: 17_408, taps: 5 };
    let folder = support::folder(&size.nested(&[1, 16, 31, 46, 61], 248_070, 2048), &size.tensors());
    fill(&folder.path().join("model.safetensors"));
    let drafter = Drafter::open(folder.path(), &Overrides::default(), None).expect("a sound drafter");
    for (name, mix) in Mix::NAMES {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let out = folder.path().join("out.gguf");
        let start = Instant::now();
        let summary = convert(&drafter, "", mix, None, &out, Overwrite::Replace, &Progress::default())
            .expect("converts");
        let seconds = start.elapsed().as_secs_f64();
        let rate = summary.source_bytes as f64 / 1e6 / seconds;
        println!("{name:<7} {seconds:6.1} s  {rate:6.0} MB/s of source, peak {} MiB resident", peak_mib());
    }
}

/// Small random bf16 numbers after the header: sign and mantissa random, exponents near those of real weights.
fn fill(path: &Path) {
    let header = std::fs::File::open(path).map(|mut f| {
        let mut len = [0; 8];
        std::io::Read::read_exact(&mut f, &mut len).expect("a header");
        8 + u64::from_le_bytes(len)
    });
    let len = std::fs::metadata(path).expect("the file").len();
    let header = header.expect("the file");
    let mut file = File::options().write(true).open(path).expect("the file");
    file.seek(SeekFrom::Start(header)).expect("a seek");
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..(len - header) / 8 {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = state ^ (state >> 29);
        // Exponents 0x78..0x7b of 0x7f: magnitudes from 2^-7 to 2^-4.
        out.write_all(&((mixed & 0x81ff_81ff_81ff_81ff) | 0x3c00_3c00_3c00_3c00).to_le_bytes())
            .expect("a write");
    }
    out.flush().expect("a write");
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|p| p.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1024
}
