//! Relatives of DFlash that need other arithmetic: recognised by their names, tensors and keys, and
//! refused by name.

use crate::{Error, Source};

/// A part of an architecture's name, in lower case, and the variant that has it. A GGUF's name and
/// a Hugging Face class are looked up alike.
const NAMES: [(&str, &str); 9] = [
    ("peagle", "P-EAGLE"),
    ("p_eagle", "P-EAGLE"),
    ("eagle3", "EAGLE-3"),
    ("eagle", "EAGLE"),
    ("domino", "Domino"),
    ("xpress", "XPress"),
    ("medusa", "Medusa"),
    ("dflare", "DFlare"),
    ("jetspecspeculator", "JetSpec (as speculators write it)"),
];

/// A part of a tensor's name, and the variant that has it.
const SIGNS: [(&str, &str); 16] = [
    ("midlayer.", "EAGLE-3"),
    ("prefix_gru", "Domino"),
    ("embed_proj", "Domino"),
    ("domino", "Domino"),
    ("refiner", "XPress"),
    ("layer_fusion", "DFly"),
    ("hidden_correction", "TreeFlash"),
    ("attention_sink_bias", "MiMo DFlash"),
    ("attn_sinks", "MiMo DFlash"),
    ("g_proj.", "Laguna DFlash"),
    ("aux_hidden_norm", "Laguna DFlash"),
    ("encoder.fc", "Muse DFlash"),
    ("d2t", "reduced-vocabulary"),
    ("t2d", "reduced-vocabulary"),
    ("mlp.experts.", "mixture-of-experts"),
    ("_exps.", "mixture-of-experts"),
];

/// The refusal of an architecture that is a known relative.
pub(super) fn named(architecture: &str) -> Option<Error> {
    let lower = architecture.to_lowercase();
    let (_, variant) = NAMES.iter().find(|(part, _)| lower.contains(part))?;
    Some(Error::Variant { variant, sign: format!("architecture `{architecture}`") })
}

pub(super) fn refuse(source: &Source) -> Result<(), Error> {
    if let Source::Safetensors { config: Some(config), .. } = source {
        let names = config.strings("architectures")?.unwrap_or_default();
        if let Some(refusal) = names.iter().find_map(|name| named(name)) {
            return Err(refusal);
        }
        for key in ["dflash_config.projector_type", "speculators_model_type"] {
            let kind = config.string(key)?.unwrap_or_default().to_lowercase();
            if let Some((_, variant)) = NAMES.iter().find(|(part, _)| kind.contains(part)) {
                return Err(Error::Variant { variant, sign: format!("`{key}`") });
            }
        }
    }
    let tensors = source.tensors();
    let names = tensors.iter().map(|t| &t.name).chain(tensors.raw().iter().map(|raw| &raw.name));
    for name in names {
        if let Some((_, variant)) = SIGNS.iter().find(|(sign, _)| name.contains(sign)) {
            return Err(Error::Variant { variant, sign: format!("tensor `{name}`") });
        }
    }
    Ok(())
}
