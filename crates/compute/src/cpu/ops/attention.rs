//! Attention over committed pages and the pass's own rows. Keys are taken page by page (64
//! positions); a page's softmax is finished before it is merged with those before it, so the
//! rounding follows positions alone.

use super::rotate::decode_row;
use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        q8::{Q8Block, quantise_row},
        view::{RawBuffer, View},
    },
    kv::{KvLayout, KvType, PAGE_TOKENS},
    pass::PageTable,
    plan::{AttentionShape, Op},
};

/// Rows that share the reading of a page.
const ROW_BLOCK: usize = 8;

/// A page of halves that is read by more pairs of query heads than this is turned into numbers
/// first. Either way the numbers are the same.
const HALVES_READ: usize = 4;

pub(super) fn scratch_len(shape: &AttentionShape) -> usize {
    let group = shape.heads / shape.kv_heads;
    // A page of keys, a page of values, and for each row and query head (and one to spare): output,
    // maximum and sum.
    (2 * PAGE_TOKENS + ROW_BLOCK * group + 1) * shape.head_dim + 2 * (ROW_BLOCK * group + 1)
}

/// Some rows of one sequence, for one key/value head.
struct Block<'a> {
    shape: AttentionShape,
    layout: KvLayout,
    layer: usize,
    head: usize,
    scale: f32,
    window: usize,
    causal: bool,
    committed: usize,
    pages: &'a PageTable<'a>,
    first_row: usize,
    rows: usize,
}

#[inline(always)]
unsafe fn attend<L: Lanes>(
    view: &View<'_>,
    block: &Block<'_>,
    q: RawBuffer,
    k: RawBuffer,
    v: RawBuffer,
    out: RawBuffer,
) {
    unsafe {
        let pass = view.pass;
        let dim = block.shape.head_dim;
        let group = block.shape.heads / block.shape.kv_heads;
        let keys = view.scratch;
        let values = keys.add(PAGE_TOKENS * dim);
        let sums = values.add(PAGE_TOKENS * dim); // [ROW_BLOCK, group, dim]
        let maxima = sums.add((ROW_BLOCK * group + 1) * dim); // [ROW_BLOCK, group]
        let totals = maxima.add(ROW_BLOCK * group + 1);
        for i in 0..block.rows * group {
            *maxima.add(i) = f32::NEG_INFINITY;
            *totals.add(i) = 0.0;
            for d in (0..dim).step_by(16) {
                L::zero().store(sums.add(i * dim + d));
            }
        }

        // Without causality a row also sees the rows after it: all of the sequence, which are
        // consecutive then.
        let sequence = pass.sequence_of[block.first_row];
        let rows_of_sequence = match block.causal {
            true => 0,
            false => pass.sequence_of.iter().filter(|s| **s == sequence).count(),
        };
        let visible = |row: usize| {
            let position = pass.positions[row] as usize;
            let end = if block.causal { position + 1 } else { block.committed + rows_of_sequence };
            (
                (position + 1).saturating_sub(block.window),
                end.min(position.saturating_add(block.window)),
            )
        };
        let block_rows = block.first_row..block.first_row + block.rows;
        let begin = block_rows.clone().map(|r| visible(r).0).min().unwrap_or(0);
        let end = block_rows.clone().map(|r| visible(r).1).max().unwrap_or(0);

        let as_halves =
            block.layout.kind == KvType::F16 && block.rows * group.div_ceil(2) <= HALVES_READ;
        for page in begin / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            let start = page * PAGE_TOKENS;
            let stored = begin.max(start)..block.committed.min(start + PAGE_TOKENS).min(end);
            // Where the page's keys and values lie, and numbers from one to the next.
            let (mut page_of, mut stride) = ([keys.cast_const(), values.cast_const()], dim);
            if !stored.is_empty() {
                let bytes = block.pages.page(start).slice::<u8>();
                let row_bytes = block.layout.row_bytes();
                for (part, to) in [(0, keys), (1, values)] {
                    let from = bytes[block.layout.offset(block.layer, part, block.head)..].as_ptr();
                    if as_halves {
                        (page_of[part], stride) = (from.cast(), dim / 2);
                        continue;
                    }
                    for position in stored.clone() {
                        let i = position - start;
                        decode_row::<L>(
                            block.layout.kind,
                            from.add(i * row_bytes),
                            dim,
                            to.add(i * dim),
                        );
                    }
                }
            }
            for (r, row) in block_rows.clone().enumerate() {
                let (from, to) = visible(row);
                let (from, to) = (from.max(start), to.min(start + PAGE_TOKENS));
                if from >= to {
                    continue;
                }
                let n = to - from;
                let mut key = [std::ptr::null::<f32>(); PAGE_TOKENS];
                let mut value = [std::ptr::null::<f32>(); PAGE_TOKENS];
                let mut i = 0;
                while i < n && from + i < block.committed {
                    let at = (from + i - start) * stride;
                    (key[i], value[i]) = (page_of[0].add(at), page_of[1].add(at));
                    i += 1;
                }
                let halves = if as_halves { i } else { 0 };
                let at = block.head * dim;
                let mut put = |i: usize, r: usize| {
                    (key[i], value[i]) =
                        (k.row(r).add(at).cast_const(), v.row(r).add(at).cast_const());
                };
                if block.causal {
                    let mut run_start = block.committed;
                    for run in pass.path(row) {
                        let run_end = run_start + run.len as usize;
                        while i < n && from + i < run_end {
                            put(i, run.first as usize + (from + i - run_start));
                            i += 1;
                        }
                        run_start = run_end;
                    }
                } else {
                    let first = pass.sequence_of.iter().position(|s| *s == sequence).unwrap_or(0);
                    while i < n {
                        put(i, first + (from + i - block.committed));
                        i += 1;
                    }
                }
                // Two query heads at a time read the same keys.
                for g in (0..group).step_by(2) {
                    let query =
                        q.row(row).add((block.head * group + g) * block.shape.query_stride());
                    let pair = g + 1 < group;
                    let second = if pair { query.add(block.shape.query_stride()) } else { query };
                    let mut scores = [[f32::NEG_INFINITY; PAGE_TOKENS]; 2];
                    score::<L, true>(
                        [query, second],
                        &key[..halves],
                        dim,
                        block.scale,
                        &mut scores,
                        0,
                    );
                    score::<L, false>(
                        [query, second],
                        &key[halves..n],
                        dim,
                        block.scale,
                        &mut scores,
                        halves,
                    );
                    let first = r * group + g;
                    let states = [first, if pair { first + 1 } else { ROW_BLOCK * group }];
                    let mut merging = [(L::zero(), L::zero()); 2];
                    for i in 0..2 {
                        merging[i] = soften::<L>(
                            &mut scores[i],
                            &mut *maxima.add(states[i]),
                            &mut *totals.add(states[i]),
                        );
                    }
                    let sums = [sums.add(states[0] * dim), sums.add(states[1] * dim)];
                    weigh::<L>(&scores, &value[..n], halves, dim, merging, sums);
                }
            }
        }

        for (r, row) in block_rows.enumerate() {
            for g in 0..group {
                let state = r * group + g;
                let head = block.head * group + g;
                let inverse = L::splat(1.0 / *totals.add(state));
                let to = out.row(row).add(head * dim);
                let gate = q.row(row).add(head * block.shape.query_stride() + dim);
                for d in (0..dim).step_by(16) {
                    let mut y = L::load(sums.add(state * dim + d)).mul(inverse);
                    if block.shape.gated {
                        y = y.mul(L::load(gate.add(d)).sigmoid());
                    }
                    y.store(to.add(d));
                }
                if view.int8 {
                    let blocks: *mut Q8Block = out.blocks(row).add(head * dim / 32);
                    quantise_row::<L>(to, dim, blocks);
                }
            }
        }
    }
}

/// Sixteen numbers of a key or value from number `d` on, which is of halves or not.
#[inline(always)]
unsafe fn load<L: Lanes, const HALVES: bool>(from: *const f32, d: usize) -> L {
    unsafe { if HALVES { L::load_f16(from.cast::<u16>().add(d)) } else { L::load(from.add(d)) } }
}

/// Scores of two queries with keys of a page, from score `first` on, by eights of keys.
#[inline(always)]
unsafe fn score<L: Lanes, const HALVES: bool>(
    queries: [*const f32; 2],
    keys: &[*const f32],
    dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_TOKENS]; 2],
    first: usize,
) {
    unsafe {
        for (i, keys) in keys.chunks(8).enumerate() {
            // The last chunk repeats its last key; the surplus is not kept.
            let mut key = [keys[keys.len() - 1]; 8];
            key[..keys.len()].copy_from_slice(keys);
            let mut dots = [L::zero(); 16];
            let together = if L::ROOMY { 8 } else { 2 };
            for from in (0..8).step_by(together) {
                for d in (0..dim).step_by(16) {
                    let (a, b) = (L::load(queries[0].add(d)), L::load(queries[1].add(d)));
                    for j in from..from + together {
                        let k = load::<L, HALVES>(key[j], d);
                        dots[j] = a.fma(k, dots[j]);
                        dots[8 + j] = b.fma(k, dots[8 + j]);
                    }
                }
            }
            let mut sums = [0f32; 16];
            L::sums(dots).mul(L::splat(scale)).store(sums.as_mut_ptr());
            for h in 0..2 {
                scores[h][first + 8 * i..][..keys.len()]
                    .copy_from_slice(&sums[8 * h..][..keys.len()]);
            }
        }
    }
}

/// Turns the scores of a page into weights, and counts them into the maximum and total of the pages
/// so far. Returns the factors of what the pages before gave and of what this page gives.
#[inline(always)]
unsafe fn soften<L: Lanes>(
    scores: &mut [f32; PAGE_TOKENS],
    maximum: &mut f32,
    total: &mut f32,
) -> (L, L) {
    unsafe {
        let mut largest = L::splat(f32::NEG_INFINITY);
        for i in (0..PAGE_TOKENS).step_by(16) {
            largest = largest.max(L::load(scores.as_ptr().add(i)));
        }
        let highest = largest.largest();
        let mut page_total = L::zero();
        for i in (0..PAGE_TOKENS).step_by(16) {
            let weight = L::load(scores.as_ptr().add(i)).sub(L::splat(highest)).exp();
            page_total = page_total.add(weight);
            weight.store(scores.as_mut_ptr().add(i));
        }
        let new_maximum = if *maximum > highest { *maximum } else { highest };
        let before = L::splat(*maximum - new_maximum).exp();
        let now = L::splat(highest - new_maximum).exp();
        *maximum = new_maximum;
        *total = before.largest().mul_add(*total, now.largest() * page_total.sum());
        (before, now)
    }
}

/// Adds a page's values, of which the first are of halves, to the sums of two query heads.
#[inline(always)]
unsafe fn weigh<L: Lanes>(
    weights: &[[f32; PAGE_TOKENS]; 2],
    values: &[*const f32],
    halves: usize,
    dim: usize,
    merging: [(L, L); 2],
    sums: [*mut f32; 2],
) {
    #[inline(always)]
    unsafe fn add<L: Lanes, const C: usize, const HALVES: bool>(
        weights: [f32; 2],
        value: *const f32,
        column: usize,
        page: &mut [[L; C]; 2],
    ) {
        unsafe {
            let (a, b) = (L::splat(weights[0]), L::splat(weights[1]));
            for c in 0..C {
                let value = load::<L, HALVES>(value, column + 16 * c);
                page[0][c] = a.fma(value, page[0][c]);
                page[1][c] = b.fma(value, page[1][c]);
            }
        }
    }

    /// `16 C` columns.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const C: usize>(
        weights: &[[f32; PAGE_TOKENS]; 2],
        values: &[*const f32],
        halves: usize,
        column: usize,
        merging: [(L, L); 2],
        sums: [*mut f32; 2],
    ) {
        unsafe {
            let mut page = [[L::zero(); C]; 2];
            for (i, value) in values.iter().enumerate().take(halves) {
                add::<L, C, true>([weights[0][i], weights[1][i]], *value, column, &mut page);
            }
            for (i, value) in values.iter().enumerate().skip(halves) {
                add::<L, C, false>([weights[0][i], weights[1][i]], *value, column, &mut page);
            }
            for h in 0..2 {
                for c in 0..C {
                    let to = sums[h].add(column + 16 * c);
                    L::load(to).mul(merging[h].0).add(page[h][c].mul(merging[h].1)).store(to);
                }
            }
        }
    }
    unsafe {
        let mut column = 0;
        while column < dim {
            if L::ROOMY && column + 128 <= dim {
                columns::<L, 8>(weights, values, halves, column, merging, sums);
                column += 128;
            } else if !L::ROOMY && column + 32 <= dim {
                columns::<L, 2>(weights, values, halves, column, merging, sums);
                column += 32;
            } else {
                columns::<L, 1>(weights, values, halves, column, merging, sums);
                column += 16;
            }
        }
    }
}

at_level!(fn attend_at = attend(
    view: &View<'_>, block: &Block<'_>, q: RawBuffer, k: RawBuffer, v: RawBuffer, out: RawBuffer,
));

pub(super) unsafe fn attention(view: &View<'_>, op: &Op) {
    let &Op::Attention { q, k, v, shape, scale, window, causal, cache, layer, out } = op else {
        unreachable!()
    };
    let (q, k, v, out) = (view.buffer(q), view.buffer(k), view.buffer(v), view.buffer(out));
    assert!(out.cols == shape.heads * shape.head_dim && shape.heads.is_multiple_of(shape.kv_heads));
    let pass = view.pass;
    let mut task = 0;
    let mut first_row = 0;
    while first_row < view.rows() {
        let sequence = pass.sequence_of[first_row];
        let same =
            pass.sequence_of[first_row..].iter().take(ROW_BLOCK).take_while(|s| **s == sequence);
        let rows = same.count();
        for head in 0..shape.kv_heads {
            if task % view.worker.count == view.worker.index {
                let state = &pass.sequences[sequence as usize];
                let block = Block {
                    shape,
                    layout: view.plan.caches[cache].layout,
                    layer,
                    head,
                    scale,
                    window: window.unwrap_or(usize::MAX),
                    causal,
                    committed: state.committed,
                    pages: &state.caches[cache],
                    first_row,
                    rows,
                };
                // SAFETY: the buffers have the shape's widths; this head of these rows is this
                // thread's alone.
                unsafe { attend_at(view.level, view, &block, q, k, v, out) };
            }
            task += 1;
        }
        first_row += rows;
    }
}
