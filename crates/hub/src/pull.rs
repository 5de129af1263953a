//! `pull`: everything that a name means, into the cache that programs of Hugging Face share. What
//! is there already does not come again.

use crate::cache::Cached;
use crate::choose::choose;
use crate::client::Client;
use crate::find::find_hub;
use crate::listing::{Listing, Remote, list};
use crate::partial::Partial;
use crate::transfer::{Wanted, fetch};
use crate::{HubName, Settings, disk};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What a pull has brought.
#[derive(Debug)]
pub struct Pulled {
    /// The file or folder to open.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes that came over the network.
    pub fetched: u64,
}

/// Shows how far a pull is.
pub struct Watcher(ProgressBar);

impl Watcher {
    /// A bar on a terminal.
    pub fn on_terminal() -> Self {
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(style).expect("the template is a constant");
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        Self(bar.with_style(style))
    }

    /// Nothing is shown.
    pub fn silent() -> Self {
        Self(ProgressBar::hidden())
    }

    fn begin(&self, name: &str, bytes: u64) {
        self.0.reset();
        self.0.set_length(bytes);
        self.0.set_message(name.to_owned());
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    pub(crate) fn restart(&self, name: &str) {
        self.0.set_position(0);
        self.0.set_message(format!("{name} (anew)"));
    }

    pub(crate) fn say_checking(&self, name: &str) {
        self.0.set_message(format!("{name} (checking)"));
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Fetches what `name` means and is not here yet. `stop` ends it; what has come is kept for the
/// next time.
pub fn pull(
    name: &HubName,
    settings: &Settings,
    watcher: &Watcher,
    stop: &AtomicBool,
) -> Result<Pulled> {
    if settings.offline {
        let Some(path) = find_hub(name, settings)? else {
            bail!(
                "`{name}` is not on this machine, and `HF_HUB_OFFLINE` says that nothing is fetched"
            );
        };
        return Ok(Pulled { path, bytes: 0, fetched: 0 });
    }
    let client = Client::new(settings, stop)?;
    let listing = match list(&client, name) {
        Ok(listing) => listing,
        // Without a network what is here is as good as it was yesterday.
        Err(error) if error.chain().any(|cause| cause.is::<ureq::Error>()) => {
            let Some(path) = find_hub(name, settings)? else { return Err(error) };
            eprintln!("note: {error:#}; what is on this machine is taken");
            return Ok(Pulled { path, bytes: 0, fetched: 0 });
        }
        Err(error) => return Err(error),
    };
    let choice = choose(name, &listing.files)?;
    let cached = Cached::new(&settings.cache, &name.repository);
    let to_come = |file: &&&Remote| {
        let blob = cached.blob(file.digest.etag());
        match blob.is_file() {
            true => 0,
            false => file.size - Partial::bytes_there(&blob, file.size, settings.piece),
        }
    };
    disk::check(&settings.cache, choice.files.iter().map(|file| to_come(&file)).sum())?;
    cached.begin(&listing.commit)?;
    let mut fetched = 0;
    for file in &choice.files {
        fetched += pull_file(&client, name, &listing, file, &cached, watcher)
            .with_context(|| format!("`{}` of `{}`", file.path, name.repository))?;
    }
    watcher.end();
    // What came with an earlier commit and is the same in this one stays found.
    for file in listing.files.iter().filter(|file| cached.blob(file.digest.etag()).is_file()) {
        cached.link(&listing.commit, &file.path, file.digest.etag())?;
    }
    // A branch is where it is only when all of that is here.
    cached.remember(name.revision(), &listing.commit)?;
    let snapshot = cached.snapshot(&listing.commit);
    let path = choice.open.map_or_else(|| snapshot.clone(), |file| snapshot.join(&file.path));
    Ok(Pulled { path, bytes: choice.files.iter().map(|file| file.size).sum(), fetched })
}

/// Fetches one file, unless it is here, and links to it.
fn pull_file(
    client: &Client<'_>,
    name: &HubName,
    listing: &Listing,
    file: &Remote,
    cached: &Cached,
    watcher: &Watcher,
) -> Result<u64> {
    let etag = file.digest.etag();
    let blob = cached.blob(etag);
    let mut fetched = 0;
    if !blob.is_file() {
        let lock = cached.lock(etag, || {
            eprintln!("another program fetches {}: waiting for it", file.path);
        })?;
        // Whoever had the lock has perhaps brought it.
        if !blob.is_file() {
            watcher.begin(&file.path, file.size);
            let (endpoint, repository) = (&client.settings.endpoint, &name.repository);
            let url = format!(
                "{endpoint}/{repository}/resolve/{}/{}",
                listing.commit,
                quoted(&file.path)
            );
            let Remote { size, digest, .. } = file;
            let wanted = Wanted { url, name: &file.path, size: *size, digest, blob: &blob };
            fetched = fetch(client, &wanted, watcher)?;
        }
        drop(lock);
    }
    cached.link(&listing.commit, &file.path, etag)?;
    Ok(fetched)
}

/// A path as an address spells it.
fn quoted(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    path.bytes().fold(String::new(), |mut text, byte| {
        match plain(byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
        text
    })
}
