//! The state of a sequence in memory that snapshots share: it is copied when it is written, not
//! when it is kept.

mod draft;
mod kv;
mod recurrent;
mod rows;
mod spare;

pub use draft::DraftState;
pub(crate) use kv::KvPages;
pub(crate) use recurrent::Recurrent;
pub use rows::KeptRows;
use spare::Spare;

use crate::Error;
use compute::{Backend, Memory};
use std::sync::Arc;

/// Makes another block of one: a copy, or a copy elsewhere.
pub(crate) type MapBlock<'a> = dyn FnMut(&Arc<Memory>) -> Result<Arc<Memory>, Error> + 'a;

/// Memory that may be written: a copy, where a snapshot shares it.
fn writable<'m>(
    backend: &dyn Backend,
    memory: &'m mut Arc<Memory>,
) -> Result<&'m mut Memory, Error> {
    if Arc::get_mut(memory).is_none() {
        *memory = Arc::new(backend.duplicate(memory)?);
    }
    Ok(Arc::get_mut(memory).expect("nobody shares it now"))
}
