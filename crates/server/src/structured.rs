//! What an answer itself is asked to be: OpenAI's `response_format`, and the fields of vLLM, SGLang
//! and llama.cpp that say the same in other words. Only one of them can be said at a time.

use crate::error::ApiError;
use crate::fields::{Fields, wrong};
use serde_json::{Value, json};
use text::Form;

/// Fields beside `response_format` that say what an answer is, in any of the APIs.
pub(crate) const FIELDS: [&str; 10] = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "structured_outputs",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
];

/// What is asked for, and the field that asks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structured {
    pub(crate) field: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Json(Value),
    Regex(String),
    Choice(Vec<String>),
    Grammar(String),
}

impl Structured {
    /// What the answer has to fit.
    pub(crate) fn form(&self) -> Form<'_> {
        match &self.wanted {
            Wanted::Json(schema) => Form::Json(schema),
            Wanted::Regex(regex) => Form::Regex(regex),
            Wanted::Choice(choices) => Form::Choice(choices),
            Wanted::Grammar(grammar) => Form::Grammar(grammar),
        }
    }

    /// Reads all fields that may ask.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        let mut asked = Vec::new();
        asked.extend(read_format(fields)?);
        read_plain(fields, &VLLM, &mut asked)?;
        if let Some(inner) = fields.object("structured_outputs")? {
            read_plain(&inner, &INNER, &mut asked)?;
            refuse(&inner, "structural_tag")?;
            refuse(&inner, "whitespace_pattern")?;
            if inner.bool("disable_additional_properties")? == Some(true) {
                return Err(inner.wrong("disable_additional_properties", "false"));
            }
        }
        read_plain(fields, &OTHERS, &mut asked)?;
        refuse(fields, "guided_whitespace_pattern")?;
        match asked.as_slice() {
            [first, second, ..] => {
                let (first, second) = (&first.field, &second.field);
                let message = format!(
                    "`{first}` and `{second}` both say what the answer is: send one of them"
                );
                Err(ApiError::field(second, message))
            }
            _ => Ok(asked.pop()),
        }
    }
}

/// A field that is not done.
fn refuse(fields: &Fields<'_>, name: &str) -> Result<(), ApiError> {
    match fields.get(name) {
        Some(_) => Err(fields.wrong(name, "nothing (it is not supported)")),
        None => Ok(()),
    }
}

/// How a field is read.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    JsonObject,
    Regex,
    Choice,
    Grammar,
}

const VLLM: [(&str, Kind); 5] = [
    ("guided_json", Kind::Json),
    ("guided_json_object", Kind::JsonObject),
    ("guided_regex", Kind::Regex),
    ("guided_choice", Kind::Choice),
    ("guided_grammar", Kind::Grammar),
];

/// Inside vLLM's `structured_outputs`.
const INNER: [(&str, Kind); 5] = [
    ("json", Kind::Json),
    ("json_object", Kind::JsonObject),
    ("regex", Kind::Regex),
    ("choice", Kind::Choice),
    ("grammar", Kind::Grammar),
];

/// SGLang's and llama.cpp's.
const OTHERS: [(&str, Kind); 4] = [
    ("json_schema", Kind::Json),
    ("regex", Kind::Regex),
    ("ebnf", Kind::Grammar),
    ("grammar", Kind::Grammar),
];

fn read_plain(
    fields: &Fields<'_>,
    table: &[(&str, Kind)],
    asked: &mut Vec<Structured>,
) -> Result<(), ApiError> {
    for (name, kind) in table {
        let wanted = read_one(fields, name, *kind)?;
        asked.extend(wanted.map(|wanted| Structured { field: fields.path(name), wanted }));
    }
    Ok(())
}

fn read_one(fields: &Fields<'_>, name: &str, kind: Kind) -> Result<Option<Wanted>, ApiError> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    Ok(match kind {
        Kind::Json => Some(Wanted::Json(read_schema(value, fields.path(name))?)),
        Kind::JsonObject => fields.bool(name)?.unwrap_or(false).then(|| Wanted::Json(any_object())),
        // Clients that have a field for a grammar send it empty where they mean none.
        Kind::Grammar => {
            let grammar = fields.string(name)?.filter(|grammar| !grammar.is_empty());
            grammar.map(|grammar| Wanted::Grammar(grammar.to_owned()))
        }
        Kind::Regex => fields.string(name)?.map(|regex| Wanted::Regex(regex.to_owned())),
        Kind::Choice => {
            let choices = fields.array(name)?.unwrap_or_default();
            let texts = choices.iter().enumerate().map(|(i, choice)| match choice {
                Value::String(text) => Ok(text.clone()),
                other => Err(wrong(format!("{}[{i}]", fields.path(name)), other, "a string")),
            });
            let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
            if texts.is_empty() {
                return Err(fields.wrong(name, "at least one choice"));
            }
            Some(Wanted::Choice(texts))
        }
    })
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// A schema, or one written into a string.
fn read_schema(value: &Value, path: String) -> Result<Value, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema),
            Ok(_) => Err(wrong(path, value, "a JSON schema")),
            Err(error) => {
                let message = format!("`{path}` is a string that is no JSON: {error}");
                Err(ApiError::field(path, message))
            }
        },
        other => Err(wrong(path, other, "a JSON schema")),
    }
}

/// `response_format`, as OpenAI and as others have it.
fn read_format(fields: &Fields<'_>) -> Result<Option<Structured>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    format.required("type")?;
    let schema_of = |fields: &Fields<'_>, name: &str| {
        read_schema(fields.required(name)?, fields.path(name)).map(Wanted::Json)
    };
    let one_of = |names: [&str; 2], kind: Kind| {
        let name = names.into_iter().find(|name| format.get(name).is_some()).unwrap_or(names[0]);
        format.required(name)?;
        read_one(&format, name, kind)
    };
    let wanted = match format.string("type")? {
        Some("text") => None,
        Some("json_object") if format.get("schema").is_some() => {
            Some(schema_of(&format, "schema")?)
        }
        Some("json_object") => Some(Wanted::Json(any_object())),
        Some("json_schema") => match format.object("json_schema")? {
            Some(described) => {
                described.string("name")?;
                described.bool("strict")?;
                Some(schema_of(&described, "schema")?)
            }
            None if format.get("schema").is_some() => Some(schema_of(&format, "schema")?),
            None => return Err(format.missing("json_schema")),
        },
        Some("regex") => one_of(["pattern", "value"], Kind::Regex)?,
        Some("grammar") => one_of(["grammar", "value"], Kind::Grammar)?,
        Some("structural_tag") => {
            let kinds = "`text`, `json_object`, `json_schema`, `regex` or `grammar` (`structural_tag` is not supported)";
            return Err(format.unlisted("type", kinds));
        }
        _ => return Err(format.unlisted("type", "`text`, `json_object` or `json_schema`")),
    };
    Ok(wanted.map(|wanted| Structured { field: fields.path("response_format"), wanted }))
}

/// Anthropic's `output_config.format`, or `output_format` as it was first called, as a
/// `response_format`.
pub(crate) fn of_messages(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let format = match fields.object("output_config")? {
        Some(config) => config.object("format")?,
        None => None,
    };
    let Some(format) = (match format {
        Some(format) => Some(format),
        None => fields.object("output_format")?,
    }) else {
        return Ok(None);
    };
    format.required("type")?;
    if format.string("type")? != Some("json_schema") {
        return Err(format.unlisted("type", "`json_schema`"));
    }
    let schema = format.required("schema")?;
    Ok(Some(json!({"type": "json_schema", "json_schema": {"name": "output", "schema": schema}})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Option<(String, Wanted)>, String> {
        let read = Structured::read(&Fields::of(body.as_object().unwrap()));
        read.map(|asked| asked.map(|asked| (asked.field, asked.wanted))).map_err(ApiError::named)
    }

    #[test]
    fn every_server_s_words_are_understood() {
        let schema = json!({"type": "integer"});
        let json = || Wanted::Json(json!({"type": "integer"}));
        let object = || Wanted::Json(any_object());
        let (regex, grammar) =
            (|| Wanted::Regex("a+".into()), || Wanted::Grammar("root ::= \"a\"".into()));
        let choice = || Wanted::Choice(vec!["a".into(), "b".into()]);
        for (body, field, wanted) in [
            (json!({"guided_json": schema}), "guided_json", json()),
            (json!({"guided_json": "{\"type\": \"integer\"}"}), "guided_json", json()),
            (json!({"guided_json_object": true}), "guided_json_object", object()),
            (json!({"guided_regex": "a+"}), "guided_regex", regex()),
            (json!({"guided_choice": ["a", "b"]}), "guided_choice", choice()),
            (json!({"guided_grammar": "root ::= \"a\""}), "guided_grammar", grammar()),
            (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json", json()),
            (json!({"structured_outputs": {"regex": "a+"}}), "structured_outputs.regex", regex()),
            (
                json!({"structured_outputs": {"choice": ["a", "b"]}}),
                "structured_outputs.choice",
                choice(),
            ),
            (
                json!({"structured_outputs": {"json_object": true}}),
                "structured_outputs.json_object",
                object(),
            ),
            (json!({"json_schema": schema}), "json_schema", json()),
            (json!({"regex": "a+"}), "regex", regex()),
            (json!({"ebnf": "root ::= \"a\""}), "ebnf", grammar()),
            (json!({"grammar": "root ::= \"a\""}), "grammar", grammar()),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                "response_format",
                json(),
            ),
            (
                json!({"response_format": {"type": "json_schema", "schema": schema}}),
                "response_format",
                json(),
            ),
            (
                json!({"response_format": {"type": "regex", "pattern": "a+"}}),
                "response_format",
                regex(),
            ),
            (
                json!({"response_format": {"type": "grammar", "grammar": "root ::= \"a\""}}),
                "response_format",
                grammar(),
            ),
        ] {
            assert_eq!(read(body.clone()), Ok(Some((field.to_owned(), wanted))), "{body}");
        }
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}, "guided_json": null, "grammar": ""}),
            json!({"guided_json_object": false, "structured_outputs": {"disable_fallback": true}}),
        ] {
            assert_eq!(read(body.clone()), Ok(None), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_or_said_twice_is_named() {
        for (body, field) in [
            (json!({"guided_json": 3}), "guided_json"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_regex": 3}), "guided_regex"),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": ["a", 3]}), "guided_choice[1]"),
            (
                json!({"structured_outputs": {"structural_tag": {}}}),
                "structured_outputs.structural_tag",
            ),
            (
                json!({"structured_outputs": {"whitespace_pattern": " "}}),
                "structured_outputs.whitespace_pattern",
            ),
            (json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
            (json!({"response_format": {"type": "structural_tag"}}), "response_format.type"),
            (json!({"response_format": {"type": "regex"}}), "response_format.pattern"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
            (
                json!({"response_format": {"type": "json_object"}, "grammar": "root ::= \"a\""}),
                "grammar",
            ),
        ] {
            assert_eq!(read(body.clone()), Err(field.to_owned()), "{body}");
        }
    }

    #[test]
    fn anthropic_s_format_is_a_schema() {
        let of = |body: Value| {
            of_messages(&Fields::of(body.as_object().unwrap())).map_err(ApiError::named)
        };
        let format = json!({"type": "json_schema", "schema": {"type": "null"}});
        for body in [json!({"output_config": {"format": format}}), json!({"output_format": format})]
        {
            assert_eq!(
                of(body).unwrap().unwrap()["json_schema"]["schema"],
                json!({"type": "null"})
            );
        }
        assert_eq!(of(json!({"output_config": {"effort": "low"}})), Ok(None));
        let field = "output_config.format.type";
        assert_eq!(
            of(json!({"output_config": {"format": {"type": "xml"}}})),
            Err(field.to_owned())
        );
    }
}
