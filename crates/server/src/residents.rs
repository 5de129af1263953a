//! Which models have an engine. A request for one that has none waits until it is loaded; where as
//! many are loaded as may be, the one that was used least recently makes room: it takes no new
//! texts, those under way are finished, and its thread ends. Texts are read, counted and refused
//! without an engine; only who wants an answer waits for one.

use crate::error::ApiError;
use crate::job::Ticket;
use crate::metrics::Metrics;
use crate::rebuild::{Health, Load};
use crate::start::Starter;
use engine::Engine;
use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// A model's place for an engine.
#[derive(Debug, Default)]
pub(crate) struct Seat(Mutex<Option<Resident>>);

/// An engine's thread, as others see it.
#[derive(Debug)]
pub(crate) struct Resident {
    /// The thread ends when nobody has a sender any more and all that was sent is done.
    pub(crate) jobs: Sender<Arc<Ticket>>,
    /// Nobody holds it any more when the thread has ended.
    pub(crate) health: Weak<Health>,
    /// When somebody last wanted it.
    pub(crate) used: Instant,
}

impl Seat {
    fn resident(&self) -> MutexGuard<'_, Option<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the engine, where there is one. As long as the caller holds it the engine stays.
    pub(crate) fn enter(&self) -> Option<Sender<Arc<Ticket>>> {
        let mut resident = self.resident();
        resident.as_mut().map(|resident| {
            resident.used = Instant::now();
            resident.jobs.clone()
        })
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.resident().is_some()
    }

    /// Why the engine cannot work now, where there is one and it cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.resident().as_ref()?.health.upgrade() {
            Some(health) => health.trouble(),
            None => Some("the engine has ended".to_owned()),
        }
    }

    fn used(&self) -> Option<Instant> {
        self.resident().as_ref().map(|resident| resident.used)
    }
}

/// Somebody waits for a model's engine.
#[derive(Debug)]
pub(crate) struct Ask {
    /// Which model.
    pub(crate) model: usize,
    pub(crate) reply: oneshot::Sender<Result<Sender<Arc<Ticket>>, ApiError>>,
}

/// How other tasks ask for an engine.
pub(crate) type Asks = UnboundedSender<Ask>;

/// A model and what its engine is made with.
pub(crate) struct Loadable {
    pub(crate) name: String,
    pub(crate) seat: Arc<Seat>,
    pub(crate) load: Load,
    pub(crate) starter: Starter,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether texts are under way.
    pub(crate) is_busy: Box<dyn Fn() -> bool + Send>,
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Loadable {
    /// Gives the model an engine, which took so long to load.
    pub(crate) fn seat(&mut self, engine: Engine, load_s: f64) -> io::Result<()> {
        let (resident, thread) = self.starter.start(engine, load_s)?;
        *self.seat.resident() = Some(resident);
        self.thread = Some(thread);
        self.metrics.loads.inc();
        self.metrics.loaded.set(1);
        Ok(())
    }
}

/// Loads models and lets them go, one at a time.
pub(crate) struct Residents {
    pub(crate) models: Vec<Loadable>,
    /// Models that are loaded at most.
    pub(crate) most: usize,
}

impl Residents {
    /// Works until nobody is left who could ask, and lets all engines go.
    pub(crate) async fn run(mut self, asks: UnboundedReceiver<Ask>) {
        let mut queue = Queue { asks, waiting: VecDeque::new() };
        while let Some(ask) = queue.asks.recv().await {
            queue.waiting.push_back(ask);
            // Who waits longest is next, and all who want the same model go in with them.
            while let Some(model) = queue.next() {
                let loaded = self.provide(model, &mut queue).await;
                // Whoever has left does not hear it.
                queue.take(model).for_each(|ask| drop(ask.reply.send(loaded.clone())));
            }
        }
        for model in 0..self.models.len() {
            self.unload(model).await;
        }
    }

    /// The way to a model's engine, which is loaded where there is none.
    async fn provide(
        &mut self,
        model: usize,
        queue: &mut Queue,
    ) -> Result<Sender<Arc<Ticket>>, ApiError> {
        loop {
            if let Some(jobs) = self.models[model].seat.enter() {
                return Ok(jobs);
            }
            let other = self.least_used();
            let loaded = self.models.iter().filter(|model| model.seat.is_taken()).count();
            let outcome = match other.filter(|_| loaded >= self.most) {
                Some(_) => Err(String::new()),
                None => self.load(model, queue).await,
            };
            match (outcome, other) {
                (Ok(()), _) => {}
                // There may be room when another has gone.
                (Err(_), Some(other)) => self.unload(other).await,
                (Err(reason), None) => {
                    let model = self.models[model].name.clone();
                    tracing::error!(model, cause = reason, "a model cannot be loaded");
                    return Err(ApiError::NotLoaded { model, reason });
                }
            }
        }
    }

    async fn load(&mut self, model: usize, queue: &mut Queue) -> Result<(), String> {
        let ended = || "the server ends".to_owned();
        if queue.asks.is_closed() {
            return Err(ended());
        }
        let loadable = &mut self.models[model];
        tracing::info!(model = loadable.name, "loading");
        let (start, load) = (Instant::now(), Arc::clone(&loadable.load));
        let engine = tokio::select! {
            engine = tokio::task::spawn_blocking(move || load()) => engine,
            // Who asked has left, and the others' states are to be written in time.
            () = queue.hear_all() => return Err(ended()),
        };
        let engine = engine.unwrap_or_else(|_| Err("loading panicked".to_owned()))?;
        let seconds = start.elapsed().as_secs_f64();
        loadable.seat(engine, seconds).map_err(|error| error.to_string())?;
        tracing::info!(model = loadable.name, seconds, "loaded");
        Ok(())
    }

    /// Of the models that are loaded one that writes nothing, else any, that was wanted last the
    /// longest ago.
    fn least_used(&self) -> Option<usize> {
        let loaded = self.models.iter().enumerate();
        let loaded = loaded.filter_map(|(at, model)| Some((at, model, model.seat.used()?)));
        loaded.min_by_key(|(_, model, used)| ((model.is_busy)(), *used)).map(|(at, ..)| at)
    }

    /// Takes a model's engine away, when all texts that it has begun are whole.
    async fn unload(&mut self, model: usize) {
        let Loadable { name, seat, metrics, thread, .. } = &mut self.models[model];
        let resident = seat.resident().take();
        if let Some(thread) = resident.and(thread.take()) {
            tracing::info!(model = name, "unloading");
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            tracing::info!(model = name, "unloaded");
            metrics.unload();
        }
    }
}

/// Who asks.
struct Queue {
    asks: UnboundedReceiver<Ask>,
    /// Those who have been heard.
    waiting: VecDeque<Ask>,
}

impl Queue {
    /// The model that is wanted next, by those who still wait.
    fn next(&mut self) -> Option<usize> {
        self.waiting.retain(|ask| !ask.reply.is_closed());
        self.waiting.front().map(|ask| ask.model)
    }

    /// Those who want a model.
    fn take(&mut self, model: usize) -> impl Iterator<Item = Ask> {
        self.waiting.extend(std::iter::from_fn(|| self.asks.try_recv().ok()));
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (same, others) = all.partition::<VecDeque<Ask>, _>(|ask| ask.model == model);
        self.waiting = others;
        same.into_iter()
    }

    /// Waits until nobody is left who could ask.
    async fn hear_all(&mut self) {
        while let Some(ask) = self.asks.recv().await {
            self.waiting.push_back(ask);
        }
    }
}
