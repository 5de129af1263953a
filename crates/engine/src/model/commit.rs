//! The second verb of a model: rows of the last pass become part of sequences, those of several
//! texts in one call of the backend each.

use super::Model;
use crate::draft::Reads;
use crate::state::{KeptRows, commit_pages, commit_states, keep_rows};
use crate::{Error, Row, Sequence};
use compute::{Backend, Buf, CommitPath, Memory, RowsKept};

/// What of the last pass becomes part of a sequence.
pub struct Accepted<'a> {
    /// Number of the sequence in that pass.
    pub index: usize,
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Rows of the pass, from the tip of the sequence down.
    pub path: &'a [u32],
}

impl Accepted<'_> {
    /// The same for a while.
    pub(crate) fn reborrow(&mut self) -> Accepted<'_> {
        Accepted { index: self.index, sequence: &mut *self.sequence, path: self.path }
    }
}

/// What a commit must agree with.
#[derive(Default)]
pub(super) struct LastPass {
    pub(super) rows: Vec<Row>,
    /// By sequence, the tokens committed, and the last row of the pass that is among them.
    pub(super) tips: Vec<(usize, Option<u32>)>,
}

impl LastPass {
    /// Checks that `path` leads from the tip of sequence `index` down the rows of this pass. What
    /// was committed of it before is behind that tip.
    fn check(&self, index: usize, committed: usize, path: &[u32]) -> Result<(), Error> {
        let mut parent = match self.tips.get(index) {
            Some(&(at, tip)) if at == committed => tip,
            Some(&(at, _)) => {
                let message =
                    format!("the pass saw {at} tokens of sequence {index}, it now has {committed}");
                return Err(Error::Commit(message));
            }
            None => return Err(Error::Commit(format!("the last pass had no sequence {index}"))),
        };
        for &row in path {
            let fits = self
                .rows
                .get(row as usize)
                .is_some_and(|r| r.parent == parent && r.sequence as usize == index);
            if !fits {
                return Err(Error::Commit(format!(
                    "row {row} does not follow {parent:?} in sequence {index}"
                )));
            }
            parent = Some(row);
        }
        Ok(())
    }

    fn check_all(&self, texts: &[Accepted<'_>]) -> Vec<Result<(), Error>> {
        let check = |t: &Accepted<'_>| self.check(t.index, t.sequence.committed, t.path);
        texts.iter().map(check).collect()
    }
}

/// Goes on with the texts that have rows and that nothing has failed for so far.
fn go_on<'t, 's>(
    done: &mut [Result<(), Error>],
    texts: &'t mut [Accepted<'s>],
    write: impl FnOnce(Vec<&'t mut Accepted<'s>>) -> Vec<Result<(), Error>>,
) {
    let goes_on = |(done, text): &(&mut Result<(), Error>, &mut Accepted<'_>)| {
        done.is_ok() && !text.path.is_empty()
    };
    let (results, texts): (Vec<_>, Vec<_>) = done.iter_mut().zip(texts).filter(goes_on).unzip();
    results.into_iter().zip(write(texts)).for_each(|(done, now)| *done = now);
}

impl Model {
    /// Makes a path (rows of the last pass, from the tip of the sequence down) part of each
    /// sequence. A text's failure is its own, and leaves its sequence as it was.
    pub fn commit_all(
        &mut self,
        backend: &mut dyn Backend,
        mut texts: Vec<Accepted<'_>>,
    ) -> Vec<Result<(), Error>> {
        let mut done = self.last.check_all(&texts);
        let path = |rows, sequence: &Sequence| CommitPath { rows, position: sequence.committed };
        go_on(&mut done, &mut texts, |texts| {
            let pages = texts.into_iter().map(|Accepted { sequence, path: rows, .. }| {
                let path = path(rows, sequence);
                (&mut sequence.kv, path)
            });
            commit_pages(backend, &self.arena, 0, pages.collect())
        });
        go_on(&mut done, &mut texts, |texts| {
            let states = texts.into_iter().map(|Accepted { sequence, path: rows, .. }| {
                let path = path(rows, sequence);
                (&mut sequence.recurrent, path)
            });
            commit_states(backend, &self.arena, states.collect())
        });
        for (text, _) in texts.into_iter().zip(&done).filter(|(_, done)| done.is_ok()) {
            text.sequence.committed += text.path.len();
            let tip = text.path.last().copied().or(self.last.tips[text.index].1);
            self.last.tips[text.index] = (text.sequence.committed, tip);
        }
        done
    }

    /// The same for one sequence.
    pub fn commit(
        &mut self,
        backend: &mut dyn Backend,
        index: usize,
        sequence: &mut Sequence,
        path: &[u32],
    ) -> Result<(), Error> {
        self.commit_all(backend, vec![Accepted { index, sequence, path }]).into_iter().collect()
    }

    /// Keeps what a drafter reads of rows of the last pass, for each text its own.
    pub fn keep(
        &self,
        backend: &mut dyn Backend,
        what: Reads,
        texts: Vec<(&mut KeptRows, &[u32])>,
    ) -> Vec<Result<(), Error>> {
        match self.read_by(what) {
            Some(buf) => keep_rows(backend, &self.arena, buf, texts),
            None => texts.iter().map(|_| Ok(())).collect(),
        }
    }

    /// Copies what a drafter reads of rows of the last pass to the beginning of a block.
    pub(crate) fn gather(
        &self,
        backend: &mut dyn Backend,
        what: Reads,
        rows: &[u32],
        to: &mut Memory,
    ) -> Result<(), Error> {
        match self.read_by(what) {
            Some(buf) => {
                Ok(backend.keep_rows(&self.arena, buf, &mut [RowsKept { rows, to, at: 0 }])?)
            }
            None => Ok(()),
        }
    }

    fn read_by(&self, what: Reads) -> Option<Buf> {
        match what {
            Reads::Taps => Some(self.taps),
            Reads::Hidden => Some(self.hidden),
            Reads::Tokens => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{append, chain};
    use crate::{Options, synthetic};
    use compute::{Activations, Cpu, CpuLevel, Fault, Faults, Faulty};

    /// Texts of 30, 44 and 0 tokens go on with rows of one pass: one stays before an anchor, one
    /// reaches it, one makes two due. Committed by `commit`, with one call of the backend failing.
    fn committed(
        fault: Option<(Fault, usize)>,
        commit: impl Fn(&mut Model, &mut Faulty, &mut [Sequence], &[Vec<u32>]),
    ) -> Vec<Sequence> {
        let mut config = synthetic::tiny();
        config.layers.truncate(4);
        config.mtp = None;
        let faults = Faults::default();
        let cpu = Cpu::new(CpuLevel::detect(), 1, Activations::Int8);
        let mut backend = Faulty::new(Box::new(cpu), faults.clone());
        let weights = synthetic::Weights::new(&config, synthetic::Mix::Q4_K_M, 3);
        let options = Options::new(&backend);
        let mut model = Model::load(&mut backend, &config, &weights, options).unwrap();
        let tokens: Vec<u32> = (1..100).collect();
        let (mut sequences, mut rows, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (before, more)) in [(30, 1), (44, 20), (0, 70)].into_iter().enumerate() {
            let mut sequence = model.sequence();
            model.read(&mut backend, &mut sequence, &tokens[..before], |_| ()).unwrap();
            let first = append(&mut rows, chain(&tokens[before..before + more], i as u32));
            paths.push((first..first + more as u32).collect());
            sequences.push(sequence);
        }
        let seen: Vec<&Sequence> = sequences.iter().collect();
        model.forward_prompt(&mut backend, &rows, &[], &seen).unwrap();
        faults.arm(fault);
        commit(&mut model, &mut backend, &mut sequences, &paths);
        sequences
    }

    #[test]
    fn texts_committed_together_are_those_committed_alone() {
        let expected = committed(None, |model, backend, sequences, paths| {
            for (i, (sequence, path)) in sequences.iter_mut().zip(paths).enumerate() {
                model.commit(backend, i, sequence, path).unwrap();
            }
        });
        let together = |model: &mut Model,
                        backend: &mut Faulty,
                        texts: &mut [Sequence],
                        paths: &[Vec<u32>]| {
            let texts = texts.iter_mut().zip(paths).enumerate();
            let texts = texts.map(|(index, (sequence, path))| Accepted { index, sequence, path });
            for done in model.commit_all(backend, texts.collect()) {
                done.unwrap();
            }
        };
        assert_eq!(committed(None, together), expected);
        // A call for all that fails is made for each.
        for n in 0..2 {
            assert_eq!(committed(Some((Fault::Commit, n)), together), expected, "call {n}");
        }
    }
}
