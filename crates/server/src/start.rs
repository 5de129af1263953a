//! From what is served and how to what serves it: models that requests are read for, and engines'
//! threads that answer them.

use crate::beside::Change;
use crate::disk::{Disk, DiskShare};
use crate::handle::Handle;
use crate::metrics::{CacheConfig, Metrics};
use crate::models::{Abilities, About, Models};
use crate::prefill::PrefillBudget;
use crate::prefix::PrefixCache;
use crate::prompt::BEGINNINGS;
use crate::rebuild::{Health, Load};
use crate::residents::{Asks, Loadable, Resident, Residents, Seat};
use crate::router::{Shared, unix_time};
use crate::scheduler::{MAX_SLOTS, Scheduler};
use crate::settings::Limits;
use crate::shorten::{Prefill, Shortening};
use crate::{Options, Served, ollama, responses};
use engine::{Engine, PAGE_TOKENS};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;
use text::{Beginnings, ChatTemplate, Tokenizer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task;

/// Bytes of an engine's stack: it follows grammars that clients send.
const ENGINE_STACK: usize = 64 << 20;

/// What loads engines.
pub(crate) struct Engines {
    /// Ends when all models are gone, and engines with them.
    pub(crate) residents: task::JoinHandle<()>,
    /// Says why, should a thread end for want of a device.
    pub(crate) lost: UnboundedReceiver<String>,
}

/// What the threads of a model's engines have in common.
pub(crate) struct Starter {
    load: Load,
    tokenizer: Arc<Tokenizer>,
    metrics: Arc<Metrics>,
    abandon: Arc<AtomicBool>,
    slots: usize,
    context: usize,
    mode: &'static str,
    cache_bytes: usize,
    host_cache_bytes: usize,
    disk_cache: Option<DiskShare>,
    /// Who hears what the cache keeps.
    listener: Option<UnboundedSender<Change>>,
    lost: UnboundedSender<String>,
}

impl Starter {
    /// Starts a thread for an engine that took so long to load.
    pub(crate) fn start(
        &self,
        mut engine: Engine,
        load_s: f64,
    ) -> io::Result<(Resident, JoinHandle<()>)> {
        let Self { slots, context, mode, cache_bytes, host_cache_bytes, .. } = *self;
        let rows = engine.decode_rows();
        if slots > rows {
            return Err(io::Error::other(format!(
                "{slots} slots are asked for, and a pass has {rows} rows here, one for each of them"
            )));
        }
        let health = Arc::new(Health::default());
        let (jobs, received) = mpsc::channel();
        let resident = Resident { jobs, health: Arc::downgrade(&health), used: Instant::now() };
        let cache = PrefixCache::new(cache_bytes, host_cache_bytes).heard_by(self.listener.clone());
        let disk = self.disk_cache.as_ref();
        let scheduler = Scheduler {
            disk: disk.and_then(|share| Disk::start(share, &engine, self.listener.clone())),
            prefill_budget: prefill_budget(&mut engine),
            engine,
            tokenizer: Arc::clone(&self.tokenizer),
            cache,
            listener: self.listener.clone(),
            metrics: Arc::clone(&self.metrics),
            abandon: Arc::clone(&self.abandon),
            slots,
            context,
            mode,
            load_s,
            load: Arc::clone(&self.load),
            rebuilt: None,
            cache_bytes,
            host_cache_bytes,
            health,
            lost: None,
        };
        let tell = self.lost.clone();
        let thread = std::thread::Builder::new().name("engine".to_owned()).stack_size(ENGINE_STACK);
        let thread = thread.spawn(move || {
            if let Err(reason) = scheduler.run(&received) {
                let _ = tell.send(reason);
            }
        })?;
        Ok((resident, thread))
    }
}

/// Starts what loads models, and the threads of those that are loaded.
pub(crate) fn start(
    served: Vec<Served>,
    options: &mut Options,
) -> io::Result<(Arc<Models>, Engines)> {
    options.slots = options.slots.clamp(1, MAX_SLOTS);
    let (tell, lost) = unbounded_channel();
    let (asks, asked) = unbounded_channel();
    let store = (options.store_bytes > 0).then(|| responses::Store::new(options.store_bytes));
    let store = store.map(Arc::new);
    // Who asks by another way asks for the first model.
    let mut listener = options.beside.as_mut().and_then(|beside| beside.listener.take());
    let (mut all, mut loadable) = (Vec::new(), Vec::new());
    for (number, one) in served.into_iter().enumerate() {
        let way = (number, asks.clone());
        let heard = (tell.clone(), listener.take());
        let prefill = options.prefill.take();
        let (shared, model) = prepare(one, options, way, heard, prefill, store.clone())?;
        all.push(Arc::new(shared));
        loadable.push(model);
    }
    let residents = Residents { models: loadable, most: options.models_loaded.max(1) };
    let residents = tokio::spawn(residents.run(asked));
    let keys = options.keys.take();
    let models = Models { all, openapi: OnceLock::new(), keys, store };
    Ok((Arc::new(models), Engines { residents, lost }))
}

/// One model: what requests for it work with, and what loads it.
fn prepare(
    served: Served,
    options: &Options,
    (number, asks): (usize, Asks),
    (lost, listener): (UnboundedSender<String>, Option<UnboundedSender<Change>>),
    prefill: Option<Prefill>,
    store: Option<Arc<responses::Store>>,
) -> io::Result<(Shared, Loadable)> {
    let Options { slots, cache_bytes, host_cache_bytes, timeout, .. } = *options;
    let capacity = slots + options.queue;
    let about = describe(&served);
    let mut metrics = Metrics::new(about.called(None), served.context);
    metrics.tell_cache(cache_config(&served, options));
    let metrics = Arc::new(metrics);
    let Served { engine, load, mode, tokenizer, template, sampling, context, load_s, .. } = served;
    let (ends, tokenizer) = (tokenizer.ends().to_vec(), Arc::new(tokenizer));
    let start = |prefill| Shortening::start(prefill, Arc::clone(&tokenizer), Arc::clone(&metrics));
    let shortening = prefill.map(start).transpose()?;
    let shares = shortening.as_ref().map(|shortening| shortening.shares);
    let limits = Limits { sampling, vocab: about.vocab, context, capacity, ends, shares };
    let (seat, abandon) = (Arc::new(Seat::default()), Arc::new(AtomicBool::new(false)));
    let way = (number, Arc::clone(&seat), asks);
    let handle =
        Handle::new(way, capacity, 2 * slots, timeout, Arc::clone(&abandon), Arc::clone(&metrics))
            .shortened_by(shortening);
    let starter = Starter {
        load: Arc::clone(&load),
        tokenizer: Arc::clone(&tokenizer),
        metrics: Arc::clone(&metrics),
        abandon,
        slots,
        context,
        mode,
        cache_bytes,
        host_cache_bytes,
        disk_cache: options.disk_cache.clone(),
        listener,
        lost,
    };
    let mut loadable = Loadable {
        name: about.called(None).to_owned(),
        seat,
        load,
        starter,
        metrics: Arc::clone(&metrics),
        is_busy: Box::new(handle.is_busy()),
        thread: None,
    };
    if let Some(engine) = engine {
        loadable.seat(engine, load_s)?;
    }
    let source = template.as_ref().ok().and_then(ChatTemplate::source).unwrap_or_default();
    // Who has nothing kept of prompts has none of their tokens kept either.
    let keeps = cache_bytes > 0 || host_cache_bytes > 0 || options.disk_cache.is_some();
    let beginnings = Beginnings::new(if keeps { BEGINNINGS } else { 0 });
    let shared = Shared {
        handle,
        about,
        weights: ollama::About::new(served.facts, source),
        tokenizer,
        beginnings,
        template,
        grammars: OnceLock::new(),
        limits,
        metrics,
        store,
    };
    Ok((shared, loadable))
}

/// What of a prompt is read beside running answers.
fn prefill_budget(engine: &mut Engine) -> PrefillBudget {
    let on_device = engine.backend().has_own_memory();
    PrefillBudget::new(engine.model().options().max_rows, on_device)
}

/// What is told of the model.
fn describe(served: &Served) -> About {
    About {
        names: served.names.clone(),
        created: unix_time(),
        context: served.context,
        trained_context: served.trained_context,
        parameters: served.facts.parameters,
        vocab: served.vocab,
        hidden: served.hidden,
        can: Abilities::of(served.template.as_ref().ok()),
    }
}

/// How states are kept.
fn cache_config(served: &Served, options: &Options) -> CacheConfig {
    let Options { slots, cache_bytes, host_cache_bytes, .. } = *options;
    CacheConfig {
        block_size: PAGE_TOKENS as u64,
        num_gpu_blocks: (slots * served.context.div_ceil(PAGE_TOKENS)) as u64,
        cache_dtype: served.kv.clone(),
        enable_prefix_caching: (cache_bytes + host_cache_bytes > 0).to_string(),
        prefix_cache_bytes: cache_bytes as u64,
        prefix_cache_host_bytes: host_cache_bytes as u64,
        slots: slots as u64,
    }
}
