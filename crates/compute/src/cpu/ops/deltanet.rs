//! Gated DeltaNet in the tree form: from the anchor's state `S` and the rows `i` since then on the path of row `n`,
//! with `G` the log decay summed from the anchor,
//!
//! ```text
//! d_n = b_n (v_n - e^{G_n} S^T k_n - sum_i e^{G_n - G_i} (k_i . k_n) d_i)
//! o_n =            e^{G_n} S^T q_n + sum_i e^{G_n - G_i} (k_i . q_n) d_i + (k_n . q_n) d_n
//! ```
//!
//! No state is written; the rows' `k`, `d` and log decay stay in the arena for the commit.

use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        q8::quantise_row,
        view::{RawBuffer, View},
    },
    pass::{AnchorSource, AnchorStep, Pass},
    plan::{Op, Plan},
    recurrent::{ANCHOR_LAG, ANCHOR_TOKENS, RecurrentLayout},
};

/// Rows between a row and its anchor are fewer than this (rounded up to whole vectors).
const MAX_ANCESTORS: usize = 64;
const _: () = assert!(ANCHOR_TOKENS + ANCHOR_LAG <= MAX_ANCESTORS);

/// Rows whose products with the state are taken together.
const ROW_GROUP: usize = 2;

pub(super) fn scratch_len(plan: &Plan, pass: &Pass<'_>) -> usize {
    let dim = plan.recurrent_layer(0).0.dim;
    pass.slots * dim * dim + 2 * ROW_GROUP * dim + ANCHOR_TOKENS * dim
}

/// A row that a state is folded with.
#[derive(Clone, Copy)]
pub(crate) struct FoldRow {
    /// [dim].
    pub(crate) key: *const f32,
    /// [dim].
    pub(crate) delta: *const f32,
    /// Log decay.
    pub(crate) gate: f32,
}

/// `out = e^{G} S + sum_i e^{G - G_i} k_i d_i^T` over 32 rows. `state` may be null (zero) or `out` itself.
#[inline(always)]
unsafe fn fold_body<L: Lanes>(
    state: *const f32,
    rows: &[FoldRow; ANCHOR_TOKENS],
    dim: usize,
    scaled_keys: *mut f32, // [ANCHOR_TOKENS, dim]
    out: *mut f32,
) {
    unsafe {
        let mut sums = [0f32; ANCHOR_TOKENS];
        let mut sum = 0.0;
        for (i, row) in rows.iter().enumerate() {
            sum += row.gate;
            sums[i] = sum;
        }
        let decay = L::splat(sum).exp();
        for (i, row) in rows.iter().enumerate() {
            let factor = L::splat(sum - sums[i]).exp();
            for d in (0..dim).step_by(16) {
                L::load(row.key.add(d)).mul(factor).store(scaled_keys.add(i * dim + d));
            }
        }
        for key in (0..dim).step_by(4) {
            let mut column = 0;
            while column < dim {
                if column + 64 <= dim {
                    fold_columns::<L, 4>(state, rows, dim, scaled_keys, decay, key, column, out);
                    column += 64;
                } else {
                    fold_columns::<L, 1>(state, rows, dim, scaled_keys, decay, key, column, out);
                    column += 16;
                }
            }
        }
    }
}

/// Four keys times `16 C` values.
#[inline(always)]
unsafe fn fold_columns<L: Lanes, const C: usize>(
    state: *const f32,
    rows: &[FoldRow; ANCHOR_TOKENS],
    dim: usize,
    scaled_keys: *const f32,
    decay: L,
    key: usize,
    column: usize,
    out: *mut f32,
) {
    unsafe {
        let mut sums = [[L::zero(); C]; 4];
        if !state.is_null() {
            for j in 0..4 {
                for c in 0..C {
                    sums[j][c] = L::load(state.add((key + j) * dim + column + 16 * c)).mul(decay);
                }
            }
        }
        for (i, row) in rows.iter().enumerate() {
            let delta: [L; C] = std::array::from_fn(|c| L::load(row.delta.add(column + 16 * c)));
            for j in 0..4 {
                let k = L::splat(*scaled_keys.add(i * dim + key + j));
                for c in 0..C {
                    sums[j][c] = k.fma(delta[c], sums[j][c]);
                }
            }
        }
        for j in 0..4 {
            for c in 0..C {
                sums[j][c].store(out.add((key + j) * dim + column + 16 * c));
            }
        }
    }
}

at_level!(
    /// Folds 32 rows into a state; the pass and the commit use this same function, so they agree to the bit.
    pub(crate) fn fold = fold_body(
        state: *const f32, rows: &[FoldRow; ANCHOR_TOKENS], dim: usize, scaled_keys: *mut f32, out: *mut f32,
    )
);

/// `out[n] = S^T x[n]` for `N` vectors.
#[inline(always)]
unsafe fn through_state<L: Lanes, const N: usize>(
    state: *const f32,
    dim: usize,
    x: [*const f32; N],
    out: *mut f32,
) {
    #[inline(always)]
    unsafe fn columns<L: Lanes, const N: usize, const C: usize>(
        state: *const f32,
        dim: usize,
        x: [*const f32; N],
        column: usize,
        out: *mut f32,
    ) {
        unsafe {
            let mut sums = [[L::zero(); C]; N];
            for key in 0..dim {
                let s: [L; C] = std::array::from_fn(|c| L::load(state.add(key * dim + column + 16 * c)));
                for n in 0..N {
                    let x = L::splat(*x[n].add(key));
                    for c in 0..C {
                        sums[n][c] = x.fma(s[c], sums[n][c]);
                    }
                }
            }
            for n in 0..N {
                for c in 0..C {
                    sums[n][c].store(out.add(n * dim + column + 16 * c));
                }
            }
        }
    }
    unsafe {
        let mut column = 0;
        while column < dim {
            if column + 64 <= dim {
                columns::<L, N, 4>(state, dim, x, column, out);
                column += 64;
            } else {
                columns::<L, N, 1>(state, dim, x, column, out);
                column += 16;
            }
        }
    }
}

/// One value head of one sequence.
struct HeadJob<'a> {
    layout: RecurrentLayout,
    layer: usize,
    head: usize,
    sequence: usize,
    q: RawBuffer,
    keys: RawBuffer,
    v: RawBuffer,
    z: RawBuffer,
    alpha: RawBuffer,
    beta: RawBuffer,
    deltas: RawBuffer,
    gates: RawBuffer,
    dt_bias: f32,
    decay: f32,
    norm: &'a [f32],
    eps: f32,
    out: RawBuffer,
}

impl HeadJob<'_> {
    /// Key, delta and log decay at `position` on the path of `row`.
    unsafe fn row_at(&self, pass: &Pass<'_>, row: usize, position: usize) -> FoldRow {
        let (layout, key_head) = (&self.layout, self.head % self.layout.key_heads);
        match pass.ancestor(row, position) {
            // SAFETY: the row was computed before this one.
            Some(r) => unsafe {
                FoldRow {
                    key: self.keys.row(r as usize).add(key_head * layout.dim),
                    delta: self.deltas.row(r as usize).add(self.head * layout.dim),
                    gate: *self.gates.row(r as usize).add(self.head),
                }
            },
            None => {
                let tape =
                    pass.sequences[self.sequence].tape.expect("committed rows have a tape").slice::<f32>();
                FoldRow {
                    key: tape[layout.key(self.layer, position) + key_head * layout.dim..].as_ptr(),
                    delta: tape[layout.delta(self.layer, position) + self.head * layout.dim..].as_ptr(),
                    gate: tape[layout.gate(self.layer, position) + self.head],
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn run_head<L: Lanes>(view: &View<'_>, job: &HeadJob<'_>) {
    unsafe {
        let pass = view.pass;
        let dim = job.layout.dim;
        let states = view.scratch; // [slots, dim, dim]
        let through = states.add(pass.slots * dim * dim); // [ROW_GROUP, (key, query), dim]
        let scaled_keys = through.add(2 * ROW_GROUP * dim);
        let (begin, end) = pass.steps_of[job.sequence];
        let state_of = |step: &AnchorStep| -> *const f32 {
            let view = &pass.sequences[job.sequence];
            let at = job.layout.state(job.layer, job.head);
            let stored =
                |m: Option<&crate::Memory>| m.expect("a committed anchor").slice::<f32>()[at..].as_ptr();
            match step.source {
                AnchorSource::Zero => std::ptr::null(),
                AnchorSource::Older => stored(view.older_anchor),
                AnchorSource::Newest => stored(view.anchor),
                AnchorSource::Folded { slot, .. } => states.add(slot * dim * dim),
            }
        };
        for step in &pass.steps[begin..end] {
            let state = state_of(step);
            if let AnchorSource::Folded { from, last, .. } = step.source {
                let first = step.position - ANCHOR_TOKENS;
                let rows: [FoldRow; ANCHOR_TOKENS] =
                    std::array::from_fn(|i| job.row_at(pass, last as usize, first + i));
                fold_body::<L>(state_of(&pass.steps[from]), &rows, dim, scaled_keys, state.cast_mut());
            }
            let key_at = job.head % job.layout.key_heads * dim;
            for rows in step.rows.chunks(ROW_GROUP) {
                if !state.is_null() {
                    let x = |r: u32| {
                        let r = r as usize;
                        [job.keys.row(r).add(key_at).cast_const(), job.q.row(r).add(key_at).cast_const()]
                    };
                    match *rows {
                        [a, b] => {
                            let ([ka, qa], [kb, qb]) = (x(a), x(b));
                            through_state::<L, 4>(state, dim, [ka, qa, kb, qb], through);
                        }
                        _ => through_state::<L, 2>(state, dim, x(rows[0]), through),
                    }
                }
                for (i, row) in rows.iter().enumerate() {
                    let through = if state.is_null() { std::ptr::null() } else { through.add(2 * i * dim) };
                    run_row::<L>(view, job, step, *row as usize, through);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn run_row<L: Lanes>(
    view: &View<'_>,
    job: &HeadJob<'_>,
    step: &AnchorStep,
    row: usize,
    through: *const f32,
) {
    unsafe {
        let pass = view.pass;
        let dim = job.layout.dim;
        let key_at = job.head % job.layout.key_heads * dim;
        let head_at = job.head * dim;
        let (key, query) = (job.keys.row(row).add(key_at), job.q.row(row).add(key_at));
        let alpha = *job.alpha.row(row).add(job.head) + job.dt_bias;
        // softplus, which is its argument where e^-x no longer counts.
        let gate = if alpha > 20.0 { alpha } else { alpha.exp().ln_1p() } * job.decay;
        *job.gates.row(row).add(job.head) = gate;
        let beta = L::splat(*job.beta.row(row).add(job.head)).sigmoid();

        // The rows since the anchor, in order of position, with the log decay summed up to each.
        let position = pass.positions[row] as usize;
        let n = position - step.position;
        let mut deltas = [std::ptr::null::<f32>(); MAX_ANCESTORS];
        let mut sums = [0f32; MAX_ANCESTORS];
        let mut to_key = [0f32; MAX_ANCESTORS];
        let mut to_query = [0f32; MAX_ANCESTORS];
        let mut sum = 0.0;
        for i in 0..n {
            let ancestor = job.row_at(pass, row, step.position + i);
            sum += ancestor.gate;
            sums[i] = sum;
            deltas[i] = ancestor.delta;
            let mut dots = [L::zero(); 2];
            for d in (0..dim).step_by(16) {
                let k = L::load(ancestor.key.add(d));
                dots[0] = k.fma(L::load(key.add(d)), dots[0]);
                dots[1] = k.fma(L::load(query.add(d)), dots[1]);
            }
            to_key[i] = dots[0].sum();
            to_query[i] = dots[1].sum();
        }
        let total = sum + gate;
        for i in (0..n).step_by(16) {
            let decay = L::splat(total).sub(L::load(sums.as_ptr().add(i))).exp();
            for dots in [&mut to_key, &mut to_query] {
                L::load(dots.as_ptr().add(i)).mul(decay).store(dots.as_mut_ptr().add(i));
            }
        }
        let mut own = L::zero();
        for d in (0..dim).step_by(16) {
            own = L::load(key.add(d)).fma(L::load(query.add(d)), own);
        }
        let own = L::splat(own.sum());

        let decay = L::splat(total).exp();
        let out = job.out.row(row).add(head_at);
        let mut squares = L::zero();
        let mut d = 0;
        while d < dim {
            let step = if d + 64 <= dim { 64 } else { 16 };
            let mut past = [[L::zero(); 2]; 4];
            let width = step / 16;
            if !through.is_null() {
                for c in 0..width {
                    past[c][0] = L::load(through.add(d + 16 * c)).mul(decay);
                    past[c][1] = L::load(through.add(dim + d + 16 * c)).mul(decay);
                }
            }
            if width == 4 {
                sum_deltas::<L, 4>(&mut past, &deltas[..n], &to_key, &to_query, d);
            } else {
                sum_deltas::<L, 1>(&mut past, &deltas[..n], &to_key, &to_query, d);
            }
            for c in 0..width {
                let at = d + 16 * c;
                let value = L::load(job.v.row(row).add(head_at + at));
                let delta = value.sub(past[c][0]).mul(beta);
                delta.store(job.deltas.row(row).add(head_at + at));
                let y = own.fma(delta, past[c][1]);
                squares = y.fma(y, squares);
                y.store(out.add(at));
            }
            d += step;
        }

        let factor = L::splat(1.0 / (squares.sum() / dim as f32 + job.eps).sqrt());
        for d in (0..dim).step_by(16) {
            let z = L::load(job.z.row(row).add(head_at + d)).silu();
            let y = L::load(out.add(d)).mul(factor).mul(L::load(job.norm.as_ptr().add(d))).mul(z);
            y.store(out.add(d));
        }
        if view.int8 {
            quantise_row::<L>(out, dim, job.out.blocks(row).add(head_at / 32));
        }
    }
}

/// Adds the deltas of the ancestors, weighed for the key and for the query, to `16 C` columns.
#[inline(always)]
unsafe fn sum_deltas<L: Lanes, const C: usize>(
    past: &mut [[L; 2]; 4],
    deltas: &[*const f32],
    to_key: &[f32; MAX_ANCESTORS],
    to_query: &[f32; MAX_ANCESTORS],
    column: usize,
) {
    unsafe {
        let mut sums: [[L; 2]; C] = std::array::from_fn(|c| past[c]);
        for (i, delta) in deltas.iter().enumerate() {
            let (k, q) = (L::splat(to_key[i]), L::splat(to_query[i]));
            for c in 0..C {
                let delta = L::load(delta.add(column + 16 * c));
                sums[c][0] = k.fma(delta, sums[c][0]);
                sums[c][1] = q.fma(delta, sums[c][1]);
            }
        }
        past[..C].copy_from_slice(&sums);
    }
}

at_level!(fn run_head_at = run_head(view: &View<'_>, job: &HeadJob<'_>));

pub(super) unsafe fn deltanet(view: &View<'_>, op: &Op) {
    let &Op::DeltaNet { layer, q, v, z, alpha, beta, dt_bias, decay, norm, eps, out } = op else {
        unreachable!()
    };
    let (layout, kept) = view.plan.recurrent_layer(layer);
    assert!(layout.dim.is_multiple_of(32) && view.vector(norm).len() == layout.dim);
    let heads = layout.value_heads;
    for task in 0..view.pass.sequences.len() * heads {
        if task % view.worker.count != view.worker.index {
            continue;
        }
        let (sequence, head) = (task / heads, task % heads);
        let job = HeadJob {
            layout,
            layer,
            head,
            sequence,
            q: view.buffer(q),
            keys: view.buffer(kept.keys),
            v: view.buffer(v),
            z: view.buffer(z),
            alpha: view.buffer(alpha),
            beta: view.buffer(beta),
            deltas: view.buffer(kept.deltas),
            gates: view.buffer(kept.gates),
            dt_bias: view.vector(dt_bias)[head],
            decay: view.vector(decay)[head],
            norm: view.vector(norm),
            eps,
            out: view.buffer(out),
        };
        // SAFETY: the buffers have the layout's widths; this head of this sequence is this thread's alone.
        unsafe { run_head_at(view.level, view, &job) };
    }
}
