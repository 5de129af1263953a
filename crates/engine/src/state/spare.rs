//! Memory set aside for what the next commit writes, so that nothing is allocated between a pass
//! and its commit.

use crate::Error;
use compute::{Backend, Memory};

/// Blocks of one size. They are no part of a state: a snapshot has none of them, and states that
/// differ in them are the same.
#[derive(Debug, Default)]
pub(crate) struct Spare(Vec<Memory>);

impl Spare {
    /// Sets blocks aside until there are `count`.
    pub(crate) fn reserve(
        &mut self,
        backend: &dyn Backend,
        count: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        while self.0.len() < count {
            self.0.push(backend.memory(bytes)?);
        }
        Ok(())
    }

    /// The blocks that `pop` will give, in that order, to be written where they are.
    pub(crate) fn next_blocks(&mut self) -> impl Iterator<Item = &mut Memory> {
        self.0.iter_mut().rev()
    }

    /// A block that was set aside.
    pub(crate) fn pop(&mut self) -> Option<Memory> {
        self.0.pop()
    }

    /// A block that was set aside, or a new one.
    pub(crate) fn take(&mut self, backend: &dyn Backend, bytes: usize) -> Result<Memory, Error> {
        match self.pop() {
            Some(memory) => Ok(memory),
            None => Ok(backend.memory(bytes)?),
        }
    }

    /// Sets a block aside that is no longer needed; one is enough.
    pub(crate) fn give(&mut self, memory: Memory) {
        if self.0.is_empty() {
            self.0.push(memory);
        }
    }
}

impl Clone for Spare {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Spare {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
