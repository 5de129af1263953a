//! Decoding and encoding of every block type on one core, in bytes of `f32` a second:
//! `cargo bench -p formats --bench blocks`.

use divan::{Bencher, counter::BytesCount};
use formats::blocks::{self, BlockType};
use formats::quantize;

/// Elements a round: 256 KiB of `f32`, which stay in the second-level cache.
const ELEMENTS: usize = 1 << 16;

fn main() {
    divan::main();
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

#[divan::bench(args = BlockType::ALL)]
fn decode(bencher: Bencher, ty: BlockType) {
    let mut bytes = vec![0x2c; ty.bytes_for(ELEMENTS).unwrap()];
    if quantize::supports(ty) {
        quantize::encode(ty, &values(), &mut bytes).unwrap();
    }
    let mut out = vec![f32::NAN; ELEMENTS];
    bencher.counter(BytesCount::of_many::<f32>(ELEMENTS)).bench_local(|| {
        blocks::decode(ty, divan::black_box(&bytes), &mut out);
        divan::black_box(&mut out);
    });
}

#[divan::bench(args = BlockType::ALL.into_iter().filter(|ty| quantize::supports(*ty)))]
fn encode(bencher: Bencher, ty: BlockType) {
    let values = values();
    let mut out = vec![0; ty.bytes_for(ELEMENTS).unwrap()];
    bencher.counter(BytesCount::of_many::<f32>(ELEMENTS)).bench_local(|| {
        quantize::encode(ty, divan::black_box(&values), &mut out).unwrap();
        divan::black_box(&mut out);
    });
}
