//! Traces for an OpenTelemetry collector: each request is a span with its parts below it, sent in
//! batches over HTTP as the protocol's protobuf messages. They tell what the log tells. A collector
//! that is slow or gone costs spans, nothing else.

use crate::log::{Record, Told};
use crate::protobuf::Message;
use crate::settings::random;
use axum::http::Uri;
use axum::http::uri::Scheme;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Spans that wait at most, and those of a batch.
const MAX_WAITING: usize = 4096;
const MAX_BATCH: usize = 512;

/// A batch is sent this long after its first span.
const PACE: Duration = Duration::from_secs(1);

/// A collector must answer by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kinds of spans: a request that was served, and a part of it.
const SERVER: u64 = 2;
const INTERNAL: u64 = 1;

/// Where traces are sent.
#[derive(Clone, Debug)]
pub struct Collector {
    /// `host:port`.
    authority: String,
    path: String,
    /// Lines of a request's head.
    headers: String,
    service: String,
}

/// Why nothing can be sent there.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CollectorError {
    /// Another kind of address.
    #[error(
        "`{0}` is no address such as `http://127.0.0.1:4318`; of a collector beyond TLS ask one nearby"
    )]
    Address(String),
    /// Headers of another form.
    #[error("`OTEL_EXPORTER_OTLP_HEADERS` is not of the form `name=value,name=value`")]
    Headers,
}

impl Collector {
    /// A collector at a base address, with the headers and the service's name that OpenTelemetry's
    /// variables have.
    pub fn new(
        url: &str,
        headers: Option<&str>,
        service: Option<&str>,
    ) -> Result<Self, CollectorError> {
        let wrong = || CollectorError::Address(url.to_owned());
        let uri = url.parse::<Uri>().map_err(|_| wrong())?;
        let authority =
            uri.authority().filter(|_| uri.scheme() == Some(&Scheme::HTTP)).ok_or_else(wrong)?;
        let authority = match authority.port_u16() {
            Some(_) => authority.to_string(),
            None => format!("{authority}:4318"),
        };
        let base = uri.path().trim_end_matches('/');
        let path = if base.ends_with("/v1/traces") {
            base.to_owned()
        } else {
            format!("{base}/v1/traces")
        };
        let mut lines = String::new();
        for header in
            headers.unwrap_or_default().split(',').filter(|header| !header.trim().is_empty())
        {
            let (name, value) = header.split_once('=').ok_or(CollectorError::Headers)?;
            if header.contains(['\r', '\n']) {
                return Err(CollectorError::Headers);
            }
            lines += &format!("{}: {}\r\n", name.trim(), value.trim());
        }
        Ok(Self {
            authority,
            path,
            headers: lines,
            service: service.unwrap_or("forerun").to_owned(),
        })
    }

    /// Sends a message.
    fn post(&self, body: &[u8]) -> std::io::Result<()> {
        let address = self.authority.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| std::io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let Self { authority, path, headers, .. } = self;
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/x-protobuf\r\n\
             content-length: {length}\r\nconnection: close\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut status = String::new();
        BufReader::new(stream.take(4096)).read_line(&mut status)?;
        match status.split(' ').nth(1) {
            Some(code) if code.starts_with('2') => Ok(()),
            _ => Err(std::io::Error::other(format!("the collector answered `{}`", status.trim()))),
        }
    }

    /// A batch of spans as the protocol has it.
    fn request(&self, spans: &[Vec<u8>]) -> Vec<u8> {
        let mut resource = Message::default();
        resource.message(1, &text_attribute("service.name", &self.service));
        resource.message(1, &text_attribute("service.version", env!("CARGO_PKG_VERSION")));
        let mut scope = Message::default();
        scope.text(1, "forerun");
        let mut scoped = Message::default();
        scoped.message(1, &scope);
        spans.iter().for_each(|span| scoped.bytes(2, span));
        let mut of_resource = Message::default();
        of_resource.message(1, &resource);
        of_resource.message(2, &scoped);
        let mut request = Message::default();
        request.message(1, &of_resource);
        request.into_bytes()
    }
}

/// The way to the thread that sends.
#[derive(Clone, Debug)]
pub(crate) struct Traces(SyncSender<Vec<u8>>);

impl Traces {
    /// Starts to send. The thread ends when nobody can have more spans and the last ones are sent.
    pub(crate) fn start(collector: Collector) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (sender, spans) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("traces".to_owned());
        let thread = thread.spawn(move || send_all(&collector, &spans))?;
        Ok((Self(sender), thread))
    }

    /// Sends a request that is over, unless whoever began its trace does not want it.
    pub(crate) fn add(&self, record: &Record, told: &Told, whole: Duration) {
        let parent = record.parent.as_deref().and_then(Parent::parse);
        if parent.as_ref().is_some_and(|parent| !parent.is_sampled) {
            return;
        }
        let span = Span::new(parent.as_ref());
        let start = nanoseconds(record.arrived);
        let mut message =
            span.message(&format!("{} {}", record.method, record.route), SERVER, start, whole);
        attributes(record, told, &mut message);
        if let Some(failure) =
            told.failure.as_ref().filter(|_| told.status.is_none_or(|code| code >= 500))
        {
            let mut status = Message::default();
            status.text(2, failure.kind);
            status.number(3, 2);
            message.message(15, &status);
        }
        let mut spans = vec![message.into_bytes()];
        if let Some(work) = &told.work {
            let mut start = start + work.submitted.as_nanos() as u64;
            for (name, seconds) in
                [("queue", work.queue_s), ("prefill", work.prefill_s), ("decode", work.decode_s)]
            {
                let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                spans.push(span.child().message(name, INTERNAL, start, length).into_bytes());
                start += length.as_nanos() as u64;
            }
        }
        // Where too many wait, these are lost.
        spans.into_iter().for_each(|span| drop(self.0.try_send(span)));
    }
}

fn attributes(record: &Record, told: &Told, span: &mut Message) {
    let mut text = |name: &str, value: &str| span.message(9, &text_attribute(name, value));
    text("http.request.method", record.method.as_str());
    text("http.route", &record.route);
    text("forerun.request_id", &record.id);
    text("forerun.outcome", told.outcome());
    if let Some(client) = record.client {
        text("client.address", &client.ip().to_string());
    }
    if let Some(failure) = &told.failure {
        text("error.type", failure.kind);
    }
    let mut number = |name: &str, value: usize| span.message(9, &number_attribute(name, value));
    if let Some(status) = told.status {
        number("http.response.status_code", usize::from(status));
    }
    if let Some(work) = &told.work {
        number("gen_ai.usage.input_tokens", work.prompt);
        number("gen_ai.usage.output_tokens", work.completion);
        number("forerun.cached_tokens", work.cached);
        if let Some(length) = work.accept_length() {
            span.message(9, &double_attribute("forerun.accept_length", length));
        }
    }
}

/// Whose part a request is, by its `traceparent`.
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    is_sampled: bool,
}

impl Parent {
    fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let version = parts.next().filter(|version| version.len() == 2 && *version != "ff")?;
        u8::from_str_radix(version, 16).ok()?;
        let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
        let number = |text: &str, length: usize| {
            let is_hex = text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit());
            u128::from_str_radix(text, 16).ok().filter(|number| is_hex && *number > 0)
        };
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        let (trace, span) = (number(trace, 32)?.to_be_bytes(), number(span, 16)? as u64);
        Some(Self { trace, span: span.to_be_bytes(), is_sampled })
    }
}

/// Who a span is.
struct Span {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
}

impl Span {
    fn new(parent: Option<&Parent>) -> Self {
        let trace = match parent {
            Some(parent) => parent.trace,
            None => ((u128::from(random()) << 64) | u128::from(random())).to_be_bytes(),
        };
        Self { trace, id: random().to_be_bytes(), parent: parent.map(|parent| parent.span) }
    }

    fn child(&self) -> Self {
        Self { trace: self.trace, id: random().to_be_bytes(), parent: Some(self.id) }
    }

    fn message(&self, name: &str, kind: u64, start: u64, length: Duration) -> Message {
        let mut span = Message::default();
        span.bytes(1, &self.trace);
        span.bytes(2, &self.id);
        if let Some(parent) = &self.parent {
            span.bytes(4, parent);
        }
        span.text(5, name);
        span.number(6, kind);
        span.fixed(7, start);
        span.fixed(8, start + length.as_nanos() as u64);
        span
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn attribute(name: &str, value: &Message) -> Message {
    let mut attribute = Message::default();
    attribute.text(1, name);
    attribute.message(2, value);
    attribute
}

fn text_attribute(name: &str, text: &str) -> Message {
    let mut value = Message::default();
    value.text(1, text);
    attribute(name, &value)
}

fn number_attribute(name: &str, number: usize) -> Message {
    let mut value = Message::default();
    value.number(3, number as u64);
    attribute(name, &value)
}

fn double_attribute(name: &str, number: f64) -> Message {
    let mut value = Message::default();
    value.fixed(4, number.to_bits());
    attribute(name, &value)
}

/// Sends what comes in batches, until nothing more can come.
fn send_all(collector: &Collector, spans: &Receiver<Vec<u8>>) {
    let mut troubled = false;
    while let Ok(first) = spans.recv() {
        let mut batch = vec![first];
        let until = Instant::now() + PACE;
        while batch.len() < MAX_BATCH {
            match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(span) => batch.push(span),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        match collector.post(&collector.request(&batch)) {
            Ok(()) => troubled = false,
            Err(error) => {
                if !std::mem::replace(&mut troubled, true) {
                    tracing::warn!(cause = %error, spans = batch.len(), "traces were not sent");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_addresses_with_a_path() {
        let of = |url: &str| {
            Collector::new(url, None, None).map(|c| format!("{} {}", c.authority, c.path))
        };
        assert_eq!(of("http://127.0.0.1:4318").unwrap(), "127.0.0.1:4318 /v1/traces");
        assert_eq!(of("http://collector/").unwrap(), "collector:4318 /v1/traces");
        assert_eq!(of("http://c:1/otlp/v1/traces").unwrap(), "c:1 /otlp/v1/traces");
        for url in ["https://c:4318", "c:4318", "", "http://", "grpc://c"] {
            assert!(of(url).is_err(), "{url}");
        }
        let headers = |text| Collector::new("http://c", Some(text), None).map(|c| c.headers);
        assert_eq!(headers("a=b, c = d=e").unwrap(), "a: b\r\nc: d=e\r\n");
        assert!(headers("a").is_err() && headers("a=b\r\nc=d").is_err());
    }

    #[test]
    fn parents_are_read() {
        let read = |parent: Parent| (parent.trace[0], parent.span[7], parent.is_sampled);
        let of = |text: &str| Parent::parse(text).map(read);
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert_eq!(of(&format!("00-{trace}-{span}-01")), Some((0x4b, 0xb7, true)));
        assert_eq!(of(&format!("00-{trace}-{span}-00")), Some((0x4b, 0xb7, false)));
        for bad in [
            String::new(),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-+{}-{span}-01", &trace[1..]),
        ] {
            assert_eq!(of(&bad), None, "{bad}");
        }
    }
}
