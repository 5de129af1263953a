//! What is told of a target's weights to those who ask what is served.

use checkpoint::TargetConfig;
use checkpoint::target::Ffn;
use launch::WeightSummary;
use server::Facts;

/// The target's facts; `on_device` where its bytes lie in the memory of a device of its own.
pub(crate) fn facts(config: &TargetConfig, weights: WeightSummary, on_device: bool) -> Facts {
    let bytes = weights.bytes_of.values().sum();
    let level = weights.bytes_of.iter().max_by_key(|(_, bytes)| **bytes);
    Facts {
        family: match config.ffn {
            Ffn::Dense { .. } => "qwen35",
            Ffn::Moe { .. } => "qwen35moe",
        },
        format: weights.format,
        shape: vec![
            ("block_count", config.layers.len()),
            ("embedding_length", config.hidden),
            ("attention.head_count", config.attention.q_heads),
            ("attention.head_count_kv", config.attention.kv_heads),
            ("attention.key_length", config.attention.head_dim),
            ("vocab_size", config.vocab),
        ],
        parameters: weights.parameters,
        bytes,
        device_bytes: if on_device { bytes } else { 0 },
        level: level.map(|(level, _)| level.to_uppercase()).unwrap_or_default(),
    }
}
