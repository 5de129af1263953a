//! The element types weights are stored in, and how each is decoded to `f32`.
//!
//! A quantised type is a run of blocks, each a plain `repr(C)` struct of alignment one (`legacy`,
//! `k`, `iq3`, `iq4`), so that any mapped byte range can be read as a slice of blocks. A struct
//! unpacks itself with `quants` (the integers in element order) and, where they are packed,
//! `scales` or `k::unpack_scales`.

pub mod float;
pub mod iq3;
pub mod iq4;
pub mod k;
pub mod legacy;

pub use float::Half;
pub use iq3::IQ3_S;
pub use iq4::{IQ4_NL, IQ4_XS};
pub use k::{Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

use bytemuck::Pod;
use serde::Serialize;
use std::{fmt, str::FromStr};

/// How the numbers of a tensor are stored. A tensor's rows are whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[allow(non_camel_case_types, missing_docs)]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
}

impl BlockType {
    /// Every type, in the order of declaration.
    #[rustfmt::skip]
    pub const ALL: [Self; 16] = [
        Self::F32, Self::F16, Self::BF16, Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1,
        Self::Q8_0, Self::Q2_K, Self::Q3_K, Self::Q4_K, Self::Q5_K, Self::Q6_K, Self::IQ3_S,
        Self::IQ4_NL, Self::IQ4_XS,
    ];

    /// Elements in one block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K
            | Self::Q3_K
            | Self::Q4_K
            | Self::Q5_K
            | Self::Q6_K
            | Self::IQ3_S
            | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => size_of::<Q4_0>(),
            Self::Q4_1 => size_of::<Q4_1>(),
            Self::Q5_0 => size_of::<Q5_0>(),
            Self::Q5_1 => size_of::<Q5_1>(),
            Self::Q8_0 => size_of::<Q8_0>(),
            Self::Q2_K => size_of::<Q2_K>(),
            Self::Q3_K => size_of::<Q3_K>(),
            Self::Q4_K => size_of::<Q4_K>(),
            Self::Q5_K => size_of::<Q5_K>(),
            Self::Q6_K => size_of::<Q6_K>(),
            Self::IQ3_S => size_of::<IQ3_S>(),
            Self::IQ4_NL => size_of::<IQ4_NL>(),
            Self::IQ4_XS => size_of::<IQ4_XS>(),
        }
    }

    /// Bytes that hold `elements` elements; `None` if they are not whole blocks or the size
    /// overflows.
    pub const fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The name used in files and on the command line, e.g. `Q4_K`.
    pub const fn name(self) -> &'static str {
        match ggml_name(self.ggml_id()) {
            Some(name) => name,
            None => unreachable!(),
        }
    }

    /// The number of the type in a GGUF file.
    pub const fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2_K => 10,
            Self::Q3_K => 11,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::IQ4_NL => 20,
            Self::IQ3_S => 21,
            Self::IQ4_XS => 23,
            Self::BF16 => 30,
        }
    }

    /// The type a GGUF file calls `id`; a type that is not read is refused by its name.
    pub fn from_ggml(id: u32) -> Result<Self, UnknownType> {
        Self::ALL.into_iter().find(|ty| ty.ggml_id() == id).ok_or(match ggml_name(id) {
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
    #[error("tensor type `{name}` ({id}) is not supported")]
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

/// Decodes whole blocks of `ty`; `out` has exactly as many elements as `bytes` holds.
pub fn decode(ty: BlockType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.bytes_for(out.len()),
        "bytes of {} `{ty}` elements",
        out.len()
    );
    match ty {
        BlockType::F32 => float::decode_f32(bytes, out),
        BlockType::F16 => float::decode_f16(bytes, out),
        BlockType::BF16 => float::decode_bf16(bytes, out),
        BlockType::Q4_0 => decode_blocks::<Q4_0, _>(bytes, out),
        BlockType::Q4_1 => decode_blocks::<Q4_1, _>(bytes, out),
        BlockType::Q5_0 => decode_blocks::<Q5_0, _>(bytes, out),
        BlockType::Q5_1 => decode_blocks::<Q5_1, _>(bytes, out),
        BlockType::Q8_0 => decode_blocks::<Q8_0, _>(bytes, out),
        BlockType::Q2_K => decode_blocks::<Q2_K, _>(bytes, out),
        BlockType::Q3_K => decode_blocks::<Q3_K, _>(bytes, out),
        BlockType::Q4_K => decode_blocks::<Q4_K, _>(bytes, out),
        BlockType::Q5_K => decode_blocks::<Q5_K, _>(bytes, out),
        BlockType::Q6_K => decode_blocks::<Q6_K, _>(bytes, out),
        BlockType::IQ3_S => decode_blocks::<IQ3_S, _>(bytes, out),
        BlockType::IQ4_NL => decode_blocks::<IQ4_NL, _>(bytes, out),
        BlockType::IQ4_XS => decode_blocks::<IQ4_XS, _>(bytes, out),
    }
}

fn decode_blocks<B: Block<LEN>, const LEN: usize>(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytemuck::cast_slice::<u8, B>(bytes).iter().zip(out.as_chunks_mut().0) {
        block.decode(out);
    }
}
