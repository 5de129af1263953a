//! Tool calls in generated text, while it arrives: `<tool_call>` around either `<function=NAME>`
//! with `<parameter=KEY>` blocks, whose values get the types that the tool's schema gives them, or
//! a JSON object with `name` and `arguments`. What is neither stays text.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::stops::overlap;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Bytes of a function's or a parameter's name at most; a longer one is no name.
const MAX_NAME: usize = 256;

/// What was found. However the text was cut, the events put together are the same: texts and
/// arguments may come in other pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Text outside calls.
    Text(String),
    /// A call of the function of this name begins.
    Begin(String),
    /// More of its arguments: a piece of a JSON object.
    Arguments(String),
    /// The call is whole, and so is the object.
    End,
}

/// Finds calls in a text that comes in pieces.
///
/// ```
/// use text::{CallEvent, ToolCalls};
/// let mut calls = ToolCalls::new(&[]);
/// let call = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
/// let events = calls.push(call);
/// let arguments = CallEvent::Arguments("{\"a\":1}".into());
/// assert_eq!(events, [CallEvent::Begin("f".into()), arguments, CallEvent::End]);
/// ```
#[derive(Clone, Debug)]
pub struct ToolCalls {
    /// `properties` of each function's parameters.
    properties: HashMap<String, Map<String, Value>>,
    place: Place,
    /// Text not yet understood.
    held: String,
    /// Bytes of it that were understood since the last piece came: taking each out at once would
    /// move the rest as often.
    at: usize,
    /// Whether there was a call, so that white space at the end is no text.
    any: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Outside,
    /// After `<tool_call>`.
    Opened,
    /// Inside a JSON object, so far scanned.
    Json(Scan),
    /// Inside `<function=...>`, between parameters.
    Function(Function),
    /// Inside a parameter.
    Value(Function, Parameter),
    /// After `</function>`.
    Closing,
}

#[derive(Clone, Debug, Default)]
struct Function {
    name: String,
    seen: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Parameter {
    key: String,
    types: Types,
    /// A value that can only be a string is passed on while it arrives; whether that has begun.
    begun: bool,
    /// The second value of a key is left out.
    ignored: bool,
    /// Bytes among which its end does not begin.
    searched: usize,
}

/// Where the end of a JSON object is being looked for.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// What a schema lets a value be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Types {
    /// Text, whatever it looks like.
    String,
    /// JSON of one of these types; text where it is none and text may be.
    Json(Vec<String>),
    /// JSON where it is some, else text.
    Any,
}

impl ToolCalls {
    /// For answers to a prompt that offered `tools`, in OpenAI's form: `{"type": "function",
    /// "function": {...}}`, or the inner object alone.
    pub fn new(tools: &[Value]) -> Self {
        let properties = tools.iter().filter_map(|tool| {
            let function = tool.get("function").unwrap_or(tool);
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            Some((
                function.get("name")?.as_str()?.to_owned(),
                properties.cloned().unwrap_or_default(),
            ))
        });
        let properties = properties.collect();
        Self { properties, place: Place::Outside, held: String::new(), at: 0, any: false }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<CallEvent> {
        self.held.push_str(piece);
        let mut events = Vec::new();
        while self.advance(&mut events) {}
        self.held.drain(..std::mem::take(&mut self.at));
        events
    }

    /// Text not yet understood.
    fn rest(&self) -> &str {
        &self.held[self.at..]
    }

    /// The rest, when no more text comes. A call that was cut inside a value has no end, and its
    /// arguments are not whole.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        match std::mem::replace(&mut self.place, Place::Outside) {
            Place::Outside => {
                let rest = std::mem::take(&mut self.held);
                let nothing = if self.any { rest.trim().is_empty() } else { rest.is_empty() };
                if !nothing {
                    events.push(CallEvent::Text(rest));
                }
            }
            Place::Opened | Place::Json(_) => {
                let rest = std::mem::take(&mut self.held);
                events.push(CallEvent::Text(format!("{OPEN}{rest}")));
            }
            Place::Function(function) => end_function(&function, &mut events),
            Place::Value(_, parameter) if parameter.begun && !parameter.ignored => {
                let rest = std::mem::take(&mut self.held);
                events.push(CallEvent::Arguments(escaped(&rest)));
            }
            Place::Value(..) | Place::Closing => {}
        }
        self.held.clear();
        events
    }

    /// One step through `held`; whether there may be more.
    fn advance(&mut self, events: &mut Vec<CallEvent>) -> bool {
        match std::mem::replace(&mut self.place, Place::Outside) {
            Place::Outside => self.outside(events),
            Place::Opened => self.opened(events),
            Place::Json(scan) => self.json(scan, events),
            Place::Function(function) => self.function(function, events),
            Place::Value(function, parameter) => self.value(function, parameter, events),
            Place::Closing => self.closing(),
        }
    }

    fn outside(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let (sure, found) = match self.rest().find(OPEN) {
            Some(at) => (at, true),
            None => (self.rest().len() - overlap(self.rest(), OPEN), false),
        };
        // White space before a call belongs to it.
        let text = self.rest()[..sure].trim_end().len();
        if text > 0 {
            events.push(CallEvent::Text(self.rest()[..text].to_owned()));
        }
        self.at += if found { sure + OPEN.len() } else { text };
        if found {
            self.place = Place::Opened;
        }
        found
    }

    fn opened(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let begun = self.rest().trim_start();
        let skipped = self.rest().len() - begun.len();
        if begun.starts_with('{') {
            self.place = Place::Json(Scan { at: skipped, ..Scan::default() });
            return true;
        }
        match tag(begun, FUNCTION) {
            Tag::Whole(name, length) => {
                let name = name.to_owned();
                self.at += skipped + length;
                self.any = true;
                events.push(CallEvent::Begin(name.clone()));
                self.place = Place::Function(Function { name, ..Function::default() });
                true
            }
            Tag::Partial => {
                self.place = Place::Opened;
                false
            }
            Tag::Other => {
                events.push(CallEvent::Text(OPEN.to_owned()));
                true
            }
        }
    }

    fn json(&mut self, mut scan: Scan, events: &mut Vec<CallEvent>) -> bool {
        let Some(end) = scan.find_end(self.rest().as_bytes()) else {
            self.place = Place::Json(scan);
            return false;
        };
        match json_call(&self.rest()[..end]) {
            Some((name, arguments)) => {
                self.at += end;
                self.any = true;
                let arguments = Value::Object(arguments).to_string();
                events.extend([
                    CallEvent::Begin(name),
                    CallEvent::Arguments(arguments),
                    CallEvent::End,
                ]);
                self.place = Place::Closing;
            }
            None => events.push(CallEvent::Text(OPEN.to_owned())),
        }
        true
    }

    fn function(&mut self, mut function: Function, events: &mut Vec<CallEvent>) -> bool {
        // What stands between parameters means nothing.
        self.at += self.rest().find('<').unwrap_or(self.rest().len());
        if self.rest().is_empty() {
            self.place = Place::Function(function);
            return false;
        }
        for (end, place) in [(FUNCTION_END, Place::Closing), (CLOSE, Place::Outside)] {
            if self.rest().starts_with(end) {
                self.at += end.len();
                end_function(&function, events);
                self.place = place;
                return true;
            }
        }
        match tag(self.rest(), PARAMETER) {
            Tag::Whole(key, length) => {
                let key = key.to_owned();
                self.at += length;
                let types = self.types(&function.name, &key);
                let ignored = !function.seen.insert(key.clone());
                self.place = Place::Value(
                    function,
                    Parameter { key, types, begun: false, ignored, searched: 0 },
                );
                true
            }
            Tag::Partial => {
                self.place = Place::Function(function);
                false
            }
            Tag::Other
                if FUNCTION_END.starts_with(self.rest()) || CLOSE.starts_with(self.rest()) =>
            {
                self.place = Place::Function(function);
                false
            }
            Tag::Other => {
                self.at += 1;
                self.place = Place::Function(function);
                true
            }
        }
    }

    fn value(
        &mut self,
        function: Function,
        mut parameter: Parameter,
        events: &mut Vec<CallEvent>,
    ) -> bool {
        let first = function.seen.len() == 1;
        if let Some(at) = self.rest()[parameter.searched..].find(PARAMETER_END) {
            let at = parameter.searched + at;
            let value = &self.rest()[..at];
            let value = value.strip_suffix('\n').unwrap_or(value);
            if !parameter.ignored && parameter.begun {
                events.push(CallEvent::Arguments(escaped(value) + "\""));
            } else if !parameter.ignored {
                let value = parameter.types.read(value.strip_prefix('\n').unwrap_or(value));
                events.push(CallEvent::Arguments(format!(
                    "{}{value}",
                    opening(&parameter.key, first)
                )));
            }
            self.at += at + PARAMETER_END.len();
            self.place = Place::Function(function);
            return true;
        }
        parameter.searched = self.rest().len() - overlap(self.rest(), PARAMETER_END);
        if parameter.types == Types::String && !parameter.ignored {
            // The line break that may come before the end of the value is not part of it.
            let ends_in_break = self.rest()[..parameter.searched].ends_with('\n');
            let sure = parameter.searched - usize::from(ends_in_break);
            // A line break at the very beginning is none either, and until something follows it,
            // nobody knows whether it is the one at the end.
            if sure > 0 {
                let mut text = String::new();
                let mut from = 0;
                if !parameter.begun {
                    text = opening(&parameter.key, first) + "\"";
                    from = usize::from(self.rest().starts_with('\n'));
                    parameter.begun = true;
                }
                text += &escaped(&self.rest()[from..sure]);
                events.push(CallEvent::Arguments(text));
                self.at += sure;
                parameter.searched -= sure;
            }
        }
        self.place = Place::Value(function, parameter);
        false
    }

    fn closing(&mut self) -> bool {
        let begun = self.rest().trim_start();
        let skipped = self.rest().len() - begun.len();
        if begun.starts_with(CLOSE) {
            self.at += skipped + CLOSE.len();
            return true;
        }
        if begun.starts_with(FUNCTION) {
            // Another call in the same block.
            self.place = Place::Opened;
            return true;
        }
        if CLOSE.starts_with(begun) || FUNCTION.starts_with(begun) {
            self.place = Place::Closing;
            return false;
        }
        true
    }

    fn types(&self, function: &str, key: &str) -> Types {
        match self.properties.get(function).and_then(|properties| properties.get(key)) {
            Some(schema) => Types::of(schema),
            None => Types::String,
        }
    }
}

fn end_function(function: &Function, events: &mut Vec<CallEvent>) {
    let end = if function.seen.is_empty() { "{}" } else { "}" };
    events.extend([CallEvent::Arguments(end.to_owned()), CallEvent::End]);
}

/// What comes before the value of a key.
fn opening(key: &str, first: bool) -> String {
    format!("{}{}:", if first { "{" } else { "," }, Value::from(key))
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

enum Tag<'a> {
    /// Its name and its length.
    Whole(&'a str, usize),
    /// More text may make it one.
    Partial,
    Other,
}

/// The tag `<what=NAME>` at the beginning of `text`.
fn tag<'a>(text: &'a str, start: &str) -> Tag<'a> {
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

/// Name and arguments of `{"name": ..., "arguments": {...}}`; the arguments may be such an object
/// in a string.
fn json_call(text: &str) -> Option<(String, Map<String, Value>)> {
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

impl Scan {
    /// The end of the object that begins where the scan began, once it is there.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        while self.at < bytes.len() {
            let byte = bytes[self.at];
            self.at += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl Types {
    fn of(schema: &Value) -> Self {
        let mut types = Vec::new();
        collect_types(schema, &mut types, 0);
        match types.as_slice() {
            [] => Self::Any,
            all if all.iter().all(|t| t == "string") => Self::String,
            _ => Self::Json(types),
        }
    }

    /// The value that a text stands for; text where it stands for nothing that may be.
    fn read(&self, text: &str) -> Value {
        let string = || Value::from(text);
        let parsed = || serde_json::from_str::<Value>(text.trim()).ok();
        match self {
            Self::String => string(),
            Self::Any => parsed().filter(|value| !value.is_string()).unwrap_or_else(string),
            Self::Json(types) => {
                let allowed =
                    |value: &Value| types.iter().any(|t| t != "string" && is_of_type(value, t));
                let python = match text.trim() {
                    "True" => Some(Value::Bool(true)),
                    "False" => Some(Value::Bool(false)),
                    "None" => Some(Value::Null),
                    _ => None,
                };
                parsed().filter(allowed).or(python.filter(allowed)).unwrap_or_else(string)
            }
        }
    }
}

/// The types that a schema allows, through `anyOf` and its like, `const` and `enum`.
fn collect_types(schema: &Value, types: &mut Vec<String>, depth: usize) {
    if depth > 8 {
        return;
    }
    match schema.get("type") {
        Some(Value::String(one)) => types.push(one.clone()),
        Some(Value::Array(several)) => {
            types.extend(several.iter().filter_map(Value::as_str).map(str::to_owned))
        }
        _ => {
            for several in ["anyOf", "oneOf", "allOf"] {
                let inner = schema.get(several).and_then(Value::as_array);
                inner
                    .into_iter()
                    .flatten()
                    .for_each(|inner| collect_types(inner, types, depth + 1));
            }
            let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            types.extend(values.chain(schema.get("const")).map(|value| type_of(value).to_owned()));
        }
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    let found = type_of(value);
    let whole = || value.as_f64().is_some_and(|x| x.fract() == 0.0);
    found == name
        || (name == "number" && found == "integer")
        || (name == "integer" && found == "number" && whole())
}

#[cfg(test)]
#[path = "tool_calls_tests.rs"]
mod tests;
