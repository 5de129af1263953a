//! What an op sees while a plan runs: weights, the pass, and the arena's buffers as pointers, since
//! threads write disjoint parts of them at the same time.

use super::{CpuLevel, pack::Packed, pool::Worker, q8::Q8Block};
use crate::{
    arena::Arena,
    memory::Memory,
    pass::Pass,
    plan::{Buf, Plan, VectorId},
};

/// A buffer: rows of `cols` elements.
#[derive(Clone, Copy)]
pub(crate) struct RawBuffer {
    data: *mut u8,
    blocks: *mut Q8Block,
    pub(crate) cols: usize,
}

impl RawBuffer {
    /// Row `row` of a buffer of numbers.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> *mut f32 {
        self.data.cast::<f32>().wrapping_add(row * self.cols)
    }

    /// Row `row` of a buffer of words.
    #[inline(always)]
    pub(crate) fn words(&self, row: usize) -> *mut u32 {
        self.data.cast::<u32>().wrapping_add(row * self.cols)
    }

    /// Row `row` of a buffer of bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self, row: usize) -> *mut u8 {
        self.data.wrapping_add(row * self.cols)
    }

    /// Row `row` of an activation, rounded.
    #[inline(always)]
    pub(crate) fn blocks(&self, row: usize) -> *mut Q8Block {
        self.blocks.wrapping_add(row * self.cols / 32)
    }
}

/// One thread's view of a running plan.
pub(crate) struct View<'a> {
    pub(crate) level: CpuLevel,
    /// Whether activations are rounded to int8.
    pub(crate) int8: bool,
    pub(crate) worker: Worker<'a>,
    pub(crate) plan: &'a Plan,
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) matrices: &'a [Packed],
    pub(crate) vectors: &'a [Memory],
    pub(crate) buffers: &'a [RawBuffer],
    /// This thread's own numbers.
    pub(crate) scratch: *mut f32,
}

impl View<'_> {
    pub(crate) fn buffer(&self, buf: Buf) -> RawBuffer {
        self.buffers[buf.0 as usize]
    }

    pub(crate) fn vector(&self, id: VectorId) -> &[f32] {
        self.vectors[id.0 as usize].slice()
    }

    pub(crate) fn rows(&self) -> usize {
        self.pass.rows()
    }
}

/// Buffers, scratch and weights shared by the threads of a run.
pub(crate) struct Shared<'a> {
    pub(crate) buffers: &'a [RawBuffer],
    pub(crate) scratch: Vec<*mut f32>,
}

// SAFETY: the pointers lead to memory that outlives the run; ops give each thread parts of its own
// to write.
unsafe impl Sync for Shared<'_> {}

/// The buffers of an arena as pointers.
pub(crate) fn raw_buffers(arena: &mut Arena) -> Vec<RawBuffer> {
    let specs = arena.plan.buffers.iter();
    specs
        .zip(arena.data.iter_mut().zip(&mut arena.rounded))
        .map(|(spec, (data, rounded))| RawBuffer {
            data: data.slice_mut::<u8>().as_mut_ptr(),
            blocks: rounded.slice_mut::<u8>().as_mut_ptr().cast(),
            cols: spec.cols,
        })
        .collect()
}
