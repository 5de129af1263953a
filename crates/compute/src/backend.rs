//! What a backend does: hold weights, run plans, commit rows of a pass to the state of a sequence,
//! and answer for logits.

use crate::{
    Error,
    arena::Arena,
    budget::Budget,
    expert_cache::Hits,
    memory::Memory,
    pass::Pass,
    plan::{Buf, MatrixId, Plan, VectorId},
    rank::Ranked,
};
use formats::BlockType;
use std::{borrow::Cow, sync::Arc};

/// A matrix as it comes from a file: [experts, rows, cols] in row-major order, rows of whole
/// blocks.
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

/// Random weights to be made where they are needed, so that cost can be measured without a file.
#[derive(Clone, Copy, Debug)]
pub struct RandomMatrix {
    /// Element type.
    pub ty: BlockType,
    /// 1 for an ordinary matrix.
    pub experts: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Standard deviation.
    pub scale: f32,
    /// The same seed gives the same weights on the same backend.
    pub seed: u64,
    /// Whether it stays in the host's memory.
    pub on_host: bool,
}

/// Rows of a pass that become part of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct CommitPath<'a> {
    /// Rows of the pass, in order of position.
    pub rows: &'a [u32],
    /// Tokens committed before.
    pub position: usize,
}

/// The pages of a sequence that the keys and values of a path are written to.
pub struct KvCommit<'a> {
    /// What is written.
    pub path: CommitPath<'a>,
    /// Number of `pages[0]`.
    pub first_page: usize,
    /// As far as the path reaches, or further.
    pub pages: Vec<&'a mut Memory>,
}

/// The recurrent state of a sequence that a commit reads and writes.
pub struct RecurrentCommit<'a> {
    /// What is written.
    pub path: CommitPath<'a>,
    /// State after `path.position / 32 * 32` tokens; none when that is 0.
    pub base: Option<&'a Memory>,
    /// New anchors to write, with their positions: the newest one or two multiples of 32 the path
    /// reaches.
    pub anchors: Vec<(usize, &'a mut Memory)>,
    /// Keys, deltas, gates and convolution inputs.
    pub tape: &'a mut Memory,
}

/// Rows of a buffer that are kept when the next pass overwrites it.
pub struct RowsKept<'a> {
    /// Rows of the buffer.
    pub rows: &'a [u32],
    /// Where they go, one after the other.
    pub to: &'a mut Memory,
    /// Row of `to` that the first becomes.
    pub at: usize,
}

/// How to draw a token from a row of logits that nothing else changes (no penalty, no bias, no
/// mask).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 draws the likeliest.
    pub temperature: f32,
    /// 0 means all.
    pub top_k: usize,
    /// 1 means all.
    pub top_p: f32,
    /// 0 means all.
    pub min_p: f32,
    /// Key of the random numbers.
    pub seed: u64,
    /// Which of several answers.
    pub choice: u32,
    /// Tokens before the one that is drawn.
    pub position: usize,
}

/// What came of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// The token.
    Token(u32),
    /// This logit is no number.
    NotFinite(usize),
}

/// Runs plans.
pub trait Backend: Send {
    /// Takes a matrix in, in the form the kernels read.
    fn matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error>;

    /// Takes in a matrix that stays in the host's memory; for a backend that has no other, that is
    /// where all of them lie.
    fn host_matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.matrix(matrix)
    }

    /// Takes in a matrix that lies on a disk and is read from there as it is used. Only a backend
    /// whose memory is the host's can do that, and only where it was given a folder.
    fn disk_matrix(&mut self, _matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        Err(Error::NoDisk)
    }

    /// Lets up to so many bytes of its own memory hold copies of experts that lie in the host's,
    /// gate, up and down of each layer; which ones follows from what passes choose, and no bit
    /// does. Nothing where there is no other memory than the host's.
    fn cache_experts(&mut self, _layers: &[[MatrixId; 3]], _bytes: usize) -> Result<(), Error> {
        Ok(())
    }

    /// How many choices of experts met such a copy so far; nothing where there are none.
    fn expert_hits(&self) -> Option<Hits> {
        None
    }

    /// How often each expert of the layers that `cache_experts` was told has been chosen, of
    /// `[layers][experts]`; nothing where that is not counted.
    fn expert_choices(&self) -> Result<Option<Vec<u32>>, Error> {
        Ok(None)
    }

    /// Takes in such counts of another run: the experts that were chosen most then have their
    /// copies first. Nothing where there are no copies.
    fn expect_experts(&mut self, _chosen: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    /// Takes in a matrix whose rows are looked up.
    fn table(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.matrix(matrix)
    }

    /// A table that is also multiplied with; by default one form serves both.
    fn tied(&mut self, table: MatrixId, _matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        Ok(table)
    }

    /// Makes a random matrix in place; nothing where the backend has no quicker way than being
    /// given one.
    fn random(&mut self, _matrix: RandomMatrix) -> Result<Option<MatrixId>, Error> {
        Ok(None)
    }

    /// Takes a vector in.
    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error>;

    /// Allocates the buffers of a plan for up to `capacity` rows, `chosen` of them with logits.
    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error>;

    /// What the state of sequences may take; all memory for it is held of this budget.
    fn budget(&self) -> &Budget;

    /// Zeroed memory for the state of a sequence.
    fn memory(&self, len: usize) -> Result<Memory, Error> {
        let share = self.budget().take(len, "the state of a sequence")?;
        Ok(Memory::zeroed(len).holding(share))
    }

    /// A copy of such memory, which others may share.
    fn duplicate(&self, memory: &Memory) -> Result<Memory, Error> {
        memory.duplicate()
    }

    /// Whether that memory is other than the host's.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Memory for the state of a sequence that holds what a block of the host holds.
    fn memory_with(&self, host: &Memory) -> Result<Memory, Error> {
        let share = self.budget().take(host.len(), "the state of a sequence")?;
        Ok(host.to_host()?.holding(share))
    }

    /// The same of a block that is given away: one of the host's is taken as it is.
    fn adopt(&self, host: Memory) -> Result<Memory, Error> {
        if self.has_own_memory() {
            return self.memory_with(&host);
        }
        let share = self.budget().take(host.len(), "the state of a sequence")?;
        Ok(host.holding(share))
    }

    /// A copy of a block that is read and never written again, in the host's memory: passes read it
    /// there, over the bus where the backend has memory of its own, whose budget does not count it.
    fn far_memory(&self, block: &Memory) -> Result<Memory, Error> {
        Ok(block.to_host()?.put_aside())
    }

    /// What such copies may take of the host's memory, where they are locked there.
    fn far_budget(&self) -> Option<&Budget> {
        None
    }

    /// Bytes that more of them could take.
    fn far_room(&self) -> usize {
        usize::MAX
    }

    /// What its numbers depend on beside plans, weights and this program: two that say the same
    /// here compute the same bits. States that outlive the process are only read by such.
    fn arithmetic(&self) -> String;

    /// Rows of the largest pass that decodes: what texts and their drafts share. Whoever plans a
    /// round asks for this and assumes nothing.
    fn decode_rows(&self) -> usize;

    /// Those of them that one text has at most.
    fn text_rows(&self) -> usize {
        self.decode_rows()
    }

    /// Rows of a prompt that are best read in one pass.
    fn prompt_rows(&self) -> usize {
        256
    }

    /// Runs the arena's plan over a pass. Reads state, writes only the arena.
    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Result<(), Error>;

    /// Writes the keys and values of several sequences to the pages of cache `cache`. Like the two
    /// calls below, one that failed may be made again, for all or for some of them: what it reads
    /// is overwritten by its last step at the earliest.
    fn commit_kv(
        &mut self,
        arena: &Arena,
        cache: usize,
        commits: &mut [KvCommit<'_>],
    ) -> Result<(), Error>;

    /// Writes the recurrent rows of several sequences to their tapes and folds new anchors.
    fn commit_recurrent(
        &mut self,
        arena: &Arena,
        commits: &mut [RecurrentCommit<'_>],
    ) -> Result<(), Error>;

    /// Copies rows of a buffer of numbers to where several sequences keep them.
    fn keep_rows(
        &mut self,
        arena: &Arena,
        buf: Buf,
        kept: &mut [RowsKept<'_>],
    ) -> Result<(), Error> {
        let cols = arena.plan.cols(buf);
        for RowsKept { rows, to, at } in kept {
            let to = &mut to.slice_mut::<f32>()[*at * cols..][..rows.len() * cols];
            for (row, to) in rows.iter().zip(to.chunks_exact_mut(cols)) {
                to.copy_from_slice(arena.host_row(buf, *row as usize));
            }
        }
        Ok(())
    }

    /// Copies `count` kept rows from row `first` on to a buffer, from its row `at` on.
    fn load_rows(
        &mut self,
        arena: &mut Arena,
        buf: Buf,
        at: usize,
        from: &Memory,
        first: usize,
        count: usize,
    ) -> Result<(), Error> {
        let cols = arena.plan.cols(buf);
        let from = &from.slice::<f32>()[first * cols..][..count * cols];
        arena.numbers_mut(buf)[at * cols..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    /// `count` numbers of kept rows from number `first` on, copied where they lie on a device.
    fn numbers<'m>(
        &self,
        kept: &'m Memory,
        first: usize,
        count: usize,
    ) -> Result<Cow<'m, [f32]>, Error> {
        kept.read(first, count)
    }

    /// Writes numbers of the host to such memory, from number `first` on.
    fn put(&mut self, kept: &mut Memory, first: usize, numbers: &[f32]) -> Result<(), Error> {
        kept.write(first, numbers)
    }

    /// Row `row` of a buffer of numbers, copied where it lies on a device.
    fn row<'a>(&self, arena: &'a Arena, buf: Buf, row: usize) -> Result<Cow<'a, [f32]>, Error> {
        arena.row(buf, row)
    }

    /// The first `rows` rows of a buffer of numbers, copied where they lie on a device.
    fn first_rows<'a>(
        &self,
        arena: &'a Arena,
        buf: Buf,
        rows: usize,
    ) -> Result<Cow<'a, [f32]>, Error> {
        arena.first_rows(buf, rows)
    }

    /// The best `ranks` tokens of each of the first `rows` rows of logits, among those with ids
    /// below `vocab`; nothing of a row where a logit is not a number.
    fn rank(
        &mut self,
        arena: &Arena,
        logits: Buf,
        rows: usize,
        ranks: usize,
        vocab: usize,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        let ranked = |row| crate::rank::rank(&arena.host_row(logits, row)[..vocab], ranks);
        Ok((0..rows).map(ranked).collect())
    }

    /// Draws a token from each of the first rows of logits. Nothing where logits lie in host
    /// memory: there the caller draws, and only from the rows it comes to.
    fn draw(
        &mut self,
        _arena: &Arena,
        _logits: Buf,
        _draws: &[Draw],
    ) -> Result<Option<Vec<Drawn>>, Error> {
        Ok(None)
    }

    /// For people: what it runs on.
    fn describe(&self) -> String;

    /// Bytes copied between host and device so far, there and back.
    fn transferred(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Times every launch from now on, or no longer; the kernels timed until now in order, with
    /// their seconds. Nothing where there are no launches.
    fn time_launches(&mut self, _on: bool) -> Result<Vec<(&'static str, f64)>, Error> {
        Ok(Vec::new())
    }

    /// Bytes a second that its memory is read with, where it can tell.
    fn read_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        Ok(None)
    }

    /// Bytes a second that it reads the host's memory with, where that is not its own.
    fn bus_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        Ok(None)
    }

    /// Waits until everything asked for is done, so that a time taken afterwards means something.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
