//! The fuzz seeds are sound: each is accepted, so that a fuzzer starts from inside the parsers.

use checkpoint::{Drafter, MtpBlock, Overrides, Source, Target};
use std::path::Path;

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    files
        .map(|f| {
            (f.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&f).unwrap())
        })
        .collect()
}

#[test]
fn target_seeds_are_accepted() {
    let seeds = seeds("target_config");
    assert_eq!(seeds.len(), 6);
    for (name, bytes) in seeds {
        let source = Source::from_bytes(&bytes).unwrap();
        match name.as_str() {
            "mtp" => drop(MtpBlock::read(source, None).unwrap_or_else(|e| panic!("{name}: {e}"))),
            _ => drop(Target::read(source).unwrap_or_else(|e| panic!("{name}: {e}"))),
        }
    }
}

#[test]
fn drafter_seeds_are_accepted() {
    let seeds = seeds("drafter_config");
    assert_eq!(seeds.len(), 12);
    for (name, bytes) in seeds {
        let read = Drafter::read(Source::from_bytes(&bytes).unwrap(), &Overrides::default(), None);
        match name.as_str() {
            "bare" => assert!(read.unwrap_err().to_string().contains("--draft-taps")),
            _ => drop(read.unwrap_or_else(|e| panic!("{name}: {e}"))),
        }
    }
}
