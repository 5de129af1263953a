//! Tensors to models: one configuration and one naming for every Qwen3.5/3.6/3.8 target and every
//! DFlash drafter, whatever container and dialect they come in. Metadata is read, cross-checked
//! against tensor shapes and against the other model, and refused with both values named where it
//! disagrees.
//!
//! ```no_run
//! use checkpoint::{Drafter, Overrides, Target};
//!
//! let target = Target::open("target.gguf".as_ref())?;
//! let drafter = Drafter::open("draft-hf".as_ref(), &Overrides::default(), Some(&target.config))?;
//! println!("{} taps into {} layers", drafter.config.taps.len(), target.config.layers.len());
//! # Ok::<(), checkpoint::Error>(())
//! ```
#![forbid(unsafe_code)]

mod caps;
pub mod convert;
pub mod drafter;
mod error;
mod json;
mod quantised;
mod report;
mod rope;
mod source;
mod strangers;
pub mod target;
mod weights;

pub use drafter::{Causality, Drafter, DrafterConfig, Overrides};
pub use error::Error;
pub use json::Json;
pub use report::{Report, Resolution};
pub use rope::{Rope, Yarn};
pub use source::Source;
pub use target::{MtpBlock, Target, TargetConfig};
pub use weights::{Slot, Weight, Weights};

use std::path::Path;

/// A checkpoint of any kind.
#[derive(Debug)]
pub enum Checkpoint {
    /// A model that writes text.
    Target(Target),
    /// A model that proposes it.
    Drafter(Drafter),
    /// A part of a target that proposes, in a file of its own.
    Mtp(MtpBlock),
}

impl Checkpoint {
    /// Opens a file or folder and reads it as what it is. `target` is what a drafter is checked
    /// against.
    pub fn open(
        path: &Path,
        overrides: &Overrides,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        Self::read(Source::open(path)?, overrides, target)
    }

    /// Reads an open source as what it is.
    pub fn read(
        source: Source,
        overrides: &Overrides,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        if drafter::is_drafter(&source)? {
            Ok(Self::Drafter(Drafter::read(source, overrides, target)?))
        } else if MtpBlock::is_in(&source) {
            Ok(Self::Mtp(MtpBlock::read(source, target)?))
        } else {
            Ok(Self::Target(Target::read(source)?))
        }
    }
}
