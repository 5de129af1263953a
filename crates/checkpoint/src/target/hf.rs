//! A target from a Hugging Face checkpoint: `Qwen3_5ForCausalLM`, `Qwen3_5MoeForCausalLM`, and the
//! multimodal `...ForConditionalGeneration`, whose language model lies under `text_config` and
//! `model.language_model.`.

use super::slots::hf_slots;
use super::{Attention, Ffn, Gdn, Mixer, Mtp, Target, TargetConfig, check};
use crate::report::{Claim, Report};
use crate::rope::{self, Rope, check_theta};
use crate::weights::Weights;
use crate::{Error, Json, caps, quantised};
use formats::Tensors;

const ARCHITECTURES: [&str; 4] = [
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
];

pub(super) fn read(root: &Json, tensors: Tensors) -> Result<Target, Error> {
    let architecture =
        root.strings("architectures")?.and_then(|a| a.first().copied()).unwrap_or_default();
    if !ARCHITECTURES.contains(&architecture) {
        return Err(Error::Architecture(architecture.to_owned()));
    }
    let mut report = Report::default();
    let tensors = quantised::read(root, tensors, &mut report)?;
    let text = root.nested("text_config");
    let prefix = ["model.language_model.", "model."]
        .into_iter()
        .find(|p| tensors.get(&format!("{p}embed_tokens.weight")).is_some())
        .ok_or_else(|| Error::MissingTensor("model.embed_tokens.weight".into()))?;
    let config = {
        let nested = if text.is_some() { "text_config." } else { "" };
        let json = text.as_ref().unwrap_or(root);
        Keys { json, root, nested, tensors: &tensors, prefix, report: &mut report }
            .config(architecture.contains("Moe"))?
    };
    check(&config)?;
    let vision = |name: &str| name.starts_with("model.visual.") || name.starts_with("visual.");
    // A tied head may still be stored; it is the embedding once more.
    let tied_copy = |name: &str| config.tied_head && name == "lm_head.weight";
    let (weights, skipped) =
        Weights::find(tensors, hf_slots(&config, prefix), |name| vision(name) || tied_copy(name))?;
    report.skipped = skipped;
    Ok(Target { config, weights, report })
}

struct Keys<'a> {
    /// The language model's configuration.
    json: &'a Json,
    /// The whole file, the same unless the checkpoint is multimodal.
    root: &'a Json,
    nested: &'static str,
    tensors: &'a Tensors,
    prefix: &'a str,
    report: &'a mut Report,
}

impl Keys<'_> {
    fn said(&self, key: &str) -> String {
        format!("`{}{key}`", self.nested)
    }

    fn count(&mut self, field: &'static str, key: &str) -> Result<usize, Error> {
        let value = self
            .json
            .integer(key)?
            .ok_or_else(|| Error::MissingKey(format!("{}{key}", self.nested)))?;
        let claim = Claim::new(value, self.said(key));
        self.report.note(field, &value, self.said(key));
        caps::dimension(field, &claim)
    }

    fn config(&mut self, moe: bool) -> Result<TargetConfig, Error> {
        if let Some(act) = self.json.string("hidden_act")?.filter(|&a| a != "silu") {
            return Err(Error::Unsupported {
                what: format!("activation `{act}`"),
                from: self.said("hidden_act"),
            });
        }
        if self.json.bool("attention_bias")? == Some(true) {
            return Err(Error::Unsupported {
                what: "attention with biases".into(),
                from: self.said("attention_bias"),
            });
        }
        let hidden = self.count("hidden", "hidden_size")?;
        let vocab = self.count("vocab", "vocab_size")?;
        let layers = self.layers()?;
        let attention = self.attention()?;
        let gdn = self.gdn()?;
        let ffn = if moe {
            self.moe()?
        } else {
            Ffn::Dense { width: self.count("ffn", "intermediate_size")? }
        };
        let key = "rms_norm_eps";
        let norm_eps = self
            .json
            .float(key)?
            .ok_or_else(|| Error::MissingKey(format!("{}{key}", self.nested)))?;
        self.report.note("norm_eps", &norm_eps, self.said(key));
        let context_length = self.count("context_length", "max_position_embeddings")?;
        let tied_head = self.tied_head()?;
        let mtp = self.mtp()?;
        Ok(TargetConfig {
            hidden,
            vocab,
            layers,
            attention,
            gdn,
            ffn,
            norm_eps,
            context_length,
            tied_head,
            mtp,
        })
    }

    fn layers(&mut self) -> Result<Vec<Mixer>, Error> {
        let count = self.count("blocks", "num_hidden_layers")?;
        let (layers, from) = match self.json.strings("layer_types")? {
            Some(types) => {
                if types.len() != count {
                    let (first, second) =
                        (self.said("layer_types"), self.said("num_hidden_layers"));
                    return Err(Error::disagree("layer count", types.len(), first, count, second));
                }
                let mixer = |kind: &str| match kind {
                    "linear_attention" => Ok(Mixer::Gdn),
                    "full_attention" => Ok(Mixer::Attention),
                    other => {
                        let what = format!("a target layer of type `{other}`");
                        Err(Error::Unsupported { what, from: self.said("layer_types") })
                    }
                };
                (
                    types.into_iter().map(mixer).collect::<Result<Vec<_>, _>>()?,
                    self.said("layer_types"),
                )
            }
            None => {
                let interval = self.count("attention_interval", "full_attention_interval")?;
                let mixer = |n: usize| {
                    if n.is_multiple_of(interval) { Mixer::Attention } else { Mixer::Gdn }
                };
                ((1..=count).map(mixer).collect(), self.said("full_attention_interval"))
            }
        };
        self.report.note("layers", &layers, from);
        Ok(layers)
    }

    fn attention(&mut self) -> Result<Attention, Error> {
        let q_heads = self.count("q_heads", "num_attention_heads")?;
        let kv_heads = self.count("kv_heads", "num_key_value_heads")?;
        let head_dim = self.count("head_dim", "head_dim")?;
        let factor_key = ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"]
            .into_iter()
            .find(|key| self.json.get(key).is_some())
            .ok_or_else(|| Error::MissingKey("rope_parameters.partial_rotary_factor".into()))?;
        let factor = self.json.float(factor_key)?.unwrap_or_default();
        let rotary_dims = (head_dim as f32 * factor) as usize;
        self.report.note(
            "rotary_dims",
            &rotary_dims,
            format!("{} of `head_dim`", self.said(factor_key)),
        );
        let found = rope::from_hf(self.json)?;
        let theta =
            found.theta.ok_or_else(|| Error::MissingKey("rope_parameters.rope_theta".into()))?;
        if let Some(other) = found.other_theta {
            let (first, second) = (theta.from, other.from);
            return Err(Error::disagree("rope theta", theta.value, first, other.value, second));
        }
        check_theta(&theta)?;
        self.report.note("rope_theta", &theta.value, theta.from);
        self.report.note("rope_scaling", &found.scaling.value, found.scaling.from);
        let rope = Rope { theta: theta.value, scaling: found.scaling.value };
        Ok(Attention { q_heads, kv_heads, head_dim, rotary_dims, rope })
    }

    fn gdn(&mut self) -> Result<Gdn, Error> {
        let key_heads = self.count("gdn_key_heads", "linear_num_key_heads")?;
        let value_heads = self.count("gdn_value_heads", "linear_num_value_heads")?;
        let head_dim = self.count("gdn_head_dim", "linear_key_head_dim")?;
        let value_dim = self.count("gdn_value_dim", "linear_value_head_dim")?;
        if head_dim != value_dim {
            let (first, second) =
                (self.said("linear_key_head_dim"), self.said("linear_value_head_dim"));
            return Err(Error::disagree("GDN head_dim", head_dim, first, value_dim, second));
        }
        let conv_kernel = self.count("conv_kernel", "linear_conv_kernel_dim")?;
        Ok(Gdn { key_heads, value_heads, head_dim, conv_kernel })
    }

    fn moe(&mut self) -> Result<Ffn, Error> {
        if self.json.bool("norm_topk_prob")? == Some(false) {
            let what = "routing weights that are not normalised".to_owned();
            return Err(Error::Unsupported { what, from: self.said("norm_topk_prob") });
        }
        if self.json.integers("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
            let what = "a mixture of experts with dense layers".to_owned();
            return Err(Error::Unsupported { what, from: self.said("mlp_only_layers") });
        }
        Ok(Ffn::Moe {
            experts: self.count("experts", "num_experts")?,
            used: self.count("experts_used", "num_experts_per_tok")?,
            width: self.count("expert_ffn", "moe_intermediate_size")?,
            shared_width: self.count("shared_expert_ffn", "shared_expert_intermediate_size")?,
            weights_scale: 1.0,
        })
    }

    /// The flag decides; a checkpoint that claims a head of its own and has none is refused later,
    /// by name.
    fn tied_head(&mut self) -> Result<bool, Error> {
        let key = "tie_word_embeddings";
        let (inner, outer) = (self.json.bool(key)?, self.root.bool(key)?);
        if let (Some(inner), Some(outer)) = (inner, outer)
            && inner != outer
        {
            return Err(Error::disagree(
                "the LM head",
                inner,
                self.said(key),
                outer,
                format!("`{key}`"),
            ));
        }
        let said = inner.or(outer);
        let tied = said.unwrap_or_else(|| self.tensors.get("lm_head.weight").is_none());
        let from = if said.is_some() {
            format!("`{key}`")
        } else {
            "presence of `lm_head.weight`".to_owned()
        };
        self.report.note("tied_head", &tied, from);
        Ok(tied)
    }

    fn mtp(&mut self) -> Result<Option<Mtp>, Error> {
        let said = self.json.integer("mtp_num_hidden_layers")?;
        if let Some(count) = said.filter(|&n| n > 1) {
            let from = self.said("mtp_num_hidden_layers");
            return Err(Error::Unsupported {
                what: format!("a model with {count} MTP blocks"),
                from,
            });
        }
        let has = |name: &str| self.tensors.get(name).is_some();
        let present = has("mtp.fc.weight");
        let mtp = present.then(|| Mtp {
            own_embedding: has("mtp.embed_tokens.weight"),
            own_head: has("mtp.lm_head.weight"),
            own_norm: has("mtp.norm.weight"),
        });
        if said == Some(1) && !present {
            let prefix = self.prefix;
            self.report.warn(format!(
                "`mtp_num_hidden_layers` is 1, but there is no `mtp.fc.weight` beside \
                 `{prefix}embed_tokens.weight`: the MTP block was left out of this file"
            ));
        }
        self.report.note("mtp", &mtp, "presence of `mtp.fc.weight`");
        Ok(mtp)
    }
}
