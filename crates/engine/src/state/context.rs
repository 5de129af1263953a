//! What a drafter keeps of a sequence: the keys and values of its context, and features that are
//! not in them yet.

use super::{KeptRows, KvPages, Other};
use crate::Error;
use compute::{KvLayout, SequenceView};

/// The context of a DFlash drafter. Full layers keep every row, sliding layers as many as their
/// window reaches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Context {
    /// Rows whose keys and values are in `caches`.
    pub(crate) committed: usize,
    /// One per cache of the drafter's plans, with the window of its layers.
    pub(crate) caches: Vec<(KvPages, Option<usize>)>,
    /// Features of committed tokens that wait to be taken in: [rows, taps * hidden].
    pub(crate) pending: KeptRows,
}

impl Context {
    pub(crate) fn new(layouts: &[(KvLayout, Option<usize>)], width: usize) -> Self {
        let caches =
            layouts.iter().map(|(layout, window)| (KvPages::new(*layout), *window)).collect();
        Self { committed: 0, caches, pending: KeptRows::new(width) }
    }

    /// What a pass reads.
    pub(crate) fn view(&self) -> SequenceView<'_> {
        let caches = self.caches.iter().map(|(pages, _)| pages.table()).collect();
        SequenceView { committed: self.committed, caches, ..Default::default() }
    }

    /// Lets go of what no later query can see.
    pub(crate) fn forget(&mut self) {
        for (pages, window) in &mut self.caches {
            if let Some(window) = window {
                pages.forget((self.committed + 1).saturating_sub(*window));
            }
        }
    }

    /// The same over other blocks: what `other` makes of each.
    pub(crate) fn over(&self, other: &mut Other<'_>) -> Result<Self, Error> {
        let mut cache =
            |(pages, window): &(KvPages, Option<usize>)| Ok((pages.over(other)?, *window));
        let caches = self.caches.iter().map(&mut cache).collect::<Result<_, Error>>()?;
        Ok(Self { committed: self.committed, caches, pending: self.pending.over(other)? })
    }
}

/// Rows for the next-token block that are not in its cache yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MtpFeed {
    /// The target's hidden states of committed tokens; the newest one's successor may not be known
    /// yet: [rows, hidden].
    pub(crate) hidden: KeptRows,
    /// The tokens after them.
    pub(crate) tokens: Vec<u32>,
}

impl MtpFeed {
    pub(crate) fn new(width: usize) -> Self {
        Self { hidden: KeptRows::new(width), tokens: Vec::new() }
    }

    /// The same over another block: what `other` makes of it.
    pub(crate) fn over(&self, other: &mut Other<'_>) -> Result<Self, Error> {
        Ok(Self { hidden: self.hidden.over(other)?, tokens: self.tokens.clone() })
    }

    /// The tokens whose hidden states were just added.
    pub(crate) fn follow_all(&mut self, added: usize, tokens: impl IntoIterator<Item = u32>) {
        // The first follows the hidden state before it, where there is one; the last one's
        // successor is not known.
        let before = self.hidden.len() - added;
        let skip = usize::from(before == self.tokens.len());
        self.tokens.extend(tokens.into_iter().skip(skip));
    }

    /// The token after the newest hidden state is known.
    pub(crate) fn follow(&mut self, token: u32) {
        if self.hidden.len() > self.tokens.len() {
            self.tokens.push(token);
        }
    }

    /// Lets go of rows that are in the cache.
    pub(crate) fn take(&mut self, count: usize) {
        self.hidden.take(count);
        self.tokens.drain(..count);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.hidden.bytes() + 4 * self.tokens.len()
    }
}
