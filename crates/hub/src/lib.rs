//! From names to files: what `--model` and `--draft` may say in place of a path, and how the files
//! come to this machine.
//!
//! [`find()`] looks on this machine alone and never asks the network: in the catalogue
//! ([`catalogue`]), in the cache that all programs of Hugging Face share, among the models of
//! Ollama and LM Studio. [`pull()`] is the one thing that downloads, and it does so only when a
//! user says `forerun pull`.
//!
//! The Hub is spoken to by code of our own over `ureq` rather than by the crate `hf-hub`: that
//! crate (1.0) begins a file anew where it broke off, does not compare checksums, reads a file
//! over one connection unless it is stored by Xet, and brings 280 crates. What is shared with it
//! and with Python's `huggingface_hub` is what matters to a user: the folder, its layout, its locks
//! and the names of its environment variables.
#![forbid(unsafe_code)]

mod cache;
pub mod catalogue;
mod choose;
mod client;
mod digest;
mod disk;
mod find;
mod listing;
mod name;
mod ollama;
mod partial;
mod pull;
mod settings;
mod transfer;

pub use catalogue::{CATALOGUE, Entry};
pub use client::Stopped;
pub use disk::free;
pub use find::{Draft, Found, find, find_draft, find_pair};
pub use name::{HubName, Name};
pub use pull::{Pulled, Watcher, pull};
pub use settings::Settings;

/// Bytes for people: `17.6 GB`, `812 MB`.
pub fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
