//! The 3-bit formats of ggml's that take their elements four at a time from a codebook.
#![allow(non_camel_case_types)]

use super::{Block, Half, codebooks, iq2, scaled};
use bytemuck::{Pod, Zeroable};

/// 3.4375 bits an element, 8 sub-blocks of 32: `d * (2 scale + 1) * (2 q + 1)`, or minus that,
/// where `q` is a digit of the codebook.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_S {
    /// Scale of the scales.
    pub d: Half,
    /// The low eight bits of every four elements' index into the codebook.
    pub qs: [u8; 64],
    /// The ninth bit of index `i` is bit `i % 8` of byte `i / 8`.
    pub qh: [u8; 8],
    /// Element `i` is negative where bit `i % 8` of byte `i / 8` is set.
    pub signs: [u8; 32],
    /// Scale `i` is nibble `i % 2` of byte `i / 2`.
    pub scales: [u8; 4],
}

impl IQ3_S {
    /// The index of every four elements.
    #[inline]
    pub fn indices(&self) -> [u16; 64] {
        std::array::from_fn(|i| {
            u16::from(self.qs[i]) | u16::from(self.qh[i / 8] >> (i % 8) & 1) << 8
        })
    }

    /// The integers in element order: odd, -15 to 15.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let (mut quants, indices) = ([0; 256], self.indices());
        for (i, four) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let entry = codebooks::IQ3_S[usize::from(indices[i])];
            let signs = self.signs[i / 2] >> (4 * (i % 2));
            *four = std::array::from_fn(|j| {
                let magnitude = 2 * entry[j] as i8 + 1;
                if signs >> j & 1 == 1 { -magnitude } else { magnitude }
            });
        }
        quants
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        std::array::from_fn(|i| 2 * (self.scales[i / 2] >> (4 * (i % 2)) & 15) as i8 + 1)
    }
}

impl Block<256> for IQ3_S {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get(), &self.scales(), &self.quants(), out);
    }
}

/// 3.0625 bits an element, 8 sub-blocks of 32: `d / 4 * (2 scale + 1) * m`, or minus that, where
/// `m` is the magnitude of a digit of the codebook.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ3_XXS {
    /// Scale of the scales.
    pub d: Half,
    /// Every four elements' index into the codebook.
    pub qs: [u8; 64],
    /// `[8]` words of a sub-block: seven signs of every eight elements, then the scale's four bits.
    pub words: [[u8; 4]; 8],
}

/// What the digits of the codebook of `IQ3_XXS` stand for.
pub const IQ3_XXS_MAGNITUDES: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

impl IQ3_XXS {
    /// The integers in element order.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let (mut quants, signs) = ([0; 256], self.signs());
        for (i, four) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let entry = codebooks::IQ3_XXS[usize::from(self.qs[i])];
            let signs = signs[i / 2] >> (4 * (i % 2));
            *four = std::array::from_fn(|j| {
                let magnitude = IQ3_XXS_MAGNITUDES[usize::from(entry[j])];
                if signs >> j & 1 == 1 { -magnitude } else { magnitude }
            });
        }
        quants
    }

    /// The signs of every eight elements.
    #[inline]
    pub fn signs(&self) -> [u8; 32] {
        iq2::signs_of_words(&self.words)
    }

    /// The scales: odd, 1 to 31.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        self.words.map(|word| 2 * (word[3] >> 4) as i8 + 1)
    }
}

impl Block<256> for IQ3_XXS {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get() * 0.25, &self.scales(), &self.quants(), out);
    }
}
