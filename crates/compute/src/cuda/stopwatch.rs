//! How long each launch takes, by an event behind every one while somebody asks. A launch's time is
//! that since the end of the one before: what it costs where nothing overlaps.

use super::driver::{Driver, check};
use crate::Error;
use cudarc::driver::sys;
use std::{ffi::c_void, time::Duration};

/// How long the device is held up before a pass, so that all of its launches wait in line when the
/// first begins.
const HELD: Duration = Duration::from_millis(15);

struct Event(sys::CUevent);

// SAFETY: a handle of the driver.
unsafe impl Send for Event {}

impl Event {
    /// A mark in the stream.
    fn record(stream: sys::CUstream) -> Result<Self, Error> {
        let mut event = std::ptr::null_mut();
        // SAFETY: a pointer to a local; the stream is the caller's.
        unsafe {
            check(sys::cuEventCreate(&mut event, 0), "cuEventCreate")?;
            let event = Self(event);
            check(sys::cuEventRecord(event.0, stream), "cuEventRecord")?;
            Ok(event)
        }
    }

    fn milliseconds_since(&self, earlier: &Self) -> Result<f32, Error> {
        let mut ms = 0.0;
        // SAFETY: a pointer to a local; both events were recorded.
        unsafe {
            check(sys::cuEventElapsedTime(&mut ms, earlier.0, self.0), "cuEventElapsedTime")
        }?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `record`, dropped once.
        unsafe {
            let _ = sys::cuEventDestroy_v2(self.0);
        }
    }
}

/// Launches so far, each with its kernel; one without a name is where a pass began.
#[derive(Default)]
pub(crate) struct Stopwatch(Vec<(Option<&'static str>, Event)>);

impl Stopwatch {
    /// Holds the stream up, and begins to count.
    pub(crate) fn begin(&mut self, stream: sys::CUstream) -> Result<(), Error> {
        unsafe extern "C" fn wait(_: *mut c_void) {
            std::thread::sleep(HELD);
        }
        // SAFETY: the function calls nothing of the driver and reads nothing.
        unsafe {
            check(
                sys::cuLaunchHostFunc(stream, Some(wait), std::ptr::null_mut()),
                "cuLaunchHostFunc",
            )?;
        }
        self.0.push((None, Event::record(stream)?));
        Ok(())
    }

    pub(crate) fn launched(
        &mut self,
        kernel: &'static str,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        self.0.push((Some(kernel), Event::record(stream)?));
        Ok(())
    }

    /// Kernels in the order they ran, with their seconds.
    pub(crate) fn read(&self, driver: &Driver) -> Result<Vec<(&'static str, f64)>, Error> {
        driver.finish()?;
        let pairs = self.0.windows(2).filter_map(|pair| Some((pair[1].0?, &pair[0].1, &pair[1].1)));
        pairs
            .map(|(kernel, before, after)| {
                Ok((kernel, f64::from(after.milliseconds_since(before)?) / 1e3))
            })
            .collect()
    }
}
