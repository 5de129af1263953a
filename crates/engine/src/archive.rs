//! States on their way to files and back. A sequence is taken apart into an outline and its blocks;
//! a block that lies in a file already is known by its name there and is neither copied nor written
//! again, so that a turn of a long conversation costs what it added.

use crate::backends::Home;
use crate::draft::Reads;
use crate::{Engine, Error, Outline, Sequence};
use compute::Memory;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a block is called where it is kept: a hash of its bytes.
pub type BlockName = [u8; 32];

/// A sequence taken apart.
#[derive(Debug)]
pub struct Archived {
    /// How it is put together.
    pub outline: Outline,
    /// In the outline's order.
    pub blocks: Vec<Arc<ArchivedBlock>>,
}

/// A block of a sequence that is kept elsewhere, or will be. Whoever keeps it says so here, on
/// whichever thread.
#[derive(Debug)]
pub struct ArchivedBlock {
    bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug)]
enum Held {
    /// Bytes of the host's memory that nobody has kept yet.
    Bytes(Arc<Memory>),
    /// It is kept under this name.
    Kept(BlockName),
    /// It could not be kept, or is not there any more.
    Lost,
}

impl ArchivedBlock {
    fn new(bytes: usize, held: Held) -> Arc<Self> {
        Arc::new(Self { bytes, held: Mutex::new(held) })
    }

    fn set(&self, held: Held) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its bytes, until it is kept.
    pub fn memory(&self) -> Option<Arc<Memory>> {
        match &*self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Held::Bytes(memory) => Some(Arc::clone(memory)),
            _ => None,
        }
    }

    /// The name it is kept under.
    pub fn name(&self) -> Option<BlockName> {
        match &*self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Held::Kept(name) => Some(*name),
            _ => None,
        }
    }

    /// It is kept under this name; its bytes are no longer needed.
    pub fn keep(&self, name: BlockName) {
        self.set(Held::Kept(name));
    }

    /// Nobody has it: who wants to keep it copies it again.
    pub fn lose(&self) {
        self.set(Held::Lost);
    }

    fn is_lost(&self) -> bool {
        matches!(*self.held.lock().unwrap_or_else(PoisonError::into_inner), Held::Lost)
    }
}

/// Which blocks of sequences are kept. As with what is stowed, the reference to a block makes
/// whoever writes it write to a copy.
#[derive(Default)]
pub(crate) struct Archive {
    /// By address of a block: itself, and what is known of it.
    known: HashMap<usize, (Weak<Memory>, Arc<ArchivedBlock>)>,
    /// Blocks at which those that are gone are let go of.
    crowded: usize,
}

impl Archive {
    fn add(&mut self, block: &Arc<Memory>, kept: Arc<ArchivedBlock>) {
        self.known.insert(Arc::as_ptr(block) as usize, (Arc::downgrade(block), kept));
        if self.known.len() > self.crowded {
            self.known.retain(|_, (block, _)| block.strong_count() > 0);
            self.crowded = 2 * self.known.len() + 64;
        }
    }

    /// What is known of a block; what nobody keeps is copied to the host's memory, unless it lies
    /// there.
    fn of(&mut self, block: &Arc<Memory>) -> Result<Arc<ArchivedBlock>, Error> {
        let known = self.known.get(&(Arc::as_ptr(block) as usize));
        if let Some((_, known)) = known.filter(|(_, known)| !known.is_lost()) {
            return Ok(Arc::clone(known));
        }
        let host = match block.is_on_device() {
            true => Arc::new(block.to_host()?),
            false => Arc::clone(block),
        };
        let kept = ArchivedBlock::new(block.len(), Held::Bytes(host));
        self.add(block, Arc::clone(&kept));
        Ok(kept)
    }
}

impl Engine {
    /// Takes a sequence apart. What passes read lies in the host's memory or is copied there, but
    /// for blocks that are kept already. One that a drafter has lost its part of is refused: every
    /// text that went on from it would be written without that drafter.
    pub fn archive(&mut self, sequence: &Sequence) -> Result<Archived, Error> {
        let asked = self.sequence().drafts;
        if asked
            .iter()
            .zip(&sequence.drafts)
            .any(|(asked, draft)| asked.is_some() && draft.is_none())
        {
            return Err(Error::Misfit("a drafter's part is missing"));
        }
        let (archive, mut blocks) = (&mut self.archive, Vec::new());
        let (_, pages) = sequence.kv.kept();
        let recurrent = sequence.recurrent.kept();
        for block in pages.iter().chain(recurrent.into_iter().flatten()) {
            blocks.push(archive.of(block)?);
        }
        for draft in sequence.drafts.iter().flatten() {
            for block in draft.caches.iter().flat_map(|(pages, _)| pages.kept().1) {
                blocks.push(archive.of(block)?);
            }
            if let Some(rows) = draft.pending.alone()? {
                blocks.push(ArchivedBlock::new(rows.len(), Held::Bytes(Arc::new(rows))));
            }
        }
        Ok(Archived { outline: Outline::of(sequence), blocks })
    }

    /// Whether budgets have room for such a sequence of these tokens, each for what of it would lie
    /// there. Pages that would be put aside take nothing of any, as far as there is room for them.
    pub fn has_room(&self, outline: &Outline, tokens: &[u32]) -> Result<bool, Error> {
        let blank = self.sequence();
        let blocks = outline.owned_blocks(&blank, tokens, self.model.config().vocab)?;
        let far_room = self.backends.target.far_room() / blank.kv.page_bytes().max(1);
        let (mut at_target, mut own) = (0, 0);
        for (drafter, bytes) in blocks.iter().skip(outline.far_pages(&blank).min(far_room)) {
            match drafter.map_or(Home::Target, |drafter| self.drafters[drafter].home()) {
                Home::Target => at_target += bytes,
                Home::Own => own += bytes,
            }
        }
        let fits = |home: Home, bytes: usize| {
            let budget = self.backends.of(home).budget();
            bytes <= budget.limit().saturating_sub(budget.held())
        };
        Ok(fits(Home::Target, at_target) && (own == 0 || fits(Home::Own, own)))
    }

    /// Puts a sequence of these tokens together again, from blocks as they were kept, with their
    /// names there.
    pub fn revive(
        &mut self,
        outline: &Outline,
        tokens: &[u32],
        blocks: Vec<(BlockName, Memory)>,
    ) -> Result<Sequence, Error> {
        let blank = self.sequence();
        let expected = outline.owned_blocks(&blank, tokens, self.model.config().vocab)?;
        let bytes = expected.iter().map(|(_, bytes)| *bytes);
        if !blocks.iter().map(|(_, block)| block.len()).eq(bytes) {
            return Err(Error::Misfit("its blocks are of other sizes"));
        }
        let (mut revived, far) = (Vec::with_capacity(blocks.len()), outline.far_pages(&blank));
        let mut left = None;
        for (i, ((name, block), (drafter, _))) in blocks.into_iter().zip(expected).enumerate() {
            let kept = ArchivedBlock::new(block.len(), Held::Kept(name));
            let home = drafter.map_or(Home::Target, |drafter| self.drafters[drafter].home());
            let backend = self.backends.of(home);
            let put_aside = (i < far).then(|| backend.far_memory(&block));
            let placed = match put_aside {
                // Beyond what may lie far, pages lie near.
                None | Some(Err(compute::Error::OutOfMemory { .. })) => backend.adopt(block),
                Some(put_aside) => put_aside,
            };
            let block = Arc::new(match placed.map_err(Error::from) {
                // The text goes on without that drafter.
                Err(error) if home == Home::Own && !error.is_out_of_memory() => {
                    left = drafter;
                    Memory::zeroed(0)
                }
                placed => placed?,
            });
            self.archive.add(&block, kept);
            revived.push(block);
        }
        let mut sequence = outline.assemble(&blank, revived.into_iter());
        if let Some(drafter) = left {
            sequence.leave_draft(drafter);
        }
        for (slot, draft) in self.drafters.iter().zip(&mut sequence.drafts) {
            if let Some(draft) = draft.as_mut().filter(|_| slot.drafter.reads() == Reads::Tokens) {
                draft.written.extend(tokens.iter().copied());
            }
        }
        Ok(sequence)
    }

    /// Says what its states belong to: a hash of everything that their bits depend on. Without one
    /// they are not kept beyond the process.
    pub fn identify(&mut self, identity: [u8; 32]) {
        self.identity = Some(identity);
    }

    /// What its states belong to, where that was said.
    pub fn identity(&self) -> Option<[u8; 32]> {
        self.identity
    }

    /// Names of the drafters whose state a sequence has, in their order.
    pub fn drafters_asked(&self) -> Vec<&'static str> {
        let asked = self.drafters.iter().filter(|slot| slot.drafter.shape(self.spec).is_some());
        asked.map(|slot| slot.drafter.name()).collect()
    }
}
