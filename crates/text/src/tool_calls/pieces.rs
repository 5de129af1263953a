//! Pieces of a call that may not have come whole yet: a tag with a name, and a JSON object.

use serde_json::{Map, Value};

/// Bytes of a function's or a parameter's name at most; a longer one is no name.
const MAX_NAME: usize = 256;

/// What the beginning of a text may be: `<what=NAME>`.
pub(super) enum Tag<'a> {
    /// Its name and its length.
    Whole(&'a str, usize),
    /// More text may make it one.
    Partial,
    /// It can become none.
    Other,
}

/// The tag with that start at the beginning of `text`.
pub(super) fn tag<'a>(text: &'a str, start: &str) -> Tag<'a> {
    let Some(rest) = text.strip_prefix(start) else {
        return if start.starts_with(text) { Tag::Partial } else { Tag::Other };
    };
    // No further than a name reaches.
    let end = rest.bytes().take(MAX_NAME + 1).position(|byte| matches!(byte, b'>' | b'\n'));
    match end {
        Some(end)
            if rest[end..].starts_with('>')
                && end <= MAX_NAME
                && !rest[..end].trim().is_empty() =>
        {
            Tag::Whole(rest[..end].trim(), start.len() + end + 1)
        }
        None if rest.len() <= MAX_NAME => Tag::Partial,
        _ => Tag::Other,
    }
}

/// How far some JSON was looked through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// Bytes that were looked at.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// A scan for the object that begins at byte `at`.
    pub(super) fn from(at: usize) -> Self {
        Self { at, ..Self::default() }
    }

    /// The end of the object that begins where the scan began, once it is there.
    pub(super) fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.at < bytes.len() {
            let was_inside = self.depth > 0;
            self.step(bytes[self.at]);
            if was_inside && self.depth == 0 {
                return Some(self.at);
            }
        }
        None
    }

    /// Whether byte `at`, which is not before an earlier one, lies inside a string.
    pub(super) fn is_in_string(&mut self, text: &str, at: usize) -> bool {
        while self.at < at {
            self.step(text.as_bytes()[self.at]);
        }
        self.in_string
    }

    fn step(&mut self, byte: u8) {
        self.at += 1;
        match byte {
            // No string of JSON has one as it is: this was none, or was never closed.
            b'\n' => (self.in_string, self.escaped) = (false, false),
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// Name and arguments of `{"name": ..., "arguments": {...}}`; the arguments may be such an object
/// in a string.
pub(super) fn json_call(text: &str) -> Option<(String, Map<String, Value>)> {
    let mut call: Map<String, Value> = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = match call.remove("arguments").or_else(|| call.remove("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(object)) => object,
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(_) => return None,
    };
    Some((name, arguments))
}
