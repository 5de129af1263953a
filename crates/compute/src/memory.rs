//! Blocks of bytes that weights, activations and sequence state live in: of the host, zeroed and aligned to a cache
//! line, or of a device.

use crate::{Error, cuda::DeviceMemory};
use bytemuck::{Pod, Zeroable};
use std::borrow::Cow;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// An owned block of bytes.
#[derive(Clone)]
pub struct Memory {
    store: Store,
    len: usize,
}

#[derive(Clone)]
enum Store {
    Host(Vec<Line>),
    Device(DeviceMemory),
}

impl Memory {
    /// A block of `len` zero bytes of the host, aligned to 64.
    pub fn zeroed(len: usize) -> Self {
        Self { store: Store::Host(vec![Line([0; 64]); len.div_ceil(64)]), len }
    }

    /// A block of a device.
    pub(crate) fn of_device(memory: DeviceMemory) -> Self {
        let len = memory.len();
        Self { store: Store::Device(memory), len }
    }

    /// Bytes in the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A block of the host as a slice of plain numbers.
    pub fn slice<T: Pod>(&self) -> &[T] {
        match &self.store {
            Store::Host(lines) => bytemuck::cast_slice(&bytemuck::cast_slice::<Line, u8>(lines)[..self.len]),
            Store::Device(_) => panic!("memory of a device is no slice"),
        }
    }

    /// A block of the host as a writable slice of plain numbers.
    pub fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        match &mut self.store {
            Store::Host(lines) => {
                bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<Line, u8>(lines)[..self.len])
            }
            Store::Device(_) => panic!("memory of a device is no slice"),
        }
    }

    /// `count` numbers from number `first` on; copied where the block is a device's.
    pub fn read<T: Pod>(&self, first: usize, count: usize) -> Cow<'_, [T]> {
        match &self.store {
            Store::Host(_) => Cow::Borrowed(&self.slice()[first..first + count]),
            Store::Device(memory) => {
                let mut numbers = vec![T::zeroed(); count];
                memory.read(first * size_of::<T>(), bytemuck::cast_slice_mut(&mut numbers));
                Cow::Owned(numbers)
            }
        }
    }

    /// Writes numbers from number `first` on.
    pub fn write<T: Pod>(&mut self, first: usize, numbers: &[T]) {
        match &mut self.store {
            Store::Host(_) => self.slice_mut()[first..first + numbers.len()].copy_from_slice(numbers),
            Store::Device(memory) => memory.write(first * size_of::<T>(), bytemuck::cast_slice(numbers)),
        }
    }

    /// Sets every byte.
    pub fn fill(&mut self, byte: u8) {
        match &mut self.store {
            Store::Host(_) => self.slice_mut::<u8>().fill(byte),
            Store::Device(memory) => memory.fill(byte),
        }
    }

    /// Copies `len` bytes of another block of the same kind.
    pub fn copy_from(&mut self, at: usize, other: &Self, from: usize, len: usize) -> Result<(), Error> {
        match (&mut self.store, &other.store) {
            (Store::Device(to), Store::Device(other)) => to.copy_from(at, other, from, len),
            _ => {
                self.slice_mut::<u8>()[at..at + len].copy_from_slice(&other.slice()[from..from + len]);
                Ok(())
            }
        }
    }

    /// A copy in memory of its own, of the same kind.
    pub fn duplicate(&self) -> Result<Self, Error> {
        match &self.store {
            Store::Host(_) => Ok(self.clone()),
            Store::Device(memory) => Ok(Self::of_device(memory.duplicate()?)),
        }
    }

    /// A copy in the host's memory.
    pub fn to_host(&self) -> Result<Self, Error> {
        let Store::Device(memory) = &self.store else { return Ok(self.clone()) };
        let mut host = Self::zeroed(self.len);
        memory.fetch(host.slice_mut())?;
        Ok(host)
    }

    pub(crate) fn device(&self) -> Option<&DeviceMemory> {
        match &self.store {
            Store::Host(_) => None,
            Store::Device(memory) => Some(memory),
        }
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.read::<u8>(0, self.len) == other.read::<u8>(0, self.len)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}
