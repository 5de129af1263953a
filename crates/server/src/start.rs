//! From what is served and how to what serves it: the engine's thread, and what every request works
//! with.

use crate::disk::Disk;
use crate::handle::Handle;
use crate::metrics::{CacheConfig, Metrics};
use crate::models::{Abilities, About};
use crate::prefill::PrefillBudget;
use crate::prefix::PrefixCache;
use crate::rebuild::Health;
use crate::router::{Shared, unix_time};
use crate::scheduler::{MAX_SLOTS, Scheduler};
use crate::settings::Limits;
use crate::{Options, Served, ollama, responses};
use engine::{Engine, PAGE_TOKENS};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use text::ChatTemplate;
use tokio::sync::oneshot;

/// Bytes of the engine's stack: it follows grammars that clients send.
const ENGINE_STACK: usize = 64 << 20;

/// The thread that the engine runs on.
pub(crate) struct EngineThread {
    pub(crate) thread: JoinHandle<()>,
    /// Says why, should it end for want of a device.
    pub(crate) lost: oneshot::Receiver<String>,
}

/// Starts the engine's thread.
pub(crate) fn start(
    served: Served,
    options: &mut Options,
) -> io::Result<(Arc<Shared>, EngineThread)> {
    options.slots = options.slots.clamp(1, MAX_SLOTS);
    let rows = served.engine.decode_rows();
    if options.slots > rows {
        let asked = options.slots;
        return Err(io::Error::other(format!(
            "{asked} slots are asked for, and a pass has {rows} rows here, one for each of them"
        )));
    }
    let Options { slots, cache_bytes, host_cache_bytes, .. } = *options;
    let capacity = slots + options.queue;
    let about = describe(&served);
    let mut metrics = Metrics::new(about.called(None), served.context);
    metrics.tell_cache(cache_config(&served, options));
    let metrics = Arc::new(metrics);
    let Served { mut engine, reload, mode, tokenizer, template, sampling, context, load_s, .. } =
        served;
    let ends = tokenizer.ends().to_vec();
    let limits = Limits { sampling, vocab: about.vocab, context, capacity, ends };
    let tokenizer = Arc::new(tokenizer);
    let abandon = Arc::new(AtomicBool::new(false));
    let health = Arc::new(Health::default());
    let (sender, jobs) = mpsc::channel();
    let handle = Handle::new(
        sender,
        capacity,
        2 * slots,
        options.timeout,
        Arc::clone(&abandon),
        Arc::clone(&metrics),
        Arc::downgrade(&health),
    );
    let listener = options.beside.as_mut().and_then(|beside| beside.listener.take());
    let scheduler = Scheduler {
        disk: options.disk_cache.as_ref().and_then(|share| Disk::start(share, &engine)),
        prefill_budget: prefill_budget(&mut engine),
        engine,
        tokenizer: Arc::clone(&tokenizer),
        cache: PrefixCache::new(cache_bytes, host_cache_bytes).heard_by(listener.clone()),
        listener,
        metrics: Arc::clone(&metrics),
        abandon,
        slots,
        context,
        mode,
        load_s,
        reload,
        rebuilt: None,
        cache_bytes,
        host_cache_bytes,
        health,
        lost: None,
    };
    let (tell, lost) = oneshot::channel();
    let thread = std::thread::Builder::new().name("engine".to_owned()).stack_size(ENGINE_STACK);
    let thread = thread.spawn(move || {
        if let Err(reason) = scheduler.run(&jobs) {
            let _ = tell.send(reason);
        }
    })?;
    let source = template.as_ref().ok().and_then(ChatTemplate::source).unwrap_or_default();
    let bytes = options.store_bytes;
    let shared = Shared {
        handle,
        about,
        weights: ollama::About::new(served.facts, source),
        openapi: OnceLock::new(),
        tokenizer,
        template,
        grammars: OnceLock::new(),
        limits,
        keys: options.keys.take(),
        metrics,
        store: (bytes > 0).then(|| Arc::new(responses::Store::new(bytes))),
    };
    Ok((Arc::new(shared), EngineThread { thread, lost }))
}

/// What of a prompt is read beside running answers.
fn prefill_budget(engine: &mut Engine) -> PrefillBudget {
    let on_device = engine.backend().has_own_memory();
    PrefillBudget::new(engine.model().options().max_rows, on_device)
}

/// What is told of the model.
fn describe(served: &Served) -> About {
    let config = served.engine.model().config();
    About {
        names: served.names.clone(),
        created: unix_time(),
        context: served.context,
        trained_context: config.context_length,
        parameters: served.facts.parameters,
        vocab: config.vocab,
        hidden: config.hidden,
        can: Abilities::of(served.template.as_ref().ok()),
    }
}

/// How states are kept.
fn cache_config(served: &Served, options: &Options) -> CacheConfig {
    let Options { slots, cache_bytes, host_cache_bytes, .. } = *options;
    CacheConfig {
        block_size: PAGE_TOKENS as u64,
        num_gpu_blocks: (slots * served.context.div_ceil(PAGE_TOKENS)) as u64,
        cache_dtype: format!("{:?}", served.engine.model().options().kv).to_lowercase(),
        enable_prefix_caching: (cache_bytes + host_cache_bytes > 0).to_string(),
        prefix_cache_bytes: cache_bytes as u64,
        prefix_cache_host_bytes: host_cache_bytes as u64,
        slots: slots as u64,
    }
}
