//! Weights to numbers: a plan of ops that model code records on named buffers, the f32 reference of
//! every op, and the CPU and CUDA backends. All unsafe code of the project that addresses a
//! processor lives in `cpu` and `cuda`.
//!
//! ```
//! use compute::{Activations, Backend, Cpu, CpuLevel, Matrix, Op, Pass, Plan, Row, SequenceView};
//! use formats::BlockType;
//!
//! // One embedding row of 32 numbers, multiplied with a matrix of ones.
//! let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::F32);
//! let ones = bytemuck::cast_slice::<f32, u8>(&[1.0; 64]).to_vec();
//! let f32s = |bytes| Matrix { ty: BlockType::F32, experts: 1, rows: 2, cols: 32, bytes };
//! let table = cpu.matrix(f32s(&ones))?;
//! let mut plan = Plan::new("example");
//! let (x, y) = (plan.activation("x", 32), plan.numbers("y", 2));
//! plan.record(Op::Embed { table, out: x });
//! plan.matmul(x, table, y);
//! let mut arena = cpu.arena(plan.into(), 4, 0)?;
//! let pass = Pass::new(&[Row { token: 1, sequence: 0, parent: None }], &[], vec![SequenceView::default()]);
//! cpu.run(&mut arena, &pass)?;
//! assert_eq!(*arena.row(y, 0)?, [32.0, 32.0]);
//! # Ok::<(), compute::Error>(())
//! ```

mod arena;
mod backend;
mod budget;
mod commit;
pub mod cpu;
pub mod cuda;
mod error;
pub mod expert_cache;
mod faulty;
mod hadamard;
mod kv;
mod memory;
mod pass;
mod plan;
mod rank;
mod recurrent;
pub mod reference;
pub mod selftest;

pub use arena::Arena;
pub use backend::{
    Backend, CommitPath, Draw, Drawn, KvCommit, Matrix, RandomMatrix, RecurrentCommit, RowsKept,
};
pub use budget::{Budget, Share};
pub use cpu::{Activations, Cpu, CpuLevel};
pub use error::Error;
pub use faulty::{Fault, Faults, Faulty};
pub use hadamard::hadamard;
pub use kv::{KvLayout, KvType, PAGE_TOKENS};
pub use memory::{DeviceBlock, Memory};
pub use pass::{
    AnchorSource, AnchorStep, CONV_REACH, PageTable, Pass, Role, Row, Run, SequenceView, Tap,
};
pub use plan::{
    AttentionShape, BlockConv, Buf, BufferSpec, CacheBuffers, Candidates, ConvNorm, Experts,
    Extent, FeedForward, Kind, Links, MatrixId, Op, Pairs, Plan, Product, RecurrentBuffers,
    RecurrentPlan, Rotary, Routing, Rows, VectorId,
};
pub use rank::{Ranked, rank};
pub use recurrent::{ANCHOR_LAG, ANCHOR_TOKENS, RecurrentLayout, TAPE_TOKENS, anchor_of};
