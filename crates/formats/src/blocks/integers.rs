//! Integers in groups as Hugging Face folders have them (AWQ, GPTQ, compressed-tensors): a scale
//! and the code that stands for zero.
#![allow(non_camel_case_types)]

use super::{Block, Single};
use bytemuck::{Pod, Zeroable};

/// 4.25 bits an element for groups of 128 or more: `scale * (q - zero)`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct INT4 {
    /// Scale and zero.
    pub head: Scale,
    /// `[64]` bytes of two nibbles: element `2 i` low, `2 i + 1` high.
    pub qs: [u8; 64],
}

/// 5 bits an element for groups of 32 and 64.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct INT4_32 {
    /// Scale and zero.
    pub head: Scale,
    /// `[16]` bytes of two nibbles: element `2 i` low, `2 i + 1` high.
    pub qs: [u8; 16],
}

/// 8.25 bits an element: `scale * q`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct INT8 {
    /// Scale.
    pub scale: Single,
    /// Elements.
    pub qs: [i8; 128],
}

/// A scale that an f16 or a bf16 can hold, and in the 13 bits of an `f32` that neither of them uses
/// the code that stands for zero, 0 to 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Scale(pub [u8; 4]);

impl Scale {
    const ZERO: u32 = (1 << 13) - 1;

    /// `None` where the scale has more bits than an f16 or a bf16.
    #[inline]
    pub fn new(scale: f32, zero: u8) -> Option<Self> {
        let bits = scale.to_bits();
        (bits & Self::ZERO == 0).then(|| Self((bits | u32::from(zero)).to_le_bytes()))
    }

    /// The scale.
    #[inline]
    pub fn scale(self) -> f32 {
        f32::from_bits(u32::from_le_bytes(self.0) & !Self::ZERO)
    }

    /// The code that stands for zero.
    #[inline]
    pub fn zero(self) -> u8 {
        self.0[0] & 31
    }
}

/// The codes of pairs in element order.
#[inline]
fn pairs<const LEN: usize>(qs: &[u8]) -> [u8; LEN] {
    std::array::from_fn(|i| qs[i / 2] >> (4 * (i % 2)) & 15)
}

#[inline]
fn decode<const LEN: usize>(head: Scale, qs: &[u8]) -> [f32; LEN] {
    pairs(qs).map(|q: u8| head.scale() * f32::from(q as i8 - head.zero() as i8))
}

impl INT4 {
    /// The codes in element order.
    #[inline]
    pub fn codes(&self) -> [u8; 128] {
        pairs(&self.qs)
    }
}

impl INT4_32 {
    /// The codes in element order.
    #[inline]
    pub fn codes(&self) -> [u8; 32] {
        pairs(&self.qs)
    }
}

impl Block<128> for INT4 {
    #[inline]
    fn decode(&self, out: &mut [f32; 128]) {
        *out = decode(self.head, &self.qs);
    }
}

impl Block<32> for INT4_32 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        *out = decode(self.head, &self.qs);
    }
}

impl Block<128> for INT8 {
    #[inline]
    fn decode(&self, out: &mut [f32; 128]) {
        *out = self.qs.map(|q| self.scale.get() * f32::from(q));
    }
}
