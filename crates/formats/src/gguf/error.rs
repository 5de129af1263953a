//! What can be wrong with a GGUF file, one variant a cause.

use super::caps;
use crate::BlockType;
use thiserror::Error;

/// Why a GGUF file was refused.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("not a GGUF file: it starts with `{}`", .0.escape_ascii())]
    Magic(Vec<u8>),
    #[error("big-endian GGUF is not read (version field {0:#010x})")]
    BigEndian(u32),
    #[error("GGUF version {0} is not read; versions 2 and 3 are")]
    Version(u32),
    #[error("file ends inside {what}: {needed} bytes wanted at offset {at}, the file has {len}")]
    Truncated { what: &'static str, at: u64, needed: u64, len: u64 },
    #[error("{count} {what} claimed, the cap is {cap}")]
    TooMany { what: &'static str, count: u64, cap: u64 },
    #[error("{what} at offset {at} claims {len} bytes, the cap is {cap}")]
    TooLong { what: &'static str, at: u64, len: u64, cap: u64 },
    #[error("{what} at offset {at} is not UTF-8")]
    NotUtf8 { what: &'static str, at: u64 },
    #[error("metadata key at offset {at} is empty")]
    EmptyKey { at: u64 },
    #[error("metadata key `{0}` appears twice")]
    DuplicateKey(String),
    #[error("metadata key `{key}` has value type {id}, which GGUF does not define")]
    ValueType { key: String, id: u32 },
    #[error("metadata key `{0}` is an array of arrays, which is not read")]
    NestedArray(String),
    #[error("metadata key `{key}` has the bool byte {byte}; 0 and 1 are bools")]
    Bool { key: String, byte: u8 },
    #[error("metadata key `{0}` is missing")]
    MissingKey(String),
    #[error("metadata key `{key}` is {found}, {wanted} expected")]
    KeyType { key: String, wanted: &'static str, found: String },
    #[error(
        "`general.alignment` is {0}; a power of two from 8 to {max} expected",
        max = caps::ALIGNMENT
    )]
    Alignment(u64),
    #[error(
        "this is part {} of {count} of a split model, but its name does not end in \
         `-{:05}-of-{count:05}.gguf`, by which the others would be found", .index + 1, .index + 1
    )]
    Split { index: u64, count: u64 },
    #[error("`{name}`, a part of this model: {cause}")]
    Part { name: String, cause: Box<Error> },
    #[error("it does not say that it is part {number} of {count}")]
    OtherPart { number: u64, count: u64 },
    #[error("the parts have {found} tensors, `split.tensors.count` is {claimed}")]
    PartTensors { claimed: u64, found: u64 },
    #[error("tensor name at offset {at} is empty")]
    EmptyName { at: u64 },
    #[error("tensor `{0}` appears twice")]
    DuplicateTensor(String),
    #[error(
        "tensor `{tensor}` has {count} dimensions, 1 to {max} expected",
        max = caps::DIMENSIONS
    )]
    Dimensions { tensor: String, count: u32 },
    #[error("tensor `{tensor}` has a dimension of 0 in {shape:?}")]
    EmptyTensor { tensor: String, shape: Vec<u64> },
    #[error("tensor `{tensor}` with shape {shape:?} is too large to address")]
    TooLarge { tensor: String, shape: Vec<u64> },
    #[error("tensor `{tensor}`: {cause}")]
    Type { tensor: String, cause: crate::blocks::UnknownType },
    #[error(
        "tensor `{tensor}` has rows of {row}, which is no multiple of {ty}'s block of {}",
        .ty.block_len()
    )]
    PartialBlock { tensor: String, ty: BlockType, row: u64 },
    #[error(
        "tensor `{tensor}` starts at {offset}, which is no multiple of the alignment {alignment}"
    )]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor `{tensor}` ends at offset {end}, the file has {len} bytes")]
    OutsideFile { tensor: String, end: u128, len: u64 },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
}
