//! An OpenAI-compatible HTTP server: requests become jobs, a thread for each model that is loaded
//! runs them on its engine, tokens come back as text. Knows no tensors.
//!
//! A request's life: `connections` takes it in, `router` checks its key and reads its body for the
//! model that it names (`models`), `chat` (for `anthropic` and `responses` too) or `completions`
//! makes a job of it, held to a `shape` where one is asked for, `handle` lets it in and `residents`
//! has its model loaded, `scheduler` gives it a slot, reads its prompt (`answer`, `prefix`) and
//! writes its answer round by round, `output` takes the text apart, `sse` sends it.
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
mod batches;
mod beside;
mod budget;
mod chat;
mod completions;
mod connections;
mod constraint;
mod disk;
mod error;
mod failure;
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
mod loads;
mod log;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod ollama;
mod openapi;
mod otlp;
mod output;
mod page;
mod parts;
mod prefill;
mod prefix;
mod prompt;
mod protobuf;
mod reader;
mod reading;
mod rebuild;
mod residents;
mod responses;
mod room;
mod router;
mod routes;
mod scheduler;
mod settings;
mod shape;
mod shelf;
mod shorten;
mod sse;
mod start;
mod structured;
mod thought;
mod tls;
mod tokens;
mod totals;

pub use axum::http::HeaderValue;
pub use beside::{Beside, Change, Door, Ended, Piece, Serve, Tier, Told};
pub use disk::DiskShare;
pub use engine::sampling::Likelihood;
pub use error::ApiError;
pub use keys::{KeyError, Keys};
pub use log::log_panics;
pub use ollama::Facts;
pub use otlp::{Collector, CollectorError};
pub use reader::Reader;
pub use rebuild::Load;
pub use scheduler::MAX_SLOTS;
pub use shorten::{LoadScorer, Prefill};
pub use tls::{Tls, TlsError};

use engine::Engine;
use engine::sampling::Sampling;
use start::Engines;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use text::{ChatTemplate, Tokenizer};
use thiserror::Error;
use tokio::net::TcpListener;

/// A model that is served.
pub struct Served {
    /// For people and for `/v1/models`: names that the model is asked for by, its own first.
    pub names: Vec<String>,
    /// Runs on a thread of its own from now on, where it is loaded already.
    pub engine: Option<Engine>,
    /// Loads the engine when there is none: on demand, and when its device was lost.
    pub load: Load,
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
    /// Tokens that the model was trained to read.
    pub trained_context: usize,
    /// Tokens that there are.
    pub vocab: usize,
    /// Numbers of a row.
    pub hidden: usize,
    /// The type of the key/value cache, such as `f16`.
    pub kv: String,
    /// Seconds it took to load, where it is.
    pub load_s: f64,
    /// What is told of the weights.
    pub facts: Facts,
}

/// How it is served.
#[derive(Debug)]
pub struct Options {
    /// Models that are loaded at once; the others are when they are asked for.
    pub models_loaded: usize,
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
    /// Where states outlive the process, of an engine that is identified; nowhere unless given.
    pub disk_cache: Option<DiskShare>,
    /// How long prompts are shortened, of the first model; they are read whole unless given.
    pub prefill: Option<Prefill>,
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
    /// Who asks by another way than HTTP.
    pub beside: Option<Beside>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            models_loaded: 1,
            slots: 4,
            queue: 64,
            keys: None,
            cache_bytes: 1 << 30,
            host_cache_bytes: 0,
            disk_cache: None,
            prefill: None,
            store_bytes: 0,
            timeout: None,
            drain: Duration::from_secs(30),
            tls: None,
            collector: None,
            cors: Vec::new(),
            beside: None,
        }
    }
}

/// After an answer's end its connection has this long to take it.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Why serving ended before it was told to.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is no engine any more. Another process may have more luck with the device.
    #[error("{0}")]
    DeviceLost(String),
}

/// Serves until `stop` is ready, then lets answers under way finish. Of several models a request
/// names the one that it wants, and takes the first where it names none; a single one answers to
/// any name.
pub async fn serve(
    listener: TcpListener,
    served: Vec<Served>,
    mut options: Options,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    let (models, Engines { residents, mut lost }) = start::start(served, &mut options)?;
    let about = &models.first()?.about;
    let Options { slots, queue, .. } = options;
    tracing::info!(%address, model = about.called(None), context = about.context, slots, queue, "listening");
    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let (traces, sent) = options.collector.map(otlp::Traces::start).transpose()?.unzip();
    let log = log::Log { metrics: Arc::clone(&models.first()?.metrics), traces };
    let app = router::router(Arc::clone(&models), log, &options.cors, address.ip().is_loopback());
    let ended = async move { closed.await.unwrap_or_default() };
    let server = tokio::spawn(connections::serve(listener, options.tls, app, ended));
    let door = Door::new(Arc::clone(models.first()?), slots, models.all.len() > 1);
    let beside = options.beside.map(|beside| tokio::spawn((beside.serve)(door)));
    let mut reason = tokio::select! {
        () = stop => None,
        Some(reason) = lost.recv() => Some(reason),
    };
    models.drain(options.drain).await;
    let _ = close.send(());
    let both = async {
        let served = server.await;
        if let Some(beside) = beside {
            let _ = beside.await;
        }
        served
    };
    let finished = tokio::time::timeout(CLOSE_GRACE, both).await;
    drop(models);
    match finished {
        Ok(Ok(())) => {
            // With the last connection the last sender is gone, and engines' threads end.
            let _ = residents.await;
            if let Some(sent) = sent {
                let sent = tokio::task::spawn_blocking(move || sent.join());
                let _ = tokio::time::timeout(CLOSE_GRACE, sent).await;
            }
        }
        Ok(Err(error)) => return Err(io::Error::other(error).into()),
        // Somebody holds a connection open without reading; the process ends without them.
        Err(_) => {}
    }
    // It may have been lost while answers under way went on.
    reason = reason.or_else(|| lost.try_recv().ok());
    reason.map_or(Ok(()), |reason| Err(ServeError::DeviceLost(reason)))
}
