//! Every op on a device against the reference, on ragged shapes and from buffers full of NaN, and
//! the law that a row has the same bits in any company. `forerun doctor --selftest` runs it where a
//! device is; it needs no test harness.

mod attention;
mod block;
mod commit;
mod deltanet;
mod experts;
pub mod plans;
mod products;
mod random;
mod rows;

use crate::{
    Arena, Backend, Buf, Error, Matrix, MatrixId, Pass, Plan, VectorId, reference::Reference,
};
use formats::BlockType;
use plans::{chain, tree_and_chain};
pub use random::{Random, random_blocks};
use std::sync::Arc;

/// What one check found.
#[derive(Clone, Debug)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// The largest difference from the reference, relative to the size of what is expected; NaN
    /// where one side has one.
    pub worst: f32,
    /// The largest that is allowed.
    pub tolerance: f32,
}

impl Check {
    /// Whether it held.
    pub fn holds(&self) -> bool {
        self.worst <= self.tolerance
    }
}

/// Runs the checks on a device. They come in groups, such as `attention F16 12 x 256, 700 before`;
/// those without `only` in their name are left out.
pub fn run(
    device: &mut dyn Backend,
    only: &str,
    mut seen: impl FnMut(&Check),
) -> Result<Vec<Check>, Error> {
    let reference = Reference::default();
    let mut both = Both { reference, device, only, checks: Vec::new(), seen: &mut seen };
    rows::run(&mut both)?;
    products::run(&mut both)?;
    experts::run(&mut both)?;
    block::run(&mut both)?;
    attention::run(&mut both)?;
    deltanet::run(&mut both)?;
    commit::run(&mut both)?;
    stow(&mut both)?;
    Ok(both.checks)
}

/// State that goes to the host's memory and comes back is the same to the bit, also where the block
/// it was is gone.
fn stow(both: &mut Both<'_>) -> Result<(), Error> {
    for len in [1, 65, 4097, 5_000_011] {
        let name = format!("{len} bytes of state stowed and fetched");
        if !both.wants(&name) {
            continue;
        }
        let bytes: Vec<u8> = (0..len).map(|i: usize| ((i * 31) ^ (i >> 8)) as u8).collect();
        let mut block = both.device.memory(len)?;
        block.write(0, &bytes)?;
        let stowed = block.to_host()?;
        drop(block);
        let fetched = both.device.memory_with(&stowed)?;
        let same = *stowed.slice::<u8>() == *bytes && *fetched.read::<u8>(0, len)? == *bytes;
        both.check_same(&name, same);
    }
    Ok(())
}

/// A device and the reference, which are given the same weights and plans.
struct Both<'a> {
    reference: Reference,
    device: &'a mut dyn Backend,
    only: &'a str,
    checks: Vec<Check>,
    seen: &'a mut dyn FnMut(&Check),
}

/// A plan, what its buffers begin with, and which of them are compared.
type Recorded = (Plan, Vec<(Buf, Vec<f32>)>, Vec<Buf>);

/// A matrix or vector on both.
#[derive(Clone, Copy)]
struct Of<T> {
    reference: T,
    device: T,
}

impl Both<'_> {
    /// Whether the checks are asked for whose names begin with `name`.
    fn wants(&self, name: &str) -> bool {
        name.contains(self.only)
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<Of<VectorId>, Error> {
        Ok(Of { reference: self.reference.vector(numbers)?, device: self.device.vector(numbers)? })
    }

    fn matrix(
        &mut self,
        random: &mut Random,
        ty: BlockType,
        [experts, rows, cols]: [usize; 3],
    ) -> Result<Of<MatrixId>, Error> {
        let bytes = random_blocks(random, ty, experts * rows * cols);
        let matrix = Matrix { ty, experts, rows, cols, bytes: &bytes };
        Ok(Of { reference: self.reference.matrix(matrix)?, device: self.device.matrix(matrix)? })
    }

    fn table(
        &mut self,
        random: &mut Random,
        ty: BlockType,
        rows: usize,
        cols: usize,
    ) -> Result<Of<MatrixId>, Error> {
        let bytes = random_blocks(random, ty, rows * cols);
        let matrix = Matrix { ty, experts: 1, rows, cols, bytes: &bytes };
        Ok(Of { reference: self.reference.table(matrix)?, device: self.device.table(matrix)? })
    }

    /// Runs the plan that `record` makes on both, and compares outputs.
    fn compare<'p>(
        &mut self,
        name: &str,
        record: &dyn Fn(bool) -> Recorded,
        passes: [Pass<'p>; 2],
        tolerance: f32,
    ) -> Result<(), Error> {
        let [on_reference, on_device] = &passes;
        let (plan, inputs, outputs) = record(false);
        let expected = run_plan(&mut self.reference, plan, &inputs, on_reference)?;
        let (plan, inputs, _) = record(true);
        let got = run_plan(self.device, plan, &inputs, on_device)?;
        let mut worst = 0f32;
        for out in outputs {
            let spec = &expected.plan().buffers[out.0 as usize];
            let count = spec.rows(on_device.rows(), on_device.chosen.len()) * spec.cols;
            worst =
                largest(worst, difference(&expected.read(out)?[..count], &got.read(out)?[..count]));
        }
        self.check(name, worst, tolerance);
        Ok(())
    }

    fn check(&mut self, name: &str, worst: f32, tolerance: f32) {
        let check = Check { name: name.into(), worst, tolerance };
        (self.seen)(&check);
        self.checks.push(check);
    }

    /// A check of bits: they are the same or they are not.
    fn check_same(&mut self, name: &str, same: bool) {
        self.check(name, if same { 0.0 } else { f32::NAN }, 0.0);
    }
}

/// Runs a plan in an arena of NaN but for the inputs.
fn run_plan(
    backend: &mut dyn Backend,
    plan: Plan,
    inputs: &[(Buf, Vec<f32>)],
    pass: &Pass<'_>,
) -> Result<Arena, Error> {
    let mut arena = backend.arena(Arc::new(plan), pass.rows(), pass.chosen.len())?;
    arena.poison()?;
    for (buf, numbers) in inputs {
        arena.write(*buf, numbers)?;
    }
    backend.run(&mut arena, pass)?;
    backend.finish()?;
    Ok(arena)
}

fn largest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

/// The largest difference, relative to the size of what is expected.
fn difference(expected: &[f32], got: &[f32]) -> f32 {
    let size = (expected.iter().map(|x| x * x).sum::<f32>() / expected.len().max(1) as f32).sqrt();
    let of = |(e, g): (&f32, &f32)| (e - g).abs() / (size + e.abs()).max(f32::MIN_POSITIVE);
    expected.iter().zip(got).map(of).fold(0.0, largest)
}
