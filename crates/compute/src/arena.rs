//! The buffers of a plan, allocated for a number of rows.

use crate::{
    Error,
    memory::Memory,
    plan::{Buf, BufferSpec, Kind, Plan},
};
use std::{any::Any, borrow::Cow, sync::Arc};

/// Memory for every buffer of a plan.
pub struct Arena {
    pub(crate) plan: Arc<Plan>,
    capacity: usize,
    chosen: usize,
    /// The buffers themselves.
    pub(crate) data: Vec<Memory>,
    /// Rounded copies of activations, where the backend keeps them.
    pub(crate) rounded: Vec<Memory>,
    /// What the backend keeps beside them, if anything; nobody else knows what it is.
    pub(crate) beside: Option<Box<dyn Any + Send + Sync>>,
}

impl Arena {
    /// Allocates buffers for passes of up to `capacity` rows, `chosen` of them with logits;
    /// `rounded_bytes` tells how many bytes so many rows of so many columns take in the backend's
    /// rounded form, `allocate` gives zeroed memory.
    pub(crate) fn new(
        plan: Arc<Plan>,
        capacity: usize,
        chosen: usize,
        rounded_bytes: impl Fn(usize, usize) -> usize,
        allocate: impl Fn(usize) -> Result<Memory, Error>,
    ) -> Result<Self, Error> {
        let rows = |b: &BufferSpec| b.rows(capacity, chosen);
        let data = plan.buffers.iter().map(|b| allocate(rows(b) * b.cols * b.kind.bytes()));
        let rounded = plan.buffers.iter().map(|b| match b.kind {
            Kind::Activation => allocate(rounded_bytes(rows(b), b.cols)),
            _ => Ok(Memory::zeroed(0)),
        });
        let (data, rounded) = (data.collect::<Result<_, _>>()?, rounded.collect::<Result<_, _>>()?);
        Ok(Self { capacity, chosen, data, rounded, plan, beside: None })
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

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        self.data.iter().chain(&self.rounded).map(Memory::len).sum()
    }

    /// A buffer of numbers in host memory: [rows, cols].
    pub(crate) fn numbers(&self, buf: Buf) -> &[f32] {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].slice()
    }

    /// Row `row` of a buffer of numbers in host memory.
    pub(crate) fn host_row(&self, buf: Buf, row: usize) -> &[f32] {
        let cols = self.plan.cols(buf);
        &self.numbers(buf)[row * cols..][..cols]
    }

    /// A writable buffer of numbers in host memory.
    pub(crate) fn numbers_mut(&mut self, buf: Buf) -> &mut [f32] {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].slice_mut()
    }

    /// A buffer of words in host memory.
    pub(crate) fn words(&self, buf: Buf) -> &[u32] {
        assert_eq!(self.kind(buf), Kind::Words);
        self.data[buf.0 as usize].slice()
    }

    /// A buffer of bytes in host memory.
    pub(crate) fn bytes_of(&self, buf: Buf) -> &[u8] {
        assert_eq!(self.kind(buf), Kind::Bytes);
        self.data[buf.0 as usize].slice()
    }

    /// Row `row` of a buffer of numbers, copied where it lies on a device.
    pub fn row(&self, buf: Buf, row: usize) -> Result<Cow<'_, [f32]>, Error> {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        let cols = self.plan.cols(buf);
        self.data[buf.0 as usize].read(row * cols, cols)
    }

    /// The first rows of a buffer of numbers, copied where it lies on a device: [rows, cols].
    pub fn first_rows(&self, buf: Buf, rows: usize) -> Result<Cow<'_, [f32]>, Error> {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].read(0, rows * self.plan.cols(buf))
    }

    /// A whole buffer of numbers, copied where it lies on a device: [rows, cols].
    pub fn read(&self, buf: Buf) -> Result<Cow<'_, [f32]>, Error> {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        let memory = &self.data[buf.0 as usize];
        memory.read(0, memory.len() / 4)
    }

    /// The first rows of a buffer of words, copied where it lies on a device.
    pub fn read_words(&self, buf: Buf, rows: usize) -> Result<Cow<'_, [u32]>, Error> {
        assert_eq!(self.kind(buf), Kind::Words);
        self.data[buf.0 as usize].read(0, rows * self.plan.cols(buf))
    }

    /// Writes the first numbers of a buffer, for what a pass takes as input.
    pub fn write(&mut self, buf: Buf, numbers: &[f32]) -> Result<(), Error> {
        assert!(matches!(self.kind(buf), Kind::Numbers | Kind::Activation));
        self.data[buf.0 as usize].write(0, numbers)
    }

    /// Fills every buffer with NaN, so that what a pass fails to write is seen.
    pub fn poison(&mut self) -> Result<(), Error> {
        self.data.iter_mut().try_for_each(|memory| memory.fill(0xff))?;
        // A device's rounded rows are padded with zeros that no kernel writes.
        match self.beside {
            Some(_) => Ok(()),
            None => self.rounded.iter_mut().try_for_each(|memory| memory.fill(0xff)),
        }
    }

    fn kind(&self, buf: Buf) -> Kind {
        self.plan.buffers[buf.0 as usize].kind
    }
}
