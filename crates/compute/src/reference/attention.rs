//! Rotary embedding and attention, one head of one row at a time.

use super::{Run, dot, rms_norm, sigmoid};
use crate::{
    hadamard::hadamard,
    plan::{Op, Rotary},
};

/// `[cos..., sin...]` at a position.
pub(super) fn angles(rotary: &Rotary, position: u32) -> Vec<f32> {
    let angle = |inverse: &f32| (position as f32 * inverse) as f64;
    let frequencies = rotary.inverse_frequencies.iter();
    let cos = frequencies.clone().map(|f| angle(f).cos() as f32 * rotary.magnitude);
    let sin = frequencies.map(|f| angle(f).sin() as f32 * rotary.magnitude);
    cos.chain(sin).collect()
}

/// Norm of a head, then rotation of its first dimensions in pairs `(i, i + pairs)`.
pub fn rotate_head(x: &[f32], norm: &[f32], eps: f32, angles: &[f32]) -> Vec<f32> {
    let mut y = rms_norm(x, norm, eps);
    let (cos, sin) = angles.split_at(angles.len() / 2);
    for i in 0..cos.len() {
        let (a, b) = (y[i], y[i + cos.len()]);
        y[i] = a * cos[i] - b * sin[i];
        y[i + cos.len()] = b * cos[i] + a * sin[i];
    }
    y
}

/// `softmax(q . k * scale) v` over any number of keys.
pub fn attend(query: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32) -> Vec<f32> {
    let scores: Vec<f32> = keys.iter().map(|k| dot(query, k) * scale).collect();
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - highest).exp()).collect();
    let total: f32 = weights.iter().sum();
    let mut out = vec![0.0; query.len()];
    for (w, v) in weights.iter().zip(values) {
        out.iter_mut().zip(v).for_each(|(o, v)| *o += w / total * v);
    }
    out
}

impl Run<'_> {
    pub(super) fn rotate(&mut self, op: &Op) {
        let &Op::Rotate { q, k, v, shape, q_norm, k_norm, eps, angles, cache, layer } = op else {
            unreachable!()
        };
        let cache = self.arena.plan.caches[cache].clone();
        let (dim, bytes) = (shape.head_dim, cache.layout.row_bytes());
        let kind = cache.layout.kind;
        for row in 0..self.pass.rows() {
            let angles = self.row(angles, row).to_vec();
            for head in 0..shape.heads {
                let at = head * shape.query_stride();
                let mut y =
                    rotate_head(&self.row(q, row)[at..][..dim], self.vector(q_norm), eps, &angles);
                if kind.is_hadamard() {
                    hadamard(&mut y);
                }
                self.row_mut(q, row)[at..][..dim].copy_from_slice(&y);
            }
            for head in 0..shape.kv_heads {
                let at = head * dim;
                let key =
                    rotate_head(&self.row(k, row)[at..][..dim], self.vector(k_norm), eps, &angles);
                let value = self.row(v, row)[at..][..dim].to_vec();
                for (part, buf, mut numbers) in [(0, k, key), (1, v, value)] {
                    let kept = (part * shape.kv_heads + head) * bytes;
                    let kept = &mut self.bytes_mut(cache.rows[layer], row)[kept..][..bytes];
                    if kind.is_hadamard() {
                        hadamard(&mut numbers);
                    }
                    kind.encode(&numbers, kept);
                    kind.decode(kept, &mut numbers);
                    self.row_mut(buf, row)[at..][..dim].copy_from_slice(&numbers);
                }
            }
        }
    }

    pub(super) fn attention(&mut self, op: &Op) {
        let &Op::Attention { q, k, v, shape, scale, window, causal, cache, layer, out } = op else {
            unreachable!()
        };
        let layout = self.arena.plan.caches[cache].layout;
        let dim = shape.head_dim;
        for row in 0..self.pass.rows() {
            let sequence = self.pass.sequence_of[row];
            let state = &self.pass.sequences[sequence as usize];
            let position = self.pass.positions[row] as usize;
            let path = self.pass.path(row).iter().flat_map(|run| run.first..run.first + run.len);
            let others = (0..self.pass.rows() as u32)
                .filter(|r| self.pass.sequence_of[*r as usize] == sequence);
            let rows: Vec<u32> = if causal { path.collect() } else { others.collect() };
            let near = |p: usize| window.is_none_or(|w| p.abs_diff(position) < w);
            let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
            for head in 0..shape.heads {
                let kv_head = head / (shape.heads / shape.kv_heads);
                let mut parts = [(Vec::new(), k), (Vec::new(), v)];
                for (part, (list, buf)) in parts.iter_mut().enumerate() {
                    for p in first..state.committed {
                        let page = state.caches[cache].page(p).slice::<u8>();
                        let at = layout.offset(layer, part, kv_head)
                            + p % crate::PAGE_TOKENS * layout.row_bytes();
                        let mut numbers = vec![0.0; dim];
                        layout.kind.decode(&page[at..][..layout.row_bytes()], &mut numbers);
                        list.push(numbers);
                    }
                    for r in
                        rows.iter().filter(|r| near(self.pass.positions[**r as usize] as usize))
                    {
                        list.push(self.row(*buf, *r as usize)[kv_head * dim..][..dim].to_vec());
                    }
                }
                let [(keys, _), (values, _)] = &parts;
                let query =
                    &self.row(q, row)[head * shape.query_stride()..][..shape.query_stride()];
                let mut y = attend(&query[..dim], keys, values, scale);
                if layout.kind.is_hadamard() {
                    hadamard(&mut y);
                }
                if shape.gated {
                    y.iter_mut().zip(&query[dim..]).for_each(|(y, g)| *y *= sigmoid(*g));
                }
                self.row_mut(out, row)[head * dim..][..dim].copy_from_slice(&y);
            }
        }
    }
}
