//! The tensors a drafter is made of, and the names they go by.

use super::DrafterConfig;
use crate::weights::{Place, Slot};
use formats::Tensors;

/// The names of the projection that joins the taps, which every dialect has.
pub(super) const FC_NAMES: [&str; 4] =
    ["fc.weight", "dflash_fc.weight", "dflash.fc.weight", "model.fc.weight"];

const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The names a canonical tensor goes by, first the canonical one.
pub(super) fn aliases(name: &str) -> Vec<String> {
    let names: &[&str] = match name {
        "fc.weight" => &FC_NAMES,
        "enc.output_norm.weight" => &[
            "enc.output_norm.weight",
            "dflash_hidden_norm.weight",
            "dflash.hidden_norm.weight",
            "hidden_norm.weight",
            "model.hidden_norm.weight",
        ],
        "output_norm.weight" => &["output_norm.weight", "norm.weight", "model.norm.weight"],
        _ => return layer_aliases(name),
    };
    names.iter().map(|&n| n.to_owned()).collect()
}

fn layer_aliases(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let parts: Vec<&str> = name.splitn(4, '.').collect();
    let &["blk", index, part, "weight"] = parts.as_slice() else { return names };
    if part == "ffn_norm" {
        names.push(format!("blk.{index}.post_attention_norm.weight"));
    }
    if let Some((_, hf)) = LAYER.iter().find(|(gguf, _)| *gguf == part) {
        names.extend(["", "model."].map(|prefix| format!("{prefix}layers.{index}.{hf}.weight")));
    }
    names
}

/// Every tensor of a drafter with this configuration, under upstream's names.
pub fn slots(config: &DrafterConfig) -> Vec<Slot> {
    let (hidden, dim, ffn) = (config.hidden, config.head_dim, config.ffn);
    let (queries, keys) = (config.q_heads * dim, config.kv_heads * dim);
    let mut slots = vec![
        slot("fc.weight", &[hidden, config.taps.len() * hidden]),
        slot("enc.output_norm.weight", &[hidden]),
        slot("output_norm.weight", &[hidden]),
    ];
    for index in 0..config.layers.len() {
        for (part, _) in LAYER {
            let shape: &[usize] = match part {
                "attn_q" => &[queries, hidden],
                "attn_k" | "attn_v" => &[keys, hidden],
                "attn_output" => &[hidden, queries],
                "attn_q_norm" | "attn_k_norm" => &[dim],
                "ffn_gate" | "ffn_up" => &[ffn, hidden],
                "ffn_down" => &[hidden, ffn],
                _ => &[hidden],
            };
            slots.push(slot(&format!("blk.{index}.{part}.weight"), shape));
        }
    }
    slots
}

fn slot(name: &str, shape: &[usize]) -> Slot {
    Slot::new(name, shape, aliases(name).into_iter().map(Place::whole).collect())
}

/// [`slots`], with the file's own spelling first, so that a missing tensor is reported by the name
/// it should have.
pub(super) fn named_for(config: &DrafterConfig, tensors: &Tensors) -> Vec<Slot> {
    let spelling = |name: &str| aliases(name).iter().position(|alias| tensors.get(alias).is_some());
    let first_layer = |name: &str| {
        let part = name.splitn(3, '.').nth(2)?;
        name.starts_with("blk.").then(|| format!("blk.0.{part}"))
    };
    let mut slots = slots(config);
    for slot in &mut slots {
        let reference = first_layer(&slot.name).unwrap_or_else(|| slot.name.clone());
        if let Some(index) = spelling(&reference) {
            slot.places.swap(0, index);
        }
    }
    slots
}
