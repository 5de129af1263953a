//! Answers as server-sent events, or as lines of JSON. The stream owns the receiver: when the
//! client goes away it is dropped, and with it the answer.

use crate::error::ApiError;
use crate::job::{Delta, Event, EventKind, Outcome, Progress};
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::UnboundedReceiver;

/// Turns events into the chunks of one API.
pub(crate) trait Chunks: Send + Unpin + 'static {
    /// Whether events are named after the `type` of their chunk. Streams whose events have no names
    /// end with `[DONE]`.
    const NAMED: bool = false;
    /// What is sent before any events.
    fn open(&mut self) -> Vec<Value>;
    /// More of the prompt has been read.
    fn read(&mut self, _progress: Progress) -> Vec<Value> {
        Vec::new()
    }
    /// More text of an answer.
    fn text(&mut self, choice: usize, delta: &Delta) -> Vec<Value>;
    /// An answer is whole.
    fn done(&mut self, choice: usize, outcome: Outcome) -> Vec<Value>;
    /// All answers are whole.
    fn close(&mut self) -> Vec<Value>;
    /// There will be no more.
    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.object()]
    }
}

/// How a chunk is sent.
trait Wire: Sized {
    fn of<C: Chunks>(chunk: &Value) -> Self;
    /// What follows the last one.
    fn end<C: Chunks>() -> Option<Self>;
}

impl Wire for sse::Event {
    fn of<C: Chunks>(chunk: &Value) -> Self {
        let event = match chunk["type"].as_str() {
            Some(name) if C::NAMED => Self::default().event(name),
            _ => Self::default(),
        };
        event.data(chunk.to_string())
    }

    fn end<C: Chunks>() -> Option<Self> {
        (!C::NAMED).then(|| Self::default().data("[DONE]"))
    }
}

/// A line of JSON.
impl Wire for Bytes {
    fn of<C: Chunks>(chunk: &Value) -> Self {
        line(chunk).into()
    }

    fn end<C: Chunks>() -> Option<Self> {
        None
    }
}

fn line(chunk: &Value) -> String {
    format!("{chunk}\n")
}

/// A stream of chunks.
struct Events<C, W> {
    events: UnboundedReceiver<Event>,
    chunks: C,
    ready: VecDeque<W>,
    /// Answers that are not whole yet.
    open: usize,
    ended: bool,
    /// Whether the request's places are free again.
    is_free: bool,
}

/// Answers with the chunks of `answers` answers.
pub(crate) fn stream<C: Chunks>(
    events: UnboundedReceiver<Event>,
    chunks: C,
    answers: usize,
) -> Response {
    let events: Events<C, sse::Event> = Events::new(events, chunks, answers);
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// Answers with a line for each chunk of one answer.
pub(crate) fn lines<C: Chunks>(events: UnboundedReceiver<Event>, chunks: C) -> Response {
    let events: Events<C, Bytes> = Events::new(events, chunks, 1);
    as_lines(Body::from_stream(events))
}

/// Answers with lines that are there already.
pub(crate) fn finished_lines(chunks: &[Value]) -> Response {
    as_lines(Body::from(chunks.iter().map(line).collect::<String>()))
}

fn as_lines(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

impl<C: Chunks, W: Wire> Events<C, W> {
    fn new(events: UnboundedReceiver<Event>, mut chunks: C, answers: usize) -> Self {
        let ready = chunks.open().iter().map(W::of::<C>).collect();
        Self { events, chunks, ready, open: answers, ended: false, is_free: false }
    }

    fn take(&mut self, event: Event) {
        let mut chunks = match event.kind {
            EventKind::Progress(progress) => self.chunks.read(progress),
            EventKind::Delta(delta) => self.chunks.text(event.choice, &delta),
            EventKind::Done(outcome) => {
                self.open -= 1;
                self.chunks.done(event.choice, *outcome)
            }
            EventKind::Failed(error) => return self.fail(&error),
        };
        if self.open == 0 {
            chunks.extend(self.chunks.close());
        }
        self.ready.extend(chunks.iter().map(W::of::<C>));
        if self.open == 0 {
            self.end();
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.extend(self.chunks.failed(error).iter().map(W::of::<C>));
        self.end();
        // Other answers of the request may be under way: they are cancelled, not waited for.
        self.events.close();
        self.is_free = true;
    }

    fn end(&mut self) {
        self.ready.extend(W::end::<C>());
        self.ended = true;
    }
}

impl<C: Chunks, W: Wire + Unpin> Stream for Events<C, W> {
    type Item = Result<W, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            // Whoever hears the end and asks again finds a place.
            if this.ended && !this.is_free {
                while ready!(this.events.poll_recv(cx)).is_some() {}
                this.is_free = true;
            }
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            match ready!(this.events.poll_recv(cx)) {
                Some(event) => this.take(event),
                None => this.fail(&ApiError::Internal("the answer was lost".to_owned())),
            }
        }
    }
}

/// An answer that is whole: all its deltas as one, and what it took.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) delta: Delta,
    pub(crate) outcome: Outcome,
}

/// Waits for all of `answers` answers, in order of their choices.
pub(crate) async fn collect(
    mut events: UnboundedReceiver<Event>,
    answers: usize,
) -> Result<Vec<Whole>, ApiError> {
    let mut parts = vec![Delta::default(); answers];
    let mut outcomes: Vec<Option<Outcome>> = vec![None; answers];
    while outcomes.iter().any(Option::is_none) {
        let lost = || ApiError::Internal("the answer was lost".to_owned());
        let event = events.recv().await.ok_or_else(lost)?;
        match event.kind {
            EventKind::Progress(_) => {}
            EventKind::Delta(delta) => {
                let part = &mut parts[event.choice];
                part.text += &delta.text;
                part.likelihoods.extend(delta.likelihoods);
                part.scores.extend(delta.scores);
                part.origins.extend(delta.origins);
                part.tokens += delta.tokens;
            }
            EventKind::Done(outcome) => outcomes[event.choice] = Some(*outcome),
            EventKind::Failed(error) => return Err(error),
        }
    }
    // Whoever hears the end and asks again finds a place.
    while events.recv().await.is_some() {}
    let parts = parts.into_iter().zip(outcomes.into_iter().flatten());
    Ok(parts.map(|(delta, outcome)| Whole { delta, outcome }).collect())
}
