//! Launches that are recorded once and run whenever they are wanted.

use super::driver::{Driver, call};
use crate::Error;
use cudarc::driver::sys;
use std::sync::Arc;

impl Driver {
    /// Runs what `record` sends to the stream not now but whenever the graph is launched.
    pub(crate) fn capture(
        self: &Arc<Self>,
        record: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Graph, Error> {
        self.enter()?;
        // SAFETY: the stream is ours.
        unsafe {
            call!(cuStreamBeginCapture_v2(
                self.stream,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            ))?;
        }
        let capturing = Capturing(self);
        record()?;
        let graph = capturing.end()?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph was just captured, and is ours to destroy.
        unsafe {
            let made = call!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
            call!(cuGraphDestroy(graph))?;
            made?;
        }
        Ok(Graph { handle: executable, driver: self.clone() })
    }

    /// Runs a graph.
    pub(crate) fn launch_graph(&self, graph: &Graph) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the graph was made on this device.
        unsafe { call!(cuGraphLaunch(graph.handle, self.stream)) }
    }
}

/// A stream that captures. It stops to even if what is captured fails or panics: a stream left
/// capturing would refuse everything after.
struct Capturing<'d>(&'d Driver);

impl Capturing<'_> {
    fn end(self) -> Result<sys::CUgraph, Error> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is capturing; a pointer to a local.
        let ended = unsafe { call!(cuStreamEndCapture(self.0.stream, &mut graph)) };
        std::mem::forget(self);
        ended.map(|()| graph)
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is capturing; what came of it is ours to destroy.
        unsafe {
            let _ = sys::cuStreamEndCapture(self.0.stream, &mut graph);
            if !graph.is_null() {
                let _ = sys::cuGraphDestroy(graph);
            }
        }
    }
}

/// Launches that were captured.
pub(crate) struct Graph {
    handle: sys::CUgraphExec,
    driver: Arc<Driver>,
}

// SAFETY: used by one thread at a time, as its owner is.
unsafe impl Send for Graph {}
// SAFETY: nothing is done with a shared graph.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.driver.enter().is_ok() {
            // SAFETY: made by `capture`, dropped once.
            unsafe {
                let _ = sys::cuGraphExecDestroy(self.handle);
            }
        }
    }
}
