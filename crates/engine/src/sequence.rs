//! One text in the making: how many tokens are committed, and the state they left. Cloning it is a
//! snapshot, which shares memory until one of the two is written.

use crate::Error;
use crate::state::{Context, KvPages, MtpFeed, Other, Recurrent};
use compute::{Backend, KvLayout, Memory, RecurrentLayout, SequenceView};
use std::sync::Arc;

/// A sequence. Passes read it, `Model::commit` writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    pub(crate) committed: usize,
    pub(crate) kv: KvPages,
    pub(crate) recurrent: Recurrent,
    pub(crate) mtp: Option<MtpState>,
    /// What a DFlash drafter keeps.
    pub(crate) draft: Option<Context>,
    /// Rows on their way to the next-token block, where it is in use.
    pub(crate) feed: Option<MtpFeed>,
}

/// A block of memory that a sequence refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Tells blocks apart as long as somebody refers to them.
    pub id: usize,
    /// Its length.
    pub bytes: usize,
}

/// What the next-token block keeps: keys and values of its own, for as many rows as were committed
/// to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MtpState {
    pub(crate) committed: usize,
    pub(crate) kv: KvPages,
}

impl Sequence {
    pub(crate) fn new(kv: KvLayout, recurrent: RecurrentLayout, mtp: Option<KvLayout>) -> Self {
        Self {
            committed: 0,
            kv: KvPages::new(kv),
            recurrent: Recurrent::new(recurrent),
            mtp: mtp.map(|layout| MtpState { committed: 0, kv: KvPages::new(layout) }),
            draft: None,
            feed: None,
        }
    }

    /// Tokens committed.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// Rows committed to the next-token block.
    pub fn mtp_committed(&self) -> usize {
        self.mtp.as_ref().map_or(0, |m| m.committed)
    }

    /// A copy that shares no memory with this one.
    pub fn unshared(&self) -> Result<Self, Error> {
        self.over(&mut |block| Ok(Arc::new(block.duplicate()?)))
    }

    /// The same over other blocks of memory: what `other` makes of each. Everything a sequence
    /// keeps is passed by here.
    pub(crate) fn over(&self, other: &mut Other<'_>) -> Result<Self, Error> {
        let mtp = match &self.mtp {
            Some(mtp) => Some(MtpState { committed: mtp.committed, kv: mtp.kv.over(other)? }),
            None => None,
        };
        Ok(Self {
            committed: self.committed,
            kv: self.kv.over(other)?,
            recurrent: self.recurrent.over(other)?,
            mtp,
            draft: self.draft.as_ref().map(|d| d.over(other)).transpose()?,
            feed: self.feed.as_ref().map(|f| f.over(other)).transpose()?,
        })
    }

    /// Sets aside what a commit of `rows` rows needs, so that it allocates nothing; nothing of the
    /// state changes.
    pub(crate) fn reserve(&mut self, backend: &dyn Backend, rows: usize) -> Result<(), Error> {
        self.kv.reserve(backend, self.committed, rows)?;
        self.recurrent.reserve(backend, self.committed, rows)?;
        if let Some(context) = &mut self.draft {
            context.pending.reserve(backend, rows)?;
        }
        if let Some(feed) = &mut self.feed {
            feed.hidden.reserve(backend, rows)?;
        }
        Ok(())
    }

    /// The blocks of memory its state lies in. Snapshots share most of them.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut note = |memory: &Arc<Memory>| {
            blocks.push(Block { id: Arc::as_ptr(memory) as usize, bytes: memory.len() });
            Ok(Arc::clone(memory))
        };
        self.over(&mut note).expect("nothing is allocated");
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

impl MtpState {
    pub(crate) fn view(&self) -> SequenceView<'_> {
        SequenceView {
            committed: self.committed,
            caches: vec![self.kv.table()],
            ..Default::default()
        }
    }
}
