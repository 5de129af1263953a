//! How likely the tokens of a prompt were, told while it is read: what evaluators ask for.

use crate::model::chain;
use crate::sampling::{Likelihood, finite};
use crate::{Engine, Error, Row, Sequence};

impl Engine {
    /// Tokens that [`Self::read_scored`] takes at once: every row of its pass has logits.
    pub fn scored_rows(&self) -> usize {
        let options = self.model.options();
        options.max_rows.min(options.max_chosen)
    }

    /// Reads tokens into a sequence, as [`Self::read`] does, and tells how likely each of
    /// `following` was where it stands. Those are the tokens after the first, one for each row or,
    /// at the end of a text, one less.
    pub fn read_scored(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        following: &[u32],
        top: usize,
    ) -> Result<Vec<Likelihood>, Error> {
        let rows: Vec<Row> = chain(tokens, 0).collect();
        let path: Vec<u32> = (0..tokens.len() as u32).collect();
        self.reserve(sequence, rows.len())?;
        self.model.forward_prompt(&mut *self.backends.target, &rows, &path, &[sequence])?;
        let mut scores = Vec::with_capacity(following.len());
        for (row, token) in following.iter().enumerate().take(tokens.len()) {
            let logits = self.logits(row)?;
            finite(&logits, sequence.committed() + row + 1)?;
            if *token as usize >= logits.len() {
                return Err(Error::Token { token: *token, vocab: logits.len() });
            }
            scores.push(Likelihood::of(&logits, *token, top));
        }
        self.commit(0, sequence, &rows, &path)?;
        Ok(scores)
    }
}
