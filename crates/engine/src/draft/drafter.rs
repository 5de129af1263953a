//! What a drafter is: somebody who reads what the target left at committed tokens, and proposes
//! tokens that may come next. The round knows no more of it than this.

use super::Lattice;
use crate::Error;
use crate::propose::Spec;
use crate::state::DraftState;
use compute::Backend;
use std::borrow::Cow;

/// Proposes tokens. A drafter can only change the speed: nothing it does reaches a draw.
///
/// Its state lies in each sequence ([`DraftState`]): the engine keeps, forks, stows and brings it
/// back with the rest of the sequence, so a drafter itself holds weights and plans alone.
pub trait Drafter: Send {
    /// For people and metrics, a word.
    fn name(&self) -> &'static str;

    /// For people, in a sentence.
    fn title(&self) -> &'static str;

    /// Which rows of the target it reads.
    fn reads(&self) -> Reads;

    /// What it is asked for where tokens are proposed like this; none where it is not asked.
    fn shape(&self, spec: Spec) -> Option<Shape>;

    /// Rows of a block it was trained with, where it fills in blocks.
    fn block(&self) -> Option<usize> {
        None
    }

    /// Its state in an empty sequence.
    fn state(&self) -> DraftState;

    /// Bytes of its state in a sequence of so many tokens.
    fn state_bytes(&self, tokens: usize) -> usize;

    /// Takes pending rows in, of several texts together.
    fn absorb(
        &mut self,
        backend: &mut dyn Backend,
        states: &mut [&mut DraftState],
    ) -> Result<(), Error>;

    /// Takes pending rows in and proposes what may follow, for several texts together. A text's
    /// proposal is what it would be alone; nothing where a logit is not a number.
    fn propose(
        &mut self,
        backend: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Vec<Option<Lattice>>, Error>;

    /// Logits of position `i` of the last proposal, counted over its texts: `[vocab]`.
    fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error>;

    /// A text that was written, for who looks into other texts; it may keep `most` bytes of them.
    fn remember(&mut self, _written: &[u32], _most: usize) {}
}

/// Rows of the target that a drafter reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The residual stream after some layers.
    Taps,
    /// The hidden state that the LM head reads.
    Hidden,
    /// None: its tokens are enough.
    Tokens,
}

/// How much is asked of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Positions to propose for.
    pub depth: usize,
    /// Candidates of each.
    pub ranks: usize,
    /// Nodes of the draft at most.
    pub budget: usize,
}

/// A text that asks for a proposal.
pub struct Ask<'a> {
    /// What the drafter keeps of it.
    pub(crate) state: &'a mut DraftState,
    /// Its newest token, which proposals follow.
    pub(crate) tip: u32,
    pub(crate) shape: Shape,
    /// Positions that could be of use. Who goes token by token stops there; who fills in a block
    /// does so whatever the room, because what it sees of a block changes what it says.
    pub(crate) room: usize,
    /// A path less likely than this is of no use; for who has no more to say than one.
    pub(crate) least: f64,
    /// Whether another position is worth a pass of its own.
    pub(crate) goes_on: Box<dyn Fn(&Lattice) -> bool + 'a>,
}
