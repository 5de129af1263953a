//! The HTTP side's end of the channel to the engine's thread: who may enter, and how the door is closed.

use crate::error::ApiError;
use crate::job::{Event, Job, Ticket};
use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// The way to the engine's thread.
#[derive(Debug)]
pub(crate) struct Handle {
    jobs: Sender<Arc<Ticket>>,
    /// One permit an answer, running or waiting.
    permits: Arc<Semaphore>,
    capacity: usize,
    timeout: Option<Duration>,
    closing: AtomicBool,
    abandon: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Handle {
    /// `capacity` answers can be in the works at once, each for at most `timeout`.
    pub(crate) fn new(
        jobs: Sender<Arc<Ticket>>,
        capacity: usize,
        timeout: Option<Duration>,
        abandon: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(capacity));
        Self { jobs, permits, capacity, timeout, closing: AtomicBool::new(false), abandon, metrics }
    }

    /// Sends the jobs of one request. Dropping the receiver cancels them.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> Result<UnboundedReceiver<Event>, ApiError> {
        if self.is_closing() {
            return Err(ApiError::Closing);
        }
        let answers = jobs.iter().map(|job| job.choices.len()).sum::<usize>();
        let permit = Arc::clone(&self.permits).try_acquire_many_owned(answers as u32).map_err(|_| {
            self.metrics.refused.inc();
            ApiError::Busy { waiting: self.capacity - self.permits.available_permits() }
        })?;
        let permit = Arc::new(permit);
        let (events, receiver) = unbounded_channel();
        let arrived = Instant::now();
        let deadline = self.timeout.map(|timeout| arrived + timeout);
        for job in jobs {
            let (events, _permit) = (events.clone(), Arc::clone(&permit));
            let ticket = Arc::new(Ticket { job, events, arrived, deadline, _permit });
            self.jobs.send(ticket).map_err(|_| ApiError::Internal("the engine has ended".to_owned()))?;
        }
        Ok(receiver)
    }

    /// Whether new requests are turned away.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Turns new requests away and waits for those under way, at most `limit`; then they are given up.
    pub(crate) async fn drain(&self, limit: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let all = self.permits.acquire_many(self.capacity as u32);
        if tokio::time::timeout(limit, all).await.is_err() {
            self.abandon.store(true, Ordering::Relaxed);
        }
    }
}
