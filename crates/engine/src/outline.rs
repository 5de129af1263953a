//! A sequence without its memory: what blocks it is made of. It is plain numbers, so it can be
//! written down, and what was read from a file is held against the model before anything else is.

use crate::state::{DraftState, KvPages};
use crate::{Error, Sequence};
use compute::{Memory, PAGE_TOKENS};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a sequence is put together from blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outline {
    committed: usize,
    kv: Pages,
    /// By drafter; none of one that is not asked.
    drafts: Vec<Option<DraftOutline>>,
}

/// Pages of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pages {
    first: usize,
    count: usize,
}

/// What a drafter keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftOutline {
    committed: usize,
    caches: Vec<Pages>,
    /// Rows that wait to be taken in.
    pending: usize,
    /// The tokens after them.
    next_tokens: Vec<u32>,
}

impl Pages {
    fn of(pages: &KvPages) -> Self {
        let (first, kept) = pages.kept();
        Self { first, count: kept.len() }
    }

    /// That they reach from what a later row may see to the last of so many tokens.
    fn check(self, tokens: usize, window: Option<usize>) -> Result<(), Error> {
        let seen = window.map_or(0, |window| (tokens + 1).saturating_sub(window) / PAGE_TOKENS);
        let end = self.first.checked_add(self.count);
        match self.first <= seen && end == Some(tokens.div_ceil(PAGE_TOKENS)) {
            true => Ok(()),
            false => Err(Error::Misfit("pages are missing")),
        }
    }
}

impl Outline {
    /// That of a sequence.
    pub(crate) fn of(sequence: &Sequence) -> Self {
        let draft = |draft: &DraftState| DraftOutline {
            committed: draft.committed,
            caches: draft.caches.iter().map(|(pages, _)| Pages::of(pages)).collect(),
            pending: draft.pending.len(),
            next_tokens: draft.next_tokens.clone(),
        };
        Self {
            committed: sequence.committed,
            kv: Pages::of(&sequence.kv),
            drafts: sequence.drafts.iter().map(|d| d.as_ref().map(draft)).collect(),
        }
    }

    /// Tokens that led to the state.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// How many of its first blocks are pages that lie far in a sequence of the kind of `blank`.
    pub(crate) fn far_pages(&self, blank: &Sequence) -> usize {
        blank.kv.far_of(self.kv.count, self.committed)
    }

    /// Bytes of each of its blocks, in their order, where it is a state of the kind that `blank` is
    /// an empty one of, after `tokens`. Nothing is allocated by a count that was not checked.
    pub fn blocks(
        &self,
        blank: &Sequence,
        tokens: &[u32],
        vocab: usize,
    ) -> Result<Vec<usize>, Error> {
        let owned = self.owned_blocks(blank, tokens, vocab)?;
        Ok(owned.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// The same with the drafter that each is of; of none, where it is the target's.
    pub(crate) fn owned_blocks(
        &self,
        blank: &Sequence,
        tokens: &[u32],
        vocab: usize,
    ) -> Result<Vec<(Option<usize>, usize)>, Error> {
        if self.committed != tokens.len() || tokens.is_empty() {
            return Err(Error::Misfit("it is one of other tokens"));
        }
        let is_token = |token: &u32| (*token as usize) < vocab;
        if !tokens.iter().all(is_token) {
            return Err(Error::Misfit("a token is not in the vocabulary"));
        }
        self.kv.check(self.committed, None)?;
        let mut blocks = vec![blank.kv.page_bytes(); self.kv.count];
        blocks.extend(blank.recurrent.bytes_after(self.committed).into_iter().flatten());
        if self.drafts.len() != blank.drafts.len() {
            return Err(Error::Misfit("there are other drafters"));
        }
        let mut owned: Vec<_> = blocks.into_iter().map(|bytes| (None, bytes)).collect();
        for (drafter, (draft, blank)) in self.drafts.iter().zip(&blank.drafts).enumerate() {
            match (draft, blank) {
                (None, None) => {}
                (Some(draft), Some(blank)) => {
                    if !draft.next_tokens.iter().all(is_token) {
                        return Err(Error::Misfit("a token is not in the vocabulary"));
                    }
                    let mut blocks = Vec::new();
                    draft.blocks(self.committed, blank, &mut blocks)?;
                    owned.extend(blocks.into_iter().map(|bytes| (Some(drafter), bytes)));
                }
                _ => return Err(Error::Misfit("other drafters are asked")),
            }
        }
        Ok(owned)
    }

    /// The sequence that these blocks are; they are as many as [`Self::blocks`] says.
    pub(crate) fn assemble(
        &self,
        blank: &Sequence,
        mut blocks: impl Iterator<Item = Arc<Memory>>,
    ) -> Sequence {
        let kv = blank.kv.with(self.kv.first, blocks.by_ref().take(self.kv.count).collect());
        let there = blank.recurrent.bytes_after(self.committed);
        let recurrent = blank.recurrent.with(there.map(|bytes| bytes.and_then(|_| blocks.next())));
        let mut draft = |(outline, blank): (&Option<DraftOutline>, &Option<DraftState>)| {
            let (outline, blank) = (outline.as_ref()?, blank.as_ref()?);
            Some(outline.assemble(blank, &mut blocks))
        };
        let drafts = self.drafts.iter().zip(&blank.drafts).map(&mut draft).collect();
        Sequence { committed: self.committed, kv, recurrent, drafts }
    }
}

impl DraftOutline {
    fn blocks(
        &self,
        committed: usize,
        blank: &DraftState,
        blocks: &mut Vec<usize>,
    ) -> Result<(), Error> {
        let rows = self.committed.checked_add(self.pending);
        if rows.is_none_or(|rows| rows > committed) || self.next_tokens.len() > self.pending {
            return Err(Error::Misfit("a drafter has read more than there is"));
        }
        if self.caches.len() != blank.caches.len() {
            return Err(Error::Misfit("a drafter has other caches"));
        }
        for (pages, (blank, window)) in self.caches.iter().zip(&blank.caches) {
            pages.check(self.committed, *window)?;
            blocks.extend(std::iter::repeat_n(blank.page_bytes(), pages.count));
        }
        let waiting = blank.pending.bytes_of(self.pending);
        let waiting = waiting.ok_or(Error::Misfit("a drafter has read more than there is"))?;
        blocks.extend(Some(waiting).filter(|bytes| *bytes > 0));
        Ok(())
    }

    fn assemble(
        &self,
        blank: &DraftState,
        blocks: &mut impl Iterator<Item = Arc<Memory>>,
    ) -> DraftState {
        let cache = |(pages, (blank, window)): (&Pages, &(KvPages, Option<usize>))| {
            (blank.with(pages.first, blocks.by_ref().take(pages.count).collect()), *window)
        };
        let caches = self.caches.iter().zip(&blank.caches).map(cache).collect();
        let waits = blank.pending.bytes_of(self.pending).is_some_and(|bytes| bytes > 0);
        let waiting = if waits { blocks.next() } else { None };
        DraftState {
            committed: self.committed,
            caches,
            pending: blank.pending.with(self.pending, waiting),
            next_tokens: self.next_tokens.clone(),
            written: blank.written.clone(),
        }
    }
}
