//! Python's ways with values, where minijinja differs: some tests and filters, floats, and
//! `json.dumps` behind the filter `tojson`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// Lists and maps within each other that `tojson` accepts; Python stops near 1000.
const MAX_DEPTH: usize = 500;

/// Writes what `{{ value }}` writes.
pub(super) fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match as_float(value) {
        Some(number) => out.write_str(&float(number)).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// The filter `string`.
pub(super) fn string(value: &Value) -> String {
    as_float(value).map_or_else(|| value.to_string(), float)
}

/// The test `number`: a bool is one.
pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// The test `sequence`: what has a length and items, text, maps and what is not defined among them.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// The filter `length`: what is not defined has none of anything.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind())))
        }
    }
}

/// The filter `int`: a number cut to a whole one, or what a text spells in `base`; `default` for
/// everything else.
pub(super) fn as_int_or(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default_or(default, &options, 0)?;
    let base = base.or(options.get("base")?).unwrap_or(10);
    options.assert_all_used()?;
    let cut = |number: f64| number.is_finite().then(|| Value::from(number.trunc() as i64));
    let number = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number => as_float(value).map_or_else(|| Some(value.clone()), cut),
        ValueKind::String => value.as_str().map(str::trim).and_then(|text| {
            let bare = match base {
                16 => text.trim_start_matches("0x").trim_start_matches("0X"),
                8 => text.trim_start_matches("0o"),
                2 => text.trim_start_matches("0b"),
                _ => text,
            };
            let whole =
                (2..=36).contains(&base).then(|| i64::from_str_radix(bare, base).ok()).flatten();
            whole.map(Value::from).or_else(|| cut(text.parse().ok()?))
        }),
        _ => None,
    };
    Ok(number.unwrap_or(default))
}

fn default_or(
    given: Option<Value>,
    options: &Kwargs,
    absent: impl Into<Value>,
) -> Result<Value, Error> {
    match given {
        Some(given) => Ok(given),
        None if options.has("default") => options.get("default"),
        None => Ok(absent.into()),
    }
}

/// The filter `float`, with a `default` for what is no number.
pub(super) fn as_float_or(
    value: &Value,
    default: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default_or(default, &options, 0.0)?;
    options.assert_all_used()?;
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().and_then(|text| text.trim().parse().ok()),
        _ => None,
    };
    Ok(number.map_or(default, Value::from))
}

/// The test `iterable`: what has items, and what is not defined, but not none.
pub(super) fn is_iterable(value: &Value) -> bool {
    let kinds = [
        ValueKind::Seq,
        ValueKind::Iterable,
        ValueKind::String,
        ValueKind::Map,
        ValueKind::Undefined,
    ];
    kinds.contains(&value.kind())
}

fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{number:e}"); // such as -1.25e-7
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{number:?}"),
    }
}

/// The filter `tojson` of transformers, which is `json.dumps` with `ensure_ascii` off.
pub(super) fn to_json(value: &Value, args: Kwargs) -> Result<String, Error> {
    let indent = match args.get::<Option<Value>>("indent")? {
        Some(indent) if indent.as_str().is_some() => Some(indent.to_string()),
        Some(indent) => usize::try_from(indent).ok().map(|width| " ".repeat(width.min(64))),
        None => None,
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) => (&**item, &**key),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two"));
        }
    };
    let ensure_ascii = args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let mut json = Json { text: String::new(), indent, item, key, ensure_ascii, sort_keys };
    json.value(value, 0)?;
    Ok(json.text)
}

/// A JSON text being written, and its style.
struct Json<'a> {
    text: String,
    indent: Option<String>,
    item: &'a str,
    key: &'a str,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Json<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.bracketed('{', '}', depth, keys.into_iter(), |json, key| {
                    json.string(&scalar(&key).unwrap_or_else(|| key.to_string()));
                    json.text.push_str(json.key);
                    json.value(&value.get_item(&key)?, depth + 1)
                })
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.bracketed('[', ']', depth, value.try_iter()?, |json, item| {
                    json.value(&item, depth + 1)
                })
            }
            ValueKind::String => {
                self.string(value.as_str().unwrap_or_default());
                Ok(())
            }
            kind => match scalar(value) {
                Some(scalar) => {
                    self.text.push_str(&scalar);
                    Ok(())
                }
                None => Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("tojson: {kind} is not JSON"),
                )),
            },
        }
    }

    /// Items between brackets, each on a line of its own if the style is indented.
    fn bracketed(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: impl Iterator<Item = Value>,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if depth == MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deeply"));
        }
        self.text.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.text.push_str(self.item);
            }
            empty = false;
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for c in string.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// JSON of what is neither text nor a container; also how such a value is spelt as a key.
fn scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("null".into()),
        ValueKind::Bool => Some(if value.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Some(match as_float(value) {
            Some(number) if number.is_nan() => "NaN".into(),
            Some(number) if number.is_infinite() => {
                if number > 0.0 { "Infinity" } else { "-Infinity" }.into()
            }
            Some(number) => float(number),
            None => value.to_string(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (123456.789, "123456.789"),
            (9007199254740993.0, "9007199254740992.0"),
        ];
        for (number, text) in cases {
            assert_eq!(float(number), text);
        }
    }
}
