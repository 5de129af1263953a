//! Weight blocks in the form the kernels read: a tile is 16 rows of a matrix, and a group of 32 of
//! its columns is stored so that four columns of all 16 rows fill one 64-byte vector: lane = row,
//! byte = column. A dot product then needs no sum across lanes, and the same kernel serves one row
//! of activations or many.
//!
//! A format is how the codes are packed, where scales (and minima) come from, and which code stands
//! for zero.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod codes;
mod scales;

pub(crate) use codes::Codes;
pub(crate) use scales::Scales;

use super::lanes::Lanes;
use codes::{Bytes, Fives, Fp4, Iq2, Iq3, Iq4, Lookup, Nibbles, Sixes, Threes, Twos};
use scales::{Half, Single, Sixteenths, Super};

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

/// A block format: codes, scales, and the code that stands for zero (a power of two, or 0).
pub(crate) trait Format {
    type Codes: Codes;
    type Scales: Scales;
    const OFFSET: i32;
    /// What remains of the scales: a power of two.
    const UNIT: f32 = 1.0;

    /// Bytes of a tile's block.
    const BYTES: usize = Self::Scales::GROUPS * Self::Codes::BYTES + Self::Scales::BYTES;
    /// Where the scales lie in it.
    const SCALES: usize = Self::Scales::GROUPS * Self::Codes::BYTES;

    /// What codes stand for, one a lane.
    #[inline(always)]
    unsafe fn number<L: Lanes>(codes: L::Ints) -> L {
        unsafe { L::from_ints(codes).sub(L::splat(Self::OFFSET as f32)) }
    }

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
    TQ: Twos, Super<8, false>, 1;
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

    /// Codes are no integers: products take f32 activations.
    #[inline(always)]
    unsafe fn number<L: Lanes>(codes: L::Ints) -> L {
        unsafe { L::from_e4m3(codes) }
    }
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
            T::TQ1_0 | T::TQ2_0 => $f::<b::TQ $(, $c)*>($($arg),*),
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
