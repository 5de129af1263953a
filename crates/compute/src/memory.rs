//! Blocks of bytes that weights, activations and sequence state live in: of the host, zeroed and
//! aligned to a cache line, or of a device, whose backend brings the type.

use crate::{Error, budget::Share};
use bytemuck::{Pod, Zeroable};
use std::any::Any;
use std::borrow::Cow;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A block of a device's memory, as far as those who know nothing of the device use it. Every call
/// can fail, because a device can be lost between any two of them.
pub trait DeviceBlock: Any + Send + Sync {
    /// Bytes in the block.
    fn len(&self) -> usize;

    /// Whether the block holds nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `at` on to the host, after everything that was asked of the device before.
    fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error>;

    /// Copies bytes of the host to `at`.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error>;

    /// Sets every byte.
    fn fill(&mut self, byte: u8) -> Result<(), Error>;

    /// Copies `len` bytes of another block of the same device.
    fn copy_from(
        &mut self,
        at: usize,
        other: &dyn DeviceBlock,
        from: usize,
        len: usize,
    ) -> Result<(), Error>;

    /// A copy in memory of its own.
    fn duplicate(&self) -> Result<Box<dyn DeviceBlock>, Error>;
}

/// An owned block of bytes.
pub struct Memory {
    store: Store,
    len: usize,
    /// Its share of a budget, where it counts towards one.
    share: Option<Share>,
    /// Whether it was put aside into the host's memory, where passes go on reading it.
    far: bool,
}

enum Store {
    Host(Vec<Line>),
    Device(Box<dyn DeviceBlock>),
}

impl Memory {
    /// A block of `len` zero bytes of the host, aligned to 64.
    pub fn zeroed(len: usize) -> Self {
        let lines = vec![Line([0; 64]); len.div_ceil(64)];
        Self { store: Store::Host(lines), len, share: None, far: false }
    }

    /// A block of a device.
    pub fn of_device(block: Box<dyn DeviceBlock>) -> Self {
        let len = block.len();
        Self { store: Store::Device(block), len, share: None, far: false }
    }

    /// The same block, which holds a share of a budget from now on.
    pub(crate) fn holding(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
    }

    /// The same block, put aside: see [`Backend::far_memory`](crate::Backend::far_memory).
    pub(crate) fn put_aside(self) -> Self {
        Self { far: true, ..self }
    }

    /// Whether it was put aside.
    pub fn is_far(&self) -> bool {
        self.far
    }

    /// Bytes in the block.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the block holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it lies in a device's memory.
    pub fn is_on_device(&self) -> bool {
        matches!(self.store, Store::Device(_))
    }

    /// A block of the host as a slice of plain numbers.
    pub fn slice<T: Pod>(&self) -> &[T] {
        match &self.store {
            Store::Host(lines) => {
                bytemuck::cast_slice(&bytemuck::cast_slice::<Line, u8>(lines)[..self.len])
            }
            Store::Device(_) => panic!("memory of a device is no slice"),
        }
    }

    /// A block of the host as a writable slice of plain numbers.
    pub fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        match &mut self.store {
            Store::Host(lines) => bytemuck::cast_slice_mut(
                &mut bytemuck::cast_slice_mut::<Line, u8>(lines)[..self.len],
            ),
            Store::Device(_) => panic!("memory of a device is no slice"),
        }
    }

    /// `count` numbers from number `first` on; copied where the block is a device's.
    pub fn read<T: Pod>(&self, first: usize, count: usize) -> Result<Cow<'_, [T]>, Error> {
        match &self.store {
            Store::Host(_) => Ok(Cow::Borrowed(&self.slice()[first..first + count])),
            Store::Device(block) => {
                let mut numbers = vec![T::zeroed(); count];
                block.read(first * size_of::<T>(), bytemuck::cast_slice_mut(&mut numbers))?;
                Ok(Cow::Owned(numbers))
            }
        }
    }

    /// Writes numbers from number `first` on.
    pub fn write<T: Pod>(&mut self, first: usize, numbers: &[T]) -> Result<(), Error> {
        match &mut self.store {
            Store::Host(_) => {
                self.slice_mut()[first..first + numbers.len()].copy_from_slice(numbers);
                Ok(())
            }
            Store::Device(block) => {
                block.write(first * size_of::<T>(), bytemuck::cast_slice(numbers))
            }
        }
    }

    /// Sets every byte.
    pub fn fill(&mut self, byte: u8) -> Result<(), Error> {
        match &mut self.store {
            Store::Host(_) => {
                self.slice_mut::<u8>().fill(byte);
                Ok(())
            }
            Store::Device(block) => block.fill(byte),
        }
    }

    /// Copies `len` bytes of another block of the same kind.
    pub fn copy_from(
        &mut self,
        at: usize,
        other: &Self,
        from: usize,
        len: usize,
    ) -> Result<(), Error> {
        match (&mut self.store, &other.store) {
            (Store::Device(to), Store::Device(other)) => to.copy_from(at, &**other, from, len),
            _ => {
                self.slice_mut::<u8>()[at..at + len]
                    .copy_from_slice(&other.slice()[from..from + len]);
                Ok(())
            }
        }
    }

    /// A copy in memory of its own, of the same kind and the same budget.
    pub fn duplicate(&self) -> Result<Self, Error> {
        let another = |share: &Share| share.another("a copy of a sequence's state");
        let share = self.share.as_ref().map(another).transpose()?;
        let store = match &self.store {
            Store::Host(lines) => Store::Host(lines.clone()),
            Store::Device(block) => Store::Device(block.duplicate()?),
        };
        Ok(Self { store, len: self.len, share, far: false })
    }

    /// A copy in the host's memory, which counts towards no budget.
    pub fn to_host(&self) -> Result<Self, Error> {
        let mut host = Self::zeroed(self.len);
        match &self.store {
            Store::Host(lines) => host.store = Store::Host(lines.clone()),
            Store::Device(block) => block.read(0, host.slice_mut())?,
        }
        Ok(host)
    }

    /// The block as its backend made it; none where it is the host's or another backend's.
    pub fn device<B: DeviceBlock>(&self) -> Option<&B> {
        match &self.store {
            Store::Host(_) => None,
            Store::Device(block) => (&**block as &dyn Any).downcast_ref(),
        }
    }
}

impl PartialEq for Memory {
    /// Blocks that cannot be read are like no other.
    fn eq(&self, other: &Self) -> bool {
        let read = |memory: &Self| memory.read::<u8>(0, memory.len).map(Cow::into_owned).ok();
        self.len == other.len && read(self).is_some_and(|bytes| Some(bytes) == read(other))
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}
