//! The tiny pair built into the binary, so that `forerun run` works on a machine that has nothing
//! else.

/// The target in Q4_K_M and its DFlash 2 drafter in Q8_0, where the build has them.
#[cfg(feature = "embedded")]
pub(crate) const PAIR: Option<(&[u8], &[u8])> = Some((
    include_bytes!("../pair/target-Q4_K_M.gguf"),
    include_bytes!("../pair/draft2-Q8_0.gguf"),
));

/// Rows of the longest blocks that the drafter learned; its file says how many it has usually.
pub(crate) const LONGEST_BLOCK: usize = 16;

/// A build without the feature takes `--model`.
#[cfg(not(feature = "embedded"))]
pub(crate) const PAIR: Option<(&[u8], &[u8])> = None;
