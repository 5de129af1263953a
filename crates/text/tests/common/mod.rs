//! The tiny models' vocabulary, from both of its sources, and a vocabulary of bytes.
#![allow(dead_code)] // each test program uses its part

use std::path::Path;

use formats::gguf::Gguf;
use text::{Tokenizer, Vocabulary};

pub(crate) const TOKENIZER_JSON: &[u8] = include_bytes!("../fixtures/tokenizer.json");

pub(crate) fn from_json() -> Tokenizer {
    Tokenizer::from_json_bytes(TOKENIZER_JSON).expect("the fixture loads")
}

pub(crate) fn from_gguf() -> Tokenizer {
    Tokenizer::from_vocabulary(gguf_vocabulary().expect("the metadata is there"))
        .expect("the vocabulary loads")
}

pub(crate) fn gguf_vocabulary() -> Result<Vocabulary, Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dense/draft-Q8_0.gguf");
    let file = Gguf::open(Path::new(path))?;
    let strings = |key| -> Result<Vec<String>, Box<dyn std::error::Error>> {
        Ok(file.strings(key)?.ok_or("no strings")?.into_iter().map(str::to_owned).collect())
    };
    let id = |key| file.integer(key).map(|id| id.map(|id| id as u32));
    let token_types = file.integers("tokenizer.ggml.token_type")?.ok_or("no types")?;
    Ok(Vocabulary {
        model: file.string("tokenizer.ggml.model")?.ok_or("no model")?.to_owned(),
        pre: file.string("tokenizer.ggml.pre")?.ok_or("no pre")?.to_owned(),
        tokens: strings("tokenizer.ggml.tokens")?,
        token_types: token_types.into_iter().map(|kind| kind as i32).collect(),
        merges: strings("tokenizer.ggml.merges")?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        pad: id("tokenizer.ggml.padding_token_id")?,
        add_bos: file.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
        ends: vec![],
    })
}

/// Byte `b` is token `b`; then the normal tokens `words`, in ASCII; then `<|im_end|>`.
pub(crate) fn byte_vocabulary(words: &[&str]) -> Vocabulary {
    let printable = |b: &u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut spare = (256..).filter_map(char::from_u32);
    let spell = |b: u8| if printable(&b) { Some(b as char) } else { spare.next() };
    let mut tokens: Vec<String> = (0..=255).filter_map(spell).map(String::from).collect();
    tokens.extend(words.iter().map(|word| word.to_string()));
    let mut token_types = vec![1; tokens.len()];
    tokens.push("<|im_end|>".into());
    token_types.push(3);
    Vocabulary {
        model: "gpt2".into(),
        pre: "qwen35".into(),
        tokens,
        token_types,
        ..Vocabulary::default()
    }
}
