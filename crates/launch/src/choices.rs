//! The ways a model can lie in a card's memory and the host's, each with the rate that the bytes of
//! a token promise.

use crate::device_memory::{Need, Plan};
use crate::draft_device::{Beside, DraftDevice};
use crate::place::{PlaceFlags, Room, older_keys_far};
use anyhow::Result;
use checkpoint::{TargetConfig, target::Ffn};
use engine::{Place, Placement};
use serde::Serialize;

/// Bytes a second that weights are read with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bandwidths {
    /// Of the device's memory.
    pub(crate) device: f64,
    /// Of the host's, over the bus.
    pub(crate) bus: f64,
    /// Of the host's, by its processors.
    pub(crate) host: f64,
}

/// A way of placing a model.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// As `--place` says it; empty where all of it lies on the device.
    pub place: String,
    /// What that takes.
    pub plan: Plan,
    /// Whether it fits.
    pub fits: bool,
    /// Tokens a second of plain decoding, by the bytes that a token reads: with experts that are
    /// all chosen alike, so more where copies are of those that a text prefers. A device comes to
    /// two thirds of it and more.
    pub tokens_per_s: f64,
    /// Milliseconds that a drafter which runs on the processor needs for a block at least: its
    /// bytes over what the processors read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_ms: Option<f64>,
}

impl Choice {
    /// One line for people.
    pub fn line(&self) -> String {
        let place = if self.place.is_empty() { "all on the card" } else { &self.place };
        let fits = if self.fits { "" } else { " (does not fit)" };
        let far = (self.plan.host_weights + self.plan.far_state) as f64 / 1e9;
        let on_card = self.plan.total() as f64 / 1e9;
        let drafts = self.draft_ms.map_or_else(String::new, |ms| {
            let own = self.plan.drafter.map_or(0, |own| own.total()) as f64 / 1e9;
            format!(", and a drafter of {own:.1} GB there, {ms:.0} ms a block or more")
        });
        format!(
            "{place}{fits}: up to {:.0} tok/s, {on_card:.1} GB, {far:.1} GB in the host's \
                 memory{drafts}",
            self.tokens_per_s
        )
    }
}

/// The ways that are worth choosing from, at a context: with the drafter where it was asked for,
/// and on the processor where there is one that was not given a device.
pub(crate) fn choices(
    config: &TargetConfig,
    room: Room,
    context: usize,
    bandwidths: Bandwidths,
    (beside, has_drafter): (Option<Beside>, bool),
    counted: impl Fn(Placement, Option<Beside>) -> Result<Need>,
) -> Result<Vec<Choice>> {
    let count = |placement| counted(placement, beside);
    let whole = count(Placement::ON_DEVICE)?.within(room).at(context);
    let mut found = vec![(String::new(), whole)];
    if matches!(config.ffn, Ffn::Moe { .. }) {
        for place in ["experts=hot", "experts=host"] {
            let flags = PlaceFlags::saying(place);
            let (_, need) = flags.plan(config, room, Some(context), count)?;
            found.push((place.to_owned(), need.at(context)));
        }
    }
    // As many whole layers as fit.
    let fits = |plan: &Plan| plan.total() <= room.bytes;
    let with_layers = |on_card: usize| -> Result<(String, Plan)> {
        let placement = Placement { layers_from: on_card, ..Placement::ON_DEVICE };
        let plan = count(placement)?.within(room).at(context);
        Ok((format!("layers=0-{}", on_card - 1), plan))
    };
    if !fits(&found[0].1) {
        let (mut fit, mut too_many) = (1, config.layers.len());
        while fit + 1 < too_many {
            let middle = (fit + too_many) / 2;
            if fits(&with_layers(middle)?.1) { fit = middle } else { too_many = middle }
        }
        found.push(with_layers(fit)?);
    }
    if let Some((placement, need)) =
        older_keys_far(config, context, room, |placement| Ok(count(placement)?.within(room)))?
    {
        found.push((in_words(placement).trim_start_matches(',').to_owned(), need.at(context)));
    }
    if has_drafter && beside.is_none() {
        let apart = |placement| counted(placement, Some(Beside::processor(256)));
        let (placement, need) = PlaceFlags::silent().plan(config, room, Some(context), apart)?;
        found.push((format!("draft=cpu{}", in_words(placement)), need.at(context)));
    }
    let choice = |(place, plan): (String, Plan)| Choice {
        fits: fits(&plan),
        tokens_per_s: tokens_per_s(config, &plan, bandwidths),
        draft_ms: draft_ms(&plan, bandwidths),
        place,
        plan,
    };
    Ok(found.into_iter().map(choice).collect())
}

/// What `--place` says besides where a placement was found and not asked for.
fn in_words(placement: Placement) -> String {
    let experts = match (placement.experts, placement.copies) {
        (Place::Host, 0) => ",experts=host",
        (Place::Host, _) => ",experts=hot",
        _ => "",
    };
    let layers = match placement.layers_from {
        usize::MAX => String::new(),
        0 => ", no layer on the card".to_owned(),
        from => format!(",layers=0-{}", from - 1),
    };
    let keys = match placement.near_tokens {
        usize::MAX => String::new(),
        tokens => format!(",kv=host:{tokens}"),
    };
    format!("{experts}{layers}{keys}")
}

/// Milliseconds of a block on the processor, by its bytes.
fn draft_ms(plan: &Plan, bandwidths: Bandwidths) -> Option<f64> {
    let own = plan.drafter.filter(|own| own.device == DraftDevice::Cpu)?;
    Some(1e3 * (own.weights - own.tables) as f64 / bandwidths.host)
}

/// Tokens a second that the bytes of one allow.
fn tokens_per_s(config: &TargetConfig, plan: &Plan, bandwidths: Bandwidths) -> f64 {
    let chosen = match config.ffn {
        Ffn::Moe { experts, used, .. } => used as f64 / experts as f64,
        Ffn::Dense { .. } => 1.0,
    };
    let near = (plan.weights - plan.experts - plan.tables) as f64
        + chosen * (plan.experts + plan.copies) as f64;
    let far = (plan.host_weights - plan.host_experts + plan.far_state) as f64
        + chosen * (plan.host_experts - plan.copies) as f64;
    1.0 / (near / bandwidths.device + far / bandwidths.bus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use compute::KvType;
    use engine::synthetic::{self, Mix};
    use engine::{Engine, Spec};

    #[test]
    fn what_lies_nearer_is_faster() {
        let config = synthetic::tiny_moe();
        let weights = synthetic::Weights::new(&config, Mix::Q8_0, 1);
        let count = |placement, beside| {
            Need::count(256, beside, |ledgers| {
                let memory = (KvType::F16, placement);
                let target = (&config, &weights as &dyn engine::WeightSource);
                Ok(Engine::load_placed(ledgers, target, None, memory, Spec::Off)?)
            })
        };
        let bandwidths = Bandwidths { device: 4500e9, bus: 50e9, host: 200e9 };
        let context = 512;
        let within = |bytes| {
            let room = Room { bytes, overhead: 0 };
            choices(&config, room, context, bandwidths, (None, false), count).expect("choices")
        };
        let all = within(usize::MAX);
        assert_eq!(all.iter().filter(|choice| choice.fits).count(), 3, "no layer has to leave");
        let room = all[0].plan.total() - all[0].plan.experts / 2;
        let some = within(room);
        let [whole, hot, host, layers] = &some[..] else { panic!("{} choices", some.len()) };
        assert!(!whole.fits && hot.fits && host.fits && layers.fits);
        assert!(whole.tokens_per_s > hot.tokens_per_s && hot.tokens_per_s > host.tokens_per_s);
        assert!(layers.tokens_per_s < whole.tokens_per_s && layers.place.starts_with("layers=0-"));
        assert_eq!((host.plan.copies, host.plan.host_experts), (0, whole.plan.experts));
        assert!(hot.plan.copies > 0 && hot.plan.total() <= room);
        assert!(layers.line().contains("tok/s"), "{}", layers.line());
    }
}
