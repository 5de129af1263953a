//! The buffers of a plan, allocated for a number of rows.

use crate::{
    memory::Memory,
    plan::{Buf, BufferSpec, Kind, Plan},
};
use std::sync::Arc;

/// Memory for every buffer of a plan.
pub struct Arena {
    pub(crate) plan: Arc<Plan>,
    capacity: usize,
    chosen: usize,
    /// The buffers themselves.
    pub(crate) data: Vec<Memory>,
    /// Rounded copies of activations, where the backend keeps them.
    pub(crate) rounded: Vec<Memory>,
}

impl Arena {
    /// Allocates buffers for passes of up to `capacity` rows, `chosen` of them with logits; `rounded_bytes` tells how
    /// many bytes a row of so many columns takes in the backend's rounded form.
    pub(crate) fn new(
        plan: Arc<Plan>,
        capacity: usize,
        chosen: usize,
        rounded_bytes: impl Fn(usize) -> usize,
    ) -> Self {
        let size = |kind| if kind == Kind::Bytes { 1 } else { 4 };
        let rows = |b: &BufferSpec| b.rows(capacity, chosen);
        let data = plan.buffers.iter().map(|b| Memory::zeroed(rows(b) * b.cols * size(b.kind))).collect();
        let rounded = plan.buffers.iter().map(|b| match b.kind {
            Kind::Activation => Memory::zeroed(rows(b) * rounded_bytes(b.cols)),
            _ => Memory::zeroed(0),
        });
        Self { capacity, chosen, data, rounded: rounded.collect(), plan }
    }

    /// The plan these buffers belong to.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The largest pass that fits.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The most rows of a pass that can have logits.
    pub fn chosen_capacity(&self) -> usize {
        self.chosen
    }

    /// A buffer of numbers: [rows, cols].
    pub fn numbers(&self, buf: Buf) -> &[f32] {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].slice()
    }

    /// Row `row` of a buffer of numbers.
    pub fn row(&self, buf: Buf, row: usize) -> &[f32] {
        let cols = self.plan.cols(buf);
        &self.numbers(buf)[row * cols..][..cols]
    }

    /// A writable buffer of numbers, for what a pass takes as input.
    pub fn numbers_mut(&mut self, buf: Buf) -> &mut [f32] {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].slice_mut()
    }

    /// A buffer of words.
    pub fn words(&self, buf: Buf) -> &[u32] {
        assert_eq!(self.kind(buf), Kind::Words);
        self.data[buf.0 as usize].slice()
    }

    /// A buffer of bytes.
    pub fn bytes(&self, buf: Buf) -> &[u8] {
        assert_eq!(self.kind(buf), Kind::Bytes);
        self.data[buf.0 as usize].slice()
    }

    /// Fills every buffer with NaN, so that what a pass fails to write is seen.
    pub fn poison(&mut self) {
        for memory in self.data.iter_mut().chain(&mut self.rounded) {
            memory.slice_mut::<u8>().fill(0xff);
        }
    }

    fn kind(&self, buf: Buf) -> Kind {
        self.plan.buffers[buf.0 as usize].kind
    }
}
