//! Flags of what runs, whichever model it is: devices, threads, the type of the cache.

use crate::device::Device;
use crate::draft_device::DraftDevice;
use crate::place::{PlaceFlags, Room};
use anyhow::{Result, bail};
use clap::ValueEnum;
use compute::{Activations, Backend, Cpu, CpuLevel, KvType};
use std::path::Path;

/// What runs, whichever model it is.
#[derive(clap::Args, Clone, Debug)]
pub struct DeviceFlags {
    /// auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Device of the drafter, where that is not to be the target's: cpu, cuda or cuda:N. It has
    /// copies of the target's embedding table and LM head there
    #[arg(long, value_name = "DEVICE", value_parser = DraftDevice::parse)]
    pub(crate) draft_device: Option<DraftDevice>,
    /// Threads; as many as there are cores unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Type of the key/value cache; f16 unless given
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// Instructions to use, to compare; the best there are unless given
    #[arg(long, value_enum)]
    cpu_level: Option<Level>,
    /// What weights are multiplied with, to compare
    #[arg(long, value_enum, default_value = "int8")]
    activations: Rounding,
    /// What lies on it.
    #[command(flatten)]
    pub place: PlaceFlags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kv {
    F16,
    #[value(name = "q8_0")]
    Q8,
    #[value(name = "q4_0")]
    Q4,
    /// q4_0 of heads that a Hadamard transform has evened out
    #[value(name = "q4_0h")]
    Q4Hadamard,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Scalar,
    Avx2,
    Avx512,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounding {
    Int8,
    F32,
}

impl DeviceFlags {
    /// A backend as the flags say, and the memory to plan within; none where nothing limits it.
    pub fn backend(&self) -> Result<(Box<dyn Backend>, Option<Room>)> {
        let cap = self.place.device_memory;
        match Device::parse(&self.device)?.open()? {
            Some(mut cuda) => {
                self.place.check_for_card()?;
                cap.iter().for_each(|cap| cuda.cap_memory(*cap));
                let room = Room::of_card(cuda.memory_info()?.0, cap);
                Ok((Box::new(cuda), Some(room)))
            }
            None => {
                let room = cap.map(|bytes| Room { bytes, overhead: 0 });
                Ok((Box::new(self.cpu()?), room))
            }
        }
    }

    /// The number of the GPU that the flags ask for, be it there or not; none where the processor
    /// is meant.
    pub fn card(&self) -> Result<Option<usize>> {
        Ok(match Device::parse(&self.device)? {
            Device::Cpu => None,
            Device::Auto => Some(0),
            Device::Cuda(index) => Some(index),
        })
    }

    /// The processor as the flags say.
    pub fn cpu(&self) -> Result<Cpu> {
        let level = match self.cpu_level {
            None => CpuLevel::detect(),
            Some(Level::Scalar) => CpuLevel::Scalar,
            Some(Level::Avx2) => CpuLevel::Avx2,
            Some(Level::Avx512) => CpuLevel::Avx512,
        };
        if !level.is_available() {
            bail!("this processor lacks the instructions of `--cpu-level {level:?}`");
        }
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = self.threads.map_or_else(cores, usize::from);
        let activations = match self.activations {
            Rounding::Int8 => Activations::Int8,
            Rounding::F32 => Activations::F32,
        };
        let folder = self.place.disk().map(Path::to_path_buf);
        Ok(Cpu::new(level, threads, activations).with_disk(folder))
    }

    /// The type of the key/value cache.
    pub fn kv(&self) -> KvType {
        match self.kv {
            None | Some(Kv::F16) => KvType::F16,
            Some(Kv::Q8) => KvType::Q8_0,
            Some(Kv::Q4) => KvType::Q4_0,
            Some(Kv::Q4Hadamard) => KvType::Q4_0H,
        }
    }

    /// The same on the processor, with activations as they are.
    pub(crate) fn on_processor(&self) -> Self {
        Self { device: "cpu".to_owned(), activations: Rounding::F32, ..self.clone() }
    }
}
