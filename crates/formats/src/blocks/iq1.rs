//! The formats of ggml's below two bits that take -1, 0 or 1 eight times from a codebook and move
//! all eight up or down by an eighth: `d / 8 * (2 scale + 1) * (8 q ± 1)`.
#![allow(non_camel_case_types)]

use super::{Block, Half, codebooks, scaled};
use bytemuck::{Pod, Zeroable};

/// 1.5625 bits an element, a scale and a direction every 32.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_S {
    /// Scale of the scales.
    pub d: Half,
    /// The low eight bits of every eight elements' index.
    pub qs: [u8; 32],
    /// [8 sub-blocks]: three high bits of each of the four indices, three bits of scale, and a bit
    /// that is set for down.
    pub qh: [[u8; 2]; 8],
}

/// 1.75 bits an element, a scale every 16 and a direction every 8.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IQ1_M {
    /// The low eight bits of every eight elements' index.
    pub qs: [u8; 32],
    /// Nibble `i % 2` of byte `i / 2`: the three high bits of index `i`, and a bit that is set for
    /// down.
    pub qh: [u8; 16],
    /// `[4]` words of four scales of three bits; above them four bits of the scale of the scales,
    /// the lowest first.
    pub scales: [[u8; 2]; 4],
}

/// Eight elements in eighths.
#[inline]
fn eighths(index: u16, down: bool) -> [i8; 8] {
    let step = if down { -1 } else { 1 };
    codebooks::IQ1_S[usize::from(index)].map(|digit| 8 * (digit as i8 - 1) + step)
}

impl IQ1_S {
    /// The integers in element order: -9 to 9.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, eight) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = u16::from_le_bytes(self.qh[i / 4]);
            let index = u16::from(self.qs[i]) | (high >> (3 * (i % 4)) & 7) << 8;
            *eight = eighths(index, high >> 15 == 1);
        }
        quants
    }

    /// The scales: odd, 1 to 15.
    #[inline]
    pub fn scales(&self) -> [i8; 8] {
        self.qh.map(|word| 2 * (word[1] >> 4 & 7) as i8 + 1)
    }
}

impl IQ1_M {
    /// The scale of the scales.
    #[inline]
    pub fn d(&self) -> Half {
        let [a, b, c, d] = self.scales.map(|word| word[1] >> 4);
        Half([a | b << 4, c | d << 4])
    }

    /// The integers in element order: -9 to 9.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = [0; 256];
        for (i, eight) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = self.qh[i / 2] >> (4 * (i % 2));
            *eight = eighths(u16::from(self.qs[i]) | u16::from(high & 7) << 8, high & 8 == 8);
        }
        quants
    }

    /// The scales: odd, 1 to 15.
    #[inline]
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|i| {
            let word = u16::from_le_bytes(self.scales[i / 4]);
            2 * (word >> (3 * (i % 4)) & 7) as i8 + 1
        })
    }
}

impl Block<256> for IQ1_S {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d.get() * 0.125, &self.scales(), &self.quants(), out);
    }
}

impl Block<256> for IQ1_M {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(self.d().get() * 0.125, &self.scales(), &self.quants(), out);
    }
}
