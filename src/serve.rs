//! `forerun serve`: models behind OpenAI's, Anthropic's and Ollama's APIs.

use crate::facts::facts;
use crate::logging::LogFlags;
use crate::notify::notify;
use anyhow::{Context, Result, anyhow, bail};
use compute::{Faults, Faulty};
use engine::Engine;
use launch::{ModelFlags, OpenScorer, PrefillFlags, Prepared};
use server::{DiskShare, HeaderValue, Keys, MAX_SLOTS, Options, Prefill, Served, Tls};
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use store::{Folder, Identity, Name};
use tokio::net::TcpSocket;

/// Threads that serve connections; the model has its own.
const CONNECTION_THREADS: usize = 2;

/// Connections that may wait to be taken in; with fewer, a crowd's have to knock again a second
/// later.
const LISTEN_BACKLOG: u32 = 4096;

/// MiB for states of earlier prompts that there are at least, unless said: where passes read them,
/// and in the host's memory for those that a device has no room for.
const LEAST_CACHE: usize = 1024;
const LEAST_HOST_CACHE: usize = 4096;

/// MiB of earlier answers to look into, some 100,000 tokens.
const DEFAULT_LOOKUP_MEMORY: usize = 4;

/// What `--help` says last.
pub(crate) const EXIT_CODES: &str = "Exit codes: 0 when told to end, 1 when something failed, \
    75 when the device was lost and could not be used again: start the server anew";

/// Arguments of `forerun serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8000)]
    port: u16,
    /// Keys that clients must send, one a line; needed to listen beyond this machine
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Listen beyond this machine without keys
    #[arg(long, conflicts_with = "api_key_file")]
    no_auth: bool,
    /// Certificate to encrypt connections with, followed by those that vouch for it (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Models that are loaded at once, of several; who asks for another waits until the one that
    /// was used least recently has finished its answers and gone
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    models_loaded: u16,
    /// Answers written at once, 1 to 256, and no more than a pass has rows: 64 on a processor
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=MAX_SLOTS as i64))]
    slots: u16,
    /// Answers that may wait for a slot
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(0..=4096))]
    queue: u16,
    /// Memory for the state of all texts, earlier prompts included, in MiB [default: what is free
    /// on a GPU, else no limit]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    state_memory: Option<u64>,
    /// Memory for the states of earlier prompts, in MiB; 0 for none [default: on a GPU three
    /// quarters of the memory for states, 1024 beside a second model or a scorer; else what a text
    /// of the whole context takes, a quarter of what is free at most and 1024 at least]
    #[arg(long, value_name = "MIB")]
    prefix_cache: Option<usize>,
    /// Host memory for states that the former has no room for, in MiB; 0 for none [default: on a
    /// GPU a quarter of what is free, 4096 at least, else 0]
    #[arg(long, value_name = "MIB")]
    prefix_cache_host: Option<usize>,
    /// Folder where states of earlier prompts outlive the server, and GiB of disk they may take:
    /// `DIR,GIB`; a restarted server reads them instead of the prompts. Whoever can read the folder
    /// can read prompts
    #[arg(long, value_name = "DIR,GIB", value_parser = disk_share)]
    prefix_cache_disk: Option<DiskShare>,
    /// Memory for earlier answers that lookup finds repetitions in, in MiB; 0 for none [default: 4,
    /// and 0 where `--api-key-file` tells clients apart: how fast an answer is written would tell
    /// what others were answered]
    #[arg(long, value_name = "MIB")]
    lookup_memory: Option<usize>,
    /// Memory for responses that later requests may go on from (`store`, `previous_response_id`),
    /// in MiB; 0 for none
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    store_responses: usize,
    /// Seconds a request may take; no limit unless given
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Seconds that answers may go on when the server is told to end
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain: u64,
    /// Origin of web pages that may use the server, such as `https://chat.example`; `*` for any;
    /// may be given again
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<HeaderValue>,
    /// Name that the model is served under, in place of its file's; may be given again for more of
    /// them, or with several models one for each
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// For tests of those who watch the server: passes after which the device is lost, of the first
    /// engine, of the one that is built anew, and so on
    #[arg(long, value_name = "N,...", value_delimiter = ',', hide = true)]
    lose_device: Vec<usize>,
    #[cfg(feature = "gateway")]
    #[command(flatten)]
    gateway: crate::gateways::GatewayFlags,
    #[command(flatten)]
    prefill: PrefillFlags,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    model: ModelFlags,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let keys = args.api_key_file.as_deref().map(read_keys).transpose()?;
    if keys.is_none() && !args.host.is_loopback() && !args.no_auth {
        bail!(
            "`--host {}` is open to other machines: give `--api-key-file FILE`, or `--no-auth` to let anybody in",
            args.host
        );
    }
    #[cfg(feature = "gateway")]
    args.gateway.check(args.no_auth)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::read(certificate, key)?),
        _ => None,
    };
    // A port that somebody listens on is said before anything is loaded.
    let unheard = |error| unheard(args, &error);
    let socket = bind(args.host, args.port).map_err(unheard)?;
    let collector = args.log.collector()?;
    args.log.start()?;
    let remembered = if keys.is_none() { DEFAULT_LOOKUP_MEMORY } else { 0 };
    let remembered = args.lookup_memory.unwrap_or(remembered).saturating_mul(1 << 20);
    let mut flags = args.model.clone();
    if let Some(share) = &args.prefix_cache_disk {
        // A folder that cannot be used is said before anything is loaded.
        let nobody = Identity(Name([0; 32]));
        Folder::open(&share.folder, share.bytes, nobody).context("`--prefix-cache-disk`")?;
        flags.identified = true;
    }
    let (served, prefill) = models(args, &flags, remembered)?;
    let [cache_bytes, host_cache_bytes] = cache_shares(args, &served, prefill.is_some());
    #[cfg_attr(not(feature = "gateway"), allow(unused_mut))]
    let mut options = Options {
        models_loaded: usize::from(args.models_loaded),
        slots: usize::from(args.slots),
        queue: usize::from(args.queue),
        keys,
        cache_bytes,
        host_cache_bytes,
        disk_cache: args.prefix_cache_disk.clone(),
        prefill,
        store_bytes: args.store_responses.saturating_mul(1 << 20),
        timeout: args.timeout.map(Duration::from_secs),
        drain: Duration::from_secs(args.drain),
        tls,
        collector,
        cors: args.cors.clone(),
        beside: None,
    };
    allow_many_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONNECTION_THREADS)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let listener = socket.listen(LISTEN_BACKLOG).map_err(unheard)?;
        #[cfg(feature = "gateway")]
        {
            options.beside = args.gateway.open().await?;
        }
        let told_to_end = told_to_end()?;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        // Where nobody reads it, it is served all the same.
        let _ = writeln!(std::io::stdout(), "listening on {scheme}://{}", listener.local_addr()?);
        // It is waited for when connections are answered.
        let stop = async {
            notify("READY=1");
            told_to_end.await;
            notify("STOPPING=1");
        };
        Ok(server::serve(listener, served, options, stop).await?)
    });
    runtime.shutdown_background();
    tracing::info!("stopped");
    result
}

/// All models, the first of them loaded; the others' files are known to be good.
fn models(
    args: &Args,
    flags: &ModelFlags,
    remembered: usize,
) -> Result<(Vec<Served>, Option<Prefill>)> {
    let models = flags.each()?;
    let names = names(&args.served_model_name, models.len())?;
    let mut served = Vec::with_capacity(models.len());
    for (model, names) in models.iter().zip(names) {
        let losses = if served.is_empty() { args.lose_device.clone() } else { Vec::new() };
        served.push(prepare(model, names, args.state_memory, remembered, losses)?);
    }
    refuse_namesakes(&served)?;
    let scorer = args.prefill.open(&flags.device, &served[0].tokenizer)?;
    if scorer.is_some() && served.len() > 1 {
        bail!("`--prefill-scorer` is for a server of one model, and there are {}", served.len());
    }
    let start = Instant::now();
    served[0].engine = Some((served[0].load)().map_err(anyhow::Error::msg)?);
    served[0].load_s = start.elapsed().as_secs_f64();
    Ok((served, scorer.map(shortening)))
}

/// Bytes for states of earlier prompts, where passes read them and in the host's memory beside that.
/// A share that cannot hold a conversation keeps nothing of it, and one of 64,000 tokens has 4 GB of
/// a 27B's keys and values. What is kept goes before anybody waits, so unless told otherwise it may
/// have three quarters of a device that has one model at a time; the rest lets texts begin without
/// making room first. Others of a device, a second model and a scorer, could not ask it to go.
fn cache_shares(args: &Args, served: &[Served], has_scorer: bool) -> [usize; 2] {
    let quarter = |least: usize| {
        let free = launch::free_host_memory().unwrap_or(0);
        (free / 4 / usize::from(args.models_loaded)).clamp(least << 20, usize::MAX >> 1)
    };
    let on_device = served.iter().any(|model| model.facts.device_bytes > 0);
    let of_device = match &served[0].engine {
        _ if on_device && (args.models_loaded > 1 || has_scorer) => LEAST_CACHE << 20,
        Some(engine) if on_device => engine.state_limit() / 4 * 3,
        // More than one text can have would be memory that is always new, which a processor's passes
        // wait for: of a tiny model that took longer than reading prompts.
        Some(engine) => {
            engine.state_bytes(served[0].context).clamp(LEAST_CACHE << 20, quarter(LEAST_CACHE))
        }
        None => LEAST_CACHE << 20,
    };
    let of_host = if on_device { quarter(LEAST_HOST_CACHE) } else { 0 };
    let said = |mib: Option<usize>| mib.map(|mib| mib.saturating_mul(1 << 20).min(usize::MAX >> 1));
    [said(args.prefix_cache).unwrap_or(of_device), said(args.prefix_cache_host).unwrap_or(of_host)]
}

/// How the server shortens prompts.
fn shortening(scorer: OpenScorer) -> Prefill {
    let (name, keep, from) = (scorer.name.clone(), scorer.keep, scorer.from);
    let load = move || scorer.start().map_err(|error| format!("{error:#}"));
    Prefill { load: Box::new(load), scorer: name, keep, from }
}

/// The names of each model, where any are given: all are a single model's, of several each has one.
fn names(given: &[String], models: usize) -> Result<Vec<Vec<String>>> {
    match given.len() {
        0 => Ok(vec![Vec::new(); models]),
        _ if models == 1 => Ok(vec![given.to_vec()]),
        names if names == models => Ok(given.iter().map(|name| vec![name.clone()]).collect()),
        names => bail!(
            "there are {models} models (`--model`) and {names} names (`--served-model-name`): give \
             one for each, in the same order"
        ),
    }
}

/// A name that two models have would mean the first of them.
fn refuse_namesakes(served: &[Served]) -> Result<()> {
    let mut names: Vec<&String> = served.iter().flat_map(|model| &model.names).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => bail!(
            "two models are called `{}`: `--served-model-name` gives each a name of its own",
            pair[0]
        ),
    }
}

/// Opens a model's files. Its engine is loaded when it is wanted, with so many MiB for the state of
/// texts and bytes for earlier answers; where that is asked for, its device is lost after so many
/// passes, the next one's after as many as are said next.
fn prepare(
    model: &ModelFlags,
    names: Vec<String>,
    state_memory: Option<u64>,
    remembered: usize,
    losses: Vec<usize>,
) -> Result<Served> {
    let (mut prepared, text) = model.prepare()?;
    let weights = std::mem::take(&mut prepared.weights);
    let (config, on_device) = (prepared.config().clone(), prepared.is_on_device);
    let (name, mode, context) = (prepared.name.clone(), prepared.mode, prepared.context);
    let kv = format!("{:?}", prepared.kv()).to_lowercase();
    let loadable = Mutex::new((prepared, losses.into_iter()));
    let load = move || {
        let (prepared, losses) = &mut *loadable.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = load(prepared, state_memory, remembered, losses.next());
        engine.map_err(|error| format!("{error:#}"))
    };
    Ok(Served {
        names: if names.is_empty() { vec![name] } else { names },
        engine: None,
        load: Arc::new(load),
        mode: mode.name(),
        tokenizer: text.tokenizer,
        template: text.template,
        sampling: text.sampling,
        context,
        trained_context: config.context_length,
        vocab: config.vocab,
        hidden: config.hidden,
        kv,
        load_s: 0.0,
        facts: facts(&config, weights, on_device),
    })
}

fn load(
    prepared: &Prepared,
    state_memory: Option<u64>,
    remembered: usize,
    loss: Option<usize>,
) -> Result<Engine> {
    let mut engine = match loss {
        None => prepared.start(|backend| backend)?,
        Some(passes) => {
            let faults = Faults::default();
            let engine =
                prepared.start(|backend| Box::new(Faulty::new(backend, faults.clone())))?;
            faults.lose_after(passes);
            engine
        }
    };
    if let Some(mib) = state_memory {
        engine.limit_state((mib as usize).saturating_mul(1 << 20));
    }
    engine.set_memory(remembered);
    Ok(engine)
}

/// Reads `DIR,GIB`.
fn disk_share(words: &str) -> Result<DiskShare, String> {
    let share = words.rsplit_once(',').and_then(|(folder, share)| {
        let gib: f64 = share.trim().parse().ok().filter(|gib| *gib > 0.0 && *gib < 1e9)?;
        let bytes = (gib * f64::from(1 << 30)) as u64;
        (!folder.is_empty()).then(|| DiskShare { folder: folder.into(), bytes })
    });
    share.ok_or_else(|| "a folder and GiB are expected, such as `/var/cache/forerun,50`".to_owned())
}

/// Why nobody can be heard at the address.
fn unheard(args: &Args, error: &std::io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        ErrorKind::AddrInUse => "; give another `--port`, or 0 for any that is free",
        _ => "",
    };
    anyhow!("listening on {} port {}: {error}{hint}", args.host, args.port)
}

/// A socket of that address, at which nobody listens yet.
fn bind(host: IpAddr, port: u16) -> std::io::Result<TcpSocket> {
    let socket = if host.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port whose old connections linger can be had again; elsewhere than on Unix the word means
    // something else.
    if cfg!(unix) {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(SocketAddr::new(host, port))?;
    Ok(socket)
}

fn read_keys(path: &Path) -> Result<Keys> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Keys::parse(&text).with_context(|| path.display().to_string())
}

/// Raises the number of files, and so of connections, that may be open to what the system allows;
/// where it says no, fewer connections are held.
fn allow_many_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(
            Resource::Nofile,
            rustix::process::Rlimit { current: limit.maximum, ..limit },
        );
    }
}

/// Ready when the process is asked to end: Ctrl-C or SIGTERM.
#[cfg(unix)]
fn told_to_end() -> Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Ready when the process is asked to end: Ctrl-C.
#[cfg(not(unix))]
fn told_to_end() -> Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
