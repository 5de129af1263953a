//! Schemas, regular expressions and grammars of clients: compiled or refused, then followed for
//! some tokens. What a mask allows can be pushed, and what was pushed can be taken back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::sync::LazyLock;
use text::{Form, Grammars, Shape, Tokenizer};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bytes = include_bytes!("../../crates/text/tests/fixtures/tokenizer.json");
    Tokenizer::from_json_bytes(bytes).expect("the fixture")
});
static GRAMMARS: LazyLock<Grammars> =
    LazyLock::new(|| Grammars::new(&TOKENIZER).expect("the fixture"));

/// Tokens that are followed at most.
const STEPS: usize = 12;

fn follow(shape: &Shape<'_>, bytes: &[u8]) {
    let Ok(mut grammar) = GRAMMARS.grammar(shape) else { return };
    let mut steps = 0;
    for byte in bytes.iter().cycle().take(STEPS) {
        let mut logits = vec![0.0; TOKENIZER.len()];
        // A grammar may turn out to be too hard.
        if grammar.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<u32> =
            (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(token, _)| token).collect();
        let Some(token) = allowed.get(usize::from(*byte) * 7919 % allowed.len().max(1)) else {
            return;
        };
        if TOKENIZER.is_end(*token) {
            assert!(grammar.is_whole());
            break;
        }
        if !grammar.push(*token) {
            assert!(grammar.mask(&mut logits).is_err(), "token {token} was allowed");
            return;
        }
        steps += 1;
    }
    grammar.pop(steps);
    drop(grammar.clone());
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let answer = |form: Form<'_>| follow(&Shape { answer: Some(form), ..Shape::default() }, bytes);
    match kind % 4 {
        1 => answer(Form::Regex(text)),
        2 => answer(Form::Grammar(text)),
        is_tool => {
            let Ok(schema) = serde_json::from_str::<Value>(text) else { return };
            if is_tool == 0 {
                return answer(Form::Json(&schema));
            }
            let tools =
                [json!({"type": "function", "function": {"name": "f", "parameters": schema}})];
            follow(&Shape { calls: &tools, several: true, ..Shape::default() }, bytes);
        }
    }
});
