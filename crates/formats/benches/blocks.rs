//! Decoding and encoding of every block type on one core, in bytes of `f32` a second:
//! `cargo bench -p forerun-formats --bench blocks [-- --run NAME]`.

use formats::blocks::{self, BlockType};
use formats::quantize;
use runs::{Bench, Table, seconds};
use std::hint::black_box;

/// Elements a round: 256 KiB of `f32`, which stay in the second-level cache.
const ELEMENTS: usize = 1 << 16;

fn main() -> runs::Result<()> {
    let bench = Bench::new("cargo bench -p forerun-formats --bench blocks")?;
    let rate = |seconds: f64| (size_of::<f32>() * ELEMENTS) as f64 / seconds / 1e9;
    let row = |ty: BlockType| {
        let encode = quantize::supports(ty).then(|| rate(encode(ty)));
        vec![ty.name().into(), rate(decode(ty)).into(), encode.into()]
    };
    let table = Table::new(
        &["type", "decode GB/s", "encode GB/s"],
        BlockType::ALL.into_iter().map(row).collect(),
    );
    bench.finish("bytes of f32, 1 thread, medians", [("blocks", table)])
}

/// Values spread like weights: sums of uniform ones.
fn values() -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..ELEMENTS).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.05).collect()
}

fn decode(ty: BlockType) -> f64 {
    let mut bytes = vec![0x2c; ty.bytes_for(ELEMENTS).unwrap()];
    if quantize::supports(ty) {
        quantize::encode(ty, &values(), &mut bytes).unwrap();
    }
    let mut out = vec![f32::NAN; ELEMENTS];
    seconds(|| {
        blocks::decode(ty, black_box(&bytes), &mut out);
        black_box(&mut out);
    })
}

fn encode(ty: BlockType) -> f64 {
    let values = values();
    let mut out = vec![0; ty.bytes_for(ELEMENTS).unwrap()];
    seconds(|| {
        quantize::encode(ty, black_box(&values), &mut out).unwrap();
        black_box(&mut out);
    })
}
