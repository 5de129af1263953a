//! Grammars of tool calls: the model's own form, `<function=NAME>` with `<parameter=KEY>` blocks,
//! where it can hold what a schema allows and nothing else; else a JSON object with `name` and
//! `arguments`.

use super::forms::quoted;
use super::{GrammarError, bounds, compact};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Bytes of a name at most; what parses calls takes no longer ones.
const MAX_NAME: usize = 256;

/// What a schema of parameters may say beside its properties for its form to be the model's own.
const PLAIN: [&str; 8] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "description",
    "title",
    "$schema",
    "strict",
];

/// What a string may say for it to be plain text.
const PLAIN_STRING: [&str; 7] =
    ["type", "description", "title", "default", "examples", "enum", "const"];

/// Rules whose `call` is a call of one of `tools`; `tokens` are those around a call, where they are
/// single.
pub(super) fn rules(tools: &[Value], tokens: [Option<u32>; 2]) -> Result<String, GrammarError> {
    let [open, close] =
        [(tokens[0], "<tool_call>"), (tokens[1], "</tool_call>")].map(|(id, name)| match id {
            Some(id) => format!("<[{id}]>"),
            None => quoted(name),
        });
    let functions: Vec<String> = (0..tools.len()).map(|i| format!("f{i}")).collect();
    let mut rules = format!("call: {open} \"\\n\" ({}) \"\\n\" {close}\n", functions.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let any = json!({"type": "object", "properties": {}});
        let schema = function.get("parameters").filter(|schema| schema.is_object()).unwrap_or(&any);
        bounds::check(schema).map_err(|cause| GrammarError::Tool {
            name: name.to_owned(),
            cause: Box::new(cause),
        })?;
        let own = if fits_a_tag(name) { own_form(i, name, schema) } else { None };
        rules += &own.unwrap_or_else(|| json_form(i, name, schema));
    }
    Ok(rules)
}

fn json_form(i: usize, name: &str, schema: &Value) -> String {
    let head = quoted(&format!("{{\"name\": {}, \"arguments\": ", Value::from(name)));
    format!("f{i}: {head} a{i} \"}}\"\na{i}: %json {}\n", compact(schema))
}

/// The function as blocks of parameters, in the order of the schema; nothing where that would allow
/// too much.
fn own_form(i: usize, name: &str, schema: &Value) -> Option<String> {
    let schema = schema.as_object()?;
    if schema.keys().any(|key| !PLAIN.contains(&key.as_str())) || refers(schema) {
        return None;
    }
    let none = Map::new();
    let properties = schema.get("properties").map_or(Some(&none), Value::as_object)?;
    let empty = Vec::new();
    let required = schema.get("required").map_or(Some(&empty), Value::as_array)?;
    if required.iter().any(|name| !name.as_str().is_some_and(|name| properties.contains_key(name)))
    {
        return None;
    }
    let mut function = format!("f{i}: {}", quoted(&format!("<function={name}>\n")));
    let mut rules = String::new();
    for (j, (key, property)) in properties.iter().enumerate() {
        let optional = if required.iter().any(|name| name == key.as_str()) { "" } else { "?" };
        let value = value_form(&format!("v{i}_{j}"), property).filter(|_| fits_a_tag(key))?;
        // Writing to a string cannot fail.
        let _ = write!(function, " p{i}_{j}{optional}");
        let head = quoted(&format!("<parameter={key}>\n"));
        let _ = writeln!(rules, "p{i}_{j}: {head} v{i}_{j} \"\\n\"");
        rules += &value;
    }
    Some(format!("{function} \"</function>\"\n{rules}"))
}

/// A rule for a value up to the end of its block.
fn value_form(rule: &str, property: &Value) -> Option<String> {
    let schema = property.as_object()?;
    let end = "</parameter>";
    let kind = schema.get("type").and_then(Value::as_str)?;
    if kind != "string" {
        return Some(format!(
            "{rule}: {rule}j \"\\n{end}\"\n{rule}j: %json {}\n",
            compact(property)
        ));
    }
    if schema.keys().any(|key| !PLAIN_STRING.contains(&key.as_str())) {
        return None;
    }
    let choices = schema
        .get("const")
        .into_iter()
        .chain(schema.get("enum").and_then(Value::as_array).into_iter().flatten());
    let choices: Vec<Option<&str>> = choices.map(Value::as_str).collect();
    if choices.is_empty() {
        // Text up to the first end, wherever it comes.
        return Some(format!("{rule}[lazy]: /(?s:.*)<\\/parameter>/\n"));
    }
    if schema.contains_key("const") && schema.contains_key("enum") {
        return None;
    }
    let choices: Option<Vec<String>> = choices
        .into_iter()
        .map(|choice| {
            choice
                .filter(|c| !c.contains(end) && !c.starts_with('\n') && !c.ends_with('\n'))
                .map(quoted)
        })
        .collect();
    Some(format!("{rule}: ({}) \"\\n{end}\"\n", choices?.join(" | ")))
}

fn fits_a_tag(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name.trim() == name && !name.contains(['>', '\n'])
}

/// Whether a schema refers to another place in itself, which a part of it would not have.
fn refers(schema: &Map<String, Value>) -> bool {
    schema.iter().any(|(key, value)| {
        key.starts_with('$') && key != "$schema"
            || match value {
                Value::Object(object) => refers(object),
                Value::Array(items) => items.iter().filter_map(Value::as_object).any(refers),
                _ => false,
            }
    })
}
