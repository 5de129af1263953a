//! Encoding and decoding speed on one thread, beside the `tokenizers` crate's:
//! `cargo bench -p forerun-text --bench encode [-- --run NAME]`.

use runs::{Bench, Figure, Table, seconds};
use std::hint::black_box;
use text::{Controls, Specials, Tokenizer};

const FILE: &str = "tests/fixtures/tokenizer.json";

fn main() -> runs::Result<()> {
    let bench = Bench::new("cargo bench -p forerun-text --bench encode")?;
    let text = megabyte();
    let tokenizer = Tokenizer::from_json(FILE).expect("the fixture loads");
    let reference = tokenizers::Tokenizer::from_file(FILE).expect("the fixture loads");
    let ids = tokenizer.encode(&text, Specials::Parse);
    let times = [
        (
            "encode",
            seconds(|| drop(black_box(tokenizer.encode(black_box(&text), Specials::Parse)))),
        ),
        ("decode", seconds(|| drop(black_box(tokenizer.decode(black_box(&ids), Controls::Hide))))),
        (
            "encode by the `tokenizers` crate",
            seconds(|| drop(black_box(reference.encode_fast(black_box(&*text), false)))),
        ),
    ];
    let row = |(what, seconds): (&str, f64)| -> Vec<Figure> {
        vec![what.into(), (seconds * 1e3).into(), (text.len() as f64 / 1e6 / seconds).into()]
    };
    let table = Table::new(&["", "ms", "MB/s"], times.into_iter().map(row).collect());
    let shapes =
        format!("{:.1} MB of prose, code and JSON, 1 thread, medians", text.len() as f64 / 1e6);
    bench.finish(&shapes, [("text", table)])
}

/// A million characters of prose in several scripts, code, templates, and a vocabulary, in which
/// hardly a word repeats.
fn megabyte() -> String {
    let sources = [
        include_str!("../tests/tokenizer/sample.md"),
        include_str!("../src/tokenizer/mod.rs"),
        include_str!("../src/template/python.rs"),
        include_str!("../tests/tokenizer.rs"),
        include_str!("../tests/fixtures/features.jinja"),
        include_str!("../tests/template/expected.json"),
    ];
    let text = sources.concat().repeat(2) + include_str!("../tests/fixtures/tokenizer.json");
    text.repeat(3).chars().take(1_000_000).collect()
}
