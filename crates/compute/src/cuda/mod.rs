//! The CUDA backend: weights as tiles in the order the matrix instructions read, plans captured
//! into graphs once for each kind of pass, state in pages of device memory. The driver is found at
//! run time; nothing of CUDA is linked.
#![allow(unsafe_code)]

mod args;
mod block;
mod captured;
mod driver;
mod expert_slots;
mod far;
mod graph;
mod kernels;
mod ledger;
mod mapped;
mod needs;
mod nvrtc;
mod ops;
mod pack;
mod run;
mod scratch;
mod stopwatch;
mod upload;
mod weights;

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
use args::{DECODE_ROWS, TEXT_ROWS};
use block::DeviceMemory;
use captured::{Captured, Lent};
use driver::Driver;
pub use driver::{DeviceInfo, devices, driver_version};
use expert_slots::ExpertSlots;
use far::{Brought, Shelf};
use kernels::Kernels;
pub use kernels::{Images, architectures};
pub use ledger::{Bill, Ledger};
use needs::Needs;
use run::Run;
use scratch::Scratch;
use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};
use upload::PassBuffer;
use weights::Weights;

/// Runs plans on an NVIDIA device.
pub struct Cuda {
    driver: Arc<Driver>,
    /// The device as its kernels know it: those of PTX are Ampere's, whatever it is.
    limits: DeviceInfo,
    kernels: Kernels,
    /// Copies of experts that lie in the host's memory; goes before them.
    slots: Option<ExpertSlots>,
    weights: Weights,
    scratch: Scratch,
    cuts: ops::matmul::Cuts,
    /// For what a call sends beside a pass: paths of commits, settings of draws.
    inbox: DeviceMemory,
    /// For what a call reads back.
    outbox: DeviceMemory,
    budget: Budget,
    /// For blocks that are put aside.
    shelf: Arc<Shelf>,
}

/// Pages a pass has room for at first: 32K tokens of one cache.
const FIRST_PAGES: usize = 512;
/// What memory of sequences is called where there is no room for it.
const STATE: &str = "the state of a sequence";
/// Bytes of the inbox and the outbox.
const BOX: usize = 4 << 20;

/// Rows of a prompt that a device with so much memory reads at once. They are kept in every layer
/// until they are committed: 3.5 MB each at 27B.
fn prompt_rows(memory: usize) -> usize {
    match memory >> 30 {
        100.. => 2048,
        60.. => 1024,
        _ => 256,
    }
}

/// Rows of a decode pass where prompts are read so many at a time: logits of a row are 1 MB, and
/// parts of attention as much, which small cards need for other things.
fn decode_rows(prompt_rows: usize) -> usize {
    if prompt_rows >= 1024 { DECODE_ROWS } else { TEXT_ROWS }
}

impl Cuda {
    /// Opens device number `index`.
    pub fn new(index: usize, images: Images) -> Result<Self, Error> {
        let driver = Driver::open(index)?;
        let kernels = Kernels::load(&driver, images)?;
        let mut limits = driver.info().clone();
        if !driver.overlap.load(Ordering::Relaxed) {
            limits.major = limits.major.min(8);
        }
        let scratch = Scratch::new(&driver)?;
        let inbox = driver.allocate(BOX, "messages")?;
        let outbox = driver.allocate(BOX, "messages")?;
        let cuts = ops::matmul::Cuts::default();
        let (slots, weights, budget) = (None, Weights::default(), Budget::default());
        let shelf = Arc::default();
        Ok(Self {
            limits,
            kernels,
            scratch,
            cuts,
            slots,
            weights,
            inbox,
            outbox,
            budget,
            shelf,
            driver,
        })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        self.driver.info()
    }

    /// Behaves as a card with no more than `bytes` of memory does: prompts are read in passes that
    /// suit it. Who loads a model plans within them.
    pub fn cap_memory(&mut self, bytes: usize) {
        self.limits.memory = self.limits.memory.min(bytes);
    }

    /// Free and total bytes of its memory.
    pub fn memory_info(&self) -> Result<(usize, usize), Error> {
        self.driver.memory()
    }

    /// Bytes of the weights it holds.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes of scratch memory in use.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// Seconds that reading `bytes` of device memory takes, the best of a few: the floor of
    /// anything that reads weights.
    pub fn read_seconds(&self, bytes: usize) -> Result<f64, Error> {
        ops::fill::read_seconds(&self.driver, &self.kernels, bytes)
    }

    /// Seconds that copying `bytes` takes from the host's memory and back, the best of a few.
    pub fn copy_seconds(&self, bytes: usize) -> Result<(f64, f64), Error> {
        let (memory, mut host) = (self.driver.allocate(bytes, "a test")?, vec![0u8; bytes]);
        let mut best = (f64::INFINITY, f64::INFINITY);
        for _ in 0..4 {
            let begin = Instant::now();
            self.driver.upload(memory.address(), &host)?;
            self.driver.finish()?;
            best.0 = best.0.min(begin.elapsed().as_secs_f64());
            let begin = Instant::now();
            self.driver.download(memory.address(), &mut host)?;
            best.1 = best.1.min(begin.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    fn run_on<'a>(
        &'a self,
        arena: &'a Arena,
        args: args::Pass,
        brought: Brought,
        pass: &Pass<'_>,
    ) -> Run<'a> {
        Run {
            driver: &self.driver,
            kernels: &self.kernels,
            limits: &self.limits,
            weights: &self.weights,
            scratch: &self.scratch,
            cuts: &self.cuts,
            arena,
            pass: args,
            slots: pass.slots,
            most_rows: most_rows(pass),
            outbox: self.outbox.address(),
            staged: Cell::new(0),
            brought,
            counts: Cell::new(0),
        }
    }
}

/// Rows that a sequence of a pass has, or some more: how much memory kernels take hangs on it, and
/// a captured pass has to serve all that are alike.
fn most_rows(pass: &Pass<'_>) -> usize {
    let mut rows = vec![0; pass.sequences.len()];
    pass.sequence_of.iter().for_each(|sequence| rows[*sequence as usize] += 1);
    let most: usize = rows.into_iter().max().unwrap_or(0);
    most.next_power_of_two().min(pass.rows())
}

impl Backend for Cuda {
    fn matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.weights.add_matrix(&self.driver, matrix)
    }

    fn host_matrix(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.weights.add_host_matrix(&self.driver, matrix)
    }

    fn cache_experts(&mut self, layers: &[[MatrixId; 3]], bytes: usize) -> Result<(), Error> {
        self.slots = ExpertSlots::new(&self.driver, &mut self.weights, layers, bytes)?;
        Ok(())
    }

    fn expert_hits(&self) -> Option<Hits> {
        self.slots.as_ref().map(ExpertSlots::hits)
    }

    fn expert_choices(&self) -> Result<Option<Vec<u32>>, Error> {
        self.slots.as_ref().map(|slots| slots.choices(&self.driver)).transpose()
    }

    fn expect_experts(&mut self, chosen: &[u32]) -> Result<(), Error> {
        match &mut self.slots {
            Some(slots) => slots.expect(&self.driver, &self.weights, chosen),
            None => Ok(()),
        }
    }

    fn table(&mut self, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.weights.add_table(&self.driver, matrix)
    }

    fn tied(&mut self, _table: MatrixId, matrix: Matrix<'_>) -> Result<MatrixId, Error> {
        self.matrix(matrix)
    }

    fn random(&mut self, m: RandomMatrix) -> Result<Option<MatrixId>, Error> {
        let (driver, kernels) = (&self.driver, &self.kernels);
        let fill = |at, bytes, format| {
            ops::fill::tiles(driver, kernels, (at, bytes), format, m.scale, m.seed)
        };
        self.weights.add_made(driver, &m, fill).map(Some)
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error> {
        self.weights.add_vector(&self.driver, numbers)
    }

    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error> {
        let allocate = |len| Ok(self.driver.allocate(len, "buffers of a pass")?.into());
        let mut arena = Arena::new(plan, capacity, chosen, run::rounded_bytes, allocate)?;
        // What a pass sends to the device grows with the rows that its buffer has room for.
        let small = PassBuffer::new(&self.driver, TEXT_ROWS, FIRST_PAGES)?;
        let more = |rows: usize| {
            let is_needed = capacity > TEXT_ROWS && rows > TEXT_ROWS;
            is_needed.then(|| PassBuffer::new(&self.driver, rows, FIRST_PAGES)).transpose()
        };
        let (wide, large) = (more(self.decode_rows())?, more(capacity)?);
        let commit = ops::commit::Tables::new(&self.driver, &arena)?;
        let needs = Needs::new(&arena.plan, &self.weights, &self.limits);
        let graphs = HashMap::new();
        arena.beside =
            Some(Box::new(Captured { small, wide, large, graphs, generation: 0, commit, needs }));
        Ok(arena)
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn memory(&self, len: usize) -> Result<Memory, Error> {
        let share = self.budget.take(len, STATE)?;
        Ok(Memory::from(self.driver.allocate(len, STATE)?).holding(share))
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn memory_with(&self, host: &Memory) -> Result<Memory, Error> {
        let share = self.budget.take(host.len(), STATE)?;
        let memory = self.driver.allocate_as_is(host.len(), STATE)?;
        if !host.is_empty() {
            self.driver.upload(memory.address(), host.slice())?;
        }
        Ok(Memory::from(memory).holding(share))
    }

    fn far_memory(&self, block: &Memory) -> Result<Memory, Error> {
        self.shelf.copy_of(&self.driver, block)
    }

    fn far_budget(&self) -> Option<&Budget> {
        Some(self.shelf.budget())
    }

    fn far_room(&self) -> usize {
        self.shelf.room()
    }

    /// How products are cut follows from the device; kernels that are no cubins of this program are
    /// made by the driver, or by a compiler of this machine's.
    fn arithmetic(&self) -> String {
        let DeviceInfo { name, major, minor, multiprocessors, shared, .. } = self.driver.info();
        let (kernels, driver) = (self.limits.major, driver_version());
        format!(
            "CUDA, {name}, {major}.{minor} as {kernels}, {multiprocessors} multiprocessors, \
             {shared} bytes shared, driver {driver:?}, {}",
            self.kernels.origin()
        )
    }

    fn decode_rows(&self) -> usize {
        match ops::attention::has_warps(&self.limits) {
            true => decode_rows(self.prompt_rows()),
            false => TEXT_ROWS,
        }
    }

    fn text_rows(&self) -> usize {
        TEXT_ROWS
    }

    fn prompt_rows(&self) -> usize {
        prompt_rows(self.limits.memory)
    }

    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Result<(), Error> {
        assert!(
            pass.rows() <= arena.capacity(),
            "{} rows in an arena of {}",
            pass.rows(),
            arena.capacity()
        );
        assert!(
            pass.chosen.len() <= arena.chosen_capacity(),
            "{} rows with logits",
            pass.chosen.len()
        );
        if pass.rows() == 0 {
            return Ok(());
        }
        let layout = arena.plan.caches.first().map(|cache| cache.layout);
        let mut lent = Lent::of(arena);
        let (arena, captured) = lent.parts();
        captured.needs.reserve(&mut self.scratch, pass)?;
        let brought = Brought::of(pass, layout.as_ref(), &mut self.scratch);
        let has_experts = captured.needs.experts;
        if let Some(slots) = self.slots.as_mut().filter(|_| has_experts) {
            slots.before_pass(&self.driver)?;
        }
        self.run_captured(arena, captured, brought, pass)?;
        if let Some(slots) = self.slots.as_mut().filter(|_| has_experts) {
            slots.after_pass(&self.driver, &self.weights)?;
        }
        Ok(())
    }

    fn commit_kv(
        &mut self,
        arena: &Arena,
        cache: usize,
        commits: &mut [KvCommit<'_>],
    ) -> Result<(), Error> {
        ops::commit::kv(self, arena, cache, commits)
    }

    fn commit_recurrent(
        &mut self,
        arena: &Arena,
        commits: &mut [RecurrentCommit<'_>],
    ) -> Result<(), Error> {
        ops::commit::recurrent(self, arena, commits)
    }

    fn keep_rows(
        &mut self,
        arena: &Arena,
        buf: Buf,
        kept: &mut [RowsKept<'_>],
    ) -> Result<(), Error> {
        ops::commit::keep_rows(self, arena, buf, kept)
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
        let bytes = 4 * arena.plan.cols(buf);
        let to = DeviceMemory::of(&arena.data[buf.0 as usize]).address();
        let to = to + (at * bytes) as u64;
        let from = DeviceMemory::of(from).address() + (first * bytes) as u64;
        self.driver.copy(from, to, count * bytes)
    }

    fn rank(
        &mut self,
        arena: &Arena,
        logits: Buf,
        rows: usize,
        ranks: usize,
        vocab: usize,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        ops::rank::rank(self, arena, logits, [rows, ranks, vocab])
    }

    fn draw(
        &mut self,
        arena: &Arena,
        logits: Buf,
        draws: &[Draw],
    ) -> Result<Option<Vec<Drawn>>, Error> {
        ops::draw::draw(self, arena, logits, draws).map(Some)
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.driver.finish()
    }

    fn describe(&self) -> String {
        let info = self.driver.info();
        format!("{} (cuda, compute capability {}.{})", info.name, info.major, info.minor)
    }

    fn transferred(&self) -> (u64, u64) {
        self.driver.transferred()
    }

    fn time_launches(&mut self, on: bool) -> Result<Vec<(&'static str, f64)>, Error> {
        self.driver.time_launches(on)
    }

    fn read_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        const BYTES: usize = 4 << 30;
        Ok(Some(BYTES as f64 / self.read_seconds(BYTES)?))
    }

    fn bus_bandwidth(&mut self) -> Result<Option<f64>, Error> {
        const BYTES: usize = 256 << 20;
        let seconds = ops::fill::read_host_seconds(&self.driver, &self.kernels, BYTES)?;
        Ok(Some(BYTES as f64 / seconds))
    }
}

impl Cuda {
    /// Sends words to the inbox and gives their address.
    fn send(&self, bytes: &[u8]) -> Result<u64, Error> {
        assert!(bytes.len() <= BOX, "{} bytes for an inbox of {BOX}", bytes.len());
        self.driver.upload(self.inbox.address(), bytes)?;
        Ok(self.inbox.address())
    }
}
