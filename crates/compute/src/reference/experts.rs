//! Mixture of experts, one row at a time.

use super::{Run, sigmoid};
use crate::plan::{Buf, Routing};

/// The `top_k` most probable experts with their probabilities divided by their sum, best first.
pub fn route(logits: &[f32], top_k: usize) -> Vec<(u32, f32)> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|l| (l - highest).exp()).collect();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    order.truncate(top_k);
    let sum: f32 = order.iter().map(|e| weights[*e as usize]).sum();
    order.into_iter().map(|e| (e, weights[e as usize] / sum)).collect()
}

impl Run<'_> {
    pub(super) fn route(&mut self, logits: Buf, routing: &Routing, scale: f32) {
        for row in 0..self.pass.rows() {
            for (rank, (id, weight)) in
                route(self.row(logits, row), routing.top_k).into_iter().enumerate()
            {
                self.words_mut(routing.ids)[row * routing.top_k + rank] = id;
                self.row_mut(routing.weights, row)[rank] = weight * scale;
            }
        }
    }

    pub(super) fn combine(
        &mut self,
        routing: &Routing,
        experts: Buf,
        shared: Option<(Buf, Buf)>,
        out: Buf,
    ) {
        for row in 0..self.pass.rows() {
            let mut y = vec![0.0; self.arena.plan.cols(out)];
            for rank in 0..routing.top_k {
                let weight = self.row(routing.weights, row)[rank];
                let expert = self.row(experts, row * routing.top_k + rank);
                y.iter_mut().zip(expert).for_each(|(y, e)| *y += weight * e);
            }
            if let Some((part, gate)) = shared {
                let gate = sigmoid(self.row(gate, row)[0]);
                y.iter_mut().zip(self.row(part, row)).for_each(|(y, s)| *y += gate * s);
            }
            self.row_mut(out, row).copy_from_slice(&y);
        }
    }
}
