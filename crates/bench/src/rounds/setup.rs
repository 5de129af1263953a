//! What `bench rounds` runs: a published shape, the drafter that belongs to it, and where their
//! weights lie.

use super::Args;
use anyhow::{Result, bail};
use checkpoint::drafter::Kind;
use checkpoint::target::Ffn;
use checkpoint::{DrafterConfig, TargetConfig};
use compute::Backend;
use engine::{Backends, Engine, Placement, Skew, Spec, WeightSource, synthetic};
use launch::{DraftSide, Need, Plan, Room};

/// The shape that is asked for, with the next-token block where its rounds are.
pub(super) fn shape(args: &Args) -> Result<TargetConfig> {
    let Some(config) = synthetic::named(&args.synthetic) else {
        bail!("unknown shape `{}`: {} expected", args.synthetic, synthetic::NAMES.join(", "));
    };
    if !(args.assume_accept.is_finite() && args.assume_accept >= 1.0) {
        bail!("`--assume-accept {}`: a round keeps at least one token", args.assume_accept);
    }
    let config = TargetConfig { mtp: config.mtp.filter(|_| !args.mtp.is_empty()), ..config };
    if config.mtp.is_none() && !args.mtp.is_empty() {
        bail!("`--mtp`: `{}` has no next-token block", args.synthetic);
    }
    Ok(config)
}

/// How routers choose, where it is said.
pub(super) fn skew(args: &Args, config: &TargetConfig) -> Result<Option<Skew>> {
    let Some(share) = args.routing_skew else { return Ok(None) };
    let Ffn::Moe { experts, used, .. } = config.ffn else {
        bail!("`--routing-skew`: `{}` has no experts", args.synthetic);
    };
    match Skew::new(experts, used, share) {
        Some(skew) => Ok(Some(skew)),
        None => bail!(
            "`--routing-skew {share}`: the best 60 % of {experts} experts, {used} of which a row \
             visits, take 0.6 of the choices at least, and few experts cannot take nearly all"
        ),
    }
}

/// Takes the weights in, those that do not fit on the device in the host's memory; and what they
/// take of a device's memory.
pub(super) fn load(
    args: &Args,
    backend: Box<dyn Backend>,
    room: Option<Room>,
    target: (&TargetConfig, &dyn WeightSource),
    drafter: Option<(&DrafterConfig, &dyn WeightSource)>,
) -> Result<(Engine, Option<Plan>)> {
    let (flags, kv) = (&args.device.place, args.device.kv());
    let side = args.device.draft_side(&*backend)?;
    if let (Some(side), None) = (&side, drafter) {
        bail!(
            "`--draft-device {}`: no drafter is published for `{}`",
            side.beside.device,
            args.synthetic
        );
    }
    let (placement, plan) = match room {
        Some(room) => {
            let rows = backend.prompt_rows();
            let longest = args.context.iter().chain(&args.prompt).max().copied();
            let beside = side.as_ref().map(|side| side.beside);
            let count = |placement| {
                Need::count(rows, beside, |ledgers| {
                    let memory = (kv, placement);
                    Ok(Engine::load_placed(ledgers, target, drafter, memory, Spec::Off)?)
                })
            };
            let (placement, need) = flags.plan(target.0, room, longest, count)?;
            need.fit(longest, target.0.context_length, room.bytes, false)?;
            let plan = need.at(longest.unwrap_or(0));
            eprintln!("the model takes {}", plan.line());
            // Texts stay within what is left.
            backend.budget().set_limit(room.bytes.saturating_sub(plan.besides_state()));
            (placement, Some(plan))
        }
        None => (flags.asked(target.0)?.unwrap_or(Placement::ON_DEVICE), None),
    };
    let backends = match side {
        Some(DraftSide { backend: own, beside }) => {
            Backends::apart(backend, own, &beside.device.to_string())
        }
        None => backend.into(),
    };
    let counts = flags.expert_counts(target.0)?;
    let mut engine = Engine::load_placed(backends, target, drafter, (kv, placement), Spec::Off)?;
    if let Some(counts) = counts {
        counts.tell(engine.backend())?;
    }
    Ok((engine, plan))
}

/// The drafter that is asked for; nothing where none is published for the shape.
pub(super) fn drafter(args: &Args) -> Result<Option<DrafterConfig>> {
    let mut published = synthetic::drafters_for(&args.synthetic).into_iter();
    if !args.dflash2 {
        return Ok(published.next());
    }
    let found = published.find(|config| config.extras.kind() == Kind::Dflash2);
    match found {
        Some(config) => Ok(Some(config)),
        None => bail!("`--dflash2`: none is published for `{}`", args.synthetic),
    }
}

/// Whether a tensor of a drafter is one whose rows are looked up.
pub(super) fn is_codebook(name: &str) -> bool {
    ["selector_predecessor.weight", "selector_successor.weight"].contains(&name)
}
