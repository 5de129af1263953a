//! The cache folder that programs of Hugging Face share:
//!
//! ```text
//! models--owner--name/
//!   blobs/ETAG                     the files, under their checksums
//!   refs/main                      the commit that a branch was at
//!   snapshots/COMMIT/path/to/file  links to blobs
//!   COMMIT.forerun-begun           while the first pull of a commit is not whole
//! .locks/models--owner--name/ETAG.lock
//! ```

use crate::choose::Listed;
use anyhow::{Context, Result};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A repository's part of the cache.
#[derive(Debug)]
pub(crate) struct Cached {
    cache: PathBuf,
    /// `models--owner--name`.
    folder: String,
}

/// A file that lies in a folder.
#[derive(Debug)]
pub(crate) struct Lying {
    path: String,
    size: u64,
}

impl Listed for Lying {
    fn path(&self) -> &str {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }
}

impl Cached {
    pub(crate) fn new(cache: &Path, repository: &str) -> Self {
        let folder = format!("models--{}", repository.replace('/', "--"));
        Self { cache: cache.to_owned(), folder }
    }

    fn root(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    /// Where the file of that checksum lies when it is whole.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.root().join("blobs").join(etag)
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root().join("snapshots").join(commit)
    }

    /// The folder of a branch, a tag or a commit, where there is one. A cache whose branches are
    /// not written down but which has a single snapshot leaves no doubt either.
    pub(crate) fn snapshot_of(&self, revision: &str) -> Option<PathBuf> {
        let said = fs::read_to_string(self.root().join("refs").join(revision)).ok();
        let commit = said.as_deref().map_or(revision, str::trim);
        let named = Some(self.snapshot(commit)).filter(|folder| folder.is_dir());
        named.or_else(|| {
            let mut all = fs::read_dir(self.root().join("snapshots")).ok()?.flatten();
            let first = all.next()?.path();
            (revision == "main" && all.next().is_none()).then_some(first)
        })
    }

    /// What says that the first pull of a commit is under way, or was interrupted.
    fn begun(&self, commit: &Path) -> PathBuf {
        beside(&self.root().join(commit), "begun")
    }

    /// Writes down that a commit is being fetched, where nothing of it is here.
    pub(crate) fn begin(&self, commit: &str) -> Result<()> {
        if self.snapshot(commit).exists() {
            return Ok(());
        }
        let path = self.begun(Path::new(commit));
        create_parent(&path)?;
        File::create(&path).map(|_| ()).with_context(|| shown(&path))
    }

    /// Whether a snapshot's first pull was interrupted, as far as no branch says otherwise.
    pub(crate) fn is_half(&self, revision: &str, snapshot: &Path) -> bool {
        let commit = Path::new(snapshot.file_name().unwrap_or_default());
        !self.root().join("refs").join(revision).is_file() && self.begun(commit).exists()
    }

    /// Writes down which commit a branch is at, all of what was asked for being here.
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.root().join("refs").join(revision);
        let known = fs::read_to_string(&path).is_ok_and(|said| said.trim() == commit);
        if !known && revision != commit {
            create_parent(&path)?;
            let new = beside_alone(&path);
            let written = File::create(&new).and_then(|mut file| file.write_all(commit.as_bytes()));
            written.and_then(|()| fs::rename(&new, &path)).with_context(|| shown(&path))?;
        }
        let _ = fs::remove_file(self.begun(Path::new(commit)));
        Ok(())
    }

    /// Lets a snapshot's path lead to a blob that is whole.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<()> {
        let link = self.snapshot(commit).join(path);
        if link.exists() {
            return Ok(());
        }
        create_parent(&link)?;
        let up = "../".repeat(path.split('/').count() + 1);
        let new = beside_alone(&link);
        let _ = fs::remove_file(&new);
        let made = make_link(&format!("{up}blobs/{etag}"), &self.blob(etag), &new);
        made.and_then(|()| fs::rename(&new, &link)).with_context(|| shown(&link))
    }

    /// Waits until nobody else fetches that file, by the lock that other programs take as well.
    pub(crate) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<File> {
        let path = self.cache.join(".locks").join(&self.folder).join(format!("{etag}.lock"));
        create_parent(&path)?;
        let file = File::create(&path).with_context(|| shown(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().with_context(|| shown(&path))?;
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| shown(&path)),
        }
        Ok(file)
    }
}

/// All files below a folder, links followed, by their paths from there.
pub(crate) fn files_below(folder: &Path) -> Vec<Lying> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            // A link that leads nowhere is a file that is not here.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else if let Ok(below) = path.strip_prefix(folder) {
                let parts: Vec<_> = below.components().map(Component::as_os_str).collect();
                let parts: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
                files.push(Lying { path: parts.join("/"), size: metadata.len() });
            }
        }
    }
    files
}

/// The same path with another ending, for what is to be renamed to it.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".forerun-{ending}"));
    path.with_file_name(name)
}

/// The same with an ending that nobody else uses, in this process or in another: two that rename
/// one file would be in each other's way.
fn beside_alone(path: &Path) -> PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    beside(path, &format!("{}-{number}", std::process::id()))
}

/// Makes the folder that a file is to lie in.
pub(crate) fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(parent).with_context(|| shown(parent))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(unix)]
fn make_link(to: &str, _: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

/// Links need a right on Windows that most users do not have; a second name for the file does not.
#[cfg(not(unix))]
fn make_link(_: &str, blob: &Path, at: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, at).or_else(|_| fs::copy(blob, at).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_may_write_down_a_branch_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..100 {
            let (branch, cached) = (format!("b{number}"), Cached::new(folder.path(), "o/m"));
            std::thread::scope(|scope| {
                let all = [(); 8].map(|()| scope.spawn(|| cached.remember(&branch, "c0ffee")));
                all.into_iter().for_each(|one| one.join().unwrap().unwrap());
            });
        }
        let refs = folder.path().join("models--o--m/refs");
        assert_eq!(fs::read_dir(refs).unwrap().count(), 100, "nothing else is left");
    }
}
