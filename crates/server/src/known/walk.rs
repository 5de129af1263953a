//! A request held against the tables, and the names of what is not in them told to whoever asked.

use super::{Fate, Field, Tables};
use crate::error::ApiError;
use crate::fields::described;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::{Map, Value};

/// Names the fields that were ignored; the log of requests can take them from here.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-forerun-ignored");

/// Names told at most, and characters of one.
const MAX_NAMES: usize = 16;
const MAX_NAME: usize = 64;

/// Refuses what is asked and not done; what nobody knows comes back by name.
pub(crate) fn check(tables: Tables, body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let mut ignored = Vec::new();
    walk(tables, body, "", &mut ignored)?;
    Ok(cut(ignored))
}

/// Names of what was ignored, as few and as short as can be told.
pub(crate) fn named(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut ignored = Vec::new();
    names.into_iter().for_each(|name| note(&name, &mut ignored));
    cut(ignored)
}

fn cut(mut ignored: Vec<String>) -> Vec<String> {
    if ignored.len() > MAX_NAMES {
        ignored.truncate(MAX_NAMES);
        ignored.push("and more".to_owned());
    }
    ignored
}

fn walk(
    tables: &[&[Field]],
    object: &Map<String, Value>,
    path: &str,
    ignored: &mut Vec<String>,
) -> Result<(), ApiError> {
    // What is null says nothing.
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let path = || if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let mut fields = tables.iter().flat_map(|table| table.iter());
        match fields.find(|field| field.name == name).map(|field| (field.fate, field.about)) {
            None => note(&path(), ignored),
            Some((Fate::Done | Fate::Harmless, _)) => {}
            Some((Fate::Ignored(same), _)) if says_nothing(value, same) => {}
            Some((Fate::Ignored(_), _)) => note(&path(), ignored),
            Some((Fate::Refused(taken), about)) => refuse(path(), value, taken, about)?,
            Some((Fate::Within(fields), _)) => {
                each(value, &path(), &mut |object, path| walk(&[fields], object, path, ignored))?;
            }
            Some((Fate::Kinds(kinds), _)) => each(value, &path(), &mut |object, path| match kinds
                .iter()
                .find(|(kind, _)| *kind == kind_of(object))
            {
                Some((_, fields)) => walk(&[fields], object, path, ignored),
                None => Ok(()),
            })?,
        }
    }
    Ok(())
}

/// Is shown objects with their paths.
type Visit<'a> = dyn FnMut(&Map<String, Value>, &str) -> Result<(), ApiError> + 'a;

/// Visits the object that a value is, or each object of an array.
fn each(value: &Value, path: &str, visit: &mut Visit<'_>) -> Result<(), ApiError> {
    match value {
        Value::Object(object) => visit(object, path),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, item)| match item {
            Value::Object(object) => visit(object, &format!("{path}[{i}]")),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

/// What an object says it is; nothing where it does not.
fn kind_of(object: &Map<String, Value>) -> &str {
    let said = |name: &str| object.get(name).and_then(Value::as_str);
    said("type").or_else(|| said("role")).unwrap_or_default()
}

fn refuse(path: String, value: &Value, taken: &[&str], about: &str) -> Result<(), ApiError> {
    if says_nothing(value, taken) {
        return Ok(());
    }
    let found = match value {
        // One of a few words, which is no part of a prompt.
        Value::String(word) if taken.iter().any(|text| text.starts_with('"')) => {
            format!("`{}`", word.chars().take(MAX_NAME).collect::<String>())
        }
        value => described(value),
    };
    let or =
        if taken.is_empty() { String::new() } else { format!(" or send {}", taken.join(" or ")) };
    let message = format!("`{path}` is {found}, but {about} is not done here: leave it out{or}");
    Err(ApiError::field(path, message))
}

/// Whether a value is one of those that ask for nothing; 1.0 is 1.
fn says_nothing(value: &Value, same: &[&str]) -> bool {
    let mut same = same.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    same.any(|same| match (value.as_f64(), same.as_f64()) {
        (Some(value), Some(same)) => value == same,
        _ => *value == same,
    })
}

/// Adds a name. Places in arrays are left out, so that the same field of many messages is told
/// once.
fn note(path: &str, ignored: &mut Vec<String>) {
    if ignored.len() > MAX_NAMES {
        return;
    }
    let mut inside = false;
    let placeless = path.chars().filter(|c| {
        inside = *c == '[' || (inside && c.is_ascii_digit());
        !inside || *c == '['
    });
    let name = sane(placeless);
    if !ignored.contains(&name) {
        ignored.push(name);
    }
}

/// A name as a header can hold it, where a comma parts names.
fn sane(name: impl Iterator<Item = char>) -> String {
    let sane = |c: char| if (c.is_ascii_graphic() && c != ',') || c == ' ' { c } else { '_' };
    name.take(MAX_NAME).map(sane).collect()
}

/// Says in the answer's head what was ignored.
pub(crate) fn tell(mut response: Response, ignored: &[String]) -> Response {
    let names: Vec<String> =
        ignored.iter().take(2 * MAX_NAMES).map(|name| sane(name.chars())).collect();
    if let Ok(value) = HeaderValue::try_from(names.join(", "))
        && !names.is_empty()
    {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::super::CHAT;
    use super::*;
    use serde_json::json;

    fn checked(body: Value) -> Result<Vec<String>, String> {
        check(CHAT, body.as_object().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_nobody_knows_is_named_once() {
        let message = json!({"role": "user", "content": [{"type": "text", "text": "x", "colour": 1}], "mood": 1});
        let body = json!({"messages": [message, message], "user": "me", "whim": null, "wish": 3,
            "stream_options": {"include_usage": true, "wish": 1}, "odd,\n name": 1});
        let expected = [
            "messages[].content[].colour",
            "messages[].mood",
            "wish",
            "stream_options.wish",
            "odd__ name",
        ];
        assert_eq!(checked(body).unwrap(), expected);
    }

    #[test]
    fn names_are_few_and_short() {
        let names = (0..1000).map(|i| (format!("{i}{}", "é".repeat(200)), json!(1)));
        let ignored = checked(Value::Object(names.collect())).unwrap();
        assert_eq!((ignored.len(), ignored[0].len()), (MAX_NAMES + 1, MAX_NAME));
        let response = tell(Response::default(), &ignored);
        assert!(response.headers()[HEADER].to_str().unwrap().ends_with("and more"));
        let response = tell(Response::default(), &["tools[2]: \r\nx".to_owned()]);
        assert_eq!(response.headers()[HEADER], "tools[2]: __x");
    }

    #[test]
    fn what_is_not_done_is_refused_unless_it_says_nothing() {
        for body in [json!({"mirostat": 0}), json!({"typical_p": 1.0}), json!({"mirostat": null})] {
            assert_eq!(checked(body), Ok(Vec::new()));
        }
        assert_eq!(
            checked(json!({"mirostat": 2})).unwrap_err(),
            "`mirostat` is 2, but sampling to a perplexity is not done here: leave it out or send 0"
        );
    }
}
