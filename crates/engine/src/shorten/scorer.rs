//! A small model that reads a prompt to tell which of its tokens the text's end attends to.

use super::relevance::{Heads, relevance};
use crate::model::{Model, Options, WeightSource, chain};
use crate::{Error, Row, Sequence};
use checkpoint::TargetConfig;
use compute::{Backend, KvType};

/// Tokens whose attention is asked for, the last of what is read. A chat's prompt ends with some
/// ten of the template's, which attend to nothing in particular; these reach well into the
/// question before them.
const TAIL: usize = 48;

/// A model on a backend of its own. It writes nothing, so it has no drafter.
pub struct Scorer {
    backend: Box<dyn Backend>,
    model: Model,
}

impl Scorer {
    /// Loads a model whose attention is read. Its keys are kept as halves whatever the target's
    /// cache is.
    pub fn load(
        mut backend: Box<dyn Backend>,
        (config, source): (&TargetConfig, &dyn WeightSource),
    ) -> Result<Self, Error> {
        let defaults = Options::new(&*backend);
        let options = Options { kv: KvType::F16, max_chosen: 1, queries: true, ..defaults };
        let model = Model::load(&mut *backend, config, source, options)?;
        Ok(Self { backend, model })
    }

    /// A text of which nothing has been read.
    pub(super) fn sequence(&self) -> Sequence {
        self.model.sequence()
    }

    /// The first token of a prompt whose attention is asked for.
    pub(super) fn tail_of(&self, prompt: &[u32]) -> usize {
        prompt.len().saturating_sub(TAIL.min(self.model.options().max_rows))
    }

    /// Reads on until `end`, as long as `goes_on` says so; whether it came to the end.
    pub(super) fn read(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        end: usize,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Error> {
        let unread = prompt.get(sequence.committed()..end).unwrap_or_default();
        for chunk in unread.chunks(self.model.options().max_rows) {
            if !goes_on() {
                return Ok(false);
            }
            self.model.read(&mut *self.backend, sequence, chunk, |_| ())?;
        }
        Ok(true)
    }

    /// How much the last tokens of a prompt attend to each token from `first` to the tail, of which
    /// all that is before the tail has been read. Nothing is committed.
    pub(super) fn relevance(
        &mut self,
        sequence: &Sequence,
        prompt: &[u32],
        first: usize,
    ) -> Result<Vec<f32>, Error> {
        let rows: Vec<Row> = chain(&prompt[sequence.committed()..], 0).collect();
        let last = [rows.len() as u32 - 1];
        self.model.forward_prompt(&mut *self.backend, &rows, &last, &[sequence])?;
        let attention = &self.model.config().attention;
        let heads =
            Heads { queries: attention.q_heads, keys: attention.kv_heads, dim: attention.head_dim };
        let queries = self.model.queries(rows.len())?;
        relevance(heads, &queries, &sequence.kv, sequence.committed(), first)
    }
}
