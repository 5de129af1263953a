//! Weight blocks in the form the kernels read: a tile is 16 rows of a matrix, and a group of 32 of
//! its columns is stored so that four columns of all 16 rows fill one 64-byte vector: lane = row,
//! byte = column. A dot product then needs no sum across lanes, and the same kernel serves one row
//! of activations or many.
//!
//! A format is how the codes are packed, where scales (and minima) come from, and which code stands
//! for zero.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use super::lanes::Lanes;
use formats::blocks::{
    fp4::FP4_DOUBLED, iq2::IQ2_MAGNITUDES, iq3::IQ3_XXS_MAGNITUDES, iq4::IQ4_VALUES,
};
use std::marker::PhantomData;

/// Rows of a tile.
pub(crate) const TILE: usize = 16;

/// Columns of a group.
pub(crate) const GROUP: usize = 32;

/// One block of a file taken apart: `weight = scale * d * (code - OFFSET) - min * dmin`, or, for
/// types whose scales are f32, `single * (code - OFFSET - zero)`.
pub(crate) struct Exploded {
    /// One per column.
    pub(crate) codes: [u8; 256],
    /// One per 16 or 32 columns; unused for blocks of 32.
    pub(crate) scales: [i8; 16],
    /// The same.
    pub(crate) minima: [i8; 16],
    /// f16.
    pub(crate) d: [u8; 2],
    /// f16; for blocks of 32 it is the constant to add.
    pub(crate) dmin: [u8; 2],
    /// One per 16 columns.
    pub(crate) singles: [f32; 8],
    /// The code that stands for zero, where blocks have one of their own.
    pub(crate) zero: i8,
}

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
            let v: [L::Ints; 4] = std::array::from_fn(|i| L::int_load(from.add(64 * i)));
            std::array::from_fn(|i| {
                if i < 4 {
                    L::int_and(v[i], mask)
                } else {
                    L::int_and(L::int_shr::<4>(v[i - 4]), mask)
                }
            })
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
            let indices = Nibbles::unpack::<L>(from);
            std::array::from_fn(|i| L::lookup(const { &T::CODES }.as_ptr(), indices[i]))
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
            let high: [L::Ints; 2] =
                std::array::from_fn(|i| L::int_load(from.add(Nibbles::BYTES + 64 * i)));
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
            let v: [L::Ints; 2] = std::array::from_fn(|i| L::int_load(from.add(64 * i)));
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
        unsafe { std::array::from_fn(|i| L::int_load(from.add(64 * i))) }
    }

    fn pack(codes: &[[u8; 64]; 8], group: &mut [u8]) {
        group.copy_from_slice(codes.as_flattened());
    }
}

/// Where the scales of a block come from.
pub(crate) trait Scales {
    /// Groups of 32 columns in a block.
    const GROUPS: usize;
    /// Whether 16 columns share a scale rather than 32.
    const HALVES: bool = false;
    /// Whether there are minima.
    const MINIMA: bool = false;
    /// Bytes of a tile's scales for one block.
    const BYTES: usize;
    /// What a block's groups share: (d, dmin).
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L);
    /// Scale and minimum of scale group `i` (of 16 or 32 columns).
    unsafe fn group<L: Lanes>(from: *const u8, shared: (L, L), i: usize) -> (L, L);
    /// Writes the scales of a row. A block of the file may be several of a tile: `part` is which.
    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize);
}

/// One f16 scale per 32 columns, and with `MINIMA` one f16 constant.
pub(crate) struct Half<const MINIMA: bool>;

impl<const MINIMA: bool> Scales for Half<MINIMA> {
    const GROUPS: usize = 1;
    const MINIMA: bool = MINIMA;
    const BYTES: usize = 32 * (1 + MINIMA as usize);

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let d = L::load_f16(from.cast());
            (d, if MINIMA { L::zero().sub(L::load_f16(from.add(32).cast())) } else { d })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(_: *const u8, shared: (L, L), _: usize) -> (L, L) {
        shared
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, _: usize) {
        scales[2 * lane..][..2].copy_from_slice(&block.d);
        if MINIMA {
            scales[32 + 2 * lane..][..2].copy_from_slice(&block.dmin);
        }
    }
}

/// Small integer scales per `256 / COUNT` columns times one f16 per 256, and with `MINIMA` the same
/// again.
pub(crate) struct Super<const COUNT: usize, const MINIMA: bool>;

impl<const COUNT: usize, const MINIMA: bool> Super<COUNT, MINIMA> {
    const D: usize = COUNT * TILE * (1 + MINIMA as usize);
}

impl<const COUNT: usize, const MINIMA: bool> Scales for Super<COUNT, MINIMA> {
    const GROUPS: usize = 8;
    const HALVES: bool = COUNT == 16;
    const MINIMA: bool = MINIMA;
    const BYTES: usize = (COUNT * TILE + 32) * (1 + MINIMA as usize);

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let d = L::load_f16(from.add(Self::D).cast());
            (d, if MINIMA { L::load_f16(from.add(Self::D + 32).cast()) } else { d })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(from: *const u8, (d, dmin): (L, L), i: usize) -> (L, L) {
        unsafe {
            let scale = L::load_i8(from.add(i * TILE).cast()).mul(d);
            (
                scale,
                if MINIMA {
                    L::load_i8(from.add((COUNT + i) * TILE).cast()).mul(dmin)
                } else {
                    scale
                },
            )
        }
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, _: usize) {
        for i in 0..COUNT {
            scales[i * TILE + lane] = block.scales[i] as u8;
            if MINIMA {
                scales[(COUNT + i) * TILE + lane] = block.minima[i] as u8;
            }
        }
        scales[Self::D + 2 * lane..][..2].copy_from_slice(&block.d);
        if MINIMA {
            scales[Self::D + 32 + 2 * lane..][..2].copy_from_slice(&block.dmin);
        }
    }
}

/// One f32 scale for `GROUPS` groups, and with `ZERO` the code that stands for zero.
pub(crate) struct Single<const GROUPS: usize, const ZERO: bool>;

impl<const GROUPS: usize, const ZERO: bool> Scales for Single<GROUPS, ZERO> {
    const GROUPS: usize = GROUPS;
    const MINIMA: bool = ZERO;
    const BYTES: usize = 4 * TILE + TILE * ZERO as usize;

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let scale = L::load(from.cast());
            (scale, if ZERO { L::load_i8(from.add(4 * TILE).cast()).mul(scale) } else { scale })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(_: *const u8, shared: (L, L), _: usize) -> (L, L) {
        shared
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize) {
        let single = block.singles[2 * GROUPS * part];
        scales[4 * lane..][..4].copy_from_slice(&single.to_le_bytes());
        if ZERO {
            scales[4 * TILE + lane] = block.zero as u8;
        }
    }
}

/// One f32 scale for 16 columns.
pub(crate) struct Sixteenths;

impl Scales for Sixteenths {
    const GROUPS: usize = 1;
    const HALVES: bool = true;
    const BYTES: usize = 2 * 4 * TILE;

    #[inline(always)]
    unsafe fn shared<L: Lanes>(_: *const u8) -> (L, L) {
        unsafe { (L::zero(), L::zero()) }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(from: *const u8, _: (L, L), i: usize) -> (L, L) {
        unsafe {
            let scale = L::load(from.add(4 * TILE * i).cast());
            (scale, scale)
        }
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize) {
        for i in 0..2 {
            let single = block.singles[2 * part + i];
            scales[4 * (TILE * i + lane)..][..4].copy_from_slice(&single.to_le_bytes());
        }
    }
}

/// A block format: codes, scales, and the code that stands for zero (a power of two, or 0).
pub(crate) trait Format {
    type Codes: Codes;
    type Scales: Scales;
    const OFFSET: i32;
    /// What remains of the scales: a power of two.
    const UNIT: f32 = 1.0;
    /// Codes are 8-bit floats (e4m3), not integers: such products take f32 activations.
    const FLOATS: bool = false;

    /// Bytes of a tile's block.
    const BYTES: usize = Self::Scales::GROUPS * Self::Codes::BYTES + Self::Scales::BYTES;
    /// Where the scales lie in it.
    const SCALES: usize = Self::Scales::GROUPS * Self::Codes::BYTES;

    /// What a block's groups share, with the unit.
    #[inline(always)]
    unsafe fn shared<L: Lanes>(scales: *const u8) -> (L, L) {
        unsafe {
            let (d, dmin) = Self::Scales::shared::<L>(scales);
            if Self::UNIT == 1.0 { (d, dmin) } else { (d.mul(L::splat(Self::UNIT)), dmin) }
        }
    }
}

macro_rules! formats {
    ($($name:ident: $codes:ty, $scales:ty, $offset:literal $(, $unit:literal)?;)*) => {
        $(
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;
            impl Format for $name {
                type Codes = $codes;
                type Scales = $scales;
                const OFFSET: i32 = $offset;
                $(const UNIT: f32 = $unit;)?
            }
        )*
    };
}

formats! {
    Q4_0: Nibbles, Half<false>, 8;
    Q4_1: Nibbles, Half<true>, 0;
    Q5_0: Fives, Half<false>, 16;
    Q5_1: Fives, Half<true>, 0;
    Q8_0: Bytes, Half<false>, 128;
    Q2_K: Twos, Super<16, true>, 0;
    Q3_K: Threes, Super<16, false>, 4;
    Q4_K: Nibbles, Super<8, true>, 0;
    Q5_K: Fives, Super<8, true>, 0;
    Q6_K: Sixes, Super<16, false>, 32;
    IQ3_S: Fives, Super<8, false>, 16;
    IQ4_NL: Lookup<Iq4>, Half<false>, 128;
    IQ4_XS: Lookup<Iq4>, Super<8, false>, 128;
    IQ3_XXS: Lookup<Iq3>, Super<8, false>, 128, 0.25;
    IQ2: Lookup<Iq2>, Super<16, false>, 128, 0.125;
    IQ1: Fives, Super<16, false>, 16, 0.125;
    TERNARY: Twos, Super<8, false>, 1;
    FP4: Lookup<Fp4>, Sixteenths, 16;
    INT4: Nibbles, Single<4, true>, 0;
    INT4_32: Nibbles, Single<1, true>, 0;
    INT8: Bytes, Single<4, false>, 128;
}

pub(crate) struct FP8;
impl Format for FP8 {
    type Codes = Bytes;
    type Scales = Single<4, false>;
    const OFFSET: i32 = 0;
    /// e4m3's bits in an f32's places are the value times 2^-120.
    const UNIT: f32 = f32::from_bits((127 + 120) << 23);
    const FLOATS: bool = true;
}

/// Calls a function generic over `Format` for the block type at hand.
macro_rules! with_format {
    ($ty:expr, $f:ident $(, $c:tt)* => ($($arg:expr),*)) => {{
        use $crate::cpu::blocks as b;
        use formats::BlockType as T;
        match $ty {
            T::Q4_0 => $f::<b::Q4_0 $(, $c)*>($($arg),*),
            T::Q4_1 => $f::<b::Q4_1 $(, $c)*>($($arg),*),
            T::Q5_0 => $f::<b::Q5_0 $(, $c)*>($($arg),*),
            T::Q5_1 => $f::<b::Q5_1 $(, $c)*>($($arg),*),
            T::Q8_0 => $f::<b::Q8_0 $(, $c)*>($($arg),*),
            T::Q2_K => $f::<b::Q2_K $(, $c)*>($($arg),*),
            T::Q3_K => $f::<b::Q3_K $(, $c)*>($($arg),*),
            T::Q4_K => $f::<b::Q4_K $(, $c)*>($($arg),*),
            T::Q5_K => $f::<b::Q5_K $(, $c)*>($($arg),*),
            T::Q6_K => $f::<b::Q6_K $(, $c)*>($($arg),*),
            T::IQ3_S => $f::<b::IQ3_S $(, $c)*>($($arg),*),
            T::IQ4_NL => $f::<b::IQ4_NL $(, $c)*>($($arg),*),
            T::IQ4_XS => $f::<b::IQ4_XS $(, $c)*>($($arg),*),
            T::IQ3_XXS => $f::<b::IQ3_XXS $(, $c)*>($($arg),*),
            T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => $f::<b::IQ2 $(, $c)*>($($arg),*),
            T::IQ1_S | T::IQ1_M => $f::<b::IQ1 $(, $c)*>($($arg),*),
            T::TQ1_0 | T::TQ2_0 => $f::<b::TERNARY $(, $c)*>($($arg),*),
            T::MXFP4 | T::NVFP4 | T::FP4 => $f::<b::FP4 $(, $c)*>($($arg),*),
            T::INT4 => $f::<b::INT4 $(, $c)*>($($arg),*),
            T::INT4_32 => $f::<b::INT4_32 $(, $c)*>($($arg),*),
            T::INT8 => $f::<b::INT8 $(, $c)*>($($arg),*),
            T::FP8 => $f::<b::FP8 $(, $c)*>($($arg),*),
            T::F32 | T::F16 | T::BF16 => unreachable!("floats have no blocks"),
        }
    }};
}
pub(crate) use with_format;
