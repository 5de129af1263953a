//! Rotary position settings: base and scaling, from either container.

use crate::report::Claim;
use crate::{Error, Json};
use formats::gguf::Gguf;
use serde::Serialize;

/// Rotary settings of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f32,
    /// Nothing for plain rotary.
    pub scaling: Option<Yarn>,
}

/// YaRN: frequencies between two rotation counts are blended from plain to divided by `factor`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Yarn {
    /// By how much the context was stretched.
    pub factor: f32,
    /// Rotations over the original context above which a frequency is left alone.
    pub beta_fast: f32,
    /// Rotations over the original context below which a frequency is divided by `factor`.
    pub beta_slow: f32,
    /// The context the model was trained at before stretching.
    pub original_context: usize,
}

impl Rope {
    /// `theta^(-2i/dims)` for `i < dims / 2`, blended by YaRN where it is set.
    pub fn inverse_frequencies(&self, dims: usize) -> Vec<f32> {
        let theta = f64::from(self.theta);
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / dims as f64);
        let Some(yarn) = self.scaling else {
            return (0..dims / 2).map(|i| plain(i) as f32).collect();
        };
        let turns = |r: f32| {
            let length = yarn.original_context as f64 / (2.0 * std::f64::consts::PI * f64::from(r));
            dims as f64 * length.ln() / (2.0 * theta.ln())
        };
        let low = turns(yarn.beta_fast).floor().max(0.0);
        let high = turns(yarn.beta_slow).ceil().min(dims as f64 - 1.0);
        let blend = |i: usize| {
            let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            (plain(i) / f64::from(yarn.factor) * ramp + plain(i) * (1.0 - ramp)) as f32
        };
        (0..dims / 2).map(blend).collect()
    }

    /// What cosines and sines of both queries and keys are multiplied by.
    pub fn attention_factor(&self) -> f32 {
        self.scaling.map_or(1.0, |yarn| 0.1 * yarn.factor.ln() + 1.0)
    }
}

/// The scaling that GGUF metadata under `prefix` describes; absent keys mean plain rotary.
pub(crate) fn scaling_from_gguf(gguf: &Gguf, prefix: &str) -> Result<Claim<Option<Yarn>>, Error> {
    let key = |name: &str| format!("{prefix}rope.scaling.{name}");
    let kind = gguf.string(&key("type"))?;
    match kind {
        None | Some("none") => {
            // llama.cpp takes a lone factor as linear scaling.
            if let Some(factor) = gguf.float(&key("factor"))?.filter(|&f| f != 1.0 && f != 0.0) {
                let what = format!("linear rope scaling by {factor}");
                return Err(Error::Unsupported { what, from: format!("`{}`", key("factor")) });
            }
            Ok(Claim::new(None, format!("no `{}`", key("type"))))
        }
        Some("yarn") => {
            let need =
                |name: &str, value: Option<f32>| value.ok_or_else(|| Error::MissingKey(key(name)));
            let length = gguf.integer(&key("original_context_length"))?;
            let yarn = Yarn {
                factor: need("factor", gguf.float(&key("factor"))?)?,
                beta_fast: need(
                    "yarn_beta_fast",
                    gguf.float(&key("yarn_beta_fast"))?.or(Some(32.0)),
                )?,
                beta_slow: need(
                    "yarn_beta_slow",
                    gguf.float(&key("yarn_beta_slow"))?.or(Some(1.0)),
                )?,
                original_context: length
                    .ok_or_else(|| Error::MissingKey(key("original_context_length")))?,
            };
            for name in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
                if let Some(value) = gguf.float(&key(name))?.filter(|&v| v != 1.0) {
                    let what = format!("a YaRN `{name}` of {value}");
                    return Err(Error::Unsupported { what, from: format!("`{}`", key(name)) });
                }
            }
            if let Some(value) =
                gguf.float(&key("yarn_log_multiplier"))?.filter(|&v| v != 0.0 && v != 0.1)
            {
                let what = format!("a YaRN log multiplier of {value}");
                return Err(Error::Unsupported {
                    what,
                    from: format!("`{}`", key("yarn_log_multiplier")),
                });
            }
            Ok(Claim::key(Some(yarn.checked(&key("type"))?), &key("type")))
        }
        Some(other) => Err(Error::Unsupported {
            what: format!("`{other}` rope scaling"),
            from: format!("`{}`", key("type")),
        }),
    }
}

/// Theta and scaling of a Hugging Face configuration: `rope_parameters`, then the top level, then
/// `rope_scaling`.
pub(crate) struct HfRope {
    pub(crate) theta: Option<Claim<f32>>,
    /// A second key with another theta, for a warning.
    pub(crate) other_theta: Option<Claim<f32>>,
    pub(crate) scaling: Claim<Option<Yarn>>,
}

pub(crate) fn from_hf(config: &Json) -> Result<HfRope, Error> {
    if let Some(parameters) = config.object("rope_parameters")? {
        // Transformers 5 can keep one set per layer type; one set for all layers is what these
        // models use.
        if let Some((name, _)) = parameters.iter().find(|(_, v)| v.is_object()) {
            let what = format!("a set of rope parameters for `{name}` layers alone");
            return Err(Error::Unsupported { what, from: "`rope_parameters`".into() });
        }
    }
    let mut thetas = Vec::new();
    for key in ["rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta"] {
        if let Some(theta) = config.float(key)? {
            thetas.push(Claim::key(theta, key));
        }
    }
    let mut thetas = thetas.into_iter();
    let theta = thetas.next();
    let other_theta = thetas.find(|other| theta.as_ref().is_some_and(|t| t.value != other.value));

    let mut scaling = Claim::new(None, "no `rope_type`");
    for object in ["rope_parameters", "rope_scaling"] {
        let kinds = [format!("{object}.rope_type"), format!("{object}.type")];
        let mut kind = None;
        for key in &kinds {
            kind = kind.or(config.string(key)?.map(|k| (k, key)));
        }
        let factor = format!("{object}.factor");
        match kind {
            None if config.float(&factor)?.is_some_and(|f| f != 1.0) => {
                let what = "rope scaling that names no type".to_owned();
                return Err(Error::Unsupported { what, from: format!("`{factor}`") });
            }
            None => {}
            Some(("default", key)) => scaling = Claim::new(None, format!("`{key}` = default")),
            Some(("yarn", key)) => {
                scaling = Claim::new(
                    Some(yarn_from_hf(config, object)?.checked(key)?),
                    format!("`{key}` = yarn"),
                );
                break;
            }
            Some((other, key)) => {
                let what = format!("`{other}` rope scaling");
                return Err(Error::Unsupported { what, from: format!("`{key}`") });
            }
        }
    }
    Ok(HfRope { theta, other_theta, scaling })
}

fn yarn_from_hf(config: &Json, object: &str) -> Result<Yarn, Error> {
    let key = |name: &str| format!("{object}.{name}");
    let missing = |name: &str| Error::MissingKey(key(name));
    let yarn = Yarn {
        factor: config.float(&key("factor"))?.ok_or_else(|| missing("factor"))?,
        beta_fast: config.float(&key("beta_fast"))?.unwrap_or(32.0),
        beta_slow: config.float(&key("beta_slow"))?.unwrap_or(1.0),
        original_context: config
            .integer(&key("original_max_position_embeddings"))?
            .ok_or_else(|| missing("original_max_position_embeddings"))?,
    };
    for name in ["mscale", "mscale_all_dim"] {
        if config.get(&key(name)).is_some() {
            let what = format!("YaRN with `{name}`");
            return Err(Error::Unsupported { what, from: format!("`{}`", key(name)) });
        }
    }
    if config.bool(&key("truncate"))? == Some(false) {
        let what = "YaRN without truncation".to_owned();
        return Err(Error::Unsupported { what, from: format!("`{}`", key("truncate")) });
    }
    if let Some(factor) = config.float(&key("attention_factor"))? {
        let own = Rope { theta: 1.0, scaling: Some(yarn) }.attention_factor();
        if (factor - own).abs() > 1e-4 * own.abs() {
            let from = format!("`{}`", key("attention_factor"));
            return Err(Error::disagree(
                "YaRN attention factor",
                factor,
                from,
                own,
                "0.1 ln(factor) + 1",
            ));
        }
    }
    Ok(yarn)
}

impl Yarn {
    pub(crate) fn checked(self, key: &str) -> Result<Self, Error> {
        let invalid = |value: String, expected: &str| Error::Invalid {
            what: "YaRN scaling",
            value,
            from: format!("`{key}`"),
            expected: expected.to_owned(),
        };
        if !(self.factor.is_finite() && self.factor >= 1.0) {
            return Err(invalid(format!("factor {}", self.factor), "a factor of at least 1"));
        }
        if !(self.beta_slow > 0.0 && self.beta_fast.is_finite() && self.beta_fast >= self.beta_slow)
        {
            return Err(invalid(
                format!("beta {} to {}", self.beta_slow, self.beta_fast),
                "0 < beta_slow <= beta_fast",
            ));
        }
        if self.original_context == 0 {
            return Err(invalid("original context 0".into(), "a positive length"));
        }
        Ok(self)
    }
}

/// A base that gives distinct, decreasing frequencies.
pub(crate) fn check_theta(theta: &Claim<f32>) -> Result<f32, Error> {
    if theta.value.is_finite() && theta.value > 1.0 {
        return Ok(theta.value);
    }
    let (value, from) = (theta.value.to_string(), theta.from.clone());
    Err(Error::Invalid {
        what: "rope theta",
        value,
        from,
        expected: "a finite number above 1".into(),
    })
}
