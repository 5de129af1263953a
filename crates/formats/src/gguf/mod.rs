//! GGUF, versions 2 and 3: a header of typed metadata and a table of tensors, then aligned tensor
//! data.
//!
//! [`Gguf`] maps a file and indexes its header; metadata and tensors are views on the mapping.
//! [`Header`] and [`Writer`] make a file: to a sibling first, renamed when it is whole.

mod error;
mod read;
mod split;
mod value;
mod write;

pub use error::Error;
pub use read::Gguf;
pub use value::{Array, Value};
pub use write::{Entries, Header, Overwrite, Writer};

/// Caps on what a header may claim. Real files stay far below; a hostile one is refused before
/// memory is spent.
pub mod caps {
    /// Tensors in a file; Qwen3.5-397B has about 1,200.
    pub const TENSORS: u64 = 1 << 16;
    /// Metadata entries; files in the wild have 20 to 60.
    pub const ENTRIES: u64 = 1 << 16;
    /// Elements of a metadata array; the vocabulary has 248,320.
    pub const ARRAY: u64 = 1 << 24;
    /// Bytes of a string; chat templates reach 20 KB.
    pub const STRING: u64 = 1 << 24;
    /// Bytes of a key or a tensor name.
    pub const NAME: u64 = 1 << 10;
    /// Dimensions of a tensor.
    pub const DIMENSIONS: u32 = 4;
    /// Files that a model is split into.
    pub const PARTS: u64 = 1 << 10;
    /// `general.alignment`.
    pub const ALIGNMENT: u32 = 1 << 20;
}

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
