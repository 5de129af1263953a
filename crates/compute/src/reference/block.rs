//! What blocks of a drafter need besides layers: convolution over rows, the best tokens of a row,
//! how well they follow each other.

use super::Run;
use crate::{
    plan::{Before, BlockConv, Buf, Candidates, Pairs},
    rank::rank,
};

impl Run<'_> {
    pub(super) fn scale(&mut self, x: Buf, by: f32, cap: Option<f32>) {
        let spec = &self.arena.plan.buffers[x.0 as usize];
        for row in 0..spec.rows(self.pass.rows(), self.pass.chosen.len()) {
            for x in self.row_mut(x, row) {
                *x *= by;
                if let Some(cap) = cap {
                    *x = cap * (*x / cap).tanh();
                }
            }
        }
    }

    pub(super) fn block_conv(&mut self, conv: &BlockConv) {
        let cols = self.arena.plan.cols(conv.x);
        let groups = cols / conv.group;
        for row in 0..self.pass.rows() {
            let rows = conv.rows(self.pass, row);
            let coefficients = &self.row(conv.coefficients, row)[conv.first..];
            let base = self.vector(conv.base);
            let mut y = vec![0.0; cols];
            for (t, read) in rows.into_iter().enumerate() {
                let Some(read) = read else { continue };
                let x = self.row(conv.x, read);
                for c in 0..cols {
                    y[c] += (base[t * cols + c] + coefficients[t * groups + c / conv.group]) * x[c];
                }
            }
            self.row_mut(conv.out, row).copy_from_slice(&y);
        }
    }

    pub(super) fn top(&mut self, logits: Buf, vocab: usize, out: &Candidates) {
        for i in 0..self.pass.chosen.len() {
            let ranked = rank(&self.row(logits, i)[..vocab], out.count);
            let best = ranked.unwrap_or_else(|| vec![(0, f32::NAN); out.count]);
            let to = self.row_mut(out.buf, i);
            for (rank, (id, log)) in best.into_iter().enumerate() {
                to[rank] = id as f32;
                to[out.count + rank] = log;
            }
        }
    }

    pub(super) fn pairs(&mut self, pairs: &Pairs) {
        let Candidates { buf, count } = pairs.candidates;
        let table = |id: crate::MatrixId, token: usize| {
            let table = &self.weights.matrices[id.0 as usize];
            &table.numbers[token * table.cols..][..table.cols]
        };
        let mut found = Vec::new();
        for i in 0..self.pass.chosen.len() {
            let ids = |row: usize| self.row(buf, row)[..count].iter().map(|id| *id as usize);
            let before: Vec<usize> = match self.pass.before(i) {
                Before::Token(token) => vec![token as usize; count],
                Before::Candidates(row) => ids(row).collect(),
            };
            let gate = |r: usize| pairs.gates.map_or(1.0, |gates| self.row(gates, i)[r]);
            let mut scores = Vec::with_capacity(count * count);
            for a in before {
                for b in ids(i) {
                    let (a, b) = (table(pairs.predecessors, a), table(pairs.successors, b));
                    scores.push((0..pairs.rank).map(|r| a[r] * gate(r) * b[r]).sum::<f32>());
                }
            }
            found.push(scores);
        }
        for (i, scores) in found.iter().enumerate() {
            self.row_mut(buf, i)[2 * count..].copy_from_slice(scores);
        }
    }
}
