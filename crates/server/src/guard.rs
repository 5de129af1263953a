//! What a client says is text, whatever it looks like: names of control tokens in messages and
//! tools do not become those tokens.

use crate::error::ApiError;
use serde_json::{Map, Value};
use text::Tokenizer;

/// Marks the names of control tokens in every string of `said`, and tells with which character; no
/// mark is needed where there is no such name.
pub(crate) fn mark(said: &mut Value, tokenizer: &Tokenizer) -> Result<Option<char>, ApiError> {
    if !any(said, &|text| tokenizer.mark_controls(text, '\0').is_some()) {
        return Ok(None);
    }
    let mark = unused(said)?;
    replace(said, &|text| tokenizer.mark_controls(text, mark));
    Ok(Some(mark))
}

/// Marks the end of the string at `pointer`, and tells with which character: what a template writes
/// after it is not part of that string.
pub(crate) fn break_off(said: &mut Value, pointer: &str) -> Result<char, ApiError> {
    let mark = unused(said)?;
    if let Some(Value::String(text)) = said.pointer_mut(pointer) {
        text.push(mark);
    }
    Ok(mark)
}

/// A noncharacter that is not in `said`: no text has them, but somebody might try.
fn unused(said: &Value) -> Result<char, ApiError> {
    let mark = ('\u{fdd0}'..='\u{fdef}').find(|mark| !any(said, &|text| text.contains(*mark)));
    mark.ok_or_else(|| {
        ApiError::field("messages", "`messages` has control tokens among noncharacters")
    })
}

/// Whether a string of `value` is such; names of fields are strings as well.
fn any(value: &Value, such: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => such(text),
        Value::Array(items) => items.iter().any(|item| any(item, such)),
        Value::Object(fields) => fields.iter().any(|(name, item)| such(name) || any(item, such)),
        _ => false,
    }
}

fn replace(value: &mut Value, with: &dyn Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(other) = with(text) {
                *text = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, with)),
        Value::Object(fields) => {
            let renamed = std::mem::take(fields).into_iter().map(|(name, mut item)| {
                replace(&mut item, with);
                (with(&name).unwrap_or(name), item)
            });
            *fields = renamed.collect::<Map<_, _>>();
        }
        _ => {}
    }
}
