//! What a backend does: hold weights, run plans, commit rows of a pass to the state of a sequence.

use crate::{
    arena::Arena,
    memory::Memory,
    pass::Pass,
    plan::{MatrixId, Plan, VectorId},
};
use formats::BlockType;
use std::sync::Arc;

/// A matrix as it comes from a file: [experts, rows, cols] in row-major order, rows of whole blocks.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    /// Element type.
    pub ty: BlockType,
    /// 1 for an ordinary matrix.
    pub experts: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The blocks.
    pub bytes: &'a [u8],
}

/// Rows of a pass that become part of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct CommitPath<'a> {
    /// Rows of the pass, in order of position.
    pub rows: &'a [u32],
    /// Tokens committed before.
    pub position: usize,
}

/// The recurrent state of a sequence that a commit reads and writes.
pub struct RecurrentCommit<'a> {
    /// State after `path.position / 32 * 32` tokens; none when that is 0.
    pub base: Option<&'a Memory>,
    /// New anchors to write, with their positions: the newest one or two multiples of 32 the path reaches.
    pub anchors: Vec<(usize, &'a mut Memory)>,
    /// Keys, deltas, gates and convolution inputs.
    pub tape: &'a mut Memory,
}

/// Runs plans.
pub trait Backend: Send {
    /// Takes a matrix in, in the form the kernels read.
    fn matrix(&mut self, matrix: Matrix<'_>) -> MatrixId;

    /// Takes a vector in.
    fn vector(&mut self, numbers: &[f32]) -> VectorId;

    /// Allocates the buffers of a plan for up to `capacity` rows, `chosen` of them with logits.
    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Arena;

    /// Runs the arena's plan over a pass. Reads state, writes only the arena.
    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>);

    /// Writes the keys and values of a path to the pages of cache `cache`, of which `pages[0]` is number `first_page`.
    fn commit_kv(
        &mut self,
        arena: &Arena,
        cache: usize,
        path: CommitPath<'_>,
        first_page: usize,
        pages: &mut [&mut Memory],
    );

    /// Writes the recurrent rows of a path to the tape and folds new anchors.
    fn commit_recurrent(&mut self, arena: &Arena, path: CommitPath<'_>, state: RecurrentCommit<'_>);
}
