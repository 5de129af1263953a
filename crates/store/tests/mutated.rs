//! Files of states some of whose bytes were changed, thousands of them, as they are and behind a
//! checksum that fits them. What is taken in is held against a model, which must refuse it or count
//! exactly the blocks it has. The fuzz target `kept_state` does the same for as long as one likes.

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::synthetic::{Mix, Weights, tiny};
use engine::{Engine, Sequence, Spec};
use std::path::Path;
use store::{Manifest, Name};

/// Changed files of each seed.
const FILES: usize = 4000;
/// What a number is replaced by.
const NUMBERS: [&str; 8] =
    ["0", "1", "-1", "65", "4294967295", "4294967296", "18446744073709551615", "1e9"];

/// splitmix64: the same files every time.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count.max(1) as u64) as usize
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let (at, len) = (self.below(bytes.len()), 1 + self.below(8));
        let end = bytes.len().min(at + len);
        match self.below(6) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            3 => bytes.truncate(at.max(1)),
            // A number is where most of what a file says lies.
            _ => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let Some(first) = bytes[at..].iter().position(is_digit) else { return };
                let first = at + first;
                let digits = bytes[first..].iter().take_while(|byte| is_digit(byte)).count();
                let number = NUMBERS[self.below(NUMBERS.len())];
                bytes.splice(first..first + digits, number.bytes());
            }
        }
    }
}

/// An empty sequence of a tiny model, and the size of its vocabulary.
fn blank() -> (Sequence, usize) {
    let config = tiny();
    let weights = Weights::new(&config, Mix::Q8_0, 1);
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    let spec = Spec::Lookup { budget: 4 };
    let engine = Engine::load(cpu, (&config, &weights), None, KvType::F16, spec);
    (engine.expect("a tiny model loads").sequence(), config.vocab)
}

#[test]
fn changed_files_are_refused_or_say_what_they_have() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/kept_state");
    let seeds: Vec<Vec<u8>> = std::fs::read_dir(folder)
        .expect("the seeds")
        .map(|entry| std::fs::read(entry.expect("a seed").path()).expect("its bytes"))
        .collect();
    let ((blank, vocab), mut random) = (blank(), Random(1));
    let (mut parsed, mut refused) = (0, 0);
    for seed in &seeds {
        for _ in 0..FILES {
            let mut bytes = seed.clone();
            (0..=random.below(3)).for_each(|_| random.change(&mut bytes));
            let head = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let json = &bytes[head..];
            let line = format!("forerun-state 1 {}\n", Name::of(json));
            let sealed = [line.as_bytes(), json].concat();
            assert!(
                bytes == *seed || sealed == bytes || Manifest::parse(&bytes).is_err(),
                "a checksum that does not fit was taken: {}",
                String::from_utf8_lossy(&bytes)
            );
            let Ok(manifest) = Manifest::parse(&sealed) else {
                refused += 1;
                continue;
            };
            parsed += 1;
            let again = Manifest::parse(&manifest.to_bytes()).expect("ours");
            assert_eq!(again.tokens, manifest.tokens);
            if let Ok(blocks) = manifest.outline.blocks(&blank, &manifest.tokens, vocab) {
                assert_eq!(manifest.outline.committed(), manifest.tokens.len());
                assert!(!blocks.is_empty() && blocks.iter().all(|bytes| *bytes > 0));
            }
        }
    }
    // Changes that break nothing would try nothing, and so would those that break everything.
    assert!(parsed > FILES / 10 && refused > FILES / 10, "{parsed} read, {refused} refused");
}
