//! Claims, shapes and flags to one configuration. Shapes give the dimensions and check the claims;
//! flags win over claims; what nobody says is asked for, with the flag and the value that is likely
//! right.

use super::claims::Claims;
use super::settle::settle;
use super::slots;
use super::{Causality, Dialect, DraftLayer, DrafterConfig, Extras, Overrides};
use crate::error::Need;
use crate::report::{Claim, Report};
use crate::rope::{Rope, check_theta};
use crate::{Error, TargetConfig, caps};
use formats::{TensorInfo, Tensors};

/// The epsilon of every published DFlash drafter, for a file without any configuration.
const NORM_EPS: f32 = 1e-6;
/// Rows of a block: the newest token and what follows it.
const BLOCK: std::ops::RangeInclusive<usize> = 2..=caps::BLOCK;

pub(super) fn resolve(
    claims: &Claims,
    tensors: &Tensors,
    overrides: &Overrides,
    target: Option<&TargetConfig>,
    report: &mut Report,
) -> Result<DrafterConfig, Error> {
    let shape = Dimensions::read(tensors)?;
    shape.check(claims, report)?;
    report.warnings.extend(claims.warnings.iter().cloned());
    let Stated { taps, block, mask, theta, windows } =
        Stated::find(claims, overrides, &shape, target)?;

    let taps = settle_taps(&taps, &shape, report)?;
    if !BLOCK.contains(&block.value) {
        let expected = format!("{} to {}", BLOCK.start(), BLOCK.end());
        let (value, from) = (block.value.to_string(), block.from);
        return Err(Error::Invalid { what: "block size", value, from, expected });
    }
    let trained_block = trained_block(claims, block.value, report);
    report.note("block", &block.value, block.from);
    let mask_token = u32::try_from(mask.value).map_err(|_| Error::Invalid {
        what: "mask token",
        value: mask.value.to_string(),
        from: mask.from.clone(),
        expected: "a token id".into(),
    })?;
    report.note("mask_token", &mask_token, mask.from);
    let scaling = match overrides.yarn {
        Some(yarn) => {
            Claim::key(yarn.map(|y| y.checked("--draft-yarn")).transpose()?, "--draft-yarn")
        }
        None => claims.scaling.clone(),
    };
    let rope = Rope { theta: check_theta(&theta)?, scaling: scaling.value };
    check_known_mistake(claims, overrides, &theta)?;
    report.note("rope_theta", &rope.theta, theta.from);
    report.note("rope_scaling", &rope.scaling, scaling.from);
    let extras = settle(claims, tensors, shape.hidden, block.value, report)?;
    let (explicit_causal, layers) = settle_layers(claims, overrides, windows, &extras, report);
    let norm_eps = settle_eps(claims, report)?;
    let context_length = match &claims.context_length {
        Some(claim) => {
            report.note("context_length", &claim.value, claim.from.clone());
            Some(caps::dimension("context length", claim)?)
        }
        None => None,
    };
    Ok(DrafterConfig {
        hidden: shape.hidden,
        layers,
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        ffn: shape.ffn,
        taps,
        block: block.value,
        trained_block,
        mask_token,
        rope,
        norm_eps,
        context_length,
        explicit_causal,
        extras,
    })
}

/// Rows that the file says a block has, where a flag asks for more; that draws a warning.
fn trained_block(claims: &Claims, block: usize, report: &mut Report) -> Option<usize> {
    let said = claims.block.as_ref().filter(|said| said.value < block)?;
    report.warnings.push(format!(
        "blocks of {block} rows by `--draft-block`, but {} by {}: the drafter never saw the rows \
         beyond; `--spec auto` finds out whether they pay",
        said.value, said.from
    ));
    Some(said.value)
}

/// What has to be said by a flag or the file, because no tensor shows it.
struct Stated {
    taps: Claim<Vec<i64>>,
    block: Claim<usize>,
    mask: Claim<usize>,
    theta: Claim<f32>,
    /// The window of each layer; nothing where it is full.
    windows: Claim<Vec<Option<usize>>>,
}

impl Stated {
    /// Flags, else claims; all that nobody says is asked for in one error.
    fn find(
        claims: &Claims,
        overrides: &Overrides,
        shape: &Dimensions,
        target: Option<&TargetConfig>,
    ) -> Result<Self, Error> {
        let mut needs = Vec::new();
        let target_layers = target
            .map(|t| t.layers.len())
            .or_else(|| claims.target_layers.as_ref().map(|c| c.value));

        let taps = match &overrides.taps {
            Some(taps) => {
                Some(Claim::new(taps.iter().map(|&t| t as i64).collect(), "`--draft-taps`"))
            }
            None => claims.taps.clone(),
        };
        let taps = taps.or_else(|| {
            let suggestion = target_layers.map(|layers| {
                let ids = default_taps(layers, shape.taps)
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(",");
                format!("`{ids}` for a target of {layers} layers")
            });
            needs.push(Need::new("which target layers it reads", "--draft-taps", suggestion));
            None
        });
        let block = over(overrides.block, "--draft-block", &claims.block).or_else(|| {
            needs.push(Need::new(
                "its block size",
                "--draft-block",
                Some("16 in most drafters".into()),
            ));
            None
        });
        let mask = over(
            overrides.mask_token.map(|t| t as usize),
            "--draft-mask-token",
            &claims.mask_token,
        );
        let mask = mask.or_else(|| {
            let likely = if shape.taps == 8 { 248077 } else { 248070 };
            let fits = target.is_none_or(|t| likely < t.vocab);
            let suggestion = fits
                .then(|| format!("{likely} for Qwen3.5 and 3.6 drafters with {} taps", shape.taps));
            needs.push(Need::new("its mask token", "--draft-mask-token", suggestion));
            None
        });
        let theta = over(overrides.rope_theta, "--draft-rope-theta", &claims.theta).or_else(|| {
            let suggestion = match target {
                Some(target) => format!("{} is the target's", target.attention.rope.theta),
                None => "10000000 for Qwen3.5 and later".to_owned(),
            };
            needs.push(Need::new("its rope theta", "--draft-rope-theta", Some(suggestion)));
            None
        });
        let windows = windows(claims, overrides, shape, &mut needs)?;
        match (taps, block, mask, theta, windows) {
            (Some(taps), Some(block), Some(mask), Some(theta), Some(windows)) => {
                Ok(Self { taps, block, mask, theta, windows })
            }
            _ => Err(Error::NeedsFlags(needs)),
        }
    }
}

/// The layers a drafter of `taps` taps reads in a target of `layers` layers, as the reference
/// chooses them.
pub fn default_taps(layers: usize, taps: usize) -> Vec<usize> {
    if taps == 1 {
        return vec![layers / 2];
    }
    let step = layers.saturating_sub(4) as f64 / (taps - 1) as f64;
    (0..taps).map(|i| (1.0 + i as f64 * step).round_ties_even() as usize).collect()
}

fn over<T: Copy>(flag: Option<T>, name: &str, claim: &Option<Claim<T>>) -> Option<Claim<T>> {
    match flag {
        Some(value) => Some(Claim::key(value, name)),
        None => claim.clone(),
    }
}

/// The dimensions that a drafter's own tensors have.
struct Dimensions {
    hidden: usize,
    taps: usize,
    layers: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    /// The name of `fc` in this file, for messages.
    fc: String,
}

impl Dimensions {
    fn read(tensors: &Tensors) -> Result<Self, Error> {
        let find = |name: &str| {
            slots::find(tensors, name).ok_or_else(|| Error::MissingTensor(name.to_owned()))
        };
        let matrix = |name: &str| -> Result<(usize, usize, &TensorInfo), Error> {
            let tensor = find(name)?;
            match *tensor.shape.as_slice() {
                [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns, tensor)),
                _ => Err(Error::NotMatrix {
                    tensor: tensor.name.clone(),
                    found: tensor.shape.clone(),
                }),
            }
        };
        let (hidden, features, fc) = matrix("fc.weight")?;
        let taps = whole(features, hidden, "fc.weight's columns", fc)?;
        let norm = find("blk.0.attn_q_norm.weight")?;
        let head_dim = norm.elements();
        caps::dimension("head_dim", &Claim::new(head_dim, format!("shape of `{}`", norm.name)))?;
        let (queries, _, q) = matrix("blk.0.attn_q.weight")?;
        let (keys, _, k) = matrix("blk.0.attn_k.weight")?;
        let (ffn, _, _) = matrix("blk.0.ffn_gate.weight")?;
        let (q_heads, kv_heads) =
            (whole(queries, head_dim, "query rows", q)?, whole(keys, head_dim, "key rows", k)?);
        if q_heads % kv_heads != 0 {
            return Err(Error::Invalid {
                what: "attention",
                value: format!("{q_heads} query heads over {kv_heads} key heads"),
                from: format!("shapes of `{}` and `{}`", q.name, k.name),
                expected: "a whole number of query heads per key head".into(),
            });
        }
        let layers = (0..caps::LAYERS)
            .take_while(|i| find(&format!("blk.{i}.attn_q.weight")).is_ok())
            .count();
        let sizes = [("hidden", hidden), ("ffn", ffn), ("taps", taps), ("q_heads", q_heads)];
        for (what, size) in sizes {
            caps::dimension(what, &Claim::new(size, "tensor shapes"))?;
        }
        Ok(Self { hidden, taps, layers, q_heads, kv_heads, head_dim, ffn, fc: fc.name.clone() })
    }

    /// Compares what the file claims with what its tensors are.
    fn check(&self, claims: &Claims, report: &mut Report) -> Result<(), Error> {
        let fc = format!("shape of `{}`", self.fc);
        let features = self.taps * self.hidden;
        let pairs = [
            ("hidden", &claims.hidden, self.hidden, fc.as_str()),
            ("layers", &claims.layers, self.layers, "count of layers with query weights"),
            ("q_heads", &claims.q_heads, self.q_heads, "shapes of query weights and norm"),
            ("kv_heads", &claims.kv_heads, self.kv_heads, "shapes of key weights and norm"),
            ("head_dim", &claims.head_dim, self.head_dim, "shape of the query norm"),
            ("head_dim", &claims.value_dim, self.head_dim, "shape of the query norm"),
            ("rotary_dims", &claims.rotary_dims, self.head_dim, "shape of the query norm"),
            ("ffn", &claims.ffn, self.ffn, "shape of the gate weights"),
            ("features", &claims.features, features, fc.as_str()),
            ("tap_count", &claims.tap_count, self.taps, fc.as_str()),
        ];
        for (what, claim, found, from) in pairs {
            match claim {
                Some(claim) if claim.value != found => {
                    return Err(Error::disagree(
                        what,
                        claim.value,
                        claim.from.clone(),
                        found,
                        from,
                    ));
                }
                _ => {}
            }
        }
        for (field, _, found, from) in &pairs[..5] {
            report.note(field, found, *from);
        }
        report.note("ffn", &self.ffn, pairs[7].3);
        Ok(())
    }
}

fn whole(
    total: usize,
    part: usize,
    what: &'static str,
    tensor: &TensorInfo,
) -> Result<usize, Error> {
    if part > 0 && total >= part && total.is_multiple_of(part) {
        return Ok(total / part);
    }
    let from = format!("shape of `{}`", tensor.name);
    Err(Error::Invalid {
        what,
        value: total.to_string(),
        from,
        expected: format!("a multiple of {part}"),
    })
}

fn settle_taps(
    claim: &Claim<Vec<i64>>,
    shape: &Dimensions,
    report: &mut Report,
) -> Result<Vec<usize>, Error> {
    if claim.value.len() != shape.taps {
        let from = format!("shape of `{}`", shape.fc);
        return Err(Error::disagree(
            "tap count",
            claim.value.len(),
            claim.from.clone(),
            shape.taps,
            from,
        ));
    }
    let taps =
        claim.value.iter().map(|&tap| usize::try_from(tap).ok().filter(|&t| t < caps::LAYERS));
    let taps = taps.collect::<Option<Vec<_>>>().ok_or_else(|| Error::Invalid {
        what: "a tap",
        value: format!("{:?}", claim.value),
        from: claim.from.clone(),
        expected: "target layers counted from 0".into(),
    })?;
    if let Some(tap) = (1..taps.len()).find(|&i| taps[..i].contains(&taps[i])).map(|i| taps[i]) {
        let (value, from) = (format!("{tap} twice in {taps:?}"), claim.from.clone());
        return Err(Error::Invalid {
            what: "a tap",
            value,
            from,
            expected: "each layer once".into(),
        });
    }
    report.note("taps", &taps, claim.from.clone());
    Ok(taps)
}

/// The window of each layer, nothing where it is full; or nothing at all, with the need noted.
fn windows(
    claims: &Claims,
    overrides: &Overrides,
    shape: &Dimensions,
    needs: &mut Vec<Need>,
) -> Result<Option<Claim<Vec<Option<usize>>>>, Error> {
    let count = shape.layers;
    if let Some(sliding) = claims.sliding.as_ref().filter(|s| s.value.len() != count) {
        let from = "count of layers with query weights";
        return Err(Error::disagree(
            "layer count",
            sliding.value.len(),
            sliding.from.clone(),
            count,
            from,
        ));
    }
    let slides = claims.sliding.as_ref().filter(|s| s.value.contains(&true));
    let spread =
        |window: usize, sliding: &[bool]| sliding.iter().map(|&s| s.then_some(window)).collect();
    let flag = "--draft-window";
    let mut ask = |what: &'static str| {
        let layers = count.saturating_sub(1);
        let suggestion = format!(
            "2048 for Qwen3.6-27B drafters of April, 4096 for those of June: {layers} sliding \
             layers and a full one; 0 if every layer is full"
        );
        needs.push(Need::new(what, flag, Some(suggestion)));
        Ok(None)
    };
    match (overrides.window, slides, &claims.window) {
        (Some(0), _, _) => Ok(Some(Claim::new(vec![None; count], format!("`{flag} 0`")))),
        (Some(window), Some(slides), _) => Ok(Some(Claim::new(
            spread(window, &slides.value),
            format!("`{flag}` over {}", slides.from),
        ))),
        (Some(window), None, _) => {
            let all_but_last: Vec<bool> = (0..count).map(|i| count == 1 || i + 1 < count).collect();
            let from = format!("`{flag}` over all layers but the last");
            Ok(Some(Claim::new(spread(window, &all_but_last), from)))
        }
        (None, Some(slides), Some(window)) => {
            caps::dimension("window", window)?;
            let from = format!("{} and {}", slides.from, window.from);
            Ok(Some(Claim::new(spread(window.value, &slides.value), from)))
        }
        (None, Some(_), None) => ask("how far its sliding layers look"),
        (None, None, _) if claims.sliding.is_some() => {
            let from = claims.sliding.as_ref().map(|s| s.from.clone()).unwrap_or_default();
            Ok(Some(Claim::new(vec![None; count], from)))
        }
        (None, None, Some(_)) => ask("which of its layers slide"),
        (None, None, None) => match &claims.silence_is_full {
            Some(why) => Ok(Some(Claim::new(vec![None; count], why.clone()))),
            None => ask("which of its layers slide, and how far they look"),
        },
    }
}

/// Causality: a flag, else what the file says for all layers, else the rule that sliding layers are
/// causal inside the block and full layers are not. A selector in a file that may be silent says
/// that none is.
fn settle_layers(
    claims: &Claims,
    overrides: &Overrides,
    windows: Claim<Vec<Option<usize>>>,
    extras: &Extras,
    report: &mut Report,
) -> (Option<bool>, Vec<DraftLayer>) {
    let flag = |value: bool| Some(Claim::key(value, "--draft-causal"));
    // A Hugging Face configuration has a key for it; converters leave it out or never had one.
    let by_selector = || {
        let silent = extras.selector.is_some() && claims.dialect != Dialect::HuggingFace;
        let from = "its selector, as no key says it: no published DFlash 2 drafter is causal";
        silent.then(|| Claim::new(false, from))
    };
    let causal = match overrides.causal {
        Some(Causality::Everywhere) => flag(true),
        Some(Causality::Nowhere) => flag(false),
        Some(Causality::Sliding) => None,
        None => claims.causal.clone().or_else(by_selector),
    };
    let explicit = causal.as_ref().map(|c| c.value);
    let layers: Vec<DraftLayer> = windows
        .value
        .iter()
        .map(|&window| DraftLayer { window, causal: explicit.unwrap_or(window.is_some()) })
        .collect();
    report.note("windows", &windows.value, windows.from);
    let any_sliding = windows.value.iter().any(Option::is_some);
    let from = match causal {
        Some(claim) => {
            // Its converter writes the key into every file, whatever the drafter was trained with.
            if claims.dialect == Dialect::Spiritbuun && any_sliding && overrides.causal.is_none() {
                report.warn(format!(
                    "{} is written by this dialect's converter for every file; if acceptance is \
                     low, compare `--draft-causal {}`",
                    claim.from, !claim.value
                ));
            }
            claim.from
        }
        None => {
            let says = match claims.dialect {
                _ if overrides.causal.is_some() => "`--draft-causal sliding` says",
                Dialect::Lucebox => "this dialect cannot say",
                _ => "nothing says otherwise",
            };
            format!(
                "the rule, as {says}: sliding layers are causal inside the block, full layers are \
                 not"
            )
        }
    };
    report.note("causal", &layers.iter().map(|l| l.causal).collect::<Vec<_>>(), from);
    (explicit, layers)
}

fn settle_eps(claims: &Claims, report: &mut Report) -> Result<f32, Error> {
    let (eps, from) = match &claims.norm_eps {
        Some(claim) => (claim.value, claim.from.clone()),
        None => (NORM_EPS, "no key says it; 1e-6 in every published DFlash drafter".to_owned()),
    };
    if !(eps > 0.0 && eps < 1.0) {
        let expected = "a small positive number".to_owned();
        return Err(Error::Invalid {
            what: "norm epsilon",
            value: eps.to_string(),
            from,
            expected,
        });
    }
    report.note("norm_eps", &eps, from);
    Ok(eps)
}

/// Old converters missed a nested theta and wrote 1e6 into files for Qwen3.5, whose theta is 1e7.
fn check_known_mistake(
    claims: &Claims,
    overrides: &Overrides,
    theta: &Claim<f32>,
) -> Result<(), Error> {
    if overrides.rope_theta.is_some() || theta.value != 1e6 || !claims.arch.starts_with("qwen35") {
        return Ok(());
    }
    let expected_from = format!("the architecture `{}`", claims.arch);
    Err(Error::Theta { theta: theta.value, from: theta.from.clone(), expected: 1e7, expected_from })
}
