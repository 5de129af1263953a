//! The fields that are published for an API, each with a request to send it in.

use serde_json::{Map, Value, json};
use server::known::{self, Fate, Field, Tables};

/// An API: where it is, what it knows, and a request that is answered.
#[derive(Clone)]
pub(crate) struct Api {
    name: &'static str,
    pub(crate) path: &'static str,
    tables: Tables,
    pub(crate) body: Value,
}

/// A field that clients may send.
pub(crate) struct Published {
    api: Api,
    /// As the fixture has it: `tools[function].strict`.
    pub(crate) path: String,
    telling: Value,
}

fn fixture(text: &str) -> Value {
    serde_json::from_str(text).expect("the fixture is JSON")
}

pub(crate) fn api(name: &str) -> Api {
    let said = json!([{"role": "user", "content": "x"}]);
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    let (name, path, tables, body) = match name {
        "chat" => {
            let tools = json!([{"type": "function", "function": function}]);
            let body = json!({"messages": said, "max_tokens": 1, "tools": tools});
            ("chat", "/v1/chat/completions", known::CHAT, body)
        }
        "completions" => {
            let body = json!({"prompt": "x", "max_tokens": 1});
            ("completions", "/v1/completions", known::COMPLETIONS, body)
        }
        "responses" => {
            let tools =
                json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
            let body = json!({"input": said, "max_output_tokens": 1, "tools": tools});
            ("responses", "/v1/responses", known::RESPONSES, body)
        }
        name => {
            let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
            let body = json!({"messages": said, "max_tokens": 1, "tools": tools});
            match name {
                "messages" => ("messages", "/v1/messages", known::MESSAGES, body),
                _ => ("count_tokens", "/v1/messages/count_tokens", known::MESSAGES, body),
            }
        }
    };
    Api { name, path, tables, body }
}

/// What is published, and for chats what other servers add.
pub(crate) fn fields(api: &Api) -> Vec<Published> {
    let listed = fixture(include_str!("../fixtures/api-fields.json"));
    let types = listed[api.name].as_object().expect("an API's fields");
    let field =
        |path: &str, telling: Value| Published { api: api.clone(), path: path.to_owned(), telling };
    let mut fields: Vec<Published> = types
        .iter()
        .map(|(path, kind)| field(path, telling(kind.as_str().unwrap_or_default())))
        .collect();
    if api.name == "chat" {
        let peers = listed["peers"].as_object().expect("other servers");
        let names = peers.values().flat_map(|peer| peer.as_object().expect("names and values"));
        fields.extend(names.map(|(name, value)| field(name, value.clone())));
    }
    fields.retain(|field| !field.is_out_of_place());
    fields
}

/// The types that the elements of an array can have.
pub(crate) fn kinds(api: &Api, name: &str) -> Vec<String> {
    let listed = fixture(include_str!("../fixtures/api-fields.json"));
    let paths = listed[api.name].as_object().expect("an API's fields").keys();
    let within = paths.filter_map(|path| path.strip_prefix(name)?.strip_prefix('['));
    let kinds = within.filter_map(|rest| rest.split_once(']')).map(|(kind, _)| kind.to_owned());
    kinds.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

/// A value of a type that asks for something.
fn telling(kind: &str) -> Value {
    let first = kind.split(" or ").find(|kind| *kind != "null").unwrap_or_default();
    match first.strip_prefix("array of ") {
        Some(inner) => json!([telling(inner)]),
        None => match first {
            "boolean" => json!(true),
            "integer" => json!(7),
            "number" => json!(0.5),
            "object" => json!({"x": 1}),
            "string" | "any" => json!("x"),
            words => json!(words.rsplit('|').next()),
        },
    }
}

/// `tools[function].strict` as a name and, where the path goes on, what is within it: `("tools",
/// '[', "function")`.
fn steps(path: &str) -> Vec<(&str, Option<(char, &str)>)> {
    // llama.cpp has names with a point inside.
    if path.starts_with("speculative.") {
        return vec![(path, None)];
    }
    path.split('.')
        .map(|step| match step.find(['[', '{']) {
            Some(at) => {
                let (name, rest) = step.split_at(at);
                let open = rest.chars().next().unwrap_or('{');
                (name, Some((open, rest.trim_matches(['[', ']', '{', '}']))))
            }
            None => (step, None),
        })
        .collect()
}

impl Published {
    /// Anthropic's package has one type of message for both sides: what the other side says stays a
    /// note.
    fn is_out_of_place(&self) -> bool {
        let user = ["thinking", "redacted_thinking", "tool_use"];
        let places = user.map(|kind| format!("messages[user].content[{kind}]"));
        self.api.name == "messages" && places.iter().any(|place| self.path.starts_with(place))
    }

    pub(crate) fn name(&self) -> &str {
        steps(&self.path).last().map_or("", |(name, _)| name)
    }

    pub(crate) fn telling(&self) -> Value {
        self.telling.clone()
    }

    /// The path as answers name it where it was ignored: without kinds and places.
    pub(crate) fn place(&self) -> String {
        let step = |(name, within): &(&str, Option<(char, &str)>)| match within {
            Some(('[', _)) => format!("{name}[]"),
            _ => (*name).to_owned(),
        };
        steps(&self.path).iter().map(step).collect::<Vec<_>>().join(".")
    }

    /// What the tables say of it; nothing where they judge what it is in as a whole.
    pub(crate) fn fate(&self) -> Result<Option<Fate>, String> {
        let mut table: Vec<&Field> =
            self.api.tables.iter().flat_map(|table| table.iter()).collect();
        for (name, within) in steps(&self.path) {
            let field = table.iter().find(|field| field.name == name);
            let fate = field.ok_or_else(|| format!("`{name}` is in no table"))?.fate;
            let Some((_, kind)) = within else { return Ok(Some(fate)) };
            table = match fate {
                Fate::Within(fields) => fields.iter().collect(),
                Fate::Kinds(kinds) => match kinds.iter().find(|(known, _)| *known == kind) {
                    Some((_, fields)) => fields.iter().collect(),
                    None => return Ok(None),
                },
                _ => return Ok(None),
            };
        }
        Ok(None)
    }

    /// A request with this value of the field.
    pub(crate) fn body(&self, value: &Value) -> Value {
        let samples = fixture(include_str!("../fixtures/api-samples.json"));
        let mut body = self.api.body.clone();
        if self.path.starts_with("stream_options") {
            body["stream"] = json!(true);
        }
        if self.path.starts_with("function") {
            body["functions"] = json!([{"name": "f"}]);
            body["tools"].take();
        }
        let top = body.as_object_mut().expect("an object");
        put(top, &steps(&self.path), String::new(), value, &samples[self.api.name]);
        body
    }
}

/// Puts a value where the steps lead, through samples of what lies on the way.
fn put(
    object: &mut Map<String, Value>,
    steps: &[(&str, Option<(char, &str)>)],
    path: String,
    value: &Value,
    samples: &Value,
) {
    let Some(((name, within), rest)) = steps.split_first() else { return };
    let Some((open, kind)) = within else {
        object.insert((*name).to_owned(), value.clone());
        return;
    };
    let close = if *open == '[' { ']' } else { '}' };
    let path = format!("{path}{name}{open}{kind}{close}");
    let sample = samples.get(&path).and_then(Value::as_object);
    let mut inner = sample.unwrap_or_else(|| panic!("no sample of {path}")).clone();
    put(&mut inner, rest, format!("{path}."), value, samples);
    let inner = Value::Object(inner);
    if *open == '{' {
        object.insert((*name).to_owned(), inner);
        return;
    }
    // Before what is there already, which ends as a conversation must.
    let mut items = vec![inner];
    let there = object.get(*name).and_then(Value::as_array).filter(|_| !path.contains('.'));
    items.extend(there.into_iter().flatten().cloned());
    object.insert((*name).to_owned(), json!(items));
}
