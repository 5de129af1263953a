//! What one round did, and the watch that times it.

use crate::sampling::Likelihood;
use std::time::Instant;

/// What one round did.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// New tokens: drafted ones that were accepted, then the target's own; cut at an end or at the
    /// room that was given.
    pub emitted: Vec<u32>,
    /// One for each of them where [`crate::Generation::tell_likelihoods`] was asked for, else none.
    pub likelihoods: Vec<Likelihood>,
    /// Nodes that were judged.
    pub drafted: usize,
    /// Of them, how many were accepted, whether or not they were emitted.
    pub accepted: usize,
    /// Who was asked: `dflash`, `mtp` or `off`. A grammar may have left nothing of the draft.
    pub drafter: &'static str,
    /// Seconds of drafting, of texts that were drafted together this one's part.
    pub draft_s: f64,
    /// Seconds of the pass, which the texts of a round share.
    pub verify_s: f64,
    /// Seconds of walking this text's draft.
    pub judge_s: f64,
    /// Seconds of making what was accepted part of it.
    pub commit_s: f64,
}

impl Round {
    /// The length of the walk plus the target's own token.
    pub fn accept_length(&self) -> usize {
        self.accepted + 1
    }
}

/// A stop-watch that tells what passed since it was last asked.
pub(crate) struct Laps(Instant);

impl Laps {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since then.
    pub(crate) fn lap(&mut self) -> f64 {
        let now = Instant::now();
        let passed = now.duration_since(self.0).as_secs_f64();
        self.0 = now;
        passed
    }
}
