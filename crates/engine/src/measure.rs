//! First costs, for `auto` to begin with: verifies of a few sizes and a proposal of each drafter.

use crate::Engine;
use crate::draft::{Ask, Lattice};
use crate::propose::Spec;
use crate::{Error, Row, Sequence};
use std::time::Instant;

/// A pass of more seconds is measured only once; where there is one of more than the second, no
/// more sizes are measured.
const LONG_PASS: f64 = 2.0;
const SLOW_PASS: f64 = 0.05;
/// Passes of fewer seconds are measured so many times more.
const QUICK_PASS: f64 = 0.02;
const TURNS: usize = 3;

impl Engine {
    /// Measures. Where passes are slow, one row and a block have to do.
    pub(crate) fn measure(&mut self) -> Result<(), Error> {
        let mut sequence = self.sequence();
        let tokens = vec![0; self.text_rows()];
        let rows: Vec<Row> = crate::model::chain(&tokens, 0).collect();
        self.measure_verifies(&rows, &sequence)?;
        let plain = self.costs.verify(1, 1);
        self.learned.choices.iter_mut().for_each(|choice| choice.add(None, 1, plain));
        self.model.forward(&mut *self.backends.target, &rows[..1], &[0], &[&sequence])?;
        self.commit(0, &mut sequence, &rows, &[0])?;
        (0..self.drafters.len()).try_for_each(|drafter| self.measure_drafter(drafter, &sequence))
    }

    fn measure_verifies(&mut self, rows: &[Row], sequence: &Sequence) -> Result<(), Error> {
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let block = if let Spec::Auto { block, .. } = self.spec { block } else { 1 };
        let mut found: Vec<(usize, f64)> = Vec::new();
        // Matrix instructions take rows by sixteens, so some sizes cost much more than the one
        // before.
        for n in [1, block, 2, 4, 8, 16, 17, 32, 33, rows.len()] {
            let slow = found.iter().any(|(_, seconds)| *seconds > SLOW_PASS);
            if (slow && n != block) || found.iter().any(|(known, _)| *known == n) {
                continue;
            }
            // The first pass of a size may have to load kernels, and the second to capture them.
            let mut best = self.time_pass(&rows[..n], &all[..n], sequence)?;
            for _ in 0..2 {
                if best < LONG_PASS {
                    best = best.min(self.time_pass(&rows[..n], &all[..n], sequence)?);
                }
            }
            found.push((n, best));
        }
        // Sizes take turns, because whatever else the machine does stalls several passes in a row.
        for _ in 0..TURNS {
            for (n, seconds) in found.iter_mut().filter(|(_, seconds)| *seconds < QUICK_PASS) {
                *seconds = seconds.min(self.time_pass(&rows[..*n], &all[..*n], sequence)?);
            }
        }
        found.iter().for_each(|(n, seconds)| self.costs.table.add(*n, *seconds, 1.0));
        Ok(())
    }

    /// Seconds of a pass.
    fn time_pass(
        &mut self,
        rows: &[Row],
        chosen: &[u32],
        sequence: &Sequence,
    ) -> Result<f64, Error> {
        let start = Instant::now();
        self.model.forward(&mut *self.backends.target, rows, chosen, &[sequence])?;
        self.backends.target.finish()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The quickest of a few proposals after the first token; of one, where it is slow. Who goes
    /// token by token is asked for two.
    fn measure_drafter(&mut self, drafter: usize, sequence: &Sequence) -> Result<(), Error> {
        let slot = &mut self.drafters[drafter];
        let (Some(shape), Some(state)) = (slot.drafter.shape(self.spec), sequence.draft(drafter))
        else {
            return Ok(());
        };
        let backend = self.backends.of_mut(slot.home());
        let mut quickest = f64::INFINITY;
        for i in 0..3 {
            let mut state = state.clone();
            let start = Instant::now();
            let goes_on = Box::new(|lattice: &Lattice| lattice.len() < 2);
            let (state, room) = (&mut state, shape.depth);
            let ask = Ask { state, tip: 0, shape, room, least: 0.0, goes_on };
            let found = slot.drafter.propose(backend, &mut [ask])?;
            let seconds = start.elapsed().as_secs_f64();
            slot.is_broken |= found.contains(&None);
            quickest = quickest.min(seconds);
            // The first run may have to load kernels.
            if seconds > if i == 0 { LONG_PASS } else { QUICK_PASS } {
                break;
            }
        }
        let passes = slot.passes(shape.depth.min(2));
        slot.costs.add(1, quickest / passes as f64, 1.0);
        Ok(())
    }
}
