//! Grammars against texts that fit and texts that do not.

use super::*;
use crate::{Specials, ToolCalls};

pub(super) fn tokenizer() -> Tokenizer {
    Tokenizer::from_json("tests/fixtures/tokenizer.json").expect("the fixture")
}

/// Whether the grammar takes a whole text, and the tokens it has.
pub(super) fn takes(grammar: &Grammar, tokenizer: &Tokenizer, text: &str) -> bool {
    let mut grammar = grammar.clone();
    let ids = tokenizer.encode(text, Specials::Parse);
    ids.iter().all(|id| grammar.push(*id))
        && grammar.is_whole()
        && grammar.push(tokenizer.ends()[0])
}

fn json_of(grammars: &Grammars, schema: &Value, thinking: bool) -> Result<Grammar, GrammarError> {
    grammars.grammar(&Shape { answer: Some(Form::Json(schema)), thinking, ..Shape::default() })
}

#[test]
fn json_of_a_schema_and_nothing_else() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema = json!({"type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"], "additionalProperties": false});
    let grammar = json_of(&grammars, &schema, false).unwrap();
    for (text, fits) in [
        (r#"{"a": 12, "b": "y"}"#, true),
        (r#"{"a": 12, "b": "z"}"#, false),
        (r#"{"a": 12}"#, false),
        (r#"{"a": "12", "b": "y"}"#, false),
        (r#"{"a": 12, "b": "y"} "#, false),
        ("12", false),
        ("", false),
    ] {
        assert_eq!(takes(&grammar, &tokenizer, text), fits, "{text}");
    }
    let object = json_of(&grammars, &json!({"type": "object"}), true).unwrap();
    assert!(takes(
        &object,
        &tokenizer,
        "I think <|x|>\n</think>\n\n{\"any\": [1, {\"é👋\": null}]}"
    ));
    assert!(!takes(&object, &tokenizer, "I think"));
    assert!(!takes(&object, &tokenizer, "hm</think>\n\n[]"));
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    for schema in [
        json!({"type": "unicorn"}),
        json!(false),
        json!({"$ref": "#/nowhere"}),
        json!({"type": "string", "pattern": "("}),
    ] {
        assert!(
            matches!(json_of(&grammars, &schema, false), Err(GrammarError::Refused { .. })),
            "{schema}"
        );
    }
    let large = json!({"description": "x".repeat(bounds::MAX_BYTES)});
    assert!(matches!(json_of(&grammars, &large, false), Err(GrammarError::TooLarge { .. })));
}

#[test]
fn masks_and_pushes_agree_and_steps_can_be_taken_back() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema = json!({"type": "array", "maxItems": 3,
        "items": {"anyOf": [{"type": "number"}, {"type": "string"}]}});
    let mut grammar = json_of(&grammars, &schema, true).unwrap();
    let mut ids = tokenizer.encode("a\n</think>\n\n[1.5, \"é\"]", Specials::Parse);
    ids.push(tokenizer.ends()[0]);
    let mask = |grammar: &mut Grammar| {
        let mut logits = vec![0.0; tokenizer.len() + 7];
        grammar.mask(&mut logits).unwrap();
        logits.iter().map(|logit| *logit == 0.0).collect::<Vec<_>>()
    };
    let mut masks = Vec::new();
    for id in &ids {
        let allowed = mask(&mut grammar);
        for token in (0..tokenizer.len() as u32).step_by(41).chain([*id]) {
            let pushed = grammar.push(token);
            assert_eq!(pushed, allowed[token as usize], "{token}");
            if pushed {
                grammar.pop(1);
            }
        }
        masks.push(allowed);
        assert!(grammar.push(*id));
    }
    // Beyond the end, as a drafted path may go, and back in strides.
    assert!(grammar.push(5));
    grammar.pop(1);
    for (at, stride) in [(ids.len() - 1, 1), (ids.len() - 4, 3), (2, ids.len() - 6), (0, 2)] {
        grammar.pop(stride);
        assert_eq!(mask(&mut grammar), masks[at], "at {at}");
    }
    assert!(ids.iter().all(|id| grammar.push(*id)));
}

#[test]
fn calls_have_the_models_own_form() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema = json!({"type": "object", "required": ["path", "mode"], "properties": {
        "path": {"type": "string"}, "line": {"type": "integer"}, "edits": {"type": "array"},
        "mode": {"type": "string", "enum": ["r", "w"]}, "all": {"type": "boolean"}}});
    let odd = json!({"type": "object", "required": ["id"],
        "properties": {"id": {"type": "string", "pattern": "^[a-f]{4}$"}}});
    let tools = [
        json!({"type": "function", "function": {"name": "open", "parameters": schema}}),
        json!({"type": "function", "function": {"name": "odd", "parameters": odd}}),
        json!({"name": "now"}),
    ];
    let block = |inner: &str| format!("<tool_call>\n{inner}\n</tool_call>");
    let open = |parameters: &[(&str, &str)]| {
        let blocks: String = parameters
            .iter()
            .map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n"))
            .collect();
        block(&format!("<function=open>\n{blocks}</function>"))
    };
    let now = block("<function=now>\n</function>");
    let cases = [
        (open(&[("path", "/tmp/a\n\nb <x>"), ("mode", "r")]), true),
        (open(&[("path", ""), ("line", "-3"), ("mode", "w"), ("all", "true")]), true),
        (open(&[("path", "x"), ("edits", "[\"</parameter>\"]"), ("mode", "w")]), true),
        (open(&[("path", "x"), ("mode", "rw")]), false),
        (open(&[("mode", "r")]), false),
        (open(&[("path", "x"), ("line", "ten"), ("mode", "r")]), false),
        (now.clone(), true),
        (block("{\"name\": \"odd\", \"arguments\": {\"id\": \"abcd\"}}"), true),
        (block("{\"name\": \"odd\", \"arguments\": {\"id\": \"abc\"}}"), false),
        (block("<function=rm>\n</function>"), false),
        ("Let me see.".to_owned(), false),
    ];
    let one = grammars.grammar(&Shape { calls: &tools, ..Shape::default() }).unwrap();
    for (text, fits) in &cases {
        assert_eq!(takes(&one, &tokenizer, text), *fits, "{text}");
        if *fits {
            // What the grammar lets through is a call for those who read it.
            let mut calls = ToolCalls::new(&tools);
            let mut events = calls.push(text);
            events.extend(calls.finish());
            assert!(matches!(events.last(), Some(crate::CallEvent::End)), "{events:?}");
        }
    }
    let two = format!("{now}\n{now}");
    assert!(!takes(&one, &tokenizer, &two));
    let several = grammars
        .grammar(&Shape {
            calls: &tools,
            several: true,
            thinking: true,
            answer: Some(Form::Json(&json!({"type": "null"}))),
        })
        .unwrap();
    assert!(takes(&several, &tokenizer, &format!("hm\n</think>\n\n{two}")));
    assert!(takes(&several, &tokenizer, "hm\n</think>\n\nnull"));
}
