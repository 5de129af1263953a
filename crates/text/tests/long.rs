//! Long texts of few kinds of characters: they fall into pieces of any length, and what is done
//! with them must take time that grows as they do.

mod common;

use common::{TOKENIZER_JSON, from_json};
use std::hint::black_box;
use std::time::Instant;
use text::{Controls, Reasoning, Specials, Stream, ToolCalls};

/// Texts of about so many bytes.
fn texts(bytes: usize) -> Vec<(&'static str, String)> {
    let of = |pattern: &'static str| {
        pattern.chars().cycle().take(bytes / pattern.len() * pattern.chars().count())
    };
    let mut chance = 1u32;
    let mut letter = || {
        chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (chance >> 24) as u8 % 26)
    };
    vec![
        ("spaces", of(" ").collect()),
        ("spaces before a word", of(" ").chain("x".chars()).collect()),
        ("a letter", of("a").collect()),
        ("two letters", of("ab").collect()),
        ("any letters", (0..bytes).map(|_| letter()).collect()),
        ("digits", of("7").collect()),
        ("punctuation", of("=").collect()),
        ("brackets", of("([{}])").collect()),
        ("line breaks", of("\n").collect()),
        ("line breaks among spaces", of("\n  \r\n\t ").collect()),
        ("a line break before spaces", "\n".chars().chain(of(" ")).collect()),
        ("wide spaces", of("\u{3000}").collect()),
        ("ideographs", of("世界").collect()),
        ("marks", "e".chars().chain(of("\u{301}\u{327}")).collect()),
        ("halves of names", of("<|im_").collect()),
        ("names", of("<|im_end|>").collect()),
        ("tool calls", of("<tool_call>").collect()),
        ("parameters", "<tool_call><function=f>".chars().chain(of("<parameter=")).collect()),
    ]
}

#[test]
fn ids_are_those_of_the_reference() {
    let tokenizer = from_json();
    let reference = tokenizers::Tokenizer::from_bytes(TOKENIZER_JSON).expect("loads");
    // Around the length from which pieces are merged in another way, and well beyond.
    for bytes in [1000, 1030, 20_000] {
        for (name, text) in texts(bytes) {
            let expected =
                reference.encode_fast(text.as_str(), false).expect("encodes").get_ids().to_vec();
            let ids = tokenizer.encode(&text, Specials::Parse);
            assert!(ids == expected, "{bytes} bytes of {name}");
            assert_eq!(tokenizer.encode_marked(&text, '\u{fdd0}'), ids, "{bytes} bytes of {name}");
        }
    }
}

/// The least seconds of several tries.
fn seconds(work: &dyn Fn()) -> f64 {
    let times = (0..3).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

#[test]
fn sixteen_times_the_text_takes_no_square_of_the_time() {
    let tokenizer = from_json();
    let work = |text: &str, what: &str| match what {
        "encode" => drop(black_box(tokenizer.encode(text, Specials::Parse))),
        "encode as text" => drop(black_box(tokenizer.encode(text, Specials::Literal))),
        "mark" => drop(black_box(tokenizer.mark_controls(text, '\u{fdd0}'))),
        "find calls" => drop(black_box(ToolCalls::new(&[]).push(text))),
        "find thinking" => drop(black_box(Reasoning::new("<think>").push(text))),
        _ => {
            let ids = tokenizer.encode(text, Specials::Literal);
            black_box(tokenizer.decode(&ids, Controls::Show));
            let mut stream = Stream::new(&tokenizer, Controls::Hide, ["aaaab".to_owned()]);
            ids.iter().for_each(|id| drop(black_box(stream.push(*id))));
        }
    };
    let (short, long) = (texts(32 << 10), texts(512 << 10));
    for ((name, short), (_, long)) in short.iter().zip(&long) {
        for what in ["encode", "encode as text", "mark", "find calls", "find thinking", "decode"] {
            // What takes the square takes 256 times as long, however often it is tried. Little work
            // is done before others have their turn on a busy machine, more is not: some
            // milliseconds are the machine's.
            let is_fair = (0..5).any(|_| {
                let before = seconds(&|| work(short, what)).max(5e-3);
                seconds(&|| work(long, what)) < 100.0 * before
            });
            assert!(is_fair, "{what} {name}: more than 100 times as long for 16 times as much");
        }
    }
}
