//! The parser of tool calls: however a text is cut, the events put together are the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use text::{CallEvent, ToolCalls};

/// Names, whole texts and whole arguments, in order.
fn told(pieces: &[&str], tools: &[Value]) -> Vec<CallEvent> {
    let mut calls = ToolCalls::new(tools);
    let mut events: Vec<CallEvent> = pieces.iter().flat_map(|piece| calls.push(piece)).collect();
    events.extend(calls.finish());
    let mut whole: Vec<CallEvent> = Vec::new();
    for event in events {
        match (whole.last_mut(), event) {
            (Some(CallEvent::Text(text)), CallEvent::Text(more)) => *text += &more,
            (Some(CallEvent::Arguments(text)), CallEvent::Arguments(more)) => *text += &more,
            (_, event) => whole.push(event),
        }
    }
    whole
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let properties = json!({"a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": ["object", "null"]}});
    let tools = [json!({"function": {"name": "f", "parameters": {"properties": properties}}})];
    let once = told(&[&text], &tools);
    let step = usize::from(*cut % 7) + 1;
    let letters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = letters.chunks(step).map(|piece| piece.iter().collect()).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    assert_eq!(told(&pieces, &tools), once);
    // The arguments of a call that has ended are a JSON object.
    for pair in once.windows(2) {
        if let [CallEvent::Arguments(arguments), CallEvent::End] = pair {
            assert!(
                serde_json::from_str::<Value>(arguments).expect("JSON").is_object(),
                "{arguments}"
            );
        }
    }
});
