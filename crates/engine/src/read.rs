//! Reading prompts: parts of several in one pass, each committed in as many steps as there are
//! states worth keeping on the way.

use crate::model::{append, chain};
use crate::{Engine, Error, Row, Sequence};
use compute::Role;
use std::ops::Range;

/// A pass over parts of texts. The logits of text `i`'s last row are its row `i`.
pub struct ReadPass {
    rows: Vec<Row>,
    /// By text, the rows that are not part of its sequence yet.
    left: Vec<Range<u32>>,
}

impl Engine {
    /// Reads tokens into a sequence, as many as one pass takes at most: part of a prompt that
    /// [`Self::begin`] finishes.
    pub fn read(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), Error> {
        self.read_as(Role::Prompt, sequence, tokens)
    }

    /// Reads tokens of an answer that was begun elsewhere with the arithmetic that would have
    /// written them: a backend may round prompts otherwise.
    pub fn read_written(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), Error> {
        let mut chunks = tokens.chunks(self.text_rows());
        chunks.try_for_each(|chunk| self.read_as(Role::Decode, sequence, chunk))
    }

    fn read_as(
        &mut self,
        role: Role,
        sequence: &mut Sequence,
        tokens: &[u32],
    ) -> Result<(), Error> {
        self.reserve(sequence, tokens.len())?;
        let mut pass = self.pass_over(role, &[(sequence, tokens)])?;
        self.commit_read(&mut pass, 0, sequence, tokens.len())
    }

    /// One pass over parts of several prompts, none of them empty. Nothing is committed yet; what
    /// [`Self::commit_read`] needs had better be [reserved](Self::reserve) before.
    pub fn read_together(&mut self, texts: &[(&Sequence, &[u32])]) -> Result<ReadPass, Error> {
        self.pass_over(Role::Prompt, texts)
    }

    fn pass_over(&mut self, role: Role, texts: &[(&Sequence, &[u32])]) -> Result<ReadPass, Error> {
        let (mut rows, mut left) = (Vec::new(), Vec::with_capacity(texts.len()));
        for ((_, tokens), i) in texts.iter().zip(0..) {
            let first = append(&mut rows, chain(tokens, i));
            left.push(first..rows.len() as u32);
        }
        let last: Vec<u32> =
            left.iter().filter(|rows| !rows.is_empty()).map(|rows| rows.end - 1).collect();
        let sequences: Vec<&Sequence> = texts.iter().map(|(sequence, _)| *sequence).collect();
        let (model, backend) = (&mut self.model, &mut *self.backends.target);
        match role {
            Role::Prompt => model.forward_prompt(backend, &rows, &last, &sequences)?,
            Role::Decode => model.forward(backend, &rows, &last, &sequences)?,
        }
        Ok(ReadPass { rows, left })
    }

    /// Makes the next `count` tokens of text `index` part of its sequence. The rest of them may
    /// follow from the same pass, so that a state between them can be kept without another.
    pub fn commit_read(
        &mut self,
        pass: &mut ReadPass,
        index: usize,
        sequence: &mut Sequence,
        count: usize,
    ) -> Result<(), Error> {
        let left = &mut pass.left[index];
        let path: Vec<u32> = left.clone().take(count).collect();
        self.commit(index, sequence, &pass.rows, &path)?;
        left.start += path.len() as u32;
        Ok(())
    }
}
