//! The arguments of an earlier call. An answer that was cut by its length leaves half an object,
//! which comes back with the conversation; it is read as far as it goes.

use serde_json::{Map, Value};

/// The object in `text`. Half an object is closed where it ends; what is none at all stands under
/// `arguments`.
pub(crate) fn read(text: &str) -> Map<String, Value> {
    if text.trim().is_empty() {
        return Map::new();
    }
    let whole = serde_json::from_str::<Value>(text).ok().or_else(|| close(text));
    match whole {
        Some(Value::Object(object)) => object,
        Some(other) => Map::from_iter([("arguments".to_owned(), other)]),
        None => Map::from_iter([("arguments".to_owned(), Value::String(text.to_owned()))]),
    }
}

/// Half a JSON text made whole: its open strings and brackets are closed, and a value or a name
/// that is not there yet is left out.
fn close(text: &str) -> Option<Value> {
    let mut open: Vec<char> = Vec::new();
    // Where the text could be cut so that it needs nothing but brackets.
    let mut safe = 0;
    // Whether this is inside a string, and where an escape in it began.
    let (mut string, mut escape) = (false, None);
    for (at, c) in text.char_indices() {
        if string {
            match (escape, c) {
                (Some(begun), 'u') if begun + 1 == at => {}
                (Some(begun), _) if text[begun..].starts_with("\\u") && at < begun + 5 => {}
                (Some(_), _) => escape = None,
                (None, '\\') => escape = Some(at),
                (None, '"') => string = false,
                (None, _) => {}
            }
            continue;
        }
        match c {
            '"' => string = true,
            '{' | '[' => {
                open.push(if c == '{' { '}' } else { ']' });
                safe = at + 1;
            }
            '}' | ']' => {
                open.pop();
                safe = at + 1;
            }
            ',' => safe = at,
            _ => {}
        }
        if open.len() > 128 {
            return None;
        }
    }
    let brackets: String = open.iter().rev().collect();
    let closed = |end: usize, quote: &str| {
        serde_json::from_str(&format!("{}{quote}{brackets}", &text[..end])).ok()
    };
    let quote = if string { "\"" } else { "" };
    closed(escape.unwrap_or(text.len()), quote).or_else(|| closed(safe, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn half_an_object_is_read_as_far_as_it_goes() {
        for (text, object) in [
            ("", json!({})),
            ("{\"a\": [1, {\"b\": 2}]}", json!({"a": [1, {"b": 2}]})),
            ("{", json!({})),
            ("{\"a", json!({})),
            ("{\"a\":", json!({})),
            ("{\"a\": tr", json!({})),
            ("{\"a\": 12", json!({"a": 12})),
            ("{\"a\": 1, \"b\": -", json!({"a": 1})),
            ("{\"a\": 1, \"b\": \"x y", json!({"a": 1, "b": "x y"})),
            ("{\"a\": \"x\\", json!({"a": "x"})),
            ("{\"a\": \"x\\n\\u00", json!({"a": "x\n"})),
            ("{\"a\": \"x\\u00e9 {[,", json!({"a": "xé {[,"})),
            ("{\"a\": [1, 2", json!({"a": [1, 2]})),
            ("{\"a\": [1, {\"b\": \"c\"}, ", json!({"a": [1, {"b": "c"}]})),
            ("[1]", json!({"arguments": [1]})),
            ("not JSON", json!({"arguments": "not JSON"})),
            ("{\"a\": 1}}", json!({"arguments": "{\"a\": 1}}"})),
        ] {
            assert_eq!(json!(read(text)), object, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_of_an_object_is_an_object(
            value in "[a-z\"\\\\\n{}\\[\\],:é]{0,12}", number in any::<i32>(), cut in 1_usize..80,
        ) {
            let whole = json!({"path": value, "n": [number, {"deep": value}], "last": null}).to_string();
            let cut = (cut.min(whole.len())..=whole.len()).find(|at| whole.is_char_boundary(*at)).unwrap();
            let read = read(&whole[..cut]);
            prop_assert!(!read.contains_key("arguments"), "{}", &whole[..cut]);
        }
    }
}
