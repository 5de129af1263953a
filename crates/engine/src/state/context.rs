//! What a drafter keeps of a sequence: the keys and values of its context, and features that are not in them yet.

use super::KvPages;
use compute::{KvLayout, PageTable};

/// The context of a DFlash drafter. Full layers keep every row, sliding layers as many as their window reaches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Context {
    /// Rows whose keys and values are in `caches`.
    pub(crate) committed: usize,
    /// One per cache of the drafter's plans, with the window of its layers.
    pub(crate) caches: Vec<(KvPages, Option<usize>)>,
    /// Features of committed tokens that wait to be taken in: [rows, taps * hidden].
    pub(crate) pending: Vec<f32>,
}

impl Context {
    pub(crate) fn new(layouts: &[(KvLayout, Option<usize>)]) -> Self {
        let caches = layouts.iter().map(|(layout, window)| (KvPages::new(*layout), *window)).collect();
        Self { committed: 0, caches, pending: Vec::new() }
    }

    pub(crate) fn tables(&self) -> Vec<PageTable<'_>> {
        self.caches.iter().map(|(pages, _)| pages.table()).collect()
    }

    /// Lets go of what no later query can see.
    pub(crate) fn forget(&mut self) {
        for (pages, window) in &mut self.caches {
            if let Some(window) = window {
                pages.forget((self.committed + 1).saturating_sub(*window));
            }
        }
    }

    pub(crate) fn unshared(&self) -> Self {
        let caches = self.caches.iter().map(|(pages, window)| (pages.unshared(), *window)).collect();
        Self { committed: self.committed, caches, pending: self.pending.clone() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.caches.iter().map(|(pages, _)| pages.bytes()).sum::<usize>() + 4 * self.pending.len()
    }
}

/// Rows for the next-token block that are not in its cache yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MtpFeed {
    /// The target's hidden state of the newest committed token, whose successor is not known here: [hidden].
    pub(crate) tail: Vec<f32>,
    /// Hidden states and the tokens after them: [rows, hidden], [rows].
    pub(crate) hidden: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
}

impl MtpFeed {
    /// A committed token and the target's hidden state at it.
    pub(crate) fn push(&mut self, token: u32, hidden: &[f32]) {
        self.follow(token);
        self.tail.extend_from_slice(hidden);
    }

    /// The token after the tail is known.
    pub(crate) fn follow(&mut self, token: u32) {
        if !self.tail.is_empty() {
            self.hidden.append(&mut self.tail);
            self.tokens.push(token);
        }
    }
}
