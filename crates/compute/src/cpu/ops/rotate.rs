//! Rotary angles; per-head norm and rotation of queries and keys; rounding of keys and values to
//! the cache's type.

use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        view::View,
    },
    hadamard::hadamard,
    kv::KvType,
    plan::{Buf, Op, Rotary},
};

pub(super) unsafe fn angles(view: &View<'_>, rotary: &Rotary, out: Buf) {
    let out = view.buffer(out);
    let pairs = rotary.inverse_frequencies.len();
    assert_eq!(out.cols, 2 * pairs);
    for row in view.worker.share(view.rows()) {
        // SAFETY: a row of the buffer, this thread's alone.
        let to = unsafe { std::slice::from_raw_parts_mut(out.row(row), out.cols) };
        let (cos, sin) = to.split_at_mut(pairs);
        for (i, inverse) in rotary.inverse_frequencies.iter().enumerate() {
            let angle = (view.pass.positions[row] as f32 * inverse) as f64;
            cos[i] = angle.cos() as f32 * rotary.magnitude;
            sin[i] = angle.sin() as f32 * rotary.magnitude;
        }
    }
}

/// One head of one row.
struct HeadJob {
    x: *mut f32,
    head_dim: usize,
    norm: *const f32,
    eps: f32,
    /// [2, pairs].
    angles: *const f32,
    pairs: usize,
}

#[inline(always)]
unsafe fn rotate_head<L: Lanes>(job: &HeadJob) {
    unsafe {
        let mut squares = L::zero();
        for i in (0..job.head_dim).step_by(16) {
            let x = L::load(job.x.add(i));
            squares = x.fma(x, squares);
        }
        let factor = L::splat(1.0 / (squares.sum() / job.head_dim as f32 + job.eps).sqrt());
        for i in (0..job.head_dim).step_by(16) {
            L::load(job.x.add(i)).mul(factor).mul(L::load(job.norm.add(i))).store(job.x.add(i));
        }
        for i in (0..job.pairs).step_by(16) {
            let (a, b) = (L::load(job.x.add(i)), L::load(job.x.add(job.pairs + i)));
            let (cos, sin) = (L::load(job.angles.add(i)), L::load(job.angles.add(job.pairs + i)));
            b.fnma(sin, a.mul(cos)).store(job.x.add(i));
            a.fma(sin, b.mul(cos)).store(job.x.add(job.pairs + i));
        }
    }
}

at_level!(fn rotate_at = rotate_head(job: &HeadJob));

/// Reads a stored key or value of `n` numbers.
#[inline(always)]
pub(super) unsafe fn decode_row<L: Lanes>(kind: KvType, from: *const u8, n: usize, out: *mut f32) {
    unsafe {
        match kind {
            KvType::F16 => {
                for i in (0..n).step_by(16) {
                    L::load_f16(from.cast::<u16>().add(i)).store(out.add(i));
                }
            }
            KvType::Q8_0 => {
                for b in 0..n / 32 {
                    let block = from.add(34 * b);
                    let d = L::splat(
                        half::f16::from_bits(block.cast::<u16>().read_unaligned()).to_f32(),
                    );
                    for i in [0, 16] {
                        L::load_i8(block.add(2 + i).cast()).mul(d).store(out.add(32 * b + i));
                    }
                }
            }
            KvType::Q4_0 | KvType::Q4_0H => {
                for b in 0..n / 32 {
                    let block = from.add(18 * b);
                    let d = L::splat(
                        half::f16::from_bits(block.cast::<u16>().read_unaligned()).to_f32(),
                    );
                    let q = block.add(2).cast::<u128>().read_unaligned();
                    let low = u128::from_ne_bytes([15; 16]);
                    for (i, nibbles) in [(0, q & low), (16, q >> 4 & low)] {
                        let x = L::load_i8((&raw const nibbles).cast());
                        x.sub(L::splat(8.0)).mul(d).store(out.add(32 * b + i));
                    }
                }
            }
        }
    }
}

at_level!(fn decode_at = decode_row(kind: KvType, from: *const u8, n: usize, out: *mut f32));

pub(super) unsafe fn rotate(view: &View<'_>, op: &Op) {
    let &Op::Rotate { q, k, v, shape, q_norm, k_norm, eps, angles, cache, layer } = op else {
        unreachable!()
    };
    let cache = &view.plan.caches[cache];
    let (q, k, v, angles) = (view.buffer(q), view.buffer(k), view.buffer(v), view.buffer(angles));
    let kept = view.buffer(cache.rows[layer]);
    let (q_norm, k_norm) = (view.vector(q_norm), view.vector(k_norm));
    let (head_dim, row_bytes) = (shape.head_dim, cache.layout.row_bytes());
    assert!(head_dim.is_multiple_of(32) && q_norm.len() == head_dim && k_norm.len() == head_dim);
    assert!(
        q.cols == shape.heads * shape.query_stride()
            && k.cols == shape.kv_heads * head_dim
            && v.cols == k.cols
    );
    assert!(angles.cols.is_multiple_of(32) && angles.cols <= head_dim);
    let is_hadamard = cache.layout.kind.is_hadamard();
    // Query heads, then key heads, then value heads.
    let tasks = shape.heads + 2 * shape.kv_heads;
    for task in view.worker.share(view.rows() * tasks) {
        let (row, task) = (task / tasks, task % tasks);
        let head = |x, norm: &[f32]| HeadJob {
            x,
            head_dim,
            norm: norm.as_ptr(),
            eps,
            angles: angles.row(row),
            pairs: angles.cols / 2,
        };
        // SAFETY: heads of rows of these buffers, each this thread's alone.
        unsafe {
            if task < shape.heads {
                let x = q.row(row).add(task * shape.query_stride());
                rotate_at(view.level, &head(x, q_norm));
                if is_hadamard {
                    hadamard(std::slice::from_raw_parts_mut(x, head_dim));
                }
                continue;
            }
            let (part, kv_head) =
                ((task - shape.heads) / shape.kv_heads, (task - shape.heads) % shape.kv_heads);
            let x = if part == 0 { k.row(row) } else { v.row(row) }.add(kv_head * head_dim);
            if part == 0 {
                rotate_at(view.level, &head(x, k_norm));
            }
            let bytes = kept.bytes(row).add((part * shape.kv_heads + kv_head) * row_bytes);
            let numbers = std::slice::from_raw_parts_mut(x, head_dim);
            if is_hadamard {
                hadamard(numbers);
            }
            cache.layout.kind.encode(numbers, std::slice::from_raw_parts_mut(bytes, row_bytes));
            decode_at(view.level, cache.layout.kind, bytes, head_dim, x);
        }
    }
}
