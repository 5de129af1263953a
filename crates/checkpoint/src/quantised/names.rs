//! Names of a quantised module's tensors, and lists of modules that are said not to be quantised.

use regex::Regex;

/// What a module has beside its weight that only matters to engines that round activations or the
/// cache.
pub(super) const OTHERS: [&str; 6] =
    ["input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale", "output_scale"];

/// What the names of a quantised module's tensors end with.
const ENDINGS: [&str; 13] = [
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

/// Parts that have all experts in one tensor, whose name has no `.weight`.
const FUSED: [&str; 2] = [".experts.gate_up_proj", ".experts.down_proj"];

/// How such a tensor's scales are called behind its name.
const FUSED_ENDINGS: [(&str, &str); 7] = [
    ("", "weight"),
    ("_packed", "weight_packed"),
    ("_scale_inv", "weight_scale_inv"),
    ("_scale", "weight_scale"),
    ("_scale_2", "weight_scale_2"),
    ("_global_scale", "weight_global_scale"),
    ("_input_scale", "input_scale"),
];

/// Whether a module has all experts in one tensor.
pub(super) fn is_fused(module: &str) -> bool {
    FUSED.iter().any(|part| module.ends_with(part))
}

/// The module that a tensor belongs to, and which of its tensors it is.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    for part in FUSED {
        let Some(at) = name.find(part) else { continue };
        let (module, end) = name.split_at(at + part.len());
        // Some write `_weight_scale` where others write `_scale`.
        let plain = end.strip_prefix("_weight").unwrap_or(end);
        if let Some((_, end)) = FUSED_ENDINGS.iter().find(|(spelt, _)| *spelt == plain) {
            return Some((module, end));
        }
    }
    name.rsplit_once('.').filter(|(_, end)| ENDINGS.contains(end) || OTHERS.contains(end))
}

/// Modules that are said not to be quantised: names, ends of names, or `re:` and a pattern that
/// fits from a name's beginning.
#[derive(Debug, Default)]
pub(super) struct List {
    names: Vec<String>,
    patterns: Vec<Regex>,
}

impl List {
    /// Patterns that look ahead or behind are left out: such a list can be held against fewer
    /// modules, and what is quantised is seen from the tensors themselves.
    pub(super) fn new(entries: &[&str]) -> Self {
        let patterns = entries.iter().filter_map(|entry| entry.strip_prefix("re:"));
        let patterns = patterns.filter_map(|pattern| Regex::new(&format!("^(?:{pattern})")).ok());
        let names = entries.iter().filter(|entry| !entry.starts_with("re:"));
        Self { names: names.map(|name| (*name).to_owned()).collect(), patterns: patterns.collect() }
    }

    /// Whether it has this module.
    pub(super) fn has(&self, module: &str) -> bool {
        let is_named = |name: &String| {
            module == name || module.strip_suffix(name.as_str()).is_some_and(|m| m.ends_with('.'))
        };
        self.names.iter().any(is_named) || self.patterns.iter().any(|p| p.is_match(module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_belong_to_modules() {
        let cases = [
            ("m.q_proj.weight", Some(("m.q_proj", "weight"))),
            ("m.q_proj.weight_scale_inv", Some(("m.q_proj", "weight_scale_inv"))),
            ("m.experts.gate_up_proj", Some(("m.experts.gate_up_proj", "weight"))),
            ("m.experts.gate_up_proj.weight", Some(("m.experts.gate_up_proj", "weight"))),
            ("m.experts.down_proj_scale_inv", Some(("m.experts.down_proj", "weight_scale_inv"))),
            ("m.experts.down_proj_weight_scale", Some(("m.experts.down_proj", "weight_scale"))),
            ("m.experts.3.down_proj.weight", Some(("m.experts.3.down_proj", "weight"))),
            ("m.experts.down_proj_bias", None),
            ("m.norm", None),
        ];
        for (name, expected) in cases {
            assert_eq!(split(name), expected, "{name}");
        }
    }

    #[test]
    fn lists_have_names_ends_of_names_and_patterns() {
        let list = List::new(&["lm_head", "re:.*mlp.gate$", "re:visual", "re:(?!ahead)x"]);
        for module in ["lm_head", "model.lm_head", "model.layers.3.mlp.gate", "visual.block"] {
            assert!(list.has(module), "{module}");
        }
        for module in ["my_lm_head", "model.layers.3.mlp.gate_proj", "model.visual.block", "x"] {
            assert!(!list.has(module), "{module}");
        }
    }
}
