//! Files to weights: containers (GGUF, safetensors) and the block formats inside them. No model
//! knowledge.
//!
//! ```
//! use formats::{BlockType, gguf};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("a.gguf");
//! let mut header = gguf::Header::new("example");
//! header.tensor("row", BlockType::F32, &[1, 2]);
//! let writer = gguf::Writer::create(&path, &header, gguf::Overwrite::Refuse)?;
//! writer.write_at(0, 0, &[0, 0, 128, 63, 0, 0, 0, 64])?;
//! writer.finish()?;
//!
//! let file = gguf::Gguf::open(&path)?;
//! let tensor = file.tensors().get("row").unwrap();
//! let mut row = [f32::NAN; 2];
//! formats::blocks::decode(tensor.ty, file.tensors().data(tensor), &mut row);
//! assert_eq!(row, [1.0, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assembly;
pub mod blocks;
pub mod gguf;
pub mod quantize;
pub mod safetensors;
mod storage;
mod tensors;

pub use assembly::{Assembly, Grid, Integers, Zeros};
pub use blocks::BlockType;
pub use storage::Storage;
pub use tensors::{RawTensor, TensorInfo, Tensors};

// Sizes in files are 64-bit; `usize` holds them.
const _: () = assert!(usize::BITS == 64);
