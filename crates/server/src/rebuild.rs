//! After a lost device: whoever is under way ends with a reason, the engine is built anew, and
//! those who wait go on with it. A device that is lost again soon, or does not come back, ends the
//! server, so that whoever watches it can start another one.

use crate::error::ApiError;
use crate::job::Ticket;
use crate::prefix::PrefixCache;
use crate::scheduler::{Scheduler, Waiting, Work, fail};
use engine::Engine;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Loads a model's engine, as often as one is wanted, or says why it cannot be had.
pub type Load = Arc<dyn Fn() -> Result<Engine, String> + Send + Sync>;

/// After so much service a lost device counts as the first one again.
const GOOD_SERVICE: Duration = Duration::from_secs(3600);

/// Why the engine cannot work now, where it cannot. Its thread says so, `/health` repeats it.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Option<String>>);

impl Health {
    fn set(&self, trouble: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Scheduler {
    /// Goes on with a new engine where that can be had, and says why not where it cannot.
    pub(crate) fn rebuild(
        mut self,
        work: &mut Work,
        jobs: &Receiver<Arc<Ticket>>,
        reason: String,
    ) -> Result<Self, String> {
        tracing::error!(cause = %reason, "the device is lost");
        self.metrics.device_lost.inc();
        self.health.set(Some(format!("{reason}; the engine is built anew")));
        work.end_running();
        // What the old engine held has to be free before the new one asks for it.
        drop(self.cache);
        if let Some(disk) = &mut self.disk {
            while disk.drop_unsaved() {}
        }
        drop(self.engine);
        let is_first = self.rebuilt.is_none_or(|at| at.elapsed() >= GOOD_SERVICE);
        let built = match is_first {
            true => catch_unwind(AssertUnwindSafe(|| (self.load)()))
                .unwrap_or_else(|_| Err("loading panicked".to_owned())),
            false => Err("it was lost before, not long ago".to_owned()),
        };
        match built {
            Ok(engine) => {
                tracing::info!("the engine is built anew");
                self.health.set(None);
                let cache = PrefixCache::new(self.cache_bytes, self.host_cache_bytes)
                    .heard_by(self.listener.clone());
                Ok(Self { engine, cache, rebuilt: Some(Instant::now()), ..self })
            }
            Err(cause) => {
                let came = jobs.try_iter().map(|ticket| (ticket, 0));
                let waited = work.waiting.drain(..).map(|w| (w.ticket, w.choice));
                waited.chain(came).for_each(|(ticket, choice)| {
                    fail(&ticket, choice, ApiError::DeviceLost);
                });
                Err(format!("{reason}; {cause}"))
            }
        }
    }
}

impl Work {
    /// Ends all that has begun, and with it all state of the engine.
    fn end_running(&mut self) {
        for reading in self.reading.drain(..) {
            fail(&reading.ticket, reading.choice, ApiError::DeviceLost);
        }
        let away = self.away.drain(..).map(|away| away.answer);
        for answer in self.answers.drain().chain(away) {
            answer.record(&answer.outcome());
            answer.fail(ApiError::DeviceLost);
        }
        // Who waits for a file has not begun.
        let fetched = self.fetching.drain(..).map(|fetching| fetching.waiting);
        fetched.rev().for_each(|waiting| self.waiting.push_front(waiting));
        // Of a request whose first answer has begun the others end too.
        self.waiting.retain(|Waiting { ticket, choice, start }| {
            let has_begun = start.is_some() || *choice > 0;
            if has_begun {
                fail(ticket, *choice, ApiError::DeviceLost);
            }
            !has_begun
        });
        (self.full, self.failed) = (None, 0);
    }
}
