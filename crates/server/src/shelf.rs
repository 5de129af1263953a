//! Tells who listens which states lie on disk: those of an earlier process, those that were written
//! since, here or by another server of the same folder, and when they go. A thread of its own looks,
//! so that the engine's never waits for a disk.

use crate::beside::{Change, Tier};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store::{Folder, Found};
use tokio::sync::mpsc::UnboundedSender;

/// How often it is looked what there is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What has been told.
struct Shelf {
    told: HashMap<Found, Box<[u32]>>,
    listener: UnboundedSender<Change>,
}

/// Tells of a folder's states as long as it is in use.
pub(crate) fn watch(
    folder: &Arc<Folder>,
    listener: UnboundedSender<Change>,
) -> std::io::Result<()> {
    let folder: Weak<Folder> = Arc::downgrade(folder);
    let thread = std::thread::Builder::new().name("shelf".to_owned());
    thread.spawn(move || {
        let mut shelf = Shelf { told: HashMap::new(), listener };
        while let Some(folder) = folder.upgrade() {
            shelf.look(&folder);
            drop(folder);
            std::thread::sleep(LOOK_EVERY);
        }
        // Whoever opens the folder next tells of it anew.
        shelf.keep_only(&HashSet::new());
    })?;
    Ok(())
}

impl Shelf {
    fn look(&mut self, folder: &Folder) {
        // A folder that cannot be read for once is looked at again.
        let Ok(there) = folder.states() else { return };
        self.keep_only(&there.iter().copied().collect());
        for found in there {
            if self.told.contains_key(&found) {
                continue;
            }
            if let Some(tokens) = folder.tokens(found) {
                self.tell(&tokens, None, Some(Tier::Disk));
                self.told.insert(found, tokens.into());
            }
        }
    }

    /// Tells of what is gone.
    fn keep_only(&mut self, there: &HashSet<Found>) {
        let gone: Vec<_> = self.told.extract_if(|found, _| !there.contains(found)).collect();
        gone.iter().for_each(|(_, tokens)| self.tell(tokens, Some(Tier::Disk), None));
    }

    fn tell(&self, tokens: &[u32], from: Option<Tier>, to: Option<Tier>) {
        let _ = self.listener.send(Change::Moved { tokens: tokens.into(), from, to });
    }
}
