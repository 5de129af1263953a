//! Any bytes as the file of a state: as they are, and behind a checksum that fits them. What is
//! taken in is then held against a model, which must refuse it or count exactly the blocks it has.
#![no_main]

use engine::synthetic::{Mix, Weights, tiny};
use engine::{Engine, Sequence, Spec};
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use store::{Manifest, Name};

thread_local! {
    static BLANK: OnceCell<(Sequence, usize)> = const { OnceCell::new() };
}

/// An empty sequence of a tiny model, and the size of its vocabulary.
fn blank() -> (Sequence, usize) {
    let config = tiny();
    let weights = Weights::new(&config, Mix::Q8_0, 1);
    let cpu = compute::Cpu::new(compute::CpuLevel::detect(), 1, compute::Activations::Int8);
    let (kv, spec) = (compute::KvType::F16, Spec::Lookup { budget: 4 });
    let engine = Engine::load(Box::new(cpu), (&config, &weights), None, kv, spec);
    (engine.expect("a tiny model loads").sequence(), config.vocab)
}

fuzz_target!(|bytes: &[u8]| {
    let json = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes, |end| &bytes[end + 1..]);
    let sealed = [format!("forerun-state 1 {}\n", Name::of(json)).as_bytes(), json].concat();
    for file in [bytes, &sealed] {
        let Ok(manifest) = Manifest::parse(file) else { continue };
        assert_eq!(Manifest::parse(&manifest.to_bytes()).expect("ours").tokens, manifest.tokens);
        BLANK.with(|cell| {
            let (blank, vocab) = cell.get_or_init(blank);
            if let Ok(blocks) = manifest.outline.blocks(blank, &manifest.tokens, *vocab) {
                assert_eq!(manifest.outline.committed(), manifest.tokens.len());
                assert!(!blocks.is_empty() && blocks.iter().all(|bytes| *bytes > 0));
            }
        });
    }
});
