//! A conversation that goes on: its messages and the states that its prompts left, in memory for
//! the next turn and, under a name, in files for another day.
//!
//! ```text
//! $XDG_STATE_HOME/forerun/sessions/NAME/conversation.json    what was said
//!                                       states/              what it left, for this model
//!                                       lock                 held by the process that is at it
//! ```

use anyhow::{Context, Result, bail};
use engine::Sequence;
use launch::Running;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::{Folder, Identity, Manifest, Name, Writer};

/// Earlier states kept in memory, and in a session's files.
const SNAPSHOTS: usize = 4;

/// Bytes of a conversation's file at most.
const MAX_BYTES: u64 = 64 << 20;

/// A state and the tokens that led to it.
struct Snapshot {
    tokens: Vec<u32>,
    sequence: Sequence,
}

/// What `conversation.json` holds.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Whom it was with last.
    pub(crate) model: String,
    pub(crate) messages: Vec<Value>,
}

/// Files of a conversation with a name.
struct Files {
    path: PathBuf,
    states: Arc<Folder>,
    writer: Writer,
    /// The last to be let go of: by then everything is written.
    _lock: File,
}

/// A conversation.
pub(crate) struct Session {
    pub(crate) messages: Vec<Value>,
    snapshots: Vec<Snapshot>,
    files: Option<Files>,
}

/// The folder that sessions lie in.
pub(crate) fn folder() -> Result<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let state = state
        .or_else(home)
        .context("sessions lie below `XDG_STATE_HOME` or `HOME`, and neither is set")?;
    Ok(state.join("forerun/sessions"))
}

/// The folder of a session of that name.
pub(crate) fn path_of(name: &str) -> Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_plain) {
        bail!(
            "`{name}` is no name of a session: up to 64 letters, digits and `-_.` are, none of \
             them a dot at its beginning"
        );
    }
    Ok(folder()?.join(name))
}

/// Holds a session for this process, as long as what it returns is there.
pub(crate) fn lock(name: &str, path: &Path) -> Result<File> {
    let about = || path.display().to_string();
    let lock = File::create(path.join("lock")).with_context(about)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!("session `{name}` is open in another process"),
        Err(TryLockError::Error(error)) => Err(error).with_context(about),
    }
}

impl Record {
    /// Reads a conversation's file; an empty one where there is none.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let path = path.join("conversation.json");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text);
        read.with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is no conversation", path.display()))
    }
}

impl Session {
    /// A conversation; with a name the one that was, or a new one, under that name.
    pub(crate) fn open(name: Option<&str>, running: &Running) -> Result<Self> {
        let Some(name) = name else {
            return Ok(Self { messages: Vec::new(), snapshots: Vec::new(), files: None });
        };
        let path = path_of(name)?;
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let lock = lock(name, &path)?;
        let identity = running.engine.identity().context("the engine was not identified")?;
        let states = Folder::open(&path.join("states"), u64::MAX, Identity(Name(identity)))?;
        let Record { messages, .. } = Record::read(&path)?;
        let states = Arc::new(states.at_most(SNAPSHOTS));
        let writer = Writer::start(Arc::clone(&states))?;
        let files = Some(Files { path, states, writer, _lock: lock });
        Ok(Self { messages, snapshots: Vec::new(), files })
    }

    /// Begins with a system message, unless the conversation has begun with that one.
    pub(crate) fn begin(&mut self, system: Option<&str>) -> Result<()> {
        let Some(system) = system else { return Ok(()) };
        let message = serde_json::json!({"role": "system", "content": system});
        match self.messages.first() {
            None => self.messages.push(message),
            Some(first) if *first == message => {}
            Some(_) => bail!("`--system`: the session has begun without it; begin another one"),
        }
        Ok(())
    }

    /// Forgets what was said and what it left.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
        self.snapshots.clear();
    }

    /// The state after as much of `prompt` as an earlier turn has read, then read on to where the
    /// answer's message opens: the next prompt goes on from there, whatever the template makes of
    /// this answer. Also tells how many tokens an earlier turn had read.
    pub(crate) fn recall(
        &mut self,
        running: &mut Running,
        prompt: &[u32],
        stop: &AtomicBool,
    ) -> Result<(usize, Sequence)> {
        let known = |s: &&Snapshot| s.tokens.len() < prompt.len() && prompt.starts_with(&s.tokens);
        let best = self.snapshots.iter().filter(known).max_by_key(|s| s.tokens.len());
        let best = best.map(|s| s.sequence.clone());
        let best = best.or_else(|| self.files.as_ref()?.revive(running, prompt));
        let mut sequence = best.unwrap_or_else(|| running.engine.sequence());
        let cached = sequence.committed();
        let opening = running.text.tokenizer.special("<|im_start|>");
        let mark = prompt.iter().rposition(|token| Some(*token) == opening).unwrap_or(0);
        if prompt.len() >= running.context || mark <= cached {
            return Ok((cached, sequence));
        }
        running.read(&mut sequence, &prompt[cached..mark], stop)?;
        running.engine.absorb(&mut sequence)?;
        self.keep(running, prompt[..mark].to_vec(), &sequence);
        Ok((cached, sequence))
    }

    /// Keeps a state for the next turn.
    pub(crate) fn keep(&mut self, running: &mut Running, tokens: Vec<u32>, sequence: &Sequence) {
        if let Some(Files { states, writer, .. }) = &self.files
            && !states.has(&tokens)
        {
            match running.engine.archive(sequence) {
                Ok(archived) => writer.send(tokens.clone(), archived),
                Err(error) => eprintln!("warning: the session's state is not kept: {error}"),
            }
        }
        self.snapshots.push(Snapshot { tokens, sequence: sequence.clone() });
        if self.snapshots.len() > SNAPSHOTS {
            self.snapshots.remove(0);
        }
    }

    /// Lets go of all states in memory but the last few, and says whether any went.
    pub(crate) fn let_go(&mut self, last: usize) -> bool {
        let older = self.snapshots.len().saturating_sub(last);
        self.snapshots.drain(..older);
        older > 0
    }

    /// Writes down what was said, where the conversation has a name.
    pub(crate) fn save(&self, model: &str) -> Result<()> {
        let Some(Files { path, .. }) = &self.files else { return Ok(()) };
        let record = Record { model: model.to_owned(), messages: self.messages.clone() };
        let (partial, whole) = (path.join("conversation.new"), path.join("conversation.json"));
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(serde_json::to_string_pretty(&record)?.as_bytes())?;
            // It is all there is of what was said: it is on the disk before it replaces the other.
            file.sync_all()?;
            fs::rename(&partial, &whole)
        };
        write().with_context(|| whole.display().to_string())
    }
}

impl Files {
    /// The longest state that the prompt begins with.
    fn revive(&self, running: &mut Running, prompt: &[u32]) -> Option<Sequence> {
        let (blank, vocab) = (running.engine.sequence(), running.vocab());
        let fits = |m: &Manifest| m.outline.blocks(&blank, &m.tokens, vocab);
        let found = self.states.longest(prompt)?;
        let kept = self.states.read(found, prompt, fits)?;
        running.engine.revive(&kept.outline, &kept.tokens, kept.blocks).ok()
    }
}
