//! How many bytes the state of texts may take, and who holds them. A backend has one budget for
//! everything that sequences keep, so that running short is known before the driver is asked, and
//! says the same on every backend.

use crate::Error;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that may be held and bytes that are. Clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: AtomicUsize,
    held: AtomicUsize,
}

impl Default for Budget {
    /// One without a limit.
    fn default() -> Self {
        Self(Arc::new(Account { limit: AtomicUsize::new(usize::MAX), held: AtomicUsize::new(0) }))
    }
}

impl Budget {
    /// Lets no more than `bytes` be held from now on. What is held already stays.
    pub fn set_limit(&self, bytes: usize) {
        self.0.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that may be held.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// A share of `bytes`, held until it is dropped.
    pub fn take(&self, bytes: usize, what: &'static str) -> Result<Share, Error> {
        let limit = self.limit();
        let fits = |held: usize| held.checked_add(bytes).filter(|all| *all <= limit);
        match self.0.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Share { budget: self.clone(), bytes }),
            Err(_) => Err(Error::OutOfMemory { needed: bytes, what }),
        }
    }
}

/// Bytes of a budget that somebody holds.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// As much again, of the same budget.
    pub(crate) fn another(&self, what: &'static str) -> Result<Self, Error> {
        self.budget.take(self.bytes, what)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_can_be_had_again() {
        let budget = Budget::default();
        budget.set_limit(100);
        let first = budget.take(60, "a test").unwrap();
        let refused = budget.take(60, "a test").unwrap_err();
        assert_eq!(refused, Error::OutOfMemory { needed: 60, what: "a test" });
        assert_eq!(first.another("a test").unwrap_err(), refused);
        assert!(budget.take(usize::MAX, "a test").is_err());
        drop(first);
        assert_eq!(budget.held(), 0);
        let whole = budget.take(100, "a test").unwrap();
        assert_eq!(budget.held(), 100);
        drop(whole);
    }
}
