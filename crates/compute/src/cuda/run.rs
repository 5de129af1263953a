//! One plan over one pass: each op becomes launches. Nothing here looks at what a pass holds, only
//! at how many rows it has, so that what is launched can be captured once and replayed.

use super::{
    args,
    block::DeviceMemory,
    driver::{DeviceInfo, Driver, Shape},
    far::Brought,
    kernels::Kernels,
    ops,
    scratch::Scratch,
    weights::Weights,
};
use crate::{
    Error,
    arena::Arena,
    plan::{Buf, MatrixId, Op, Plan, VectorId},
};
use std::{cell::Cell, sync::Arc};

/// What a launch needs to know.
pub(crate) struct Run<'a> {
    pub(crate) driver: &'a Arc<Driver>,
    pub(crate) kernels: &'a Kernels,
    pub(crate) limits: &'a DeviceInfo,
    pub(crate) weights: &'a Weights,
    pub(crate) scratch: &'a Scratch,
    pub(crate) cuts: &'a ops::matmul::Cuts,
    pub(crate) arena: &'a Arena,
    pub(crate) pass: args::Pass,
    /// States a sequence folds at once in this pass.
    pub(crate) slots: usize,
    /// Rows that a sequence has, or more.
    pub(crate) most_rows: usize,
    /// Where what is read back is put together; free while a plan runs.
    pub(crate) outbox: args::Address,
    /// How far the room for weights from the host's memory is in use.
    pub(crate) staged: Cell<usize>,
    /// Pages that a prompt's attention brings from there.
    pub(crate) brought: Brought,
    /// Where choices of the experts of the layer at hand are counted; 0 where they are not.
    pub(crate) counts: Cell<args::Address>,
}

impl Run<'_> {
    pub(crate) fn launch<A: Copy>(
        &self,
        kernel: args::Kernel<A>,
        shape: Shape,
        args: &A,
    ) -> Result<(), Error> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        self.kernels.launch(self.driver, kernel, shape, args)
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.arena.plan
    }

    /// Rows of the pass.
    pub(crate) fn rows(&self) -> usize {
        self.pass.rows as usize
    }

    /// Whether the prompt's kernels are asked for.
    pub(crate) fn is_prompt(&self) -> bool {
        self.pass.prompt != 0
    }

    pub(crate) fn cols(&self, buf: Buf) -> usize {
        self.plan().cols(buf)
    }

    /// The address of a buffer.
    pub(crate) fn buffer(&self, buf: Buf) -> args::Address {
        DeviceMemory::of(&self.arena.data[buf.0 as usize]).address()
    }

    /// A buffer that matrices are multiplied with.
    pub(crate) fn activation(&self, buf: Buf) -> args::Activation {
        let spec = &self.plan().buffers[buf.0 as usize];
        let rows = spec.rows(self.arena.capacity(), self.arena.chosen_capacity());
        let (cols, ld) = (spec.cols, padded(spec.cols));
        let rounded = DeviceMemory::of(&self.arena.rounded[buf.0 as usize]).address();
        // Rows that experts are visited with are none of the pass.
        let arranged = !self.is_prompt() && spec.rows(1, 1) == 1 && ops::matmul::arranges(self);
        args::Activation {
            x: rounded,
            sums: rounded + (rows * ld * 2) as u64,
            numbers: self.buffer(buf),
            arranged: if arranged { rounded + (rows * activation_bytes(cols)) as u64 } else { 0 },
            cols: cols as i32,
            ld: ld as i32,
        }
    }

    pub(crate) fn vector(&self, id: VectorId) -> args::Address {
        self.weights.vector(id)
    }

    /// Where a prompt's product finds a matrix. Its blocks of rows each read all of it, so one that
    /// lies in the host's memory is brought over once; experts, of which a block of rows has few,
    /// are read where they are. Room is taken in turns: what an op brings never reaches round to
    /// its own beginning (`ops::prompt_matmul::staged`).
    pub(crate) fn weight_of_prompt(&self, id: MatrixId) -> Result<args::Address, Error> {
        let matrix = self.weights.matrix(id);
        let bytes = matrix.host_bytes();
        if bytes == 0 || matrix.experts > 1 {
            return Ok(matrix.address());
        }
        let mut at = self.staged.get();
        if at + bytes > self.scratch.staged.len() {
            at = 0;
        }
        let address = self.scratch.staged.address() + at as u64;
        self.driver.copy(matrix.address(), address, bytes)?;
        self.staged.set(at + bytes);
        Ok(address)
    }

    /// Launches everything ops are, those together that can be.
    pub(crate) fn execute_all(&self, ops: &[Op]) -> Result<(), Error> {
        let together = |before: &Op, op: &Op| ops::rotate::go_together(self, before, op);
        ops.chunk_by(together).try_for_each(|ops| match ops {
            [op] => self.execute(op),
            all => ops::rotate::launch(self, all),
        })
    }

    /// Launches everything an op is.
    pub(crate) fn execute(&self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Embed { table, out } => ops::embed::launch(self, *table, *out),
            Op::Norm { .. } => ops::norm::launch(self, op),
            Op::Load { x, out } => ops::load::launch(self, *x, *out),
            Op::Matmul { products } => ops::products(self, products),
            Op::Angles { rotary, out } => ops::angles::launch(self, rotary, *out),
            Op::Rotate { .. } => ops::rotate::launch(self, std::slice::from_ref(op)),
            Op::Attention { .. } => ops::attention::launch(self, op),
            Op::Convolve { layer, weight, q, v } => {
                ops::convolve::launch(self, *layer, *weight, *q, *v)
            }
            Op::DeltaNet { .. } => ops::deltanet::launch(self, op),
            Op::SwiGlu { parts } => parts
                .iter()
                .try_for_each(|(gate, up, out)| ops::swiglu::launch(self, *gate, *up, *out)),
            Op::Route { logits, routing, scale } => {
                ops::route::launch(self, *logits, routing, *scale)
            }
            Op::Combine { routing, experts, shared, out } => {
                ops::combine::launch(self, routing, *experts, *shared, *out)
            }
            Op::Experts(experts) if ops::experts::is_fused(self, experts) => {
                ops::experts::launch_fused(self, experts)
            }
            Op::Experts(experts) => {
                let matrix = self.weights.matrix(experts.experts.weights[0]);
                self.counts.set(matrix.counts());
                experts.expand().iter().try_for_each(|op| self.execute(op))
            }
            Op::Scale { x, by, cap } => ops::scale::launch(self, *x, *by, *cap),
            Op::BlockConv(conv) => ops::block_conv::launch(self, conv),
            Op::ConvNorm(both) => ops::block_conv::launch_with_norm(self, both),
            Op::Top { logits, vocab, out } => ops::rank::launch(self, *logits, *vocab, out),
            Op::Pairs(pairs) => ops::pairs::launch(self, pairs),
        }
    }
}

/// Columns of an activation as it is stored.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(256)
}

/// Bytes of a row of an activation: f16 numbers and, for every 32 of them, their sum in two halves.
fn activation_bytes(cols: usize) -> usize {
    padded(cols) * 2 + padded(cols) / 32 * 4
}

/// Bytes of `Activation::arranged`.
pub(crate) fn arranged_bytes(cols: usize) -> usize {
    padded(cols) / 256 * (args::DECODE_ROWS / 8) * args::ARRANGED_BYTES
}

/// Bytes of an activation of so many rows.
pub(crate) fn rounded_bytes(rows: usize, cols: usize) -> usize {
    rows * activation_bytes(cols) + arranged_bytes(cols)
}
