//! The K formats: 256 elements in sub-blocks whose scales are themselves quantised against one
//! `f16`.
//!
//! ```text
//!        sub-blocks   element
//! Q2_K   16 of 16     d * scale * q - dmin * min      q of 2 bits, scale and min of 4
//! Q3_K   16 of 16     d * scale * q                   q of 3 bits signed, scale of 6 signed
//! Q4_K    8 of 32     d * scale * q - dmin * min      q of 4 bits, scale and min of 6
//! Q5_K    8 of 32     d * scale * q - dmin * min      q of 5 bits, scale and min of 6
//! Q6_K   16 of 16     d * scale * q                   q of 6 bits signed, scale of 8 signed
//! ```
#![allow(non_camel_case_types)]

use super::{Block, Half};
use bytemuck::{Pod, Zeroable};

/// 2.625 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q2_K {
    /// `[16]` sub-blocks: scale in the low nibble, min in the high one.
    pub scales: [u8; 16],
    /// [2 halves, 32]: element `128 h + 32 j + l` is bits `2 j ..= 2 j + 1` of byte `32 h + l`.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
}

/// 3.4375 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q3_K {
    /// `[32]`: the third bit of element `32 j + l` is bit `j` of byte `l`; a clear bit subtracts 4.
    pub hmask: [u8; 32],
    /// [2 halves, 32]: the low two bits, in `Q2_K`'s order.
    pub qs: [u8; 64],
    /// `[16]` scales of 6 bits plus 32; see `scales`.
    pub packed_scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

/// 4.5 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
    /// `[8]` scales and `[8]` mins of 6 bits; see `unpack_scales`.
    pub packed_scales: [u8; 12],
    /// [4 pairs of sub-blocks, 32]: the first of the pair in the low nibbles, the second in the
    /// high ones.
    pub qs: [u8; 128],
}

/// 5.5 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
    /// `[8]` scales and `[8]` mins of 6 bits; see `unpack_scales`.
    pub packed_scales: [u8; 12],
    /// `[32]`: the fifth bit of element `32 j + l` is bit `j` of byte `l`.
    pub qh: [u8; 32],
    /// [4 pairs of sub-blocks, 32]: the low four bits, in `Q4_K`'s order.
    pub qs: [u8; 128],
}

/// 6.5625 bits an element.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Q6_K {
    /// [2 halves, 64]: of a half, elements `0..64` in the low nibbles and `64..128` in the high
    /// ones.
    pub ql: [u8; 128],
    /// [2 halves, 32]: the high two bits, in `Q2_K`'s order.
    pub qh: [u8; 64],
    /// `[16]` sub-blocks.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

/// The `(scales, mins)` of a `Q4_K` or `Q5_K` block, of 6 bits each.
///
/// ```text
/// bytes 0..4    low 6 bits: scales 0..4    high 2 bits: bits 4..6 of scales 4..8
/// bytes 4..8    low 6 bits: mins 0..4      high 2 bits: bits 4..6 of mins 4..8
/// bytes 8..12   low nibble: bits 0..4 of scales 4..8    high nibble: bits 0..4 of mins 4..8
/// ```
#[inline]
pub fn unpack_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        mins[i] = packed[4 + i] & 63;
        scales[4 + i] = packed[8 + i] & 15 | packed[i] >> 6 << 4;
        mins[4 + i] = packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of `unpack_scales`; every number is below 64.
#[inline]
pub fn pack_scales(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | scales[4 + i] >> 4 << 6;
        packed[4 + i] = mins[i] | mins[4 + i] >> 4 << 6;
        packed[8 + i] = scales[4 + i] & 15 | mins[4 + i] << 4;
    }
    packed
}

/// Bits `2 j ..= 2 j + 1` of byte `32 h + l` to element `128 h + 32 j + l`.
#[inline]
fn two_bits(qs: &[u8; 64]) -> [u8; 256] {
    let mut quants = [0; 256];
    for (half, qs) in quants.as_chunks_mut::<128>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (j, quants) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *quants = qs.map(|q| q >> (2 * j) & 3);
        }
    }
    quants
}

/// The nibbles of a pair of sub-blocks: the low ones, then the high ones.
#[inline]
fn nibbles(qs: &[u8; 128]) -> [u8; 256] {
    let mut quants = [0; 256];
    for (pair, qs) in quants.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for l in 0..32 {
            pair[l] = qs[l] & 15;
            pair[32 + l] = qs[l] >> 4;
        }
    }
    quants
}

/// The inverse of `two_bits`, of numbers below 4.
#[inline]
fn pack_two_bits(quants: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let at = 128 * (i / 32) + i % 32;
        quants[at] | quants[at + 32] << 2 | quants[at + 64] << 4 | quants[at + 96] << 6
    })
}

/// The inverse of `nibbles`, of numbers below 16.
#[inline]
fn pack_nibbles(quants: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let at = 64 * (i / 32) + i % 32;
        quants[at] | quants[at + 32] << 4
    })
}

impl Q2_K {
    /// The quants in element order.
    #[inline]
    pub fn quants(&self) -> [u8; 256] {
        two_bits(&self.qs)
    }
}

impl Q3_K {
    /// The quants in element order, -4 to 3.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = two_bits(&self.qs).map(|q| q as i8);
        for (j, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for l in 0..32 {
                quants[l] -= 4 - (self.hmask[l] >> j & 1) as i8 * 4;
            }
        }
        quants
    }

    /// The scales, -32 to 31: scale `i` has its low four bits in nibble `i / 8` of byte `i % 8`,
    /// its high two in bits `2 (i / 4) ..` of byte `8 + i % 4`, and 32 added.
    #[inline]
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|i| {
            let low = self.packed_scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = self.packed_scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Q4_K {
    /// The field `qs` for these quants, each below 16.
    #[inline]
    pub fn pack_quants(quants: &[u8; 256]) -> [u8; 128] {
        pack_nibbles(quants)
    }

    /// The quants in element order.
    #[inline]
    pub fn quants(&self) -> [u8; 256] {
        nibbles(&self.qs)
    }
}

impl Q5_K {
    /// The fields `(qh, qs)` for these quants, each below 32.
    #[inline]
    pub fn pack_quants(quants: &[u8; 256]) -> ([u8; 32], [u8; 128]) {
        let mut qh = [0; 32];
        for (j, quants) in quants.as_chunks::<32>().0.iter().enumerate() {
            for l in 0..32 {
                qh[l] |= quants[l] >> 4 << j;
            }
        }
        (qh, pack_nibbles(&quants.map(|q| q & 15)))
    }

    /// The quants in element order.
    #[inline]
    pub fn quants(&self) -> [u8; 256] {
        let mut quants = nibbles(&self.qs);
        for (j, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for l in 0..32 {
                quants[l] |= (self.qh[l] >> j & 1) << 4;
            }
        }
        quants
    }
}

impl Q6_K {
    /// The fields `(ql, qh)` for these quants, each -32 to 31.
    #[inline]
    pub fn pack_quants(quants: &[i8; 256]) -> ([u8; 128], [u8; 64]) {
        let quants = quants.map(|q| (q + 32) as u8);
        let ql = std::array::from_fn(|i| {
            let at = 128 * (i / 64) + i % 64;
            quants[at] & 15 | quants[at + 64] << 4
        });
        (ql, pack_two_bits(&quants.map(|q| q >> 4)))
    }

    /// The quants in element order, -32 to 31.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        let mut quants = two_bits(&self.qh).map(|q| (q << 4) as i8 - 32);
        for (half, ql) in
            quants.as_chunks_mut::<128>().0.iter_mut().zip(self.ql.as_chunks::<64>().0)
        {
            for l in 0..64 {
                half[l] |= (ql[l] & 15) as i8;
                half[64 + l] |= (ql[l] >> 4) as i8;
            }
        }
        quants
    }
}

/// `d * scale * q` by sub-blocks of 16.
#[inline]
fn scaled(quants: &[i8; 256], scales: &[i8; 16], d: Half, out: &mut [f32; 256]) {
    let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(quants.as_chunks::<16>().0);
    for ((out, quants), scale) in subs.zip(scales) {
        let d = d.get() * f32::from(*scale);
        *out = quants.map(|q| d * f32::from(q));
    }
}

/// `d * scale * q - dmin * min` by sub-blocks of `SUB`.
#[inline]
fn scaled_less_min<const SUB: usize>(
    quants: &[u8; 256],
    scales: &[u8],
    mins: &[u8],
    d: Half,
    dmin: Half,
    out: &mut [f32; 256],
) {
    let subs = out.as_chunks_mut::<SUB>().0.iter_mut().zip(quants.as_chunks::<SUB>().0);
    for ((out, quants), (scale, min)) in subs.zip(scales.iter().zip(mins)) {
        let (d, min) = (d.get() * f32::from(*scale), dmin.get() * f32::from(*min));
        *out = quants.map(|q| d * f32::from(q) - min);
    }
}

impl Block<256> for Q2_K {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        let (scales, mins) = (self.scales.map(|s| s & 15), self.scales.map(|s| s >> 4));
        scaled_less_min::<16>(&self.quants(), &scales, &mins, self.d, self.dmin, out);
    }
}

impl Block<256> for Q3_K {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(&self.quants(), &self.scales(), self.d, out);
    }
}

impl Block<256> for Q4_K {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        let (scales, mins) = unpack_scales(&self.packed_scales);
        scaled_less_min::<32>(&self.quants(), &scales, &mins, self.d, self.dmin, out);
    }
}

impl Block<256> for Q5_K {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        let (scales, mins) = unpack_scales(&self.packed_scales);
        scaled_less_min::<32>(&self.quants(), &scales, &mins, self.d, self.dmin, out);
    }
}

impl Block<256> for Q6_K {
    #[inline]
    fn decode(&self, out: &mut [f32; 256]) {
        scaled(&self.quants(), &self.scales, self.d, out);
    }
}
