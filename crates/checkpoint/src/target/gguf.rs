//! A target from GGUF: architectures `qwen35` and `qwen35moe`.

use super::{Attention, Ffn, Gdn, Mixer, Mtp, Target, TargetConfig, check, slots};
use crate::report::{Claim, Report};
use crate::rope::{Rope, check_theta, scaling_from_gguf};
use crate::weights::Weights;
use crate::{Error, caps, quantised};
use formats::gguf::Gguf;

pub(super) fn read(gguf: Gguf) -> Result<Target, Error> {
    let arch = gguf.string("general.architecture")?.unwrap_or_default().to_owned();
    if !matches!(arch.as_str(), "qwen35" | "qwen35moe") {
        return Err(Error::Architecture(arch));
    }
    let mut report = Report::default();
    let config = config(&gguf, &arch, &mut report)?;
    check_tokens(&gguf, &config, &mut report)?;
    // A vision tower inside the file is not run; llama.cpp keeps it in a file of its own.
    let vision = |name: &str| name.starts_with("v.") || name.starts_with("mm.");
    // Ollama's older files keep the next-token block under names whose norms mean one thing in some
    // of them and another in others.
    let mtp = |name: &str| name.starts_with("mtp.");
    let other = |name: &str| vision(name) || mtp(name);
    let tensors = quantised::with_scales(gguf.into_tensors())?;
    let (weights, skipped) = Weights::find(tensors, slots(&config), other)?;
    if skipped.iter().any(|name| mtp(name)) {
        report
            .warn("the file has an MTP block under Ollama's older names (`mtp.*`): it is not run");
    }
    report.skipped = skipped;
    Ok(Target { config, weights, report })
}

/// What a file's keys say of the target, for one of these architectures.
pub(super) fn config(gguf: &Gguf, arch: &str, report: &mut Report) -> Result<TargetConfig, Error> {
    let config = Keys { gguf, arch, report }.config(arch.starts_with("qwen35moe"))?;
    check(&config)?;
    Ok(config)
}

struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
    report: &'a mut Report,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A count that must be there and be sane.
    fn count(&mut self, field: &'static str, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        let value = self.gguf.integer(&key)?.ok_or_else(|| Error::MissingKey(key.clone()))?;
        caps::dimension(field, &Claim::key(value, &key))?;
        self.report.note(field, &value, format!("`{key}`"));
        Ok(value)
    }

    fn float(&mut self, field: &'static str, name: &str) -> Result<f32, Error> {
        let key = self.key(name);
        let value = self.gguf.float(&key)?.ok_or_else(|| Error::MissingKey(key.clone()))?;
        self.report.note(field, &value, format!("`{key}`"));
        Ok(value)
    }

    fn config(&mut self, moe: bool) -> Result<TargetConfig, Error> {
        let hidden = self.count("hidden", "embedding_length")?;
        let embedding = self.gguf.tensors().get("token_embd.weight");
        let embedding =
            embedding.ok_or_else(|| Error::MissingTensor("token_embd.weight".into()))?;
        let vocab = embedding.shape[0];
        self.report.note("vocab", &vocab, "shape of `token_embd.weight`");
        let blocks = self.count("blocks", "block_count")?;
        let mtp_blocks = self.gguf.integer(&self.key("nextn_predict_layers"))?.unwrap_or(0);
        let layer_count = match mtp_blocks {
            0 | 1 if mtp_blocks < blocks => blocks - mtp_blocks,
            _ => {
                let what = format!("a model with {mtp_blocks} MTP blocks of {blocks} blocks");
                let from = format!("`{}`", self.key("nextn_predict_layers"));
                return Err(Error::Unsupported { what, from });
            }
        };
        let layers = self.layers(layer_count)?;
        let attention = self.attention()?;
        let gdn = self.gdn()?;
        let ffn = if moe {
            self.moe()?
        } else {
            Ffn::Dense { width: self.count("ffn", "feed_forward_length")? }
        };
        let norm_eps = self.float("norm_eps", "attention.layer_norm_rms_epsilon")?;
        let context_length = self.count("context_length", "context_length")?;
        let tied_head = self.gguf.tensors().get("output.weight").is_none();
        let from = if tied_head { "no `output.weight`" } else { "`output.weight` is there" };
        self.report.note("tied_head", &tied_head, from);
        let mtp = (mtp_blocks == 1).then(|| {
            let has = |part: &str| {
                self.gguf.tensors().get(&format!("blk.{layer_count}.nextn.{part}.weight")).is_some()
            };
            Mtp {
                own_embedding: has("embed_tokens"),
                own_head: has("shared_head_head"),
                own_norm: has("shared_head_norm"),
            }
        });
        self.report.note("mtp", &mtp, format!("`{}`", self.key("nextn_predict_layers")));
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

    /// By `attention.recurrent_layers` where it is there, else by key heads of each layer, else
    /// every `full_attention_interval`-th layer attends; either way its tensors must agree.
    fn layers(&mut self, count: usize) -> Result<Vec<Mixer>, Error> {
        let listed = self.key("attention.recurrent_layers");
        let mixer = |gdn: bool| if gdn { Mixer::Gdn } else { Mixer::Attention };
        let take = |recurrent: Vec<bool>, from: String| {
            if recurrent.len() < count {
                let (have, blocks) = (recurrent.len(), format!("`{}.block_count`", self.arch));
                return Err(Error::disagree("layer count", have, from, count, blocks));
            }
            Ok((recurrent.into_iter().take(count).map(mixer).collect::<Vec<_>>(), from))
        };
        let (layers, from) = if let Some(recurrent) = self.gguf.bools(&listed)? {
            take(recurrent, format!("`{listed}`"))?
        } else if let Some(heads) = self.kv_heads_by_layer()? {
            let from = format!("the zeros of `{}`", self.key("attention.head_count_kv"));
            take(heads.into_iter().map(|n| n == 0).collect(), from)?
        } else {
            let key = self.key("full_attention_interval");
            let (interval, from) = match self.gguf.get(&key) {
                Some(_) => (self.count("attention_interval", "full_attention_interval")?, None),
                None => (4, Some(format!("no `{key}`; 4 in every Qwen3.5, 3.6 and 3.8"))),
            };
            let layers = (1..=count).map(|n| mixer(n % interval != 0)).collect();
            (layers, from.unwrap_or_else(|| format!("`{key}`")))
        };
        for (index, layer) in layers.iter().enumerate() {
            let name = match layer {
                Mixer::Attention => format!("blk.{index}.attn_qkv.weight"),
                Mixer::Gdn => format!("blk.{index}.attn_q.weight"),
            };
            // Attention may have its three matrices in one tensor, which is named alike.
            let is_fused = *layer == Mixer::Attention
                && self.gguf.tensors().get(&format!("blk.{index}.ssm_out.weight")).is_none();
            if self.gguf.tensors().get(&name).is_some() && !is_fused {
                let (claimed, found) = match layer {
                    Mixer::Attention => ("attention", "Gated DeltaNet"),
                    Mixer::Gdn => ("Gated DeltaNet", "attention"),
                };
                let what = format!("the mixer of layer {index}");
                return Err(Error::disagree(
                    what,
                    claimed,
                    from,
                    found,
                    format!("tensor `{name}`"),
                ));
            }
        }
        self.report.note("layers", &layers, from);
        Ok(layers)
    }

    /// Key heads of each layer, 0 where it does not attend, as Ollama writes them.
    fn kv_heads_by_layer(&self) -> Result<Option<Vec<i64>>, Error> {
        let key = self.key("attention.head_count_kv");
        let Some(array) = self.gguf.get(&key).filter(|value| value.as_array().is_some()) else {
            return Ok(None);
        };
        let heads = self.gguf.integers(&key)?.unwrap_or_default();
        let attending = heads.iter().copied().filter(|&n| n != 0);
        if attending.clone().min() != attending.max() {
            return Err(Error::Invalid {
                what: "key heads by layer",
                value: array.describe(),
                from: format!("`{key}`"),
                expected: "the same number wherever it is not 0".into(),
            });
        }
        Ok(Some(heads))
    }

    fn kv_heads(&mut self) -> Result<usize, Error> {
        let Some(heads) = self.kv_heads_by_layer()? else {
            return self.count("kv_heads", "attention.head_count_kv");
        };
        let most = heads.into_iter().max().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let claim = Claim::key(most, &self.key("attention.head_count_kv"));
        self.report.note("kv_heads", &most, claim.from.clone());
        caps::dimension("kv_heads", &claim)
    }

    fn attention(&mut self) -> Result<Attention, Error> {
        let q_heads = self.count("q_heads", "attention.head_count")?;
        let kv_heads = self.kv_heads()?;
        let head_dim = self.count("head_dim", "attention.key_length")?;
        let value_dim = self.count("value_dim", "attention.value_length")?;
        if head_dim != value_dim {
            let (keys, values) =
                (self.key("attention.key_length"), self.key("attention.value_length"));
            return Err(Error::disagree(
                "head_dim",
                head_dim,
                format!("`{keys}`"),
                value_dim,
                format!("`{values}`"),
            ));
        }
        let rotary_dims = self.count("rotary_dims", "rope.dimension_count")?;
        let theta = self.float("rope_theta", "rope.freq_base")?;
        check_theta(&Claim::key(theta, &self.key("rope.freq_base")))?;
        let scaling = scaling_from_gguf(self.gguf, &format!("{}.", self.arch))?;
        self.report.note("rope_scaling", &scaling.value, scaling.from);
        let rope = Rope { theta, scaling: scaling.value };
        Ok(Attention { q_heads, kv_heads, head_dim, rotary_dims, rope })
    }

    fn gdn(&mut self) -> Result<Gdn, Error> {
        // Ollama says whether its converter brought value heads into llama.cpp's order, which
        // cannot be done to quantised columns afterwards.
        let reordered = self.key("ssm.v_head_reordered");
        if self.gguf.bool(&reordered)? == Some(false) {
            let what = "a file with value heads in Hugging Face's order".to_owned();
            return Err(Error::Unsupported { what, from: format!("`{reordered}`") });
        }
        let key_heads = self.count("gdn_key_heads", "ssm.group_count")?;
        let value_heads = self.count("gdn_value_heads", "ssm.time_step_rank")?;
        let head_dim = self.count("gdn_head_dim", "ssm.state_size")?;
        let conv_kernel = self.count("conv_kernel", "ssm.conv_kernel")?;
        let inner = self.count("gdn_value_width", "ssm.inner_size")?;
        if inner != value_heads * head_dim {
            let by_heads =
                format!("`{0}.ssm.time_step_rank` times `{0}.ssm.state_size`", self.arch);
            let from = format!("`{}`", self.key("ssm.inner_size"));
            return Err(Error::disagree(
                "GDN value width",
                inner,
                from,
                value_heads * head_dim,
                by_heads,
            ));
        }
        Ok(Gdn { key_heads, value_heads, head_dim, conv_kernel })
    }

    fn moe(&mut self) -> Result<Ffn, Error> {
        let gating = self.key("expert_gating_func");
        // 1 is softmax, the only one these models use.
        if let Some(function) = self.gguf.integer(&gating)?.filter(|&f| f > 1) {
            let what = format!("expert gating function {function}");
            return Err(Error::Unsupported { what, from: format!("`{gating}`") });
        }
        // llama.cpp writes 0 for "no scale".
        let scale = self.gguf.float(&self.key("expert_weights_scale"))?.filter(|&s| s != 0.0);
        Ok(Ffn::Moe {
            experts: self.count("experts", "expert_count")?,
            used: self.count("experts_used", "expert_used_count")?,
            width: self.count("expert_ffn", "expert_feed_forward_length")?,
            shared_width: self.count("shared_expert_ffn", "expert_shared_feed_forward_length")?,
            weights_scale: scale.unwrap_or(1.0),
        })
    }
}

/// A tokenizer larger than the embedding cannot belong to it; a smaller one leaves padding rows.
fn check_tokens(gguf: &Gguf, config: &TargetConfig, report: &mut Report) -> Result<(), Error> {
    let Some(tokens) = gguf.get("tokenizer.ggml.tokens").and_then(|v| v.as_array()) else {
        report.warn(
            "the file has no tokenizer (`tokenizer.ggml.tokens`): it can be inspected, not run",
        );
        return Ok(());
    };
    if tokens.len() > config.vocab {
        let rows = "rows of `token_embd.weight`";
        return Err(Error::disagree(
            "vocabulary",
            tokens.len(),
            "`tokenizer.ggml.tokens`",
            config.vocab,
            rows,
        ));
    }
    Ok(())
}
