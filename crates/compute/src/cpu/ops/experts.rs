//! Mixture of experts: the router's choice and the sum of the experts' outputs.

use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        view::View,
    },
    plan::{Buf, Routing},
};

#[inline(always)]
unsafe fn route_row<L: Lanes>(logits: &[f32], scale: f32, ids: &mut [u32], weights: &mut [f32]) {
    let top_k = ids.len();
    for rank in 0..top_k {
        // A tie goes to the lower expert; NaN is never the best, and `best` is a valid expert in
        // any case.
        let mut best = (0..logits.len())
            .find(|e| !ids[..rank].contains(&(*e as u32)))
            .expect("top_k <= experts");
        for e in 0..logits.len() {
            if logits[e] > logits[best] && !ids[..rank].contains(&(e as u32)) {
                best = e;
            }
        }
        ids[rank] = best as u32;
    }
    let highest = logits[ids[0] as usize];
    let mut sum = 0.0;
    for rank in 0..top_k {
        // SAFETY: the level's instructions exist.
        weights[rank] = unsafe { L::splat(logits[ids[rank] as usize] - highest).exp().largest() };
        sum += weights[rank];
    }
    for w in weights {
        *w = *w / sum * scale;
    }
}

at_level!(fn route_at = route_row(
    logits: &[f32], scale: f32, ids: &mut [u32], weights: &mut [f32],
));

pub(super) unsafe fn route(view: &View<'_>, logits: Buf, routing: &Routing, scale: f32) {
    let (logits, top_k) = (view.buffer(logits), routing.top_k);
    let (ids, weights) = (view.buffer(routing.ids), view.buffer(routing.weights));
    for row in view.worker.share(view.rows()) {
        // SAFETY: rows of these buffers; this thread's alone.
        unsafe {
            let logits = std::slice::from_raw_parts(logits.row(row), routing.experts);
            let ids = std::slice::from_raw_parts_mut(ids.words(row), top_k);
            let weights = std::slice::from_raw_parts_mut(weights.row(row), top_k);
            route_at(view.level, logits, scale, ids, weights);
        }
    }
    view.worker.wait();
    if view.worker.index == 0 {
        // SAFETY: the other threads wait at the end of the op.
        unsafe {
            let ids = std::slice::from_raw_parts(ids.words(0), view.rows() * top_k);
            let order =
                std::slice::from_raw_parts_mut(view.buffer(routing.order).words(0), ids.len());
            let starts = std::slice::from_raw_parts_mut(
                view.buffer(routing.starts).words(0),
                routing.experts + 1,
            );
            sort_visits(ids, starts, order);
        }
    }
}

/// Lists visits by expert: `order[starts[e]..starts[e + 1]]` are those of expert `e`, in order of
/// rows.
fn sort_visits(ids: &[u32], starts: &mut [u32], order: &mut [u32]) {
    starts.fill(0);
    for id in ids {
        starts[*id as usize + 1] += 1;
    }
    for e in 1..starts.len() {
        starts[e] += starts[e - 1];
    }
    // `starts[e]` walks to the end of expert `e`, which is where `e + 1` began.
    for (visit, id) in ids.iter().enumerate() {
        let at = &mut starts[*id as usize];
        order[*at as usize] = visit as u32;
        *at += 1;
    }
    starts.rotate_right(1);
    starts[0] = 0;
}

/// 16 columns at a time.
struct CombineJob {
    experts: *const f32,
    /// Numbers from one visit to the next.
    stride: usize,
    weights: *const f32,
    top_k: usize,
    shared: *const f32,
    shared_gate: f32,
    out: *mut f32,
    n: usize,
}

#[inline(always)]
unsafe fn combine_row<L: Lanes>(job: &CombineJob) {
    unsafe {
        let gate = L::splat(job.shared_gate).sigmoid();
        for i in (0..job.n).step_by(16) {
            let mut sum = L::zero();
            for rank in 0..job.top_k {
                let y = L::load(job.experts.add(rank * job.stride + i));
                sum = y.fma(L::splat(*job.weights.add(rank)), sum);
            }
            if !job.shared.is_null() {
                sum = L::load(job.shared.add(i)).fma(gate, sum);
            }
            sum.store(job.out.add(i));
        }
    }
}

at_level!(fn combine_at = combine_row(job: &CombineJob));

pub(super) unsafe fn combine(
    view: &View<'_>,
    routing: &Routing,
    experts: Buf,
    shared: Option<(Buf, Buf)>,
    out: Buf,
) {
    let (experts, out) = (view.buffer(experts), view.buffer(out));
    assert!(out.cols.is_multiple_of(16) && experts.cols == out.cols);
    let pieces = out.cols / 16;
    let share = view.worker.share(view.rows() * pieces);
    for row in share.start / pieces..share.end.div_ceil(pieces) {
        let begin = share.start.max(row * pieces) % pieces * 16;
        let end = (share.end.min((row + 1) * pieces) - row * pieces) * 16;
        let (part, gate) = match shared {
            // SAFETY: the gate has one column.
            Some((y, gate)) => (view.buffer(y).row(row).wrapping_add(begin).cast_const(), unsafe {
                *view.buffer(gate).row(row)
            }),
            None => (std::ptr::null(), 0.0),
        };
        let job = CombineJob {
            experts: experts.row(row * routing.top_k).wrapping_add(begin),
            stride: experts.cols,
            weights: view.buffer(routing.weights).row(row),
            top_k: routing.top_k,
            shared: part,
            shared_gate: gate,
            out: out.row(row).wrapping_add(begin),
            n: end - begin,
        };
        // SAFETY: columns `begin..end` of the row's buffers.
        unsafe { combine_at(view.level, &job) };
    }
}
