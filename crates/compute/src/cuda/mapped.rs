//! Memory of the host that the device reads over the bus as if it were its own. Kernels take its
//! address like any other, so bits do not depend on which memory a weight or a page lies in.

use super::driver::{Driver, call, check};
use crate::Error;
use cudarc::driver::sys::{self, CUresult};
use std::{ffi::c_void, sync::Arc};

/// A block of the host's memory that is pinned and mapped.
pub(crate) struct MappedMemory {
    driver: Arc<Driver>,
    host: *mut c_void,
    address: u64,
    len: usize,
}

// SAFETY: the block is this value's alone.
unsafe impl Send for MappedMemory {}
// SAFETY: what is shared of it is only read.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// One with anything in it.
    pub(crate) fn new(driver: &Arc<Driver>, len: usize) -> Result<Self, Error> {
        driver.enter()?;
        let (mut host, mut address) = (std::ptr::null_mut(), 0);
        // SAFETY: pointers to locals; the block is owned by the value made below.
        unsafe {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            let result = sys::cuMemHostAlloc(&mut host, len.max(1), flags);
            if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                let what = "what lies in the host's memory, which has to be locked for a device";
                return Err(Error::OutOfMemory { needed: len, what });
            }
            check(result, "cuMemHostAlloc")?;
            call!(cuMemHostGetDevicePointer_v2(&mut address, host, 0))?;
        }
        Ok(Self { driver: driver.clone(), host, address, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the device finds it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Copies bytes from `at` on, after all that the device was asked to write there.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        assert!(at + bytes.len() <= self.len, "{} bytes at {at} of {}", bytes.len(), self.len);
        self.driver.finish()?;
        // SAFETY: they are within the block, and nothing that was asked for still writes them.
        let from =
            unsafe { std::slice::from_raw_parts(self.host.cast::<u8>().add(at), bytes.len()) };
        bytes.copy_from_slice(from);
        Ok(())
    }

    /// Its bytes, while the device neither reads nor writes them.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes that nobody else has: no kernel reads a weight before it is placed, and
        // counts are looked at when their copy is done.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast(), self.len) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // A kernel may still read it, and freeing it would not wait.
        if self.driver.finish().is_ok() {
            // SAFETY: allocated once, freed once, and nothing runs.
            unsafe {
                let _ = sys::cuMemFreeHost(self.host);
            }
        }
    }
}
