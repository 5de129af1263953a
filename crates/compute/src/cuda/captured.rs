//! What the backend keeps beside the buffers of an arena: passes in the device's memory and graphs
//! of them.

use super::{graph::Graph, needs::Needs, ops, upload::PassBuffer};
use crate::arena::Arena;
use std::{any::Any, collections::HashMap};

/// What an arena keeps beside its buffers: the passes in device memory, and graphs by rows, chosen
/// ones, sequences and the rows that one has; none of shapes that came only once.
pub(crate) struct Captured {
    /// Of up to `TEXT_ROWS` rows, of more, and of prompts.
    pub(super) small: PassBuffer,
    pub(super) wide: Option<PassBuffer>,
    pub(super) large: Option<PassBuffer>,
    pub(super) graphs: HashMap<[usize; 4], Option<Graph>>,
    /// Of the scratch memory the graphs were captured with.
    pub(super) generation: u64,
    /// What the commit of each cache reads, and of the recurrent state.
    pub(super) commit: ops::commit::Tables,
    pub(super) needs: Needs,
}

impl Captured {
    pub(super) fn of(arena: &Arena) -> &Self {
        arena.beside.as_ref().and_then(|b| b.downcast_ref()).expect("an arena of this device")
    }
}

/// An arena whose graphs are in use while its buffers are read. They come back to it in any case: a
/// pass that fails or panics must not cost the arena what it needs for the next.
pub(super) struct Lent<'a> {
    arena: &'a mut Arena,
    captured: Option<Box<dyn Any + Send + Sync>>,
}

impl<'a> Lent<'a> {
    pub(super) fn of(arena: &'a mut Arena) -> Self {
        let captured = arena.beside.take();
        Self { arena, captured }
    }

    pub(super) fn parts(&mut self) -> (&Arena, &mut Captured) {
        let captured = self.captured.as_mut().and_then(|c| c.downcast_mut());
        (self.arena, captured.expect("an arena of this device"))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.arena.beside = self.captured.take();
    }
}
