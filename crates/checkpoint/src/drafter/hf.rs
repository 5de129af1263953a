//! Claims of a `config.json`: the flat form of April 2026, the nested one of June, and speculators'
//! names.

use super::claims::{Claims, ExtraClaims};
use super::{Dialect, Kind};
use crate::report::Claim;
use crate::rope;
use crate::{Error, Json};

pub(super) fn claims(config: Option<&Json>) -> Result<Claims, Error> {
    let Some(config) = config else { return Ok(Claims::silent(Dialect::Bare)) };
    // Speculators keep the layers' settings in an object of their own.
    let merged = config.with_nested("transformer_layer_config");
    let config = merged.as_ref().unwrap_or(config);
    refuse_unsupported(config)?;
    let keys = Keys { config };
    let mut claims = Claims::silent(Dialect::HuggingFace);
    claims.hidden = keys.first(&["hidden_size"], Json::integer)?;
    claims.layers = keys.first(&["num_hidden_layers"], Json::integer)?;
    claims.ffn = keys.first(&["intermediate_size"], Json::integer)?;
    claims.q_heads = keys.first(&["num_attention_heads"], Json::integer)?;
    claims.kv_heads = keys.first(&["num_key_value_heads"], Json::integer)?;
    claims.head_dim = keys.first(&["head_dim"], Json::integer)?;
    claims.taps = keys.taps()?;
    claims.block = keys.agreed(
        &["dflash_config.block_size", "block_size", "dspark_config.block_size"],
        "block size",
        &mut claims.warnings,
    )?;
    let mask = ["dflash_config.mask_token_id", "mask_token_id", "dspark_config.mask_token_id"];
    claims.mask_token = keys.agreed(&mask, "mask token", &mut claims.warnings)?;
    let rope = rope::from_hf(config)?;
    if let (Some(theta), Some(other)) = (&rope.theta, &rope.other_theta) {
        claims.warnings.push(format!(
            "rope theta is {} by {}, but {} by {}; the first is taken",
            theta.value, theta.from, other.value, other.from
        ));
    }
    claims.theta = rope.theta;
    claims.scaling = rope.scaling;
    claims.norm_eps = keys.first(&["rms_norm_eps"], Json::float)?;
    claims.context_length = keys.first(&["max_position_embeddings"], Json::integer)?;
    claims.vocab = keys.first(&["vocab_size"], Json::integer)?;
    claims.target_layers =
        keys.first(&["num_target_layers", "dflash_config.num_target_layers"], Json::integer)?;
    claims.causal = keys.causal()?;
    keys.windows(&mut claims)?;
    claims.extras = keys.extras()?;
    Ok(claims)
}

fn refuse_unsupported(config: &Json) -> Result<(), Error> {
    let refuse =
        |what: String, key: &str| Err(Error::Unsupported { what, from: format!("`{key}`") });
    if let Some(act) = config.string("hidden_act")?.filter(|&a| a != "silu") {
        return refuse(format!("activation `{act}`"), "hidden_act");
    }
    if config.bool("attention_bias")? == Some(true) {
        return refuse("attention with biases".into(), "attention_bias");
    }
    for key in ["num_experts", "n_routed_experts", "num_local_experts"] {
        if let Some(count) = config.integer(key)?.filter(|&n| n > 1) {
            return refuse(format!("a drafter with {count} experts"), key);
        }
    }
    for key in ["markov_head_type", "dflash_config.markov_head_type"] {
        if let Some(kind) = config.string(key)?.filter(|&k| k != "vanilla") {
            return refuse(format!("a DSpark drafter with a `{kind}` Markov head"), key);
        }
    }
    for key in ["partial_rotary_factor", "rope_parameters.partial_rotary_factor"] {
        if let Some(factor) = config.float(key)?.filter(|&f| f != 1.0) {
            return refuse(format!("a drafter that rotates {factor} of its head"), key);
        }
    }
    if let Some(method) = config.string("quantization_config.quant_method")? {
        return refuse(
            format!("a checkpoint quantised by `{method}`"),
            "quantization_config.quant_method",
        );
    }
    Ok(())
}

struct Keys<'a> {
    config: &'a Json,
}

impl<'a> Keys<'a> {
    /// The first of these keys that is there.
    fn first<T>(
        &self,
        keys: &[&str],
        read: impl Fn(&'a Json, &str) -> Result<Option<T>, Error>,
    ) -> Result<Option<Claim<T>>, Error> {
        for key in keys {
            if let Some(value) = read(self.config, key)? {
                return Ok(Some(Claim::key(value, key)));
            }
        }
        Ok(None)
    }

    /// The first of these keys; a later one with another value draws a warning.
    fn agreed(
        &self,
        keys: &[&str],
        what: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Claim<usize>>, Error> {
        let mut claims = Vec::new();
        for key in keys {
            claims.extend(self.config.integer(key)?.map(|value| Claim::key(value, key)));
        }
        let mut claims = claims.into_iter();
        let first = claims.next();
        if let (Some(first), Some(other)) = (&first, claims.next())
            && first.value != other.value
        {
            let (a, b) = (first.value, other.value);
            warnings.push(format!(
                "{what} is {a} by {}, but {b} by {}; the first is taken",
                first.from, other.from
            ));
        }
        Ok(first)
    }

    /// The whole drafter's causality: the top level's word, then the nested one, then JetSpec's and
    /// speculators' names for it.
    fn causal(&self) -> Result<Option<Claim<bool>>, Error> {
        let keys = ["is_causal", "dflash_config.causal", "dflash_config.causal_head"];
        if let Some(said) = self.first(&keys, Json::bool)? {
            return Ok(Some(said));
        }
        // It speaks of sliding layers, and full ones are not causal by the rule.
        let key = "sliding_window_non_causal";
        Ok(match (self.config.bool(key)?, self.config.string("speculators_model_type")?) {
            (Some(true), _) => Some(Claim::key(false, key)),
            (None, Some("dflash2")) => {
                Some(Claim::new(false, format!("no `{key}`, which speculators take as true")))
            }
            _ => None,
        })
    }

    fn extras(&self) -> Result<ExtraClaims, Error> {
        let nested = |name: &str| {
            ["dflash_config.", "dspark_config.", ""].map(|under| format!("{under}{name}"))
        };
        let count = |name: &str| {
            let keys = nested(name);
            self.first(&keys.each_ref().map(String::as_str), Json::integer)
        };
        let bool = |name: &str| {
            let keys = nested(name);
            self.first(&keys.each_ref().map(String::as_str), Json::bool)
        };
        let float = |name: &str| {
            let keys = nested(name);
            self.first(&keys.each_ref().map(String::as_str), Json::float)
        };
        let names = self.config.strings("architectures")?.unwrap_or_default();
        let by_name = [("DFlash2", Kind::Dflash2), ("DSpark", Kind::Dspark)];
        let named = names.iter().find_map(|name| {
            let (_, kind) = by_name.iter().find(|(part, _)| name.contains(part))?;
            Some(Claim::new(*kind, format!("architecture `{name}`")))
        });
        let mut sample_from_anchor = bool("sample_from_anchor")?;
        if sample_from_anchor.is_none() && self.config.get("speculators_model_type").is_some() {
            let from = "no `sample_from_anchor`, which speculators take as false";
            sample_from_anchor = Some(Claim::new(false, from));
        }
        Ok(ExtraClaims {
            named,
            conv_kernel: count("conv_kernel_size")?,
            conv_group: count("conv_group_size")?,
            selector_rank: count("selector_rank")?,
            selector_top_k: count("selector_top_k")?,
            markov: None,
            markov_rank: count("markov_rank")?,
            confidence: bool("enable_confidence_head")?,
            confidence_with_markov: bool("confidence_head_with_markov")?,
            sample_from_anchor,
            embedding_scale: float("input_embedding_scale")?,
            logit_scale: float("output_multiplier")?,
            softcap: float("final_logit_softcapping")?,
        })
    }

    fn taps(&self) -> Result<Option<Claim<Vec<i64>>>, Error> {
        let ids = [
            "dflash_config.target_layer_ids",
            "target_layer_ids",
            "dspark_config.target_layer_ids",
        ];
        if let Some(taps) = self.first(&ids, Json::integers)? {
            return Ok(Some(taps));
        }
        // Speculators name the layer whose input is read.
        let aux = self.first(&["aux_hidden_state_layer_ids"], Json::integers)?;
        Ok(aux.map(|claim| {
            let from = format!("{}, less one", claim.from);
            Claim::new(claim.value.into_iter().map(|id| id.saturating_sub(1)).collect(), from)
        }))
    }

    fn windows(&self, claims: &mut Claims) -> Result<(), Error> {
        let config = self.config;
        let types = self.first(&["layer_types"], Json::strings)?;
        claims.sliding = match types {
            Some(types) => {
                let slides = |kind: &str| match kind {
                    "sliding_attention" => Ok(true),
                    "full_attention" => Ok(false),
                    other => {
                        let what = format!("a drafter layer of type `{other}`");
                        Err(Error::Unsupported { what, from: "`layer_types`".into() })
                    }
                };
                let sliding = types.value.into_iter().map(slides).collect::<Result<Vec<_>, _>>()?;
                Some(Claim::new(sliding, types.from))
            }
            None => None,
        };
        let switch = "dflash_config.use_swa";
        let on = config.bool(switch)? == Some(true);
        // Where no layer's type says that it slides, the switch makes all of them slide, and as
        // their types do not name them, the rule finds none causal.
        if on && claims.sliding.as_ref().is_none_or(|types| !types.value.contains(&true)) {
            let layers = || claims.layers.as_ref().map_or(0, |l| l.value.min(crate::caps::LAYERS));
            let count = claims.sliding.as_ref().map_or_else(layers, |types| types.value.len());
            claims.sliding = Some(Claim::key(vec![true; count], switch));
            let from = format!("`{switch}`, whose layers slide without being causal");
            claims.causal = claims.causal.take().or(Some(Claim::new(false, from)));
        }
        // A window that is switched off is no window, unless the drafter's own switch is on.
        let off = config.bool("use_sliding_window")? == Some(false) && !on;
        let mut keys = [
            "sliding_window",
            "dflash_config.sliding_window",
            "swa_window_size",
            "dflash_config.swa_window_size",
        ];
        // The window that belongs to the switch wins.
        if on {
            keys.reverse();
        }
        let window = self.first(&keys, Json::integer)?;
        claims.window = window.filter(|w| !off && w.value > 0);
        if claims.sliding.is_none() && claims.window.is_none() {
            claims.silence_is_full = Some("no `layer_types` and no `sliding_window` in use".into());
        }
        Ok(())
    }
}
