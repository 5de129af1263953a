//! Bodies of all four chat APIs: read to a prompt, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::Reader;
use std::sync::LazyLock;
use text::{ChatTemplate, Tokenizer};

static READER: LazyLock<Reader> = LazyLock::new(|| {
    let tokenizer = Tokenizer::from_json_bytes(include_bytes!(
        "../../crates/text/tests/fixtures/tokenizer.json"
    ));
    let template =
        ChatTemplate::new(include_str!("../../crates/text/tests/fixtures/chat_template.jinja"));
    Reader::new(tokenizer.expect("the fixture"), template.expect("the fixture"))
});

fuzz_target!(|data: &[u8]| {
    for read in [Reader::chat, Reader::responses, Reader::messages] {
        if let Ok(prompt) = read(&READER, data) {
            assert!(!prompt.is_empty());
        }
    }
    if let Ok(Some(prompt)) = READER.ollama(data) {
        assert!(!prompt.is_empty());
    }
});
