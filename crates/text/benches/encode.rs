//! Encoding and decoding speed on one thread, beside the `tokenizers` crate's.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use text::{Controls, Specials, Tokenizer};

fn main() {
    divan::main();
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_json("tests/fixtures/tokenizer.json").expect("the fixture loads")
}

/// 1 MB of prose in several scripts, code, templates, and a vocabulary, in which hardly a word repeats.
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

#[divan::bench]
fn encode(bencher: Bencher) {
    let (tokenizer, text) = (tokenizer(), megabyte());
    bencher.counter(BytesCount::of_str(&text)).bench(|| tokenizer.encode(black_box(&text), Specials::Parse));
}

#[divan::bench(sample_count = 10)]
fn encode_reference(bencher: Bencher) {
    let tokenizer =
        tokenizers::Tokenizer::from_file("tests/fixtures/tokenizer.json").expect("the fixture loads");
    let text = megabyte();
    bencher.counter(BytesCount::of_str(&text)).bench(|| tokenizer.encode_fast(black_box(&*text), false));
}

#[divan::bench]
fn decode(bencher: Bencher) {
    let (tokenizer, text) = (tokenizer(), megabyte());
    let ids = tokenizer.encode(&text, Specials::Parse);
    bencher.counter(BytesCount::of_str(&text)).bench(|| tokenizer.decode(black_box(&ids), Controls::Hide));
}

#[divan::bench]
fn load(bencher: Bencher) {
    bencher.bench(tokenizer);
}
