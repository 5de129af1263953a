//! The tensors a drafter is made of, and the names they go by.

use super::DrafterConfig;
use crate::Error;
use crate::weights::{Place, Slot};
use formats::{TensorInfo, Tensors};

/// The names of the projection that joins the taps, which every dialect has.
pub(super) const FC_NAMES: [&str; 5] =
    ["fc.weight", "dflash_fc.weight", "dflash.fc.weight", "model.fc.weight", "draft.fc.weight"];

/// What Hugging Face's names start with: nothing, some exporters' word, JetSpec's in GGUF.
const PREFIXES: [&str; 3] = ["", "model.", "draft."];

/// The embedding and the head that a drafter borrows from its target, under all their names.
const BORROWED: [&str; 6] = [
    "embed_tokens.weight",
    "model.embed_tokens.weight",
    "token_embd.weight",
    "lm_head.weight",
    "model.lm_head.weight",
    "output.weight",
];

/// A copy that is of another size than the target's is no copy: a drafter with words of its own.
pub(super) fn check_borrowed(
    tensors: &Tensors,
    vocab: Option<usize>,
    hidden: usize,
) -> Result<(), Error> {
    let Some(vocab) = vocab else { return Ok(()) };
    for tensor in BORROWED.iter().filter_map(|name| tensors.get(name)) {
        if tensor.shape != [vocab, hidden] {
            let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(Error::Shape { tensor, found, expected: vec![vocab, hidden] });
        }
    }
    Ok(())
}

/// Whether a tensor is a copy of what the target has.
pub(super) fn is_borrowed(name: &str) -> bool {
    BORROWED.contains(&name)
}

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

/// The convolutions of a layer: their name upstream, in lucebox's files and older ones of
/// upstream's, and in Hugging Face folders.
const CONV: [(&str, &str, &str); 4] = [
    ("attn_conv_base", "attn_conv.base", "attention_conv.base_kernel"),
    ("attn_conv_proj.weight", "attn_conv.proj.weight", "attention_conv.kernel_projection.weight"),
    ("ffn_conv_base", "ffn_conv.base", "mlp_conv.base_kernel"),
    ("ffn_conv_proj.weight", "ffn_conv.proj.weight", "mlp_conv.kernel_projection.weight"),
];

/// The selector and the heads: their name upstream, and what others call them.
const HEADS: [(&str, &[&str]); 7] = [
    (
        "selector_predecessor.weight",
        &[
            "selector.pred_codebook",
            "dflash.selector.pred_cb",
            "candidate_selector.predecessor_codebook",
            "candidate_selector.predecessor_codebook.weight",
            "model.candidate_selector.predecessor_codebook",
            "model.candidate_selector.predecessor_codebook.weight",
        ],
    ),
    (
        "selector_successor.weight",
        &[
            "selector.succ_codebook",
            "dflash.selector.succ_cb",
            "candidate_selector.successor_codebook",
            "candidate_selector.successor_codebook.weight",
            "model.candidate_selector.successor_codebook",
            "model.candidate_selector.successor_codebook.weight",
        ],
    ),
    (
        "selector_hidden.weight",
        &[
            "selector.hidden_proj.weight",
            "dflash.selector.hproj.weight",
            "candidate_selector.hidden_projection.weight",
            "model.candidate_selector.hidden_projection.weight",
        ],
    ),
    (
        "markov_w1.weight",
        &[
            "dflash.dspark.markov.w1",
            "dflash.dspark.markov.w1.weight",
            "markov_head.markov_w1.weight",
            "model.markov_head.markov_w1.weight",
        ],
    ),
    (
        "markov_w2.weight",
        &[
            "dflash.dspark.markov.w2",
            "dflash.dspark.markov.w2.weight",
            "markov_head.markov_w2.weight",
            "model.markov_head.markov_w2.weight",
        ],
    ),
    (
        "conf_proj.weight",
        &[
            "dflash.dspark.confidence.weight",
            "confidence_head.proj.weight",
            "model.confidence_head.proj.weight",
        ],
    ),
    (
        "conf_proj.bias",
        &[
            "dflash.dspark.confidence.bias",
            "confidence_head.proj.bias",
            "model.confidence_head.proj.bias",
        ],
    ),
];

/// The names a canonical tensor goes by, first the canonical one.
pub(super) fn aliases(name: &str) -> Vec<String> {
    if let Some((_, others)) = HEADS.iter().find(|(own, _)| *own == name) {
        return std::iter::once(name).chain(others.iter().copied()).map(str::to_owned).collect();
    }
    let names: &[&str] = match name {
        "fc.weight" => &FC_NAMES,
        "enc.output_norm.weight" => &[
            "enc.output_norm.weight",
            "dflash_hidden_norm.weight",
            "dflash.hidden_norm.weight",
            "hidden_norm.weight",
            "model.hidden_norm.weight",
            "draft.hidden_norm.weight",
        ],
        "output_norm.weight" => {
            &["output_norm.weight", "norm.weight", "model.norm.weight", "draft.norm.weight"]
        }
        _ => return layer_aliases(name),
    };
    names.iter().map(|&n| n.to_owned()).collect()
}

fn layer_aliases(name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    if let ["blk", index, part] = name.splitn(3, '.').collect::<Vec<_>>()[..]
        && let Some((_, dotted, long)) = CONV.iter().find(|(own, ..)| *own == part)
    {
        names.push(format!("blk.{index}.{dotted}"));
        names.extend(PREFIXES.map(|prefix| format!("{prefix}layers.{index}.{long}")));
        return names;
    }
    let parts: Vec<&str> = name.splitn(4, '.').collect();
    let &["blk", index, part, "weight"] = parts.as_slice() else { return names };
    if part == "ffn_norm" {
        names.push(format!("blk.{index}.post_attention_norm.weight"));
    }
    if let Some((_, hf)) = LAYER.iter().find(|(gguf, _)| *gguf == part) {
        names.extend(PREFIXES.map(|prefix| format!("{prefix}layers.{index}.{hf}.weight")));
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
        if let Some(conv) = config.extras.conv {
            for (part, ..) in CONV {
                let shape: &[usize] = match part.ends_with("_base") {
                    true => &[2, conv.kernel, hidden],
                    false => &[conv.coefficients(hidden), hidden],
                };
                slots.push(slot(&format!("blk.{index}.{part}"), shape));
            }
        }
    }
    slots.extend(head_slots(config));
    slots
}

/// The selector and the heads, where there are some.
fn head_slots(config: &DrafterConfig) -> Vec<Slot> {
    let (hidden, extras) = (config.hidden, &config.extras);
    let mut slots = Vec::new();
    if let Some(selector) = extras.selector {
        let codebook = [selector.vocab, selector.rank];
        slots.push(slot("selector_predecessor.weight", &codebook));
        slots.push(slot("selector_successor.weight", &codebook));
        slots.push(slot("selector_hidden.weight", &[selector.rank, hidden]));
    }
    if let Some(markov) = extras.markov {
        slots.push(slot("markov_w1.weight", &[markov.vocab, markov.rank]));
        slots.push(slot("markov_w2.weight", &[markov.vocab, markov.rank]));
    }
    if let Some(confidence) = extras.confidence {
        let rank = extras.markov.filter(|_| confidence.with_markov).map_or(0, |m| m.rank);
        slots.push(slot("conf_proj.weight", &[1, hidden + rank]));
        if confidence.bias {
            slots.push(slot("conf_proj.bias", &[1]));
        }
    }
    slots
}

fn slot(name: &str, shape: &[usize]) -> Slot {
    Slot::new(name, shape, aliases(name).into_iter().map(Place::whole).collect())
}

/// What Hugging Face calls a tensor, without a prefix.
pub(super) fn hf_name(name: &str) -> String {
    let starts = ["layers.", "candidate_selector.", "markov_head.", "confidence_head."];
    let names = aliases(name);
    let found = names.iter().find(|alias| starts.iter().any(|start| alias.starts_with(start)));
    found.unwrap_or(&names[0]).clone()
}

/// The tensor of that canonical name, by whatever name this file has it.
pub(super) fn find<'a>(tensors: &'a Tensors, name: &str) -> Option<&'a TensorInfo> {
    aliases(name).iter().find_map(|alias| tensors.get(alias))
}

/// [`slots`], with the file's own spelling first, so that a missing tensor is reported by the name
/// it should have.
pub(super) fn named_for(config: &DrafterConfig, tensors: &Tensors) -> Vec<Slot> {
    let spelling = |name: &str| aliases(name).iter().position(|alias| tensors.get(alias).is_some());
    let first_layer = |name: &str| {
        let part = name.splitn(3, '.').nth(2)?;
        name.starts_with("blk.").then(|| format!("blk.0.{part}"))
    };
    let is_hf = find(tensors, "blk.0.attn_q.weight").is_some_and(|t| t.name.contains("layers."));
    let long = |name: &str| {
        let long = hf_name(name);
        is_hf.then(|| aliases(name).iter().position(|alias| *alias == long)).flatten()
    };
    let mut slots = slots(config);
    for slot in &mut slots {
        let reference = first_layer(&slot.name).unwrap_or_else(|| slot.name.clone());
        if let Some(index) = spelling(&reference).or_else(|| long(&reference)) {
            slot.places.swap(0, index);
        }
    }
    slots
}
