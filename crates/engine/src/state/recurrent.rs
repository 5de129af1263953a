//! The recurrent part of a sequence: the anchors its next rows start from, and the tape of rows
//! since.

use super::{MapBlock, Spare, together, writable};
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

    /// The anchor, the older one and the tape.
    pub(crate) fn kept(&self) -> [Option<&Arc<Memory>>; 3] {
        [self.anchor.as_ref(), self.older.as_ref(), self.tape.as_ref()]
    }

    /// Bytes of each of them after so many tokens; none of one that is not there then.
    pub(crate) fn bytes_after(&self, tokens: usize) -> [Option<usize>; 3] {
        let (newest, start) = (newest(tokens), anchor_of(tokens));
        let (anchor, tape) = (4 * self.layout.anchor_len(), 4 * self.layout.tape_len());
        [
            (newest > 0).then_some(anchor),
            (start > 0 && start < newest).then_some(anchor),
            (tokens > 0).then_some(tape),
        ]
    }

    /// A state of the same kind with these.
    pub(crate) fn with(&self, [anchor, older, tape]: [Option<Arc<Memory>>; 3]) -> Self {
        Self { layout: self.layout, anchor, older, tape, spare: Spare::default() }
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
        let anchors = ((newest(position + rows) - newest(position)) / ANCHOR_TOKENS).min(2);
        self.spare.reserve(backend, anchors, 4 * self.layout.anchor_len())
    }

    /// The tape, made if there is none, to be written.
    fn writable_tape(&mut self, backend: &dyn Backend) -> Result<&mut Memory, Error> {
        if self.tape.is_none() {
            self.tape = Some(Arc::new(backend.memory(4 * self.layout.tape_len())?));
        }
        writable(backend, self.tape.as_mut().expect("just made"))
    }

    /// What a commit of a path reads and writes: the tape, and a spare block for each anchor that
    /// its end makes due. Nothing of the state changes before `committed`.
    pub(crate) fn for_commit<'a>(
        &'a mut self,
        backend: &dyn Backend,
        path: CommitPath<'a>,
    ) -> Result<RecurrentCommit<'a>, Error> {
        self.reserve(backend, path.position, path.rows.len())?;
        let Self { anchor, tape, spare, .. } = self;
        let anchors = due(path).into_iter().zip(spare.next_blocks()).collect();
        let base = anchor.as_deref();
        let tape = writable(backend, tape.as_mut().expect("it was reserved"))?;
        Ok(RecurrentCommit { path, base, anchors, tape })
    }

    /// The rows of a path and the anchors it made due are written.
    pub(crate) fn committed(&mut self, path: CommitPath<'_>) {
        let (before, end) = (newest(path.position), path.position + path.rows.len());
        let mut fresh = due(path).into_iter().filter_map(|_| self.spare.pop().map(Arc::new));
        if let Some(anchor) = fresh.next() {
            let last = self.anchor.replace(anchor);
            self.older = fresh.next();
            if newest(end) - before == ANCHOR_TOKENS {
                self.older = last;
            }
        }
        if anchor_of(end) >= newest(end)
            && let Some(older) = self.older.take()
        {
            Arc::try_unwrap(older).into_iter().for_each(|memory| self.spare.give(memory));
        }
    }
}

/// Positions of the anchors that the end of a path makes due, newest first: rows may start from the
/// one before the newest as well.
fn due(path: CommitPath<'_>) -> Vec<usize> {
    let (before, after) = (newest(path.position), newest(path.position + path.rows.len()));
    [after, after.saturating_sub(ANCHOR_TOKENS)].into_iter().filter(|at| *at > before).collect()
}

/// Writes the recurrent rows of paths to the states of several texts.
pub(crate) fn commit_states(
    backend: &mut dyn Backend,
    arena: &Arena,
    mut texts: Vec<(&mut Recurrent, CommitPath<'_>)>,
) -> Vec<Result<(), Error>> {
    let prepared = texts.iter_mut().map(|(state, path)| state.for_commit(backend, *path)).collect();
    let done = together(prepared, |commits| backend.commit_recurrent(arena, commits));
    for ((state, path), done) in texts.into_iter().zip(&done) {
        if done.is_ok() {
            state.committed(path);
        }
    }
    done
}

/// The newest position of an anchor after so many tokens.
fn newest(tokens: usize) -> usize {
    tokens / ANCHOR_TOKENS * ANCHOR_TOKENS
}
