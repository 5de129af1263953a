//! What a drafter's settings might be instead, one changed at a time, each with the flag that would
//! say so.

use checkpoint::drafter::{DraftLayer, default_taps};
use checkpoint::{DrafterConfig, TargetConfig, Yarn};
use serde::Serialize;
use text::{Kind, Tokenizer};

/// A setting that files and converters are known to get wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Setting {
    Taps,
    Theta,
    Causality,
    Window,
    Yarn,
    MaskToken,
    Selector,
}

/// Another value of one setting.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    pub(crate) setting: Setting,
    /// For people.
    pub(crate) name: String,
    /// What says so on the command line.
    pub(crate) flag: String,
    pub(crate) config: DrafterConfig,
}

/// Bases in use: Llama's, Qwen3's and Qwen3.5's.
const THETAS: [f32; 3] = [1e4, 1e6, 1e7];
const WINDOWS: [usize; 8] = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
const YARN_FACTORS: [f32; 3] = [4.0, 16.0, 64.0];
const YARN_LENGTHS: [usize; 3] = [512, 4096, 32768];
/// Mask tokens of published drafters.
const MASKS: [u32; 3] = [151_669, 248_070, 248_077];

impl Setting {
    /// What is wrong when another value fits better.
    pub(crate) fn fault(self) -> &'static str {
        match self {
            Self::Taps => "the taps are shifted",
            Self::Theta => "the rope theta is wrong",
            Self::Causality => "the causality of the block is wrong",
            Self::Window => "the window is wrong",
            Self::Yarn => "the YaRN scaling is wrong",
            Self::MaskToken => "the mask token is wrong",
            Self::Selector => "the selector makes drafts worse: its codebooks are of another shape",
        }
    }
}

/// All that is worth trying on texts of up to `longest` tokens, the mask tokens left out.
pub(crate) fn alternatives(
    config: &DrafterConfig,
    target: &TargetConfig,
    longest: usize,
) -> Vec<Alternative> {
    let mut list = taps(config, target.layers.len());
    list.extend(thetas(config, target.attention.rope.theta));
    list.extend(causalities(config));
    list.extend(windows(config, longest));
    list.extend(yarns(config));
    list.extend(without_selector(config));
    list
}

/// Layers that the alternatives read, those of the drafter included.
pub(crate) fn layers(config: &DrafterConfig, target: &TargetConfig) -> Vec<usize> {
    // A second step may go on from the first.
    let near = |t: &usize| t.saturating_sub(2)..=t + 2;
    let mut layers: Vec<usize> = config.taps.iter().flat_map(near).collect();
    layers.extend(default_taps(target.layers.len(), config.taps.len()));
    layers.retain(|l| *l < target.layers.len());
    layers.sort_unstable();
    layers.dedup();
    layers
}

fn taps(config: &DrafterConfig, layers: usize) -> Vec<Alternative> {
    let shifted = |by: isize| {
        config.taps.iter().map(|t| t.checked_add_signed(by)).collect::<Option<Vec<_>>>()
    };
    let usual = default_taps(layers, config.taps.len());
    let mut lists: Vec<(Vec<usize>, &str)> = Vec::new();
    for (list, what) in [
        (shifted(-1), "one lower"),
        (shifted(1), "one higher"),
        (Some(usual), "as the reference chooses them"),
    ] {
        let Some(list) = list else { continue };
        let fits = list.iter().all(|t| *t < layers) && list.is_sorted_by(|a, b| a < b);
        if fits && list != config.taps && !lists.iter().any(|(l, _)| *l == list) {
            lists.push((list, what));
        }
    }
    let one = |(taps, what): (Vec<usize>, &str)| {
        let spelt = taps.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        Alternative {
            setting: Setting::Taps,
            name: format!("taps {spelt}, {what}"),
            flag: format!("--draft-taps {spelt}"),
            config: DrafterConfig { taps, ..config.clone() },
        }
    };
    lists.into_iter().map(one).collect()
}

fn thetas(config: &DrafterConfig, target: f32) -> Vec<Alternative> {
    let mut thetas = THETAS.to_vec();
    thetas.push(target);
    thetas.sort_by(f32::total_cmp);
    thetas.dedup();
    let one = |theta: f32| {
        let mut other = config.clone();
        other.rope.theta = theta;
        Alternative {
            setting: Setting::Theta,
            name: format!("rope theta {theta:e}"),
            flag: format!("--draft-rope-theta {theta:e}"),
            config: other,
        }
    };
    thetas.into_iter().filter(|t| *t != config.rope.theta).map(one).collect()
}

fn causalities(config: &DrafterConfig) -> Vec<Alternative> {
    let rules: [(&str, &str, Option<bool>); 3] = [
        ("causal in every layer", "true", Some(true)),
        ("causal in no layer", "false", Some(false)),
        ("causal in sliding layers only", "sliding", None),
    ];
    let mut list: Vec<Alternative> = Vec::new();
    for (name, flag, explicit_causal) in rules {
        let layer = |l: &DraftLayer| DraftLayer {
            causal: explicit_causal.unwrap_or(l.window.is_some()),
            ..*l
        };
        let layers: Vec<DraftLayer> = config.layers.iter().map(layer).collect();
        if layers != config.layers && !list.iter().any(|a| a.config.layers == layers) {
            list.push(Alternative {
                setting: Setting::Causality,
                name: name.to_owned(),
                flag: format!("--draft-causal {flag}"),
                config: DrafterConfig { layers, explicit_causal, ..config.clone() },
            });
        }
    }
    list
}

fn windows(config: &DrafterConfig, longest: usize) -> Vec<Alternative> {
    let count = config.layers.len();
    let none_slides = config.layers.iter().all(|l| l.window.is_none());
    let slides = |i: usize, l: &DraftLayer| match none_slides {
        true => count == 1 || i + 1 < count,
        false => l.window.is_some(),
    };
    let one = |window: Option<usize>| {
        let layer = |(i, l): (usize, &DraftLayer)| {
            let window = window.filter(|_| slides(i, l));
            DraftLayer { window, causal: config.explicit_causal.unwrap_or(window.is_some()) }
        };
        let (name, flag) = match window {
            Some(window) => (format!("window {window}"), window),
            None => ("no window".to_owned(), 0),
        };
        Alternative {
            setting: Setting::Window,
            name,
            flag: format!("--draft-window {flag}"),
            config: DrafterConfig {
                layers: config.layers.iter().enumerate().map(layer).collect(),
                ..config.clone()
            },
        }
    };
    // A window that no text reaches beyond is none.
    let windows = WINDOWS.into_iter().filter(|w| *w < longest).map(Some);
    let all = [None].into_iter().chain(windows).map(one);
    all.filter(|a| a.config.layers != config.layers).collect()
}

fn yarns(config: &DrafterConfig) -> Vec<Alternative> {
    let one = |scaling: Option<Yarn>| {
        let mut other = config.clone();
        other.rope.scaling = scaling;
        let (name, flag) = match scaling {
            Some(Yarn { factor, original_context, .. }) => (
                format!("YaRN by {factor} over {original_context}"),
                format!("--draft-yarn {factor},{original_context}"),
            ),
            None => ("no YaRN".to_owned(), "--draft-yarn none".to_owned()),
        };
        Alternative { setting: Setting::Yarn, name, flag, config: other }
    };
    let mut list = vec![None];
    for factor in YARN_FACTORS {
        for original_context in YARN_LENGTHS {
            list.push(Some(Yarn { factor, beta_fast: 32.0, beta_slow: 1.0, original_context }));
        }
    }
    list.into_iter().filter(|s| *s != config.rope.scaling).map(one).collect()
}

/// Drafts chosen by their logits alone, as if the drafter had no selector: one whose codebooks are
/// transposed or trimmed does harm.
fn without_selector(config: &DrafterConfig) -> Option<Alternative> {
    config.extras.selector?;
    let mut other = config.clone();
    other.extras.selector = None;
    Some(Alternative {
        setting: Setting::Selector,
        name: "selector off".to_owned(),
        flag: "--draft-selector false".to_owned(),
        config: other,
    })
}

/// Every token that may be a mask: known ones, those that are no text, and rows that no token has.
pub(crate) fn masks(
    config: &DrafterConfig,
    vocab: usize,
    tokenizer: &Tokenizer,
) -> Vec<Alternative> {
    let is_text = |id: u32| (id as usize) < tokenizer.len() && tokenizer.kind(id) == Kind::Normal;
    let special = (0..vocab as u32).filter(|id| !is_text(*id));
    let mut ids: Vec<u32> =
        MASKS.into_iter().filter(|id| (*id as usize) < vocab).chain(special).collect();
    ids.sort_unstable();
    ids.dedup();
    let one = |mask_token: u32| Alternative {
        setting: Setting::MaskToken,
        name: format!("mask token {mask_token}"),
        flag: format!("--draft-mask-token {mask_token}"),
        config: DrafterConfig { mask_token, ..config.clone() },
    };
    ids.into_iter().filter(|id| *id != config.mask_token).map(one).collect()
}
