//! The plain f32 version of every op: the specification that faster backends are tested against.
//! One thread, no tricks, readable first. Attention is one softmax over all keys; DeltaNet is the
//! recurrence as the model defines it.

mod attention;
mod block;
mod deltanet;
mod experts;
mod rows;

use crate::{
    Error,
    arena::Arena,
    backend::{Backend, KvCommit, Matrix, RecurrentCommit},
    budget::Budget,
    commit::{write_pages, write_tape},
    memory::Memory,
    pass::Pass,
    plan::{Buf, MatrixId, Op, Plan, Product, Rows, VectorId},
};
pub use attention::{attend, rotate_head};
pub use deltanet::{convolve, delta_step};
pub use experts::route;
pub use rows::{dot, rms_norm, sigmoid, silu, softplus};
use std::sync::Arc;

struct DecodedMatrix {
    rows: usize,
    cols: usize,
    /// [experts, rows, cols].
    numbers: Vec<f32>,
}

/// Runs plans op by op in f32.
#[derive(Default)]
pub struct Reference {
    matrices: Vec<DecodedMatrix>,
    vectors: Vec<Vec<f32>>,
    budget: Budget,
}

/// A plan while it runs.
struct Run<'a> {
    weights: &'a Reference,
    arena: &'a mut Arena,
    pass: &'a Pass<'a>,
}

impl Run<'_> {
    fn vector(&self, id: VectorId) -> &[f32] {
        &self.weights.vectors[id.0 as usize]
    }

    fn row(&self, buf: Buf, row: usize) -> &[f32] {
        self.arena.host_row(buf, row)
    }

    fn row_mut(&mut self, buf: Buf, row: usize) -> &mut [f32] {
        let cols = self.arena.plan.cols(buf);
        &mut self.arena.numbers_mut(buf)[row * cols..][..cols]
    }

    fn words_mut(&mut self, buf: Buf) -> &mut [u32] {
        self.arena.data[buf.0 as usize].slice_mut()
    }

    fn bytes_mut(&mut self, buf: Buf, row: usize) -> &mut [u8] {
        let cols = self.arena.plan.cols(buf);
        &mut self.arena.data[buf.0 as usize].slice_mut::<u8>()[row * cols..][..cols]
    }

    fn execute(&mut self, op: &Op) {
        match op {
            Op::Embed { table, out } => {
                let table = &self.weights.matrices[table.0 as usize];
                for row in 0..self.pass.rows() {
                    let token = self.pass.tokens[row] as usize;
                    let from = &table.numbers[token * table.cols..][..table.cols];
                    self.row_mut(*out, row).copy_from_slice(from);
                }
            }
            Op::Norm { x, add, weight, eps, out, offset, tap } => {
                for row in 0..self.pass.rows() {
                    if let Some(add) = add {
                        let add = self.row(*add, row).to_vec();
                        self.row_mut(*x, row).iter_mut().zip(add).for_each(|(x, a)| *x += a);
                    }
                    let numbers = self.row(*x, row).to_vec();
                    if let Some((tap, at)) = tap {
                        self.row_mut(*tap, row)[*at..][..numbers.len()].copy_from_slice(&numbers);
                    }
                    let normed = rms_norm(&numbers, self.vector(*weight), *eps);
                    self.row_mut(*out, row)[*offset..][..normed.len()].copy_from_slice(&normed);
                }
            }
            Op::Load { x, out } => {
                for row in 0..self.pass.rows() {
                    let numbers = self.row(*x, row).to_vec();
                    self.row_mut(*out, row).copy_from_slice(&numbers);
                }
            }
            Op::SwiGlu { parts } => {
                for &(gate, up, out) in parts {
                    for row in 0..self.arena.plan.buffers[out.0 as usize]
                        .rows(self.pass.rows(), self.pass.chosen.len())
                    {
                        let pairs = self.row(gate, row).iter().zip(self.row(up, row));
                        let y: Vec<f32> = pairs.map(|(g, u)| silu(*g) * u).collect();
                        self.row_mut(out, row).copy_from_slice(&y);
                    }
                }
            }
            Op::Matmul { products } => products.iter().for_each(|p| self.multiply(p)),
            Op::Angles { rotary, out } => {
                for row in 0..self.pass.rows() {
                    let angles = attention::angles(rotary, self.pass.positions[row]);
                    self.row_mut(*out, row).copy_from_slice(&angles);
                }
            }
            Op::Rotate { .. } => self.rotate(op),
            Op::Attention { .. } => self.attention(op),
            Op::Convolve { layer, weight, q, v } => self.convolve(*layer, *weight, *q, *v),
            Op::DeltaNet { .. } => self.deltanet(op),
            Op::Route { logits, routing, scale } => self.route(*logits, routing, *scale),
            Op::Experts(experts) => experts.expand().iter().for_each(|op| self.execute(op)),
            Op::Combine { routing, experts, shared, out } => {
                self.combine(routing, *experts, *shared, *out)
            }
            Op::Scale { x, by, cap } => self.scale(*x, *by, *cap),
            Op::BlockConv(conv) => self.block_conv(conv),
            Op::ConvNorm(both) => both.expand().iter().for_each(|op| self.execute(op)),
            Op::Top { logits, vocab, out } => self.top(*logits, *vocab, out),
            Op::Pairs(pairs) => self.pairs(pairs),
        }
    }

    fn multiply(&mut self, product: &Product) {
        let matrix = &self.weights.matrices[product.weight.0 as usize];
        let pass = self.pass;
        // (input row, output row, expert)
        let rows: Vec<(usize, usize, usize)> = match product.rows {
            Rows::All => (0..pass.rows()).map(|r| (r, r, 0)).collect(),
            Rows::Chosen => {
                pass.chosen.iter().enumerate().map(|(i, r)| (*r as usize, i, 0)).collect()
            }
            Rows::ToExperts(routing) | Rows::FromExperts(routing) => {
                let per_visit = matches!(product.rows, Rows::FromExperts(_));
                let ids = &self.arena.words(routing.ids)[..pass.rows() * routing.top_k];
                let from = |visit: usize| if per_visit { visit } else { visit / routing.top_k };
                ids.iter()
                    .enumerate()
                    .map(|(visit, id)| (from(visit), visit, *id as usize))
                    .collect()
            }
        };
        for (from, to, expert) in rows {
            let x = self.row(product.x, from);
            let weights =
                &matrix.numbers[expert * matrix.rows * matrix.cols..][..matrix.rows * matrix.cols];
            let y: Vec<f32> = weights.chunks_exact(matrix.cols).map(|w| dot(x, w)).collect();
            self.row_mut(product.out, to).copy_from_slice(&y);
        }
    }
}

impl Backend for Reference {
    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn arithmetic(&self) -> String {
        "reference".to_owned()
    }

    fn matrix(&mut self, m: Matrix<'_>) -> Result<MatrixId, Error> {
        let mut numbers = vec![0.0; m.experts * m.rows * m.cols];
        formats::blocks::decode(m.ty, m.bytes, &mut numbers);
        self.matrices.push(DecodedMatrix { rows: m.rows, cols: m.cols, numbers });
        Ok(MatrixId(self.matrices.len() as u32 - 1))
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<VectorId, Error> {
        self.vectors.push(numbers.to_vec());
        Ok(VectorId(self.vectors.len() as u32 - 1))
    }

    /// It reads row after row and has no bound of its own; this is what others are compared at.
    fn decode_rows(&self) -> usize {
        64
    }

    fn arena(&self, plan: Arc<Plan>, capacity: usize, chosen: usize) -> Result<Arena, Error> {
        Arena::new(plan, capacity, chosen, |_, _| 0, |len| Ok(Memory::zeroed(len)))
    }

    fn run(&mut self, arena: &mut Arena, pass: &Pass<'_>) -> Result<(), Error> {
        let plan = arena.plan.clone();
        let mut run = Run { weights: self, arena, pass };
        plan.ops.iter().for_each(|op| run.execute(op));
        Ok(())
    }

    fn describe(&self) -> String {
        "the reference".into()
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
            deltanet::fold_anchors(arena, commit);
            write_tape(arena, commit);
        }
        Ok(())
    }
}
