//! The formats of 4-bit floats (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) whose scales are
//! smaller than a half.
#![allow(non_camel_case_types)]

use super::{Block, Single, fp8, legacy::nibbles};
use bytemuck::{Pod, Zeroable};

/// What the sixteen codes stand for, twice.
pub const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 4.25 bits an element, ggml's and the OCP's: a power of two for 32 elements.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MXFP4 {
    /// The scale's exponent plus 127.
    pub e: u8,
    /// `[16]` bytes of two nibbles: elements `0..16` low, `16..32` high.
    pub qs: [u8; 16],
}

/// 4.5 bits an element, ggml's: an 8-bit float for 16 elements.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NVFP4 {
    /// `[4]` scales, e4m3 without a sign.
    pub d: [u8; 4],
    /// [4 sub-blocks, 8] bytes of two nibbles: elements `0..8` of a sub-block low, `8..16` high.
    pub qs: [[u8; 8]; 4],
}

/// 4.75 bits an element: NVFP4 as Hugging Face folders have it, an 8-bit float for 16 elements and
/// a scale of the whole tensor, which every block repeats.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct FP4 {
    /// The tensor's scale.
    pub scale: Single,
    /// `[8]` scales, e4m3.
    pub d: [u8; 8],
    /// `[64]` bytes of two nibbles: element `2 i` low, `2 i + 1` high.
    pub qs: [u8; 64],
}

/// Half of the power of two that `e` stands for; `FP4_DOUBLED` has the other factor 2.
#[inline]
pub fn half_of_power(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// A scale of `NVFP4`: ggml has no sign in it and reads its NaN as zero.
#[inline]
pub fn unsigned_e4m3(byte: u8) -> f32 {
    match byte {
        0x7f => 0.0,
        // Bit 7 is not looked at, and the number above all that e4m3 has is a number.
        _ if byte & 0x7f == 0x7f => 480.0,
        _ => fp8::e4m3(byte & 0x7f),
    }
}

impl MXFP4 {
    /// The doubled values in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| FP4_DOUBLED[usize::from(q)])
    }
}

impl NVFP4 {
    /// The codes in element order.
    #[inline]
    pub fn codes(&self) -> [u8; 64] {
        std::array::from_fn(|i| self.qs[i / 16][i % 8] >> (4 * (i / 8 % 2)) & 15)
    }
}

impl FP4 {
    /// The codes in element order.
    #[inline]
    pub fn codes(&self) -> [u8; 128] {
        std::array::from_fn(|i| self.qs[i / 2] >> (4 * (i % 2)) & 15)
    }
}

impl Block<32> for MXFP4 {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        *out = self.quants().map(|q| half_of_power(self.e) * f32::from(q));
    }
}

impl Block<64> for NVFP4 {
    #[inline]
    fn decode(&self, out: &mut [f32; 64]) {
        for ((out, code), i) in out.iter_mut().zip(self.codes()).zip(0..) {
            let d = unsigned_e4m3(self.d[i / 16]) * 0.5;
            *out = d * f32::from(FP4_DOUBLED[usize::from(code)]);
        }
    }
}

impl Block<128> for FP4 {
    #[inline]
    fn decode(&self, out: &mut [f32; 128]) {
        for ((out, code), i) in out.iter_mut().zip(self.codes()).zip(0..) {
            let d = fp8::e4m3(self.d[i / 16]) * 0.5;
            let magnitude = d * f32::from(FP4_DOUBLED[usize::from(code & 7)]);
            *out = self.scale.get() * if code & 8 == 0 { magnitude } else { -magnitude };
        }
    }
}
