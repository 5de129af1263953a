//! The recurrent part of a sequence: the anchors its next rows start from, and the tape of rows
//! since.

use super::{MapBlock, Spare, writable};
use crate::Error;
use compute::{
    ANCHOR_TOKENS, Arena, Backend, CommitPath, Memory, RecurrentCommit, RecurrentLayout, anchor_of,
};
use std::sync::Arc;

/// Anchors and tape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recurrent {
    layout: RecurrentLayout,
    /// State after the newest multiple of 32 tokens; none while that is 0.
    anchor: Option<Arc<Memory>>,
    /// State 32 tokens before it, while rows still start there.
    older: Option<Arc<Memory>>,
    /// None until something is committed.
    tape: Option<Arc<Memory>>,
    /// Anchors to come: one that was let go, or what was reserved.
    spare: Spare,
}

impl Recurrent {
    pub(crate) fn new(layout: RecurrentLayout) -> Self {
        Self { layout, anchor: None, older: None, tape: None, spare: Spare::default() }
    }

    pub(crate) fn anchor(&self) -> Option<&Memory> {
        self.anchor.as_deref()
    }

    pub(crate) fn older(&self) -> Option<&Memory> {
        self.older.as_deref()
    }

    pub(crate) fn tape(&self) -> Option<&Memory> {
        self.tape.as_deref()
    }

    /// The same in other blocks: what `map` makes of each.
    pub(crate) fn map_blocks(&self, map: &mut MapBlock<'_>) -> Result<Self, Error> {
        Ok(Self {
            layout: self.layout,
            anchor: self.anchor.as_ref().map(&mut *map).transpose()?,
            older: self.older.as_ref().map(&mut *map).transpose()?,
            tape: self.tape.as_ref().map(&mut *map).transpose()?,
            spare: Spare::default(),
        })
    }

    /// Sets aside what a commit of `rows` rows behind `position` needs.
    pub(crate) fn reserve(
        &mut self,
        backend: &dyn Backend,
        position: usize,
        rows: usize,
    ) -> Result<(), Error> {
        self.writable_tape(backend)?;
        let (before, after) = (newest(position), newest(position + rows));
        let anchors = (after - before).div_ceil(ANCHOR_TOKENS).min(2);
        self.spare.reserve(backend, anchors, 4 * self.layout.anchor_len())
    }

    /// The tape, made if there is none, to be written.
    fn writable_tape(&mut self, backend: &dyn Backend) -> Result<&mut Memory, Error> {
        if self.tape.is_none() {
            self.tape = Some(Arc::new(backend.memory(4 * self.layout.tape_len())?));
        }
        writable(backend, self.tape.as_mut().expect("just made"))
    }

    /// Writes the rows of a path and folds the anchors that its end makes due.
    pub(crate) fn commit(
        &mut self,
        backend: &mut dyn Backend,
        arena: &Arena,
        path: CommitPath<'_>,
    ) -> Result<(), Error> {
        let end = path.position + path.rows.len();
        let (before, after) = (newest(path.position), newest(end));
        if after > before {
            self.fold(backend, arena, path, before, after)?;
        } else {
            let tape = self.writable_tape(backend)?;
            backend.commit_recurrent(
                arena,
                path,
                RecurrentCommit { base: None, anchors: Vec::new(), tape },
            )?;
        }
        if anchor_of(end) >= after
            && let Some(older) = self.older.take()
        {
            Arc::try_unwrap(older).into_iter().for_each(|memory| self.spare.give(memory));
        }
        Ok(())
    }

    /// A commit that moves the newest anchor from position `before` to `after`.
    fn fold(
        &mut self,
        backend: &mut dyn Backend,
        arena: &Arena,
        path: CommitPath<'_>,
        before: usize,
        after: usize,
    ) -> Result<(), Error> {
        let older_at = after - ANCHOR_TOKENS;
        let bytes = 4 * self.layout.anchor_len();
        let mut anchor = self.spare.take(backend, bytes)?;
        let mut older = match older_at > before {
            true => Some(self.spare.take(backend, bytes)?),
            false => None,
        };
        let base = self.anchor.clone();
        let mut anchors = vec![(after, &mut anchor)];
        anchors.extend(older.as_mut().map(|m| (older_at, m)));
        let tape = self.writable_tape(backend)?;
        backend.commit_recurrent(
            arena,
            path,
            RecurrentCommit { base: base.as_deref(), anchors, tape },
        )?;
        self.anchor = Some(Arc::new(anchor));
        self.older = if older_at == before { base } else { older.map(Arc::new) };
        Ok(())
    }
}

/// The newest position of an anchor after so many tokens.
fn newest(tokens: usize) -> usize {
    tokens / ANCHOR_TOKENS * ANCHOR_TOKENS
}
