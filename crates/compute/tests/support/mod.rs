//! Random weights, rows and comparisons for the tests of ops.
#![allow(dead_code, unreachable_pub)]

pub use compute::selftest::{Random, random_blocks};
use compute::{
    Activations, Arena, Backend, Buf, Cpu, CpuLevel, Matrix, MatrixId, Pass, Plan,
    reference::Reference,
};
use formats::BlockType;
use std::sync::Arc;

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
        self.reference.matrix(matrix).expect("room");
        self.cpu.matrix(matrix).expect("room")
    }

    pub fn vector(&mut self, numbers: &[f32]) -> compute::VectorId {
        self.reference.vector(numbers).expect("room");
        self.cpu.vector(numbers).expect("room")
    }

    /// Runs the plan on both, from NaN but for the inputs; returns both arenas.
    pub fn run(
        &mut self,
        plan: &Arc<Plan>,
        inputs: &[(Buf, Vec<f32>)],
        pass: &Pass<'_>,
    ) -> (Arena, Arena) {
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
    let mut arena = backend.arena(plan.clone(), pass.rows(), pass.chosen.len()).expect("room");
    arena.poison().expect("memory of the host");
    for (buf, numbers) in inputs {
        arena.write(*buf, numbers).expect("memory of the host");
    }
    backend.run(&mut arena, pass).expect("a pass");
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
        assert!(
            difference <= tolerance * (size + e.abs()),
            "{name}: [{i}] is {g}, not {e} (typical {size})"
        );
    }
}

#[track_caller]
pub fn assert_same_bits(name: &str, a: &[f32], b: &[f32]) {
    let differ = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(differ.is_none() && a.len() == b.len(), "{name}: differs at {differ:?}");
}
