//! Attention over committed pages and the pass's own rows. Keys are taken page by page (64
//! positions); a page's softmax is finished before it is merged with those before it, so the
//! rounding follows positions alone.

mod scores;

use super::rotate::decode_row;
use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        q8::{Q8Block, quantise_row},
        view::{RawBuffer, View},
    },
    hadamard::hadamard,
    kv::{KvLayout, KvType, PAGE_TOKENS},
    pass::{PageTable, Pass},
    plan::{AttentionShape, Op},
};
use scores::{EIGHT, score, soften, weigh, width};

/// Rows that share the reading of a page.
const ROW_BLOCK: usize = 8;

/// A page of halves that is read by more pairs of query heads than this is turned into numbers
/// first. Either way the numbers are the same.
const HALVES_READ: usize = 4;

/// Numbers from one key of a page in scratch to the next: a cache line more than it has, so that
/// the same columns of all keys do not compete for the same places of the first-level cache.
const fn stride(shape: &AttentionShape) -> usize {
    shape.head_dim + 16
}

pub(super) fn scratch_len(shape: &AttentionShape) -> usize {
    let group = shape.heads / shape.kv_heads;
    // A page of keys, a page of values, and for each row and query head (and one to spare): output,
    // maximum and sum.
    let states = ROW_BLOCK * group + 1;
    2 * PAGE_TOKENS * stride(shape) + states * shape.head_dim + 2 * states
}

/// Some rows of one sequence, for one key/value head.
struct Job<'a> {
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
    q: RawBuffer,
    k: RawBuffer,
    v: RawBuffer,
    out: RawBuffer,
}

impl Job<'_> {
    /// Query heads of the key/value head.
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// Without causality a row also sees the rows after it: all of the sequence, which are
    /// consecutive then. This is the first of them and their number.
    fn whole_sequence(&self, pass: &Pass<'_>) -> (usize, usize) {
        if self.causal {
            return (0, 0);
        }
        let sequence = pass.sequence_of[self.first_row];
        let first = pass.sequence_of.iter().position(|s| *s == sequence).unwrap_or(0);
        (first, pass.sequence_of.iter().filter(|s| **s == sequence).count())
    }

    /// The positions that a row sees: the first, and the one after the last.
    fn visible(&self, pass: &Pass<'_>, of_sequence: usize, row: usize) -> (usize, usize) {
        let position = pass.positions[row] as usize;
        let end = if self.causal { position + 1 } else { self.committed + of_sequence };
        ((position + 1).saturating_sub(self.window), end.min(position.saturating_add(self.window)))
    }

    /// Query head `g` of the group, of a row.
    #[inline(always)]
    fn query(&self, row: usize, g: usize) -> *const f32 {
        let at = (self.head * self.group() + g) * self.shape.query_stride();
        self.q.row(row).wrapping_add(at)
    }
}

/// A thread's scratch.
struct Scratch {
    /// A page of keys and one of values, as numbers.
    pages: [*mut f32; 2],
    /// [ROW_BLOCK, group, dim], and one to spare: weighed values so far.
    sums: *mut f32,
    /// [ROW_BLOCK, group], and one to spare.
    maxima: *mut f32,
    totals: *mut f32,
}

impl Scratch {
    /// The parts of a thread's scratch, with nothing summed up yet.
    #[inline(always)]
    unsafe fn new<L: Lanes>(scratch: *mut f32, job: &Job<'_>) -> Self {
        unsafe {
            let (dim, group) = (job.shape.head_dim, job.group());
            let values = scratch.add(PAGE_TOKENS * stride(&job.shape));
            let sums = values.add(PAGE_TOKENS * stride(&job.shape));
            let maxima = sums.add((ROW_BLOCK * group + 1) * dim);
            let totals = maxima.add(ROW_BLOCK * group + 1);
            for i in 0..job.rows * group {
                *maxima.add(i) = f32::NEG_INFINITY;
                *totals.add(i) = 0.0;
                for d in (0..dim).step_by(16) {
                    L::zero().store(sums.add(i * dim + d));
                }
            }
            Self { pages: [scratch, values], sums, maxima, totals }
        }
    }
}

/// Keys and values of a page's committed positions.
struct Page {
    /// The page's first position.
    start: usize,
    /// Where its keys and values lie.
    at: [*const f32; 2],
    /// Numbers from one to the next.
    stride: usize,
    /// They are of halves, as in memory.
    halves: bool,
}

impl Page {
    /// Reads the positions `begin..end` of a page, as far as they are committed.
    #[inline(always)]
    unsafe fn read<L: Lanes>(
        job: &Job<'_>,
        scratch: &Scratch,
        start: usize,
        (begin, end): (usize, usize),
    ) -> Self {
        unsafe {
            let (dim, stride) = (job.shape.head_dim, stride(&job.shape));
            let halves =
                job.layout.kind == KvType::F16 && job.rows * job.group().div_ceil(2) <= HALVES_READ;
            let mut page =
                Self { start, at: scratch.pages.map(|p| p.cast_const()), stride, halves };
            let stored = begin.max(start)..job.committed.min(start + PAGE_TOKENS).min(end);
            if stored.is_empty() {
                return page;
            }
            let bytes = job.pages.page(start).slice::<u8>();
            let row_bytes = job.layout.row_bytes();
            for part in 0..2 {
                let from = bytes[job.layout.offset(job.layer, part, job.head)..].as_ptr();
                if halves {
                    (page.at[part], page.stride) = (from.cast(), dim / 2);
                    continue;
                }
                for position in stored.clone() {
                    let i = position - start;
                    let to = scratch.pages[part].add(i * stride);
                    decode_row::<L>(job.layout.kind, from.add(i * row_bytes), dim, to);
                }
            }
            page
        }
    }
}

/// What a row sees of a page, in order of position.
#[derive(Clone, Copy)]
struct Seen {
    keys: [*const f32; PAGE_TOKENS],
    values: [*const f32; PAGE_TOKENS],
    n: usize,
    /// So many of them, the first, are of halves.
    halves: usize,
}

impl Seen {
    const NOTHING: Self = Self {
        keys: [std::ptr::null(); PAGE_TOKENS],
        values: [std::ptr::null(); PAGE_TOKENS],
        n: 0,
        halves: 0,
    };

    /// Positions `from..to` of a page: committed ones, then rows of the pass on the row's path.
    #[inline(always)]
    unsafe fn gather(
        &mut self,
        job: &Job<'_>,
        pass: &Pass<'_>,
        page: &Page,
        first_of_sequence: usize,
        row: usize,
        (from, to): (usize, usize),
    ) {
        self.n = to.saturating_sub(from);
        let mut i = 0;
        while i < self.n && from + i < job.committed {
            let at = (from + i - page.start) * page.stride;
            self.keys[i] = page.at[0].wrapping_add(at);
            self.values[i] = page.at[1].wrapping_add(at);
            i += 1;
        }
        self.halves = if page.halves { i } else { 0 };
        let (n, at) = (self.n, job.head * job.shape.head_dim);
        let mut put = |i: usize, r: usize| {
            self.keys[i] = job.k.row(r).wrapping_add(at);
            self.values[i] = job.v.row(r).wrapping_add(at);
        };
        if !job.causal {
            for i in i..n {
                put(i, first_of_sequence + (from + i - job.committed));
            }
            return;
        }
        let mut run_start = job.committed;
        for run in pass.path(row) {
            let run_end = run_start + run.len as usize;
            while i < n && from + i < run_end {
                put(i, run.first as usize + (from + i - run_start));
                i += 1;
            }
            run_start = run_end;
        }
    }

    /// Scores of two queries with the eight keys from number `first` on, of those that are halves
    /// and of the others.
    #[inline(always)]
    unsafe fn score<L: Lanes>(
        &self,
        job: &Job<'_>,
        queries: [*const f32; 2],
        first: usize,
        scores: &mut [[f32; PAGE_TOKENS]; 2],
    ) {
        unsafe {
            let (dim, scale) = (job.shape.head_dim, job.scale);
            let eight = |begin: usize, end: usize| &self.keys[begin..end.min(begin + EIGHT)];
            if first < self.halves {
                score::<L, true>(queries, eight(first, self.halves), dim, scale, scores, first);
            }
            let own = self.halves + first;
            if own < self.n {
                score::<L, false>(queries, eight(own, self.n), dim, scale, scores, own);
            }
        }
    }
}

/// Merges a page into what the query heads `g` and `g + 1` of all rows have seen before it. All
/// rows go through some keys, or some columns of values, while these are in the first-level cache.
#[inline(always)]
unsafe fn merge<L: Lanes>(job: &Job<'_>, scratch: &Scratch, seen: &[Seen], g: usize) {
    unsafe {
        let (dim, group) = (job.shape.head_dim, job.group());
        // A head without a neighbour has itself beside it; what that gives goes to the spare state.
        let second = if g + 1 < group { g + 1 } else { g };
        let mut scores = [[[f32::NEG_INFINITY; PAGE_TOKENS]; 2]; ROW_BLOCK];
        for first in (0..PAGE_TOKENS).step_by(EIGHT) {
            for (r, seen) in seen.iter().enumerate() {
                let row = job.first_row + r;
                let queries = [job.query(row, g), job.query(row, second)];
                seen.score::<L>(job, queries, first, &mut scores[r]);
            }
        }
        let mut merging = [[(L::zero(), L::zero()); 2]; ROW_BLOCK];
        let mut sums = [[std::ptr::null_mut(); 2]; ROW_BLOCK];
        for (r, seen) in seen.iter().enumerate() {
            if seen.n == 0 {
                continue;
            }
            let first = r * group + g;
            let states = [first, if g + 1 < group { first + 1 } else { ROW_BLOCK * group }];
            for i in 0..2 {
                merging[r][i] = soften::<L>(
                    &mut scores[r][i],
                    &mut *scratch.maxima.add(states[i]),
                    &mut *scratch.totals.add(states[i]),
                );
                sums[r][i] = scratch.sums.add(states[i] * dim);
            }
        }
        let mut column = 0;
        while column < dim {
            for (r, seen) in seen.iter().enumerate().filter(|(_, seen)| seen.n > 0) {
                let (values, left) = (&seen.values[..seen.n], dim - column);
                weigh::<L>(&scores[r], values, seen.halves, (column, left), merging[r], sums[r]);
            }
            column += width::<L>(dim - column);
        }
    }
}

#[inline(always)]
unsafe fn attend<L: Lanes>(view: &View<'_>, job: &Job<'_>) {
    unsafe {
        let pass = view.pass;
        let scratch = Scratch::new::<L>(view.scratch, job);
        let (first_of_sequence, of_sequence) = job.whole_sequence(pass);
        let (mut begin, mut end) = (usize::MAX, 0);
        for row in job.first_row..job.first_row + job.rows {
            let (from, to) = job.visible(pass, of_sequence, row);
            (begin, end) = (begin.min(from), end.max(to));
        }
        let mut seen = [Seen::NOTHING; ROW_BLOCK];
        for page in begin / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            let start = page * PAGE_TOKENS;
            let page = Page::read::<L>(job, &scratch, start, (begin, end));
            for r in 0..job.rows {
                let row = job.first_row + r;
                let (from, to) = job.visible(pass, of_sequence, row);
                let in_page = (from.max(start), to.min(start + PAGE_TOKENS));
                seen[r].gather(job, pass, &page, first_of_sequence, row, in_page);
            }
            for g in (0..job.group()).step_by(2) {
                merge::<L>(job, &scratch, &seen[..job.rows], g);
            }
        }
        for r in 0..job.rows {
            finish_row::<L>(view, job, &scratch, r);
        }
    }
}

/// Writes what a row's query heads have seen: transformed back where values are transformed, divided
/// by the weights' total, gated and rounded.
#[inline(always)]
unsafe fn finish_row<L: Lanes>(view: &View<'_>, job: &Job<'_>, scratch: &Scratch, r: usize) {
    unsafe {
        let (dim, group, row) = (job.shape.head_dim, job.group(), job.first_row + r);
        for g in 0..group {
            let state = r * group + g;
            let inverse = L::splat(1.0 / *scratch.totals.add(state));
            let at = (job.head * group + g) * dim;
            let to = job.out.row(row).add(at);
            let gate = job.query(row, g).wrapping_add(dim);
            if job.layout.kind.is_hadamard() {
                hadamard(std::slice::from_raw_parts_mut(scratch.sums.add(state * dim), dim));
            }
            for d in (0..dim).step_by(16) {
                let mut y = L::load(scratch.sums.add(state * dim + d)).mul(inverse);
                if job.shape.gated {
                    y = y.mul(L::load(gate.add(d)).sigmoid());
                }
                y.store(to.add(d));
            }
            if view.int8 {
                let blocks: *mut Q8Block = job.out.blocks(row).add(at / 32);
                quantise_row::<L>(to, dim, blocks);
            }
        }
    }
}

at_level!(fn attend_at = attend(view: &View<'_>, job: &Job<'_>));

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
                let job = Job {
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
                    q,
                    k,
                    v,
                    out,
                };
                // SAFETY: the buffers have the shape's widths; this head of these rows is this
                // thread's alone.
                unsafe { attend_at(view.level, view, &job) };
            }
            task += 1;
        }
        first_row += rows;
    }
}
