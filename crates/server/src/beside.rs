//! The door for who asks by another way than HTTP, such as a gateway's own protocol: a request goes
//! in as it would at `/v1/completions`, tokens come out, and changes of the prefix cache are heard.

use crate::completions;
use crate::error::ApiError;
use crate::job::{Delta, Event, EventKind, Finish, Job, Outcome};
use crate::router::Shared;
use engine::sampling::Likelihood;
use serde_json::{Map, Value};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// Runs beside the HTTP server until the door is closed.
pub type Serve = Box<dyn FnOnce(Door) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Who asks by another way.
pub struct Beside {
    /// Gets the door when the engine runs, and ends when [`Door::closed`] is ready.
    pub serve: Serve,
    /// Hears what the prefix cache keeps.
    pub listener: Option<UnboundedSender<Change>>,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("listens", &self.listener.is_some()).finish()
    }
}

/// Where a kept state lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Where passes read it.
    Device,
    /// Stowed in the host's memory.
    Host,
    /// In a file.
    Disk,
}

/// What happened to the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing is kept in memory any more.
    Cleared,
    /// A state has come, moved or gone.
    Moved {
        /// What it stands behind.
        tokens: Box<[u32]>,
        /// Where it was; nowhere if it is new.
        from: Option<Tier>,
        /// Where it is; nowhere if it is gone.
        to: Option<Tier>,
    },
}

/// The way to the engine, of several models to the first's.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
    slots: usize,
    /// Whether there are models that cannot be asked here.
    has_others: bool,
}

/// An answer on its way. Dropping it cancels what is under way.
pub struct Told {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    events: UnboundedReceiver<Event>,
    stops: Vec<String>,
    /// Answers that have not ended yet.
    open: usize,
}

/// More of one of the answers.
#[derive(Debug)]
pub struct Piece {
    /// Which of them.
    pub index: usize,
    /// What is certain of the text, which may come later than its tokens.
    pub text: String,
    /// Every token, an end too.
    pub tokens: Vec<u32>,
    /// One for each token where that was asked for.
    pub likelihoods: Vec<Likelihood>,
    /// What is known when the answer is whole.
    pub ended: Option<Ended>,
}

/// How an answer ended.
#[derive(Debug)]
pub struct Ended {
    /// Whether its room was used up.
    pub is_cut: bool,
    /// The stop string that occurred.
    pub stop: Option<String>,
    /// Tokens of it.
    pub tokens: usize,
    /// Tokens of the prompt that were not read again.
    pub cached: usize,
}

impl Door {
    pub(crate) fn new(shared: Arc<Shared>, slots: usize, has_others: bool) -> Self {
        Self { shared, slots, has_others }
    }

    /// Asks as one would at `/v1/completions`, for one prompt, streamed. The prompt's last message
    /// is read with the arithmetic of decoding, so that it makes no difference how much of an
    /// answer comes with it.
    pub async fn complete(&self, body: Map<String, Value>) -> Result<Told, ApiError> {
        if self.has_others
            && let Some(asked) = body.get("model").and_then(Value::as_str)
            && !self.names().iter().any(|name| name == asked)
        {
            let (asked, known) = (asked.to_owned(), self.names().to_vec());
            return Err(ApiError::UnknownModel { asked, known });
        }
        let shared = Arc::clone(&self.shared);
        let read = move || completions::read(&body, &shared)?.into_job();
        let read = tokio::task::spawn_blocking(read).await;
        let mut job =
            read.map_err(|_| ApiError::Internal("a panic while reading".to_owned()))??;
        (job.stream, job.ids, job.tells_ends) = (true, true, true);
        // Another worker may have to go on with the answer, and could have kept something else.
        job.wish = None;
        if job.written == 0
            && let Some(opening) = self.shared.tokenizer.special("<|im_start|>")
            && let Some(last) = job.prompt.iter().rposition(|token| *token == opening)
        {
            job.decoded_from = last;
        }
        self.submit(job).await
    }

    async fn submit(&self, job: Job) -> Result<Told, ApiError> {
        let (prompt, stops, open) = (job.prompt.clone(), job.stops.clone(), job.choices.len());
        let events = self.shared.handle.submit(vec![job]).await?;
        Ok(Told { prompt, events, stops, open })
    }

    /// Whether the next request should come here.
    pub fn is_open(&self) -> bool {
        !self.shared.handle.is_closing() && self.shared.handle.trouble().is_none()
    }

    /// Ready when nothing is taken in any more and what was under way has ended.
    pub async fn closed(&self) {
        self.shared.handle.closed().await;
    }

    /// Names of the model, its own first.
    pub fn names(&self) -> &[String] {
        &self.shared.about.names
    }

    /// Tokens of prompt and answer together.
    pub fn context(&self) -> usize {
        self.shared.limits.context
    }

    /// Answers written at once.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Tokens that the model ends answers with.
    pub fn ends(&self) -> &[u32] {
        &self.shared.limits.ends
    }
}

impl Told {
    /// What comes next; nothing when every answer is whole.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        while self.open > 0 {
            let Some(Event { choice: index, kind }) = self.events.recv().await else {
                self.open = 0;
                return Some(Err(ApiError::Internal("the engine has ended".to_owned())));
            };
            match kind {
                EventKind::Progress(_) => {}
                EventKind::Delta(delta) => return Some(Ok(Piece::of(index, delta))),
                EventKind::Done(outcome) => {
                    self.open -= 1;
                    // Whoever hears the end and asks again finds a place.
                    while self.open == 0 && self.events.recv().await.is_some() {}
                    return Some(Ok(self.end(index, &outcome)));
                }
                EventKind::Failed(error) => {
                    self.open = 0;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn end(&self, index: usize, outcome: &Outcome) -> Piece {
        let ended = Ended {
            is_cut: outcome.finish == Finish::Length,
            stop: outcome.stop.and_then(|stop| self.stops.get(stop).cloned()),
            tokens: outcome.completion_tokens,
            cached: outcome.cached_tokens,
        };
        Piece { ended: Some(ended), ..Piece::of(index, Delta::default()) }
    }
}

impl Piece {
    fn of(index: usize, delta: Delta) -> Self {
        let Delta { text, ids: tokens, likelihoods, .. } = delta;
        Self { index, text, tokens, likelihoods, ended: None }
    }
}
