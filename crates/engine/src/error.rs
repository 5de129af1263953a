//! What can go wrong on the way from rows to tokens.

use thiserror::Error;

/// An error of the engine.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    /// The weights lack a tensor the configuration asks for.
    #[error("the weights have no `{0}`")]
    MissingTensor(String),
    /// A tensor's shape is not what the configuration says.
    #[error("`{name}` has shape {found:?}, the configuration asks for {expected:?}")]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize> },
    /// A size the kernels do not have.
    #[error("{what} of {found} is not supported, it must be {expected}")]
    Unsupported { what: &'static str, found: usize, expected: &'static str },
    /// A token beyond the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    /// A pass larger than the arena.
    #[error(
        "a pass of {rows} rows, {chosen} of them with logits, where {max_rows} and {max_chosen} fit"
    )]
    PassTooLarge { rows: usize, chosen: usize, max_rows: usize, max_chosen: usize },
    /// A commit that does not follow from the last pass.
    #[error("commit refused: {0}")]
    Commit(String),
    /// The model gave no number.
    #[error("logit {index} of the row at position {position} is {value}")]
    NotFinite { index: usize, position: usize, value: f32 },
    /// What a scorer's rows attend to is no number.
    #[error("what the tokens from position {position} on attend to is no number")]
    NoAttention { position: usize },
    /// A constraint that cannot be followed.
    #[error("the constraint fails at position {position}: {reason}")]
    Constraint { position: usize, reason: String },
    /// A setting no distribution follows from.
    #[error("a {what} of {value} makes no sense")]
    Sampling { what: &'static str, value: f32 },
    /// A text without a beginning.
    #[error("there are no tokens to go on from")]
    NothingToRead,
    /// Proposals were asked of a drafter that is not there.
    #[error("no drafter is loaded")]
    NoDrafter,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] compute::Error),
    /// What was kept of a sequence is none of this engine's.
    #[error("a kept state does not fit the model: {0}")]
    Misfit(&'static str),
    /// The model has no next-token block.
    #[error("the model has no MTP block")]
    NoMtp,
}

impl Error {
    /// Whether there was no room: the same may be tried again when somebody has let go of some.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Backend(compute::Error::OutOfMemory { .. }))
    }

    /// Whether the device is lost, and with it every sequence.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Backend(compute::Error::Lost { .. }))
    }
}
