//! Mapped files that their disk does not give any more. A processor learns of that in the middle of
//! a product, and the system ends the process (SIGBUS) unless it has said what else is to be done.
//! Here it has: zeros take the file's place, so the pass comes to its end, and the file is known to
//! have failed, so nobody takes what came of it for an answer.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Where a file is mapped. Never freed, since a signal may look at it at any time, but used again.
#[derive(Default)]
struct Place {
    is_taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    has_failed: AtomicBool,
    /// Written before others can see this place.
    next: AtomicPtr<Place>,
}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// What was done with the signal before.
static FORMER: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

fn places() -> impl Iterator<Item = &'static Place> {
    let at = |place: &AtomicPtr<Place>| {
        // SAFETY: what is in the list is whole and stays.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    };
    std::iter::successors(at(&FIRST), move |place| at(&place.next))
}

/// A mapped file that may turn out unreadable. Has to go before the mapping does.
pub(super) struct Watched(&'static Place);

impl Watched {
    /// Watches bytes that begin with a page of memory.
    pub(super) fn new(mapped: &[u8]) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(handle);
        let start = mapped.as_ptr() as usize;
        let take = |place: &&Place| !place.is_taken.swap(true, Ordering::AcqRel);
        let place = places().find(take).unwrap_or_else(append);
        place.has_failed.store(false, Ordering::Relaxed);
        place.end.store(start + mapped.len(), Ordering::Release);
        place.start.store(start, Ordering::Release);
        Self(place)
    }

    /// Whether zeros were read instead of it.
    pub(super) fn has_failed(&self) -> bool {
        self.0.has_failed.load(Ordering::Acquire)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
        self.0.end.store(0, Ordering::Release);
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// One more place, taken.
fn append() -> &'static Place {
    let place: &'static Place =
        Box::leak(Box::new(Place { is_taken: true.into(), ..Place::default() }));
    let link = |first| {
        place.next.store(first, Ordering::Relaxed);
        Some(ptr::from_ref(place).cast_mut())
    };
    let _ = FIRST.fetch_update(Ordering::AcqRel, Ordering::Acquire, link);
    place
}

/// From now on the signal comes here first.
fn handle() {
    // SAFETY: numbers and addresses, for which zero is one.
    let mut former: Box<libc::sigaction> = Box::new(unsafe { std::mem::zeroed() });
    // SAFETY: as above.
    let mut own: libc::sigaction = unsafe { std::mem::zeroed() };
    let on_fault: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    own.sa_sigaction = on_fault as usize;
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both are whole; the function does nothing that a signal may not.
    unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut *former) };
    FORMER.store(Box::leak(former), Ordering::Release);
    // SAFETY: as above.
    unsafe { libc::sigaction(libc::SIGBUS, &own, ptr::null_mut()) };
}

/// Puts zeros where a watched file was, or gives the signal to whom it went before: the access is
/// tried again either way. Only looks at places and asks the system, as a signal may.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system says what happened.
    let address = unsafe { (*info).si_addr() } as usize;
    for place in places() {
        let (start, end) = (place.start.load(Ordering::Acquire), place.end.load(Ordering::Acquire));
        if start == 0 || !(start..end).contains(&address) {
            continue;
        }
        place.has_failed.store(true, Ordering::Release);
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let at = start as *mut libc::c_void;
        // SAFETY: only the file is mapped there, and it is only read.
        let zeros = unsafe { libc::mmap(at, end - start, libc::PROT_READ, how, -1, 0) };
        if zeros != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: it was written before the signal came here.
    unsafe { libc::sigaction(signal, FORMER.load(Ordering::Acquire), ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::Mmap;
    use std::fs::File;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn mapped(bytes: &[u8]) -> (File, Mmap) {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("it is written");
        // SAFETY: who shortens it knows of it.
        let map = unsafe { Mmap::map(&file) }.expect("it is mapped");
        (file, map)
    }

    #[test]
    fn zeros_take_the_place_of_a_file_that_fails_and_of_no_other() {
        let files: Vec<_> = (0..3).map(|i| mapped(&vec![i + 1; 100_000])).collect();
        let watched: Vec<Watched> = files.iter().map(|(_, map)| Watched::new(map)).collect();
        let failed = |watched: &[Watched]| -> Vec<bool> {
            watched.iter().map(Watched::has_failed).collect()
        };
        files[1].0.set_len(0).expect("it is shortened");
        assert_eq!(failed(&watched), [false; 3]);
        // Several threads at once.
        std::thread::scope(|scope| {
            for at in [0, 50_000, 99_999] {
                let map = &files[1].1;
                scope.spawn(move || assert_eq!(map[at], 0));
            }
        });
        assert_eq!(failed(&watched), [false, true, false]);
        assert!(files[0].1.iter().all(|b| *b == 1) && files[2].1.iter().all(|b| *b == 3));
        drop(watched);
        assert!(!Watched::new(&files[0].1).has_failed(), "a place is used again");
    }

    #[test]
    fn what_is_not_watched_ends_the_process_as_it_did() {
        const ASKED: &str = "FORERUN_TEST_UNWATCHED";
        if std::env::var_os(ASKED).is_some() {
            let (_, other) = mapped(&[1; 10]);
            let _watched = Watched::new(&other);
            let (file, map) = mapped(&[1; 10_000]);
            file.set_len(0).expect("it is shortened");
            panic!("{} was read", map[9_999]);
        }
        let name = "cpu::unreadable::tests::what_is_not_watched_ends_the_process_as_it_did";
        let program = std::env::current_exe().expect("a path");
        let ended = Command::new(program).args(["--exact", name]).env(ASKED, "").output();
        assert_eq!(ended.expect("it runs").status.signal(), Some(libc::SIGBUS));
    }
}
