//! Reading a request's fields one by one, so that an error names the field, what it holds and what
//! it should hold. `null` counts as absent, as OpenAI's clients expect. Which fields there are at
//! all is in `known`.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of a JSON object, with the path that leads to it.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of a request's body.
    pub(crate) fn of(object: &'a Map<String, Value>) -> Self {
        Self { object, path: String::new() }
    }

    /// The fields of a value that must be an object.
    pub(crate) fn within(value: &'a Value, path: String) -> Result<Self, ApiError> {
        match value.as_object() {
            Some(object) => Ok(Self { object, path }),
            None => Err(wrong(path, value, "an object")),
        }
    }

    /// The full name of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A field that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&'a Value, ApiError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// An error about a field that is not there.
    pub(crate) fn missing(&self, name: &str) -> ApiError {
        ApiError::field(self.path(name), format!("`{}` is missing", self.path(name)))
    }

    /// An error about a field that has a value.
    pub(crate) fn wrong(&self, name: &str, expected: &str) -> ApiError {
        wrong(self.path(name), self.object.get(name).unwrap_or(&Value::Null), expected)
    }

    /// An error about a field whose value is a word out of a list: such a word is no part of a
    /// prompt, and may be repeated.
    pub(crate) fn unlisted(&self, name: &str, expected: &str) -> ApiError {
        let Some(Value::String(word)) = self.object.get(name) else {
            return self.wrong(name, expected);
        };
        let (path, word) = (self.path(name), word.chars().take(64).collect::<String>());
        ApiError::field(path.clone(), format!("`{path}` is `{word}`, {expected} was expected"))
    }

    /// The name of this object itself.
    pub(crate) fn whole_path(&self) -> String {
        self.path.clone()
    }

    fn read<T>(
        &self,
        name: &str,
        expected: impl FnOnce() -> String,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, &expected()))
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, || "true or false".into(), Value::as_bool)
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, || "a string".into(), Value::as_str)
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.read(name, || "an array".into(), |value| value.as_array().map(Vec::as_slice))
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let object = self.read(name, || "an object".into(), Value::as_object)?;
        Ok(object.map(|object| Self { object, path: self.path(name) }))
    }

    pub(crate) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        let read = |value: &Value| value.as_f64().filter(|x| range.contains(x)).map(|x| x as f32);
        self.read(name, expected, read)
    }

    pub(crate) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let expected = || match *range.end() {
            i64::MAX => format!("an integer from {} on", range.start()),
            end => format!("an integer from {} to {end}", range.start()),
        };
        self.read(name, expected, |value| whole(value).filter(|x| range.contains(x)))
    }

    /// The most tokens that are wanted, from `least` on; -1 is how some clients say that there is
    /// no limit.
    pub(crate) fn limit(&self, name: &str, least: i64) -> Result<Option<usize>, ApiError> {
        let expected = || format!("an integer from {least} on, or -1 for no limit");
        let read = |value: &Value| whole(value).filter(|x| *x >= least || *x == -1);
        let limit = self.read(name, expected, read)?;
        Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
    }

    /// Names and values, in the order of the request.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }
}

/// A whole number, also where it is spelt with a fraction of nothing: some languages know no other
/// numbers.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    // Beyond this neighbours of a float are more than 1 apart.
    let exact = |x: &f64| x.fract() == 0.0 && x.abs() <= (1_i64 << 53) as f64;
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|x| x as i64))
}

/// An error about a value that is not what was expected. Strings are not repeated: they may be part
/// of a prompt.
pub(crate) fn wrong(path: String, found: &Value, expected: &str) -> ApiError {
    let message = format!("`{path}` is {}, {expected} was expected", described(found));
    ApiError::Field { field: path, message }
}

/// What a value is, in a few words.
pub(crate) fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field_and_both_sides() {
        let body = json!({"a": 3, "b": "text", "c": null, "d": {"e": [1]}});
        let fields = Fields::of(body.as_object().unwrap());
        let message = |result: Result<(), ApiError>| result.unwrap_err().to_string();
        assert_eq!(fields.number("a", 0.0..=5.0), Ok(Some(3.0)));
        assert_eq!(fields.bool("c"), Ok(None));
        assert_eq!(fields.bool("z"), Ok(None));
        assert_eq!(
            message(fields.number("a", 0.0..=2.0).map(drop)),
            "`a` is 3, a number from 0 to 2 was expected"
        );
        assert_eq!(
            message(fields.bool("b").map(drop)),
            "`b` is a string, true or false was expected"
        );
        assert_eq!(fields.unlisted("b", "`c`").to_string(), "`b` is `text`, `c` was expected");
        let inner = fields.object("d").unwrap().unwrap();
        assert_eq!(
            message(inner.string("e").map(drop)),
            "`d.e` is an array of 1, a string was expected"
        );
        assert_eq!(message(inner.required("f").map(drop)), "`d.f` is missing");
        assert_eq!(
            message(fields.integer("a", 5..=i64::MAX).map(drop)),
            "`a` is 3, an integer from 5 on was expected"
        );
    }

    #[test]
    fn numbers_are_taken_as_clients_spell_them() {
        let body =
            json!({"a": 3.0, "b": -1, "c": -1.0, "d": 1.5, "e": "3", "f": 1e300, "g": -2, "h": 0});
        let fields = Fields::of(body.as_object().unwrap());
        assert_eq!(fields.integer("a", 0..=5), Ok(Some(3)));
        assert_eq!(fields.limit("a", 1), Ok(Some(3)));
        assert_eq!((fields.limit("b", 1), fields.limit("c", 1)), (Ok(None), Ok(None)));
        for name in ["d", "e", "f", "g", "h"] {
            assert_eq!(fields.limit(name, 1).map_err(ApiError::named), Err(name.to_owned()));
        }
        assert_eq!(fields.limit("h", 0), Ok(Some(0)));
    }
}
