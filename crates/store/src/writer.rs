//! The thread that writes states behind whoever made them.

use crate::folder::Folder;
use engine::Archived;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;

/// Writes states on a thread of its own.
#[derive(Debug)]
pub struct Writer {
    states: Option<Sender<State>>,
    thread: Option<JoinHandle<()>>,
    backlog: Arc<AtomicUsize>,
}

/// A state to be written.
#[derive(Debug)]
struct State {
    tokens: Vec<u32>,
    archived: Archived,
    /// What it adds to the backlog. Blocks that it shares with one before it are written by then.
    counted: usize,
}

/// Bytes of a state that are still to be written.
fn unwritten(archived: &Archived) -> usize {
    archived.blocks.iter().filter(|block| block.memory().is_some()).map(|block| block.len()).sum()
}

impl Writer {
    /// Starts the thread. It begins by tidying the folder up, which may take a while.
    pub fn start(folder: Arc<Folder>) -> io::Result<Self> {
        let (states, written) = mpsc::channel::<State>();
        let backlog = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&backlog);
        let thread = std::thread::Builder::new().name("states".to_owned()).spawn(move || {
            if let Err(cause) = folder.collect() {
                let folder = folder.root.display();
                tracing::warn!(%folder, %cause, "kept states cannot be counted");
            }
            let mut failed = false;
            for State { tokens, archived, counted } in written {
                match folder.write(&tokens, &archived) {
                    Ok(()) => failed = false,
                    // A full disk stays full for a while; once is enough to say so.
                    Err(cause) if !failed => {
                        failed = true;
                        let folder = folder.root.display();
                        tracing::warn!(%folder, %cause, "a state cannot be kept");
                    }
                    Err(_) => {}
                }
                drop(archived);
                waiting.fetch_sub(counted, Ordering::Relaxed);
            }
        })?;
        Ok(Self { states: Some(states), thread: Some(thread), backlog })
    }

    /// Writes a state when those before it are written.
    pub fn send(&self, tokens: Vec<u32>, archived: Archived) {
        let counted = unwritten(&archived) + 1;
        self.backlog.fetch_add(counted, Ordering::Relaxed);
        if let Some(states) = &self.states {
            // A thread that is gone wrote what it could.
            let _ = states.send(State { tokens, archived, counted });
        }
    }

    /// Bytes in memory that are to be written, and one more for each state.
    pub fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    /// Waits until everything is written.
    fn drop(&mut self) {
        self.states = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
