//! How often a model's experts were chosen, as a file: `forerun bench experts` writes it, and with
//! `--expert-counts` copies begin with those that were chosen most.

use anyhow::{Context, Result, bail};
use checkpoint::{TargetConfig, target::Ffn};
use compute::Backend;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Counts of one model.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCounts {
    /// For people: whose they are.
    pub model: String,
    /// For people: tokens of the texts they were counted in.
    pub tokens: u64,
    /// Of each layer, how often each expert was chosen.
    pub layers: Vec<Vec<u32>>,
}

impl ExpertCounts {
    /// Counts of `[layers][experts]`.
    pub fn new(model: &str, tokens: u64, experts: usize, chosen: &[u32]) -> Self {
        let layers = chosen.chunks(experts.max(1)).map(<[u32]>::to_vec).collect();
        Self { model: model.to_owned(), tokens, layers }
    }

    /// Reads a file for a model of this shape.
    pub(crate) fn read(path: &Path, config: &TargetConfig) -> Result<Self> {
        let shown = path.display();
        let Ffn::Moe { experts, .. } = config.ffn else {
            bail!("`--expert-counts {shown}`: the model has no experts");
        };
        let text = fs::read_to_string(path).with_context(|| shown.to_string())?;
        let counts: Self = serde_json::from_str(&text).with_context(|| {
            format!("{shown}: not counts of experts, as `forerun bench experts` writes them")
        })?;
        let layers = config.layers.len();
        if counts.layers.len() != layers || counts.layers.iter().any(|l| l.len() != experts) {
            bail!(
                "{shown}: counts of {} in {} layers, the model has {experts} experts in {layers}",
                counts.layers.first().map_or(0, Vec::len),
                counts.layers.len()
            );
        }
        Ok(counts)
    }

    /// Writes them to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Lets a backend begin with copies of those that were chosen most.
    pub fn tell(&self, backend: &mut dyn Backend) -> Result<()> {
        if backend.expert_hits().is_none() {
            eprintln!("no experts have copies here, so `--expert-counts` changes nothing");
        }
        Ok(backend.expect_experts(&self.layers.concat())?)
    }

    /// The share of all choices that so large a share of each layer's experts has, the most wanted
    /// ones.
    pub fn share_of_best(&self, best: f64) -> f64 {
        let of_best = |layer: &Vec<u32>| {
            let mut sorted = layer.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let count = (best * layer.len() as f64).round() as usize;
            sorted[..count.min(sorted.len())].iter().map(|n| u64::from(*n)).sum::<u64>()
        };
        let all: u64 = self.layers.iter().flatten().map(|n| u64::from(*n)).sum();
        self.layers.iter().map(of_best).sum::<u64>() as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_have_their_share() {
        let counts = ExpertCounts::new("m", 9, 5, &[10, 0, 0, 50, 40, 20, 20, 20, 20, 20]);
        assert_eq!(counts.layers.len(), 2);
        assert_eq!(counts.share_of_best(0.6), 0.8);
        assert_eq!(counts.share_of_best(1.0), 1.0);
        assert_eq!(ExpertCounts::new("m", 0, 2, &[0, 0]).share_of_best(0.5), 0.0);
    }
}
