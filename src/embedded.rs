//! The tiny pair built into the binary, so that `forerun run` works on a machine that has nothing else.

/// The target, in Q4_K_M, where the build has it.
#[cfg(feature = "embedded")]
pub(crate) const TARGET: Option<&[u8]> = Some(include_bytes!("../models/dense/target-Q4_K_M.gguf"));

/// A build without the feature takes `--model`.
#[cfg(not(feature = "embedded"))]
pub(crate) const TARGET: Option<&[u8]> = None;
