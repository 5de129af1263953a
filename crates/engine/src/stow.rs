//! States that wait in the host's memory while a device's is short. Blocks that snapshots share are
//! copied once and stay shared there; what is fetched takes the block it was copied from where that
//! one is still on the device. Pages that were put aside lie there already and stay.

use crate::backends::Home;
use crate::propose::Slot;
use crate::{Engine, Error, Generation, Sequence, StateBlock};
use compute::Memory;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A sequence in the host's memory: no pass can read it there.
#[derive(Clone, Debug, PartialEq)]
pub struct Stowed(Sequence);

impl Stowed {
    /// The blocks of the host's memory it lies in.
    pub fn blocks(&self) -> Vec<StateBlock> {
        self.0.blocks()
    }
}

/// Which block is a copy of which. A block that is written is another block from then on: the
/// reference kept here has `state::writable` copy it, however many others there are.
#[derive(Default)]
pub(crate) struct Copies {
    /// By address of a block: itself, which keeps the address from being given to another, and its
    /// copy elsewhere.
    pairs: HashMap<usize, (Weak<Memory>, Weak<Memory>)>,
    /// Pairs at which those with a block that is gone are let go of.
    crowded: usize,
}

impl Copies {
    /// The block that has the bytes of `block` elsewhere: the one there is, or what `make` makes.
    pub(crate) fn of(
        &mut self,
        block: &Arc<Memory>,
        make: impl FnOnce(&Memory) -> Result<Memory, Error>,
    ) -> Result<Arc<Memory>, Error> {
        if block.is_far() {
            return Ok(Arc::clone(block));
        }
        let known = self.pairs.get(&address(block));
        if let Some(copy) = known.and_then(|(_, copy)| copy.upgrade()) {
            return Ok(copy);
        }
        let copy = Arc::new(make(block)?);
        let (here, there) = (Arc::downgrade(block), Arc::downgrade(&copy));
        self.pairs.insert(address(&copy), (there.clone(), here.clone()));
        self.pairs.insert(address(block), (here, there));
        if self.pairs.len() > self.crowded {
            self.pairs.retain(|_, (one, other)| one.strong_count() > 0 && other.strong_count() > 0);
            self.crowded = 2 * self.pairs.len() + 64;
        }
        Ok(copy)
    }
}

fn address(block: &Arc<Memory>) -> usize {
    Arc::as_ptr(block) as usize
}

impl Engine {
    /// A copy of a sequence in the host's memory.
    pub fn stow(&mut self, sequence: &Sequence) -> Result<Stowed, Error> {
        let copies = &mut self.copies;
        let stowed = spared(&self.drafters, sequence, |sequence| {
            sequence.map_blocks(&mut |_, block| copies.of(block, |block| Ok(block.to_host()?)))
        });
        Ok(Stowed(stowed?))
    }

    /// Moves the state of a text to the host's memory: it cannot go on until it is brought back.
    pub fn put_away(&mut self, text: &mut Generation) -> Result<Stowed, Error> {
        let stowed = self.stow(&text.sequence)?;
        text.sequence = self.sequence();
        Ok(stowed)
    }

    /// Brings the state of a text back; it goes on as if it had never been away.
    pub fn bring_back(&mut self, text: &mut Generation, stowed: &Stowed) -> Result<(), Error> {
        text.sequence = self.fetch(stowed)?;
        Ok(())
    }

    /// The sequence where passes can read it.
    pub fn fetch(&mut self, stowed: &Stowed) -> Result<Sequence, Error> {
        let (copies, backends, drafters) = (&mut self.copies, &self.backends, &self.drafters);
        spared(drafters, &stowed.0, |sequence| {
            sequence.map_blocks(&mut |drafter, block| {
                let home = drafter.map_or(Home::Target, |drafter| drafters[drafter].home());
                copies.of(block, |block| Ok(backends.of(home).memory_with(block)?))
            })
        })
    }
}

/// What `copy` makes of a sequence; without what a drafter on a backend of its own keeps, where
/// that cannot be copied and not for want of room, which others can make.
fn spared(
    drafters: &[Slot],
    sequence: &Sequence,
    mut copy: impl FnMut(&Sequence) -> Result<Sequence, Error>,
) -> Result<Sequence, Error> {
    let elsewhere = drafters.iter().position(|slot| slot.home() == Home::Own);
    match (copy(sequence), elsewhere) {
        (Err(error), Some(drafter)) if !error.is_out_of_memory() => {
            let mut left = sequence.clone();
            left.leave_draft(drafter);
            copy(&left)
        }
        (copied, _) => copied,
    }
}
