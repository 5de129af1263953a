//! What the backend keeps beside the buffers of an arena: passes in the device's memory and graphs
//! of them.

use super::{
    Cuda,
    args::TEXT_ROWS,
    far::Brought,
    graph::Graph,
    needs::Needs,
    ops,
    upload::{self, PassBuffer},
};
use crate::{
    Error,
    arena::Arena,
    backend::Backend,
    pass::{Pass, Role},
};
use std::{any::Any, collections::HashMap};

/// Graphs and shapes that came once an arena keeps; when there are more, the latter go, and all
/// where most were graphs.
const MAX_GRAPHS: usize = 256;

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

impl Cuda {
    /// Runs the plan of an arena, by a graph where the same kind of pass came before.
    pub(super) fn run_captured(
        &self,
        arena: &Arena,
        captured: &mut Captured,
        brought: Brought,
        pass: &Pass<'_>,
    ) -> Result<(), Error> {
        let is_small = pass.rows() <= self.decode_rows() && pass.role == Role::Decode;
        let more = if is_small { &mut captured.wide } else { &mut captured.large };
        let buffer = match more {
            Some(more) if !is_small || pass.rows() > TEXT_ROWS => more,
            _ => &mut captured.small,
        };
        if !buffer.fits(pass) {
            let pages = upload::pages_of(pass).next_power_of_two();
            *buffer = PassBuffer::new(&self.driver, buffer.rows(), pages)?;
            captured.graphs.clear();
        }
        buffer.upload(&self.driver, pass, &brought)?;
        let run = self.run_on(arena, buffer.args(pass), brought, pass);
        let launch = || run.execute_all(&arena.plan.ops);
        if self.driver.is_timed()? || !is_small {
            return launch();
        }
        if captured.generation != self.scratch.generation {
            captured.graphs.clear();
            captured.generation = self.scratch.generation;
        }
        if captured.graphs.len() > MAX_GRAPHS {
            // What came only once goes first.
            captured.graphs.retain(|_, graph| graph.is_some());
            if captured.graphs.len() > MAX_GRAPHS / 2 {
                captured.graphs.clear();
            }
        }
        // A pass that folds states of its own is rare and needs another amount of scratch.
        if pass.slots > 0 {
            return launch();
        }
        let key = [pass.rows(), pass.chosen.len(), pass.sequences.len(), run.most_rows];
        match captured.graphs.get(&key) {
            Some(Some(graph)) => self.driver.launch_graph(graph),
            // A shape that came once may never come again, and a capture takes longer than
            // launching all of it. Besides, kernels are loaded when they are first used, which a
            // capture does not allow.
            None => {
                launch()?;
                captured.graphs.insert(key, None);
                Ok(())
            }
            Some(None) => {
                let graph = match self.driver.capture(launch) {
                    Ok(graph) => graph,
                    // A graph takes memory of the driver's own; where it is short the pass runs
                    // without one.
                    Err(Error::OutOfMemory { .. }) => return launch(),
                    Err(error) => return Err(error),
                };
                let launched = self.driver.launch_graph(&graph);
                captured.graphs.insert(key, Some(graph));
                launched
            }
        }
    }
}
