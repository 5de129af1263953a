//! The HTTP side's end of the channel to the engine's thread: who may enter, and how the door is closed.

use crate::error::ApiError;
use crate::job::{Event, Job, Ticket};
use crate::log;
use crate::metrics::Metrics;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
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
    /// Nobody holds it any more when the engine's thread has ended.
    life: Weak<()>,
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
        life: Weak<()>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(capacity));
        let closing = AtomicBool::new(false);
        Self { jobs, permits, capacity, timeout, life, closing, abandon, metrics }
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
        let (arrived, record) = (Instant::now(), log::current());
        let deadline = self.timeout.map(|timeout| arrived + timeout);
        for job in jobs {
            let (record, events, _permit) = (record.clone(), events.clone(), Arc::clone(&permit));
            if let Some(record) = &record {
                record.add_prompt(job.prompt.len());
            }
            let ticket = Arc::new(Ticket { job, record, events, arrived, deadline, _permit });
            self.jobs.send(ticket).map_err(|_| ApiError::Internal("the engine has ended".to_owned()))?;
        }
        Ok(receiver)
    }

    /// Whether the engine's thread runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.strong_count() > 0
    }

    /// Whether new requests are turned away.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Turns new requests away and waits for those under way, at most `limit`; then they are given up.
    pub(crate) async fn drain(&self, limit: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        let answers = self.capacity - self.permits.available_permits();
        tracing::info!(answers, limit_s = limit.as_secs(), "draining");
        let all = self.permits.acquire_many(self.capacity as u32);
        if tokio::time::timeout(limit, all).await.is_err() {
            let answers = self.capacity - self.permits.available_permits();
            tracing::warn!(answers, "given up");
            self.abandon.store(true, Ordering::Relaxed);
        }
    }
}
