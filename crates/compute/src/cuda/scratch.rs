//! Memory that ops use while they run and nobody reads afterwards. It grows; captured graphs know
//! its address, so they are made again when it does.

use super::{block::DeviceMemory, driver::Driver, ops::experts::VISIT_LIST};
use crate::Error;
use std::sync::Arc;

/// One block for each use.
pub(crate) struct Scratch {
    driver: Arc<Driver>,
    /// Partial results of attention over chunks of keys.
    pub(crate) attention: DeviceMemory,
    /// States folded within a pass.
    pub(crate) states: DeviceMemory,
    /// Partial sums of products.
    pub(crate) products: DeviceMemory,
    /// Weights of a prompt's products that lie in the host's memory.
    pub(crate) staged: DeviceMemory,
    /// A layer's part of a prompt's pages that lie in the host's memory.
    pub(crate) pages: DeviceMemory,
    /// A pass's visits by expert, from one launch of a block's experts to the next.
    pub(crate) visits: DeviceMemory,
    /// How often an address changed.
    pub(crate) generation: u64,
}

impl Scratch {
    pub(crate) fn new(driver: &Arc<Driver>) -> Result<Self, Error> {
        let none = || driver.allocate(0, "scratch");
        Ok(Self {
            attention: none()?,
            states: none()?,
            products: none()?,
            staged: none()?,
            pages: none()?,
            visits: driver.allocate(VISIT_LIST, "scratch")?,
            generation: 0,
            driver: driver.clone(),
        })
    }

    pub(crate) fn reserve_attention(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.attention.len() {
            self.attention = grown(&self.driver, &self.attention, bytes)?;
            self.generation += 1;
        }
        Ok(())
    }

    pub(crate) fn reserve_states(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.states.len() {
            self.states = grown(&self.driver, &self.states, bytes)?;
            self.generation += 1;
        }
        Ok(())
    }

    pub(crate) fn reserve_products(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.products.len() {
            self.products = grown(&self.driver, &self.products, bytes)?;
            self.generation += 1;
        }
        Ok(())
    }

    pub(crate) fn reserve_staged(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.staged.len() {
            self.staged = grown(&self.driver, &self.staged, bytes)?;
        }
        Ok(())
    }

    /// Each pass of a long prompt needs a little more, so there is an eighth more where that has
    /// room. No graph knows this block and it is freed in the order of the stream: the old one goes
    /// first, since there may be no room for both.
    pub(crate) fn reserve_pages(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > self.pages.len() {
            self.pages = self.driver.allocate_as_is(0, "scratch")?;
            let ample = grown(&self.driver, &self.pages, bytes + bytes / 8);
            self.pages = ample.or_else(|_| grown(&self.driver, &self.pages, bytes))?;
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        let far = self.staged.len() + self.pages.len();
        self.attention.len() + self.states.len() + self.products.len() + far
    }
}

fn grown(driver: &Arc<Driver>, old: &DeviceMemory, bytes: usize) -> Result<DeviceMemory, Error> {
    driver.allocate_as_is(bytes.max(old.len()).next_multiple_of(1 << 20), "scratch")
}
