//! Claims of the GGUF dialects. Keys stand under `{arch}.`, `{arch}.dflash.`,
//! `{arch}.dflash.dflash2.` or `{arch}.dflash.dspark.`.

use super::claims::{Claims, ExtraClaims, TOKENIZER_MASK};
use super::{Dialect, hf};
use crate::report::Claim;
use crate::rope::scaling_from_gguf;
use crate::{Error, Json};
use formats::gguf::{Error as GgufError, Gguf};

pub(super) fn claims(gguf: &Gguf, beside: Option<&Json>) -> Result<Claims, Error> {
    let arch = gguf.string("general.architecture")?.unwrap_or_default().to_owned();
    let dialect = match arch.as_str() {
        "dflash" => Dialect::Upstream,
        "dflash-draft" => Dialect::Spiritbuun,
        _ if arch.starts_with("jetspec") => Dialect::Jetspec,
        _ => Dialect::Lucebox,
    };
    // JetSpec's keys stand under the family's name, not under the architecture's.
    let keys = Keys { gguf, arch: if dialect == Dialect::Jetspec { "jetspec" } else { &arch } };
    let mut claims = Claims::silent(dialect);
    claims.hidden = keys.find("embedding_length", Gguf::integer)?;
    claims.layers = keys.find("block_count", Gguf::integer)?;
    claims.ffn = keys.find("feed_forward_length", Gguf::integer)?;
    claims.q_heads = keys.find("attention.head_count", Gguf::integer)?;
    claims.kv_heads = keys.find("attention.head_count_kv", Gguf::integer)?;
    claims.head_dim = keys.find("attention.key_length", Gguf::integer)?;
    claims.value_dim = keys.find("attention.value_length", Gguf::integer)?;
    claims.rotary_dims = keys.find("rope.dimension_count", Gguf::integer)?;
    claims.features = keys.find("n_target_features", Gguf::integer)?;
    claims.tap_count = keys.find("n_target_layers", Gguf::integer)?;
    claims.taps = keys.taps()?;
    claims.block = keys.find("block_size", Gguf::integer)?;
    claims.mask_token = keys.find("mask_token_id", Gguf::integer)?;
    let tokenizer_mask = gguf.integer(TOKENIZER_MASK)?.map(|id| Claim::key(id, TOKENIZER_MASK));
    match (&claims.mask_token, tokenizer_mask) {
        (Some(own), Some(other)) if own.value != other.value => claims.warnings.push(format!(
            "mask token is {} by {}, but {} by {}; the first is taken",
            own.value, own.from, other.value, other.from
        )),
        (None, other) => claims.mask_token = other,
        _ => {}
    }
    claims.theta = keys.find("rope.freq_base", Gguf::float)?;
    claims.scaling = scaling_from_gguf(gguf, &format!("{}.", keys.arch))?;
    claims.norm_eps = keys.find("attention.layer_norm_rms_epsilon", Gguf::float)?;
    claims.context_length = keys.find("context_length", Gguf::integer)?;
    claims.vocab = keys.find("vocab_size", Gguf::integer)?;
    claims.target_layers = keys.find("num_target_layers", Gguf::integer)?;
    claims.causal = keys.find("attention.causal", Gguf::bool)?;
    if claims.causal.is_none() {
        claims.causal = keys.find("causal_head", Gguf::bool)?;
    }
    if claims.causal.is_none() && dialect == Dialect::Jetspec {
        let from = "this dialect, whose drafters are causal in the block, as no key says it";
        claims.causal = Some(Claim::new(true, from));
    }
    keys.windows(&mut claims, beside)?;
    claims.extras = keys.extras()?;
    claims.arch = arch;
    Ok(claims)
}

/// Lucebox writes its switches as numbers.
fn switch(gguf: &Gguf, key: &str) -> Result<Option<bool>, GgufError> {
    match gguf.get(key).and_then(|value| value.as_bool()) {
        None => Ok(gguf.integer(key)?.map(|number| number != 0)),
        on => Ok(on),
    }
}

struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    fn find<T>(
        &self,
        name: &str,
        read: impl Fn(&'a Gguf, &str) -> Result<Option<T>, GgufError>,
    ) -> Result<Option<Claim<T>>, Error> {
        for under in ["dflash.dflash2.", "dflash.dspark.", "dflash.", ""] {
            let key = format!("{}.{under}{name}", self.arch);
            if let Some(value) = read(self.gguf, &key)? {
                return Ok(Some(Claim::key(value, &key)));
            }
        }
        Ok(None)
    }

    fn extras(&self) -> Result<ExtraClaims, Error> {
        let count = |name: &str| self.find(name, Gguf::integer);
        // Upstream writes 0 for a factor that is not there.
        let factor = |name: &str| -> Result<_, Error> {
            Ok(self.find(name, Gguf::float)?.filter(|f| f.value != 0.0))
        };
        let confidence = self.find("dspark.confidence.enabled", switch)?;
        // Its width says that it is there as well.
        let width = count("confidence_dim")?.filter(|width| width.value > 0);
        let by_width = width.map(|width| Claim::new(true, width.from));
        Ok(ExtraClaims {
            named: None,
            conv_kernel: count("conv_kernel_size")?,
            conv_group: count("conv_group_size")?,
            selector_rank: count("selector_rank")?,
            selector_top_k: count("selector_top_k")?,
            markov: self.find("dspark.enabled", switch)?,
            markov_rank: count("markov_rank")?,
            confidence: confidence.or(by_width),
            confidence_with_markov: None,
            sample_from_anchor: self.find("sample_from_anchor", Gguf::bool)?,
            embedding_scale: factor("embedding_scale")?,
            logit_scale: factor("logit_scale")?,
            softcap: factor("final_logit_softcapping")?,
        })
    }

    /// `target_layers` counts from 1 (the layer whose input is read), `target_layer_ids` from 0.
    fn taps(&self) -> Result<Option<Claim<Vec<i64>>>, Error> {
        if let Some(ids) = self.find("target_layer_ids", Gguf::integers)? {
            return Ok(Some(ids));
        }
        let from_one = self.find("target_layers", Gguf::integers)?;
        Ok(from_one.map(|claim| {
            let from = format!("{}, less one", claim.from);
            Claim::new(claim.value.into_iter().map(|id| id.saturating_sub(1)).collect(), from)
        }))
    }

    fn windows(&self, claims: &mut Claims, beside: Option<&Json>) -> Result<(), Error> {
        claims.window = self.find("attention.sliding_window", Gguf::integer)?;
        if claims.window.is_none() {
            claims.window = self.find("swa_window_size", Gguf::integer)?;
        }
        claims.window = claims.window.take().filter(|w| w.value > 0);
        claims.sliding = self.find("attention.sliding_window_pattern", Gguf::bools)?;
        let silent = claims.window.is_none() && claims.sliding.is_none();
        match claims.dialect {
            // Their converters write the keys whenever the source has windows.
            Dialect::Upstream | Dialect::Spiritbuun | Dialect::Jetspec if silent => {
                let key = format!("{}.attention.sliding_window", self.arch);
                claims.silence_is_full =
                    Some(format!("no `{key}`, which this dialect writes where there is one"));
            }
            // Its converter never did, nor causality's: the source's own configuration may lie
            // beside the file.
            Dialect::Lucebox => {
                // A configuration of something else is no answer, and no fault of this file.
                let Some(source) = beside.and_then(|config| hf::claims(Some(config)).ok()) else {
                    return Ok(());
                };
                let same = |a: &Option<Claim<usize>>, b: &Option<Claim<usize>>| {
                    a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a.value == b.value)
                };
                if !same(&source.layers, &claims.layers) || !same(&source.hidden, &claims.hidden) {
                    return Ok(());
                }
                let beside = |from: &str| format!("{from} of the `config.json` beside it");
                if claims.causal.is_none() {
                    claims.causal = source.causal.map(|c| Claim::new(c.value, beside(&c.from)));
                }
                if silent {
                    claims.window = source.window.map(|c| Claim::new(c.value, beside(&c.from)));
                    claims.sliding = source.sliding.map(|c| Claim::new(c.value, beside(&c.from)));
                    claims.silence_is_full = source.silence_is_full.map(|from| beside(&from));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
