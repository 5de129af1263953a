//! Tool calls in generated text, while it arrives: `<tool_call>` around either `<function=NAME>`
//! with `<parameter=KEY>` blocks, whose values get the types that the tool's schema gives them, or
//! a JSON object with `name` and `arguments`. What is neither stays text.

mod pieces;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::stops::overlap;
use pieces::{Scan, Tag, json_call, tag};
use types::Types;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

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
    /// Tells what lies inside the strings of a value in JSON.
    scan: Scan,
}

impl Parameter {
    /// Where the value at the beginning of `text` ends, and how long its end tag is. Models forget
    /// that tag: the end of the whole call ends a value as well, and is left for the function.
    fn find_end(&mut self, text: &str) -> Option<(usize, usize)> {
        for (at, _) in text[self.searched..].match_indices("</") {
            let at = self.searched + at;
            let is_json = || text.trim_start().starts_with(['{', '[', '"']);
            if self.types != Types::String && is_json() && self.scan.is_in_string(text, at) {
                continue;
            }
            let tag = &text[at..];
            let after = tag.strip_prefix(FUNCTION_END).map(str::trim_start);
            if tag.starts_with(PARAMETER_END) {
                return Some((at, PARAMETER_END.len()));
            }
            if after.is_some_and(|after| after.starts_with(CLOSE)) {
                return Some((at, 0));
            }
            let may_be = PARAMETER_END.starts_with(tag) || FUNCTION_END.starts_with(tag);
            if may_be || after.is_some_and(|after| CLOSE.starts_with(after)) {
                self.searched = at;
                return None;
            }
        }
        self.searched = text.len() - usize::from(text.ends_with('<'));
        None
    }
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
            self.place = Place::Json(Scan::from(skipped));
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
                let scan = Scan::default();
                let parameter = Parameter { key, types, begun: false, ignored, searched: 0, scan };
                self.place = Place::Value(function, parameter);
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
        if let Some((at, length)) = parameter.find_end(self.rest()) {
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
            self.at += at + length;
            self.place = Place::Function(function);
            return true;
        }
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
