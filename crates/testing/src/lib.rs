//! What tests of several crates share: where the repository's tiny models lie, and what the
//! float32 reference made of them (`tests/goldens`). Only ever a dev-dependency; what one crate's
//! tests need alone lies with them, in `tests/support`.
#![forbid(unsafe_code)]

pub mod hub;

use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a target and its drafter.
pub struct Pair {
    /// The target in Q4_K_M.
    pub target: PathBuf,
    /// The drafter in Q8_0.
    pub drafter: PathBuf,
}

impl Pair {
    /// The target that is also part of the binary, with a drafter of the first generation.
    pub fn dense() -> Self {
        Self::below("models/dense")
    }

    /// The mixture of experts; it has no MTP block.
    pub fn moe() -> Self {
        Self::below("tests/fixtures/moe")
    }

    fn below(folder: &str) -> Self {
        let folder = repository().join(folder);
        Self { target: folder.join("target-Q4_K_M.gguf"), drafter: folder.join("draft-Q8_0.gguf") }
    }
}

/// The folder of the results that come with the repository.
pub fn goldens() -> PathBuf {
    repository().join("tests/goldens")
}

/// The prompts of a file of results: an object each, with `suite` and `prompt_ids`.
///
/// # Panics
/// Where there is no such file.
pub fn prompts(folder: &Path, name: &str) -> Vec<Value> {
    serde_json::from_slice(&read(&folder.join(format!("{name}.json")))).expect("a list of prompts")
}

/// A list of token ids.
///
/// # Panics
/// Where it is something else.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// The tensors of a file of results, four bytes an element.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// Reads `NAME.safetensors`.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn open(folder: &Path, name: &str) -> Self {
        Self(read(&folder.join(format!("{name}.safetensors"))))
    }

    /// The names of all of them.
    pub fn names(&self) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        tensors.names().into_iter().map(str::to_owned).collect()
    }

    /// The elements of a tensor as they are stored, and the length of its rows.
    pub fn words(&self, name: &str) -> Option<(Vec<u32>, usize)> {
        let tensors = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = tensors.tensor(name).ok()?;
        let words = tensor.data().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        Some((words.collect(), *tensor.shape().last()?))
    }

    /// A tensor of ids.
    pub fn ids(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.words(name)?.0)
    }

    /// The rows of a tensor of numbers.
    pub fn rows(&self, name: &str) -> Option<Vec<Vec<f32>>> {
        let (words, cols) = self.words(name)?;
        let numbers = |row: &[u32]| row.iter().copied().map(f32::from_bits).collect();
        Some(words.chunks_exact(cols).map(numbers).collect())
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("`{}`: {e}", path.display()))
}
