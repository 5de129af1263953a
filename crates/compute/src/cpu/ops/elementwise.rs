//! Ops that go through rows number by number: embedding, norm with residual, SwiGLU.

use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        matmul::decode_row,
        q8::{Q8Block, quantise_row},
        view::View,
    },
    plan::{Buf, MatrixId, VectorId},
};

pub(super) unsafe fn embed(view: &View<'_>, table: MatrixId, out: Buf) {
    let table = &view.matrices[table.0 as usize];
    let out = view.buffer(out);
    for row in view.worker.share(view.rows()) {
        let to = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.cols) };
        decode_row(view.level, table, view.pass.tokens[row] as usize, to);
    }
}

/// One row of a norm.
struct NormRow {
    x: *mut f32,
    add: *const f32,
    tap: *mut f32,
    weight: *const f32,
    out: *mut f32,
    blocks: *mut Q8Block,
    n: usize,
    eps: f32,
}

#[inline(always)]
unsafe fn norm_row<L: Lanes>(row: &NormRow) {
    unsafe {
        let mut squares = L::zero();
        for i in (0..row.n).step_by(16) {
            let mut x = L::load(row.x.add(i));
            if !row.add.is_null() {
                x = x.add(L::load(row.add.add(i)));
                x.store(row.x.add(i));
            }
            if !row.tap.is_null() {
                x.store(row.tap.add(i));
            }
            squares = x.fma(x, squares);
        }
        let factor = L::splat(1.0 / (squares.sum() / row.n as f32 + row.eps).sqrt());
        for i in (0..row.n).step_by(16) {
            L::load(row.x.add(i)).mul(factor).mul(L::load(row.weight.add(i))).store(row.out.add(i));
        }
        if !row.blocks.is_null() {
            quantise_row::<L>(row.out, row.n, row.blocks);
        }
    }
}

at_level!(fn norm_at = norm_row(row: &NormRow));

pub(super) unsafe fn norm(
    view: &View<'_>,
    x: Buf,
    add: Option<Buf>,
    weight: VectorId,
    eps: f32,
    (out, offset): (Buf, usize),
    tap: Option<(Buf, usize)>,
) {
    let (x, out) = (view.buffer(x), view.buffer(out));
    let weight = view.vector(weight);
    assert!(x.cols.is_multiple_of(32) && weight.len() == x.cols && offset + x.cols <= out.cols);
    for row in view.worker.share(view.rows()) {
        let job = NormRow {
            x: x.row(row),
            add: add.map_or(std::ptr::null(), |b| view.buffer(b).row(row).cast_const()),
            tap: tap
                .map_or(std::ptr::null_mut(), |(b, at)| view.buffer(b).row(row).wrapping_add(at)),
            weight: weight.as_ptr(),
            out: out.row(row).wrapping_add(offset),
            blocks: if view.int8 {
                out.blocks(row).wrapping_add(offset / 32)
            } else {
                std::ptr::null_mut()
            },
            n: x.cols,
            eps,
        };
        unsafe { norm_at(view.level, &job) };
    }
}

#[inline(always)]
unsafe fn load_row<L: Lanes>(x: *const f32, n: usize, out: *mut f32, blocks: *mut Q8Block) {
    unsafe {
        std::ptr::copy_nonoverlapping(x, out, n);
        if !blocks.is_null() {
            quantise_row::<L>(out, n, blocks);
        }
    }
}

at_level!(fn load_at = load_row(x: *const f32, n: usize, out: *mut f32, blocks: *mut Q8Block));

pub(super) unsafe fn load(view: &View<'_>, x: Buf, out: Buf) {
    let (x, out) = (view.buffer(x), view.buffer(out));
    assert!(x.cols.is_multiple_of(32) && x.cols == out.cols);
    for row in view.worker.share(view.rows()) {
        let blocks = if view.int8 { out.blocks(row) } else { std::ptr::null_mut() };
        unsafe { load_at(view.level, x.row(row), x.cols, out.row(row), blocks) };
    }
}

/// Groups of 32 that are rounded together, while they are in the first-level cache.
const ROUNDED_GROUPS: usize = 32;

/// `n` groups of 32.
#[inline(always)]
unsafe fn swiglu_groups<L: Lanes>(
    gate: *const f32,
    up: *const f32,
    n: usize,
    out: *mut f32,
    blocks: *mut Q8Block,
) {
    unsafe {
        for first in (0..n).step_by(ROUNDED_GROUPS) {
            // Rounding is a loop of its own: behind its long chain of steps the next numbers would
            // have to wait.
            let (begin, end) = (32 * first, 32 * n.min(first + ROUNDED_GROUPS));
            for i in (begin..end).step_by(16) {
                L::load(gate.add(i)).silu().mul(L::load(up.add(i))).store(out.add(i));
            }
            if !blocks.is_null() {
                quantise_row::<L>(out.add(begin), end - begin, blocks.add(first));
            }
        }
    }
}

at_level!(fn swiglu_at = swiglu_groups(
    gate: *const f32, up: *const f32, n: usize, out: *mut f32, blocks: *mut Q8Block,
));

pub(super) unsafe fn swiglu(view: &View<'_>, parts: &[(Buf, Buf, Buf)]) {
    for &(gate, up, out) in parts {
        let rows = view.plan.buffers[out.0 as usize].rows(view.rows(), view.pass.chosen.len());
        let (gate, up, out) = (view.buffer(gate), view.buffer(up), view.buffer(out));
        assert!(out.cols.is_multiple_of(32) && gate.cols == out.cols && up.cols == out.cols);
        // Rows lie one after the other, so groups can be shared without regard to rows.
        let share = view.worker.share(rows * out.cols / 32);
        let at = |p: *mut f32| p.wrapping_add(32 * share.start);
        let blocks =
            if view.int8 { out.blocks(0).wrapping_add(share.start) } else { std::ptr::null_mut() };
        unsafe {
            swiglu_at(
                view.level,
                at(gate.row(0)),
                at(up.row(0)),
                share.len(),
                at(out.row(0)),
                blocks,
            )
        };
    }
}
