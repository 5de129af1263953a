//! The convolution and the Gated DeltaNet recurrence, token by token along a path.

use super::{Run, dot, rms_norm, sigmoid, silu, softplus};
use crate::{
    arena::Arena,
    backend::RecurrentCommit,
    pass::Tap,
    plan::{Buf, Op, VectorId},
    recurrent::ANCHOR_TOKENS,
};

/// One channel's convolution and SiLU; taps oldest first.
pub fn convolve(taps: &[f32], weight: &[f32]) -> f32 {
    silu(dot(taps, weight))
}

/// `S <- e^g S + k d^T` with `d` given: [key, value].
fn advance(state: &mut [f32], key: &[f32], delta: &[f32], gate: f32) {
    let decay = gate.exp();
    for (row, k) in state.chunks_exact_mut(delta.len()).zip(key) {
        row.iter_mut().zip(delta).for_each(|(s, d)| *s = decay * *s + k * d);
    }
}

/// `S^T x`.
fn through(state: &[f32], x: &[f32]) -> Vec<f32> {
    let dim = state.len() / x.len();
    let mut y = vec![0.0; dim];
    for (row, x) in state.chunks_exact(dim).zip(x) {
        y.iter_mut().zip(row).for_each(|(y, s)| *y += x * s);
    }
    y
}

/// One token of one head: `d = b (v - e^g S^T k); S <- e^g S + k d^T; o = S^T q`. Returns `(d, o)`.
pub fn delta_step(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    beta: f32,
    gate: f32,
) -> (Vec<f32>, Vec<f32>) {
    let seen = through(state, k);
    let delta: Vec<f32> = v.iter().zip(seen).map(|(v, s)| beta * (v - gate.exp() * s)).collect();
    advance(state, k, &delta, gate);
    let out = through(state, q);
    (delta, out)
}

impl Run<'_> {
    pub(super) fn convolve(&mut self, layer: usize, weight: VectorId, q: Buf, v: Buf) {
        let (layout, kept) = self.arena.plan.recurrent_layer(layer);
        let channels = layout.channels();
        for row in 0..self.pass.rows() {
            let tape = self.pass.sequences[self.pass.sequence_of[row] as usize].tape;
            let mut y = vec![0.0; channels];
            for c in 0..channels {
                let mut taps: Vec<f32> = self.pass.taps[row]
                    .iter()
                    .map(|tap| match tap {
                        Tap::Nothing => 0.0,
                        Tap::Row(r) => self.row(kept.inputs, *r as usize)[c],
                        Tap::Committed(p) => tape.expect("a tape").slice::<f32>()
                            [layout.input(layer, *p as usize) + c],
                    })
                    .collect();
                taps.push(self.row(kept.inputs, row)[c]);
                let weight = self.vector(weight);
                let weight: Vec<f32> =
                    (0..layout.kernel).map(|j| weight[j * channels + c]).collect();
                y[c] = convolve(&taps, &weight);
            }
            let keys = layout.key_heads * layout.dim;
            for (head, x) in y[..2 * keys].chunks_exact_mut(layout.dim).enumerate() {
                let scale =
                    if head < layout.key_heads { 1.0 / (layout.dim as f32).sqrt() } else { 1.0 };
                let factor = scale / (dot(x, x) + 1e-6).sqrt();
                x.iter_mut().for_each(|x| *x *= factor);
            }
            self.row_mut(q, row).copy_from_slice(&y[..keys]);
            self.row_mut(kept.keys, row).copy_from_slice(&y[keys..2 * keys]);
            self.row_mut(v, row).copy_from_slice(&y[2 * keys..]);
        }
    }

    pub(super) fn deltanet(&mut self, op: &Op) {
        let &Op::DeltaNet { layer, q, v, z, alpha, beta, dt_bias, decay, norm, eps, out } = op
        else {
            unreachable!()
        };
        let (layout, kept) = self.arena.plan.recurrent_layer(layer);
        let dim = layout.dim;
        for head in 0..layout.value_heads {
            let key_at = head % layout.key_heads * dim;
            let head_at = head * dim;
            let mut states: Vec<Vec<f32>> = Vec::new(); // after each row
            for row in 0..self.pass.rows() {
                let position = self.pass.positions[row] as usize;
                let view = &self.pass.sequences[self.pass.sequence_of[row] as usize];
                let mut state = if position > view.committed {
                    states[self.pass.ancestor(row, position - 1).expect("a parent") as usize]
                        .clone()
                } else {
                    let mut state = vec![0.0; dim * dim];
                    if let Some(anchor) = view.anchor {
                        state.copy_from_slice(
                            &anchor.slice::<f32>()[layout.state(layer, head)..][..dim * dim],
                        );
                    }
                    for p in view.committed / ANCHOR_TOKENS * ANCHOR_TOKENS..view.committed {
                        let tape = view.tape.expect("a tape").slice::<f32>();
                        let key = &tape[layout.key(layer, p) + key_at..][..dim];
                        let delta = &tape[layout.delta(layer, p) + head_at..][..dim];
                        advance(&mut state, key, delta, tape[layout.gate(layer, p) + head]);
                    }
                    state
                };
                let gate = softplus(self.row(alpha, row)[head] + self.vector(dt_bias)[head])
                    * self.vector(decay)[head];
                let (delta, y) = delta_step(
                    &mut state,
                    &self.row(q, row)[key_at..][..dim],
                    &self.row(kept.keys, row)[key_at..][..dim],
                    &self.row(v, row)[head_at..][..dim],
                    sigmoid(self.row(beta, row)[head]),
                    gate,
                );
                states.push(state);
                self.row_mut(kept.gates, row)[head] = gate;
                self.row_mut(kept.deltas, row)[head_at..][..dim].copy_from_slice(&delta);
                let mut y = rms_norm(&y, self.vector(norm), eps);
                y.iter_mut().zip(&self.row(z, row)[head_at..]).for_each(|(y, z)| *y *= silu(*z));
                self.row_mut(out, row)[head_at..][..dim].copy_from_slice(&y);
            }
        }
    }
}

/// Advances the base state along the path and keeps it at the anchors asked for.
pub(super) fn fold_anchors(arena: &Arena, commit: &mut RecurrentCommit<'_>) {
    let path = commit.path;
    let Some(newest) = commit.anchors.iter().map(|(at, _)| *at).max() else { return };
    let layout = arena.plan.recurrent_layer(0).0;
    let dim = layout.dim;
    let tape = commit.tape.slice::<f32>();
    for layer in 0..layout.layers {
        let kept = arena.plan.recurrent_layer(layer).1;
        for head in 0..layout.value_heads {
            let (key_at, head_at) = (head % layout.key_heads * dim, head * dim);
            let at = layout.state(layer, head);
            let mut state = vec![0.0; dim * dim];
            if let Some(base) = commit.base {
                state.copy_from_slice(&base.slice::<f32>()[at..][..dim * dim]);
            }
            for position in path.position / ANCHOR_TOKENS * ANCHOR_TOKENS..newest {
                if position < path.position {
                    let key = &tape[layout.key(layer, position) + key_at..][..dim];
                    let delta = &tape[layout.delta(layer, position) + head_at..][..dim];
                    advance(&mut state, key, delta, tape[layout.gate(layer, position) + head]);
                } else {
                    let row = path.rows[position - path.position] as usize;
                    let key = &arena.host_row(kept.keys, row)[key_at..][..dim];
                    let delta = &arena.host_row(kept.deltas, row)[head_at..][..dim];
                    advance(&mut state, key, delta, arena.host_row(kept.gates, row)[head]);
                }
                for (p, anchor) in &mut commit.anchors {
                    if *p == position + 1 {
                        anchor.slice_mut::<f32>()[at..][..dim * dim].copy_from_slice(&state);
                    }
                }
            }
        }
    }
}
