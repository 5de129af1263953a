//! Models bigger than the card: how much of its memory may be used, and which weights lie in the
//! host's instead.

use crate::device_memory::{Need, OVERHEAD};
use anyhow::{Result, bail};
use checkpoint::{TargetConfig, target::Ffn};
use engine::Placement;

/// How much of a device's memory to use, and what for.
#[derive(clap::Args, Clone, Debug)]
pub struct PlaceFlags {
    /// Memory of the GPU to use at most: `12GiB`, `11.5GB`, `800MiB`; what is free unless given
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) device_memory: Option<usize>,
    /// What lies in the host's memory, to be read over the bus: `experts=host` all experts,
    /// `experts=hot` the same with copies of those that are chosen often in what is left of the
    /// GPU's memory, `layers=0-47` all layers but these; unless given, as much as does not fit on
    /// the GPU, with copies of experts
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = rule)]
    place: Vec<Rule>,
}

/// What `--place` says of one kind of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// All experts lie in the host's memory.
    ExpertsOnHost,
    /// The same, with copies on the device.
    HotExperts,
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
    /// A context that a model which does not fit whole is to have room for, unless another is asked
    /// for: what an agent needs to begin with.
    pub(crate) const CONTEXT: usize = 32 << 10;

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
        // All that the device has beside the model at a context is for copies of experts, but for
        // the state of a second, short text.
        let with_copies = |placement: Placement, need: Need, context: usize| {
            let spare = need.at(Need::LEAST.min(context)).state;
            let copies = room.bytes.saturating_sub(need.at(context).total() + spare);
            let placement = Placement { copies, ..placement };
            Ok((placement, count(placement)?))
        };
        let context_or = |tokens: usize| context.unwrap_or(tokens.min(config.context_length));
        if let Some(placement) = self.asked(config)? {
            let need = count(placement)?;
            return match self.place.contains(&Rule::HotExperts) {
                true => with_copies(placement, need, context_or(Self::CONTEXT)),
                false => Ok((placement, need)),
            };
        }
        let whole = count(Placement::ON_DEVICE)?;
        let fits = |need: &Need, context: usize| need.at(context).total() <= room.bytes;
        // Whole, even with a short context, is much faster than not.
        if fits(&whole, context_or(Need::LEAST)) {
            return Ok((Placement::ON_DEVICE, whole));
        }
        let context = context_or(Self::CONTEXT);
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
        match found.0.experts_on_host && found.0.layers_from == usize::MAX {
            true => with_copies(found.0, found.1, context),
            false => Ok(found),
        }
    }

    /// As if `--place` had said this alone.
    pub(crate) fn saying(place: &str) -> Self {
        let rule = rule(place).expect("a rule");
        Self { device_memory: None, place: vec![rule] }
    }

    /// The placement that `--place` asks for, if any.
    pub fn asked(&self, config: &TargetConfig) -> Result<Option<Placement>> {
        let mut placement = Placement::ON_DEVICE;
        for rule in &self.place {
            match *rule {
                Rule::ExpertsOnHost | Rule::HotExperts
                    if !matches!(config.ffn, Ffn::Moe { .. }) =>
                {
                    bail!("`--place {rule}`: the model has no experts")
                }
                Rule::ExpertsOnHost | Rule::HotExperts => placement.experts_on_host = true,
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

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExpertsOnHost => write!(f, "experts=host"),
            Self::HotExperts => write!(f, "experts=hot"),
            Self::LastOnDevice(last) => write!(f, "layers=0-{last}"),
        }
    }
}

fn rule(text: &str) -> Result<Rule, String> {
    let expected = || "`experts=host`, `experts=hot` or `layers=0-N` expected".to_owned();
    match text.split_once('=').ok_or_else(expected)? {
        ("experts", "host") => Ok(Rule::ExpertsOnHost),
        ("experts", "hot") => Ok(Rule::HotExperts),
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
        for said in ["experts=host", "experts=hot", "layers=0-47"] {
            assert_eq!(rule(said).map(|rule| rule.to_string()), Ok(said.to_owned()));
        }
        assert_eq!(rule("layers=0-47"), Ok(Rule::LastOnDevice(47)));
        for wrong in ["experts", "experts=disk", "layers=3-5", "layers=0-", "kv=host", ""] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }
}
