//! `GET /openapi.json`, made from what reads requests: paths are those of the router's table,
//! fields are those of the tables that requests are held against, and what a field may hold is what
//! its reader says when it is given something else.

use crate::error::ApiError;
use crate::known::{Fate, Field, Tables};
use crate::models::Models;
use crate::router::Shared;
use crate::routes::{ROUTES, Route};
use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A body and who reads it.
pub(crate) struct Asked {
    /// Of its schema.
    pub(crate) name: &'static str,
    /// Its fields.
    pub(crate) tables: Tables,
    /// Those that are understood and have nothing that need not be there.
    pub(crate) examples: fn() -> Vec<Value>,
    pub(crate) read: fn(&Map<String, Value>, &Shared) -> Result<(), ApiError>,
}

/// The document.
pub(crate) async fn document(State(models): State<Arc<Models>>) -> Result<Json<Value>, ApiError> {
    let made = tokio::task::spawn_blocking(move || {
        // Once is enough: what is served stays the same.
        let first = models.first().map_err(|error| ApiError::Internal(error.to_string()))?;
        Ok(models.openapi.get_or_init(|| make(first, models.keys.is_some())).clone())
    });
    let panicked = |_| Err(ApiError::Internal("a panic while describing the server".to_owned()));
    made.await.unwrap_or_else(panicked).map(Json)
}

fn make(shared: &Shared, has_keys: bool) -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    let error = json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
        "required": ["message", "type"], "properties": {"message": {"type": "string"}, "type": {"type": "string"}}}}});
    schemas.insert("Error".to_owned(), error);
    for route in ROUTES {
        if let Some(asked) = &route.asked {
            schemas.insert(asked.name.to_owned(), Schema { asked, shared }.of_body());
        }
        // A path that takes all that follows is spelt as one that takes a name.
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method] = operation(route);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {"title": "Forerun", "version": env!("CARGO_PKG_VERSION"),
            "description": "Fields that nobody here knows are let through and named in `x-forerun-ignored`. \
                Ollama's paths below `/api` are as Ollama tells them."},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    if has_keys {
        document["components"]["securitySchemes"] =
            json!({"key": {"type": "http", "scheme": "bearer"}});
    }
    document
}

fn operation(route: &Route) -> Value {
    let kinds = |schema: Value| -> Map<String, Value> {
        route.kinds.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema}))).collect()
    };
    let failed = json!({"description": "Why not",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}});
    let name = route.path.trim_matches('/').replace(['/', '.'], "_").replace(['{', '*', '}'], "");
    let mut operation = json!({
        "summary": route.about,
        "operationId": format!("{}_{name}", route.method),
        "responses": {"200": {"description": "The answer", "content": kinds(json!({}))}},
    });
    // What only looks at the process is told in its own words.
    if !route.is_open {
        operation["responses"]["4XX"] = failed.clone();
        operation["responses"]["5XX"] = failed;
        operation["security"] = json!([{}, {"key": []}]);
    }
    if route.path == "/ready" || route.path == "/health" || route.path == "/ping" {
        operation["responses"]["5XX"] = json!({"description": "No", "content": kinds(json!({}))});
    }
    let parameter = route.path.split(['{', '}']).nth(1).map(|name| name.trim_start_matches('*'));
    if let Some(name) = parameter {
        operation["parameters"] =
            json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    if let Some(asked) = &route.asked {
        let schema = json!({"$ref": format!("#/components/schemas/{}", asked.name)});
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// Finds out what a body may have.
struct Schema<'a> {
    asked: &'a Asked,
    shared: &'a Shared,
}

impl Schema<'_> {
    fn of_body(&self) -> Value {
        let examples = (self.asked.examples)();
        let example = self.example();
        let needed: Vec<&String> = example
            .keys()
            .filter(|name| examples.iter().all(|example| example.get(name).is_some()))
            .collect();
        let fields = self.asked.tables.iter().flat_map(|table| table.iter());
        let properties =
            fields.filter_map(|field| Some((field.name.to_owned(), self.of_field(field, &[])?)));
        let mut properties: Map<String, Value> = properties.collect();
        for name in &needed {
            // Nothing is not enough.
            if let Some(kinds) = properties.get_mut(*name).and_then(|field| field.get_mut("type")) {
                *kinds = kinds[0].take();
            }
        }
        json!({"type": "object", "required": needed, "properties": properties, "examples": examples})
    }

    fn example(&self) -> Map<String, Value> {
        let first = (self.asked.examples)().into_iter().next();
        first.and_then(|first| first.as_object().cloned()).unwrap_or_default()
    }

    /// The schema of a field that lies within others; of one that is refused there is none.
    fn of_field(&self, field: &Field, within: &[&str]) -> Option<Value> {
        let mut path = within.to_vec();
        path.push(field.name);
        let expected = match field.fate {
            Fate::Refused(_) => return None,
            Fate::Ignored(_) | Fate::Harmless => None,
            Fate::Done | Fate::Within(_) | Fate::Kinds(_) => self.expected(&path),
        };
        let mut schema = expected.as_deref().map_or_else(|| json!({}), schema_of);
        let about = match (field.fate, &expected) {
            (Fate::Ignored(_), _) => format!("{}; ignored", field.about),
            // What is no type is told in words.
            (_, Some(expected)) if schema == json!({}) => format!("{}: {expected}", field.about),
            (_, _) => field.about.to_owned(),
        };
        schema["description"] = json!(about);
        if let Fate::Within(fields) = field.fate {
            // Of objects in arrays it is not found out what their fields may hold.
            let is_array =
                expected.as_deref().is_some_and(|expected| expected.starts_with("an array"));
            let inner = fields.iter().filter_map(|inner| match is_array {
                true if matches!(inner.fate, Fate::Refused(_)) => None,
                true => Some((inner.name.to_owned(), json!({"description": inner.about}))),
                false => Some((inner.name.to_owned(), self.of_field(inner, &path)?)),
            });
            let inner: Map<String, Value> = inner.collect();
            match is_array {
                true => schema["items"] = json!({"type": "object", "properties": inner}),
                false => schema["properties"] = json!(inner),
            }
        }
        Some(schema)
    }

    /// What a field must be, in the words of its reader when it is given what it cannot be.
    fn expected(&self, path: &[&str]) -> Option<String> {
        let wrong = [json!({"?": 0}), json!(true), json!("?"), json!([[]]), json!(-0.5)];
        let name = path.join(".");
        wrong.iter().find_map(|value| {
            let mut body = self.example();
            let value =
                path.iter().skip(1).rev().fold(value.clone(), |value, name| json!({*name: value}));
            body.insert((*path.first()?).to_owned(), value);
            match (self.asked.read)(&body, self.shared) {
                Err(ApiError::Field { field, message }) if field == name => {
                    let (_, rest) = message.split_once(", ")?;
                    rest.strip_suffix(" was expected").map(str::to_owned)
                }
                _ => None,
            }
        })
    }
}

/// What readers say, as a schema; words that are not known here say nothing.
fn schema_of(expected: &str) -> Value {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let range = |kind: &str, rest: &str| {
        let (least, most) =
            rest.split_once(" to ").unwrap_or((rest.strip_suffix(" on").unwrap_or(rest), ""));
        let mut schema = json!({"type": [kind, "null"]});
        // Integers stay integers.
        let bound = |text: &str| {
            text.parse::<i64>().map(|n| json!(n)).ok().or_else(|| Some(json!(number(text)?)))
        };
        if let Some(least) = bound(least) {
            schema["minimum"] = least;
        }
        if let Some(most) = bound(most) {
            schema["maximum"] = most;
        }
        schema
    };
    if let Some(rest) = expected.strip_prefix("a number from ") {
        return range("number", rest);
    }
    if let Some(rest) = expected.strip_prefix("an integer from ") {
        return match rest.split_once(" on, or -1") {
            // The odd one has a meaning of its own.
            Some((least, _)) => json!({"anyOf": [range("integer", least), {"const": -1}]}),
            None => range("integer", rest),
        };
    }
    match expected {
        "true or false" => json!({"type": ["boolean", "null"]}),
        "a string" => json!({"type": ["string", "null"]}),
        "an object" => json!({"type": ["object", "null"]}),
        "an array" => json!({"type": ["array", "null"]}),
        "a string or an array of strings" => {
            json!({"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]})
        }
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_readers_are_schemas() {
        for (expected, schema) in [
            ("true or false", json!({"type": ["boolean", "null"]})),
            (
                "a number from 0 to 2",
                json!({"type": ["number", "null"], "minimum": 0, "maximum": 2}),
            ),
            (
                "a number from -0.5 to 1",
                json!({"type": ["number", "null"], "minimum": -0.5, "maximum": 1}),
            ),
            (
                "an integer from 1 to 16",
                json!({"type": ["integer", "null"], "minimum": 1, "maximum": 16}),
            ),
            ("an integer from 5 on", json!({"type": ["integer", "null"], "minimum": 5})),
            (
                "an integer from 1 on, or -1 for no limit",
                json!({"anyOf": [{"type": ["integer", "null"], "minimum": 1}, {"const": -1}]}),
            ),
            ("something else", json!({})),
        ] {
            assert_eq!(schema_of(expected), schema, "{expected}");
        }
    }
}
