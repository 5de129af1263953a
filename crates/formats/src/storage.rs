//! The bytes of one file: memory-mapped, owned, or built into the program.
//!
//! A view (`bytes`) touches only the pages it reads, so opening a 16 GB file costs its header.
//! `read_at` copies through the file instead, for streaming work whose resident memory must not
//! grow with the file.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::Path;

/// A read-only run of bytes with a length fixed at opening.
#[derive(Debug)]
pub struct Storage {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap, File),
    Owned(Vec<u8>),
    Static(&'static [u8]),
}

impl Storage {
    /// Maps a file. Nothing is read yet.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
        }
        if metadata.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only. Model files are written to a sibling and
        // renamed, by us and by other tools, so a mapped file keeps its inode and length; one
        // truncated in place while mapped ends the process with SIGBUS, which no memory-mapping
        // loader can turn into an error.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { bytes: Bytes::Mapped(map, file) })
    }

    /// The whole content.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map, _) => map,
            Bytes::Owned(bytes) => bytes,
            Bytes::Static(bytes) => bytes,
        }
    }

    /// Copies the bytes at `offset` into `out`, without mapping them where the content is a file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if let Bytes::Mapped(_, file) = &self.bytes {
            return read_exact_at(file, out, offset);
        }
        let source = usize::try_from(offset)
            .ok()
            .and_then(|start| self.bytes().get(start..)?.get(..out.len()));
        out.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl From<Vec<u8>> for Storage {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes: Bytes::Owned(bytes) }
    }
}

impl From<&'static [u8]> for Storage {
    fn from(bytes: &'static [u8]) -> Self {
        Self { bytes: Bytes::Static(bytes) }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (out, offset) = (&mut out[n..], offset + n as u64),
        }
    }
    Ok(())
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        (bytes, offset) = (&bytes[n..], offset + n as u64);
    }
    Ok(())
}
