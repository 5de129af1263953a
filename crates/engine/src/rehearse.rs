//! Rounds whose outcome is imposed: everything a round does, at its real cost, with an acceptance
//! that somebody chose. For measuring weights that mean nothing, where no drafted token would ever
//! stand.

use crate::draft::Draft;
use crate::model::{Accepted, append};
use crate::propose::Proposal;
use crate::{Engine, Generation};
use crate::{Error, Row, Sequence};
use std::time::Instant;

/// Seconds of a rehearsed round, by stage. The device is waited for after each stage only where
/// stages are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rehearsed {
    /// Drafting: taking in what waits, the drafter's passes and their ranking.
    pub draft_s: f64,
    /// The pass over all rows, and the draw at each.
    pub verify_s: f64,
    /// Making the imposed path part of the sequence.
    pub commit_s: f64,
    /// From beginning to end.
    pub round_s: f64,
    /// Rows of the verify.
    pub rows: usize,
}

impl Engine {
    /// A text that holds `prompt`, ready for [`Self::rehearse`]; `sequence` has its beginning
    /// already.
    pub fn rehearsal(&mut self, sequence: Sequence, prompt: &[u32]) -> Result<Generation, Error> {
        let unread = prompt.get(sequence.committed()..).unwrap_or_default();
        self.begin(sequence, unread, prompt, Default::default(), Vec::new(), |_| ())
    }

    /// A round of `texts` as `spec` says, of each of which `length` tokens are kept whatever the
    /// target thinks of them.
    pub fn rehearse(
        &mut self,
        texts: &mut [Generation],
        length: usize,
        by_stage: bool,
    ) -> Result<Rehearsed, Error> {
        let begin = Instant::now();
        let mut laps = vec![begin];
        let mut lap = |engine: &mut Self| -> Result<(), Error> {
            if by_stage {
                engine.backends.finish()?;
            }
            laps.push(Instant::now());
            Ok(())
        };
        let mut company: Vec<(&mut Generation, usize)> =
            texts.iter_mut().map(|t| (t, usize::MAX)).collect();
        let proposals = self.propose(&mut company)?;
        lap(self)?;
        let (mut rows, mut firsts) = (Vec::new(), Vec::new());
        for (((text, _), proposal), i) in company.iter().zip(&proposals).zip(0..) {
            firsts.push(append(&mut rows, proposal.draft.rows(text.tip, i)));
        }
        // Weights that mean nothing draft the same token again and again, and a mixture would read
        // few experts for it.
        let written: usize = company.iter().map(|(text, _)| text.sequence.committed()).sum();
        for (i, row) in rows.iter_mut().enumerate() {
            row.token = spread(i + written, self.model.config().vocab);
        }
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let sequences: Vec<&Sequence> = company.iter().map(|(text, _)| &text.sequence).collect();
        self.model.forward(&mut *self.backends.target, &rows, &all, &sequences)?;
        self.draw_rows(&company, &rows)?;
        lap(self)?;
        let path = |(proposal, first): (&Proposal, &u32)| -> Vec<u32> {
            deepest(&proposal.draft, length).iter().map(|row| row + first).collect()
        };
        let paths: Vec<Vec<u32>> = proposals.iter().zip(&firsts).map(path).collect();
        let accepted = company
            .iter_mut()
            .zip(&paths)
            .enumerate()
            .map(|(index, (text, path))| Accepted { index, sequence: &mut text.0.sequence, path });
        self.commit_all(&rows, accepted.collect()).into_iter().collect::<Result<(), _>>()?;
        lap(self)?;
        self.backends.finish()?;
        let seconds = |i: usize| (laps[i + 1] - laps[i]).as_secs_f64();
        Ok(Rehearsed {
            draft_s: seconds(0),
            verify_s: seconds(1),
            commit_s: seconds(2),
            round_s: begin.elapsed().as_secs_f64(),
            rows: rows.len(),
        })
    }

    /// Seconds of a verify of `count` rows that follow each other, logits and draws included;
    /// nothing is committed.
    pub fn time_verify(&mut self, text: &mut Generation, count: usize) -> Result<f64, Error> {
        let tokens: Vec<u32> = (0..count).map(|i| spread(i, self.model.config().vocab)).collect();
        let rows: Vec<Row> = crate::model::chain(&tokens, 0).collect();
        let all: Vec<u32> = (0..count as u32).collect();
        self.backends.target.finish()?;
        let begin = Instant::now();
        self.model.forward(&mut *self.backends.target, &rows, &all, &[&text.sequence])?;
        self.draw_rows(&[(&mut *text, 1)], &rows)?;
        self.backends.target.finish()?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Seconds of reading `tokens` into an empty sequence, and the sequence.
    pub fn time_prompt(&mut self, tokens: &[u32]) -> Result<(f64, Sequence), Error> {
        let mut sequence = self.sequence();
        self.backends.target.finish()?;
        let begin = Instant::now();
        for chunk in tokens.chunks(self.model.options().max_rows) {
            self.read(&mut sequence, chunk)?;
        }
        self.backends.target.finish()?;
        Ok((begin.elapsed().as_secs_f64(), sequence))
    }
}

/// Tokens that differ from one index to the next.
fn spread(index: usize, vocab: usize) -> u32 {
    (index * 7919 % vocab) as u32
}

/// The rows of the likeliest path of at most `length` rows, the newest token's first.
fn deepest(draft: &Draft, length: usize) -> Vec<u32> {
    let mut path = vec![0];
    while path.len() < length.max(1) {
        match draft.children(path[path.len() - 1]).next() {
            Some((row, _)) => path.push(row),
            None => break,
        }
    }
    path
}
