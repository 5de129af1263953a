//! The 32-element formats: one `f16` scale (and, for `_1`, one `f16` offset) for a block of
//! integers.
//!
//! ```text
//! Q4_0   d * (q - 8)        q of 4 bits
//! Q4_1   d * q + m          q of 4 bits
//! Q5_0   d * (q - 16)       q of 5 bits
//! Q5_1   d * q + m          q of 5 bits
//! Q8_0   d * q              q of 8 bits, signed
//! ```
#![allow(non_camel_case_types)]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// Elements `0..16` in the low nibbles of `qs`, `16..32` in the high ones.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale.
    pub d: Half,
    /// `[16]` bytes of two nibbles.
    pub qs: [u8; 16],
}

/// `Q4_0`'s order of nibbles, with an offset.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale.
    pub d: Half,
    /// Offset, added.
    pub m: Half,
    /// `[16]` bytes of two nibbles.
    pub qs: [u8; 16],
}

/// Low four bits as in `Q4_0`; the fifth bit of element `i` is bit `i` of `qh` (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale.
    pub d: Half,
    /// `[32]` fifth bits.
    pub qh: [u8; 4],
    /// `[16]` bytes of two nibbles.
    pub qs: [u8; 16],
}

/// `Q5_0`'s order of bits, with an offset.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_1 {
    /// Scale.
    pub d: Half,
    /// Offset, added.
    pub m: Half,
    /// `[32]` fifth bits.
    pub qh: [u8; 4],
    /// `[16]` bytes of two nibbles.
    pub qs: [u8; 16],
}

/// Signed bytes in element order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale.
    pub d: Half,
    /// `[32]` quants.
    pub qs: [i8; 32],
}

/// Sixteen bytes to 32 numbers of four bits: the low nibbles, then the high ones.
#[inline]
pub fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut quants = [0; 32];
    for i in 0..16 {
        quants[i] = qs[i] & 15;
        quants[i + 16] = qs[i] >> 4;
    }
    quants
}

/// The inverse of `nibbles`; every number is below 16.
#[inline]
pub fn pack_nibbles(quants: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| quants[i] | quants[i + 16] << 4)
}

/// `nibbles`, each with its fifth bit from `qh`.
#[inline]
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let mut quants = nibbles(qs);
    for i in 0..32 {
        quants[i] |= (qh[i / 8] >> (i % 8) & 1) << 4;
    }
    quants
}

impl Q4_0 {
    /// The quants less 8, in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| q as i8 - 8)
    }
}

impl Q4_1 {
    /// The quants in element order.
    #[inline]
    pub fn quants(&self) -> [u8; 32] {
        nibbles(&self.qs)
    }
}

impl Q5_0 {
    /// The quants less 16, in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 32] {
        five_bits(&self.qs, self.qh).map(|q| q as i8 - 16)
    }
}

impl Q5_1 {
    /// The quants in element order.
    #[inline]
    pub fn quants(&self) -> [u8; 32] {
        five_bits(&self.qs, self.qh)
    }
}

#[inline]
fn scaled(quants: [i8; 32], d: Half, out: &mut [f32; 32]) {
    *out = quants.map(|q| d.get() * f32::from(q));
}

#[inline]
fn scaled_and_moved(quants: [u8; 32], d: Half, m: Half, out: &mut [f32; 32]) {
    *out = quants.map(|q| d.get() * f32::from(q) + m.get());
}

impl Block<32> for Q4_0 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        scaled(self.quants(), self.d, out);
    }
}

impl Block<32> for Q4_1 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        scaled_and_moved(self.quants(), self.d, self.m, out);
    }
}

impl Block<32> for Q5_0 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        scaled(self.quants(), self.d, out);
    }
}

impl Block<32> for Q5_1 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        scaled_and_moved(self.quants(), self.d, self.m, out);
    }
}

impl Block<32> for Q8_0 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        scaled(self.qs, self.d, out);
    }
}
