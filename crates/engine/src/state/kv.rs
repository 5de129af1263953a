//! Keys and values in pages that grow with the text.

use super::{MapBlock, Spare, together, writable};
use crate::Error;
use compute::{Arena, Backend, CommitPath, KvCommit, KvLayout, Memory, PAGE_TOKENS, PageTable};
use std::sync::Arc;

/// The pages of one cache of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KvPages {
    layout: KvLayout,
    /// Number of the first page kept.
    first: usize,
    pages: Vec<Arc<Memory>>,
    spare: Spare,
}

impl KvPages {
    pub(crate) fn new(layout: KvLayout) -> Self {
        Self { layout, first: 0, pages: Vec::new(), spare: Spare::default() }
    }

    pub(crate) fn table(&self) -> PageTable<'_> {
        PageTable { first_page: self.first, pages: self.pages.iter().map(|p| &**p).collect() }
    }

    /// The same in other blocks: what `map` makes of each.
    pub(crate) fn map_blocks(&self, map: &mut MapBlock<'_>) -> Result<Self, Error> {
        let pages = self.pages.iter().map(map).collect::<Result<_, _>>()?;
        Ok(Self { layout: self.layout, first: self.first, pages, spare: Spare::default() })
    }

    /// The number of the first page kept, and those there are.
    pub(crate) fn kept(&self) -> (usize, &[Arc<Memory>]) {
        (self.first, &self.pages)
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.layout.page_bytes()
    }

    /// A cache of the same kind with these pages.
    pub(crate) fn with(&self, first: usize, pages: Vec<Arc<Memory>>) -> Self {
        Self { layout: self.layout, first, pages, spare: Spare::default() }
    }

    /// Lets go of pages that lie wholly before `position`.
    pub(crate) fn forget(&mut self, position: usize) {
        let gone = (position / PAGE_TOKENS).saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(..gone);
        self.first += gone;
    }

    /// Sets aside what a commit of `rows` rows behind `position` needs.
    pub(crate) fn reserve(
        &mut self,
        backend: &dyn Backend,
        position: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let pages = (position + rows).div_ceil(PAGE_TOKENS);
        let missing = pages.saturating_sub(self.first + self.pages.len());
        self.spare.reserve(backend, missing, self.layout.page_bytes())?;
        let shared = (position / PAGE_TOKENS).saturating_sub(self.first).min(self.pages.len());
        self.pages[shared..].iter_mut().try_for_each(|page| writable(backend, page).map(drop))
    }

    /// The pages that a commit of a path writes; those shared with a snapshot are copied first.
    pub(crate) fn for_commit<'a>(
        &'a mut self,
        backend: &dyn Backend,
        path: CommitPath<'a>,
    ) -> Result<KvCommit<'a>, Error> {
        let end = path.position + path.rows.len();
        while self.first + self.pages.len() < end.div_ceil(PAGE_TOKENS) {
            self.pages.push(Arc::new(self.spare.take(backend, self.layout.page_bytes())?));
        }
        let first_page = path.position / PAGE_TOKENS;
        let pages = self.pages[first_page - self.first..].iter_mut();
        let pages: Result<Vec<&mut Memory>, Error> =
            pages.map(|page| writable(backend, page)).collect();
        Ok(KvCommit { path, first_page, pages: pages? })
    }
}

/// Writes the rows of paths to the pages of several texts, all of the same cache.
pub(crate) fn commit_pages(
    backend: &mut dyn Backend,
    arena: &Arena,
    cache: usize,
    texts: Vec<(&mut KvPages, CommitPath<'_>)>,
) -> Vec<Result<(), Error>> {
    let prepared = texts.into_iter().map(|(pages, path)| pages.for_commit(backend, path)).collect();
    together(prepared, |commits| backend.commit_kv(arena, cache, commits))
}
