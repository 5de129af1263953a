//! Blocks of a device's memory: taken from the driver's pool, given back in the order of the
//! stream. Those that were put aside lie in the host's memory, and are none of the pool.

use super::driver::{Driver, call, check};
use super::far::Shelved;
use crate::{
    Error,
    memory::{DeviceBlock, Memory},
};
use cudarc::driver::sys::{self, CUresult};
use std::{any::Any, sync::Arc};

impl Driver {
    /// Zeroed memory.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        len: usize,
        what: &'static str,
    ) -> Result<DeviceMemory, Error> {
        let memory = self.allocate_as_is(len, what)?;
        if len > 0 {
            // SAFETY: the block is `len` long.
            unsafe { call!(cuMemsetD8Async(memory.address, 0, len, self.stream)) }?;
        }
        Ok(memory)
    }

    /// Memory with anything in it.
    pub(crate) fn allocate_as_is(
        self: &Arc<Self>,
        len: usize,
        what: &'static str,
    ) -> Result<DeviceMemory, Error> {
        let mut address = 0;
        if len > 0 {
            self.enter()?;
            // SAFETY: a pointer to a local.
            let mut allocate = || unsafe { sys::cuMemAllocAsync(&mut address, len, self.stream) };
            let mut result = allocate();
            if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                // What was freed in pieces may be whole again once the driver has it back.
                self.give_back()?;
                result = allocate();
            }
            if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Err(Error::OutOfMemory { needed: len, what });
            }
            check(result, "cuMemAllocAsync")?;
        }
        Ok(DeviceMemory { driver: self.clone(), address, len, far: None })
    }
}

/// A block of a device's memory.
pub(crate) struct DeviceMemory {
    driver: Arc<Driver>,
    address: u64,
    len: usize,
    /// What it is where it lies in the host's memory.
    far: Option<Shelved>,
}

impl DeviceMemory {
    /// A block of the host's memory that the device reads.
    pub(super) fn mapped(driver: &Arc<Driver>, far: Shelved) -> Self {
        let (address, len) = (far.block().address(), far.block().len());
        Self { driver: driver.clone(), address, len, far: Some(far) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The block behind memory that this backend made.
    pub(crate) fn of(memory: &Memory) -> &Self {
        memory.device().expect("memory of this device")
    }
}

impl From<DeviceMemory> for Memory {
    fn from(block: DeviceMemory) -> Self {
        Self::of_device(Box::new(block))
    }
}

impl DeviceBlock for DeviceMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        assert!(at + bytes.len() <= self.len, "{} bytes at {at} of {}", bytes.len(), self.len);
        match &self.far {
            _ if bytes.is_empty() => Ok(()),
            Some(far) => far.block().read(at, bytes),
            None => self.driver.download(self.address + at as u64, bytes),
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        assert!(at + bytes.len() <= self.len, "{} bytes at {at} of {}", bytes.len(), self.len);
        match &mut self.far {
            _ if bytes.is_empty() => Ok(()),
            Some(far) => {
                self.driver.finish()?;
                far.block_mut().bytes()[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            None => self.driver.upload(self.address + at as u64, bytes),
        }
    }

    fn fill(&mut self, byte: u8) -> Result<(), Error> {
        if self.len == 0 {
            return Ok(());
        }
        if let Some(far) = &mut self.far {
            self.driver.finish()?;
            far.block_mut().bytes().fill(byte);
            return Ok(());
        }
        self.driver.enter()?;
        // SAFETY: the block is `len` long.
        unsafe { call!(cuMemsetD8Async(self.address, byte, self.len, self.driver.stream)) }
    }

    fn copy_from(
        &mut self,
        at: usize,
        other: &dyn DeviceBlock,
        from: usize,
        len: usize,
    ) -> Result<(), Error> {
        let other: &Self = (other as &dyn Any).downcast_ref().expect("a block of this device");
        assert!(
            at + len <= self.len && from + len <= other.len,
            "{len} bytes of {} to {}",
            other.len,
            self.len
        );
        if len == 0 {
            return Ok(());
        }
        self.driver.copy(other.address + from as u64, self.address + at as u64, len)
    }

    fn duplicate(&self) -> Result<Box<dyn DeviceBlock>, Error> {
        let copy = self.driver.allocate_as_is(self.len, "a copy of a sequence's state")?;
        if self.len > 0 {
            self.driver.copy(self.address, copy.address, self.len)?;
        }
        Ok(Box::new(copy))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.len > 0 && self.far.is_none() && self.driver.enter().is_ok() {
            // SAFETY: allocated once, freed once, after everything the stream still does with it.
            unsafe {
                let _ = sys::cuMemFreeAsync(self.address, self.driver.stream);
            }
        }
    }
}
