//! The CPU backend: one source for three levels of instructions, chosen once; a spinning pool;
//! weights repacked for the level in use; int8 activations unless f32 is asked for.
#![allow(unsafe_code)]

mod blocks;
mod commit;
mod disk;
mod lanes;
mod matmul;
mod ops;
mod pack;
mod pool;
mod q8;
#[cfg(target_os = "linux")]
mod unreadable;
mod view;

use crate::{
    Error,
    arena::Arena,
    backend::{Backend, KvCommit, Matrix, RecurrentCommit},
    budget::Budget,
    commit::{write_pages, write_tape},
    memory::Memory,
    pass::Pass,
    plan::{Buf, MatrixId, Plan, VectorId},
    rank::Ranked,
};
use pack::Packed;
pub use pack::packed_bytes;
pub use pool::{Pool, Worker};
use q8::Q8Block;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};
use view::{Shared, View, raw_buffers};

/// Which instructions the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuLevel {
    /// Any processor.
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, VL, VNNI.
    Avx512,
}

impl CpuLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The best level of this processor.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|l| l.is_available()).unwrap_or(Self::Scalar)
    }

    /// Whether this build has the level and this processor its instructions.
    #[cfg(not(x86_lanes))]
    pub fn is_available(self) -> bool {
        self == Self::Scalar
    }

    /// Whether this build has the level and this processor its instructions.
    #[cfg(x86_lanes)]
    pub fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2,
            Self::Avx512 => {
                avx2 && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
        }
    }
}

/// What matrices of quantised weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// Rounded to int8, 32 at a time.
    Int8,
    /// As they are.
    F32,
}

/// Runs plans on the processor.
pub struct Cpu {
    level: CpuLevel,
    activations: Activations,
    pool: Pool,
    matrices: Vec<Packed>,
    vectors: Vec<Memory>,
    /// The first matrix of each layer's experts, which counts how often they are chosen.
    experts: Vec<MatrixId>,
    /// Where matrices lie that are to lie on a disk.
    folder: Option<PathBuf>,
    /// [threads].
    scratch: Vec<Memory>,
    budget: Budget,
}

impl Cpu {
    /// A backend with `threads` threads. The level must be available.
    pub fn new(level: CpuLevel, threads: usize, activations: Activations) -> Self {
        assert!(level.is_available(), "this processor lacks {level:?}");
        Self {
            level,
            activations,
            pool: Pool::new(threads),
            matrices: Vec::new(),
            vectors: Vec::new(),
            experts: Vec::new(),
            folder: None,
            scratch: (0..threads).map(|_| Memory::zeroed(0)).collect(),
            budget: Budget::default(),
        }
    }

    /// With a folder for matrices that are to lie on a disk.
    pub fn with_disk(self, folder: Option<PathBuf>) -> Self {
        Self { folder, ..self }
    }

    /// The level in use.
    pub fn level(&self) -> CpuLevel {
        self.level
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs the arena's plan and tells how long each op took, its barrier included.
    pub fn profile(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Vec<Duration> {
        let times = Mutex::new(Vec::with_capacity(arena.plan.ops.len()));
        let observe = |begin: Instant| times.lock().expect("no op panics").push(begin.elapsed());
        self.run_observed(arena, pass, Some(&observe));
        times.into_inner().expect("no op panics")
    }

    fn run_observed(
        &mut self,
        arena: &mut Arena,
        pass: &Pass<'_>,
        observe: Option<&(dyn Fn(Instant) + Sync)>,
    ) {
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
        let plan = arena.plan.clone();
        let needed = 4 * ops::scratch_len(&plan, pass);
        for scratch in &mut self.scratch {
            if scratch.len() < needed {
                *scratch = Memory::zeroed(needed);
            }
        }
        let buffers = raw_buffers(arena);
        let scratch = self.scratch.iter_mut().map(|m| m.slice_mut::<f32>().as_mut_ptr()).collect();
        let shared = &Shared { buffers: &buffers, scratch };
        let (matrices, vectors, level) = (&self.matrices, &self.vectors, self.level);
        let int8 = self.activations == Activations::Int8;
        self.pool.run(|worker| {
            let view = View {
                level,
                int8,
                worker,
                plan: &plan,
                pass,
                matrices,
                vectors,
                buffers: shared.buffers,
                scratch: shared.scratch[worker.index],
            };
            for op in &plan.ops {
                let begin = observe.map(|_| Instant::now());
                // SAFETY: the arena was made for this plan and has room for the pass; all threads
                // run all ops.
                unsafe { ops::execute(&view, op) };
                worker.wait();
                if let (Some(observe), Some(begin), 0) = (observe, begin, worker.index) {
                    observe(begin);
                }
            }
        });
    }

    /// Bytes of all matrices as they are held.
    pub fn weight_bytes(&self) -> usize {
        self.matrices.iter().map(|m| m.experts * m.tiles() * m.tile_bytes).sum()
    }
}

impl Backend for Cpu {
    fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Levels and numbers of threads give the same bits. Angles and softplus come from the system's
    /// library, which may round differently elsewhere: what it makes of some arguments tells.
    fn arithmetic(&self) -> String {
        let bits = (1..=256).fold(0u64, |bits, i| {
            let x = f64::from(i) * 0.731;
            let softplus = (x as f32 / 20.0 - 4.0).exp().ln_1p();
            let all = [x.sin().to_bits(), x.cos().to_bits(), u64::from(softplus.to_bits())];
            all.iter().fold(bits, |bits, b| bits.rotate_left(7).wrapping_mul(0x9e37_79b9) ^ b)
        });
        format!("processor, activations {:?}, library {bits:016x}", self.activations)
    }

    fn matrix(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        self.matrices.push(Packed::new(m, self.pool.threads(), None)?);
        Ok(MatrixId(self.matrices.len() as u32 - 1))
    }

    fn disk_matrix(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        let folder = self.folder.as_deref().ok_or(Error::NoDisk)?;
        self.matrices.push(Packed::new(m, self.pool.threads(), Some(folder))?);
        Ok(MatrixId(self.matrices.len() as u32 - 1))
    }

    fn cache_experts(&mut self, layers: &[[MatrixId; 3]], _bytes: usize) -> Result<(), Error> {
        self.experts = layers.iter().map(|layer| layer[0]).collect();
        for layer in layers {
            let first = &mut self.matrices[layer[0].0 as usize];
            first.count_choices();
            first.layer = if first.is_on_disk() { layer.to_vec() } else { Vec::new() };
        }
        Ok(())
    }

    fn expert_choices(&self) -> Result<Option<Vec<u32>>, Error> {
        let of = |id: &MatrixId| &self.matrices[id.0 as usize].choices;
        let counts = self.experts.iter().flat_map(of).map(|n| n.load(Ordering::Relaxed));
        Ok((!self.experts.is_empty()).then(|| counts.collect()))
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error> {
        let mut memory = Memory::zeroed(4 * numbers.len());
        memory.slice_mut::<f32>().copy_from_slice(numbers);
        self.vectors.push(memory);
        Ok(VectorId(self.vectors.len() as u32 - 1))
    }

    fn decode_rows(&self) -> usize {
        matmul::ROW_CHUNK
    }

    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error> {
        let rounded = |rows: usize, cols: usize| match self.activations {
            Activations::Int8 => rows * cols / 32 * size_of::<Q8Block>(),
            Activations::F32 => 0,
        };
        Arena::new(plan.expanded(), capacity, chosen, rounded, |len| Ok(Memory::zeroed(len)))
    }

    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Result<(), Error> {
        self.run_observed(arena, pass, None);
        // Nothing is asked of weights that lie in memory.
        let folder = self.folder.as_ref().filter(|_| self.matrices.iter().any(Packed::has_failed));
        folder.map_or(Ok(()), |folder| {
            let reason = format!("the disk of `{}` does not give them back", folder.display());
            Err(Error::Lost { call: "read experts", reason })
        })
    }

    fn rank(
        &mut self,
        arena: &Arena,
        logits: Buf,
        rows: usize,
        ranks: usize,
        vocab: usize,
    ) -> Result<Vec<Option<Ranked>>, Error> {
        let ranked = |row: usize| {
            let (logits, mut out) = (&arena.host_row(logits, row)[..vocab], None);
            // SAFETY: the level is available.
            unsafe { ops::rank(self.level, logits, ranks, &mut out) };
            out
        };
        Ok((0..rows).map(ranked).collect())
    }

    fn describe(&self) -> String {
        format!("{} threads of the processor, {:?}", self.pool.threads(), self.level)
    }

    fn commit_kv(
        &mut self,
        arena: &Arena,
        cache: usize,
        commits: &mut [KvCommit<'_>],
    ) -> Result<(), Error> {
        commits.iter_mut().for_each(|commit| write_pages(arena, cache, commit));
        Ok(())
    }

    fn commit_recurrent(
        &mut self,
        arena: &Arena,
        commits: &mut [RecurrentCommit<'_>],
    ) -> Result<(), Error> {
        for commit in commits {
            let anchors = commit::NewAnchors::new(&mut commit.anchors);
            let (path, base, level) = (commit.path, commit.base, self.level);
            let tape = &*commit.tape;
            if !commit.anchors.is_empty() {
                self.pool.run(|worker| {
                    commit::fold_anchors(level, worker, arena, path, base, tape, &anchors)
                });
            }
            write_tape(arena, commit);
        }
        Ok(())
    }
}
