//! What a drafter keeps of a sequence, whoever it is: keys and values of its own, and rows of
//! committed tokens that are not in them yet.

use super::{KeptRows, KvPages, MapBlock};
use crate::Error;
use crate::draft::lookup::Written;
use compute::{Backend, KvLayout, Memory, SequenceView};
use std::sync::Arc;

/// The state of one drafter in one sequence. Full layers keep every row, sliding layers as many as
/// their window reaches.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftState {
    /// Rows whose keys and values are in `caches`.
    pub(crate) committed: usize,
    /// One per cache of the drafter's plans, with the window of its layers.
    pub(crate) caches: Vec<(KvPages, Option<usize>)>,
    /// What the target left at committed tokens, to be taken in: [rows, width].
    pub(crate) pending: KeptRows,
    /// The token after each pending row; the newest one's may not be known yet.
    pub(crate) next_tokens: Vec<u32>,
    /// All committed tokens, where they are what it reads.
    pub(crate) written: Written,
}

impl DraftState {
    pub(crate) fn new(layouts: &[(KvLayout, Option<usize>)], width: usize) -> Self {
        let cache = |(layout, window): &(KvLayout, Option<usize>)| (KvPages::new(*layout), *window);
        let caches = layouts.iter().map(cache).collect();
        let (pending, written) = (KeptRows::new(width), Written::default());
        Self { committed: 0, caches, pending, next_tokens: Vec::new(), written }
    }

    /// What a pass reads.
    pub(crate) fn view(&self) -> SequenceView<'_> {
        let caches = self.caches.iter().map(|(pages, _)| pages.table()).collect();
        SequenceView { committed: self.committed, caches, ..Default::default() }
    }

    /// Bytes of the blocks it lies in.
    pub(crate) fn bytes(&self) -> usize {
        let mut bytes = 0;
        let mut count = |block: &Arc<Memory>| {
            bytes += block.len();
            Ok(Arc::clone(block))
        };
        self.map_blocks(&mut count).expect("nothing is allocated");
        bytes
    }

    /// Sets aside what keeping `rows` more rows needs.
    pub(crate) fn reserve(&mut self, backend: &dyn Backend, rows: usize) -> Result<(), Error> {
        self.pending.reserve(backend, rows)
    }

    /// The tokens of the `added` newest pending rows: each but the first follows the one before it.
    pub(crate) fn follow_all(&mut self, added: usize, tokens: impl IntoIterator<Item = u32>) {
        // The first follows the row that waited last, where one does.
        let before = self.pending.len() - added;
        let skip = usize::from(before == self.next_tokens.len());
        self.next_tokens.extend(tokens.into_iter().skip(skip));
    }

    /// The token after the newest pending row is known.
    pub(crate) fn follow(&mut self, token: u32) {
        if self.pending.len() > self.next_tokens.len() {
            self.next_tokens.push(token);
        }
    }

    /// So many rows more are in the caches, the first that were pending, if any were.
    pub(crate) fn take_in(&mut self, count: usize) {
        self.committed += count;
        self.pending.take(count.min(self.pending.len()));
        self.next_tokens.drain(..count.min(self.next_tokens.len()));
        for (pages, window) in &mut self.caches {
            if let Some(window) = window {
                // No later query can see what lies before.
                pages.forget((self.committed + 1).saturating_sub(*window));
            }
        }
    }

    /// The same in other blocks: what `map` makes of each.
    pub(crate) fn map_blocks(&self, map: &mut MapBlock<'_>) -> Result<Self, Error> {
        let mut cache =
            |(pages, window): &(KvPages, Option<usize>)| Ok((pages.map_blocks(map)?, *window));
        let caches = self.caches.iter().map(&mut cache).collect::<Result<_, Error>>()?;
        let pending = self.pending.map_blocks(map)?;
        Ok(Self {
            committed: self.committed,
            caches,
            pending,
            next_tokens: self.next_tokens.clone(),
            written: self.written.clone(),
        })
    }
}
