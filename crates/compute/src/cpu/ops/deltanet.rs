//! Gated DeltaNet in the tree form: from the anchor's state `S` and the rows `i` since then on the
//! path of row `n`, with `G` the log decay summed from the anchor,
//!
//! ```text
//! d_n = b_n (v_n - e^{G_n} S^T k_n - sum_i e^{G_n - G_i} (k_i . k_n) d_i)
//! o_n =            e^{G_n} S^T q_n + sum_i e^{G_n - G_i} (k_i . q_n) d_i + (k_n . q_n) d_n
//! ```
//!
//! No state is written; the rows' `k`, `d` and log decay stay in the arena for the commit.

mod keys;
mod state;

use super::fold::{FoldRow, fold_body};
use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        q8::quantise_row,
        view::{RawBuffer, View},
    },
    pass::{AnchorSource, AnchorStep, Pass, Tap},
    plan::{Op, Plan},
    recurrent::{ANCHOR_LAG, ANCHOR_TOKENS, RecurrentLayout, TAPE_TOKENS},
};
use keys::{multiply_keys_at, path_of_keys};
use state::through_state;

/// Rows from the anchor to a row, itself included, are at most this many; a multiple of 16.
const MAX_PATH: usize = TAPE_TOKENS;
const _: () = assert!(ANCHOR_TOKENS + ANCHOR_LAG <= MAX_PATH && MAX_PATH.is_multiple_of(16));

/// Rows whose products with the state are kept at once; they are taken three by three.
const ROW_GROUP: usize = 16;

pub(super) fn scratch_len(plan: &Plan, pass: &Pass<'_>) -> usize {
    let dim = plan.recurrent_layer(0).0.dim;
    pass.slots * dim * dim + 2 * ROW_GROUP * dim + ANCHOR_TOKENS * dim
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
    products: RawBuffer,
    beta: RawBuffer,
    deltas: RawBuffer,
    gates: RawBuffer,
    norm: &'a [f32],
    eps: f32,
    out: RawBuffer,
}

impl HeadJob<'_> {
    /// Delta and log decay of an earlier row.
    #[inline(always)]
    unsafe fn earlier(&self, tape: *const f32, tap: Tap) -> (*const f32, f32) {
        // SAFETY: rows of the pass were computed before this one; committed ones lie on the tape.
        unsafe {
            match tap {
                Tap::Row(r) => {
                    let r = r as usize;
                    (
                        self.deltas.row(r).add(self.head * self.layout.dim),
                        *self.gates.row(r).add(self.head),
                    )
                }
                Tap::Committed(p) => {
                    let (layout, p) = (&self.layout, p as usize);
                    let delta = tape.add(layout.delta(self.layer, p) + self.head * layout.dim);
                    (delta, *tape.add(layout.gate(self.layer, p) + self.head))
                }
                Tap::Nothing => unreachable!("rows since an anchor exist"),
            }
        }
    }

    /// The row a state is folded with, at `position` on the path of `row`.
    unsafe fn fold_row(&self, pass: &Pass<'_>, row: usize, position: usize) -> FoldRow {
        let (layout, key_at) = (&self.layout, self.head % self.layout.key_heads * self.layout.dim);
        let tape = pass.sequences[self.sequence]
            .tape
            .map_or(std::ptr::null(), |m| m.slice::<f32>().as_ptr());
        // SAFETY: as in `earlier`.
        unsafe {
            let (tap, key) = match pass.ancestor(row, position) {
                Some(r) => (Tap::Row(r), self.keys.row(r as usize).add(key_at).cast_const()),
                None => (
                    Tap::Committed(position as u32),
                    tape.add(layout.key(self.layer, position) + key_at),
                ),
            };
            let (delta, gate) = self.earlier(tape, tap);
            FoldRow { key, delta, gate }
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
            let stored = |m: Option<&crate::Memory>| {
                m.expect("a committed anchor").slice::<f32>()[at..].as_ptr()
            };
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
                    std::array::from_fn(|i| job.fold_row(pass, last as usize, first + i));
                fold_body::<L>(
                    state_of(&pass.steps[from]),
                    &rows,
                    dim,
                    scaled_keys,
                    state.cast_mut(),
                );
            }
            let key_at = job.head % job.layout.key_heads * dim;
            let mut path = Path::EMPTY;
            for rows in step.rows.chunks(ROW_GROUP) {
                if !state.is_null() {
                    let mut x = [[std::ptr::null(); 2]; ROW_GROUP];
                    for (x, row) in x.iter_mut().zip(rows) {
                        let r = *row as usize;
                        *x = [
                            job.keys.row(r).add(key_at).cast_const(),
                            job.q.row(r).add(key_at).cast_const(),
                        ];
                    }
                    through_state::<L>(state, dim, &x[..rows.len()], through);
                }
                for (i, row) in rows.iter().enumerate() {
                    let through =
                        if state.is_null() { std::ptr::null() } else { through.add(2 * i * dim) };
                    path.follow(pass, job, *row);
                    run_row::<L>(view, job, *row as usize, &path, through);
                }
            }
        }
    }
}

/// The rows since a row's anchor, in order of position.
struct Path {
    row: u32,
    deltas: [*const f32; MAX_PATH],
    /// The log decay summed up to each.
    sums: [f32; MAX_PATH],
    n: usize,
}

impl Path {
    const EMPTY: Self =
        Self { row: u32::MAX, deltas: [std::ptr::null(); MAX_PATH], sums: [0.0; MAX_PATH], n: 0 };

    /// Becomes the path of `row`, which has the same anchor. In a chain each row follows the one
    /// before, whose path is the beginning of its own.
    #[inline(always)]
    unsafe fn follow(&mut self, pass: &Pass<'_>, job: &HeadJob<'_>, row: u32) {
        let earlier = pass.since_anchor(row as usize);
        if earlier.len() != self.n + 1 || earlier[self.n] != Tap::Row(self.row) {
            self.n = 0;
        }
        self.row = row;
        let tape = pass.sequences[job.sequence]
            .tape
            .map_or(std::ptr::null(), |m| m.slice::<f32>().as_ptr());
        let mut sum = if self.n > 0 { self.sums[self.n - 1] } else { 0.0 };
        for tap in &earlier[self.n..] {
            // SAFETY: the rows since an anchor were computed before or lie on the tape.
            let (delta, gate) = unsafe { job.earlier(tape, *tap) };
            sum += gate;
            self.sums[self.n] = sum;
            self.deltas[self.n] = delta;
            self.n += 1;
        }
    }
}

#[inline(always)]
unsafe fn run_row<L: Lanes>(
    view: &View<'_>,
    job: &HeadJob<'_>,
    row: usize,
    path: &Path,
    through: *const f32,
) {
    unsafe {
        let dim = job.layout.dim;
        let head_at = job.head * dim;
        let beta = L::splat(*job.beta.row(row).add(job.head)).sigmoid();

        let n = path.n;
        let sum = if n > 0 { path.sums[n - 1] } else { 0.0 };
        let total = sum + *job.gates.row(row).add(job.head);
        let products = job.products.row(row).add(job.head % job.layout.key_heads * 2 * MAX_PATH);
        let mut to_key = [0f32; MAX_PATH];
        let mut to_query = [0f32; MAX_PATH];
        for i in (0..n).step_by(16) {
            let decay = L::splat(total).sub(L::load(path.sums.as_ptr().add(i))).exp();
            L::load(products.add(i)).mul(decay).store(to_key.as_mut_ptr().add(i));
            L::load(products.add(MAX_PATH + i)).mul(decay).store(to_query.as_mut_ptr().add(i));
        }
        let own = L::splat(*products.add(MAX_PATH + n));

        let decay = L::splat(total).exp();
        let mut squares = L::zero();
        let mut d = 0;
        while d < dim {
            let columns = Columns { job, row, deltas: &path.deltas[..n], through, column: d };
            if L::ROOMY && d + 128 <= dim {
                squares = columns.run::<L, 8>(&to_key, &to_query, (decay, beta, own), squares);
                d += 128;
            } else {
                squares = columns.run::<L, 2>(&to_key, &to_query, (decay, beta, own), squares);
                d += 32;
            }
        }

        let out = job.out.row(row).add(head_at);
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

/// Some columns of a row's delta and output.
struct Columns<'a> {
    job: &'a HeadJob<'a>,
    row: usize,
    /// Of the rows since the anchor.
    deltas: &'a [*const f32],
    /// The key and the query through the state: [(key, query), dim]; null where that is zero.
    through: *const f32,
    column: usize,
}

impl Columns<'_> {
    /// Writes `16 C` columns; the deltas of the path are weighed by `to_key` and `to_query`. Adds
    /// to `squares` what the outputs' squares sum up to.
    #[inline(always)]
    unsafe fn run<L: Lanes, const C: usize>(
        &self,
        to_key: &[f32; MAX_PATH],
        to_query: &[f32; MAX_PATH],
        (decay, beta, own): (L, L, L),
        mut squares: L,
    ) -> L {
        unsafe {
            let (dim, column) = (self.job.layout.dim, self.column);
            let mut past = [[L::zero(); C]; 2];
            if !self.through.is_null() {
                for i in 0..2 {
                    for c in 0..C {
                        past[i][c] =
                            L::load(self.through.add(i * dim + column + 16 * c)).mul(decay);
                    }
                }
            }
            for (i, delta) in self.deltas.iter().enumerate() {
                let (k, q) = (L::splat(to_key[i]), L::splat(to_query[i]));
                for c in 0..C {
                    let delta = L::load(delta.add(column + 16 * c));
                    past[0][c] = k.fma(delta, past[0][c]);
                    past[1][c] = q.fma(delta, past[1][c]);
                }
            }
            let at = self.job.head * dim + column;
            let (values, deltas) =
                (self.job.v.row(self.row).add(at), self.job.deltas.row(self.row).add(at));
            let out = self.job.out.row(self.row).add(at);
            for c in 0..C {
                let delta = L::load(values.add(16 * c)).sub(past[0][c]).mul(beta);
                delta.store(deltas.add(16 * c));
                let y = own.fma(delta, past[1][c]);
                squares = y.fma(y, squares);
                y.store(out.add(16 * c));
            }
            squares
        }
    }
}

at_level!(fn run_head_at = run_head(view: &View<'_>, job: &HeadJob<'_>));

pub(super) unsafe fn deltanet(view: &View<'_>, op: &Op) {
    let &Op::DeltaNet { layer, q, v, z, alpha, beta, dt_bias, decay, norm, eps, out } = op else {
        unreachable!()
    };
    let (layout, kept) = view.plan.recurrent_layer(layer);
    assert!(layout.dim.is_multiple_of(32) && view.vector(norm).len() == layout.dim);
    let products = view.buffer(view.plan.recurrent.as_ref().expect("recurrent state").products);
    let (alpha, gates) = (view.buffer(alpha), view.buffer(kept.gates));
    let (dt_bias, decay) = (view.vector(dt_bias), view.vector(decay));
    for row in view.worker.share(view.rows()) {
        for head in 0..layout.value_heads {
            // SAFETY: this row is this thread's alone.
            unsafe {
                let x = *alpha.row(row).add(head) + dt_bias[head];
                // softplus, which is its argument where e^-x no longer counts.
                let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
                *gates.row(row).add(head) = softplus * decay[head];
            }
        }
    }
    // Value heads share key heads, so products of keys come first, each once.
    for task in view.worker.share(view.rows() * layout.key_heads) {
        let (row, head) = (task / layout.key_heads, task % layout.key_heads);
        // SAFETY: keys and queries of the pass were written by the op before; this row and head is
        // this thread's alone.
        unsafe {
            let (keys, at) = (view.buffer(kept.keys), head * layout.dim);
            let out = products.row(row).add(head * 2 * MAX_PATH);
            let job = path_of_keys(
                view,
                layout,
                layer,
                row,
                head,
                keys,
                view.buffer(q).row(row).add(at),
                out,
            );
            multiply_keys_at(view.level, &job);
        }
    }
    view.worker.wait();
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
            products,
            beta: view.buffer(beta),
            deltas: view.buffer(kept.deltas),
            gates,
            norm: view.vector(norm),
            eps,
            out: view.buffer(out),
        };
        // SAFETY: the buffers have the layout's widths; this head of this sequence is this thread's
        // alone.
        unsafe { run_head_at(view.level, view, &job) };
    }
}
