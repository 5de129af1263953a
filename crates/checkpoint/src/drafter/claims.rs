//! What a file says about its drafter, key by key, before shapes and flags are heard.

use super::{Dialect, Kind};
use crate::report::Claim;
use crate::rope::Yarn;

/// Upstream keeps the mask token among the tokenizer's keys.
pub(super) const TOKENIZER_MASK: &str = "tokenizer.ggml.mask_token_id";

#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub(super) dialect: Dialect,
    /// The architecture's name, for rules that hang on it.
    pub(super) arch: String,
    pub(super) hidden: Option<Claim<usize>>,
    pub(super) layers: Option<Claim<usize>>,
    pub(super) ffn: Option<Claim<usize>>,
    pub(super) q_heads: Option<Claim<usize>>,
    pub(super) kv_heads: Option<Claim<usize>>,
    pub(super) head_dim: Option<Claim<usize>>,
    pub(super) value_dim: Option<Claim<usize>>,
    pub(super) rotary_dims: Option<Claim<usize>>,
    /// Columns of `fc`.
    pub(super) features: Option<Claim<usize>>,
    pub(super) tap_count: Option<Claim<usize>>,
    /// Counted from 0.
    pub(super) taps: Option<Claim<Vec<i64>>>,
    pub(super) block: Option<Claim<usize>>,
    pub(super) mask_token: Option<Claim<usize>>,
    pub(super) theta: Option<Claim<f32>>,
    pub(super) scaling: Claim<Option<Yarn>>,
    pub(super) norm_eps: Option<Claim<f32>>,
    pub(super) context_length: Option<Claim<usize>>,
    /// Which layers slide.
    pub(super) sliding: Option<Claim<Vec<bool>>>,
    pub(super) window: Option<Claim<usize>>,
    /// Why saying nothing of windows means that there are none; nothing where it means nothing.
    pub(super) silence_is_full: Option<String>,
    pub(super) causal: Option<Claim<bool>>,
    /// Layers of the target it was trained for.
    pub(super) target_layers: Option<Claim<usize>>,
    pub(super) vocab: Option<Claim<usize>>,
    pub(super) extras: ExtraClaims,
    pub(super) warnings: Vec<String>,
}

/// What a file says of parts beyond the first generation's. A count of 0 is none.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtraClaims {
    /// The family that the architecture's name promises, where it is not the first generation.
    pub(super) named: Option<Claim<Kind>>,
    pub(super) conv_kernel: Option<Claim<usize>>,
    pub(super) conv_group: Option<Claim<usize>>,
    pub(super) selector_rank: Option<Claim<usize>>,
    pub(super) selector_top_k: Option<Claim<usize>>,
    pub(super) markov: Option<Claim<bool>>,
    pub(super) markov_rank: Option<Claim<usize>>,
    pub(super) confidence: Option<Claim<bool>>,
    pub(super) confidence_with_markov: Option<Claim<bool>>,
    pub(super) sample_from_anchor: Option<Claim<bool>>,
    pub(super) embedding_scale: Option<Claim<f32>>,
    pub(super) logit_scale: Option<Claim<f32>>,
    pub(super) softcap: Option<Claim<f32>>,
}

impl Claims {
    /// A file that says nothing.
    pub(super) fn silent(dialect: Dialect) -> Self {
        Self {
            dialect,
            arch: String::new(),
            hidden: None,
            layers: None,
            ffn: None,
            q_heads: None,
            kv_heads: None,
            head_dim: None,
            value_dim: None,
            rotary_dims: None,
            features: None,
            tap_count: None,
            taps: None,
            block: None,
            mask_token: None,
            theta: None,
            scaling: Claim::new(None, "nothing says otherwise"),
            norm_eps: None,
            context_length: None,
            sliding: None,
            window: None,
            silence_is_full: None,
            causal: None,
            target_layers: None,
            vocab: None,
            extras: ExtraClaims::default(),
            warnings: Vec::new(),
        }
    }
}
