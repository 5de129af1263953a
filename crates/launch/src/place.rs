//! Models bigger than the memory they compute from: how much of a card's may be used, and which
//! weights lie in the host's, or on its disk.

use crate::device_memory::{Need, OVERHEAD};
use crate::draft_device::DraftDevice;
use crate::expert_counts::ExpertCounts;
use anyhow::{Result, bail};
use checkpoint::{TargetConfig, target::Ffn};
use engine::{Place, Placement};
use std::path::{Path, PathBuf};

/// How much of a device's memory to use, and what for.
#[derive(clap::Args, Clone, Debug)]
pub struct PlaceFlags {
    /// Memory of the GPU to use at most: `12GiB`, `11.5GB`, `800MiB`; what is free unless given
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) device_memory: Option<usize>,
    /// What lies in the host's memory, to be read over the bus: `experts=host` all experts,
    /// `experts=hot` the same with copies of those that are chosen often in what is left of the
    /// GPU's memory, `layers=0-47` all layers but these, `kv=host:64K` keys and values of a text's
    /// tokens but for the newest 64K; unless given, as much as does not fit on the GPU, with copies
    /// of experts. On the processor `experts=disk:DIR` keeps experts in a folder of a fast disk, as
    /// large as they are, for a mixture that is bigger than the memory. `draft=cpu` is
    /// `--draft-device cpu`
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = rule)]
    place: Vec<Rule>,
    /// Begin with copies of the experts that were chosen most, as `forerun bench experts` counted
    #[arg(long, value_name = "FILE")]
    expert_counts: Option<PathBuf>,
}

/// What `--place` says of one kind of weight.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// All experts lie in the host's memory.
    ExpertsOnHost,
    /// The same, with copies on the device.
    HotExperts,
    /// All experts lie in this folder of a disk.
    ExpertsOnDisk(PathBuf),
    /// Layers up to this one lie on the device, the others in the host's memory.
    LastOnDevice(usize),
    /// Keys and values of so many tokens of a text lie on the device, of the newest.
    NearTokens(usize),
    /// The drafter has a device to itself.
    Drafter(DraftDevice),
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
        if let Some(found) = older_keys_far(config, context, room, count)? {
            return Ok(found);
        }
        // Where layers leave, older keys leave with them: of one text as many bytes cross the bus
        // either way, and a short text has no older keys.
        let at = |step: usize| -> Result<(Placement, Need)> {
            let mut placement = Placement::step(config, step);
            if placement.layers_from != usize::MAX {
                placement.near_tokens = Need::LEAST;
            }
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
        match found.0.experts == Place::Host && found.0.layers_from == usize::MAX {
            true => with_copies(found.0, found.1, context),
            false => Ok(found),
        }
    }

    /// As if nothing had been said.
    pub(crate) fn silent() -> Self {
        Self { device_memory: None, place: Vec::new(), expert_counts: None }
    }

    /// As if `--place` had said this alone.
    pub(crate) fn saying(place: &str) -> Self {
        let rule = rule(place).expect("a rule");
        Self { place: vec![rule], ..Self::silent() }
    }

    /// The placement that `--place` asks for, if any.
    pub fn asked(&self, config: &TargetConfig) -> Result<Option<Placement>> {
        let mut placement = Placement::ON_DEVICE;
        for (i, rule) in self.place.iter().enumerate() {
            let same = |before: &&Rule| before.subject() == rule.subject();
            if let Some(before) = self.place[..i].iter().find(same) {
                bail!("`--place {rule}`: `{before}` says already where that lies");
            }
            if let Some(place) = rule.of_experts() {
                if !matches!(config.ffn, Ffn::Moe { .. }) {
                    bail!("`--place {rule}`: the model has no experts");
                }
                placement.experts = place;
            }
            match *rule {
                Rule::LastOnDevice(last) if last >= config.layers.len() => bail!(
                    "`--place layers=0-{last}`: the model has the layers 0 to {}",
                    config.layers.len() - 1
                ),
                Rule::LastOnDevice(last) => placement.layers_from = last + 1,
                Rule::NearTokens(tokens) => placement.near_tokens = tokens,
                _ => {}
            }
        }
        let of_target = |rule: &Rule| !matches!(rule, Rule::Drafter(_));
        Ok(self.place.iter().any(of_target).then_some(placement))
    }

    /// The folder that experts lie in, if any.
    pub fn disk(&self) -> Option<&Path> {
        self.place.iter().find_map(|rule| match rule {
            Rule::ExpertsOnDisk(folder) => Some(&**folder),
            _ => None,
        })
    }

    /// Refuses what a GPU cannot do: it reads what is far from it in memory that is locked there,
    /// which pages of a file are not.
    pub(crate) fn check_for_card(&self) -> Result<()> {
        match self.disk() {
            None => Ok(()),
            Some(folder) => bail!(
                "`--place experts=disk:{}` is for a model on the processor (`--device cpu`). A GPU \
                 reads experts that it has no room for from the host's memory: `experts=hot`",
                folder.display()
            ),
        }
    }

    /// Reads which experts to have copies of first, where a file says so.
    pub fn expert_counts(&self, config: &TargetConfig) -> Result<Option<ExpertCounts>> {
        self.expert_counts.as_deref().map(|path| ExpertCounts::read(path, config)).transpose()
    }

    /// The device that the drafter is given, if any.
    pub(crate) fn drafter(&self) -> Option<DraftDevice> {
        self.place.iter().find_map(|rule| match rule {
            Rule::Drafter(device) => Some(*device),
            _ => None,
        })
    }
}

/// All but experts on the device and older keys and values in the host's memory, where that fits
/// and with fewer of them there does not: a short text has none, and a long one's cost what as many
/// bytes of layers would.
pub(crate) fn older_keys_far(
    config: &TargetConfig,
    context: usize,
    room: Room,
    count: impl Fn(Placement) -> Result<Need>,
) -> Result<Option<(Placement, Need)>> {
    let base = Placement::step(config, usize::from(matches!(config.ffn, Ffn::Moe { .. })));
    let least = Placement { near_tokens: Need::LEAST, ..base };
    let (whole, need) = (count(base)?.at(context), count(least)?);
    let plan = need.at(context);
    if whole.total() <= room.bytes || plan.total() > room.bytes || plan.far_state == 0 {
        return Ok(None);
    }
    // What is left lets more lie near, in steps of 1024 tokens.
    let each = (whole.state - plan.state).div_ceil(context - Need::LEAST);
    let more = (room.bytes - plan.total()) / each / 1024 * 1024;
    let placement = Placement { near_tokens: Need::LEAST + more, ..base };
    Ok(Some((placement, count(placement)?)))
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

impl Rule {
    /// What it is about: each has one place.
    fn subject(&self) -> &'static str {
        match self {
            Self::ExpertsOnHost | Self::HotExperts | Self::ExpertsOnDisk(_) => "experts",
            Self::LastOnDevice(_) => "layers",
            Self::NearTokens(_) => "kv",
            Self::Drafter(_) => "draft",
        }
    }

    /// Where it says that all experts lie, if it does.
    fn of_experts(&self) -> Option<Place> {
        match self {
            Self::ExpertsOnHost | Self::HotExperts => Some(Place::Host),
            Self::ExpertsOnDisk(_) => Some(Place::Disk),
            _ => None,
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ExpertsOnHost => write!(f, "experts=host"),
            Self::HotExperts => write!(f, "experts=hot"),
            Self::ExpertsOnDisk(folder) => write!(f, "experts=disk:{}", folder.display()),
            Self::LastOnDevice(last) => write!(f, "layers=0-{last}"),
            Self::NearTokens(tokens) if tokens % 1024 == 0 => {
                write!(f, "kv=host:{}K", tokens / 1024)
            }
            Self::NearTokens(tokens) => write!(f, "kv=host:{tokens}"),
            Self::Drafter(device) => write!(f, "draft={device}"),
        }
    }
}

fn rule(text: &str) -> Result<Rule, String> {
    let expected = || {
        "`experts=host`, `experts=hot`, `experts=disk:DIR`, `layers=0-N`, `kv=host:TOKENS` or \
         `draft=DEVICE` expected"
            .to_owned()
    };
    match text.split_once('=').ok_or_else(expected)? {
        ("experts", "host") => Ok(Rule::ExpertsOnHost),
        ("experts", "hot") => Ok(Rule::HotExperts),
        ("experts", place) => match place.strip_prefix("disk:") {
            Some(folder) if !folder.is_empty() => Ok(Rule::ExpertsOnDisk(folder.into())),
            _ => Err(expected()),
        },
        ("layers", range) => {
            let last = range.strip_prefix("0-").ok_or_else(expected)?;
            last.parse().map(Rule::LastOnDevice).map_err(|_| expected())
        }
        ("kv", near) => {
            let near = near.strip_prefix("host:").ok_or_else(expected)?;
            let (number, unit) = match near.strip_suffix(['K', 'k']) {
                Some(number) => (number, 1024),
                None => (near, 1),
            };
            let tokens = number.parse().ok().and_then(|number: usize| number.checked_mul(unit));
            tokens.map(Rule::NearTokens).ok_or_else(expected)
        }
        ("draft", device) => DraftDevice::parse(device).map(Rule::Drafter),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compute::KvType;
    use engine::synthetic::{self, Mix};
    use engine::{Engine, Spec};

    #[test]
    fn older_keys_leave_before_layers_and_with_them() {
        let config = synthetic::tiny();
        let weights = synthetic::Weights::new(&config, Mix::Q8_0, 1);
        let count = |placement| {
            Need::count(256, None, |ledgers| {
                let target = (&config, &weights as &dyn engine::WeightSource);
                Ok(Engine::load_placed(ledgers, target, None, (KvType::F16, placement), Spec::Off)?)
            })
        };
        let context = 32 << 10;
        let within = |bytes| {
            let room = Room { bytes, overhead: 0 };
            let planned = PlaceFlags::silent().plan(&config, room, Some(context), count);
            let (placement, need) = planned.expect("a plan");
            (placement, need.at(context))
        };
        let (placement, whole) = within(usize::MAX);
        assert_eq!(placement, Placement::ON_DEVICE);
        let (placement, fewer) = within(whole.total() - 1);
        assert!(placement.near_tokens < context && placement.layers_from == usize::MAX);
        assert!(fewer.total() < whole.total() && fewer.far_state > 0);
        let near = Placement { near_tokens: Need::LEAST, ..Placement::ON_DEVICE };
        let least = count(near).expect("a plan").at(context).total() - OVERHEAD;
        let (placement, fewest) = within(least - 1);
        assert!(placement.layers_from < config.layers.len(), "{placement:?}");
        assert_eq!(placement.near_tokens, Need::LEAST);
        assert!(fewest.total() < least && fewest.host_weights > 0 && fewest.far_state > 0);
    }

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
        let said = ["experts=host", "experts=hot", "layers=0-47", "draft=cpu", "draft=cuda:1"];
        for said in said.into_iter().chain(["kv=host:64K", "kv=host:100", "experts=disk:/a/b"]) {
            assert_eq!(rule(said).map(|rule| rule.to_string()), Ok(said.to_owned()));
        }
        assert_eq!(rule("layers=0-47"), Ok(Rule::LastOnDevice(47)));
        assert_eq!(rule("kv=host:8192"), rule("kv=host:8k"));
        let wrong =
            ["experts", "experts=disk", "layers=3-5", "layers=0-", "kv=host", "kv=host:", ""];
        let more = ["kv=host:many", "kv=host:99999999999999999999K", "experts=disk:"];
        for wrong in wrong.into_iter().chain(more) {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn experts_lie_in_one_place() {
        let flags = |said: &[&str]| PlaceFlags {
            place: said.iter().map(|said| rule(said).expect("a rule")).collect(),
            ..PlaceFlags::silent()
        };
        let moe = engine::synthetic::tiny_moe();
        let on_disk = flags(&["experts=disk:dir", "layers=0-1"]);
        let placement = on_disk.asked(&moe).expect("it can be").expect("it is asked");
        assert_eq!((placement.experts, placement.layers_from), (Place::Disk, 2));
        assert_eq!(on_disk.disk(), Some(Path::new("dir")));
        let refused = on_disk.check_for_card().expect_err("no GPU reads a disk").to_string();
        assert!(refused.starts_with("`--place experts=disk:dir` is for a model on the processor"));
        assert!(refused.ends_with(
            "A GPU reads experts that it has no room for from the host's memory: `experts=hot`"
        ));
        assert!(flags(&["experts=hot"]).check_for_card().is_ok());
        for (one, other) in [
            ("experts=host", "experts=disk:dir"),
            ("experts=host", "experts=hot"),
            ("layers=0-1", "layers=0-2"),
            ("kv=host:1K", "kv=host:2K"),
            ("draft=cpu", "draft=cuda:1"),
        ] {
            let both = flags(&[one, other]).asked(&moe).expect_err("two places").to_string();
            let expected = format!("`--place {other}`: `{one}` says already where that lies");
            assert_eq!(both, expected);
        }
        let dense = on_disk.asked(&engine::synthetic::tiny()).expect_err("no experts").to_string();
        assert_eq!(dense, "`--place experts=disk:dir`: the model has no experts");
    }
}
