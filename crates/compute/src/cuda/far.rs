//! Pages that were put aside: they lie in the host's memory, where kernels of a decode pass read
//! them over the bus: once for up to 128 queries a key head, or for every 16 of them where many
//! texts decode together. A prompt's attention reads its keys many times over, so what it needs of
//! a layer is brought to the device first.

use super::{
    args::Address, block::DeviceMemory, driver::Driver, mapped::MappedMemory, scratch::Scratch,
};
use crate::{
    Error,
    budget::{Budget, Share},
    kv::KvLayout,
    memory::Memory,
    pass::{Pass, Role},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks that were let go of, for whoever needs one of that length next: locking memory takes the
/// system a millisecond for a few megabytes. What is copied into one comes after all that still
/// reads it, since everything happens in the order of one stream.
#[derive(Default)]
pub(crate) struct Shelf {
    blocks: Mutex<Vec<Locked>>,
    /// What all of them may take of the host's memory, those in use included.
    budget: Budget,
}

/// A block with its share of that.
struct Locked {
    memory: MappedMemory,
    _share: Share,
}

impl Shelf {
    /// A copy of a block of the device or of the host.
    pub(crate) fn copy_of(
        self: &Arc<Self>,
        driver: &Arc<Driver>,
        block: &Memory,
    ) -> Result<Memory, Error> {
        let mut far = self.take(driver, block.len())?;
        match block.device::<DeviceMemory>() {
            Some(near) => driver.copy(near.address(), far.memory.address(), block.len())?,
            None => {
                driver.finish()?;
                far.memory.bytes().copy_from_slice(block.slice());
            }
        }
        let far = DeviceMemory::mapped(driver, Shelved { block: Some(far), shelf: self.clone() });
        Ok(Memory::from(far).put_aside())
    }

    /// What all that is put aside may take.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// What more of it may take: the blocks that lie here have their share already.
    pub(crate) fn room(&self) -> usize {
        let idle: usize = self.blocks().iter().map(|block| block.memory.len()).sum();
        self.budget.limit().saturating_sub(self.budget.held()).saturating_add(idle)
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Locked>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block with anything in it.
    fn take(&self, driver: &Arc<Driver>, len: usize) -> Result<Locked, Error> {
        let mut blocks = self.blocks();
        if let Some(found) = blocks.iter().rposition(|block| block.memory.len() == len) {
            return Ok(blocks.swap_remove(found));
        }
        let _share = self.budget.take(len, "older keys and values in the host's memory")?;
        Ok(Locked { memory: MappedMemory::new(driver, len)?, _share })
    }
}

/// A block of a shelf, which goes back there.
pub(crate) struct Shelved {
    block: Option<Locked>,
    shelf: Arc<Shelf>,
}

impl Shelved {
    pub(crate) fn block(&self) -> &MappedMemory {
        &self.block.as_ref().expect("it is there until it is dropped").memory
    }

    pub(crate) fn block_mut(&mut self) -> &mut MappedMemory {
        &mut self.block.as_mut().expect("it is there until it is dropped").memory
    }
}

impl Drop for Shelved {
    fn drop(&mut self) {
        let block = self.block.take();
        self.shelf.blocks().extend(block);
    }
}

/// The pages of a prompt's pass that lie far, as attention reads them: each layer's part of them is
/// brought to the device in turn. A kernel finds a layer so many bytes behind a page's address, so
/// page number i of layer n lies i + n such parts from the beginning, and addresses are the same
/// for all layers.
#[derive(Clone, Default)]
pub(crate) struct Brought {
    /// Where they lie.
    pages: Vec<Address>,
    /// Where they are brought to.
    to: Address,
    /// Bytes of a page's layer.
    part: usize,
}

impl Brought {
    /// Those of a pass, with room for them; none where they are read where they lie, which is slow
    /// and works where the device has no room.
    pub(crate) fn of(pass: &Pass<'_>, layout: Option<&KvLayout>, scratch: &mut Scratch) -> Self {
        let Some(layout) = layout.filter(|_| pass.role == Role::Prompt) else {
            return Self::default();
        };
        let of_target = pass.sequences.iter().filter_map(|view| view.caches.first());
        let far = of_target.flat_map(|table| &table.pages).filter(|page| page.is_far());
        let pages: Vec<Address> = far.map(|page| DeviceMemory::of(page).address()).collect();
        let part = layout.page_bytes() / layout.layers;
        let bytes = (pages.len() + layout.layers) * part;
        if pages.is_empty() || scratch.reserve_pages(bytes).is_err() {
            return Self::default();
        }
        Self { pages, to: scratch.pages.address(), part }
    }

    /// Where kernels are told that far page number `i` of the pass lies, if not where it does.
    pub(crate) fn address(&self, i: usize) -> Option<Address> {
        (i < self.pages.len()).then(|| self.to + (i * self.part) as u64)
    }

    /// Brings a layer's part of all of them.
    pub(crate) fn bring(&self, driver: &Driver, layer: usize) -> Result<(), Error> {
        for (i, page) in self.pages.iter().enumerate() {
            let from = page + (layer * self.part) as u64;
            driver.copy(from, self.to + ((i + layer) * self.part) as u64, self.part)?;
        }
        Ok(())
    }
}
