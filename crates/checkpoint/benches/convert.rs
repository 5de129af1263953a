//! `convert` on a drafter of the Qwen3.6-27B shape, 3.46 GB of random bf16: source megabytes a
//! second and peak memory.
//!
//! `cargo bench -p forerun-checkpoint --bench convert [-- MIX... --run NAME]`, with 6 GB of disk free in
//! the temporary folder.

#[path = "../tests/support/mod.rs"]
mod support;

use checkpoint::convert::{Mix, Progress, convert};
use checkpoint::{Drafter, Overrides};
use formats::gguf::Overwrite;
use runs::{Bench, Table, machine, median};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Instant;
use support::Size;

/// How often each is made; the median counts.
const TIMES: usize = 3;

fn main() -> runs::Result<()> {
    let bench = Bench::new("cargo bench -p forerun-checkpoint --bench convert")?;
    let size = Size {
        hidden: 5120,
        layers: 5,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        ffn: 17_408,
        taps: 5,
    };
    let folder =
        support::folder(&size.nested(&[1, 16, 31, 46, 61], 248_070, 2048), &size.tensors());
    fill(&folder.path().join("model.safetensors"));
    let drafter = Drafter::open(folder.path(), &Overrides::default(), None)?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for (name, mix) in Mix::NAMES {
        if !bench.words.is_empty() && !bench.words.iter().any(|w| w == name) {
            continue;
        }
        let out = folder.path().join("out.gguf");
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let start = Instant::now();
            let summary =
                convert(&drafter, "", mix, None, &out, Overwrite::Replace, &Progress::default())?;
            times.push(start.elapsed().as_secs_f64());
            bytes = summary.source_bytes;
            println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        }
        let (seconds, peak) = (median(times), machine::peak_memory() as f64 / f64::from(1 << 20));
        rows.push(vec![
            name.into(),
            seconds.into(),
            (bytes as f64 / 1e6 / seconds).into(),
            peak.into(),
        ]);
    }
    let table = Table::new(&["to", "seconds", "source MB/s", "peak MiB"], rows);
    let shapes = format!(
        "a drafter of the Qwen3.6-27B shape, {:.2} GB of bf16, all threads, medians of {TIMES}; \
         bf16 is a copy",
        bytes as f64 / 1e9
    );
    bench.finish(&shapes, [("convert", table)])
}

/// Small random bf16 numbers after the header: sign and mantissa random, exponents near those of
/// real weights.
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
