//! 8-bit floats (e4m3) with a scale for 128 elements: one format for the scales that Hugging Face
//! folders have, of a tensor, a row, or a square of 128.

use super::{Block, Single};
use bytemuck::{Pod, Zeroable};

/// 8.25 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct FP8 {
    /// Scale.
    pub scale: Single,
    /// Elements, e4m3.
    pub qs: [u8; 128],
}

/// An 8-bit float: a sign, 4 bits of exponent (of 1: 7), 3 of mantissa; no infinity, NaN where all
/// seven bits are set.
#[inline]
pub fn e4m3(byte: u8) -> f32 {
    // Its bits moved to an f32's places are the value times 2^-120, subnormals included.
    let magnitude = u32::from(byte & 0x7f);
    let value = f32::from_bits(magnitude << 20) * f32::from_bits((127 + 120) << 23);
    let special = if magnitude == 0x7f { 0x7fc0_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special | u32::from(byte & 0x80) << 24)
}

impl Block<128> for FP8 {
    #[inline]
    fn decode(&self, out: &mut [f32; 128]) {
        *out = self.qs.map(|q| self.scale.get() * e4m3(q));
    }
}
