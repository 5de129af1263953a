//! How a file comes to be: under a temporary name, then by a rename. Nothing is flushed to the
//! disk: a power cut can lose a file or leave one with other bytes, and what is read is compared
//! with its hash anyway.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Steps of writing that fail, for tests of what is left behind.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Plan>);

#[derive(Debug)]
struct Plan {
    /// Steps until one fails.
    left: AtomicUsize,
    /// How many fail from there on.
    failing: AtomicUsize,
}

impl Default for Faults {
    fn default() -> Self {
        Self(Arc::new(Plan { left: AtomicUsize::new(usize::MAX), failing: AtomicUsize::new(0) }))
    }
}

impl Faults {
    /// From step `n` on, counted from 0, `count` steps fail. With [`usize::MAX`] of them all do,
    /// and nothing is tidied up: what is left is what a killed process leaves.
    pub fn fail(&self, n: usize, count: usize) {
        self.0.left.store(n, Ordering::Relaxed);
        self.0.failing.store(count, Ordering::Relaxed);
    }

    /// Whether all steps that were to fail have failed.
    pub fn are_over(&self) -> bool {
        self.0.failing.load(Ordering::Relaxed) == 0
    }

    fn step(&self) -> io::Result<()> {
        let down = |n: usize| if n == usize::MAX { Some(n) } else { n.checked_sub(1) };
        if self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down).is_ok() {
            return Ok(());
        }
        match self.0.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, down) {
            Ok(_) => Err(io::Error::new(io::ErrorKind::StorageFull, "a fault was asked for")),
            Err(_) => Ok(()),
        }
    }
}

/// Writes files of a folder.
#[derive(Debug)]
pub(crate) struct Files {
    tmp: PathBuf,
    pub(crate) faults: Faults,
}

impl Files {
    pub(crate) fn new(tmp: PathBuf) -> Self {
        Self { tmp, faults: Faults::default() }
    }

    /// Makes a file of these bytes at `to`. Where another process has one there it holds the same.
    pub(crate) fn place(&self, bytes: &[u8], to: &Path) -> io::Result<()> {
        // Several models of a process may share a folder: numbers are the process's.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let partial = self.tmp.join(format!("{}-{number}", std::process::id()));
        let placed = self.write(bytes, &partial, to);
        if placed.is_err() && self.faults.step().is_ok() {
            let _ = fs::remove_file(&partial);
        }
        placed
    }

    fn write(&self, bytes: &[u8], partial: &Path, to: &Path) -> io::Result<()> {
        self.faults.step()?;
        let mut file = File::create(partial)?;
        // In two parts, so that a test can stop in between.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        file.write_all(first)?;
        self.faults.step()?;
        file.write_all(second)?;
        drop(file);
        self.faults.step()?;
        if let Some(folder) = to.parent() {
            make_folder(folder)?;
        }
        fs::rename(partial, to)?;
        self.faults.step()
    }
}

/// A folder that only its owner can read: what was said can be told from its files.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// What a folder holds; nothing where it is not there.
pub(crate) fn entries(path: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(path) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
