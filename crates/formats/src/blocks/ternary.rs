//! ggml's formats of -1, 0 and 1 times one scale for 256 elements.
#![allow(non_camel_case_types)]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// 1.6875 bits an element: five digits of base 3 in a byte.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TQ1_0 {
    /// Digit `k` of byte `i` is element `32 k + i` for the first 32 bytes, `160 + 16 k + i` for the
    /// other 16. A byte is a fraction of 256 in base 3, so digit `k` is what stands before the
    /// point after the fraction was multiplied by `3^(k + 1)`.
    pub qs: [u8; 48],
    /// Four digits a byte: digit `k` of byte `i` is element `240 + 4 k + i`.
    pub qh: [u8; 4],
    /// Scale.
    pub d: Half,
}

/// 2.0625 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TQ2_0 {
    /// Two bits of an element plus 1: those of element `128 h + 32 k + i` are bits `2 k` and the
    /// next of byte `32 h + i`.
    pub qs: [u8; 64],
    /// Scale.
    pub d: Half,
}

impl TQ1_0 {
    /// The integers in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        std::array::from_fn(|i| {
            let (byte, digit) = match i {
                0..160 => (self.qs[i % 32], i / 32),
                160..240 => (self.qs[32 + i % 16], (i - 160) / 16),
                _ => (self.qh[i % 4], (i - 240) / 4),
            };
            let fraction = byte.wrapping_mul([1, 3, 9, 27, 81][digit]);
            ((u16::from(fraction) * 3) >> 8) as i8 - 1
        })
    }
}

impl TQ2_0 {
    /// The integers in element order; 2 where a file has a pair of bits that means nothing.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        std::array::from_fn(|i| {
            (self.qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3) as i8 - 1
        })
    }
}

impl Block<256> for TQ1_0 {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        *out = self.quants().map(|q| self.d.get() * f32::from(q));
    }
}

impl Block<256> for TQ2_0 {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        *out = self.quants().map(|q| self.d.get() * f32::from(q));
    }
}
