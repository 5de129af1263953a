//! What the engine's thread makes of failures: they are counted, and whoever they ended is told. A
//! lost device is remembered, and seen to before anything else is tried (`rebuild.rs`).

use crate::error::ApiError;
use crate::job::Ticket;
use crate::scheduler::Scheduler;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a part of the engine's work was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    Engine(engine::Error),
    Panic,
}

impl Failure {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_out_of_memory())
    }

    /// For people.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Panic => "it panicked".to_owned(),
            Self::Engine(error) => error.to_string(),
        }
    }

    /// In the words of an API. A failure of what an answer is held to is about its request.
    pub(crate) fn told(&self, ticket: &Ticket) -> ApiError {
        match self {
            Self::Panic => ApiError::Internal("the engine panicked".to_owned()),
            Self::Engine(engine::Error::Constraint { reason, .. }) => ticket.job.held.error(reason),
            Self::Engine(error) if error.is_lost() => ApiError::DeviceLost,
            Self::Engine(error) => ApiError::Internal(error.to_string()),
        }
    }

    /// In a word, for `/metrics`; none where it is a request's own.
    fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Panic => Some("panic"),
            Self::Engine(engine::Error::Constraint { .. }) => None,
            Self::Engine(error) if error.is_out_of_memory() => Some("out_of_memory"),
            Self::Engine(error) if error.is_lost() => Some("device_lost"),
            Self::Engine(_) => Some("other"),
        }
    }
}

/// Runs a part of the engine; a panic becomes a failure. Passes only read committed state, and a
/// commit that was cut short belongs to a sequence that is dropped with the failure.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, engine::Error>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(Failure::Engine),
        Err(_) => Err(Failure::Panic),
    }
}

impl Scheduler {
    /// Counts a failure.
    pub(crate) fn note(&mut self, failure: &Failure) {
        if let Some(kind) = failure.kind() {
            self.metrics.add_engine_error(kind);
        }
        if let Failure::Engine(error) = failure
            && error.is_lost()
        {
            self.lost.get_or_insert_with(|| error.to_string());
        }
    }

    /// Counts a failure and puts it into words for whoever it ended.
    pub(crate) fn told(&mut self, ticket: &Ticket, failure: &Failure) -> ApiError {
        self.note(failure);
        failure.told(ticket)
    }
}
