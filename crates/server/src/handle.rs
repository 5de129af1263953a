//! The HTTP side's end of the channel to an engine's thread: who may enter, and how the door is
//! closed.

use crate::error::ApiError;
use crate::job::{Event, Job, Once, Ticket};
use crate::log::{self, Record};
use crate::metrics::Metrics;
use crate::residents::{Ask, Asks, Seat};
use crate::shorten::Shortening;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

/// The way to a model's engine.
#[derive(Debug)]
pub(crate) struct Handle {
    seat: Arc<Seat>,
    /// Where an engine is asked for when there is none.
    asks: Asks,
    /// Which model, among those that can be asked for.
    model: usize,
    /// One permit an answer, running or waiting.
    permits: Arc<Semaphore>,
    capacity: usize,
    /// Answers of one request that are sent at once; the others follow as these are whole.
    share: usize,
    timeout: Option<Duration>,
    /// Shortens long prompts, where that was asked for.
    shortening: Option<Arc<Shortening>>,
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
        (model, seat, asks): (usize, Arc<Seat>, Asks),
        capacity: usize,
        share: usize,
        timeout: Option<Duration>,
        abandon: Arc<AtomicBool>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(capacity));
        let share = share.clamp(1, capacity);
        let (closing, drained) = (AtomicBool::new(false), watch::Sender::new(false));
        Self {
            seat,
            asks,
            model,
            permits,
            capacity,
            share,
            timeout,
            shortening: None,
            closing,
            drained,
            abandon,
            metrics,
        }
    }

    /// Has long prompts shortened.
    pub(crate) fn shortened_by(self, shortening: Option<Shortening>) -> Self {
        Self { shortening: shortening.map(Arc::new), ..self }
    }

    /// Sends the jobs of one request, a share of them at a time where there are many: a request has
    /// no more places in the queue than that, and others go in between. Dropping the receiver
    /// cancels all of them.
    pub(crate) async fn submit(
        &self,
        jobs: Vec<Job>,
    ) -> Result<UnboundedReceiver<Event>, ApiError> {
        let answers = jobs.iter().map(|job| job.choices.len());
        let (all, most) = (answers.clone().sum::<usize>(), answers.max().unwrap_or(0));
        let share = all.min(self.share.max(most));
        let (arrived, permit) = (Instant::now(), self.permit(share)?);
        let deadline = self.timeout.map(|timeout| arrived + timeout);
        let engine = self.engine(deadline).await?;
        let (events, receiver) = unbounded_channel();
        let feeder = Feeder {
            jobs: engine,
            shortening: self.shortening.clone(),
            record: log::current(),
            arrived,
            deadline,
            places: Arc::new(Semaphore::new(share)),
            permit: Arc::new(permit),
            events,
        };
        feeder.feed(jobs)?;
        Ok(receiver)
    }

    /// Has the model loaded, where it is not.
    pub(crate) async fn load(&self) -> Result<(), ApiError> {
        let _permit = self.permit(1)?;
        self.engine(self.timeout.map(|timeout| Instant::now() + timeout)).await.map(drop)
    }

    fn permit(&self, share: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.is_closing() {
            return Err(ApiError::Closing);
        }
        Arc::clone(&self.permits).try_acquire_many_owned(share as u32).map_err(|_| {
            self.metrics.refused.inc();
            ApiError::Busy { waiting: self.under_way() }
        })
    }

    /// The way to the model's engine, when there is one.
    async fn engine(&self, deadline: Option<Instant>) -> Result<Sender<Arc<Ticket>>, ApiError> {
        if let Some(jobs) = self.seat.enter() {
            return Ok(jobs);
        }
        let (reply, loaded) = oneshot::channel();
        let _ = self.asks.send(Ask { model: self.model, reply });
        let loaded = async { loaded.await.unwrap_or(Err(ApiError::Closing)) };
        let Some(deadline) = deadline else { return loaded.await };
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let loaded = tokio::time::timeout_at(deadline.into(), loaded).await;
        loaded.unwrap_or(Err(ApiError::Deadline { seconds }))
    }

    /// Why the engine cannot work now, where it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.seat.trouble()
    }

    /// Whether the model is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.seat.is_taken()
    }

    /// Answers that run or wait.
    pub(crate) fn under_way(&self) -> usize {
        self.capacity - self.permits.available_permits()
    }

    /// Says whether answers run or wait.
    pub(crate) fn is_busy(&self) -> impl Fn() -> bool + Send + use<> {
        let (permits, capacity) = (Arc::clone(&self.permits), self.capacity);
        move || permits.available_permits() < capacity
    }

    /// Whether new requests are turned away.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Turns new requests away.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Waits for answers under way, at most until `limit`; then they are given up.
    pub(crate) async fn drain(&self, limit: Instant) {
        let all = self.permits.acquire_many(self.capacity as u32);
        if tokio::time::timeout_at(limit.into(), all).await.is_err() {
            tracing::warn!(answers = self.under_way(), "given up");
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
    shortening: Option<Arc<Shortening>>,
    record: Option<Arc<Record>>,
    arrived: Instant,
    deadline: Option<Instant>,
    /// Answers that may be sent.
    places: Arc<Semaphore>,
    /// The share, held until the last job is done.
    permit: Arc<OwnedSemaphorePermit>,
    /// Dropped last, as a ticket's.
    events: UnboundedSender<Event>,
}

impl Feeder {
    /// Sends what there is room for now, and leaves the rest to a task.
    fn feed(self, jobs: Vec<Job>) -> Result<(), ApiError> {
        if let Some(record) = &self.record {
            record.tell_shares(&jobs);
        }
        let mut jobs = jobs.into_iter();
        while let Some(job) = jobs.next() {
            match Arc::clone(&self.places).try_acquire_many_owned(job.choices.len() as u32) {
                Ok(place) if job.wish.is_none() => self.send(job, place)?,
                _ => {
                    let rest = std::iter::once(job).chain(jobs);
                    tokio::spawn(self.feed_rest(rest));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn feed_rest(self, jobs: impl Iterator<Item = Job> + Send) {
        for mut job in jobs {
            let place = Arc::clone(&self.places).acquire_many_owned(job.choices.len() as u32);
            let place = tokio::select! {
                place = place => place,
                () = self.events.closed() => return,
            };
            let Ok(place) = place else { return };
            tokio::select! {
                () = self.shorten(&mut job) => {}
                () = self.events.closed() => return,
            }
            if self.send(job, place).is_err() {
                return;
            }
        }
    }

    /// Shortens the prompt of a job that wishes it. One that is out of time is sent as it is, and
    /// refused where it comes to.
    async fn shorten(&self, job: &mut Job) {
        let Some(shortening) = &self.shortening else { return };
        let shortened = shortening.shorten(job);
        match self.deadline {
            Some(deadline) => {
                let _ = tokio::time::timeout_at(deadline.into(), shortened).await;
            }
            None => shortened.await,
        }
    }

    fn send(&self, job: Job, place: OwnedSemaphorePermit) -> Result<(), ApiError> {
        let (record, events, share) =
            (self.record.clone(), self.events.clone(), Arc::clone(&self.permit));
        if let Some(record) = &record {
            record.add_prompt(job.asked_tokens());
        }
        let Self { arrived, deadline, .. } = *self;
        let ticket = Arc::new(Ticket {
            job,
            record,
            arrived,
            done: Once::default(),
            deadline,
            _place: place,
            _share: share,
            events,
        });
        self.jobs.send(ticket).map_err(|_| ApiError::Internal("the engine has ended".to_owned()))
    }
}
