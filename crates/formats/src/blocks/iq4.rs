//! The non-linear 4-bit formats: a quant indexes a table whose steps widen away from zero.
#![allow(non_camel_case_types)]

use super::legacy::nibbles;
use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// What the sixteen quants stand for, before the scale.
pub const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 4.5 bits an element: `d * IQ4_VALUES[q]`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_NL {
    /// Scale.
    pub d: Half,
    /// `[16]` bytes of two nibbles: elements `0..16` low, `16..32` high.
    pub qs: [u8; 16],
}

/// 4.25 bits an element, 8 sub-blocks of 32: `d * scale * IQ4_VALUES[q]`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ4_XS {
    /// Scale of the scales.
    pub d: Half,
    /// Bits `2 i ..= 2 i + 1` (little endian) are the high two bits of scale `i`.
    pub scales_h: [u8; 2],
    /// The low four bits of scale `i` are nibble `i % 2` of byte `i / 2`.
    pub scales_l: [u8; 4],
    /// [8 sub-blocks, 16]: nibbles in `IQ4_NL`'s order within a sub-block.
    pub qs: [u8; 128],
}

impl IQ4_NL {
    /// The table's values in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 32] {
        nibbles(&self.qs).map(|q| IQ4_VALUES[usize::from(q)])
    }
}

impl IQ4_XS {
    /// The table's values in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (quants, qs) in quants.as_chunks_mut::<32>().0.iter_mut().zip(self.qs.as_chunks().0) {
            *quants = nibbles(qs).map(|q| IQ4_VALUES[usize::from(q)]);
        }
        quants
    }

    /// The scales, -32 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32
        })
    }
}

impl Block<32> for IQ4_NL {
    #[inline]
    fn decode(&self, out: &mut [f32; 32]) {
        *out = self.quants().map(|q| self.d.get() * f32::from(q));
    }
}

impl Block<256> for IQ4_XS {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        let quants = self.quants();
        let subs = out.as_chunks_mut::<32>().0.iter_mut().zip(quants.as_chunks::<32>().0);
        for ((out, quants), scale) in subs.zip(self.scales()) {
            let d = self.d.get() * f32::from(scale);
            *out = quants.map(|q| d * f32::from(q));
        }
    }
}
