//! A folder of states: what is there, and how one is written and read.

use crate::collect::Seen;
use crate::files::{Faults, Files, entries, make_folder};
use crate::manifest::{MAX_BYTES, Manifest, Piece};
use crate::name::{Identity, Name, Prefixes};
use compute::Memory;
use engine::{Archived, ArchivedBlock, BlockName, Outline};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use thiserror::Error;

/// Why a folder cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum StoreError {
    #[error("{}: {cause}", path.display())]
    Io { path: PathBuf, cause: io::Error },
    #[error("{} has other files: give a folder that is empty, or one of this kind", .0.display())]
    Foreign(PathBuf),
    #[error("{}: this file system cannot lock files ({cause}), and states need that: give a folder \
             on another", path.display())]
    NoLocks { path: PathBuf, cause: io::Error },
}

/// Why a state was not written.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum WriteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a state of {bytes} bytes does not fit a share of {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("a piece that was written before is gone")]
    Gone,
}

/// A state that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Tokens that led to it.
    pub len: usize,
    pub(crate) name: Name,
}

/// A state as it was written: what [`engine::Engine::revive`] takes.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Revival {
    pub tokens: Vec<u32>,
    pub outline: Outline,
    pub blocks: Vec<(BlockName, Memory)>,
}

/// What happened to a folder's files so far, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Tally {
    /// Bytes that all states take, as last counted, and states of this identity.
    pub bytes: u64,
    pub states: u64,
    pub written_bytes: u64,
    pub read_bytes: u64,
    /// States that made room for others.
    pub evicted: u64,
    /// Files that were not what they should be, and were removed.
    pub damaged: u64,
    /// States that could not be written or read, by no fault of their files.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// A folder of states, some of which are of one identity.
#[derive(Debug)]
pub struct Folder {
    pub(crate) root: PathBuf,
    pub(crate) limit: u64,
    /// States, of whatever identity, that it may hold.
    pub(crate) most: usize,
    identity: Identity,
    files: Files,
    lock: File,
    /// States of this identity, by their tokens.
    index: Mutex<BTreeMap<usize, HashSet<Name>>>,
    /// What is known of files that do not change.
    pub(crate) seen: Mutex<Seen>,
    /// When it was last counted what there is.
    pub(crate) counted: Mutex<Option<Instant>>,
    pub(crate) counters: Counters,
}

impl Folder {
    /// Opens a folder, or makes it. It may take `limit` bytes of the disk.
    pub fn open(root: &Path, limit: u64, identity: Identity) -> Result<Self, StoreError> {
        let about = |path: &Path| {
            let path = path.to_owned();
            move |cause| StoreError::Io { path, cause }
        };
        make_folder(root).map_err(about(root))?;
        let path = root.join("lock");
        let is_ours = path.is_file();
        if !is_ours && !entries(root).map_err(about(root))?.is_empty() {
            return Err(StoreError::Foreign(root.to_owned()));
        }
        let lock = File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let lock = lock.map_err(about(&path))?;
        match lock.try_lock_shared() {
            Ok(()) => lock.unlock().map_err(about(&path))?,
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(cause)) => return Err(StoreError::NoLocks { path, cause }),
        }
        let tmp = root.join("tmp");
        make_folder(&tmp).map_err(about(&tmp))?;
        let folder = Self {
            root: root.to_owned(),
            limit,
            most: usize::MAX,
            identity,
            files: Files::new(tmp),
            lock,
            index: Mutex::default(),
            seen: Mutex::default(),
            counted: Mutex::default(),
            counters: Counters::default(),
        };
        folder.refresh().map_err(about(root))?;
        Ok(folder)
    }

    /// Keeps the `most` states that were used last, and no others: when it is tidied up, and after
    /// every state that is written.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Steps of writing that can be made to fail.
    pub fn faults(&self) -> &Faults {
        &self.files.faults
    }

    fn index(&self) -> MutexGuard<'_, BTreeMap<usize, HashSet<Name>>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_states(&self) -> PathBuf {
        self.root.join("states").join(self.identity.0.to_string())
    }

    fn state_path(&self, found: Found) -> PathBuf {
        self.own_states().join(format!("{}-{}", found.len, found.name))
    }

    pub(crate) fn piece_path(&self, name: Name) -> PathBuf {
        let digits = name.to_string();
        self.root.join("pieces").join(&digits[..2]).join(digits)
    }

    /// Looks what states of this identity there are; others may have written some.
    pub fn refresh(&self) -> io::Result<()> {
        let mut index: BTreeMap<usize, HashSet<Name>> = BTreeMap::new();
        for found in self.states()? {
            index.entry(found.len).or_default().insert(found.name);
        }
        *self.index() = index;
        Ok(())
    }

    /// States of this identity that are on the disk now.
    pub fn states(&self) -> io::Result<Vec<Found>> {
        let files = entries(&self.own_states())?.into_iter();
        Ok(files.filter_map(|file| Found::parse(file.file_name().to_str()?)).collect())
    }

    /// The tokens of a state, where its file is what it should be.
    pub fn tokens(&self, found: Found) -> Option<Vec<u32>> {
        let mut bytes = Vec::new();
        let file = File::open(self.state_path(found)).ok()?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        let manifest = Manifest::parse(&bytes).ok()?;
        manifest.check_name(self.identity, found).ok()?;
        Some(manifest.tokens)
    }

    /// The state after the longest known beginning of `prompt`, less than all of it. Asks no disk.
    pub fn longest(&self, prompt: &[u32]) -> Option<Found> {
        let (index, mut best) = (self.index(), None);
        let mut prefixes = Prefixes::new(self.identity, prompt);
        for (&len, names) in index.range(..prompt.len()) {
            let name = prefixes.name(len);
            best = names.contains(&name).then_some(Found { len, name }).or(best);
        }
        best
    }

    /// Whether there is a state of exactly these tokens. Asks no disk.
    pub fn has(&self, tokens: &[u32]) -> bool {
        let known = |names: &HashSet<Name>| names.contains(&self.name(tokens));
        self.index().get(&tokens.len()).is_some_and(known)
    }

    fn name(&self, tokens: &[u32]) -> Name {
        Prefixes::new(self.identity, tokens).name(tokens.len())
    }

    /// What it holds and what became of it so far.
    pub fn tally(&self) -> Tally {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { bytes, written_bytes, read_bytes, evicted, damaged, failed } =
            &self.counters;
        Tally {
            bytes: get(bytes),
            states: self.index().values().map(|names| names.len() as u64).sum(),
            written_bytes: get(written_bytes),
            read_bytes: get(read_bytes),
            evicted: get(evicted),
            damaged: get(damaged),
            failed: get(failed),
        }
    }

    /// Holds the folder's lock while `work` runs: with others who write, or alone.
    pub(crate) fn locked<T>(
        &self,
        alone: bool,
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if alone { self.lock.lock() } else { self.lock.lock_shared() }?;
        let done = work();
        self.lock.unlock()?;
        done
    }

    /// Writes a state that was taken apart. Its blocks know afterwards that they are kept, or that
    /// they are not.
    pub fn write(&self, tokens: &[u32], archived: &Archived) -> Result<(), WriteError> {
        let written = self.write_state(tokens, archived);
        match &written {
            Ok(pieces) => {
                let blocks = archived.blocks.iter().zip(pieces);
                blocks.for_each(|(block, piece)| block.keep(piece.name.0));
            }
            Err(_) => {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                let unkept = archived.blocks.iter().filter(|block| block.name().is_none());
                unkept.for_each(|block| block.lose());
            }
        }
        written?;
        if self.tally().states > self.most as u64 {
            self.collect()?;
        }
        Ok(())
    }

    fn write_state(&self, tokens: &[u32], archived: &Archived) -> Result<Vec<Piece>, WriteError> {
        let memories: Vec<_> = archived.blocks.iter().map(|block| block.memory()).collect();
        let piece = |(block, memory): (&Arc<ArchivedBlock>, &Option<Arc<Memory>>)| {
            let hashed = |memory: &Arc<Memory>| Name::of(memory.slice());
            let name = block.name().map(Name).or_else(|| memory.as_ref().map(hashed));
            Ok(Piece { name: name.ok_or(WriteError::Gone)?, bytes: block.len() as u64 })
        };
        let pieces: Vec<Piece> =
            archived.blocks.iter().zip(&memories).map(piece).collect::<Result<_, WriteError>>()?;
        let manifest =
            Manifest { tokens: tokens.to_vec(), outline: archived.outline.clone(), pieces };
        let bytes = manifest.to_bytes();
        let Manifest { pieces, .. } = manifest;
        let is_missing = |piece: &Piece| !self.has_piece(piece);
        let mut fresh: HashSet<Name> = HashSet::new();
        let missing = pieces.iter().filter(|piece| is_missing(piece) && fresh.insert(piece.name));
        let needed = missing.map(|piece| piece.bytes).sum::<u64>() + bytes.len() as u64;
        if needed > self.limit {
            return Err(WriteError::TooLarge { bytes: needed, limit: self.limit });
        }
        self.make_room(needed)?;
        let found = Found { len: tokens.len(), name: self.name(tokens) };
        // Nobody makes room while the lock is shared: what is there stays until the state is.
        let placed = self.locked(false, || {
            let mut placed = 0;
            for (piece, memory) in pieces.iter().zip(&memories) {
                if self.has_piece(piece) {
                    continue;
                }
                let Some(memory) = memory else { return Ok(None) };
                self.files.place(memory.slice(), &self.piece_path(piece.name))?;
                placed += piece.bytes;
                self.add_bytes(piece.bytes);
            }
            self.files.place(&bytes, &self.state_path(found))?;
            self.add_bytes(bytes.len() as u64);
            Ok(Some(placed))
        })?;
        if placed.is_none() {
            // Somebody has removed what was written before. The next state writes it again.
            archived.blocks.iter().zip(&pieces).for_each(|(block, piece)| {
                if !self.has_piece(piece) {
                    block.lose();
                }
            });
            return Err(WriteError::Gone);
        }
        self.index().entry(found.len).or_default().insert(found.name);
        Ok(pieces)
    }

    fn add_bytes(&self, bytes: u64) {
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a file of a piece's length is there. Whether it has its bytes is seen when it is
    /// read.
    fn has_piece(&self, piece: &Piece) -> bool {
        let file = fs::metadata(self.piece_path(piece.name));
        file.is_ok_and(|file| file.is_file() && file.len() == piece.bytes)
    }

    /// Reads a state whose tokens `prompt` begins with, where `fits` takes what its file says. A
    /// file that is not what it should be is removed, and nothing comes of it.
    pub fn read(
        &self,
        found: Found,
        prompt: &[u32],
        fits: impl Fn(&Manifest) -> Result<Vec<usize>, engine::Error>,
    ) -> Option<Revival> {
        match self.read_state(found, prompt, fits) {
            Ok(revival) => Some(revival),
            Err(Unread::Damaged { path, why }) => {
                tracing::warn!(file = %path.display(), why, "a kept state is removed");
                self.counters.damaged.fetch_add(1, Ordering::Relaxed);
                let _ = fs::remove_file(&path);
                self.forget(found);
                None
            }
            Err(Unread::Gone) => {
                self.forget(found);
                None
            }
            Err(Unread::Io(cause)) => {
                tracing::warn!(%cause, "a kept state cannot be read");
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Lets go of a state that cannot be read.
    fn forget(&self, found: Found) {
        let _ = fs::remove_file(self.state_path(found));
        if let Some(names) = self.index().get_mut(&found.len) {
            names.remove(&found.name);
        }
    }

    fn read_state(
        &self,
        found: Found,
        prompt: &[u32],
        fits: impl Fn(&Manifest) -> Result<Vec<usize>, engine::Error>,
    ) -> Result<Revival, Unread> {
        let path = self.state_path(found);
        let damaged = |why: String| Unread::Damaged { path: path.clone(), why };
        let file = File::open(&path).map_err(Unread::of)?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Unread::of)?;
        let manifest = Manifest::parse(&bytes).map_err(|why| damaged(why.to_string()))?;
        let named = manifest.check_name(self.identity, found);
        named.map_err(|why| damaged(why.to_string()))?;
        if !prompt.starts_with(&manifest.tokens) {
            return Err(damaged("its tokens are others than its name says".to_owned()));
        }
        let expected = fits(&manifest).map_err(|why| damaged(why.to_string()))?;
        if !manifest.pieces.iter().map(|piece| piece.bytes as usize).eq(expected) {
            return Err(damaged("its pieces are not those of its outline".to_owned()));
        }
        let Manifest { tokens, outline, pieces } = manifest;
        let read = |piece: &Piece| Ok((piece.name.0, self.read_piece(piece)?));
        let blocks: Vec<_> = pieces.par_iter().map(read).collect::<Result<_, Unread>>()?;
        // When it was last of use decides what makes room.
        let touched = File::options().write(true).open(&path);
        let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
        let sum = pieces.iter().map(|piece| piece.bytes).sum::<u64>() + bytes.len() as u64;
        self.counters.read_bytes.fetch_add(sum, Ordering::Relaxed);
        Ok(Revival { tokens, outline, blocks })
    }

    fn read_piece(&self, piece: &Piece) -> Result<Memory, Unread> {
        let path = self.piece_path(piece.name);
        let mut file = File::open(&path).map_err(Unread::of)?;
        let damaged = |why: &str| Unread::Damaged { path: path.clone(), why: why.to_owned() };
        if file.metadata().map_err(Unread::of)?.len() != piece.bytes {
            return Err(damaged("it has another length than was written"));
        }
        let mut memory = Memory::zeroed(piece.bytes as usize);
        let read = file.read_exact(memory.slice_mut());
        read.map_err(|_| damaged("it ends before it should"))?;
        match Name::of(memory.slice()) == piece.name {
            true => Ok(memory),
            false => Err(damaged("its bytes are not those that were written")),
        }
    }
}

impl Found {
    /// Reads the name of a state's file.
    pub(crate) fn parse(file: &str) -> Option<Self> {
        let (len, name) = file.split_once('-')?;
        let found = Self { len: len.parse().ok()?, name: Name::parse(name)? };
        (found.len > 0 && found.len.to_string() == len).then_some(found)
    }
}

/// Why nothing was read.
enum Unread {
    /// The file is there and is not what it should be.
    Damaged { path: PathBuf, why: String },
    /// It, or a piece of it, is not there any more.
    Gone,
    /// The system did not give it.
    Io(io::Error),
}

impl Unread {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Io(error),
        }
    }
}
