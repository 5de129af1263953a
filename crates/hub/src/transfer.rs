//! Fetching one file: pieces over several connections, each tried again by itself, then the
//! checksum, then the final name.

use crate::client::{Client, Failure, Stopped, header};
use crate::digest::Digest;
use crate::partial::Partial;
use crate::pull::Watcher;
use anyhow::{Context, Error, Result, anyhow, bail};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What Git keeps in place of a large file.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1";

/// A file to fetch.
pub(crate) struct Wanted<'a> {
    /// Its address on the Hub.
    pub(crate) url: String,
    /// For people.
    pub(crate) name: &'a str,
    pub(crate) size: u64,
    pub(crate) digest: &'a Digest,
    /// Its final name.
    pub(crate) blob: &'a Path,
}

/// One file on its way.
struct Transfer<'a> {
    client: &'a Client<'a>,
    wanted: &'a Wanted<'a>,
    partial: &'a Partial,
    watcher: &'a Watcher,
    /// Where its bytes lie; nothing while nobody has asked, or since the answer went stale.
    place: Mutex<Option<String>>,
    /// Set when a piece has failed for good, so that the others end.
    failed: AtomicBool,
}

/// Why a file did not come.
enum Broken {
    /// The server gives whole files only.
    NoRanges,
    Other(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Fetches a file, or what is missing of it. Says how many bytes came.
pub(crate) fn fetch(client: &Client<'_>, wanted: &Wanted<'_>, watcher: &Watcher) -> Result<u64> {
    let mut piece = client.settings.piece.max(1);
    let mut came = 0;
    loop {
        let partial = Partial::open(wanted.blob, wanted.size, piece)?;
        let was_resumed = !partial.there.is_empty();
        watcher.advance(partial.there.iter().map(|n| partial.span(*n)).map(|(a, b)| b - a).sum());
        match fetch_pieces(client, wanted, &partial, watcher) {
            Ok(bytes) => came += bytes,
            Err(Broken::NoRanges) if piece < wanted.size => {
                partial.discard();
                watcher.restart(wanted.name);
                piece = wanted.size;
                continue;
            }
            Err(Broken::NoRanges) => bail!(
                "{}: the connection broke, and the server sends whole files only: try again",
                wanted.name
            ),
            Err(Broken::Other(error)) => return Err(error),
        }
        watcher.say_checking(wanted.name);
        if wanted.digest.is_of(partial.data(), |_| !client.is_stopped())? {
            partial.finish(wanted.blob)?;
            return Ok(came);
        }
        let is_pointer = is_pointer(partial.data());
        partial.discard();
        // What an earlier run has left may have suffered since, say when the power went out.
        if was_resumed {
            watcher.restart(wanted.name);
            continue;
        }
        if is_pointer {
            bail!(
                "{}: {} sends a Git LFS pointer in place of the file; it does not serve large \
                 files",
                wanted.name,
                client.settings.endpoint
            );
        }
        bail!(
            "{}: what came does not have the checksum {} that the Hub names; nothing of it was \
             kept, try again",
            wanted.name,
            wanted.digest.etag()
        );
    }
}

/// Fetches all pieces that are missing.
fn fetch_pieces(
    client: &Client<'_>,
    wanted: &Wanted<'_>,
    partial: &Partial,
    watcher: &Watcher,
) -> Result<u64, Broken> {
    let (place, failed) = (Mutex::new(None), AtomicBool::new(false));
    let transfer = Transfer { client, wanted, partial, watcher, place, failed };
    let missing = partial.missing();
    let next = AtomicUsize::new(0);
    let work = || -> Result<u64, Broken> {
        let mut came = 0;
        while let Some(number) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            came += transfer.fetch_piece(*number)?;
            partial.note(*number)?;
        }
        Ok(came)
    };
    let watched = || work().inspect_err(|_| transfer.failed.store(true, Ordering::Relaxed));
    let workers = client.settings.connections.clamp(1, missing.len().max(1));
    let results: Vec<Result<u64, Broken>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(watched)).collect();
        threads.into_iter().map(|t| t.join().expect("a piece does not panic")).collect()
    });
    // Those that ended because another failed have less to say.
    let (mut came, mut broken) = (0, None);
    for result in results {
        match result {
            Ok(bytes) => came += bytes,
            Err(error) if broken.is_none() || !is_stop(&error) => broken = Some(error),
            Err(_) => {}
        }
    }
    broken.map_or(Ok(came), Err)
}

fn is_stop(error: &Broken) -> bool {
    matches!(error, Broken::Other(error) if error.is::<Stopped>())
}

impl Transfer<'_> {
    /// Fetches a piece, going on where a connection broke.
    fn fetch_piece(&self, number: u64) -> Result<u64, Broken> {
        let (first, end) = self.partial.span(number);
        let mut file = self.partial.writer(first)?;
        let mut at = first;
        let mut no_ranges = false;
        let result = self.client.patiently(|| {
            if self.failed.load(Ordering::Relaxed) {
                return Err(Failure::Final(Stopped.into()));
            }
            if at == end {
                return Ok(());
            }
            let before = at;
            let read = self.read(&mut at, end, &mut file, &mut no_ranges);
            match read {
                Err(Failure::Again { why, after, .. }) => {
                    Err(Failure::Again { why, after, moved: at > before })
                }
                other => other,
            }
        });
        match result {
            Ok(()) => Ok(end - first),
            Err(_) if no_ranges => Err(Broken::NoRanges),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads from `at` to `end` over one connection.
    fn read(
        &self,
        at: &mut u64,
        end: u64,
        file: &mut impl Write,
        no_ranges: &mut bool,
    ) -> Result<(), Failure> {
        let Wanted { size, .. } = *self.wanted;
        let place = self.place()?;
        let is_whole = *at == 0 && end == size;
        let range = (!is_whole).then(|| (*at, end - 1));
        let response = self.client.get(&place, range)?;
        match (response.status().as_u16(), range) {
            (200, None) => {}
            (206, Some((first, last))) => {
                let said = header(response.headers(), "content-range").unwrap_or_default();
                if said != format!("bytes {first}-{last}/{size}") {
                    let name = self.wanted.name;
                    return Err(anyhow!(
                        "{name}: bytes {first} to {last} of {size} were asked for, `{said}` came"
                    )
                    .into());
                }
            }
            (200, Some(_)) => {
                *no_ranges = true;
                return Err(anyhow!("no ranges").into());
            }
            _ => return Err(self.refused(&place, &response)),
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        while *at < end {
            if self.client.is_stopped() || self.failed.load(Ordering::Relaxed) {
                return Err(Failure::Final(Stopped.into()));
            }
            let count = match body.read(&mut buffer) {
                Ok(0) => return Err(Failure::again(anyhow!("the connection ended early"), false)),
                Ok(count) => count,
                Err(error) => return Err(Failure::again(error.into(), false)),
            };
            let count = count.min(usize::try_from(end - *at).unwrap_or(usize::MAX));
            file.write_all(&buffer[..count]).context("writing to the cache")?;
            *at += count as u64;
            self.watcher.advance(count as u64);
        }
        Ok(())
    }

    /// Where the bytes lie: asked once, for a Hub counts such questions.
    fn place(&self) -> Result<String, Failure> {
        let mut place = self.place.lock().expect("asking does not panic");
        if place.is_none() {
            *place = Some(self.client.locate(&self.wanted.url)?);
        }
        Ok(place.clone().unwrap_or_default())
    }

    /// A place that is signed is good for a while only; then the Hub names another.
    fn refused(&self, place: &str, response: &ureq::http::Response<ureq::Body>) -> Failure {
        let stale = matches!(response.status().as_u16(), 400 | 401 | 403 | 404 | 410);
        if stale && !self.client.is_hub(place) {
            let mut known = self.place.lock().expect("asking does not panic");
            if known.as_deref() == Some(place) {
                *known = None;
            }
            let why = anyhow!("{}: {} at {place}", self.wanted.name, response.status());
            return Failure::again(why, false);
        }
        self.client.refusal(place, response)
    }
}

fn is_pointer(path: &Path) -> bool {
    let mut beginning = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(POINTER.len() as u64).read_to_end(&mut beginning));
    read.is_ok() && beginning == POINTER
}
