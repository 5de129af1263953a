//! What is told of a target's weights to those who ask what is served.

use crate::loading::Loaded;
use checkpoint::target::Ffn;
use server::Facts;
use std::collections::BTreeMap;

impl Loaded {
    /// The target's facts; where its bytes are is known once they are loaded.
    pub(crate) fn facts(&self) -> Facts {
        let (config, weights) = (&self.target.config, &self.target.weights);
        let mut bytes_of = BTreeMap::new();
        for weight in weights.iter() {
            let bytes = weight.ty.bytes_for(weight.elements()).unwrap_or(0) as u64;
            *bytes_of.entry(weight.ty.to_string()).or_insert(0) += bytes;
        }
        let level = bytes_of.iter().max_by_key(|(_, bytes)| **bytes);
        Facts {
            family: match config.ffn {
                Ffn::Dense { .. } => "qwen35",
                Ffn::Moe { .. } => "qwen35moe",
            },
            format: self.format,
            shape: vec![
                ("block_count", config.layers.len()),
                ("embedding_length", config.hidden),
                ("attention.head_count", config.attention.q_heads),
                ("attention.head_count_kv", config.attention.kv_heads),
                ("attention.key_length", config.attention.head_dim),
                ("vocab_size", config.vocab),
            ],
            parameters: weights.iter().map(|weight| weight.elements() as u64).sum(),
            bytes: bytes_of.values().sum(),
            device_bytes: 0,
            level: level.map(|(level, _)| level.to_uppercase()).unwrap_or_default(),
        }
    }
}
