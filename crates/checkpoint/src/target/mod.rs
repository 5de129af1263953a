//! The target: a Qwen3.5, 3.6 or 3.8 model, dense or mixture of experts, from GGUF or a Hugging
//! Face folder.

mod gguf;
mod hf;
mod mtp;
mod slots;

use crate::report::Report;
use crate::rope::Rope;
use crate::weights::Weights;
use crate::{Error, Source};
use serde::Serialize;
use std::path::Path;

pub use mtp::MtpBlock;
pub use slots::slots;

/// Everything about a target that shapes its computation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding, padding included.
    pub vocab: usize,
    /// The mixer of each layer, the MTP block not counted.
    pub layers: Vec<Mixer>,
    /// Shape of the attention layers.
    pub attention: Attention,
    /// Shape of the Gated DeltaNet layers.
    pub gdn: Gdn,
    /// Shape of the feed-forward part.
    pub ffn: Ffn,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Tokens the model was trained to read.
    pub context_length: usize,
    /// Whether the LM head is the embedding.
    pub tied_head: bool,
    /// The next-token block, where the file has one.
    pub mtp: Option<Mtp>,
}

/// What a layer mixes tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Gated softmax attention.
    Attention,
    /// Gated DeltaNet.
    Gdn,
}

/// Shape of the attention layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attention {
    /// Query heads.
    pub q_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dimensions of a head that are rotated.
    pub rotary_dims: usize,
    /// Their frequencies.
    pub rope: Rope,
}

/// Shape of the Gated DeltaNet layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gdn {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Width of every head, key and value.
    pub head_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
}

impl Gdn {
    /// Channels of the convolution: queries, keys, values.
    pub fn conv_channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Width of the values of all heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.head_dim
    }
}

/// Shape of the feed-forward part.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ffn {
    /// One SwiGLU.
    Dense {
        /// Its inner width.
        width: usize,
    },
    /// Routed SwiGLU experts plus a gated shared one.
    Moe {
        /// Experts in a layer.
        experts: usize,
        /// Experts a token goes to.
        used: usize,
        /// Inner width of an expert.
        width: usize,
        /// Inner width of the shared expert.
        shared_width: usize,
        /// What the normalised routing weights are multiplied by.
        weights_scale: f32,
    },
}

/// The next-token block: one attention layer that predicts the token after the next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mtp {
    /// It has an embedding of its own.
    pub own_embedding: bool,
    /// It has an LM head of its own.
    pub own_head: bool,
    /// It has a final norm of its own; otherwise the target's `output_norm` serves.
    pub own_norm: bool,
}

impl TargetConfig {
    /// How many layers attend; the others are Gated DeltaNet.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|&&m| m == Mixer::Attention).count()
    }
}

/// An open target.
#[derive(Debug)]
pub struct Target {
    /// Its shape.
    pub config: TargetConfig,
    /// Its tensors by canonical name.
    pub weights: Weights,
    /// How the configuration was found.
    pub report: Report,
}

impl Target {
    /// Opens a file or folder that must hold a target.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::read(Source::open(path)?)
    }

    /// Reads a target out of an open source.
    pub fn read(source: Source) -> Result<Self, Error> {
        if crate::drafter::is_drafter(&source)? {
            return Err(Error::Kind { wanted: "a target", found: "a drafter" });
        }
        if MtpBlock::is_in(&source) {
            let found = "a target's MTP block (give it as `--draft`, and its target as `--model`)";
            return Err(Error::Kind { wanted: "a target", found });
        }
        match source {
            Source::Gguf { gguf, .. } => gguf::read(*gguf),
            Source::Safetensors { config: Some(config), tensors } => hf::read(&config, tensors),
            Source::Safetensors { config: None, .. } => Err(Error::NoConfigBeside),
        }
    }
}

impl Target {
    /// Makes a next-token block of another file this target's own, as if it lay in the same file.
    pub fn join(&mut self, block: MtpBlock) -> Result<(), Error> {
        if self.config.mtp.is_some() {
            return Err(Error::SecondMtp);
        }
        self.config.mtp = Some(block.mtp);
        self.weights.join(block.weights);
        self.report.resolved.retain(|r| r.field != "mtp");
        self.report.note("mtp", &self.config.mtp, "a file of its own");
        Ok(())
    }
}

/// The checks that hold in any container.
fn check(config: &TargetConfig) -> Result<(), Error> {
    let invalid = |what, value: String, expected: &str| {
        Err(Error::Invalid {
            what,
            value,
            from: "the configuration".into(),
            expected: expected.into(),
        })
    };
    let Attention { q_heads, kv_heads, head_dim, rotary_dims, .. } = config.attention;
    if kv_heads == 0 || q_heads == 0 || q_heads % kv_heads != 0 {
        let value = format!("{q_heads} query heads over {kv_heads} key heads");
        return invalid("attention", value, "a whole number of query heads per key head");
    }
    if rotary_dims == 0 || rotary_dims % 2 != 0 || rotary_dims > head_dim {
        return invalid(
            "rotary dimensions",
            rotary_dims.to_string(),
            "an even number up to the head's width",
        );
    }
    let gdn = &config.gdn;
    if gdn.key_heads == 0 || gdn.value_heads == 0 || !gdn.value_heads.is_multiple_of(gdn.key_heads)
    {
        let value = format!("{} value heads over {} key heads", gdn.value_heads, gdn.key_heads);
        return invalid("Gated DeltaNet", value, "a whole number of value heads per key head");
    }
    if gdn.conv_kernel < 2 {
        return invalid("convolution kernel", gdn.conv_kernel.to_string(), "at least 2 taps");
    }
    if let Ffn::Moe { experts, used, .. } = config.ffn
        && !(1..=experts).contains(&used)
    {
        return invalid("experts per token", used.to_string(), &format!("1 to {experts}"));
    }
    if !(config.norm_eps > 0.0 && config.norm_eps < 1.0) {
        return invalid("norm epsilon", config.norm_eps.to_string(), "a small positive number");
    }
    Ok(())
}
