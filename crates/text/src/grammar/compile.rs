//! Where grammars are compiled: on threads of their own, of which there are few, with a stack that
//! the bounds on schemas and grammars are known to fit, and a deadline. What fails there fails
//! alone.

use super::GrammarError;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a compiler's stack. Only what is used of them is ever memory. The largest schemas and
/// grammars that are taken need less than a quarter of it, which tests hold.
pub(super) const STACK: usize = 256 << 20;

/// A grammar must be there by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Compilers at work at once, those that are past their deadline among them.
const COMPILERS: usize = 2;

/// Counts the compilers at work.
#[derive(Debug, Default)]
pub(super) struct Compilers {
    at_work: Mutex<usize>,
    done: Condvar,
}

/// The right to compile; given back when it is dropped, also by a panic.
struct Turn(Arc<Compilers>);

impl Compilers {
    /// Runs `work` as a compiler of `what`.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
    ) -> Result<T, GrammarError> {
        self.run_within(STACK, PATIENCE, what, work)
    }

    pub(super) fn run_within<T: Send + 'static>(
        self: &Arc<Self>,
        stack: usize,
        patience: Duration,
        what: &'static str,
        work: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
    ) -> Result<T, GrammarError> {
        let deadline = Instant::now() + patience;
        let turn = self.turn(deadline).ok_or(GrammarError::Busy)?;
        let (sender, result) = sync_channel(1);
        let work = move || {
            let result = work();
            drop(turn);
            // Nobody waits for what comes too late.
            let _ = sender.send(result);
        };
        let builder = thread::Builder::new().name("grammar".to_owned()).stack_size(stack);
        builder.spawn(work).map_err(|error| GrammarError::Thread(error.to_string()))?;
        match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(GrammarError::Slow { what, seconds: patience.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(GrammarError::Refused { what, reason: "its compiler panicked".to_owned() })
            }
        }
    }

    fn turn(self: &Arc<Self>, deadline: Instant) -> Option<Turn> {
        let mut at_work = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        while *at_work >= COMPILERS {
            let left = deadline.checked_duration_since(Instant::now())?;
            at_work =
                self.done.wait_timeout(at_work, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *at_work += 1;
        Some(Turn(Arc::clone(self)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.at_work.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.done.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_takes_too_long_is_left_behind_and_counts_until_it_ends() {
        let compilers = Arc::new(Compilers::default());
        let run = |patience: u64, work: Box<dyn FnOnce() + Send>| {
            let work = move || {
                work();
                Ok(7)
            };
            compilers.run_within(1 << 20, Duration::from_millis(patience), "schema", work)
        };
        let locks: Vec<_> = (0..COMPILERS)
            .map(|_| {
                let (key, lock) = channel::<()>();
                let result = run(20, Box::new(move || lock.recv().unwrap_or_default()));
                assert!(matches!(result, Err(GrammarError::Slow { .. })));
                key
            })
            .collect();
        assert!(matches!(run(20, Box::new(|| ())), Err(GrammarError::Busy)));
        drop(locks);
        assert!(matches!(run(60_000, Box::new(|| ())), Ok(7)));
        let panicked = run(60_000, Box::new(|| panic!("as a compiler might")));
        assert!(matches!(panicked, Err(GrammarError::Refused { .. })));
        assert!(matches!(run(60_000, Box::new(|| ())), Ok(7)));
        assert!(matches!(run(60_000, Box::new(|| ())), Ok(7)));
    }
}
