//! How the codes of a group are packed.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use crate::cpu::lanes::Lanes;
use formats::blocks::{
    fp4::FP4_DOUBLED, iq2::IQ2_MAGNITUDES, iq3::IQ3_XXS_MAGNITUDES, iq4::IQ4_VALUES,
};
use std::marker::PhantomData;

/// How codes are packed.
pub(crate) trait Codes {
    /// Bytes of a group of a tile: [vectors, 64].
    const BYTES: usize;
    /// No code is larger.
    const MOST: i32;
    /// Vector `i` of the result holds columns `4i..4i+4`.
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8];
    /// The inverse: packs a group whose vector `i` holds the codes of columns `4i..4i+4`, four
    /// bytes a row.
    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]);
}

/// Puts the masked bits of a vector at `shift` in each byte.
fn join(packed: &mut [u8], codes: &[u8; 64], mask: u8, shift: usize) {
    for (to, code) in packed.iter_mut().zip(codes) {
        *to |= (code & mask) << shift;
    }
}

/// `N` vectors, one after the other.
#[inline(always)]
unsafe fn vectors<L: Lanes, const N: usize>(from: *const u8) -> [L::Ints; N] {
    unsafe {
        let mut v = [L::int_splat(0); N];
        for i in 0..N {
            v[i] = L::int_load(from.add(64 * i));
        }
        v
    }
}

macro_rules! eight {
    ($f:ident) => {
        [$f!(0), $f!(1), $f!(2), $f!(3), $f!(4), $f!(5), $f!(6), $f!(7)]
    };
}

/// 4-bit codes: vector `i % 4`, low nibble for `i < 4`.
pub(crate) struct Nibbles;

impl Codes for Nibbles {
    const BYTES: usize = 256;
    const MOST: i32 = 15;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let mask = L::byte_splat(15);
            let v = vectors::<L, 4>(from);
            let mut codes = [mask; 8];
            for i in 0..4 {
                codes[i] = L::int_and(v[i], mask);
                codes[i + 4] = L::int_and(L::int_shr::<4>(v[i]), mask);
            }
            codes
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        for i in 0..8 {
            join(&mut group[i % 4 * 64..], &codes[i], 15, i / 4 * 4);
        }
    }
}

/// 4-bit indices into a table of codes.
pub(crate) struct Lookup<T>(PhantomData<T>);

/// A table that codes are looked up in.
pub(crate) trait Table {
    /// What the indices stand for, plus the format's offset.
    const CODES: [u8; 16];
    /// No code is larger.
    const MOST: i32;
}

/// Of the 4-bit IQ types.
pub(crate) struct Iq4;
impl Table for Iq4 {
    const CODES: [u8; 16] = offset(&IQ4_VALUES, 128);
    const MOST: i32 = 255;
}

/// Of `IQ3_XXS`: a digit of the codebook, and 8 where the element is negative.
pub(crate) struct Iq3;
impl Table for Iq3 {
    const CODES: [u8; 16] = signed(&IQ3_XXS_MAGNITUDES, 8, 128);
    const MOST: i32 = 255;
}

/// Of the 2-bit IQ types: a digit of the codebook, and 4 where the element is negative.
pub(crate) struct Iq2;
impl Table for Iq2 {
    const CODES: [u8; 16] = signed(&IQ2_MAGNITUDES, 4, 128);
    const MOST: i32 = 255;
}

/// Of 4-bit floats, doubled.
pub(crate) struct Fp4;
impl Table for Fp4 {
    const CODES: [u8; 16] = offset(&FP4_DOUBLED, 16);
    const MOST: i32 = 31;
}

const fn offset(values: &[i8; 16], offset: i16) -> [u8; 16] {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < 16 {
        codes[i] = (values[i] as i16 + offset) as u8;
        i += 1;
    }
    codes
}

/// Magnitudes, then from index `negative` on the same below zero.
const fn signed(magnitudes: &[i8], negative: usize, zero: i16) -> [u8; 16] {
    let (mut values, mut i) = ([0; 16], 0);
    while i < magnitudes.len() {
        values[i] = magnitudes[i];
        values[negative + i] = -magnitudes[i];
        i += 1;
    }
    offset(&values, zero)
}

impl<T: Table> Codes for Lookup<T> {
    const BYTES: usize = Nibbles::BYTES;
    const MOST: i32 = T::MOST;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let mut codes = Nibbles::unpack::<L>(from);
            for code in &mut codes {
                *code = L::lookup(const { &T::CODES }.as_ptr(), *code);
            }
            codes
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        Nibbles::pack(codes, group);
    }
}

/// 5-bit codes: nibbles, then a vector whose bit `i` is the fifth bit of vector `i`.
pub(crate) struct Fives;

impl Codes for Fives {
    const BYTES: usize = Nibbles::BYTES + 64;
    const MOST: i32 = 31;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let low = Nibbles::unpack::<L>(from);
            let high = L::int_load(from.add(Nibbles::BYTES));
            let mask = L::byte_splat(16);
            macro_rules! five {
                ($i:literal) => {{
                    let bit = if $i < 4 {
                        L::int_shl::<{ (4 - $i) & 7 }>(high)
                    } else {
                        L::int_shr::<{ ($i - 4) & 7 }>(high)
                    };
                    L::int_or(low[$i], L::int_and(bit, mask))
                }};
            }
            eight!(five)
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        let (low, high) = group.split_at_mut(Nibbles::BYTES);
        Nibbles::pack(codes, low);
        for i in 0..8 {
            join(high, &codes[i].map(|c| c >> 4), 1, i);
        }
    }
}

/// 6-bit codes: nibbles, then two vectors: bits `2 (i / 2)` of vector `i % 2` are the upper two of
/// vector `i`.
pub(crate) struct Sixes;

impl Codes for Sixes {
    const BYTES: usize = Nibbles::BYTES + 128;
    const MOST: i32 = 63;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let low = Nibbles::unpack::<L>(from);
            let high = vectors::<L, 2>(from.add(Nibbles::BYTES));
            let mask = L::byte_splat(0x30);
            macro_rules! six {
                ($i:literal) => {{
                    let v = high[$i % 2];
                    let two = match $i / 2 {
                        0 => L::int_shl::<4>(v),
                        1 => L::int_shl::<2>(v),
                        2 => v,
                        _ => L::int_shr::<2>(v),
                    };
                    L::int_or(low[$i], L::int_and(two, mask))
                }};
            }
            eight!(six)
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        let (low, high) = group.split_at_mut(Nibbles::BYTES);
        Nibbles::pack(codes, low);
        for i in 0..8 {
            join(&mut high[i % 2 * 64..], &codes[i].map(|c| c >> 4), 3, i / 2 * 2);
        }
    }
}

/// 2-bit codes: bits `2 (i / 2)` of vector `i % 2`.
pub(crate) struct Twos;

impl Codes for Twos {
    const BYTES: usize = 128;
    const MOST: i32 = 3;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let v = vectors::<L, 2>(from);
            let mask = L::byte_splat(3);
            macro_rules! two {
                ($i:literal) => {
                    L::int_and(L::int_shr::<{ $i / 2 * 2 }>(v[$i % 2]), mask)
                };
            }
            eight!(two)
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        for i in 0..8 {
            join(&mut group[i % 2 * 64..], &codes[i], 3, i / 2 * 2);
        }
    }
}

/// 3-bit codes: two bits as in `Twos`, then a vector whose bit `i` is the third bit of vector `i`.
pub(crate) struct Threes;

impl Codes for Threes {
    const BYTES: usize = Twos::BYTES + 64;
    const MOST: i32 = 7;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe {
            let low = Twos::unpack::<L>(from);
            let high = L::int_load(from.add(Twos::BYTES));
            let mask = L::byte_splat(4);
            macro_rules! three {
                ($i:literal) => {{
                    let bit = if $i < 2 {
                        L::int_shl::<{ (2 - $i) & 7 }>(high)
                    } else {
                        L::int_shr::<{ ($i - 2) & 7 }>(high)
                    };
                    L::int_or(low[$i], L::int_and(bit, mask))
                }};
            }
            eight!(three)
        }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        let (low, high) = group.split_at_mut(Twos::BYTES);
        Twos::pack(codes, low);
        for i in 0..8 {
            join(high, &codes[i].map(|c| c >> 2), 1, i);
        }
    }
}

/// 8-bit codes.
pub(crate) struct Bytes;

impl Codes for Bytes {
    const BYTES: usize = 512;
    const MOST: i32 = 255;

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(from: *const u8) -> [L::Ints; 8] {
        unsafe { vectors::<L, 8>(from) }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        group.copy_from_slice(codes.as_flattened());
    }
}
