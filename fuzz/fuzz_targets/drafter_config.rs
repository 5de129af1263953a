//! Any bytes as a drafter: a GGUF, or a `config.json` and a safetensors file after the first NUL
//! byte. What is accepted has a configuration that its own tensors fit, with and without flags.
#![no_main]

use checkpoint::{Causality, Drafter, Overrides, Source, drafter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let said = Overrides {
        rope_theta: Some(1e7),
        mask_token: Some(9),
        window: Some(32),
        causal: Some(Causality::Everywhere),
        block: Some(8),
        ..Overrides::default()
    };
    for overrides in [Overrides::default(), said] {
        let Some(source) = Source::from_bytes(bytes) else { return };
        let Ok(drafter) = Drafter::read(source, &overrides, None) else { continue };
        let _ = drafter.config.layer_summary();
        for slot in drafter::slots(&drafter.config) {
            let weight = drafter.weights.get(&slot.name).expect("every slot was found");
            assert_eq!(drafter.weights.bytes(weight).len(), weight.byte_len());
        }
    }
});
