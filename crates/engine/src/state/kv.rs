//! Keys and values in pages that grow with the text. Where not all of a text's are to lie near, the
//! oldest are put aside into the host's memory: they are never written again, and passes read them
//! there.

use super::{MapBlock, Spare, together, writable};
use crate::Error;
use crate::stow::Copies;
use compute::{Arena, Backend, CommitPath, KvCommit, KvLayout, Memory, PAGE_TOKENS, PageTable};
use std::sync::Arc;

/// The pages of one cache of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KvPages {
    layout: KvLayout,
    /// Number of the first page kept.
    first: usize,
    pages: Vec<Arc<Memory>>,
    /// How many of them lie near at most, those that a commit adds included.
    near: usize,
    spare: Spare,
}

impl KvPages {
    pub(crate) fn new(layout: KvLayout) -> Self {
        Self { layout, first: 0, pages: Vec::new(), near: usize::MAX, spare: Spare::default() }
    }

    /// The same of which the pages of the newest `tokens` alone lie near.
    pub(crate) fn near(self, tokens: usize) -> Self {
        Self { near: tokens.div_ceil(PAGE_TOKENS), ..self }
    }

    pub(crate) fn table(&self) -> PageTable<'_> {
        PageTable { first_page: self.first, pages: self.pages.iter().map(|p| &**p).collect() }
    }

    pub(crate) fn layout(&self) -> KvLayout {
        self.layout
    }

    /// The same in other blocks: what `map` makes of each.
    pub(crate) fn map_blocks(&self, map: &mut MapBlock<'_>) -> Result<Self, Error> {
        Ok(self.with(self.first, self.pages.iter().map(map).collect::<Result<_, _>>()?))
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
        Self { layout: self.layout, first, pages, near: self.near, spare: Spare::default() }
    }

    /// How many of `count` pages are put aside, of a text that ends at `position`: whole ones.
    pub(crate) fn far_of(&self, count: usize, position: usize) -> usize {
        count.saturating_sub(self.near).min(position / PAGE_TOKENS)
    }

    /// Lets go of pages that lie wholly before `position`.
    pub(crate) fn forget(&mut self, position: usize) {
        let gone = (position / PAGE_TOKENS).saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(..gone);
        self.first += gone;
    }

    /// Sets aside what a commit of `rows` rows behind `position` needs. Old pages that another text
    /// has `put_aside` are shared with it there, as they were here.
    pub(crate) fn reserve(
        &mut self,
        backend: &dyn Backend,
        put_aside: &mut Copies,
        position: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let pages = (position + rows).div_ceil(PAGE_TOKENS);
        let far = self.far_of(pages, position).saturating_sub(self.first).min(self.pages.len());
        for page in self.pages[..far].iter_mut().filter(|page| !page.is_far()) {
            match put_aside.of(page, |page| Ok(backend.far_memory(page)?)) {
                Ok(far) => *page = far,
                // They stay as long as there is room here.
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error),
            }
        }
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
