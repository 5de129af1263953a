//! Random weights, rows and comparisons for the tests of ops.
#![allow(dead_code, unreachable_pub)]

use compute::{
    Activations, Arena, Backend, Buf, Cpu, CpuLevel, Matrix, MatrixId, Pass, Plan, reference::Reference,
};
use formats::BlockType;
use std::sync::Arc;

/// A small random number generator (splitmix64), so that a failure can be run again.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal, standard deviation 1.
    pub fn number(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum::<f32>() * 1.7
    }

    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }
}

/// Where the f16 fields of a block lie.
fn halves(ty: BlockType) -> &'static [usize] {
    match ty {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => &[],
        BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::IQ4_NL | BlockType::IQ4_XS => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q2_K => &[80, 82],
        BlockType::Q3_K => &[108],
        BlockType::Q6_K => &[208],
    }
}

/// `n` weights of any type: random codes and scales, with scales of a sane size.
pub fn random_blocks(random: &mut Random, ty: BlockType, n: usize) -> Vec<u8> {
    match ty {
        BlockType::F32 => random.numbers(n).iter().flat_map(|x| x.to_le_bytes()).collect(),
        BlockType::F16 => {
            random.numbers(n).iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect()
        }
        BlockType::BF16 => {
            random.numbers(n).iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
        }
        _ => {
            let mut bytes: Vec<u8> =
                (0..n / ty.block_len() * ty.block_bytes()).map(|_| random.next() as u8).collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                for at in halves(ty) {
                    let d = half::f16::from_f32(0.01 * random.number());
                    block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
                }
            }
            bytes
        }
    }
}

/// Two backends that are given the same weights.
pub struct Pair {
    pub reference: Reference,
    pub cpu: Cpu,
}

impl Pair {
    pub fn new(level: CpuLevel, threads: usize, activations: Activations) -> Self {
        Self { reference: Reference::default(), cpu: Cpu::new(level, threads, activations) }
    }

    pub fn matrix(
        &mut self,
        random: &mut Random,
        ty: BlockType,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> MatrixId {
        let bytes = random_blocks(random, ty, experts * rows * cols);
        let matrix = Matrix { ty, experts, rows, cols, bytes: &bytes };
        self.reference.matrix(matrix);
        self.cpu.matrix(matrix)
    }

    pub fn vector(&mut self, numbers: &[f32]) -> compute::VectorId {
        self.reference.vector(numbers);
        self.cpu.vector(numbers)
    }

    /// Runs the plan on both, from NaN but for the inputs; returns both arenas.
    pub fn run(&mut self, plan: &Arc<Plan>, inputs: &[(Buf, Vec<f32>)], pass: &Pass<'_>) -> (Arena, Arena) {
        (run(&mut self.reference, plan, inputs, pass), run(&mut self.cpu, plan, inputs, pass))
    }
}

/// Runs a plan in an arena of NaN but for the inputs.
pub fn run(
    backend: &mut dyn Backend,
    plan: &Arc<Plan>,
    inputs: &[(Buf, Vec<f32>)],
    pass: &Pass<'_>,
) -> Arena {
    let mut arena = backend.arena(plan.clone(), pass.rows(), pass.chosen.len());
    arena.poison();
    for (buf, numbers) in inputs {
        arena.numbers_mut(*buf)[..numbers.len()].copy_from_slice(numbers);
    }
    backend.run(&mut arena, pass);
    arena
}

/// Levels this processor has.
pub fn levels() -> Vec<CpuLevel> {
    CpuLevel::ALL.into_iter().filter(|l| l.is_available()).collect()
}

/// Largest difference, relative to the size of what is expected.
#[track_caller]
pub fn assert_close(name: &str, expected: &[f32], got: &[f32], tolerance: f32) {
    assert_eq!(expected.len(), got.len(), "{name}");
    let size = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len() as f32).sqrt();
    for (i, (e, g)) in expected.iter().zip(got).enumerate() {
        let difference = (e - g).abs();
        assert!(difference <= tolerance * (size + e.abs()), "{name}: [{i}] is {g}, not {e} (typical {size})");
    }
}

#[track_caller]
pub fn assert_same_bits(name: &str, a: &[f32], b: &[f32]) {
    let differ = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(differ.is_none() && a.len() == b.len(), "{name}: differs at {differ:?}");
}
