//! The recurrent part of a sequence: the anchors its next rows start from, and the tape of rows since.

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
    tape: Arc<Memory>,
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
        let tape = Arc::new(Memory::zeroed(4 * layout.tape_len()));
        Self { layout, anchor: None, older: None, tape, spare: Spare::default() }
    }

    pub(crate) fn anchor(&self) -> Option<&Memory> {
        self.anchor.as_deref()
    }

    pub(crate) fn older(&self) -> Option<&Memory> {
        self.older.as_deref()
    }

    pub(crate) fn tape(&self) -> &Memory {
        &self.tape
    }

    pub(crate) fn unshared(&self) -> Self {
        let copy = |m: &Arc<Memory>| Arc::new((**m).clone());
        Self {
            layout: self.layout,
            anchor: self.anchor.as_ref().map(copy),
            older: self.older.as_ref().map(copy),
            tape: copy(&self.tape),
            spare: Spare::default(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let anchors = self.anchor.iter().chain(&self.older).count();
        anchors * 4 * self.layout.anchor_len() + self.tape.len()
    }

    /// Writes the rows of a path and folds the anchors that its end makes due.
    pub(crate) fn commit(&mut self, backend: &mut dyn Backend, arena: &Arena, path: CommitPath<'_>) {
        let end = path.position + path.rows.len();
        let newest = |tokens: usize| tokens / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let (before, after) = (newest(path.position), newest(end));
        if after > before {
            self.fold(backend, arena, path, before, after);
        } else {
            let state =
                RecurrentCommit { base: None, anchors: Vec::new(), tape: Arc::make_mut(&mut self.tape) };
            backend.commit_recurrent(arena, path, state);
        }
        if anchor_of(end) >= after
            && let Some(older) = self.older.take()
        {
            self.spare = Spare(Arc::try_unwrap(older).ok());
        }
    }

    /// A commit that moves the newest anchor from position `before` to `after`.
    fn fold(
        &mut self,
        backend: &mut dyn Backend,
        arena: &Arena,
        path: CommitPath<'_>,
        before: usize,
        after: usize,
    ) {
        let base = self.anchor.take();
        let older_at = after - ANCHOR_TOKENS;
        let fresh = || Memory::zeroed(4 * self.layout.anchor_len());
        let mut anchor = self.spare.0.take().unwrap_or_else(fresh);
        let mut older = (older_at > before).then(fresh);
        let mut anchors = vec![(after, &mut anchor)];
        anchors.extend(older.as_mut().map(|m| (older_at, m)));
        let state = RecurrentCommit { base: base.as_deref(), anchors, tape: Arc::make_mut(&mut self.tape) };
        backend.commit_recurrent(arena, path, state);
        self.anchor = Some(Arc::new(anchor));
        self.older = if older_at == before { base } else { older.map(Arc::new) };
    }
}
