//! Blocks of bytes that weights, activations and sequence state live in: zeroed, aligned to a cache line.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// An owned block of bytes, aligned to 64.
#[derive(Clone)]
pub struct Memory {
    lines: Vec<Line>,
    len: usize,
}

impl Memory {
    /// A block of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    /// Bytes in the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The block as a slice of plain numbers.
    pub fn slice<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&bytemuck::cast_slice::<Line, u8>(&self.lines)[..self.len])
    }

    /// The block as a writable slice of plain numbers.
    pub fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        let len = self.len;
        bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<Line, u8>(&mut self.lines)[..len])
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.slice::<u8>() == other.slice::<u8>()
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}
