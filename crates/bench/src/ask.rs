//! One prompt asked in one mode: what is timed, and what parity compares.

use crate::modes::Mode;
use anyhow::Result;
use engine::Sequence;
use engine::sampling::Sampling;
use launch::Running;
use launch::{Answer, Question, answer};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) mode: &'a Mode,
    pub(crate) prompt: &'a [u32],
    pub(crate) sampling: &'a Sampling,
    pub(crate) max_tokens: usize,
}

impl Asked<'_> {
    /// The answer, from nothing.
    pub(crate) fn answer(self, running: &mut Running) -> Result<Answer> {
        self.answer_slowly(running, 0.0)
    }

    /// The same; after each round so many percent of its time are wasted.
    pub(crate) fn answer_slowly(self, running: &mut Running, slow_down: f64) -> Result<Answer> {
        running.engine.set_spec(self.mode.spec);
        let sequence = running.engine.sequence();
        self.go_on(running, sequence, slow_down)
    }

    /// The answer, from what [`read`] left.
    pub(crate) fn answer_from(self, running: &mut Running, read: Sequence) -> Result<Answer> {
        self.go_on(running, read, 0.0)
    }

    fn go_on(self, running: &mut Running, sequence: Sequence, slow_down: f64) -> Result<Answer> {
        let Self { mode, prompt, sampling, max_tokens } = self;
        running.engine.set_spec(mode.spec);
        let stop = &AtomicBool::new(false);
        answer(
            running,
            Question { sequence, prompt, sampling, max_tokens, relaxed: None, stop },
            |piece| {
                if let Some(round) = piece.round.filter(|_| slow_down > 0.0) {
                    let took = round.draft_s + round.verify_s + round.judge_s + round.commit_s;
                    let begin = Instant::now();
                    while begin.elapsed().as_secs_f64() < took * slow_down / 100.0 {
                        std::hint::spin_loop();
                    }
                }
                Ok(())
            },
        )
    }
}

/// All of a prompt but its last token, as a mode reads it: what several answers can go on from.
pub(crate) fn read(running: &mut Running, mode: &Mode, prompt: &[u32]) -> Result<Sequence> {
    let engine = &mut running.engine;
    engine.set_spec(mode.spec);
    let mut sequence = engine.sequence();
    let rows = engine.model().options().max_rows;
    for chunk in prompt[..prompt.len().saturating_sub(1)].chunks(rows) {
        engine.read(&mut sequence, chunk)?;
    }
    engine.absorb(&mut sequence)?;
    Ok(sequence)
}
