//! The element types weights are stored in, and how each is decoded to `f32`.
//!
//! A quantised type is a run of blocks, each a plain `repr(C)` struct of alignment one in a file of
//! its family, so that any mapped byte range can be read as a slice of blocks. A struct unpacks
//! itself with `quants` or `codes` (the integers in element order) and, where they are packed,
//! `scales` or `k::unpack_scales`.

pub mod codebooks;
pub mod float;
pub mod fp4;
pub mod fp8;
pub mod integers;
pub mod iq1;
pub mod iq2;
pub mod iq3;
pub mod iq4;
pub mod k;
pub mod legacy;
pub mod ternary;

pub use float::{Half, Single};
pub use fp4::{FP4, MXFP4, NVFP4};
pub use fp8::FP8;
pub use integers::{INT4, INT4_32, INT8};
pub use iq1::{IQ1_M, IQ1_S};
pub use iq2::{IQ2_S, IQ2_XS, IQ2_XXS};
pub use iq3::{IQ3_S, IQ3_XXS};
pub use iq4::{IQ4_NL, IQ4_XS};
pub use k::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use ternary::{TQ1_0, TQ2_0};

use bytemuck::Pod;
use serde::Serialize;
use std::{fmt, str::FromStr};

/// A type of every row: its name, its number, elements of a block, and the block's struct (or the
/// bytes of one element and the function that decodes).
macro_rules! block_types {
    (
        floats { $($float:ident = $float_number:literal, $size:literal, $decode:path;)* }
        blocks { $($block:ident = $number:literal, $len:literal;)* }
    ) => {
        /// How the numbers of a tensor are stored. A tensor's rows are whole blocks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum BlockType {
            $($float,)*
            $($block,)*
        }

        impl BlockType {
            /// Every type, in the order of declaration.
            pub const ALL: [Self; COUNT] = [$(Self::$float,)* $(Self::$block,)*];

            /// Elements in one block.
            pub const fn block_len(self) -> usize {
                match self {
                    $(Self::$float => 1,)*
                    $(Self::$block => $len,)*
                }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(Self::$float => $size,)*
                    $(Self::$block => size_of::<$block>(),)*
                }
            }

            /// The number of the type in a GGUF file; from `OWN` on, one that no file has.
            pub const fn number(self) -> u32 {
                match self {
                    $(Self::$float => $float_number,)*
                    $(Self::$block => $number,)*
                }
            }

            /// The name used in files and on the command line, e.g. `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$float => stringify!($float),)*
                    $(Self::$block => stringify!($block),)*
                }
            }
        }

        const COUNT: usize = [$($float_number,)* $($number,)*].len();

        /// Decodes whole blocks of `ty`; `out` has exactly as many elements as `bytes` holds.
        pub fn decode(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
            assert_eq!(
                Some(bytes.len()),
                ty.bytes_for(out.len()),
                "bytes of {} `{ty}` elements",
                out.len()
            );
            match ty {
                $(BlockType::$float => $decode(bytes, out),)*
                $(BlockType::$block => decode_blocks::<$block, _>(bytes, out),)*
            }
        }
    };
}

block_types! {
    floats {
        F32 = 0, 4, float::decode_f32;
        F16 = 1, 2, float::decode_f16;
        BF16 = 30, 2, float::decode_bf16;
    }
    blocks {
        Q4_0 = 2, 32;
        Q4_1 = 3, 32;
        Q5_0 = 6, 32;
        Q5_1 = 7, 32;
        Q8_0 = 8, 32;
        Q2_K = 10, 256;
        Q3_K = 11, 256;
        Q4_K = 12, 256;
        Q5_K = 13, 256;
        Q6_K = 14, 256;
        IQ2_XXS = 16, 256;
        IQ2_XS = 17, 256;
        IQ3_XXS = 18, 256;
        IQ1_S = 19, 256;
        IQ4_NL = 20, 32;
        IQ3_S = 21, 256;
        IQ2_S = 22, 256;
        IQ4_XS = 23, 256;
        IQ1_M = 29, 256;
        TQ1_0 = 34, 256;
        TQ2_0 = 35, 256;
        MXFP4 = 39, 32;
        NVFP4 = 40, 64;
        FP8 = 1000, 128;
        FP4 = 1001, 128;
        INT4 = 1002, 128;
        INT4_32 = 1003, 32;
        INT8 = 1004, 128;
    }
}

/// The numbers from here on are those of our own types, which hold what Hugging Face folders have.
const OWN: u32 = 1000;

impl BlockType {
    /// Bytes that hold `elements` elements; `None` if they are not whole blocks or the size
    /// overflows.
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The number of the type in a GGUF file, where it can be in one.
    pub const fn ggml_id(self) -> Option<u32> {
        if self.number() < OWN { Some(self.number()) } else { None }
    }

    /// The type a GGUF file calls `id`; a type that is not read is refused by its name.
    pub fn from_ggml(id: u32) -> Result<Self, UnknownType> {
        let found = Self::ALL.into_iter().find(|ty| ty.ggml_id() == Some(id));
        found.ok_or(match ggml_name(id) {
            Some(name) => UnknownType::Unsupported { id, name },
            None => UnknownType::Id(id),
        })
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BlockType {
    type Err = UnknownType;

    /// Reads a type's name in any letter case.
    fn from_str(name: &str) -> Result<Self, UnknownType> {
        let found = Self::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| UnknownType::Name(name.to_owned()))
    }
}

/// A tensor type this crate does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownType {
    /// ggml knows (or once knew) the type, we do not read it.
    #[error(
        "tensor type `{name}` ({id}) is not supported: get the model in another quantisation, such \
         as Q4_K_M"
    )]
    Unsupported {
        /// ggml's number of the type.
        id: u32,
        /// ggml's name of the type.
        name: &'static str,
    },
    /// No type of ggml's has this number.
    #[error("unknown tensor type {0}")]
    Id(u32),
    /// No type we read has this name.
    #[error("unknown tensor type `{0}`, expected one of {types}", types = names())]
    Name(String),
}

fn names() -> String {
    BlockType::ALL.map(BlockType::name).join(", ")
}

/// ggml's name of its type number `id`, with those it has removed, whether or not we read the type.
pub const fn ggml_name(id: u32) -> Option<&'static str> {
    #[rustfmt::skip]
    const NAMES: [&str; 43] = [
        "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K",
        "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
        "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4",
        "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",
        "NVFP4", "Q1_0", "Q2_0",
    ];
    if (id as usize) < NAMES.len() { Some(NAMES[id as usize]) } else { None }
}

/// One block of `LEN` elements as it lies in a file.
pub trait Block<const LEN: usize>: Pod {
    /// Writes the block's elements in order.
    fn decode(&self, out: &mut [f32; LEN]);
}

fn decode_blocks<B: Block<LEN>, const LEN: usize>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytemuck::cast_slice::<u8, B>(bytes).iter().zip(out.as_chunks_mut().0) {
        block.decode(out);
    }
}

/// `d * scale * quant`, a scale for every so many elements as there are scales.
#[inline]
fn scaled<const SCALES: usize>(
    d: f32,
    scales: &[i8; SCALES],
    quants: &[i8; 256],
    out: &mut [f32; 256],
) {
    let subs = out.chunks_exact_mut(256 / SCALES).zip(quants.chunks_exact(256 / SCALES));
    for ((out, quants), scale) in subs.zip(scales) {
        let d = d * f32::from(*scale);
        for (out, q) in out.iter_mut().zip(quants) {
            *out = d * f32::from(*q);
        }
    }
}
