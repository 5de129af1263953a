//! Causal depthwise convolution along each row's path, SiLU, and the L2 norm of query and key
//! heads.

use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        view::View,
    },
    pass::{CONV_REACH, Tap},
    plan::{Buf, VectorId},
};

/// One head of one row.
struct HeadJob {
    /// Oldest first; null where there is nothing.
    taps: [*const f32; CONV_REACH + 1],
    /// [taps, channels].
    weight: *const f32,
    channels: usize,
    dim: usize,
    /// Factor after the L2 norm, or 0 for no norm.
    norm: f32,
    out: *mut f32,
}

#[inline(always)]
unsafe fn convolve_head<L: Lanes>(job: &HeadJob) {
    unsafe {
        let mut squares = L::zero();
        for i in (0..job.dim).step_by(16) {
            let mut sum = L::zero();
            for (j, tap) in job.taps.iter().enumerate() {
                if !tap.is_null() {
                    sum =
                        L::load(tap.add(i)).fma(L::load(job.weight.add(j * job.channels + i)), sum);
                }
            }
            let y = sum.silu();
            squares = y.fma(y, squares);
            y.store(job.out.add(i));
        }
        if job.norm != 0.0 {
            let factor = L::splat(job.norm / (squares.sum() + 1e-6).sqrt());
            for i in (0..job.dim).step_by(16) {
                L::load(job.out.add(i)).mul(factor).store(job.out.add(i));
            }
        }
    }
}

at_level!(fn convolve_at = convolve_head(job: &HeadJob));

pub(super) unsafe fn convolve(view: &View<'_>, layer: usize, weight: VectorId, q: Buf, v: Buf) {
    let (layout, buffers) = view.plan.recurrent_layer(layer);
    let (inputs, keys) = (view.buffer(buffers.inputs), view.buffer(buffers.keys));
    let (q, v) = (view.buffer(q), view.buffer(v));
    let weight = view.vector(weight);
    let channels = layout.channels();
    assert!(weight.len() == layout.kernel * channels && layout.kernel == CONV_REACH + 1);
    assert!(layout.dim.is_multiple_of(16));
    let heads = 2 * layout.key_heads + layout.value_heads;
    for task in view.worker.share(view.rows() * heads) {
        let (row, head) = (task / heads, task % heads);
        let channel = head * layout.dim;
        let tape = view.pass.sequences[view.pass.sequence_of[row] as usize].tape;
        let mut taps = [std::ptr::null(); CONV_REACH + 1];
        for (to, tap) in taps.iter_mut().zip(view.pass.taps[row]) {
            *to = match tap {
                Tap::Nothing => std::ptr::null(),
                Tap::Row(r) => inputs.row(r as usize).wrapping_add(channel).cast_const(),
                Tap::Committed(position) => {
                    let tape =
                        tape.expect("a sequence with recurrent layers has a tape").slice::<f32>();
                    tape[layout.input(layer, position as usize) + channel..].as_ptr()
                }
            };
        }
        taps[CONV_REACH] = inputs.row(row).wrapping_add(channel);
        let (kind, at) = (head / layout.key_heads, head % layout.key_heads * layout.dim);
        let (norm, out) = match kind {
            0 => (1.0 / (layout.dim as f32).sqrt(), q.row(row).wrapping_add(at)),
            1 => (1.0, keys.row(row).wrapping_add(at)),
            _ => (0.0, v.row(row).wrapping_add(channel - 2 * layout.key_heads * layout.dim)),
        };
        let weight = weight[channel..].as_ptr();
        let job = HeadJob { taps, weight, channels, dim: layout.dim, norm, out };
        // SAFETY: heads of rows of these buffers and of the tape; the output is this thread's
        // alone.
        unsafe { convolve_at(view.level, &job) };
    }
}
