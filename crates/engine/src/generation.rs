//! One answer in the making: its sequence, its newest token, and everything its draws depend on.

use crate::draft::Draft;
use crate::judge::{Drawing, Relaxed, RowSeen, Verdict, judge};
use crate::propose::Learned;
use crate::sampling::{Constraint, History, Sampler, Sampling};
use crate::{Error, Sequence};
use compute::Draw;

/// One answer in the making.
pub struct Generation {
    pub(crate) sequence: Sequence,
    /// The newest token: drawn, emitted, not committed.
    pub(crate) tip: u32,
    sampling: Sampling,
    history: History,
    sampler: Sampler,
    /// What may be written, where not everything may.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Tokens after which nothing follows.
    pub(crate) ends: Vec<u32>,
    relaxed: Option<Relaxed>,
    /// Likeliest tokens to tell beside each one emitted, where likelihoods are wanted.
    pub(crate) likelihoods: Option<usize>,
    pub(crate) learned: Learned,
    /// Drafters that are not asked again.
    pub(crate) failed: Vec<usize>,
    pub(crate) fallback: Option<String>,
}

impl Generation {
    pub(crate) fn new(
        sequence: Sequence,
        tip: u32,
        sampling: Sampling,
        history: History,
        sampler: Sampler,
        constraint: Option<Box<dyn Constraint>>,
        ends: Vec<u32>,
        learned: Learned,
    ) -> Self {
        Self {
            sequence,
            tip,
            sampling,
            history,
            sampler,
            constraint,
            ends,
            relaxed: None,
            likelihoods: None,
            learned,
            failed: Vec::new(),
            fallback: None,
        }
    }

    /// How to draw the token `depth` places after what is committed, where that depends on nothing
    /// but the logits.
    pub(crate) fn plain_draw(&self, depth: usize) -> Option<Draw> {
        let is_plain =
            self.relaxed.is_none() && self.likelihoods.is_none() && self.constraint.is_none();
        self.sampling.plain(self.sequence.committed() + depth).filter(|_| is_plain)
    }

    /// Walks a draft with this text's own draws; also tells how many of its tokens to keep.
    pub(crate) fn judge<'l>(
        &mut self,
        draft: &Draft,
        room: usize,
        row: impl Fn(usize) -> Result<RowSeen<'l>, Error>,
    ) -> Result<(Verdict, usize), Error> {
        assert!(room > 0, "a round emits at least one token");
        let Self { sampling, history, sampler, constraint, relaxed, sequence, ends, .. } = self;
        let mut drawing = Drawing {
            sampling,
            history,
            sampler,
            constraint: constraint.as_deref_mut(),
            relaxed: *relaxed,
        };
        let verdict = judge(draft, sequence.committed(), row, &mut drawing)?;
        let kept = verdict.keep(room, ends);
        let (emitted, cut) = verdict.tokens.split_at(kept);
        cut.iter().for_each(|token| history.pop(*token));
        if let Some(constraint) = constraint {
            constraint.pop(cut.len());
        }
        *relaxed = relaxed.filter(|r| !emitted.contains(&r.think_end));
        Ok((verdict, kept))
    }

    /// The newest token: drawn and emitted, not committed.
    pub fn tip(&self) -> u32 {
        self.tip
    }

    /// The state: everything before the newest token.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Gives the state away.
    pub fn into_sequence(self) -> Sequence {
        self.sequence
    }

    /// Has every round tell how likely its tokens were, beside the `top` likeliest.
    pub fn tell_likelihoods(&mut self, top: usize) {
        self.likelihoods = Some(top);
    }

    /// Lets near misses stand until thinking ends. The text is then no longer exactly the target's
    /// own.
    pub fn relax(&mut self, relaxed: Relaxed) {
        self.relaxed = Some(relaxed);
    }

    /// Why proposals ended before their time, where they did.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }
}
