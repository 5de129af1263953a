//! Models bigger than the card: how much of its memory may be used, and which weights lie in the
//! host's instead.

use crate::device_memory::{Need, OVERHEAD};
use anyhow::{Result, bail};
use checkpoint::{TargetConfig, target::Ffn};
use engine::Placement;

/// A context that a model which does not fit whole is to have room for, unless another is asked
/// for: what an agent needs to begin with.
const CONTEXT: usize = 32 << 10;

/// How much of a device's memory to use, and what for.
#[derive(clap::Args, Clone, Debug)]
pub struct PlaceFlags {
    /// Memory of the GPU to use at most: `12GiB`, `11.5GB`, `800MiB`; what is free unless given
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) device_memory: Option<usize>,
    /// What lies in the host's memory, to be read over the bus: `experts=host` all experts,
    /// `layers=0-47` all layers but these; unless given, as much as does not fit on the GPU
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = rule)]
    place: Vec<Rule>,
}

/// What `--place` says of one kind of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// All experts lie in the host's memory.
    ExpertsOnHost,
    /// Layers up to this one lie on the device, the others in the host's memory.
    LastOnDevice(usize),
}

/// Memory that a model is planned within.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes for everything.
    pub bytes: usize,
    /// Bytes of them that the device takes for itself.
    pub overhead: usize,
}

impl Room {
    /// Of a GPU with so much free memory.
    pub(crate) fn of_card(free: usize, cap: Option<usize>) -> Self {
        Self { bytes: cap.map_or(free, |cap| cap.min(free)), overhead: OVERHEAD }
    }
}

impl PlaceFlags {
    /// Where the weights of a target lie, and what that needs of the device, as `count` counts it:
    /// as the flags say, else as much on the device as fits with the context that is asked for.
    pub fn plan(
        &self,
        config: &TargetConfig,
        room: Room,
        context: Option<usize>,
        count: impl Fn(Placement) -> Result<Need>,
    ) -> Result<(Placement, Need)> {
        let count = |placement| Ok::<_, anyhow::Error>(count(placement)?.within(room));
        if let Some(placement) = self.asked(config)? {
            return Ok((placement, count(placement)?));
        }
        let whole = count(Placement::ON_DEVICE)?;
        let limit = config.context_length;
        let fits = |need: &Need, context: usize| need.at(context).total() <= room.bytes;
        // Whole, even with a short context, is much faster than not.
        if fits(&whole, context.unwrap_or(Need::LEAST.min(limit))) {
            return Ok((Placement::ON_DEVICE, whole));
        }
        let context = context.unwrap_or(CONTEXT.min(limit));
        let at = |step: usize| -> Result<(Placement, Need)> {
            let placement = Placement::step(config, step);
            Ok((placement, count(placement)?))
        };
        let (mut too_few, mut enough) = (0, Placement::steps(config));
        let mut found = at(enough)?;
        if !fits(&found.1, context) {
            // Nothing helps: the error tells of the model as it is.
            return Ok((Placement::ON_DEVICE, whole));
        }
        while too_few + 1 < enough {
            let middle = (too_few + enough) / 2;
            let tried = at(middle)?;
            if fits(&tried.1, context) {
                (enough, found) = (middle, tried);
            } else {
                too_few = middle;
            }
        }
        Ok(found)
    }

    /// The placement that `--place` asks for, if any.
    pub fn asked(&self, config: &TargetConfig) -> Result<Option<Placement>> {
        let mut placement = Placement::ON_DEVICE;
        for rule in &self.place {
            match *rule {
                Rule::ExpertsOnHost if !matches!(config.ffn, Ffn::Moe { .. }) => {
                    bail!("`--place experts=host`: the model has no experts")
                }
                Rule::ExpertsOnHost => placement.experts_from = 0,
                Rule::LastOnDevice(last) if last >= config.layers.len() => bail!(
                    "`--place layers=0-{last}`: the model has the layers 0 to {}",
                    config.layers.len() - 1
                ),
                Rule::LastOnDevice(last) => placement.layers_from = last + 1,
            }
        }
        Ok((!self.place.is_empty()).then_some(placement))
    }
}

/// A number of bytes with its unit.
fn bytes(text: &str) -> Result<usize, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match text[end..].trim() {
        "GiB" | "G" => (1u64 << 30) as f64,
        "MiB" | "M" => (1u64 << 20) as f64,
        "GB" => 1e9,
        "MB" => 1e6,
        _ => return Err("a number with GiB, GB, MiB or MB behind it expected".to_owned()),
    };
    let number: f64 =
        text[..end].parse().map_err(|_| format!("`{}` is no number", &text[..end]))?;
    let bytes = number * unit;
    match bytes >= 1.0 && bytes < (1u64 << 60) as f64 {
        true => Ok(bytes as usize),
        false => Err("no device has so much, or so little".to_owned()),
    }
}

fn rule(text: &str) -> Result<Rule, String> {
    let expected = || "`experts=host` or `layers=0-N` expected".to_owned();
    match text.split_once('=').ok_or_else(expected)? {
        ("experts", "host") => Ok(Rule::ExpertsOnHost),
        ("layers", range) => {
            let last = range.strip_prefix("0-").ok_or_else(expected)?;
            last.parse().map(Rule::LastOnDevice).map_err(|_| expected())
        }
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("12GiB"), Ok(12 << 30));
        assert_eq!(bytes("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(bytes("800MiB"), Ok(800 << 20));
        for wrong in ["", "12", "GiB", "-1GiB", "1.2.3GB", "9e9GiB", "0GiB", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_are_rules() {
        assert_eq!(rule("experts=host"), Ok(Rule::ExpertsOnHost));
        assert_eq!(rule("layers=0-47"), Ok(Rule::LastOnDevice(47)));
        for wrong in ["experts", "experts=disk", "layers=3-5", "layers=0-", "kv=host", ""] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }
}
