//! Activations rounded to int8, 32 at a time: one cache line holds the codes and everything a
//! kernel needs of them.
// The contract of an unsafe kernel covers the block inside it.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::lanes::Lanes;
use bytemuck::{Pod, Zeroable};

/// 32 activations: `x = scale * q`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Q8Block {
    pub(crate) q: [i8; 32],
    pub(crate) scale: f32,
    /// Minus the sum of all codes, and of each 16: the start of a dot product with codes that are
    /// offset.
    pub(crate) minus_sum: i32,
    pub(crate) minus_half_sums: [i32; 2],
    /// `scale` times the sum of all codes, and of each 16: what minima are multiplied with.
    pub(crate) scaled_sum: f32,
    pub(crate) scaled_half_sums: [f32; 2],
    unused: u32,
}

/// Rounds the 32 numbers in `x` to a block. NaN and infinity give a scale of NaN, so that they are
/// not lost.
///
/// # Safety
/// The level's instructions exist.
#[inline(always)]
unsafe fn quantise<L: Lanes>(x: [L; 2], out: &mut Q8Block) {
    unsafe {
        let largest = x[0].abs().max(x[1].abs()).largest();
        // What is next to nothing is nothing: its inverse would be infinite.
        let largest = if largest < 1e-30 { 0.0 } else { largest };
        let inverse = L::splat(if largest == 0.0 { 0.0 } else { 127.0 / largest });
        let q = [x[0].mul(inverse).round(), x[1].mul(inverse).round()];
        q[0].store_i8(out.q.as_mut_ptr());
        q[1].store_i8(out.q.as_mut_ptr().add(16));
        let sums = [q[0].sum(), q[1].sum()];
        out.scale = largest / 127.0 + 0.0 * (sums[0] + sums[1]);
        out.minus_half_sums = sums.map(|s| -(s as i32));
        out.minus_sum = out.minus_half_sums[0] + out.minus_half_sums[1];
        out.scaled_half_sums = sums.map(|s| s * out.scale);
        out.scaled_sum = (sums[0] + sums[1]) * out.scale;
    }
}

/// Rounds `n` numbers (a multiple of 32).
///
/// # Safety
/// `x` holds `n` numbers, `out` has `n / 32` blocks, the level's instructions exist.
#[inline(always)]
pub(crate) unsafe fn quantise_row<L: Lanes>(x: *const f32, n: usize, out: *mut Q8Block) {
    unsafe {
        for i in 0..n / 32 {
            let x = x.add(32 * i);
            quantise([L::load(x), L::load(x.add(16))], &mut *out.add(i));
        }
    }
}
