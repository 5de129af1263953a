//! One text in the making: how many tokens are committed, and the state they left. Cloning it is a snapshot, which
//! shares memory until one of the two is written.

use crate::state::{Context, KvPages, MtpFeed, Recurrent};
use compute::{KvLayout, RecurrentLayout, SequenceView};

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

/// What the next-token block keeps: keys and values of its own, for as many rows as were committed to it.
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
    pub fn unshared(&self) -> Self {
        Self {
            committed: self.committed,
            kv: self.kv.unshared(),
            recurrent: self.recurrent.unshared(),
            mtp: self.mtp.as_ref().map(|m| MtpState { committed: m.committed, kv: m.kv.unshared() }),
            draft: self.draft.as_ref().map(Context::unshared),
            feed: self.feed.clone(),
        }
    }

    /// Bytes of state this sequence refers to, shared ones included.
    pub fn bytes(&self) -> usize {
        self.kv.bytes()
            + self.recurrent.bytes()
            + self.mtp.as_ref().map_or(0, |m| m.kv.bytes())
            + self.draft.as_ref().map_or(0, |d| d.bytes())
            + self.feed.as_ref().map_or(0, |f| f.bytes())
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
        SequenceView { committed: self.committed, caches: vec![self.kv.table()], ..Default::default() }
    }
}
