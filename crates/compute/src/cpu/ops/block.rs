//! Convolution over the rows of a block, the best tokens of its rows, and how well they follow each
//! other.

use super::rank;
use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        matmul::decode_row,
        q8::{Q8Block, quantise_row},
        view::View,
    },
    plan::{Before, BlockConv, Buf, Candidates, Kind, Pairs},
};

#[inline(always)]
unsafe fn scale_numbers<L: Lanes>(x: &mut [f32], by: f32, cap: Option<f32>) {
    unsafe {
        for numbers in x.chunks_mut(16) {
            let mut padded = [0f32; 16];
            padded[..numbers.len()].copy_from_slice(numbers);
            let mut y = L::load(padded.as_ptr()).mul(L::splat(by));
            if let Some(cap) = cap {
                // tanh(y) = 2 sigmoid(2 y) - 1
                let half = y.mul(L::splat(2.0 / cap)).sigmoid().sub(L::splat(0.5));
                y = half.mul(L::splat(2.0 * cap));
            }
            y.store(padded.as_mut_ptr());
            numbers.copy_from_slice(&padded[..numbers.len()]);
        }
    }
}

at_level!(fn scale_at = scale_numbers(x: &mut [f32], by: f32, cap: Option<f32>));

pub(super) unsafe fn scale(view: &View<'_>, x: Buf, by: f32, cap: Option<f32>) {
    let spec = &view.plan.buffers[x.0 as usize];
    let (rows, cols) = (spec.rows(view.rows(), view.pass.chosen.len()), spec.cols);
    assert!(spec.kind == Kind::Numbers, "only plain numbers are scaled");
    let share = view.worker.share(rows * cols);
    let first = view.buffer(x).row(0).wrapping_add(share.start);
    // SAFETY: this thread's share of the buffer.
    unsafe { scale_at(view.level, std::slice::from_raw_parts_mut(first, share.len()), by, cap) };
}

/// One row of a convolution.
struct ConvRow {
    /// The row itself and those before it; null where there is none.
    taps: [*const f32; BlockConv::MAX_TAPS],
    /// [taps, cols].
    base: *const f32,
    /// [taps, cols / group].
    coefficients: *const f32,
    cols: usize,
    group: usize,
    out: *mut f32,
    blocks: *mut Q8Block,
}

#[inline(always)]
unsafe fn conv_row<L: Lanes>(row: &ConvRow) {
    unsafe {
        let groups = row.cols / row.group;
        for col in (0..row.cols).step_by(16) {
            let mut sum = L::zero();
            for (t, tap) in row.taps.iter().enumerate() {
                if tap.is_null() {
                    continue;
                }
                let dynamic = L::splat(*row.coefficients.add(t * groups + col / row.group));
                let factor = L::load(row.base.add(t * row.cols + col)).add(dynamic);
                let x = L::load(tap.add(col));
                // Without a sum before it a row that only reads itself keeps its bits.
                sum = if t == 0 { factor.mul(x) } else { factor.fma(x, sum) };
            }
            sum.store(row.out.add(col));
        }
        if !row.blocks.is_null() {
            quantise_row::<L>(row.out, row.cols, row.blocks);
        }
    }
}

at_level!(fn conv_at = conv_row(row: &ConvRow));

pub(super) unsafe fn block_conv(view: &View<'_>, conv: &BlockConv) {
    let (x, out) = (view.buffer(conv.x), view.buffer(conv.out));
    let (base, coefficients) = (view.vector(conv.base), view.buffer(conv.coefficients));
    let cols = x.cols;
    assert!(cols.is_multiple_of(32) && out.cols == cols);
    assert!(conv.group.is_multiple_of(16) && cols.is_multiple_of(conv.group));
    assert!(conv.taps <= BlockConv::MAX_TAPS && base.len() == conv.taps * cols);
    assert!(conv.first + conv.taps * cols / conv.group <= coefficients.cols);
    let is_activation = view.plan.buffers[conv.out.0 as usize].kind == Kind::Activation;
    for row in view.worker.share(view.rows()) {
        let tap =
            |read: Option<usize>| read.map_or(std::ptr::null(), |read| x.row(read).cast_const());
        let rounds = view.int8 && is_activation;
        let job = ConvRow {
            taps: conv.rows(view.pass, row).map(tap),
            base: base.as_ptr(),
            coefficients: coefficients.row(row).wrapping_add(conv.first),
            cols,
            group: conv.group,
            out: out.row(row),
            blocks: if rounds { out.blocks(row) } else { std::ptr::null_mut() },
        };
        // SAFETY: rows of these buffers; the output is this thread's alone.
        unsafe { conv_at(view.level, &job) };
    }
}

pub(super) unsafe fn top(view: &View<'_>, logits: Buf, vocab: usize, out: &Candidates) {
    let (logits, to) = (view.buffer(logits), view.buffer(out.buf));
    assert!(vocab <= logits.cols && out.count <= vocab && vocab < 1 << 24);
    for i in view.worker.share(view.pass.chosen.len()) {
        let mut ranked = None;
        // SAFETY: a row of the logits, and a row of the output that is this thread's alone.
        let to = unsafe {
            let logits = std::slice::from_raw_parts(logits.row(i).cast_const(), vocab);
            rank(view.level, logits, out.count, &mut ranked);
            std::slice::from_raw_parts_mut(to.row(i), 2 * out.count)
        };
        let best = ranked.unwrap_or_else(|| vec![(0, f32::NAN); out.count]);
        for (rank, (id, log)) in best.into_iter().enumerate() {
            to[rank] = id as f32;
            to[out.count + rank] = log;
        }
    }
}

/// Numbers of scratch that a thread needs.
pub(super) fn scratch_len(pairs: &Pairs) -> usize {
    2 * pairs.candidates.count * pairs.rank
}

/// Scores of `count` successors after each of `before` predecessors.
struct PairsJob {
    /// [before, rank], made to hold its products with the gates.
    left: *mut f32,
    before: usize,
    /// [rank], or null.
    gates: *const f32,
    /// [count, rank].
    right: *const f32,
    count: usize,
    rank: usize,
    /// [before, count].
    out: *mut f32,
}

#[inline(always)]
unsafe fn score_pairs<L: Lanes>(job: &PairsJob) {
    unsafe {
        for a in 0..job.before {
            let left = job.left.add(a * job.rank);
            if !job.gates.is_null() {
                for r in (0..job.rank).step_by(16) {
                    L::load(left.add(r)).mul(L::load(job.gates.add(r))).store(left.add(r));
                }
            }
            for b in 0..job.count {
                let right = job.right.add(b * job.rank);
                let mut sum = L::zero();
                for r in (0..job.rank).step_by(16) {
                    sum = L::load(left.add(r)).fma(L::load(right.add(r)), sum);
                }
                *job.out.add(a * job.count + b) = sum.sum();
            }
        }
    }
}

at_level!(fn score_at = score_pairs(job: &PairsJob));

pub(super) unsafe fn pairs(view: &View<'_>, pairs: &Pairs) {
    let Candidates { buf, count } = pairs.candidates;
    let (candidates, rank) = (view.buffer(buf), pairs.rank);
    let tables = [pairs.predecessors, pairs.successors].map(|id| &view.matrices[id.0 as usize]);
    assert!(tables.iter().all(|table| table.cols == rank) && rank.is_multiple_of(32));
    // SAFETY: as large as `scratch_len` says.
    let scratch = unsafe { std::slice::from_raw_parts_mut(view.scratch, 2 * count * rank) };
    let (left, right) = scratch.split_at_mut(count * rank);
    for i in view.worker.share(view.pass.chosen.len()) {
        let id = |row: usize, rank: usize| {
            // SAFETY: an id that the op before has written.
            unsafe { *candidates.row(row).add(rank) as usize }
        };
        for (b, row) in right.chunks_exact_mut(rank).enumerate() {
            decode_row(view.level, tables[1], id(i, b), row);
        }
        let before = match view.pass.before(i) {
            Before::Token(token) => {
                decode_row(view.level, tables[0], token as usize, &mut left[..rank]);
                1
            }
            Before::Candidates(row) => {
                for (a, to) in left.chunks_exact_mut(rank).enumerate() {
                    decode_row(view.level, tables[0], id(row, a), to);
                }
                count
            }
        };
        let out = candidates.row(i).wrapping_add(2 * count);
        let gates =
            pairs.gates.map_or(std::ptr::null(), |gates| view.buffer(gates).row(i).cast_const());
        let (left, right) = (left.as_mut_ptr(), right.as_ptr());
        let job = PairsJob { left, before, gates, right, count, rank, out };
        // SAFETY: this thread's scratch, and scores of a row that is this thread's alone.
        unsafe {
            score_at(view.level, &job);
            for a in before..count {
                std::ptr::copy_nonoverlapping(out, out.add(a * count), count);
            }
        }
    }
}
