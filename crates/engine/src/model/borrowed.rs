//! What a drafter borrows of a target: the embedding table and the LM head. On the target's backend
//! they are the target's own; a drafter on another one has copies of them.

use super::{Model, Placement, WeightSource, Weights};
use crate::Error;
use checkpoint::TargetConfig;
use compute::{Backend, MatrixId};

/// Weights of a target as a drafter's plans name them.
#[derive(Clone)]
pub(crate) struct Borrowed {
    /// The list they are on, for the drafter to go on with.
    pub(crate) weights: Weights,
    pub(crate) embedding: MatrixId,
    pub(crate) head: MatrixId,
    /// The target's width, and its tokens.
    pub(crate) hidden: usize,
    pub(crate) vocab: usize,
}

impl Borrowed {
    /// The target's own.
    pub(crate) fn of(target: &Model) -> Self {
        let (shared, config) = (target.shared(), target.config());
        Self {
            weights: target.weights().clone(),
            embedding: shared.embedding,
            head: shared.head,
            hidden: config.hidden,
            vocab: config.vocab,
        }
    }

    /// Copies of them on another backend.
    pub(crate) fn copied(
        backend: &mut dyn Backend,
        config: &TargetConfig,
        source: &dyn WeightSource,
    ) -> Result<Self, Error> {
        let mut weights = Weights::default();
        let embedding = name_embedding(&mut weights, config);
        let head = name_head(&mut weights, config, embedding);
        weights.place(Placement::ON_DEVICE, source, backend)?;
        Ok(Self { weights, embedding, head, hidden: config.hidden, vocab: config.vocab })
    }
}

pub(super) fn name_embedding(weights: &mut Weights, config: &TargetConfig) -> MatrixId {
    weights.table("token_embd.weight", config.vocab, config.hidden)
}

/// The head, which may be the table.
pub(super) fn name_head(
    weights: &mut Weights,
    config: &TargetConfig,
    embedding: MatrixId,
) -> MatrixId {
    let (rows, cols) = (config.vocab, config.hidden);
    match config.tied_head {
        true => weights.tied(embedding, "token_embd.weight", rows, cols),
        false => weights.matrix("output.weight", rows, cols),
    }
}
