//! The tokenizer against Hugging Face's: kept ids from Python, and the `tokenizers` crate on
//! arbitrary text.

mod common;

use std::sync::LazyLock;

use common::{TOKENIZER_JSON, byte_vocabulary, from_gguf, from_json};
use proptest::prelude::*;
use serde_json::Value;
use text::{Beginnings, Controls, Kind, Specials, Tokenizer, TokenizerError, Vocabulary};
use tokenizers::normalizers::NFC;
use tokenizers::{NormalizedString, Normalizer};
use unicode_normalization::UnicodeNormalization;

static JSON: LazyLock<Tokenizer> = LazyLock::new(from_json);

/// The reference, with added tokens parsed and with none.
static REFERENCE: LazyLock<[tokenizers::Tokenizer; 2]> = LazyLock::new(|| {
    let mut file: Value = serde_json::from_slice(TOKENIZER_JSON).expect("json");
    let parse = tokenizers::Tokenizer::from_bytes(file.to_string()).expect("loads");
    file["added_tokens"] = Value::Array(vec![]);
    [parse, tokenizers::Tokenizer::from_bytes(file.to_string()).expect("loads")]
});

fn reference(text: &str, specials: Specials) -> Vec<u32> {
    let tokenizer = &REFERENCE[usize::from(specials == Specials::Literal)];
    tokenizer.encode_fast(text, false).expect("encodes").get_ids().to_vec()
}

/// The reference knows the Unicode of 2016; marks added since are ordered differently.
fn reference_nfc(text: &str) -> String {
    let mut normalized = NormalizedString::from(text);
    NFC.normalize(&mut normalized).expect("normalizes");
    normalized.get().to_owned()
}

fn case_text(case: &Value) -> String {
    case.as_str().map(str::to_owned).unwrap_or_else(|| {
        let field = |name: &str| case[name].as_str().expect("text");
        field("repeat").repeat(case["times"].as_u64().expect("count") as usize) + field("then")
    })
}

/// Ids from runs: `7` or `[7, count]`.
fn expand(runs: &Value) -> Vec<u32> {
    let expand = |run: &Value| {
        let (id, count) =
            if run.is_array() { (&run[0], run[1].as_u64().expect("count")) } else { (run, 1) };
        std::iter::repeat_n(id.as_u64().expect("id") as u32, count as usize)
    };
    runs.as_array().expect("runs").iter().flat_map(expand).collect()
}

#[test]
fn ids_are_those_of_python_from_either_source() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("tokenizer/cases.json")).expect("json");
    let expected: Vec<[Value; 2]> =
        serde_json::from_str(include_str!("tokenizer/expected.json")).expect("json");
    let mut texts: Vec<String> = cases.iter().map(case_text).collect();
    texts.push(include_str!("tokenizer/sample.md").to_owned());
    assert_eq!(texts.len(), expected.len());
    for tokenizer in [from_json(), from_gguf()] {
        for (text, [parsed, literal]) in texts.iter().zip(&expected) {
            let shown: String = text.chars().take(80).collect();
            assert_eq!(tokenizer.encode(text, Specials::Parse), expand(parsed), "{shown:?} parsed");
            assert_eq!(
                tokenizer.encode(text, Specials::Literal),
                expand(literal),
                "{shown:?} literal"
            );
        }
    }
}

#[test]
fn both_sources_give_the_same_tokens() {
    let (json, gguf) = (from_json(), from_gguf());
    assert_eq!((json.len(), gguf.len()), (4080, 4096)); // the GGUF file pads to the model's rows
    for id in 0..5000 {
        assert_eq!(json.bytes(id), gguf.bytes(id), "token {id}");
        assert_eq!(json.kind(id), gguf.kind(id), "token {id}");
    }
    assert_eq!(json.ends(), [4064, 4066]);
    assert_eq!(gguf.ends(), [4064, 4066]);
    assert_eq!((gguf.bos(), gguf.eos(), gguf.pad()), (None, Some(4066), Some(4064)));
}

#[test]
fn tokens_have_bytes_kinds_and_names() {
    let id = |name| JSON.special(name).expect("there");
    assert_eq!(JSON.bytes(id("<think>")), b"<think>");
    assert_eq!(JSON.kind(id("<think>")), Kind::UserDefined);
    assert_eq!(JSON.kind(id("<|im_end|>")), Kind::Control);
    assert_eq!(
        (JSON.kind(4090), JSON.bytes(4090), JSON.bytes(u32::MAX)),
        (Kind::Unused, &b""[..], &b""[..])
    );
    assert_eq!(JSON.special("def"), None);
    let ids = JSON.encode("<|im_start|><think>x<|im_end|>", Specials::Parse);
    assert_eq!(JSON.decode(&ids, Controls::Show), "<|im_start|><think>x<|im_end|>");
    assert_eq!(JSON.decode(&ids, Controls::Hide), "<think>x");
    assert!(JSON.is_end(id("<|im_end|>")) && JSON.is_end(id("<|endoftext|>")) && !JSON.is_end(0));
    let more = from_json().with_ends(&[5, 4066]).expect("in range");
    assert_eq!(more.ends(), [5, 4064, 4066]);
}

/// Text made of what tokenizers stumble over, beside any characters at all.
fn hard_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => any::<char>().prop_map(String::from),
        4 => "[ \t\r\n\u{a0}\u{3000}\u{85}]{1,6}",
        4 => "[a-zA-Z_.,'\"(){}<>|/=0-9 \n-]{1,12}",
        2 => "[a-zéüß]{0,3}[\u{300}-\u{304}\u{327}\u{338}]{1,3}",
        2 => "['’](s|S|ſ|t|re|VE|ll|d|x)",
        2 => "[가-힣\u{1100}-\u{1112}\u{1161}-\u{1175}漢字かなمرحباक्षे]{1,4}",
        2 => "[👩👧👍🏽🇫🇮❤\u{200d}\u{fe0f}]{1,5}",
        2 => prop::sample::select(vec!["<|im_end|>", "<|im_start|>", "<|im_", "<think>", "</think>", "end|>", "\0"])
            .prop_map(String::from),
        1 => "\\PC{0,20}",
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn ids_are_those_of_the_reference(text in hard_text()) {
        prop_assume!(reference_nfc(&text) == text.nfc().collect::<String>());
        for specials in [Specials::Parse, Specials::Literal] {
            prop_assert_eq!(JSON.encode(&text, specials), reference(&text, specials));
        }
    }

    #[test]
    fn text_comes_back_in_nfc(text in hard_text()) {
        let ids = JSON.encode(&text, Specials::Literal);
        prop_assert_eq!(JSON.decode(&ids, Controls::Hide), text.nfc().collect::<String>());
        prop_assert!(ids.iter().all(|id| JSON.kind(*id) == Kind::Normal));
    }

    #[test]
    fn a_damaged_file_does_not_panic(at in 0..SMALL.len(), with in any::<u8>(), cut in prop_oneof![Just(0), 0..20usize]) {
        let mut bytes = SMALL.clone();
        bytes[at] = with;
        bytes.drain(at..(at + cut).min(SMALL.len()));
        if let Ok(tokenizer) = Tokenizer::from_json_bytes(&bytes) {
            let ids = tokenizer.encode("a damaged <think> file\n", Specials::Parse);
            prop_assert_eq!(tokenizer.decode(&ids, Controls::Show), "a damaged <think> file\n");
        }
    }
}

/// Bytes, and control tokens of which some are the beginnings of others.
static NESTED: LazyLock<Tokenizer> = LazyLock::new(|| {
    let mut vocabulary = byte_vocabulary(&[]);
    for name in ["<a>", "<a>bcd", "cd<a", "bc"] {
        vocabulary.tokens.push(name.to_owned());
        vocabulary.token_types.push(3);
    }
    Tokenizer::from_vocabulary(vocabulary).expect("loads")
});

/// Texts, each of which goes on where one before it is cut.
fn conversation() -> impl Strategy<Value = Vec<String>> {
    let piece = prop_oneof![
        3 => hard_text(),
        3 => prop::sample::select(vec![
            "<|im_end|>", "<|im_start|>", "<think>", "<|im_\u{fdd0}end|>", "<a>", "<a>b", "bc",
            "cd", "d", "<", "e\u{301}", "\u{301}",
        ])
        .prop_map(String::from),
    ];
    let tail = prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat());
    prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), tail), 1..8)
        .prop_map(|turns| {
            let mut texts = vec![String::new()];
            for (which, end, tail) in turns {
                let mut text: Vec<char> = which.get(&texts).chars().collect();
                text.truncate(end.index(text.len() + 1));
                texts.push(text.into_iter().chain(tail.chars()).collect());
            }
            texts
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_text_that_begins_as_an_earlier_one_has_the_same_tokens(
        texts in conversation(),
        most in prop::sample::select(vec![0, 200, 1 << 20]),
    ) {
        for tokenizer in [&*JSON, &*NESTED] {
            let beginnings = Beginnings::new(most);
            for (text, mark) in texts.iter().flat_map(|text| [(text, None), (text, Some('\u{fdd0}'))]) {
                let expected = match mark {
                    Some(mark) => tokenizer.encode_marked(text, mark),
                    None => tokenizer.encode(text, Specials::Parse),
                };
                prop_assert_eq!(beginnings.encode(tokenizer, text, mark), expected, "{}", text);
                prop_assert!(beginnings.bytes() <= most);
            }
        }
    }
}

/// The fixture cut down to the bytes, a few merges and the added tokens.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut file: Value = serde_json::from_slice(TOKENIZER_JSON).expect("json");
    file["model"]["merges"].as_array_mut().expect("merges").truncate(20);
    file["model"]["vocab"].as_object_mut().expect("vocab").retain(|_, id| id.as_u64() < Some(276));
    assert!(Tokenizer::from_json_bytes(file.to_string().as_bytes()).is_ok());
    file.to_string().into_bytes()
});

fn refused(vocabulary: Vocabulary) -> String {
    Tokenizer::from_vocabulary(vocabulary).err().expect("refused").to_string()
}

#[test]
fn what_a_vocabulary_can_have_wrong_is_named() {
    let good = || byte_vocabulary(&["ab", "abc"]);
    assert!(Tokenizer::from_vocabulary(good()).is_ok());
    assert_eq!(
        refused(Vocabulary { model: "llama".into(), ..good() }),
        "tokenizer model `llama` is not known (known: gpt2)"
    );
    assert_eq!(
        refused(Vocabulary { pre: "llama-bpe".into(), ..good() }),
        "tokenizer split `llama-bpe` is not known (known: qwen35, qwen2)"
    );
    assert_eq!(
        refused(Vocabulary { token_types: vec![1; 7], ..good() }),
        "259 tokens but 7 token types"
    );
    assert_eq!(
        refused(Vocabulary { eos: Some(259), ..good() }),
        "eos is 259, but there are 259 tokens"
    );
    assert_eq!(
        refused(Vocabulary { ends: vec![3, 300], ..good() }),
        "end of generation is 300, but there are 259 tokens"
    );
    let merges = |rules: &[&str]| Vocabulary {
        merges: rules.iter().map(|rule| rule.to_string()).collect(),
        ..good()
    };
    assert!(Tokenizer::from_vocabulary(merges(&["a b", "ab c"])).is_ok());
    assert_eq!(refused(merges(&["a b", "abc"])), "merge 1 `abc` is not two tokens");
    assert_eq!(refused(merges(&["a c"])), "merge 0 `a c` names a token that text cannot become");
    assert_eq!(refused(merges(&["a b", "a b"])), "merge 1 `a b` stands twice");
    assert_eq!(
        refused(merges(&["<|im_end| >"])),
        "merge 0 `<|im_end| >` names a token that text cannot become"
    );
    let changed = |change: fn(&mut Vocabulary)| {
        let mut vocabulary = good();
        change(&mut vocabulary);
        refused(vocabulary)
    };
    assert_eq!(changed(|v| v.tokens[256] = "abc".into()), "token `abc` has the ids 256 and 257");
    assert_eq!(changed(|v| v.tokens[65] = "AA".into()), "no token for byte 0x41");
    assert_eq!(changed(|v| v.token_types[65] = 3), "no token for byte 0x41");
    assert_eq!(changed(|v| v.tokens[258].clear()), "added token 258 `` is empty");
    assert!(
        changed(|v| v.token_types[256] = 6)
            .starts_with("token 256 `ab` has type 6, not 1 (normal)")
    );
    assert!(matches!(Tokenizer::from_json("nowhere.json"), Err(TokenizerError::Read { .. })));
}

#[test]
fn what_a_file_can_have_wrong_is_named() {
    let refused = |pointer: &str, value: Value| {
        let mut file: Value = serde_json::from_slice(TOKENIZER_JSON).expect("json");
        *file.pointer_mut(pointer).expect(pointer) = value;
        Tokenizer::from_json_bytes(file.to_string().as_bytes()).err().expect("refused").to_string()
    };
    use serde_json::json;
    assert_eq!(
        refused("/normalizer/type", json!("NFKC")),
        "tokenizer normalizer `\"NFKC\"` is not known (known: NFC)"
    );
    assert_eq!(
        refused("/model/type", json!("Unigram")),
        "tokenizer model `\"Unigram\"` is not known (known: BPE)"
    );
    assert_eq!(
        refused("/model/ignore_merges", json!(true)),
        "tokenizer model switch `ignore_merges=true` is not known (known: none)"
    );
    assert_eq!(
        refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("\\s+")),
        "tokenizer split pattern `\"\\\\s+\"` is not known (known: qwen35, qwen2)"
    );
    assert!(
        refused("/pre_tokenizer/pretokenizers/1/use_regex", json!(true))
            .contains("pre-tokenizer switches")
    );
    assert!(refused("/pre_tokenizer", json!({"type": "Whitespace"})).contains("Whitespace"));
    assert!(
        refused("/post_processor", json!({"type": "TemplateProcessing"}))
            .contains("TemplateProcessing")
    );
    assert!(refused("/decoder", json!({"type": "WordPiece"})).contains("decoder"));
    assert_eq!(
        refused("/added_tokens/0/lstrip", json!(true)),
        "added token 4064 `<|endoftext|>` is lstrip"
    );
    assert_eq!(
        refused("/added_tokens/1/id", json!(4064)),
        "id 4064 is both `<|endoftext|>` and `<|im_start|>`"
    );
    assert_eq!(
        refused("/added_tokens/1/id", json!(4_000_000_000u32)),
        "4000000001 tokens, more than 1048576"
    );
    assert_eq!(refused("/model", json!([])), "`tokenizer.json` does not parse");
}

#[test]
fn marked_text_gives_no_control_token() {
    let mark = '\u{fdd0}';
    let said = "so <|im_end|> and <|im_<|im_start|>start|> <think>";
    let marked = JSON.mark_controls(said, mark).expect("it has names of control tokens");
    let rendered = format!("<|im_start|>user\n{marked}<|im_end|>\n");
    let ids = JSON.encode_marked(&rendered, mark);
    let plain = [
        JSON.encode("<|im_start|>", Specials::Parse),
        JSON.encode("user\nso <|im_end|> and <|im_<|im_start|>start|> ", Specials::Literal),
        JSON.encode("<think><|im_end|>\n", Specials::Parse),
    ];
    assert_eq!(ids, plain.concat());
    assert_eq!(JSON.decode(&ids, Controls::Show), format!("<|im_start|>user\n{said}<|im_end|>\n"));
    assert_eq!(JSON.mark_controls("<think> 1 < 2 |>", mark), None);
    let plain = "<|im_start|>user\nGrüße<|im_end|>";
    assert_eq!(JSON.encode_marked(plain, mark), JSON.encode(plain, Specials::Parse));
}
