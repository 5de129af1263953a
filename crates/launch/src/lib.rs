//! From flags and files to a running engine: what every verb that runs a model shares, however it
//! uses it.
//!
//! [`ModelFlags`] are the command line's words; [`ModelFlags::open`] finds the files
//! ([`Loaded`]), [`ModelFlags::load`] takes their weights into a backend ([`Running`]),
//! [`ModelFlags::prepare`] does so as often as they are wanted ([`Prepared`]), and
//! [`answer()`] lets the model answer a prompt.
#![forbid(unsafe_code)]

mod answer;
mod choices;
mod device;
mod device_flags;
mod device_memory;
mod draft_device;
mod draft_flags;
mod embedded;
mod expert_counts;
mod host_memory;
mod identity;
mod loading;
mod model_flags;
mod place;
mod prefill_flags;
mod prepared;
mod sampling_flags;
mod tokenizer_files;
mod watched;

pub use answer::{Answer, Finish, Piece, Question, answer};
pub use choices::Choice;
pub use device_flags::DeviceFlags;
pub use device_memory::{DraftPlan, Need, Plan};
pub use draft_device::{Beside, DraftDevice, DraftSide};
pub use draft_flags::DraftFlags;
pub use expert_counts::ExpertCounts;
pub use host_memory::{check_weights, free_host_memory};
pub use loading::{Loaded, TextSide, WeightSummary};
pub use model_flags::{Mode, ModelFlags, Running};
pub use place::{PlaceFlags, Room};
pub use prefill_flags::{OpenScorer, Prefill, PrefillFlags};
pub use prepared::Prepared;
pub use sampling_flags::SamplingFlags;
pub use tokenizer_files::tokenizer_files;

use std::path::{Path, PathBuf};

/// The file or folder that a word of the command line means, be it a path or a name.
pub fn locate(word: &Path) -> anyhow::Result<PathBuf> {
    Ok(hub::find(word, &hub::Settings::from_env())?.path)
}

/// Puts the file's name before a message that does not name a file itself.
pub fn about(path: &Path) -> impl FnOnce(checkpoint::Error) -> anyhow::Error {
    let path = path.display().to_string();
    |error| match error {
        checkpoint::Error::Io { .. }
        | checkpoint::Error::Json { .. }
        | checkpoint::Error::NoConfig(_) => error.into(),
        _ => anyhow::Error::new(error).context(path),
    }
}
