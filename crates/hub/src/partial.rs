//! A file that has come in part: its bytes, each where it belongs, and a journal of the pieces that
//! are there. It has names of its own, beside the final one, until all of it is there and right.
//!
//! Python's `huggingface_hub` goes on at the end of a file `ETAG.incomplete`; ours has holes, so it
//! is called otherwise.

use crate::cache::{beside, create_parent};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The file and its journal.
#[derive(Debug)]
pub(crate) struct Partial {
    data: PathBuf,
    journal_path: PathBuf,
    journal: Mutex<File>,
    size: u64,
    piece: u64,
    /// Numbers of the pieces that were there when it was opened.
    pub(crate) there: BTreeSet<u64>,
}

impl Partial {
    /// Opens what an earlier run has left of `blob`, or begins anew.
    pub(crate) fn open(blob: &Path, size: u64, piece: u64) -> Result<Self> {
        create_parent(blob)?;
        let (data, journal_path) = (beside(blob, "partial"), beside(blob, "pieces"));
        let header = format!("{size} {piece}");
        let there = read_journal(&journal_path, &header, size.div_ceil(piece));
        let is_whole = fs::metadata(&data).is_ok_and(|metadata| metadata.len() == size);
        let there = there.filter(|_| is_whole);
        let about = || data.display().to_string();
        if there.is_none() {
            let file = File::create(&data).with_context(about)?;
            file.set_len(size).with_context(about)?;
        }
        // Written anew, for the next line must not go on where one was cut short.
        let there = there.unwrap_or_default();
        let lines = there.iter().fold(header, |lines, number| format!("{lines}\n{number}"));
        fs::write(&journal_path, lines + "\n").with_context(about)?;
        let journal = OpenOptions::new().append(true).open(&journal_path).with_context(about)?;
        Ok(Self { data, journal_path, journal: Mutex::new(journal), size, piece, there })
    }

    /// Bytes of `blob` that have come already.
    pub(crate) fn bytes_there(blob: &Path, size: u64, piece: u64) -> u64 {
        let header = format!("{size} {piece}");
        let there = read_journal(&beside(blob, "pieces"), &header, size.div_ceil(piece));
        let pieces = there.unwrap_or_default().into_iter();
        pieces.map(|number| span(number, size, piece)).map(|(first, end)| end - first).sum()
    }

    /// The first byte of a piece and the one behind its last.
    pub(crate) fn span(&self, number: u64) -> (u64, u64) {
        span(number, self.size, self.piece)
    }

    /// The pieces that are not there.
    pub(crate) fn missing(&self) -> Vec<u64> {
        let all = 0..self.size.div_ceil(self.piece);
        all.filter(|number| !self.there.contains(number)).collect()
    }

    /// Where to write from that byte on.
    pub(crate) fn writer(&self, at: u64) -> Result<File> {
        let about = || self.data.display().to_string();
        let mut file = OpenOptions::new().write(true).open(&self.data).with_context(about)?;
        file.seek(SeekFrom::Start(at)).with_context(about)?;
        Ok(file)
    }

    /// Writes down that a piece is there.
    pub(crate) fn note(&self, number: u64) -> Result<()> {
        let mut journal = self.journal.lock().expect("nobody panics while writing a line");
        let written = journal.write_all(format!("{number}\n").as_bytes());
        written.with_context(|| self.journal_path.display().to_string())
    }

    /// The file.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Gives the file its final name. It has been compared with its checksum.
    pub(crate) fn finish(self, blob: &Path) -> Result<()> {
        let about = || blob.display().to_string();
        File::open(&self.data).and_then(|file| file.sync_all()).with_context(about)?;
        fs::rename(&self.data, blob).with_context(about)?;
        let _ = fs::remove_file(&self.journal_path);
        Ok(())
    }

    /// Removes all of it.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(&self.data);
        let _ = fs::remove_file(&self.journal_path);
    }
}

fn span(number: u64, size: u64, piece: u64) -> (u64, u64) {
    (number * piece, size.min((number + 1) * piece))
}

/// The pieces that a journal notes; nothing where it is about another file. A last line that was
/// cut short may be the beginning of a longer number and does not count.
fn read_journal(path: &Path, header: &str, pieces: u64) -> Option<BTreeSet<u64>> {
    let text = fs::read_to_string(path).ok()?;
    let whole = &text[..=text.rfind('\n')?];
    let mut lines = whole.lines();
    let numbers = (lines.next()? == header).then_some(lines)?;
    let numbers = numbers.filter_map(|line| line.parse().ok());
    Some(numbers.filter(|number| *number < pieces).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_counts_whole_lines_of_its_own_file() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blobs/x");
        let partial = Partial::open(&blob, 100, 30).unwrap();
        assert_eq!(partial.missing(), [0, 1, 2, 3]);
        assert_eq!((partial.span(0), partial.span(3)), ((0, 30), (90, 100)));
        partial.note(3).unwrap();
        partial.note(1).unwrap();
        let journal = partial.journal_path.clone();
        drop(partial);
        OpenOptions::new().append(true).open(&journal).unwrap().write_all(b"2").unwrap();
        let again = Partial::open(&blob, 100, 30).unwrap();
        assert_eq!(again.missing(), [0, 2]);
        assert_eq!(Partial::bytes_there(&blob, 100, 30), 40);
        again.note(0).unwrap();
        assert_eq!(Partial::open(&blob, 100, 30).unwrap().missing(), [2], "0, not 20");
        assert_eq!(Partial::open(&blob, 101, 30).unwrap().missing().len(), 4, "another size");
        assert!(!blob.exists());
    }
}
