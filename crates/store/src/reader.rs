//! The thread that reads states for those who wait for them.

use crate::folder::{Folder, Revival};
use crate::manifest::Manifest;
use engine::Sequence;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// What others wrote is looked for this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// States that are tried for a prompt, where files are not what they should be.
const TRIES: usize = 4;

/// Reads states on a thread of its own.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<Folder>,
    asks: Sender<Ask>,
    looked: Instant,
}

enum Ask {
    Read { prompt: Vec<u32>, least: usize, to: Sender<Option<Revival>> },
    Refresh,
}

/// A state that is being read.
#[derive(Debug)]
pub struct Awaited(Receiver<Option<Revival>>);

impl Awaited {
    /// What was read, once it was; nothing inside where the file was none.
    pub fn poll(&self) -> Option<Option<Revival>> {
        match self.0.try_recv() {
            Ok(revival) => Some(revival),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(None),
        }
    }

    /// Waits for it, so long at most.
    pub fn wait(&self, most: Duration) -> Option<Option<Revival>> {
        match self.0.recv_timeout(most) {
            Ok(revival) => Some(revival),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(None),
        }
    }
}

impl Reader {
    /// Starts the thread, which ends with this object. `blank` is an empty sequence of the engine
    /// that states are read for, and `vocab` the number of its tokens.
    pub fn start(folder: Arc<Folder>, blank: Sequence, vocab: usize) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel();
        let shelf = Arc::clone(&folder);
        std::thread::Builder::new().name("states read".to_owned()).spawn(move || {
            let fits =
                |manifest: &Manifest| manifest.outline.blocks(&blank, &manifest.tokens, vocab);
            for ask in asked {
                match ask {
                    Ask::Read { prompt, least, to } => {
                        // Where a file is none, the next shorter state may do.
                        let longest = || folder.longest(&prompt).filter(|f| f.len >= least);
                        let read = |_| folder.read(longest()?, &prompt, fits);
                        // Whoever has left does not hear it.
                        let _ = to.send((0..TRIES).find_map(read));
                    }
                    Ask::Refresh => {
                        let _ = folder.refresh();
                    }
                }
            }
        })?;
        Ok(Self { folder: shelf, asks, looked: Instant::now() })
    }

    /// Begins to read the state after the longest known beginning of `prompt`, where it has at
    /// least so many tokens.
    pub fn ask(&mut self, prompt: &[u32], least: usize) -> Option<(usize, Awaited)> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let _ = self.asks.send(Ask::Refresh);
        }
        let found = self.folder.longest(prompt).filter(|found| found.len >= least)?;
        let (to, awaited) = mpsc::channel();
        let prompt = prompt[..=found.len].to_vec();
        self.asks.send(Ask::Read { prompt, least, to }).ok()?;
        Some((found.len, Awaited(awaited)))
    }
}
