//! Where a drafter runs that does not run with its target: `--draft-device`, which `--place
//! draft=` says as well.

use crate::device::Device;
use crate::device_flags::DeviceFlags;
use crate::device_memory::OVERHEAD;
use crate::place::Room;
use anyhow::{Context, Result, bail};
use compute::Backend;
use compute::cuda::{Cuda, Images};
use serde::{Serialize, Serializer};
use std::fmt;

/// A device that a drafter has to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftDevice {
    /// The processor.
    Cpu,
    /// The GPU of that number.
    Cuda(usize),
}

/// What is planned with of such a device.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Which it is.
    pub device: DraftDevice,
    /// Rows of a prompt that it reads at once.
    pub prompt_rows: usize,
    /// Its memory; none where nothing limits it.
    pub room: Option<Room>,
}

/// Such a device, ready to run.
pub struct DraftSide {
    /// What runs there.
    pub backend: Box<dyn Backend>,
    /// What is planned with.
    pub beside: Beside,
}

impl DraftDevice {
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        match Device::parse(name) {
            Ok(Device::Cpu) => Ok(Self::Cpu),
            Ok(Device::Cuda(index)) => Ok(Self::Cuda(index)),
            Ok(Device::Auto) | Err(_) => Err("cpu, cuda or cuda:N expected".to_owned()),
        }
    }
}

impl fmt::Display for DraftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl Serialize for DraftDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl DraftSide {
    /// The processor beside whatever the target runs on.
    pub(crate) fn of_processor(backend: Box<dyn Backend>) -> Self {
        let beside = Beside::processor(backend.prompt_rows());
        Self { backend, beside }
    }

    /// Whether it is the processor.
    pub(crate) fn is_processor(&self) -> bool {
        self.beside.device == DraftDevice::Cpu
    }
}

impl Beside {
    /// A card of whose memory everything may be taken.
    pub fn card(index: usize, prompt_rows: usize) -> Self {
        let room = Some(Room { bytes: usize::MAX, overhead: OVERHEAD });
        Self { device: DraftDevice::Cuda(index), prompt_rows, room }
    }

    /// The processor, which nothing limits.
    pub(crate) fn processor(prompt_rows: usize) -> Self {
        Self { device: DraftDevice::Cpu, prompt_rows, room: None }
    }
}

impl DeviceFlags {
    /// The device that is asked for as the drafter's own, if any.
    pub fn draft_device(&self) -> Result<Option<DraftDevice>> {
        match (self.draft_device, self.place.drafter()) {
            (Some(flag), Some(place)) if flag != place => bail!(
                "`--draft-device {flag}` and `--place draft={place}` say different things: one of \
                 them is enough"
            ),
            (flag, place) => Ok(flag.or(place)),
        }
    }

    /// That device, beside what the target runs on.
    pub fn draft_side(&self, target: &dyn Backend) -> Result<Option<DraftSide>> {
        let Some(device) = self.draft_device()? else { return Ok(None) };
        let is_targets = |index| target.has_own_memory() && self.card().ok() == Some(Some(index));
        match device {
            DraftDevice::Cpu => Ok(Some(DraftSide::of_processor(Box::new(self.cpu()?)))),
            DraftDevice::Cuda(index) if is_targets(index) => bail!(
                "`--draft-device {device}`: the target runs there, and a drafter runs with it where \
                 nothing else is said"
            ),
            DraftDevice::Cuda(index) => {
                let card = Cuda::new(index, Images::Best);
                let mut card = card.with_context(|| format!("`--draft-device {device}`"))?;
                let cap = self.place.device_memory;
                cap.iter().for_each(|cap| card.cap_memory(*cap));
                let room = Some(Room::of_card(card.memory_info()?.0, cap));
                let beside = Beside { device, prompt_rows: card.prompt_rows(), room };
                Ok(Some(DraftSide { backend: Box::new(card), beside }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drafter_has_a_device_by_name() {
        for name in ["cpu", "cuda:1"] {
            assert_eq!(DraftDevice::parse(name).map(|device| device.to_string()), Ok(name.into()));
        }
        assert_eq!(DraftDevice::parse("cuda"), Ok(DraftDevice::Cuda(0)));
        for wrong in ["auto", "gpu", "cuda:", ""] {
            assert!(DraftDevice::parse(wrong).is_err(), "{wrong}");
        }
    }
}
