//! One text in the making: how many tokens are committed, and the state they left. Cloning it is a
//! snapshot, which shares memory until one of the two is written.

use crate::Error;
use crate::state::{DraftState, KvPages, MapBlock, Recurrent};
use crate::stow::Copies;
use compute::{Backend, KvLayout, Memory, RecurrentLayout, SequenceView};
use std::sync::Arc;

/// Makes another block of one, of the target's or of that drafter's.
pub(crate) type MapOwned<'a> =
    dyn FnMut(Option<usize>, &Arc<Memory>) -> Result<Arc<Memory>, Error> + 'a;

/// A sequence. Passes read it, `Model::commit` writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    pub(crate) committed: usize,
    pub(crate) kv: KvPages,
    pub(crate) recurrent: Recurrent,
    /// What each of the engine's drafters keeps, in their order; none of one that is not asked.
    pub(crate) drafts: Vec<Option<DraftState>>,
}

/// A block of memory that a sequence refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBlock {
    /// Tells blocks apart as long as somebody refers to them.
    pub id: usize,
    /// Its length.
    pub bytes: usize,
}

impl Sequence {
    /// An empty one, of which the keys and values of the newest `near` tokens lie near.
    pub(crate) fn new(kv: KvLayout, near: usize, recurrent: RecurrentLayout) -> Self {
        Self {
            committed: 0,
            kv: KvPages::new(kv).near(near),
            recurrent: Recurrent::new(recurrent),
            drafts: Vec::new(),
        }
    }

    /// Tokens committed.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// What a drafter keeps, where it keeps anything.
    pub(crate) fn draft(&self, drafter: usize) -> Option<&DraftState> {
        self.drafts.get(drafter)?.as_ref()
    }

    /// The same, to be changed.
    pub(crate) fn draft_mut(&mut self, drafter: usize) -> Option<&mut DraftState> {
        self.drafts.get_mut(drafter)?.as_mut()
    }

    /// Goes on without what a drafter keeps.
    pub(crate) fn leave_draft(&mut self, drafter: usize) {
        if let Some(draft) = self.drafts.get_mut(drafter) {
            *draft = None;
        }
    }

    /// Bytes of rows that wait for drafters to take them in.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.drafts.iter().flatten().map(|draft| draft.pending.bytes()).sum()
    }

    /// A copy that shares no memory with this one.
    pub fn unshared(&self) -> Result<Self, Error> {
        self.map_blocks(&mut |_, block| Ok(Arc::new(block.duplicate()?)))
    }

    /// The same in other blocks of memory: what `map` makes of each, and of which drafter's it is
    /// where it is not the target's. Everything a sequence keeps passes by here.
    pub(crate) fn map_blocks(&self, map: &mut MapOwned<'_>) -> Result<Self, Error> {
        let mut draft = |(drafter, draft): (usize, &Option<DraftState>)| {
            let mut map: Box<MapBlock<'_>> = Box::new(|block| map(Some(drafter), block));
            draft.as_ref().map(|draft| draft.map_blocks(&mut *map)).transpose()
        };
        let drafts = self.drafts.iter().enumerate().map(&mut draft).collect::<Result<_, _>>()?;
        let mut map: Box<MapBlock<'_>> = Box::new(|block| map(None, block));
        let (kv, recurrent) =
            (self.kv.map_blocks(&mut *map)?, self.recurrent.map_blocks(&mut *map)?);
        Ok(Self { committed: self.committed, kv, recurrent, drafts })
    }

    /// Sets aside what a commit of `rows` rows needs, so that it allocates nothing; nothing of the
    /// state changes. What drafters need is set aside where they lie.
    pub(crate) fn reserve(
        &mut self,
        backend: &dyn Backend,
        put_aside: &mut Copies,
        rows: usize,
    ) -> Result<(), Error> {
        self.kv.reserve(backend, put_aside, self.committed, rows)?;
        self.recurrent.reserve(backend, self.committed, rows)
    }

    /// The blocks of memory its state lies in. Snapshots share most of them.
    pub fn blocks(&self) -> Vec<StateBlock> {
        self.blocks_that(|_, _| true)
    }

    /// Those of which `counts` says so, by the drafter whose they are where they are not the
    /// target's.
    pub(crate) fn blocks_that(
        &self,
        counts: impl Fn(Option<usize>, &Memory) -> bool,
    ) -> Vec<StateBlock> {
        let mut blocks = Vec::new();
        let mut note = |drafter: Option<usize>, memory: &Arc<Memory>| {
            if counts(drafter, memory) {
                blocks.push(StateBlock { id: Arc::as_ptr(memory) as usize, bytes: memory.len() });
            }
            Ok(Arc::clone(memory))
        };
        self.map_blocks(&mut note).expect("nothing is allocated");
        blocks
    }

    /// Bytes of state this sequence refers to, shared ones included.
    pub fn bytes(&self) -> usize {
        self.blocks().iter().map(|block| block.bytes).sum()
    }

    pub(crate) fn view(&self) -> SequenceView<'_> {
        SequenceView {
            committed: self.committed,
            caches: vec![self.kv.table()],
            anchor: self.recurrent.anchor(),
            older_anchor: self.recurrent.older(),
            tape: self.recurrent.tape(),
        }
    }
}
