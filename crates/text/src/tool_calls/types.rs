//! What a tool's schema lets the value of a parameter be.

use serde_json::Value;

/// What a schema lets a value be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Types {
    /// Text, whatever it looks like.
    String,
    /// JSON of one of these types; text where it is none and text may be.
    Json(Vec<String>),
    /// JSON where it is some, else text.
    Any,
}

impl Types {
    /// What a parameter of this schema may be.
    pub(super) fn of(schema: &Value) -> Self {
        let mut types = Vec::new();
        collect_types(schema, &mut types, 0);
        match types.as_slice() {
            [] => Self::Any,
            all if all.iter().all(|t| t == "string") => Self::String,
            _ => Self::Json(types),
        }
    }

    /// The JSON of the value that a text stands for; text where it stands for nothing that may be.
    pub(super) fn read(&self, text: &str) -> String {
        let trimmed = text.trim();
        let parsed = serde_json::from_str::<Value>(trimmed).ok();
        // A whole number beyond 64 bits would lose digits as a float.
        let is_long = parsed.as_ref().is_some_and(Value::is_f64)
            && trimmed.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
        let read = match self {
            Self::String => None,
            Self::Any => parsed.filter(|value| !value.is_string() && !is_long),
            Self::Json(types) => {
                let allowed =
                    |value: &Value| types.iter().any(|t| t != "string" && is_of_type(value, t));
                let python = match trimmed {
                    "True" => Some(Value::Bool(true)),
                    "False" => Some(Value::Bool(false)),
                    "None" => Some(Value::Null),
                    _ => None,
                };
                parsed.filter(allowed).or(python.filter(allowed))
            }
        };
        match read {
            Some(_) if is_long => trimmed.to_owned(),
            read => read.unwrap_or_else(|| Value::from(text)).to_string(),
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
