//! Any bytes as a target or as the next-token block of one: a GGUF, or a `config.json` and a
//! safetensors file after the first NUL byte.
#![no_main]

use checkpoint::{MtpBlock, Source, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(source) = Source::from_bytes(bytes) else { return };
    let weights = match MtpBlock::is_in(&source) {
        true => MtpBlock::read(source, None).map(|block| block.weights),
        false => Target::read(source).map(|target| target.weights),
    };
    let Ok(weights) = weights else { return };
    for weight in weights.iter() {
        assert_eq!(weights.bytes(weight).len(), weight.byte_len());
    }
});
