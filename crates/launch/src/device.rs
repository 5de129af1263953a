//! Which device runs the model: `--device auto|cpu|cuda|cuda:N`.

use anyhow::{Context, Result, bail};
use compute::cuda::{self, Cuda, Images};

/// A device as a flag names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// A GPU where there is one, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of that number.
    Cuda(usize),
}

impl Device {
    /// The device that a flag names.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => match other.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(index) => Ok(Self::Cuda(index)),
                None => bail!("unknown device `{name}`: auto, cpu, cuda or cuda:N expected"),
            },
        }
    }

    /// The GPU to run on; none where the processor is meant, or where `auto` finds no GPU it can
    /// use.
    pub(crate) fn open(self) -> Result<Option<Cuda>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(index) => Ok(Some(
                Cuda::new(index, Images::Best).with_context(|| format!("device `cuda:{index}`"))?,
            )),
            Self::Auto if cuda::devices().unwrap_or(0) == 0 => Ok(None),
            Self::Auto => match Cuda::new(0, Images::Best) {
                Ok(cuda) => Ok(Some(cuda)),
                Err(reason) => {
                    eprintln!("warning: there is a GPU, but it is not used: {reason}");
                    Ok(None)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        assert_eq!(Device::parse("cuda:3").unwrap(), Device::Cuda(3));
        assert_eq!(Device::parse("cuda").unwrap(), Device::Cuda(0));
        assert!(Device::parse("gpu").is_err() && Device::parse("cuda:").is_err());
    }
}
