//! Any bytes as a target: a GGUF, or a `config.json` and a safetensors file after the first NUL
//! byte.
#![no_main]

use checkpoint::{Source, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(source) = Source::from_bytes(bytes) else { return };
    let Ok(target) = Target::read(source) else { return };
    for weight in target.weights.iter() {
        assert_eq!(target.weights.bytes(weight).len(), weight.byte_len());
    }
});
