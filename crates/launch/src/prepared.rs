//! A model whose files are open: what is known of it before its weights are taken in, and taking
//! them in, as often as they are wanted.

use crate::device_memory::Need;
use crate::draft_device::{Beside, DraftDevice, DraftSide};
use crate::expert_counts::ExpertCounts;
use crate::host_memory::{self, Held};
use crate::identity;
use crate::loading::{Loaded, TextSide, WeightSummary};
use crate::model_flags::{Mode, ModelFlags};
use crate::place::Room;
use crate::watched;
use anyhow::{Result, bail};
use checkpoint::{Drafter, Target, TargetConfig};
use compute::{Backend, KvType};
use engine::{Backends, Engine, Placement, Spec};
use formats::BlockType;

/// A model that can be started. Its files stay open, so that it stays the same model.
pub struct Prepared {
    /// For people: the file's name, or `embedded`.
    pub name: String,
    /// How tokens are proposed.
    pub mode: Mode,
    /// Tokens of prompt and answer together; on a GPU what fits where the model is alone.
    pub context: usize,
    /// What the target's weights are.
    pub weights: WeightSummary,
    /// Whether it runs in the memory of a device of its own.
    pub is_on_device: bool,
    flags: ModelFlags,
    target: Target,
    drafter: Option<Drafter>,
    bytes: u64,
    kv: KvType,
    spec: Spec,
    placement: Placement,
    /// What it takes of memory that is limited.
    need: Option<Need>,
    /// Which experts to have copies of first.
    counts: Option<ExpertCounts>,
}

impl Prepared {
    /// Opens the files of a model that is to run on such a backend, within that memory.
    pub(crate) fn new(
        flags: &ModelFlags,
        kv: KvType,
        backend: &dyn Backend,
        room: Option<Room>,
        beside: Option<Beside>,
    ) -> Result<(Self, TextSide)> {
        let loaded = flags.open()?;
        let (config, place) = (&loaded.target.config, &flags.device.place);
        let (limit, counts) = (config.context_length, place.expert_counts(config)?);
        // A limit of the drafter's own device is one of the context too.
        let whole = beside.and_then(|beside| beside.room);
        let room = room.or(whole.map(|_| Room { bytes: usize::MAX, overhead: 0 }));
        let (placement, need, context) = match room {
            Some(room) => {
                let rows = backend.prompt_rows();
                let count = |placement| flags.need(&loaded, (kv, placement), rows, beside);
                let (placement, need) = place.plan(config, room, flags.ctx, count)?;
                let floats = has_floats(loaded.drafter.as_ref());
                let context = need.fit(flags.ctx, limit, room.bytes, floats)?;
                (placement, Some(need), context)
            }
            None => {
                let asked = place.asked(config)?;
                if asked.is_some_and(Placement::reaches_host) {
                    eprintln!(
                        "note: on the processor everything lies in this machine's memory, so \
                         `--place` changes nothing of that"
                    );
                }
                (asked.unwrap_or(Placement::ON_DEVICE), None, flags.ctx.unwrap_or(limit))
            }
        };
        if context == 0 {
            bail!("`--ctx 0` leaves no room for a prompt");
        }
        if context > limit {
            eprintln!(
                "warning: `--ctx {context}` is beyond the {limit} tokens the model was trained to \
                 read"
            );
        }
        let (mode, spec) = flags.spec_for(&loaded, backend.text_rows())?;
        let (weights, bytes) = (loaded.weights(), loaded.bytes());
        let is_on_device = backend.has_own_memory();
        let Loaded { name, target, drafter, text, .. } = loaded;
        let flags = flags.clone();
        let prepared = Self {
            name,
            mode,
            context,
            weights,
            is_on_device,
            flags,
            target,
            drafter,
            bytes,
            kv,
            spec,
            placement,
            need,
            counts,
        };
        Ok((prepared, text))
    }

    /// The target's configuration.
    pub fn config(&self) -> &TargetConfig {
        &self.target.config
    }

    /// The type of the key/value cache.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// Takes the weights into what `wrap` makes of a new backend.
    pub fn start(&self, wrap: impl Fn(Box<dyn Backend>) -> Box<dyn Backend>) -> Result<Engine> {
        let (backend, room) = self.flags.device.backend()?;
        let side = self.flags.device.draft_side(&*backend)?;
        self.start_on(backend, room, side, wrap)
    }

    /// The same with a backend that is there, and what of its memory is free.
    pub(crate) fn start_on(
        &self,
        backend: Box<dyn Backend>,
        room: Option<Room>,
        side: Option<DraftSide>,
        wrap: impl Fn(Box<dyn Backend>) -> Box<dyn Backend>,
    ) -> Result<Engine> {
        let Self { flags, target, drafter, placement, .. } = self;
        let drafter = drafter.as_ref();
        if let Some(need) = &self.need {
            let room = room.unwrap_or(Room { bytes: usize::MAX, overhead: 0 });
            let (limit, floats) = (self.config().context_length, has_floats(drafter));
            // Others may have come since it was planned.
            let plan = need.at(need.fit(Some(self.context), limit, room.bytes, floats)?);
            // All that is left is for the state of texts.
            backend.budget().set_limit(room.bytes.saturating_sub(plan.besides_state()));
            if *placement != Placement::ON_DEVICE {
                eprintln!("the model takes {}", plan.line());
            }
            if let (Some(side), Some(own)) = (&side, plan.drafter) {
                if let Some(room) = side.beside.room {
                    let budget = side.backend.budget();
                    budget.set_limit(room.bytes.saturating_sub(own.besides_state()));
                }
                eprintln!("{}", own.line());
            }
            if backend.has_own_memory() {
                let own = plan.drafter.filter(|own| own.device == DraftDevice::Cpu);
                let own = own.map_or(0, |own| own.total());
                let left = host_memory::check(plan.host_weights + plan.far_state, own)?;
                // Several texts have no more of it than there is, and states that are stowed have
                // their quarter beside them.
                if let (Some(left), Some(budget)) = (left, backend.far_budget()) {
                    let free = left.saturating_sub(plan.host_weights + own);
                    budget.set_limit((free / 4 * 3).max(plan.far_state));
                }
            }
        }
        if !backend.has_own_memory() {
            if side.as_ref().is_some_and(DraftSide::is_processor) {
                eprintln!(
                    "note: target and drafter both run on the processor; with `--draft-device cpu` \
                     the drafter has copies of the embedding table and the LM head of its own there"
                );
            }
            let drafter = drafter.filter(|_| side.as_ref().is_none_or(DraftSide::is_processor));
            let held = Held::of(target, drafter, flags.draft_type, self.kv);
            // Where it was said how much of it may be taken, that was planned with.
            let left = if room.is_none() { host_memory::free_with_swap() } else { None };
            held.check(left, flags.device.place.disk())?;
        }
        let bar = watched::bar(self.bytes);
        let (memory, spec) = ((self.kv, *placement), self.spec);
        let backends = match side {
            Some(DraftSide { backend: own, beside }) => {
                Backends::apart(wrap(backend), wrap(own), &beside.device.to_string())
            }
            None => wrap(backend).into(),
        };
        let mut engine = flags.take_in(target, drafter, backends, memory, spec, &bar)?;
        if let Some(counts) = &self.counts {
            counts.tell(engine.backend())?;
        }
        if flags.identified {
            let settings = format!("{:?}", flags.draft_type);
            let identity = identity::identify(target, drafter, &mut engine, &settings)?;
            engine.identify(identity.0.0);
        }
        bar.finish_and_clear();
        Ok(engine)
    }
}

/// Whether a drafter's matrices are floats.
fn has_floats(drafter: Option<&Drafter>) -> bool {
    let is_float = |ty: BlockType| matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::BF16);
    let matrices = drafter.into_iter().flat_map(|d| d.weights.iter()).filter(|w| w.shape.len() > 1);
    matrices.map(|w| w.ty).any(is_float)
}
