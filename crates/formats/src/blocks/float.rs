//! Plain float types, and the half-precision scale inside the blocks.

use bytemuck::{Pod, Zeroable};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// A little-endian `f16` without alignment: the scales of the block formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half(pub [u8; 2]);

impl Half {
    /// The nearest `f16`, ties to even; infinite from 65520 on.
    #[inline]
    pub fn new(value: f32) -> Self {
        Self(f16::from_f32_const(value).to_le_bytes())
    }

    /// The value, which `f32` holds exactly.
    #[inline]
    pub fn get(self) -> f32 {
        // An f16's bits moved to an f32's places are the value times 2^-112, subnormals included.
        let bits = u32::from(u16::from_le_bytes(self.0));
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }
}

/// A little-endian `f32` without alignment: the scales of the formats that come from Hugging Face
/// folders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Single(pub [u8; 4]);

impl Single {
    /// That number.
    #[inline]
    pub fn new(value: f32) -> Self {
        Self(value.to_le_bytes())
    }

    /// The value.
    #[inline]
    pub fn get(self) -> f32 {
        f32::from_le_bytes(self.0)
    }
}

/// Elements converted at a time through a buffer, as mapped halves need not be aligned.
pub(crate) const CHUNK: usize = 512;

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    let mut bits = [0u16; CHUNK];
    for (bytes, out) in bytes.chunks(2 * CHUNK).zip(out.chunks_mut(CHUNK)) {
        let bits = &mut bits[..out.len()];
        for (bits, bytes) in bits.iter_mut().zip(bytes.as_chunks().0) {
            *bits = u16::from_le_bytes(*bytes);
        }
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}
