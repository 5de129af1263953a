//! An OpenAI-compatible HTTP server: requests become jobs, one thread runs them on one engine,
//! tokens come back as text. Knows no tensors.
//!
//! A request's life: `connections` takes it in, `router` checks its key and reads its body, `chat`
//! (for `anthropic` and `responses` too) or `completions` makes a job of it, held to a `shape`
//! where one is asked for, `handle` lets it in, `scheduler` gives it a slot, reads its prompt
//! (`answer`, `prefix`) and writes its answer round by round, `speech` takes the text apart, `sse`
//! sends it.
//!
//! ```
//! let keys = server::Keys::parse("a-key\n")?;
//! let options = server::Options { slots: 2, keys: Some(keys), ..server::Options::default() };
//! assert_eq!(options.queue, 64);
//! # Ok::<(), server::KeyError>(())
//! ```
#![forbid(unsafe_code)]

mod aliases;
mod answer;
mod anthropic;
mod arguments;
mod budget;
mod chat;
mod chunk;
mod completions;
mod connections;
mod constraint;
mod error;
mod fields;
mod fold;
mod framing;
mod guard;
mod handle;
mod hosts;
mod job;
mod keys;
pub mod known;
mod legacy;
mod log;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod otlp;
mod page;
mod parts;
mod prefix;
mod prompt;
mod protobuf;
mod reader;
mod responses;
mod room;
mod router;
mod routes;
mod scheduler;
mod settings;
mod shape;
mod speech;
mod sse;
mod structured;
mod thought;
mod tls;
mod tokens;
mod totals;
mod turns;

pub use axum::http::HeaderValue;
pub use error::ApiError;
pub use keys::{KeyError, Keys};
pub use log::log_panics;
pub use ollama::Facts;
pub use otlp::{Collector, CollectorError};
pub use reader::Reader;
pub use scheduler::MAX_SLOTS;
pub use tls::{Tls, TlsError};

use engine::sampling::Sampling;
use engine::{Engine, PAGE_TOKENS};
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;
use text::{ChatTemplate, Tokenizer};
use tokio::net::TcpListener;

/// What is served.
pub struct Served {
    /// For people and for `/v1/models`: names that the model is asked for by, its own first.
    pub names: Vec<String>,
    /// Runs on a thread of its own from now on.
    pub engine: Engine,
    /// Name of the way tokens are proposed.
    pub mode: &'static str,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to text, or why there is no template; then only `/v1/completions` works.
    pub template: Result<ChatTemplate, String>,
    /// What holds where a request does not say.
    pub sampling: Sampling,
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// Seconds it took to load.
    pub load_s: f64,
    /// What is told of the weights.
    pub facts: Facts,
}

/// How it is served.
#[derive(Debug)]
pub struct Options {
    /// Answers under way at once, 1 to [`MAX_SLOTS`].
    pub slots: usize,
    /// Answers that may wait for a slot.
    pub queue: usize,
    /// Who may ask; anybody where there is none.
    pub keys: Option<Keys>,
    /// Bytes of state kept for prompts to come where passes read it.
    pub cache_bytes: usize,
    /// Bytes of the host's memory for states that are used less; none unless given.
    pub host_cache_bytes: usize,
    /// Bytes of responses kept for requests that go on from them; none unless given.
    pub store_bytes: usize,
    /// The longest a request may take.
    pub timeout: Option<Duration>,
    /// How long answers under way may go on when the server is told to end.
    pub drain: Duration,
    /// What connections are encrypted with; nothing where there is none.
    pub tls: Option<Tls>,
    /// Where traces of requests are sent.
    pub collector: Option<Collector>,
    /// Origins of pages elsewhere that may ask; `*` for any.
    pub cors: Vec<HeaderValue>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 4,
            queue: 64,
            keys: None,
            cache_bytes: 1 << 30,
            host_cache_bytes: 0,
            store_bytes: 0,
            timeout: None,
            drain: Duration::from_secs(30),
            tls: None,
            collector: None,
            cors: Vec::new(),
        }
    }
}

/// After an answer's end its connection has this long to take it.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Bytes of the engine's stack: it follows grammars that clients send.
const ENGINE_STACK: usize = 64 << 20;

/// Serves until `stop` is ready, then lets answers under way finish.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    options: Options,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let Served { names, engine, mode, tokenizer, template, sampling, context, load_s, facts } =
        served;
    let Options { slots, queue, keys, cache_bytes, host_cache_bytes, timeout, drain, .. } = options;
    let store =
        (options.store_bytes > 0).then(|| Arc::new(responses::Store::new(options.store_bytes)));
    let address = listener.local_addr()?;
    let slots = slots.clamp(1, MAX_SLOTS);
    let capacity = slots + queue;
    let config = engine.model().config();
    let ends = tokenizer.ends().to_vec();
    let limits = settings::Limits { sampling, vocab: config.vocab, context, capacity, ends };
    let about = models::About {
        names,
        created: router::unix_time(),
        context,
        trained_context: config.context_length,
        parameters: facts.parameters,
        vocab: config.vocab,
        hidden: config.hidden,
        can: models::Abilities::of(template.as_ref().ok()),
    };
    let mut metrics = metrics::Metrics::new(about.called(None), context);
    metrics.tell_cache(metrics::CacheConfig {
        block_size: PAGE_TOKENS as u64,
        num_gpu_blocks: (slots * context.div_ceil(PAGE_TOKENS)) as u64,
        cache_dtype: format!("{:?}", engine.model().options().kv).to_lowercase(),
        enable_prefix_caching: (cache_bytes + host_cache_bytes > 0).to_string(),
        prefix_cache_bytes: cache_bytes as u64,
        prefix_cache_host_bytes: host_cache_bytes as u64,
        slots: slots as u64,
    });
    let (tokenizer, metrics) = (Arc::new(tokenizer), Arc::new(metrics));
    let abandon = Arc::new(AtomicBool::new(false));
    let (sender, jobs) = mpsc::channel();
    let largest_chunk = engine.model().options().max_rows;
    let scheduler = scheduler::Scheduler {
        engine,
        tokenizer: Arc::clone(&tokenizer),
        cache: prefix::PrefixCache::new(cache_bytes, host_cache_bytes),
        metrics: Arc::clone(&metrics),
        chunk: chunk::Chunk::new(largest_chunk),
        abandon: Arc::clone(&abandon),
        slots,
        context,
        mode,
        load_s,
    };
    let thread = std::thread::Builder::new().name("engine".to_owned()).stack_size(ENGINE_STACK);
    let alive = Arc::new(());
    let life = Arc::downgrade(&alive);
    let thread = thread.spawn(move || {
        scheduler.run(&jobs);
        drop(alive);
    })?;
    let handle = handle::Handle::new(
        sender,
        capacity,
        2 * slots,
        timeout,
        abandon,
        Arc::clone(&metrics),
        life,
    );
    let grammars = std::sync::OnceLock::new();
    tracing::info!(%address, model = about.called(None), context, slots, queue, mode, "listening");
    let source = template.as_ref().ok().and_then(ChatTemplate::source).unwrap_or_default();
    let weights = ollama::About::new(facts, source);
    let shared = router::Shared {
        handle,
        about,
        weights,
        openapi: std::sync::OnceLock::new(),
        tokenizer,
        template,
        grammars,
        limits,
        keys,
        metrics,
        store,
    };
    let shared = Arc::new(shared);

    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let (traces, sent) = options.collector.map(otlp::Traces::start).transpose()?.unzip();
    let log = log::Log { metrics: Arc::clone(&shared.metrics), traces };
    let app = router::router(Arc::clone(&shared), log, &options.cors, address.ip().is_loopback());
    let ended = async move { closed.await.unwrap_or_default() };
    let server = tokio::spawn(connections::serve(listener, options.tls, app, ended));
    stop.await;
    shared.handle.drain(drain).await;
    let _ = close.send(());
    let finished = tokio::time::timeout(LAST_WORDS, server).await;
    drop(shared);
    match finished {
        Ok(Ok(())) => {
            // With the last connection the last sender is gone, and the thread ends.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            if let Some(sent) = sent {
                let sent = tokio::task::spawn_blocking(move || sent.join());
                let _ = tokio::time::timeout(LAST_WORDS, sent).await;
            }
            Ok(())
        }
        Ok(Err(error)) => Err(io::Error::other(error)),
        // Somebody holds a connection open without reading; the process ends without them.
        Err(_) => Ok(()),
    }
}
