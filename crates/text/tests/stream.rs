//! The stream against the decoding of everything at once.

mod common;

use std::sync::{Arc, LazyLock};

use common::{byte_vocabulary, from_json};
use proptest::prelude::*;
use text::{Controls, Specials, Stream, Tokenizer};

const WORDS: [&str; 6] = ["ab", "abc", "bca", "aab", "END", "<|im"];

/// Every byte is a token, so that tokens can be any bytes.
static BYTES: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_vocabulary(byte_vocabulary(&WORDS)).expect("loads"));

fn streamed(ids: &[u32], controls: Controls, stops: &[String]) -> (String, Option<usize>) {
    let mut stream = Stream::new(&*BYTES, controls, stops.to_vec());
    let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
    text += &stream.finish();
    (text, stream.stopped())
}

/// What `stops` leave of a whole text, by its definition: look at every longer beginning until one
/// ends in a stop.
fn cut(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in (1..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let ended = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(*stop));
        if let Some((index, stop)) =
            ended.max_by_key(|(index, stop)| (stop.len(), std::cmp::Reverse(*index)))
        {
            return (text[..end - stop.len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

fn any_bytes() -> impl Strategy<Value = Vec<u32>> {
    let byte = prop_oneof![
        2 => 0u32..=255,
        2 => prop::sample::select(vec![0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x91, 0xa9, 0xed, 0xa0, 0xc0, 0xff, 0x41]),
        1 => 256u32..=270,
    ];
    prop::collection::vec(byte, 0..40)
}

/// Tokens of a few letters, so that stop strings occur.
fn few_letters() -> impl Strategy<Value = Vec<u32>> {
    let letter = prop::sample::select(vec![
        b'a'.into(),
        b'b'.into(),
        b'c'.into(),
        0xc3,
        0xa9,
        256,
        257,
        258,
        259,
    ]);
    prop::collection::vec(letter, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn pieces_make_the_lossy_decoding(ids in any_bytes()) {
        for controls in [Controls::Hide, Controls::Show] {
            prop_assert_eq!(streamed(&ids, controls, &[]).0, BYTES.decode(&ids, controls));
        }
    }

    #[test]
    fn stops_do_not_depend_on_where_tokens_end(
        ids in few_letters(),
        stops in prop::collection::vec("[abcé\u{fffd}]{0,4}", 0..4),
    ) {
        let whole = BYTES.decode(&ids, Controls::Hide);
        prop_assert_eq!(streamed(&ids, Controls::Hide, &stops), cut(&whole, &stops));
    }
}

#[test]
fn half_a_character_waits() {
    let mut stream = Stream::new(Arc::new(from_json()), Controls::Hide, []);
    let ids = stream_ids("👋");
    assert!(ids.len() > 1);
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert!(pieces[..ids.len() - 1].iter().all(String::is_empty));
    assert_eq!(pieces[ids.len() - 1], "👋");
    stream.push(ids[0]);
    assert_eq!(stream.finish(), "\u{fffd}");
    assert_eq!(stream.finish(), "");
}

fn stream_ids(text: &str) -> Vec<u32> {
    from_json().encode(text, Specials::Literal)
}

#[test]
fn the_beginning_of_a_stop_waits() {
    let mut stream = Stream::new(&*BYTES, Controls::Hide, ["END.".to_owned(), String::new()]);
    assert_eq!(stream.push(b'x'.into()), "x");
    assert_eq!(stream.push(260), ""); // END
    assert_eq!(stream.push(b'!'.into()), "END!");
    assert_eq!(stream.push(260), "");
    assert_eq!((stream.push(b'.'.into()), stream.stopped()), (String::new(), Some(0)));
    assert_eq!(stream.push(b'x'.into()), "");
    assert_eq!(stream.finish(), "");
}

#[test]
fn control_tokens_are_hidden_or_shown() {
    let end = BYTES.special("<|im_end|>").expect("there");
    let ids = [b'h'.into(), end, b'i'.into()];
    assert_eq!(streamed(&ids, Controls::Hide, &[]).0, "hi");
    assert_eq!(streamed(&ids, Controls::Show, &[]).0, "h<|im_end|>i");
}
