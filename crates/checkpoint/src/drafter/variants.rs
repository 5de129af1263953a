//! Relatives of DFlash that need other arithmetic: recognised by their tensors and keys, and
//! refused by name.

use crate::{Error, Source};

/// A part of a tensor's name, and the variant that has it.
const SIGNS: [(&str, &str); 19] = [
    ("candidate_selector", "DFlash 2"),
    ("attention_conv", "DFlash 2"),
    ("mlp_conv", "DFlash 2"),
    ("attn_conv_", "DFlash 2"),
    ("ffn_conv_", "DFlash 2"),
    ("selector_predecessor", "DFlash 2"),
    ("selector_successor", "DFlash 2"),
    ("selector_hidden", "DFlash 2"),
    ("markov", "DSpark"),
    ("conf_proj", "DSpark"),
    ("confidence", "DSpark"),
    ("dspark", "DSpark"),
    ("domino", "Domino"),
    ("attention_sink_bias", "MiMo DFlash"),
    ("g_proj.", "Laguna DFlash"),
    ("aux_hidden_norm", "Laguna DFlash"),
    ("encoder.fc", "Muse DFlash"),
    ("d2t", "reduced-vocabulary"),
    ("t2d", "reduced-vocabulary"),
];

pub(super) fn refuse(source: &Source) -> Result<(), Error> {
    for tensor in source.tensors() {
        if let Some((_, variant)) = SIGNS.iter().find(|(sign, _)| tensor.name.contains(sign)) {
            return Err(Error::Variant { variant, sign: format!("tensor `{}`", tensor.name) });
        }
    }
    match source {
        Source::Gguf { gguf, .. } => {
            let key = "dflash.selector_top_k";
            if gguf.integer(key)?.is_some_and(|k| k > 0) {
                return Err(Error::Variant { variant: "DFlash 2", sign: format!("`{key}`") });
            }
        }
        Source::Safetensors { config: Some(config), .. } => {
            let named = config.strings("architectures")?.unwrap_or_default();
            for (part, variant) in [("DFlash2", "DFlash 2"), ("DSpark", "DSpark")] {
                if let Some(name) = named.iter().find(|name| name.contains(part)) {
                    return Err(Error::Variant { variant, sign: format!("architecture `{name}`") });
                }
            }
        }
        Source::Safetensors { config: None, .. } => {}
    }
    Ok(())
}
