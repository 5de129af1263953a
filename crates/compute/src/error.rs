//! What can go wrong with a backend: memory, drivers, and weights it has no form for.

/// Why a backend could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The device has no room.
    #[error("the device has no room for {needed} bytes more ({what})")]
    OutOfMemory {
        /// Bytes that were asked for.
        needed: usize,
        /// What they are for.
        what: &'static str,
    },
    /// A folder cannot hold weights that were to lie on its disk.
    #[error("`{folder}` cannot hold {:.1} MB of experts more: {reason}", *bytes as f64 / 1e6)]
    Disk {
        /// The folder.
        folder: String,
        /// Bytes that were to be written.
        bytes: usize,
        /// The system's own words.
        reason: String,
    },
    /// Weights were to lie on a disk, of a backend that reads none from there.
    #[error("this backend reads no weights from a disk")]
    NoDisk,
    /// There is no device to run on.
    #[error("{0}")]
    NoDevice(String),
    /// The driver refused a call.
    #[error("CUDA: `{call}` failed: {reason}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's own words.
        reason: String,
    },
    /// The device does nothing any more: what it held is gone, and everything on it has to be made
    /// anew.
    #[error("the device is lost: `{call}` failed: {reason}")]
    Lost {
        /// The call that found out.
        call: &'static str,
        /// The driver's own words.
        reason: String,
    },
    /// The kernels are not in this build for this device and could not be compiled.
    #[error("{0}")]
    Kernels(String),
}
