//! The recurrent part of a sequence: the anchors its next rows start from, and the tape of rows since.

use super::{Other, writable};
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
    spare: Spare,
}

/// Memory of an anchor no longer needed, kept for the next one. No part of the state.
#[derive(Debug, Default)]
struct Spare(Option<Memory>);

impl Clone for Spare {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl PartialEq for Spare {
    fn eq(&self, _: &Self) -> bool {
        true
    }
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

    /// The same over other blocks: what `other` makes of each.
    pub(crate) fn over(&self, other: &mut Other<'_>) -> Result<Self, Error> {
        Ok(Self {
            layout: self.layout,
            anchor: self.anchor.as_ref().map(&mut *other).transpose()?,
            older: self.older.as_ref().map(&mut *other).transpose()?,
            tape: self.tape.as_ref().map(&mut *other).transpose()?,
            spare: Spare::default(),
        })
    }

    /// Writes the rows of a path and folds the anchors that its end makes due.
    pub(crate) fn commit(
        &mut self,
        backend: &mut dyn Backend,
        arena: &Arena,
        path: CommitPath<'_>,
    ) -> Result<(), Error> {
        if self.tape.is_none() {
            self.tape = Some(Arc::new(backend.memory(4 * self.layout.tape_len())?));
        }
        let end = path.position + path.rows.len();
        let newest = |tokens: usize| tokens / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let (before, after) = (newest(path.position), newest(end));
        if after > before {
            self.fold(backend, arena, path, before, after)?;
        } else {
            let tape = writable(self.tape.as_mut().expect("just made"))?;
            backend.commit_recurrent(
                arena,
                path,
                RecurrentCommit { base: None, anchors: Vec::new(), tape },
            )?;
        }
        if anchor_of(end) >= after
            && let Some(older) = self.older.take()
        {
            self.spare = Spare(Arc::try_unwrap(older).ok());
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
        let fresh = || backend.memory(4 * self.layout.anchor_len());
        let mut anchor = match self.spare.0.take() {
            Some(spare) => spare,
            None => fresh()?,
        };
        let mut older = if older_at > before { Some(fresh()?) } else { None };
        let tape = writable(self.tape.as_mut().expect("made before"))?;
        let base = self.anchor.clone();
        let mut anchors = vec![(after, &mut anchor)];
        anchors.extend(older.as_mut().map(|m| (older_at, m)));
        backend.commit_recurrent(arena, path, RecurrentCommit { base: base.as_deref(), anchors, tape })?;
        self.anchor = Some(Arc::new(anchor));
        self.older = if older_at == before { base } else { older.map(Arc::new) };
        Ok(())
    }
}
