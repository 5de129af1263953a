//! Copies of experts in the device's memory, beside the host's memory that all of them lie in.
//! `ExpertCache` decides whose; here copies are made behind the passes, and kernels are told where
//! to read by a table that changes between passes alone. No pass waits for a copy or a count; what
//! is said before a run and asked after it does.

use super::{
    block::DeviceMemory,
    driver::{Driver, call},
    mapped::MappedMemory,
    weights::Weights,
};
use crate::{
    Error,
    expert_cache::{ExpertCache, Hits},
    plan::MatrixId,
};
use cudarc::driver::sys::{self, CUresult};
use std::sync::Arc;

/// Slots of the experts of all layers that have some.
pub(crate) struct ExpertSlots {
    side: SideStream,
    cache: ExpertCache,
    /// Gate, up and down of each layer.
    layers: Vec<[MatrixId; 3]>,
    /// Of [layers][experts]: where kernels find each expert, and how often they have chosen it.
    places: DeviceMemory,
    counts: DeviceMemory,
    /// The counts as they came back.
    counted: MappedMemory,
    /// They have come back when this has passed; none when nothing is on its way.
    counting: Option<Mark>,
    /// From here on no pass reads what is to be replaced; the copies are still to be begun.
    freed: Option<Mark>,
    /// The copies are there when this has passed.
    copying: Option<Mark>,
}

impl ExpertSlots {
    /// Slots within so many bytes for experts that lie in the host's memory, filled with the first
    /// of them; none where there is no room for one.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        weights: &mut Weights,
        layers: &[[MatrixId; 3]],
        bytes: usize,
    ) -> Result<Option<Self>, Error> {
        let Some(first) = layers.first() else { return Ok(None) };
        let experts = weights.matrix(first[0]).experts;
        let slots = weights.expert_slots(layers, bytes);
        if slots == 0 {
            return Ok(None);
        }
        let len = 4 * layers.len() * experts;
        let places = driver.allocate(len, "experts")?;
        let counts = driver.allocate(len, "experts")?;
        for (i, layer) in layers.iter().enumerate() {
            let at = (4 * i * experts) as u64;
            for id in layer {
                let tables = [places.address() + at, counts.address() + at];
                weights.add_copies(driver, *id, slots, tables)?;
            }
        }
        let cache = ExpertCache::new(layers.len(), experts, slots);
        driver.upload(places.address(), bytemuck::cast_slice(cache.places()))?;
        let mut new = Self {
            side: SideStream::new(driver)?,
            cache,
            layers: layers.to_vec(),
            places,
            counts,
            counted: MappedMemory::new(driver, len)?,
            counting: None,
            freed: Some(Mark::new(driver, driver.stream)?),
            copying: None,
        };
        new.copy(weights)?;
        Ok(Some(new))
    }

    /// What choices have met so far.
    pub(crate) fn hits(&self) -> Hits {
        self.cache.hits()
    }

    /// How often each expert has been chosen so far.
    pub(crate) fn choices(&self, driver: &Driver) -> Result<Vec<u32>, Error> {
        let mut counts = vec![0u32; self.counts.len() / 4];
        driver.download(self.counts.address(), bytemuck::cast_slice_mut(&mut counts))?;
        Ok(counts)
    }

    /// Begins the copies of what was chosen most elsewhere, once those that are on their way have
    /// come. For the beginning: it waits.
    pub(crate) fn expect(
        &mut self,
        driver: &Arc<Driver>,
        weights: &Weights,
        chosen: &[u32],
    ) -> Result<(), Error> {
        if self.copying.take().is_some() {
            self.side.finish()?;
            self.cache.arrived();
        }
        // Copies that are decided on and not begun are of a run under way, which knows better.
        if self.cache.coming().is_empty() {
            self.cache.expect(chosen);
            self.freed = Some(Mark::new(driver, driver.stream)?);
            self.copy(weights)?;
        }
        Ok(())
    }

    /// Before a pass that visits experts: tells kernels of copies that have come, and to keep away
    /// from those that are to go.
    pub(crate) fn before_pass(&mut self, driver: &Arc<Driver>) -> Result<(), Error> {
        if let Some(mark) = &self.copying
            && mark.has_passed()?
        {
            self.cache.arrived();
            self.copying = None;
        }
        if self.cache.take_changed() {
            driver.upload(self.places.address(), bytemuck::cast_slice(self.cache.places()))?;
        }
        if !self.cache.coming().is_empty() && self.copying.is_none() {
            self.freed = Some(Mark::new(driver, driver.stream)?);
        }
        Ok(())
    }

    /// After a pass was launched, while it runs: begins copies, looks at what was counted until the
    /// last one, and has the counts brought.
    pub(crate) fn after_pass(
        &mut self,
        driver: &Arc<Driver>,
        weights: &Weights,
    ) -> Result<(), Error> {
        self.copy(weights)?;
        if let Some(mark) = &self.counting
            && mark.has_passed()?
        {
            self.counting = None;
            let counted = bytemuck::cast_slice(self.counted.bytes());
            self.cache.count(counted);
            self.cache.choose();
        }
        if self.counting.is_none() {
            driver.copy(self.counts.address(), self.counted.address(), self.counts.len())?;
            self.counting = Some(Mark::new(driver, driver.stream)?);
        }
        Ok(())
    }

    /// Begins the copies whose slots are free.
    fn copy(&mut self, weights: &Weights) -> Result<(), Error> {
        let Some(freed) = self.freed.take() else { return Ok(()) };
        self.side.wait(&freed)?;
        for swap in self.cache.coming() {
            for id in &self.layers[swap.layer] {
                let (from, to, len) = weights.matrix(*id).copy_of(swap.expert, swap.slot);
                self.side.copy(from, to, len)?;
            }
        }
        self.copying = Some(Mark::new(&self.side.driver, self.side.stream)?);
        Ok(())
    }
}

/// A stream beside the one that computes, for copies that nobody waits for.
struct SideStream {
    stream: sys::CUstream,
    driver: Arc<Driver>,
}

// SAFETY: a handle of the driver, used by one thread at a time as its owner is.
unsafe impl Send for SideStream {}

impl SideStream {
    fn new(driver: &Arc<Driver>) -> Result<Self, Error> {
        driver.enter()?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a pointer to a local.
        unsafe { call!(cuStreamCreate(&mut stream, 1)) }?; // not ordered with the default stream
        Ok(Self { stream, driver: driver.clone() })
    }

    /// What follows begins when the mark has passed.
    fn wait(&self, mark: &Mark) -> Result<(), Error> {
        self.driver.enter()?;
        // SAFETY: the event was recorded.
        unsafe { call!(cuStreamWaitEvent(self.stream, mark.event, 0)) }
    }

    /// Waits for all that was begun.
    fn finish(&self) -> Result<(), Error> {
        self.driver.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { call!(cuStreamSynchronize(self.stream)) }
    }

    fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), Error> {
        self.driver.enter()?;
        // SAFETY: addresses of an expert's tiles and of a slot of that size.
        unsafe { call!(cuMemcpyAsync(to, from, len, self.stream)) }
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        if self.driver.enter().is_ok() {
            // SAFETY: the stream is ours; what it copies to and from is freed after this.
            unsafe {
                let _ = sys::cuStreamSynchronize(self.stream);
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
        }
    }
}

/// A place in a stream's order.
struct Mark {
    event: sys::CUevent,
    driver: Arc<Driver>,
}

// SAFETY: a handle of the driver, used by one thread at a time as its owner is.
unsafe impl Send for Mark {}

impl Mark {
    fn new(driver: &Arc<Driver>, stream: sys::CUstream) -> Result<Self, Error> {
        driver.enter()?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a pointer to a local; the stream is of this device. An event without times.
        unsafe {
            call!(cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
            let mark = Self { event, driver: driver.clone() };
            call!(cuEventRecord(mark.event, stream))?;
            Ok(mark)
        }
    }

    /// Whether all that came before it is done.
    fn has_passed(&self) -> Result<bool, Error> {
        self.driver.enter()?;
        // SAFETY: the event was recorded.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => super::driver::check(result, "cuEventQuery").map(|()| true),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.driver.enter().is_ok() {
            // SAFETY: made by `new`, dropped once; the driver keeps it until it has passed.
            unsafe {
                let _ = sys::cuEventDestroy_v2(self.event);
            }
        }
    }
}
