//! The state of a sequence in memory that snapshots share: it is copied when it is written, not when it is kept.

mod context;
mod kv;
mod recurrent;

pub(crate) use context::{Context, MtpFeed};
pub(crate) use kv::KvPages;
pub(crate) use recurrent::Recurrent;
