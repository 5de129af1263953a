//! Keeping a folder to its share: files that nobody refers to go, then the states that were used
//! longest ago, with the pieces that no other state has.

use crate::files::entries;
use crate::folder::{Folder, Found};
use crate::manifest::{MAX_BYTES, Manifest, Piece};
use crate::name::{Identity, Name};
use std::collections::HashMap;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Pieces of states that were looked at before, by file: a state's file never changes.
pub(crate) type Seen = HashMap<PathBuf, Arc<[Piece]>>;

/// Room is made for this part of the share more than is needed, so that it is not made for every
/// state.
const AT_ONCE: u64 = 16;

/// What others write into a folder is counted this often at least.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// A state's file.
struct Kept {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
    pieces: Arc<[Piece]>,
}

/// All there is in a folder.
#[derive(Default)]
struct Survey {
    states: Vec<Kept>,
    /// Files of pieces, their lengths and how many states refer to each.
    pieces: HashMap<Name, (PathBuf, u64, usize)>,
    bytes: u64,
}

impl Folder {
    /// Removes what nobody refers to, and as many states as the folder's bounds ask for. Waits
    /// for whoever is writing, here or in another process.
    pub fn collect(&self) -> io::Result<()> {
        self.collect_to(self.limit)
    }

    /// Makes room for a state of so many bytes where there is none. Others may have written since
    /// it was counted what there is, so that is done anew now and then.
    pub(crate) fn make_room(&self, needed: u64) -> io::Result<()> {
        let is_short = self.counters.bytes.load(Ordering::Relaxed) + needed > self.limit;
        let counted = *self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_short && counted.is_some_and(|at| at.elapsed() < COUNT_EVERY) {
            return Ok(());
        }
        let more = if is_short { self.limit / AT_ONCE } else { 0 };
        self.collect_to(self.limit.saturating_sub(needed.saturating_add(more)))
    }

    fn collect_to(&self, target: u64) -> io::Result<()> {
        self.locked(true, || {
            let mut survey = self.survey()?;
            // The oldest last.
            survey.states.sort_by_key(|state| std::cmp::Reverse(state.used));
            survey.remove_unused();
            while (survey.bytes > target || survey.states.len() > self.most)
                && let Some(oldest) = survey.states.pop()
            {
                survey.remove(oldest);
                self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            }
            self.counters.bytes.store(survey.bytes, Ordering::Relaxed);
            *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.clear();
            seen.extend(survey.states.into_iter().map(|state| (state.path, state.pieces)));
            Ok(())
        })?;
        self.refresh()
    }

    /// Looks at everything. Nobody writes meanwhile, so what is unfinished stays so.
    fn survey(&self) -> io::Result<Survey> {
        for unfinished in entries(&self.root.join("tmp"))? {
            remove_stray(&unfinished);
        }
        let mut survey = Survey::default();
        for folder in entries(&self.root.join("pieces"))? {
            for file in entries(&folder.path()).unwrap_or_default() {
                let name = file.file_name().to_str().and_then(Name::parse);
                let place = name.map(|name| self.piece_path(name));
                match (name, file.metadata()) {
                    (Some(name), Ok(data)) if data.is_file() && place == Some(file.path()) => {
                        survey.bytes += data.len();
                        survey.pieces.insert(name, (file.path(), data.len(), 0));
                    }
                    _ => remove_stray(&file),
                }
            }
        }
        for folder in entries(&self.root.join("states"))? {
            let files = entries(&folder.path()).unwrap_or_default();
            if files.is_empty() {
                // One that somebody is about to write into is made again.
                let _ = fs::remove_dir(folder.path());
            }
            for file in files {
                match self.look_at(&folder, &file) {
                    Some(state) => survey.add(state),
                    None => remove_stray(&file),
                }
            }
        }
        Ok(survey)
    }

    /// A state's file in a folder of its identity, where it is one.
    fn look_at(&self, folder: &DirEntry, file: &DirEntry) -> Option<Kept> {
        let (path, data) = (file.path(), file.metadata().ok()?);
        let identity = Identity(Name::parse(folder.file_name().to_str()?)?);
        let found = Found::parse(file.file_name().to_str()?)?;
        if !data.is_file() || data.len() > MAX_BYTES {
            return None;
        }
        let known = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        let pieces = match known {
            Some(pieces) => pieces,
            None => {
                let manifest = Manifest::parse(&fs::read(&path).ok()?).ok()?;
                manifest.check_name(identity, found).ok()?;
                manifest.pieces.into()
            }
        };
        Some(Kept { path, used: data.modified().ok()?, bytes: data.len(), pieces })
    }
}

impl Survey {
    /// A state; one whose pieces are not all there is none.
    fn add(&mut self, state: Kept) {
        let is_there = |piece: &Piece| {
            self.pieces.get(&piece.name).is_some_and(|(_, bytes, _)| *bytes == piece.bytes)
        };
        if !state.pieces.iter().all(is_there) {
            let _ = fs::remove_file(&state.path);
            return;
        }
        for piece in &*state.pieces {
            if let Some((_, _, uses)) = self.pieces.get_mut(&piece.name) {
                *uses += 1;
            }
        }
        self.bytes += state.bytes;
        self.states.push(state);
    }

    /// Removes a state: its file first, so that no state is ever without its pieces.
    fn remove(&mut self, state: Kept) {
        if fs::remove_file(&state.path).is_err() && state.path.exists() {
            return;
        }
        self.bytes -= state.bytes;
        for piece in &*state.pieces {
            if let Some((path, len, uses)) = self.pieces.get_mut(&piece.name) {
                *uses -= 1;
                if *uses == 0 && remove_file(path) {
                    self.bytes -= *len;
                    self.pieces.remove(&piece.name);
                }
            }
        }
    }

    fn remove_unused(&mut self) {
        let bytes = &mut self.bytes;
        self.pieces.retain(|_, (path, len, uses)| {
            let goes = *uses == 0 && remove_file(path);
            *bytes -= if goes { *len } else { 0 };
            !goes
        });
    }
}

/// Whether it is gone.
fn remove_file(path: &Path) -> bool {
    fs::remove_file(path).is_ok() || !path.exists()
}

/// Removes a file that has no business here. Folders stay: who made them knows why.
fn remove_stray(file: &DirEntry) {
    if file.file_type().is_ok_and(|kind| !kind.is_dir()) {
        let _ = fs::remove_file(file.path());
    }
}
