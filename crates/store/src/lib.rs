//! States that outlive the process. A state is a file of tokens, an outline and a list of pieces; a
//! piece is a file of bytes that is named by their hash, so that states which share pages share
//! files, and so that no file can be taken for what it is not. Knows no models.
//!
//! ```text
//! FOLDER/lock                       who writes holds it shared, who makes room alone
//! FOLDER/tmp/PID-NUMBER             a file that is being written
//! FOLDER/pieces/ab/abcd...          bytes, by their hash
//! FOLDER/states/IDENTITY/LEN-KEY    a state, by the hash of its LEN tokens
//! ```
//!
//! A [`Folder`] is that folder, held to a share of the disk. A [`Writer`] and a [`Reader`] are
//! threads that work on it, so that nobody else waits for a disk.
#![forbid(unsafe_code)]

mod collect;
mod files;
mod folder;
mod manifest;
mod name;
mod reader;
mod writer;

pub use files::Faults;
pub use folder::{Folder, Found, Revival, StoreError, Tally, WriteError};
pub use manifest::{Manifest, ManifestError, Piece};
pub use name::{Identifier, Identity, Name};
pub use reader::{Awaited, Reader};
pub use writer::Writer;
