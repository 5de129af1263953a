//! A backend that holds nothing and counts what the CUDA backend would: loading a model on it is
//! the plan of device memory, made by the very code that loads it.

use super::{args, ops, run, weights};
use crate::{
    Error,
    arena::Arena,
    backend::{Backend, KvCommit, Matrix, RandomMatrix, RecurrentCommit},
    budget::Budget,
    expert_cache::slots_within,
    memory::Memory,
    pass::Pass,
    plan::{AttentionShape, MatrixId, Op, Plan, Product, VectorId},
};
use formats::BlockType;
use std::sync::{Arc, Mutex};

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    /// Bytes of weights as tiles, tables and vectors.
    pub weights: usize,
    /// Those of them that are experts', and those whose rows are looked up.
    pub experts: usize,
    /// See `experts`.
    pub tables: usize,
    /// Bytes of weights as tiles in the host's memory.
    pub host_weights: usize,
    /// Those of them that are experts', of which a pass reads what it has chosen.
    pub host_experts: usize,
    /// Bytes of copies of experts on the device.
    pub copies: usize,
    /// Bytes of the buffers of passes.
    pub buffers: usize,
    attention: Vec<AttentionShape>,
    decode_rows: usize,
    staged: usize,
}

impl Bill {
    /// Bytes of scratch memory.
    pub fn scratch(&self) -> usize {
        let bytes = |shape| ops::attention::partial_bytes(shape, self.decode_rows);
        self.attention.iter().map(bytes).max().unwrap_or(0) + self.staged
    }
}

/// Counts.
#[derive(Clone, Default)]
pub struct Ledger {
    bill: Arc<Mutex<Bill>>,
    prompt_rows: usize,
    /// For each matrix its bytes in the host's memory, without those of experts.
    brought: Vec<usize>,
    /// For each matrix its experts, and bytes of one, where they lie in the host's memory.
    experts: Vec<(usize, usize)>,
    vectors: u32,
    budget: Budget,
}

impl Ledger {
    /// One for a device that reads prompts in passes of `prompt_rows` rows.
    pub fn new(prompt_rows: usize) -> Self {
        let bill = Bill { decode_rows: super::decode_rows(prompt_rows), ..Bill::default() };
        Self { prompt_rows, bill: Arc::new(Mutex::new(bill)), ..Self::default() }
    }

    /// What was counted so far.
    pub fn bill(&self) -> Bill {
        self.bill.lock().expect("nothing panics while counting").clone()
    }

    fn add_matrix(&mut self, ty: BlockType, experts: usize, rows: usize, cols: usize) -> MatrixId {
        let (_, bytes) = weights::tiles(ty, [experts, rows, cols]);
        self.count(|bill| {
            bill.weights += bytes;
            bill.experts += if experts > 1 { bytes } else { 0 };
        });
        self.next_matrix(0)
    }

    fn add_host(&mut self, ty: BlockType, shape: [usize; 3]) -> MatrixId {
        let (_, bytes) = weights::tiles(ty, shape);
        let experts = if shape[0] > 1 { bytes } else { 0 };
        self.count(|bill| {
            bill.host_weights += bytes;
            bill.host_experts += experts;
        });
        let id = self.next_matrix(bytes - experts);
        self.experts[id.0 as usize] = (shape[0], experts / shape[0]);
        id
    }

    fn count(&self, add: impl FnOnce(&mut Bill)) {
        add(&mut self.bill.lock().expect("nothing panics while counting"));
    }

    fn next_matrix(&mut self, brought: usize) -> MatrixId {
        self.brought.push(brought);
        self.experts.push((0, 0));
        MatrixId(self.brought.len() as u32 - 1)
    }
}

impl Backend for Ledger {
    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn arithmetic(&self) -> String {
        "none".to_owned()
    }

    fn matrix(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        Ok(self.add_matrix(m.ty, m.experts, m.rows, m.cols))
    }

    fn host_matrix(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        Ok(self.add_host(m.ty, [m.experts, m.rows, m.cols]))
    }

    /// On a disk it takes no memory that is counted.
    fn disk_matrix(&mut self, _: Matrix<'_>) -> Result<MatrixId, Error> {
        Ok(self.next_matrix(0))
    }

    fn cache_experts(&mut self, layers: &[[MatrixId; 3]], bytes: usize) -> Result<(), Error> {
        let of = |id: &MatrixId| self.experts[id.0 as usize];
        let each = layers.iter().flatten().map(|id| of(id).1).sum::<usize>();
        let experts = layers.first().map_or(0, |layer| of(&layer[0]).0);
        let slots = slots_within(bytes, each, experts);
        self.count(|bill| bill.copies += slots * each);
        Ok(())
    }

    fn table(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        self.count(|bill| {
            bill.weights += m.bytes.len();
            bill.tables += m.bytes.len();
        });
        Ok(self.next_matrix(0))
    }

    fn tied(&mut self, _table: MatrixId, m: Matrix<'_>) -> Result<MatrixId, Error> {
        self.matrix(m)
    }

    fn random(&mut self, m: RandomMatrix) -> Result<Option<MatrixId>, Error> {
        Ok(Some(match m.on_host {
            true => self.add_host(m.ty, [m.experts, m.rows, m.cols]),
            false => self.add_matrix(m.ty, m.experts, m.rows, m.cols),
        }))
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error> {
        self.count(|bill| bill.weights += 4 * numbers.len());
        self.vectors += 1;
        Ok(VectorId(self.vectors - 1))
    }

    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error> {
        let mut bill = self.bill.lock().expect("nothing panics while counting");
        for op in &plan.ops {
            match op {
                Op::Attention { shape, .. } if !bill.attention.contains(shape) => {
                    bill.attention.push(*shape);
                }
                Op::Matmul { products } => {
                    let brought = |p: &Product| self.brought[p.weight.0 as usize];
                    bill.staged = bill.staged.max(ops::prompt_matmul::staged(products, brought));
                }
                _ => {}
            }
        }
        let count = std::cell::Cell::new(0);
        let allocate = |len: usize| {
            count.set(count.get() + len);
            Ok(Memory::zeroed(0))
        };
        let arena = Arena::new(plan, capacity, chosen, run::rounded_bytes, allocate)?;
        bill.buffers += count.get();
        Ok(arena)
    }

    fn decode_rows(&self) -> usize {
        super::decode_rows(self.prompt_rows)
    }

    fn text_rows(&self) -> usize {
        args::TEXT_ROWS
    }

    fn prompt_rows(&self) -> usize {
        self.prompt_rows
    }

    fn run(&mut self, _: &mut Arena, _: &Pass<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a count of device memory".into()
    }

    fn commit_kv(&mut self, _: &Arena, _: usize, _: &mut [KvCommit<'_>]) -> Result<(), Error> {
        Ok(())
    }

    fn commit_recurrent(&mut self, _: &Arena, _: &mut [RecurrentCommit<'_>]) -> Result<(), Error> {
        Ok(())
    }
}
