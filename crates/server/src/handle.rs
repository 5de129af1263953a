//! The HTTP side's end of the channel to the engine's thread: who may enter, and how the door is
//! closed.

use crate::error::ApiError;
use crate::job::{Event, Job, Ticket};
use crate::log::{self, Record};
use crate::metrics::Metrics;
use crate::rebuild::Health;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The way to the engine's thread.
#[derive(Debug)]
pub(crate) struct Handle {
    jobs: Sender<Arc<Ticket>>,
    /// One permit an answer, running or waiting.
    permits: Arc<Semaphore>,
    capacity: usize,
    /// Answers of one request that are sent at once; the others follow as these are whole.
    share: usize,
    timeout: Option<Duration>,
    /// Nobody holds it any more when the engine's thread has ended.
    health: Weak<Health>,
    closing: AtomicBool,
    /// Whether what was under way when the door closed has ended.
    drained: watch::Sender<bool>,
    abandon: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Handle {
    /// `capacity` answers can be in the works at once, `share` of them for one request, each for at
    /// most `timeout`.
    pub(crate) fn new(
        jobs: Sender<Arc<Ticket>>,
        capacity: usize,
        share: usize,
        timeout: Option<Duration>,
        abandon: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
        health: Weak<Health>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(capacity));
        let share = share.clamp(1, capacity);
        let (closing, drained) = (AtomicBool::new(false), watch::Sender::new(false));
        Self { jobs, permits, capacity, share, timeout, health, closing, drained, abandon, metrics }
    }

    /// Sends the jobs of one request, a share of them at a time where there are many: a request has
    /// no more places in the queue than that, and others go in between. Dropping the receiver
    /// cancels all of them.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> Result<UnboundedReceiver<Event>, ApiError> {
        if self.is_closing() {
            return Err(ApiError::Closing);
        }
        let answers = jobs.iter().map(|job| job.choices.len());
        let (all, most) = (answers.clone().sum::<usize>(), answers.max().unwrap_or(0));
        let share = all.min(self.share.max(most));
        let permit =
            Arc::clone(&self.permits).try_acquire_many_owned(share as u32).map_err(|_| {
                self.metrics.refused.inc();
                ApiError::Busy { waiting: self.capacity - self.permits.available_permits() }
            })?;
        let (events, receiver) = unbounded_channel();
        let arrived = Instant::now();
        let deadline = self.timeout.map(|timeout| arrived + timeout);
        let feeder = Feeder {
            jobs: self.jobs.clone(),
            record: log::current(),
            events,
            arrived,
            deadline,
            places: Arc::new(Semaphore::new(share)),
            permit: Arc::new(permit),
        };
        feeder.feed(jobs)?;
        Ok(receiver)
    }

    /// Why the engine cannot work now, where it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.health.upgrade() {
            Some(health) => health.trouble(),
            None => Some("the engine has ended".to_owned()),
        }
    }

    /// Whether new requests are turned away.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Turns new requests away and waits for those under way, at most `limit`; then they are given
    /// up.
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
        self.drained.send_replace(true);
    }

    /// Ready when [`Self::drain`] is through.
    pub(crate) async fn closed(&self) {
        let _ = self.drained.subscribe().wait_for(|drained| *drained).await;
    }
}

/// Sends the jobs of one request as there is room in its share.
struct Feeder {
    jobs: Sender<Arc<Ticket>>,
    record: Option<Arc<Record>>,
    events: UnboundedSender<Event>,
    arrived: Instant,
    deadline: Option<Instant>,
    /// Answers that may be sent.
    places: Arc<Semaphore>,
    /// The share, held until the last job is done.
    permit: Arc<OwnedSemaphorePermit>,
}

impl Feeder {
    /// Sends what there is room for now, and leaves the rest to a task.
    fn feed(self, jobs: Vec<Job>) -> Result<(), ApiError> {
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            match Arc::clone(&self.places).try_acquire_many_owned(job.choices.len() as u32) {
                Ok(place) => self.send(job, place)?,
                Err(_) => {
                    let rest = std::iter::once(job).chain(jobs);
                    tokio::spawn(self.feed_rest(rest));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn feed_rest(self, jobs: impl Iterator<Item = Job> + Send) {
        for job in jobs {
            let place = Arc::clone(&self.places).acquire_many_owned(job.choices.len() as u32);
            let place = tokio::select! {
                place = place => place,
                () = self.events.closed() => return,
            };
            let Ok(place) = place else { return };
            if self.send(job, place).is_err() {
                return;
            }
        }
    }

    fn send(&self, job: Job, place: OwnedSemaphorePermit) -> Result<(), ApiError> {
        let (record, events, share) =
            (self.record.clone(), self.events.clone(), Arc::clone(&self.permit));
        if let Some(record) = &record {
            record.add_prompt(job.prompt.len());
        }
        let Self { arrived, deadline, .. } = *self;
        let ticket = Arc::new(Ticket {
            job,
            record,
            events,
            arrived,
            deadline,
            _place: place,
            _share: share,
        });
        self.jobs.send(ticket).map_err(|_| ApiError::Internal("the engine has ended".to_owned()))
    }
}
