//! The state of a sequence in memory that snapshots share: it is copied when it is written, not
//! when it is kept.

mod draft;
mod kv;
mod recurrent;
mod rows;
mod spare;

pub use draft::DraftState;
pub(crate) use kv::{KvPages, commit_pages};
pub(crate) use recurrent::{Recurrent, commit_states};
pub use rows::KeptRows;
pub(crate) use rows::keep_rows;
use spare::Spare;

use crate::Error;
use compute::{Backend, Memory};
use std::sync::Arc;

/// Makes another block of one: a copy, or a copy elsewhere.
pub(crate) type MapBlock<'a> = dyn FnMut(&Arc<Memory>) -> Result<Arc<Memory>, Error> + 'a;

/// Writes what was prepared for several texts in one call of the backend. Where that fails, each is
/// written by itself, so that only those fail that fail alone; a lost device fails all.
fn together<T>(
    prepared: Vec<Result<T, Error>>,
    mut write: impl FnMut(&mut [T]) -> Result<(), compute::Error>,
) -> Vec<Result<(), Error>> {
    let (mut ready, mut done) = (Vec::with_capacity(prepared.len()), Vec::new());
    for text in prepared {
        done.push(text.map(|text| ready.push(text)));
    }
    if ready.is_empty() {
        return done;
    }
    let failed = match write(&mut ready) {
        Ok(()) => return done,
        Err(failed) => failed,
    };
    let is_final = ready.len() == 1 || matches!(failed, compute::Error::Lost { .. });
    for (done, text) in done.iter_mut().filter(|done| done.is_ok()).zip(&mut ready) {
        *done = match is_final {
            true => Err(failed.clone().into()),
            false => write(std::slice::from_mut(text)).map_err(Error::from),
        };
    }
    done
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// What came of five texts of which number 1 cannot be prepared and number 3 cannot be written.
    fn outcome(failure: compute::Error) -> Vec<bool> {
        let prepare = |i| if i == 1 { Err(Error::NothingToRead) } else { Ok(i) };
        let write = |texts: &mut [usize]| match texts.contains(&3) {
            true => Err(failure.clone()),
            false => Ok(()),
        };
        together((0..5).map(prepare).collect(), write).iter().map(Result::is_ok).collect()
    }

    #[test]
    fn only_texts_that_fail_alone_fail() {
        let refused = compute::Error::Driver { call: "launch", reason: String::new() };
        assert_eq!(outcome(refused), [true, false, true, false, true]);
        let lost = compute::Error::Lost { call: "launch", reason: String::new() };
        assert_eq!(outcome(lost), [false; 5]);
    }
}
