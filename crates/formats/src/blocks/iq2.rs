//! The 2-bit formats of ggml's that take their elements eight at a time from a codebook, whose
//! digits are the magnitudes 8, 25 and 43: `d / 8 * (2 scale + 1) * m`, or minus that.
#![allow(non_camel_case_types)]

use super::{Block, Half, codebooks, scaled};
use bytemuck::{Pod, Zeroable};

/// What the digits of the codebooks stand for.
pub const IQ2_MAGNITUDES: [i8; 3] = [8, 25, 43];

/// 2.0625 bits an element, a scale every 32.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XXS {
    /// Scale of the scales.
    pub d: Half,
    /// [8 sub-blocks]: the index of every eight elements; then seven signs of each and four bits
    /// of scale.
    pub subs: [[[u8; 4]; 2]; 8],
}

/// 2.3125 bits an element, a scale every 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_XS {
    /// Scale of the scales.
    pub d: Half,
    /// `[32]` of every eight elements: nine bits of index, seven signs.
    pub qs: [[u8; 2]; 32],
    /// Scale `i` is nibble `i % 2` of byte `i / 2`.
    pub scales: [u8; 8],
}

/// 2.5625 bits an element, a scale every 16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ2_S {
    /// Scale of the scales.
    pub d: Half,
    /// The low eight bits of every eight elements' index.
    pub qs: [u8; 32],
    /// Their signs.
    pub signs: [u8; 32],
    /// Bits 8 and 9 of index `i` are bits `2 (i % 4)` and the next of byte `i / 4`.
    pub qh: [u8; 8],
    /// Scale `i` is nibble `i % 2` of byte `i / 2`.
    pub scales: [u8; 8],
}

/// The signs of eight elements from seven: their number is even.
#[inline]
pub fn eight_signs(seven: u8) -> u8 {
    let seven = seven & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The signs of every eight elements from words that have four times seven of them.
#[inline]
pub(super) fn signs_of_words(words: &[[u8; 4]; 8]) -> [u8; 32] {
    std::array::from_fn(|i| eight_signs((u32::from_le_bytes(words[i / 4]) >> (7 * (i % 4))) as u8))
}

/// The integers of 32 entries.
#[inline]
fn quants(entries: impl Fn(usize) -> ([u8; 8], u8)) -> [i8; 256] {
    let mut quants = [0; 256];
    for (i, eight) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (digits, signs) = entries(i);
        *eight = std::array::from_fn(|j| {
            let magnitude = IQ2_MAGNITUDES[usize::from(digits[j])];
            if signs >> j & 1 == 1 { -magnitude } else { magnitude }
        });
    }
    quants
}

/// Odd scales from nibbles.
#[inline]
fn odd(nibbles: &[u8; 8]) -> [i8; 16] {
    std::array::from_fn(|i| 2 * (nibbles[i / 2] >> (4 * (i % 2)) & 15) as i8 + 1)
}

impl IQ2_XXS {
    /// The integers in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let signs = signs_of_words(&self.subs.map(|sub| sub[1]));
        quants(|i| (codebooks::IQ2_XXS[usize::from(self.subs[i / 4][0][i % 4])], signs[i]))
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        self.subs.map(|sub| 2 * (sub[1][3] >> 4) as i8 + 1)
    }
}

impl IQ2_XS {
    /// The integers in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        quants(|i| {
            let word = u16::from_le_bytes(self.qs[i]);
            (codebooks::IQ2_XS[usize::from(word & 511)], eight_signs((word >> 9) as u8))
        })
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 16] {
        odd(&self.scales)
    }
}

impl IQ2_S {
    /// The index of every eight elements.
    #[inline]
    pub fn indices(&self) -> [u16; 32] {
        std::array::from_fn(|i| {
            u16::from(self.qs[i]) | u16::from(self.qh[i / 4] >> (2 * (i % 4)) & 3) << 8
        })
    }

    /// The integers in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let indices = self.indices();
        quants(|i| (codebooks::IQ2_S[usize::from(indices[i])], self.signs[i]))
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 16] {
        odd(&self.scales)
    }
}

impl Block<256> for IQ2_XXS {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get() * 0.125, &self.scales(), &self.quants(), out);
    }
}

impl Block<256> for IQ2_XS {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get() * 0.125, &self.scales(), &self.quants(), out);
    }
}

impl Block<256> for IQ2_S {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get() * 0.125, &self.scales(), &self.quants(), out);
    }
}
