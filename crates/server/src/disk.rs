//! States that outlive the process, beside those in memory. What the prefix cache keeps is written
//! behind the engine's thread, and what a prompt begins with is read before it has a slot; the
//! engine's thread takes states apart and puts them together, and never waits for a disk.

use crate::beside::Change;
use crate::prefix::{Hit, Source};
use crate::reading::KEEP_EVERY;
use crate::scheduler::{Scheduler, Waiting, Work};
use crate::shelf;
use engine::{Engine, Sequence};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Awaited, Folder, Identity, Name, Reader, Revival, Tally, Writer};
use tokio::sync::mpsc::UnboundedSender;

/// States that wait to be taken apart at most; of more the oldest are not written.
const MOST_UNSAVED: usize = 16;

/// Bytes in memory that may wait for the disk.
const MOST_BACKLOG: usize = 4 << 30;

/// A file is read where it saves at least so many tokens.
const LEAST_GAIN: usize = 64;

/// The engine's thread looks for what was read this often when it has nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A folder for states, and its share of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskShare {
    /// The folder.
    pub folder: PathBuf,
    /// Bytes that it may hold.
    pub bytes: u64,
}

/// States on disk.
pub(crate) struct Disk {
    folder: Arc<Folder>,
    reader: Reader,
    writer: Writer,
    /// States to be written, with their tokens.
    unsaved: VecDeque<(Box<[u32]>, Sequence)>,
}

/// A request whose prompt's beginning is being read.
pub(crate) struct Fetching {
    pub(crate) waiting: Waiting,
    awaited: Awaited,
    /// What came, once it did.
    read: Option<Option<Revival>>,
}

impl Disk {
    /// Opens a folder for an engine's states; without one it is served all the same.
    pub(crate) fn start(
        share: &DiskShare,
        engine: &Engine,
        listener: Option<UnboundedSender<Change>>,
    ) -> Option<Self> {
        let identity = Identity(Name(engine.identity()?));
        let started = || {
            let folder = Arc::new(Folder::open(&share.folder, share.bytes, identity)?);
            if let Some(listener) = listener {
                shelf::watch(&folder, listener)?;
            }
            let vocab = engine.model().config().vocab;
            let reader = Reader::start(Arc::clone(&folder), engine.sequence(), vocab)?;
            let writer = Writer::start(Arc::clone(&folder))?;
            Ok::<_, Box<dyn std::error::Error>>(Self {
                folder,
                reader,
                writer,
                unsaved: VecDeque::new(),
            })
        };
        match started() {
            Ok(disk) => Some(disk),
            Err(cause) => {
                let folder = share.folder.display();
                tracing::error!(%folder, %cause, "states are not kept on disk");
                None
            }
        }
    }

    /// A state that is worth keeping.
    fn note(&mut self, tokens: &[u32], state: &Sequence) {
        let is_noted = self.unsaved.iter().any(|(noted, _)| **noted == *tokens);
        if tokens.len() < LEAST_GAIN || is_noted || self.folder.has(tokens) {
            return;
        }
        self.unsaved.push_back((tokens.into(), state.clone()));
        if self.unsaved.len() > MOST_UNSAVED {
            self.unsaved.pop_front();
        }
    }

    /// Hands a state to the writer, unless much waits for it already.
    fn save_one(&mut self, engine: &mut Engine) {
        if self.writer.backlog() > MOST_BACKLOG {
            return;
        }
        let Some((tokens, state)) = self.unsaved.pop_front() else { return };
        match engine.archive(&state) {
            Ok(archived) => self.writer.send(tokens.into(), archived),
            Err(error) => tracing::warn!(cause = %error, "a state could not be taken apart"),
        }
    }

    /// Lets go of a state that was to be written; no, where there is none.
    pub(crate) fn drop_unsaved(&mut self) -> bool {
        self.unsaved.pop_front().is_some()
    }

    pub(crate) fn tally(&self) -> Tally {
        self.folder.tally()
    }
}

impl Fetching {
    /// Whether something came of it, be it nothing.
    fn is_ready(&mut self) -> bool {
        self.read = self.read.take().or_else(|| self.awaited.poll());
        self.read.is_some()
    }

    /// Waits a moment.
    pub(crate) fn wait(&mut self) {
        if self.read.is_none() {
            self.read = self.awaited.wait(LOOK_EVERY);
        }
    }
}

impl Scheduler {
    /// Keeps a state for prompts to come, in memory and, where it is one at a message's boundary,
    /// on disk.
    pub(crate) fn keep_state(&mut self, tokens: &[u32], state: Sequence) {
        let is_between = tokens.len().is_multiple_of(KEEP_EVERY);
        if let Some(disk) = self.disk.as_mut().filter(|_| !is_between) {
            disk.note(tokens, &state);
        }
        self.cache.insert(&mut self.engine, tokens, state);
        self.note_cache();
    }

    /// Whether states wait to be written.
    pub(crate) fn has_unsaved(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| !disk.unsaved.is_empty())
    }

    /// Hands one of the states that wait to the writer; a prompt that is being read goes first.
    pub(crate) fn save_one(&mut self, work: &Work) {
        if let Some(disk) = self.disk.as_mut().filter(|_| work.reading.is_empty()) {
            disk.save_one(&mut self.engine);
        }
    }

    /// Hands all of them to the writer: there will be no more.
    pub(crate) fn save_rest(&mut self) {
        if let Some(disk) = &mut self.disk {
            while !disk.unsaved.is_empty() {
                disk.save_one(&mut self.engine);
                if disk.writer.backlog() > MOST_BACKLOG {
                    std::thread::sleep(LOOK_EVERY);
                }
            }
        }
    }

    /// Who begins next, with what is known of its prompt. Whoever's prompt is known further on disk
    /// than in memory lets others pass until that is read.
    pub(crate) fn next_to_begin(
        &mut self,
        work: &mut Work,
    ) -> Option<(Waiting, Option<Hit<Sequence>>)> {
        if let Some(ready) = work.fetching.iter_mut().position(Fetching::is_ready)
            && let Some(Fetching { waiting, read, .. }) = work.fetching.remove(ready)
        {
            let hit = read.flatten().and_then(|revival| self.revive(revival));
            let hit = hit.or_else(|| self.cache.find(&mut self.engine, &waiting.ticket.job.prompt));
            return Some((waiting, hit));
        }
        // What is read lies in memory until its text begins: no more of them than can.
        while work.fetching.len() + work.busy_slots() < self.slots
            && let Some(waiting) = work.waiting.pop_front()
        {
            let job = &waiting.ticket.job;
            // What is to be scored has to be read.
            if waiting.start.is_some() || job.scores.is_some() {
                return Some((waiting, None));
            }
            let known = self.cache.known(&job.prompt);
            let asked = self.disk.as_mut();
            match asked.and_then(|disk| disk.reader.ask(&job.prompt, known + LEAST_GAIN)) {
                Some((_, awaited)) => {
                    work.fetching.push_back(Fetching { waiting, awaited, read: None });
                }
                None => {
                    let hit = self.cache.find(&mut self.engine, &job.prompt);
                    return Some((waiting, hit));
                }
            }
        }
        None
    }

    /// Puts a state together that was read, and keeps it in memory.
    fn revive(&mut self, revival: Revival) -> Option<Hit<Sequence>> {
        let Revival { tokens, outline, blocks } = revival;
        while matches!(self.engine.has_room(&outline, &tokens), Ok(false)) && self.drop_kept() {}
        match self.engine.revive(&outline, &tokens, blocks) {
            Ok(state) => {
                self.cache.insert(&mut self.engine, &tokens, state.clone());
                Some(Hit { len: tokens.len(), state, from: Source::Disk })
            }
            Err(error) => {
                tracing::warn!(cause = %error, "a kept state could not be brought back");
                None
            }
        }
    }
}
