//! Tiles in a file, for experts that are more than the memory there is: the system keeps in memory
//! what was used of late, drops what it needs the room of, and reads that again when it is used.

#[cfg(target_os = "linux")]
use super::unreadable::Watched;
use crate::Error;
use memmap2::{Mmap, MmapMut};
use std::{io, ops::Range, path::Path};
#[cfg(not(target_os = "linux"))]
use system::Watched;

/// Bytes that are asked for at a time. Of a request that is longer than its read-ahead, mostly 128
/// KiB, the system may read the beginning alone.
const REQUEST: usize = 128 << 10;

/// Pages that are looked at in one call: an expert's matrix has fewer, mostly.
const LOOK: usize = 1024;

/// Bytes in a file that has no name, so that it goes with the process however that ends, and nobody
/// else can shorten it.
pub(crate) struct OnDisk {
    watched: Watched,
    map: Mmap,
}

impl OnDisk {
    /// Writes `len` bytes, zeros before, to a file in that folder. Its room is taken first: a disk
    /// that turned out full later on would end the process by a signal. When this returns they lie
    /// on the disk, so the system may drop any of them from memory.
    pub(crate) fn write(
        folder: &Path,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<Self, Error> {
        let refused = |reason: io::Error| Error::Disk {
            folder: folder.display().to_string(),
            bytes: len,
            reason: reason.to_string(),
        };
        let file = tempfile::tempfile_in(folder).map_err(refused)?;
        system::reserve(&file, len).map_err(refused)?;
        // SAFETY: the file has that length, and no name by which somebody else could change it.
        let mut map = unsafe { MmapMut::map_mut(&file) }.map_err(refused)?;
        write(&mut map);
        map.flush().map_err(refused)?;
        let map = map.make_read_only().map_err(refused)?;
        Ok(Self { watched: Watched::new(&map), map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Whether the disk did not give some of it back: what was read then are zeros.
    pub(crate) fn has_failed(&self) -> bool {
        self.watched.has_failed()
    }

    /// Has the system read what is not in memory of bytes that are used soon, and does not wait for
    /// it. To look first costs a tenth of asking for what is there.
    pub(crate) fn read_ahead(&self, range: Range<usize>) {
        let page = system::page_bytes();
        let start = range.start / page * page;
        for first in (start..range.end).step_by(LOOK * page) {
            let part = &self.map[first..range.end.min(first + LOOK * page)];
            let mut is_there = [false; LOOK];
            system::look(part, &mut is_there);
            let requests = part.chunks(REQUEST).zip(is_there.chunks(REQUEST / page));
            for (i, (bytes, is_there)) in requests.enumerate() {
                if is_there[..bytes.len().div_ceil(page)].contains(&false) {
                    system::ask(&self.map, first + i * REQUEST, bytes.len());
                }
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use memmap2::{Advice, Mmap};
    use std::{fs::File, io, os::fd::AsRawFd};

    /// Makes a file that long, with blocks of the disk for all of it.
    pub(super) fn reserve(file: &File, len: usize) -> io::Result<()> {
        let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if lies_in_memory(file) {
            return Err(io::Error::other("what is written there stays in memory"));
        }
        // SAFETY: the descriptor is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// Whether the file system has no disk.
    fn lies_in_memory(file: &File) -> bool {
        // SAFETY: numbers, for which zero is one.
        let mut told: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and there is room for the answer.
        let is_told = unsafe { libc::fstatfs(file.as_raw_fd(), &mut told) } == 0;
        const RAMFS_MAGIC: u32 = 0x8584_58f6;
        is_told && [libc::TMPFS_MAGIC as u32, RAMFS_MAGIC].contains(&(told.f_type as u32))
    }

    pub(super) fn page_bytes() -> usize {
        // SAFETY: it only answers.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    }

    /// Which pages of mapped bytes, from the beginning of one on, are in memory; none where the
    /// system does not say.
    pub(super) fn look(bytes: &[u8], is_there: &mut [bool]) {
        let mut pages = [0u8; super::LOOK];
        assert!(bytes.len().div_ceil(page_bytes()) <= pages.len());
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the bytes are mapped, and there is room for an answer for each of their pages.
        if unsafe { libc::mincore(start, bytes.len(), pages.as_mut_ptr()) } == 0 {
            is_there.iter_mut().zip(pages).for_each(|(is_there, page)| *is_there = page & 1 == 1);
        }
    }

    /// Begins to read; whatever becomes of that, what is not there is read when it is used.
    pub(super) fn ask(map: &Mmap, first: usize, len: usize) {
        let _ = map.advise_range(Advice::WillNeed, first, len);
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use memmap2::Mmap;
    use std::{fs::File, io};

    pub(super) fn reserve(_: &File, _: usize) -> io::Result<()> {
        Err(io::Error::other("only Linux takes the room of a file before it is written"))
    }

    pub(super) struct Watched;

    impl Watched {
        pub(super) fn new(_: &[u8]) -> Self {
            Self
        }

        pub(super) fn has_failed(&self) -> bool {
            false
        }
    }

    pub(super) fn page_bytes() -> usize {
        4096
    }

    pub(super) fn look(_: &[u8], _: &mut [bool]) {}

    pub(super) fn ask(_: &Mmap, _: usize, _: usize) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::{fs, time::Duration};

    /// A folder beside the program: that for temporary files may lie in memory.
    fn folder() -> tempfile::TempDir {
        let program = std::env::current_exe().expect("a path");
        tempfile::tempdir_in(program.parent().expect("a folder")).expect("a folder")
    }

    #[test]
    fn a_file_holds_what_was_written_and_has_no_name() {
        let folder = folder();
        let names = || fs::read_dir(folder.path()).expect("it is read").count();
        let disk = OnDisk::write(folder.path(), 300_000, |bytes| {
            assert_eq!(names(), 0);
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.iter_mut().zip((0..=250).cycle()).for_each(|(b, n)| *b = n);
        });
        let disk = disk.expect("there is room");
        assert_eq!(names(), 0);
        assert_eq!(disk.bytes().as_ptr() as usize % 64, 0, "as memory is aligned");
        assert!(disk.bytes().iter().zip((0..=250).cycle()).all(|(b, n)| *b == n));
        assert_eq!(disk.bytes().len(), 300_000);
    }

    #[test]
    fn folders_that_cannot_are_refused_before_anything_is_written() {
        let folder = folder();
        let refused = |folder: &Path, len| {
            let written = OnDisk::write(folder, len, |_| panic!("there is nothing to write to"));
            written.err().expect("a refusal").to_string()
        };
        let said = refused(folder.path(), 1 << 50);
        let begin = format!("`{}` cannot hold 1125899906.8 MB", folder.path().display());
        assert!(said.starts_with(&begin), "{said}");
        let said = refused(&folder.path().join("gone"), 1);
        assert!(said.contains("gone` cannot hold") && said.contains("No such file"), "{said}");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(refused(&file, 1).contains("Not a directory"));
    }

    #[test]
    fn what_was_dropped_is_read_ahead() {
        let folder = folder();
        let (page, len) = (system::page_bytes(), 9 << 20);
        let disk = OnDisk::write(folder.path(), len, |bytes| bytes.fill(7)).expect("room");
        let there = |range: Range<usize>| {
            let pages = range.step_by(page).map(|at| {
                let mut is_there = [false; LOOK];
                system::look(&disk.map[at..(at + page).min(len)], &mut is_there);
                is_there[0]
            });
            pages.collect::<Vec<_>>()
        };
        let start = disk.map.as_ptr().cast_mut().cast();
        if !there(0..len).iter().all(|is_there| *is_there) {
            return eprintln!("skipped: the system does not say what is in memory");
        }
        // SAFETY: pages of a file come back with what it holds.
        unsafe { libc::madvise(start, len, libc::MADV_PAGEOUT) };
        if there(0..len).iter().all(|is_there| *is_there) {
            return eprintln!("skipped: this file system drops nothing");
        }
        // More than is looked at in one call, from within a page on.
        let wanted = (2 << 20) + 100..(7 << 20) + 1;
        disk.read_ahead(wanted.clone());
        let pages = wanted.start / page * page..wanted.end;
        let mut waited = 0;
        while there(pages.clone()).contains(&false) {
            std::thread::sleep(Duration::from_millis(1));
            waited += 1;
            if waited > 60_000 {
                return eprintln!("skipped: this disk is not read ahead");
            }
        }
        assert!(disk.bytes().iter().all(|b| *b == 7));
    }
}
