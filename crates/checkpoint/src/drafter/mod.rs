//! The drafter: a DFlash block-diffusion model of either generation or a near relative (DSpark,
//! JetSpec), from the GGUF dialects there are, a Hugging Face folder, or a bare safetensors file.
//! Its dimensions come from its own tensors, never from the target.

mod claims;
mod extras;
mod gguf;
mod hf;
mod pairing;
mod resolve;
mod settle;
mod slots;
mod variants;

use crate::report::Report;
use crate::rope::{Rope, Yarn};
use crate::weights::Weights;
use crate::{Error, MtpBlock, Source, TargetConfig};
use serde::Serialize;
use std::path::Path;

pub use extras::{BlockConv, Confidence, Extras, Kind, Markov, Scales, Selector};
pub use resolve::default_taps;
pub use slots::slots;

/// Everything about a drafter that shapes its computation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrafterConfig {
    /// Width of the residual stream, the target's too.
    pub hidden: usize,
    /// What each layer sees.
    pub layers: Vec<DraftLayer>,
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Inner width of the SwiGLU.
    pub ffn: usize,
    /// Target layers (from 0) whose output is read, in the order `fc` expects.
    pub taps: Vec<usize>,
    /// Rows of a block pass: the anchor and the masks.
    pub block: usize,
    /// Rows it was trained with, where a flag asks for more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_block: Option<usize>,
    /// The token that stands for "to be filled in".
    pub mask_token: u32,
    /// Rotary settings, over the whole head.
    pub rope: Rope,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Tokens it was trained to read, where the file says.
    pub context_length: Option<usize>,
    /// Causality where a file or flag says it for all layers; `layers` has the outcome either way.
    #[serde(skip)]
    pub explicit_causal: Option<bool>,
    /// What a drafter has beyond the first generation's; neutral for one that has nothing.
    #[serde(flatten)]
    pub extras: Extras,
}

/// What one drafter layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DraftLayer {
    /// A key is seen from a query less than this many positions away; nothing for full attention.
    pub window: Option<usize>,
    /// Whether a row of the block is blind to the rows after it.
    pub causal: bool,
}

impl DrafterConfig {
    /// The layers in words: `sliding 3 of 4, window 128, not causal`.
    pub fn layer_summary(&self) -> String {
        let count = self.layers.len();
        let sliding = self.layers.iter().filter(|l| l.window.is_some()).count();
        let mut windows: Vec<usize> = self.layers.iter().filter_map(|l| l.window).collect();
        windows.dedup();
        let windows = windows.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
        let seen = match sliding {
            0 => format!("full {count} of {count}"),
            _ => format!("sliding {sliding} of {count}, window {windows}"),
        };
        let causal = match self.layers.iter().filter(|l| l.causal).count() {
            0 => "not causal".to_owned(),
            n if n == count => "causal".to_owned(),
            n if n == sliding && self.layers.iter().all(|l| l.causal == l.window.is_some()) => {
                "causal where sliding".to_owned()
            }
            n => format!("causal in {n}"),
        };
        format!("{seen}, {causal}")
    }
}

/// What the command line says about a drafter; it wins over the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// `--draft-rope-theta`
    pub rope_theta: Option<f32>,
    /// `--draft-mask-token`
    pub mask_token: Option<u32>,
    /// `--draft-taps`, counted from 0.
    pub taps: Option<Vec<usize>>,
    /// `--draft-window`: the sliding layers' window; 0 makes every layer full. Where the file names
    /// no sliding layer, all but the last slide, as in every published drafter that has windows.
    pub window: Option<usize>,
    /// `--draft-causal`
    pub causal: Option<Causality>,
    /// `--draft-yarn`; nothing inside for plain rotary.
    pub yarn: Option<Option<Yarn>>,
    /// `--draft-block`
    pub block: Option<usize>,
    /// `--draft-selector`: false leaves a selector that is there out, so that drafts are chosen by
    /// their logits alone.
    pub selector: Option<bool>,
}

/// Which layers of a drafter are causal inside the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Causality {
    /// All of them.
    Everywhere,
    /// None of them.
    Nowhere,
    /// Those that slide, as drafters are trained unless they say otherwise.
    Sliding,
}

/// The ways a drafter is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Dialect {
    /// `dflash`, llama.cpp's own: taps counted from 1.
    #[serde(rename = "upstream GGUF (`dflash`)")]
    Upstream,
    /// `dflash-draft`, of the spiritbuun fork and its relatives.
    #[serde(rename = "spiritbuun GGUF (`dflash-draft`)")]
    Spiritbuun,
    /// `qwen35-dflash-draft`, lucebox's.
    #[serde(rename = "lucebox GGUF (`*-dflash-draft`)")]
    Lucebox,
    /// `jetspec_qwen3_draft_head`: DFlash's first generation with causal blocks.
    #[serde(rename = "JetSpec GGUF (`jetspec_*`)")]
    Jetspec,
    /// `config.json` with everything at the top level but the taps and the mask, as of April 2026,
    /// or with block size in `dflash_config` and theta in `rope_parameters`, as of June 2026.
    #[serde(rename = "Hugging Face")]
    HuggingFace,
    /// A safetensors file and nothing else.
    #[serde(rename = "bare safetensors")]
    Bare,
}

/// An open drafter.
#[derive(Debug)]
pub struct Drafter {
    /// Its shape.
    pub config: DrafterConfig,
    /// How it is written down.
    pub dialect: Dialect,
    /// Its tensors by canonical (upstream) name.
    pub weights: Weights,
    /// How the configuration was found.
    pub report: Report,
    /// The GGUF metadata or `config.json` it came with, for conversion.
    pub(crate) origin: Origin,
}

/// What a conversion carries over besides the configuration.
#[derive(Debug, Default)]
pub(crate) struct Origin {
    pub(crate) name: Option<String>,
    /// `tokenizer.*` entries, already encoded.
    pub(crate) tokenizer: formats::gguf::Entries,
}

impl Drafter {
    /// Opens a file or folder that must hold a drafter, and checks it against the target where one
    /// is given.
    pub fn open(
        path: &Path,
        overrides: &Overrides,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        Self::of(Source::open(path)?, overrides, target)
    }

    /// Reads a drafter out of an open source that must hold one.
    pub fn of(
        source: Source,
        overrides: &Overrides,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        if !is_drafter(&source)? {
            let found = match MtpBlock::is_in(&source) {
                true => "a target's MTP block",
                false => "a target",
            };
            return Err(Error::Kind { wanted: "a drafter", found });
        }
        Self::read(source, overrides, target)
    }

    /// Reads a drafter out of an open source.
    pub fn read(
        source: Source,
        overrides: &Overrides,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        variants::refuse(&source)?;
        let claims = match &source {
            Source::Gguf { gguf, beside } => gguf::claims(gguf, beside.as_ref())?,
            Source::Safetensors { config, .. } => hf::claims(config.as_ref())?,
        };
        let dialect = claims.dialect;
        let mut report = Report::default();
        let config = resolve::resolve(&claims, source.tensors(), overrides, target, &mut report)?;
        pairing::check(&config, &claims, overrides, target, &mut report)?;
        let vocab = target.map(|t| t.vocab).or(claims.vocab.as_ref().map(|claim| claim.value));
        slots::check_borrowed(source.tensors(), vocab, config.hidden)?;
        let origin = Origin::of(&source)?;
        let tensors = match source {
            Source::Gguf { gguf, .. } => gguf.into_tensors(),
            Source::Safetensors { tensors, .. } => tensors,
        };
        let slots = slots::named_for(&config, &tensors);
        // Some exports carry copies of what a drafter borrows from the target.
        let (weights, skipped) = Weights::find(tensors, slots, slots::is_borrowed)?;
        for name in skipped.iter().filter(|name| slots::is_borrowed(name)) {
            report.warn(format!("the drafter carries a copy of `{name}`; the target's is used"));
        }
        report.skipped = skipped;
        let mut config = config;
        if overrides.selector == Some(false) {
            config.extras.selector = None;
        }
        Ok(Self { config, dialect, weights, report, origin })
    }
}

impl Origin {
    fn of(source: &Source) -> Result<Self, Error> {
        let Source::Gguf { gguf, .. } = source else { return Ok(Self::default()) };
        let name = gguf.string("general.name")?.map(str::to_owned);
        let mut tokenizer = formats::gguf::Entries::default();
        for (key, value) in gguf.metadata() {
            if key.starts_with("tokenizer.") && key != claims::TOKENIZER_MASK {
                tokenizer.copy(key, value);
            }
        }
        Ok(Self { name, tokenizer })
    }
}

/// Whether a source holds a drafter rather than a target; anything else is refused by name.
pub fn is_drafter(source: &Source) -> Result<bool, Error> {
    match source {
        Source::Gguf { gguf, .. } => {
            let arch = gguf.string("general.architecture")?.unwrap_or_default();
            match arch {
                "qwen35" | "qwen35moe" | "qwen35_mtp" | "qwen35moe_mtp" => Ok(false),
                "dflash" => Ok(true),
                _ if arch.ends_with("dflash-draft") => Ok(true),
                _ if arch.starts_with("jetspec") => Ok(true),
                _ => {
                    Err(variants::named(arch)
                        .unwrap_or_else(|| Error::Architecture(arch.to_owned())))
                }
            }
        }
        Source::Safetensors { config, tensors } => {
            let names = match config {
                Some(config) => config.strings("architectures")?.unwrap_or_default(),
                None => Vec::new(),
            };
            let name = names.first().copied().unwrap_or_default();
            if name.starts_with("Qwen3_5") || MtpBlock::is_in(source) {
                return Ok(false);
            }
            let has_fc = slots::FC_NAMES.iter().any(|fc| tensors.get(fc).is_some());
            match name {
                _ if has_fc || name.contains("DFlash") || name.contains("DSpark") => Ok(true),
                "" => Err(Error::NoArchitecture),
                _ => {
                    Err(variants::named(name)
                        .unwrap_or_else(|| Error::Architecture(name.to_owned())))
                }
            }
        }
    }
}
