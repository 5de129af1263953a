//! A backend that fails on purpose: it wraps another one and refuses the n-th call of a kind. What
//! must hold when a device fails is tried with it on any backend.

use crate::{
    Error,
    arena::Arena,
    backend::{Backend, Draw, Drawn, KvCommit, Matrix, RandomMatrix, RecurrentCommit, RowsKept},
    budget::Budget,
    expert_cache::Hits,
    memory::Memory,
    pass::Pass,
    plan::{Buf, MatrixId, Plan, VectorId},
    rank::Ranked,
};
use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory for the state of a sequence.
    Allocation,
    /// A pass.
    Launch,
    /// Logits, ranked or drawn tokens that come back.
    Read,
    /// Rows that are kept or loaded.
    Write,
    /// Rows of a pass that become part of a sequence.
    Commit,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 5] =
        [Self::Allocation, Self::Launch, Self::Read, Self::Write, Self::Commit];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Launch => "launch",
            Self::Read => "read",
            Self::Write => "write",
            Self::Commit => "commit",
        }
    }
}

/// What is to fail, and what was called. Clones speak of the same backend.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    counts: [usize; Fault::ALL.len()],
    armed: Option<(Fault, usize)>,
    /// Launches after which the device is lost.
    lost_after: Option<usize>,
}

impl Faults {
    /// Counts from 0 again; the `n`th call of a kind from now on fails, the first being number 0.
    pub fn arm(&self, fault: Option<(Fault, usize)>) {
        *self.calls() = Calls { armed: fault, ..Calls::default() };
    }

    /// Counts from 0 again; after so many launches the device is lost, and every call fails.
    pub fn lose_after(&self, launches: usize) {
        *self.calls() = Calls { lost_after: Some(launches), ..Calls::default() };
    }

    /// Calls of a kind since then.
    pub fn count(&self, fault: Fault) -> usize {
        self.calls().counts[fault as usize]
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails if it is the one.
    fn pass(&self, fault: Fault) -> Result<(), Error> {
        let mut calls = self.calls();
        let number = calls.counts[fault as usize];
        calls.counts[fault as usize] += 1;
        let launches = calls.counts[Fault::Launch as usize];
        if calls.lost_after.is_some_and(|most| launches > most) {
            let reason = "on purpose".to_owned();
            return Err(Error::Lost { call: fault.name(), reason });
        }
        match (calls.armed == Some((fault, number)), fault) {
            (false, _) => Ok(()),
            (true, Fault::Allocation) => {
                Err(Error::OutOfMemory { needed: 0, what: "a fault on purpose" })
            }
            (true, _) => {
                Err(Error::Driver { call: fault.name(), reason: "a fault on purpose".to_owned() })
            }
        }
    }
}

/// A backend whose calls fail when they are told to.
pub struct Faulty {
    inner: Box<dyn Backend>,
    faults: Faults,
}

impl Faulty {
    /// Wraps a backend; nothing fails until the faults are armed.
    pub fn new(inner: Box<dyn Backend>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl Backend for Faulty {
    fn matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.inner.matrix(matrix)
    }

    fn host_matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.inner.host_matrix(matrix)
    }

    fn disk_matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.inner.disk_matrix(matrix)
    }

    fn cache_experts(&mut self, layers: &[[MatrixId; 3]], bytes: usize) -> Result<(), Error> {
        self.inner.cache_experts(layers, bytes)
    }

    fn expert_hits(&self) -> Option<Hits> {
        self.inner.expert_hits()
    }

    fn expert_choices(&self) -> Result<Option<Vec<u32>>, Error> {
        self.inner.expert_choices()
    }

    fn expect_experts(&mut self, chosen: &[u32]) -> Result<(), Error> {
        self.inner.expect_experts(chosen)
    }

    fn table(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.inner.table(matrix)
    }

    fn tied(&mut self, table: MatrixId, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.inner.tied(table, matrix)
    }

    fn random(&mut self, matrix: RandomMatrix) -> Result<Option<MatrixId>, Error> {
        self.inner.random(matrix)
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error> {
        self.inner.vector(numbers)
    }

    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error> {
        self.inner.arena(plan, capacity, chosen)
    }

    fn budget(&self) -> &Budget {
        self.inner.budget()
    }

    fn memory(&self, len: usize) -> Result<Memory, Error> {
        self.faults.pass(Fault::Allocation)?;
        self.inner.memory(len)
    }

    fn duplicate(&self, memory: &Memory) -> Result<Memory, Error> {
        self.faults.pass(Fault::Allocation)?;
        self.inner.duplicate(memory)
    }

    fn has_own_memory(&self) -> bool {
        self.inner.has_own_memory()
    }

    fn memory_with(&self, host: &Memory) -> Result<Memory, Error> {
        self.faults.pass(Fault::Allocation)?;
        self.inner.memory_with(host)
    }

    fn adopt(&self, host: Memory) -> Result<Memory, Error> {
        self.faults.pass(Fault::Allocation)?;
        self.inner.adopt(host)
    }

    fn far_memory(&self, block: &Memory) -> Result<Memory, Error> {
        self.faults.pass(Fault::Allocation)?;
        self.inner.far_memory(block)
    }

    fn far_budget(&self) -> Option<&Budget> {
        self.inner.far_budget()
    }

    fn far_room(&self) -> usize {
        self.inner.far_room()
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn decode_rows(&self) -> usize {
        self.inner.decode_rows()
    }

    fn text_rows(&self) -> usize {
        self.inner.text_rows()
    }

    fn prompt_rows(&self) -> usize {
        self.inner.prompt_rows()
    }

    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Result<(), Error> {
        self.faults.pass(Fault::Launch)?;
        self.inner.run(arena, pass)
    }

    fn commit_kv(
        &mut self,
        arena: &Arena,
        cache: usize,
        commits: &mut [KvCommit<'_>],
    ) -> Result<(), Error> {
        self.faults.pass(Fault::Commit)?;
        self.inner.commit_kv(arena, cache, commits)
    }

    fn commit_recurrent(
        &mut self,
        arena: &Arena,
        commits: &mut [RecurrentCommit<'_>],
    ) -> Result<(), Error> {
        self.faults.pass(Fault::Commit)?;
        self.inner.commit_recurrent(arena, commits)
    }

    fn keep_rows(
        &mut self,
        arena: &Arena,
        buf: Buf,
        kept: &mut [RowsKept<'_>],
    ) -> Result<(), Error> {
        self.faults.pass(Fault::Write)?;
        self.inner.keep_rows(arena, buf, kept)
    }

    fn load_rows(
        &mut self,
        arena: &mut Arena,
        buf: Buf,
        at: usize,
        from: &Memory,
        first: usize,
        count: usize,
    ) -> Result<(), Error> {
        self.faults.pass(Fault::Write)?;
        self.inner.load_rows(arena, buf, at, from, first, count)
    }

    fn numbers<'m>(
        &self,
        kept: &'m Memory,
        first: usize,
        count: usize,
    ) -> Result<Cow<'m, [f32]>, Error> {
        self.faults.pass(Fault::Read)?;
        self.inner.numbers(kept, first, count)
    }

    fn put(&mut self, kept: &mut Memory, first: usize, numbers: &[f32]) -> Result<(), Error> {
        self.faults.pass(Fault::Write)?;
        self.inner.put(kept, first, numbers)
    }

    fn row<'a>(&self, arena: &'a Arena, buf: Buf, row: usize) -> Result<Cow<'a, [f32]>, Error> {
        self.faults.pass(Fault::Read)?;
        self.inner.row(arena, buf, row)
    }

    fn first_rows<'a>(
        &self,
        arena: &'a Arena,
        buf: Buf,
        rows: usize,
    ) -> Result<Cow<'a, [f32]>, Error> {
        self.faults.pass(Fault::Read)?;
        self.inner.first_rows(arena, buf, rows)
    }

    fn rank(
        &mut self,
        arena: &Arena,
        logits: Buf,
        rows: usize,
        ranks: usize,
        vocab: usize,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        self.faults.pass(Fault::Read)?;
        self.inner.rank(arena, logits, rows, ranks, vocab)
    }

    fn draw(
        &mut self,
        arena: &Arena,
        logits: Buf,
        draws: &[Draw],
    ) -> Result<Option<Vec<Drawn>>, Error> {
        self.faults.pass(Fault::Read)?;
        self.inner.draw(arena, logits, draws)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn transferred(&self) -> (u64, u64) {
        self.inner.transferred()
    }

    fn time_launches(&mut self, on: bool) -> Result<Vec<(&'static str, f64)>, Error> {
        self.inner.time_launches(on)
    }

    fn read_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        self.inner.read_bandwidth()
    }

    fn bus_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        self.inner.bus_bandwidth()
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.inner.finish()
    }
}
