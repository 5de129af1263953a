//! The log: one line a request, when all of it is over. It tells who asked for what, what it took
//! and how it ended, never what was said: of errors it has the kind and the field, and the cause
//! only where the fault is ours.
//!
//! A request has a [`Record`], which everybody who works on it holds: the response's body, and the
//! jobs on the engine's thread. Whoever lets go of it last writes the line.

use crate::error::ApiError;
use crate::job::{Finish, Job, Outcome};
use crate::known;
use crate::metrics::Metrics;
use crate::otlp::Traces;
use crate::settings::random;
use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

/// Under which a client may name its request, and hears the name that the log has.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The same where Anthropic's clients look for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Says that long prompts of the request were to be shortened, and what was kept of that which may
/// be dropped; the answer's `forerun.prefill` says what became of it.
const PREFILL_KEEP: HeaderName = HeaderName::from_static("x-forerun-prefill-keep");

/// Characters of a client's name for its request, or of anything else that a client can make up, at
/// most.
const MAX_NAME: usize = 128;

/// Paths that machines ask for all day; their lines are of the level `debug`.
const PROBES: [&str; 5] = ["/health", "/ready", "/ping", "/metrics", "/v1/loads"];

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

tokio::task_local! {
    /// The request that the task works on, so that handlers need not pass it along.
    static CURRENT: Arc<Record>;
}

/// The request that this task works on, if any.
pub(crate) fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Who hears of requests beside the log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Option<Traces>,
}

/// A request, as the log tells it.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) method: Method,
    /// The path as the router knows it, or as it was asked for where nothing is served.
    pub(crate) route: String,
    pub(crate) client: Option<SocketAddr>,
    /// `traceparent` of the request.
    pub(crate) parent: Option<String>,
    pub(crate) arrived: SystemTime,
    began: Instant,
    log: Log,
    /// Of the model that it names, where there are several.
    metrics: OnceLock<Arc<Metrics>>,
    told: Mutex<Told>,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) status: Option<u16>,
    /// The first thing that went wrong.
    pub(crate) failure: Option<Failure>,
    /// Whether an answer was cut by its room.
    pub(crate) cut: bool,
    /// How long it took until all of the response was sent; nothing where the client did not wait
    /// for that.
    pub(crate) sent: Option<Duration>,
    /// What is kept of its prompts, where that is not all.
    pub(crate) prefill_keep: Option<f32>,
    /// Names of the fields that nobody read.
    pub(crate) ignored: Option<String>,
    pub(crate) work: Option<Work>,
}

/// An error, without the values that it quotes.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    pub(crate) field: Option<String>,
    pub(crate) cause: Option<String>,
}

/// What the engine did: counts are summed over a request's answers, times are the longest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// When it was asked to, after the request's beginning.
    pub(crate) submitted: Duration,
    pub(crate) prompt: usize,
    /// Of the prompts' tokens, those that were left out.
    dropped: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    rounds: usize,
    accepted: usize,
    pub(crate) queue_s: f64,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
}

impl Work {
    /// Tokens of a round, on average.
    pub(crate) fn accept_length(&self) -> Option<f64> {
        (self.rounds > 0).then(|| round_to(self.accepted as f64 / self.rounds as f64, 100.0))
    }
}

impl Record {
    fn of(request: &Request, log: Log) -> Self {
        let header =
            |name: &HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
        let id = header(&REQUEST_ID).filter(|id| is_sane(id)).map(str::to_owned);
        let route = match request.extensions().get::<MatchedPath>() {
            Some(path) => path.as_str().to_owned(),
            None => request.uri().path().chars().take(MAX_NAME).collect(),
        };
        let parent = header(&HeaderName::from_static("traceparent"));
        Self {
            id: id.unwrap_or_else(|| format!("{:016x}{:016x}", random(), random())),
            method: request.method().clone(),
            route,
            client: request.extensions().get::<Peer>().map(|peer| peer.0),
            parent: parent.filter(|parent| is_sane(parent)).map(str::to_owned),
            arrived: SystemTime::now(),
            began: Instant::now(),
            log,
            metrics: OnceLock::new(),
            told: Mutex::default(),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request is for the model that counts there.
    pub(crate) fn choose(&self, metrics: &Arc<Metrics>) {
        let _ = self.metrics.set(Arc::clone(metrics));
    }

    /// Some prompt of the request has so many tokens.
    pub(crate) fn add_prompt(&self, tokens: usize) {
        let submitted = self.began.elapsed();
        let mut told = self.told();
        told.work.get_or_insert(Work { submitted, ..Work::default() }).prompt += tokens;
    }

    /// Some of its prompts are to be shortened.
    pub(crate) fn tell_shares(&self, jobs: &[Job]) {
        let shares = jobs.iter().filter_map(|job| Some(job.wish?.share));
        self.told().prefill_keep = shares.reduce(f32::min);
    }

    /// What an answer took, be it whole or not; `is_first` of its prompt's answers.
    pub(crate) fn add_answer(&self, outcome: &Outcome, is_first: bool) {
        let mut told = self.told();
        let work = told.work.get_or_insert_default();
        let (spec, timing) = (&outcome.report.spec, &outcome.report.timing);
        work.cached += if is_first { outcome.cached_tokens } else { 0 };
        let prefill = outcome.report.prefill.as_ref().filter(|_| is_first);
        work.dropped += prefill.map_or(0, |told| told.prompt_tokens - told.kept_tokens);
        work.completion += outcome.completion_tokens;
        work.rounds += spec.rounds;
        work.accepted += spec.accept_lengths.iter().sum::<usize>();
        work.queue_s = work.queue_s.max(timing.queue_s);
        work.prefill_s = work.prefill_s.max(timing.prefill_s);
        work.decode_s = work.decode_s.max(timing.decode_s);
        told.cut |= outcome.finish == Finish::Length;
    }

    /// The request fails, which is counted once.
    pub(crate) fn fail(&self, error: &ApiError) {
        let mut told = self.told();
        if told.failure.is_some() {
            return;
        }
        let kind = error.kind();
        self.metrics.get().unwrap_or(&self.log.metrics).add_error(kind);
        let cause = matches!(error, ApiError::Internal(_)).then(|| error.to_string());
        let field = error.field_name().map(bounded);
        told.failure = Some(Failure { kind, field, cause });
    }

    fn respond(&self, response: &Response) {
        if let Some(error) = response.extensions().get::<ApiError>() {
            self.fail(error);
        }
        let ignored = response.headers().get(known::HEADER).and_then(|names| names.to_str().ok());
        let mut told = self.told();
        told.status = Some(response.status().as_u16());
        told.ignored = ignored.map(|names| names.chars().take(MAX_NAME).collect());
    }

    fn is_probe(&self) -> bool {
        PROBES.contains(&self.route.as_str())
    }

    fn finish(&self) {
        self.told().sent.get_or_insert_with(|| self.began.elapsed());
    }
}

impl Told {
    /// In a word: `done`, `length`, `cancelled`, or the kind of error.
    pub(crate) fn outcome(&self) -> &'static str {
        match (&self.failure, self.sent) {
            (Some(failure), _) => failure.kind,
            (None, None) => "cancelled",
            (None, Some(_)) if self.cut => "length",
            (None, Some(_)) => "done",
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let told = std::mem::take(self.told.get_mut().unwrap_or_else(PoisonError::into_inner));
        let whole = told.sent.unwrap_or_else(|| self.began.elapsed());
        if let Some(traces) = self.log.traces.as_ref().filter(|_| !self.is_probe()) {
            traces.add(self, &told, whole);
        }
        let work = told.work.unwrap_or_default();
        let of_work = |count: usize| told.work.map(|_| count as u64);
        let ms = |seconds: f64| told.work.map(|_| round_to(seconds * 1e3, 10.0));
        let failure = told.failure.as_ref();
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    id = %self.id,
                    client = self.client.map(tracing::field::display),
                    method = %self.method,
                    route = %self.route,
                    model = self.metrics.get().map(|metrics| metrics.model.as_str()),
                    status = told.status,
                    outcome = %told.outcome(),
                    field = failure.and_then(|failure| failure.field.as_deref()),
                    cause = failure.and_then(|failure| failure.cause.as_deref()),
                    ignored = told.ignored.as_deref(),
                    prompt_tokens = of_work(work.prompt),
                    dropped_tokens = (work.dropped > 0).then_some(work.dropped as u64),
                    cached_tokens = of_work(work.cached),
                    completion_tokens = of_work(work.completion),
                    accept_length = work.accept_length(),
                    queue_ms = ms(work.queue_s),
                    prefill_ms = ms(work.prefill_s),
                    decode_ms = ms(work.decode_s),
                    ms = round_to(whole.as_secs_f64() * 1e3, 10.0),
                    "request"
                )
            };
        }
        match failure {
            Some(failure) if failure.kind == "internal" => line!(error),
            None if self.is_probe() => line!(debug),
            _ => line!(info),
        }
    }
}

/// Follows a request from its head to the last byte of its response.
pub(crate) async fn follow(State(log): State<Log>, request: Request, next: Next) -> Response {
    let record = Arc::new(Record::of(&request, log));
    let is_head = request.method() == Method::HEAD;
    let response = CURRENT.scope(Arc::clone(&record), next.run(request)).await;
    record.respond(&response);
    let (mut head, body) = response.into_parts();
    name_response(&mut head.headers, &record);
    // Nobody reads a body that is not sent.
    if is_head || body.is_end_stream() {
        record.finish();
    }
    Response::from_parts(head, Body::new(Followed { body, record }))
}

fn name_response(headers: &mut HeaderMap, record: &Record) {
    let Ok(id) = HeaderValue::from_str(&record.id) else { return };
    if record.route.starts_with("/v1/messages") {
        headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
    }
    headers.insert(REQUEST_ID, id);
    let keep = record.told().prefill_keep.map(|keep| HeaderValue::from_str(&keep.to_string()));
    if let Some(Ok(keep)) = keep {
        headers.insert(PREFILL_KEEP, keep);
    }
}

/// A body that tells when all of it was taken.
struct Followed {
    body: Body,
    record: Arc<Record>,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.body).poll_frame(cx);
        if matches!(poll, Poll::Ready(None)) || this.body.is_end_stream() {
            this.record.finish();
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether a name that a client made up is fit to be repeated.
fn is_sane(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain)
}

/// A field's path as far as it is made of plain names: a key that a client made up may be anything.
fn bounded(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.[]-".contains(c);
    match path.char_indices().find(|(at, c)| *at >= MAX_NAME || !is_plain(*c)) {
        None => path.to_owned(),
        Some((end, _)) => {
            let whole = path[..end].rfind(['.', '[']).unwrap_or(0);
            path[..whole].to_owned()
        }
    }
}

fn round_to(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

/// Panics are logged by their place. A message that was put together may quote what was said, so
/// only one that the program has as it stands is repeated.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload().downcast_ref::<&'static str>().copied();
        let thread = std::thread::current();
        let place = panic.location().map(tracing::field::display);
        tracing::error!(thread = thread.name(), place, cause = message, "panicked");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_repeated() {
        for name in ["a", "req_01:2.3-4", &"x".repeat(128)] {
            assert!(is_sane(name), "{name}");
        }
        for name in ["", "a b", "a\"b", "a\u{1b}[31m", "é", &"x".repeat(129)] {
            assert!(!is_sane(name), "{name}");
        }
        assert_eq!(bounded("messages[0].tool-calls"), "messages[0].tool-calls");
        assert_eq!(bounded("a[0].logit_bias.my secret"), "a[0].logit_bias");
        assert_eq!(bounded(&"x".repeat(200)), "");
    }
}
