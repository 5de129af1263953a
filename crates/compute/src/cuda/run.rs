//! One plan over one pass: each op becomes launches. Nothing here looks at what a pass holds, only at how many rows it
//! has, so that what is launched can be captured once and replayed.

use super::{
    args,
    driver::{DeviceInfo, DeviceMemory, Driver, Shape},
    kernels::Kernels,
    ops,
    scratch::Scratch,
    weights::Weights,
};
use crate::{
    Error,
    arena::Arena,
    plan::{Buf, Op, Plan, VectorId},
};
use std::{cell::RefCell, collections::HashMap, sync::Arc};

/// What launches that do two ops need: a product whose blocks meet at its end can do what follows it, if all of them
/// run at once.
pub(crate) struct Fusion {
    /// Whether there are such launches.
    pub(crate) is_on: bool,
    /// Where the blocks of a launch meet. One word serves all launches, since they arrive there one after the other.
    counter: DeviceMemory,
    /// Clusters that run at once, by kernel, threads, shared memory and blocks of a cluster.
    clusters: RefCell<HashMap<(&'static str, u32, u32, u32), u32>>,
}

impl Fusion {
    pub(crate) fn new(driver: &Arc<Driver>) -> Result<Self, Error> {
        Ok(Self {
            is_on: true,
            counter: driver.allocate(4, "a counter of blocks")?,
            clusters: RefCell::default(),
        })
    }
}

/// What a launch needs to know.
pub(crate) struct Run<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) kernels: &'a Kernels,
    pub(crate) limits: &'a DeviceInfo,
    pub(crate) weights: &'a Weights,
    pub(crate) scratch: &'a Scratch,
    pub(crate) fusion: &'a Fusion,
    pub(crate) arena: &'a Arena,
    pub(crate) pass: args::Pass,
    /// States a sequence folds at once in this pass.
    pub(crate) slots: usize,
}

impl Run<'_> {
    pub(crate) fn launch<A: Copy>(&self, kernel: &'static str, shape: Shape, args: &A) -> Result<(), Error> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        self.driver.launch(&self.kernels.get(kernel)?, shape, args)
    }

    /// The counter where blocks of a launch meet.
    pub(crate) fn counter(&self) -> args::Address {
        self.fusion.counter.address()
    }

    /// Whether all blocks of a launch run at once when nothing else does: they may wait for each other then. A kernel
    /// that is launched later does not take their place, since it begins only when all of them have.
    pub(crate) fn runs_at_once(&self, kernel: &'static str, shape: Shape) -> Result<bool, Error> {
        let blocks: u32 = shape.grid.iter().product();
        if shape.cluster == 1 || blocks > self.limits.multiprocessors {
            return Ok(blocks <= self.limits.multiprocessors);
        }
        let key = (kernel, shape.block, shape.shared, shape.cluster);
        if let Some(&clusters) = self.fusion.clusters.borrow().get(&key) {
            return Ok(blocks <= clusters * shape.cluster);
        }
        let clusters = self.driver.clusters(&self.kernels.get(kernel)?, shape)?;
        self.fusion.clusters.borrow_mut().insert(key, clusters);
        Ok(blocks <= clusters * shape.cluster)
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
        self.arena.data[buf.0 as usize].device().expect("an arena of this device").address()
    }

    /// A buffer that matrices are multiplied with.
    pub(crate) fn activation(&self, buf: Buf) -> args::Activation {
        let spec = &self.plan().buffers[buf.0 as usize];
        let rows = spec.rows(self.arena.capacity(), self.arena.chosen_capacity());
        let (cols, ld) = (spec.cols, padded(spec.cols));
        let rounded =
            self.arena.rounded[buf.0 as usize].device().expect("an activation of this device").address();
        args::Activation {
            x: rounded,
            sums: rounded + (rows * ld * 2) as u64,
            numbers: self.buffer(buf),
            cols: cols as i32,
            ld: ld as i32,
        }
    }

    pub(crate) fn vector(&self, id: VectorId) -> args::Address {
        self.weights.vector(id)
    }

    /// Launches ops in order; a product does the op after it as well where it can.
    pub(crate) fn execute_all(&self, ops: &[Op]) -> Result<(), Error> {
        let mut rest = ops;
        while let Some((op, after)) = rest.split_first() {
            rest = after;
            if let (Op::Matmul { products }, Some((next, after))) = (op, after.split_first())
                && ops::matmul::launch_with(self, products, next)?
            {
                rest = after;
                continue;
            }
            self.execute(op)?;
        }
        Ok(())
    }

    /// Launches everything an op is.
    pub(crate) fn execute(&self, op: &Op) -> Result<(), Error> {
        match op {
            Op::Embed { table, out } => ops::embed::launch(self, *table, *out),
            Op::Norm { .. } => ops::norm::launch(self, op),
            Op::Load { x, out } => ops::load::launch(self, *x, *out),
            Op::Matmul { products } => ops::products(self, products),
            Op::Angles { rotary, out } => ops::angles::launch(self, rotary, *out),
            Op::Rotate { .. } => ops::rotate::launch(self, op),
            Op::Attention { .. } => ops::attention::launch(self, op),
            Op::Convolve { layer, weight, q, v } => ops::convolve::launch(self, *layer, *weight, *q, *v),
            Op::DeltaNet { .. } => ops::deltanet::launch(self, op),
            Op::SwiGlu { parts } => {
                parts.iter().try_for_each(|(gate, up, out)| ops::swiglu::launch(self, *gate, *up, *out))
            }
            Op::Route { logits, routing, scale } => ops::route::launch(self, *logits, routing, *scale),
            Op::Combine { routing, experts, shared, out } => {
                ops::combine::launch(self, routing, *experts, *shared, *out)
            }
        }
    }
}

/// Columns of an activation as it is stored.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(256)
}

/// Bytes of a row of an activation: f16 numbers and, for every 32 of them, their sum in two halves.
pub(crate) fn activation_bytes(cols: usize) -> usize {
    padded(cols) * 2 + padded(cols) / 32 * 4
}
