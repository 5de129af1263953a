//! A model whose files are open: what is known of it before its weights are taken in, and taking
//! them in, as often as they are wanted.

use crate::device_memory::Need;
use crate::loading::{Loaded, TextSide, WeightSummary};
use crate::model_flags::{Mode, ModelFlags};
use crate::watched;
use anyhow::{Result, bail};
use checkpoint::{Drafter, Target, TargetConfig};
use compute::cuda::Cuda;
use compute::{Backend, KvType};
use engine::{Engine, Spec};
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
    flags: ModelFlags,
    target: Target,
    drafter: Option<Drafter>,
    bytes: u64,
    kv: KvType,
    spec: Spec,
    /// What it takes of a GPU.
    need: Option<Need>,
}

impl Prepared {
    pub(crate) fn new(
        flags: &ModelFlags,
        kv: KvType,
        cuda: Option<&Cuda>,
    ) -> Result<(Self, TextSide)> {
        let loaded = flags.open()?;
        let limit = loaded.target.config.context_length;
        let rows = match cuda {
            Some(cuda) => cuda.decode_rows(),
            None => flags.device.cpu()?.decode_rows(),
        };
        let (mode, spec) = flags.spec_for(&loaded, rows)?;
        let need = cuda.map(|cuda| flags.need(&loaded, kv, cuda.prompt_rows())).transpose()?;
        let (weights, bytes) = (loaded.weights(), loaded.bytes());
        let Loaded { name, target, drafter, text, .. } = loaded;
        let mut prepared = Self {
            name,
            mode,
            context: flags.ctx.unwrap_or(limit),
            weights,
            flags: flags.clone(),
            target,
            drafter,
            bytes,
            kv,
            spec,
            need,
        };
        if let (Some(need), Some(cuda)) = (&prepared.need, cuda) {
            let free = cuda.memory_info()?.0;
            prepared.context = need.fit(flags.ctx, limit, free, prepared.drafts_in_floats())?;
        }
        let context = prepared.context;
        if context == 0 {
            bail!("`--ctx 0` leaves no room for a prompt");
        }
        if context > limit {
            eprintln!(
                "warning: `--ctx {context}` is beyond the {limit} tokens the model was trained to \
                 read"
            );
        }
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

    /// Whether it runs in the memory of a device of its own.
    pub fn is_on_device(&self) -> bool {
        self.need.is_some()
    }

    /// Takes the weights into what `wrap` makes of a new backend.
    pub fn start(&self, wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>) -> Result<Engine> {
        self.start_on(self.flags.device.open()?, wrap)
    }

    /// The same on that GPU, where there is one.
    pub(crate) fn start_on(
        &self,
        cuda: Option<Cuda>,
        wrap: impl FnOnce(Box<dyn Backend>) -> Box<dyn Backend>,
    ) -> Result<Engine> {
        let backend: Box<dyn Backend> = match (cuda, &self.need) {
            (Some(cuda), Some(need)) => {
                let free = cuda.memory_info()?.0;
                let (limit, floats) = (self.config().context_length, self.drafts_in_floats());
                let context = need.fit(Some(self.context), limit, free, floats)?;
                // All that is left is for the state of texts.
                cuda.budget().set_limit(free.saturating_sub(need.at(context).besides_state()));
                Box::new(cuda)
            }
            _ => Box::new(self.flags.device.cpu()?),
        };
        let bar = watched::bar(self.bytes);
        let Self { target, drafter, kv, .. } = self;
        let (drafter, spec) = (drafter.as_ref(), self.spec);
        let engine = self.flags.take_in(target, drafter, wrap(backend), *kv, spec, &bar)?;
        bar.finish_and_clear();
        Ok(engine)
    }

    fn drafts_in_floats(&self) -> bool {
        let is_float =
            |ty: BlockType| matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::BF16);
        let matrices =
            self.drafter.iter().flat_map(|d| d.weights.iter()).filter(|w| w.shape.len() > 1);
        matrices.map(|w| w.ty).any(is_float)
    }
}
