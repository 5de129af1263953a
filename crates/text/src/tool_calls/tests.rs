//! The tool-call parser on both formats, on what is nearly a call, and on any cut of either.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Text and calls (name, arguments, whether whole) of a sequence of events.
#[derive(Debug, Default, PartialEq)]
struct Found {
    text: String,
    calls: Vec<(String, String, bool)>,
}

fn weather() -> Vec<Value> {
    vec![json!({"type": "function", "function": {"name": "weather", "parameters": {"properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "at": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "scale": {"type": ["number", "string"]},
        "kind": {"enum": ["a", "b"]}, "any": {}
    }}}})]
}

fn parse<S: AsRef<str>>(pieces: impl IntoIterator<Item = S>) -> Found {
    let mut calls = ToolCalls::new(&weather());
    let mut events: Vec<CallEvent> =
        pieces.into_iter().flat_map(|piece| calls.push(piece.as_ref())).collect();
    events.extend(calls.finish());
    let mut found = Found::default();
    for event in events {
        match event {
            CallEvent::Text(text) => found.text += &text,
            CallEvent::Begin(name) => found.calls.push((name, String::new(), false)),
            CallEvent::Arguments(text) => found.calls.last_mut().unwrap().1 += &text,
            CallEvent::End => found.calls.last_mut().unwrap().2 = true,
        }
    }
    found
}

fn arguments(text: &str) -> Value {
    let found = parse([text]);
    assert_eq!(found.calls.len(), 1, "{found:?}");
    assert!(found.calls[0].2, "{found:?}");
    serde_json::from_str(&found.calls[0].1).unwrap()
}

fn call(parameters: &[(&str, &str)]) -> String {
    let block = |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let blocks: String = parameters.iter().map(block).collect();
    format!("<tool_call>\n<function=weather>\n{blocks}</function>\n</tool_call>")
}

#[test]
fn values_have_the_types_of_the_schema() {
    let text = call(&[
        ("city", "12"),
        ("days", "3"),
        ("exact", "True"),
        ("at", "{\"x\": [1, 2]}"),
        ("scale", "warm"),
        ("kind", "a"),
        ("any", "1.5"),
        ("unknown", "7"),
    ]);
    let expected = json!({"city": "12", "days": 3, "exact": true, "at": {"x": [1, 2]},
        "scale": "warm", "kind": "a",
        "any": 1.5, "unknown": "7"});
    assert_eq!(arguments(&text), expected);
    assert_eq!(
        arguments(&call(&[("scale", "2"), ("at", "null")])),
        json!({"scale": 2, "at": null})
    );
    assert_eq!(
        arguments(&call(&[("days", "soon"), ("any", "soon")])),
        json!({"days": "soon", "any": "soon"})
    );
    assert_eq!(arguments(&call(&[])), json!({}));
}

#[test]
fn whole_numbers_keep_their_digits() {
    let long = "-123456789012345678901";
    let found = parse([call(&[("days", long), ("scale", long), ("any", long)])]);
    let expected = format!(r#"{{"days":{long},"scale":{long},"any":"{long}"}}"#);
    assert_eq!(found.calls, [("weather".into(), expected, true)]);
}

#[test]
fn strings_keep_their_lines() {
    let value = "\nfirst\n\n  \"second\" \\ </param\n\tthird\n";
    assert_eq!(arguments(&call(&[("city", value)])), json!({"city": value}));
    assert_eq!(arguments(&call(&[("city", "")])), json!({"city": ""}));
    assert_eq!(
        arguments(
            "<tool_call><function=weather><parameter=city>Rome</parameter></function></tool_call>"
        ),
        json!({"city": "Rome"})
    );
}

#[test]
fn json_calls_are_read() {
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>{\", \"b\": {\"c\": []}}}\n</tool_call>";
    let found = parse([one]);
    assert_eq!(found.text, "");
    assert_eq!(found.calls, [("f".into(), r#"{"a":"}</tool_call>{","b":{"c":[]}}"#.into(), true)]);
    let string = parse([r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#]);
    assert_eq!(string.calls, [("f".into(), r#"{"a":1}"#.into(), true)]);
    let none = parse([r#"<tool_call>{"name": "f"}</tool_call>"#]);
    assert_eq!(none.calls, [("f".into(), "{}".into(), true)]);
}

#[test]
fn text_and_several_calls_part() {
    let text = format!("Let me look.\n\n{}\n{}\n", call(&[("days", "1")]), call(&[("days", "2")]));
    let found = parse([&text]);
    assert_eq!(found.text, "Let me look.");
    let calls: Vec<&str> = found.calls.iter().map(|c| c.1.as_str()).collect();
    assert_eq!(calls, [r#"{"days":1}"#, r#"{"days":2}"#]);
    assert_eq!(parse(["plain  text \n"]).text, "plain  text \n");
}

#[test]
fn what_is_no_call_stays_text() {
    for text in [
        "a <tool_call> b",
        "<tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>",
        "<tool_call>{not json}",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call><function=\n></function>",
        "</tool_call> x",
    ] {
        let found = parse([text]);
        assert!(found.calls.is_empty(), "{text}: {found:?}");
        let squeeze = |s: &str| s.split_whitespace().collect::<String>();
        assert_eq!(squeeze(&found.text), squeeze(text));
    }
}

#[test]
fn a_call_that_was_cut_is_not_whole() {
    let found = parse(["<tool_call>\n<function=weather>\n<parameter=city>\nRo"]);
    assert_eq!(found.calls, [("weather".into(), "{\"city\":\"Ro".into(), false)]);
    // Nothing but closing tags is missing.
    let found = parse(["<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n"]);
    assert_eq!(found.calls, [("weather".into(), "{\"days\":3}".into(), true)]);
}

#[test]
fn an_end_inside_a_string_of_json_is_none() {
    let edit =
        json!({"old": "<parameter=x>\\\"</parameter></function></tool_call>", "new": ["</"]});
    let text = call(&[("at", &edit.to_string()), ("days", "3")]);
    assert_eq!(arguments(&text), json!({"at": edit, "days": 3}));
    assert_eq!(parse(text.chars().map(String::from)), parse([text]));
    // What only looks like JSON ends all the same.
    for odd in ["{\"a", "\"a", "[\"\\"] {
        assert_eq!(arguments(&call(&[("at", odd), ("days", "3")])), json!({"at": odd, "days": 3}));
    }
}

#[test]
fn a_value_without_its_end_ends_with_the_call() {
    for (key, value) in [("city", json!("a </function> b")), ("days", json!(3))] {
        let raw = value.as_str().map_or(value.to_string(), str::to_owned);
        let one = format!("<tool_call><function=weather><parameter={key}>\n{raw}\n</function>");
        let text = format!("{one}\n</tool_call>{one}</tool_call>");
        let found = parse([&text]);
        let expected = ("weather".to_owned(), json!({key: value}).to_string(), true);
        assert_eq!(found.calls, [expected.clone(), expected]);
        assert_eq!(parse(text.chars().map(String::from)), found);
    }
}

#[test]
fn a_second_value_of_a_key_is_left_out() {
    assert_eq!(
        arguments(&call(&[("city", "a"), ("city", "b"), ("days", "1")])),
        json!({"city": "a", "days": 1})
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_cut_gives_the_same_calls(
        words in proptest::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("<function=weather>"),
            Just("<function=f>"), Just("</function>"), Just("<parameter=city>"),
            Just("<parameter=days>"), Just("</parameter>"), Just("<parameter=at>"), Just("[\""),
            Just("<parameter=any>"), Just("\n"),
            Just("\n"), Just("7"), Just("é\""), Just("<"), Just("{\"name\":"),
            Just("\"f\"}"), Just("}"), Just("<function="), Just(" "),
        ], 0..24),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let text: String = words.concat();
        let whole = parse([&text]);
        let letters = parse(text.chars().map(String::from));
        prop_assert_eq!(&letters, &whole);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|at| text.is_char_boundary(*at));
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for at in places {
            pieces.push(&text[from..at]);
            from = at;
        }
        pieces.push(&text[from..]);
        prop_assert_eq!(&parse(pieces), &whole);
        for (_, arguments, ended) in &whole.calls {
            prop_assert!(!ended || serde_json::from_str::<Map<String, Value>>(arguments).is_ok(), "{}", arguments);
        }
    }
}
