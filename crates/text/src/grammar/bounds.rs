//! How large a schema may be, looked at before anything recurses over it: bytes, nesting with
//! references followed, chains of references, properties of an object, values in all. The walk
//! keeps its own stack, so a schema that is refused has cost no more than its length.

use super::{GrammarError, MOST};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Bytes of a schema at most.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// Values inside values, as the schema is written; what parses bodies takes no more either.
pub(super) const MAX_NESTING: usize = 128;
/// Values inside values where references are followed.
pub(super) const MAX_DEPTH: usize = 1024;
/// References in a row that lead to nothing but the next.
pub(super) const MAX_CHAIN: usize = 64;
/// Properties of one object.
pub(super) const MAX_PROPERTIES: usize = 1024;
/// Bytes of a regular expression.
pub(super) const MAX_PATTERN: usize = 4 << 10;
/// Ways that `allOf` makes of those in its parts.
pub(super) const MAX_WAYS: usize = 2000;
/// Values of a schema, each reference counted as what it leads to.
pub(super) const MAX_VALUES: usize = 200_000;

/// A part of a schema that references lead to, or the whole of it.
#[derive(Default)]
struct Part {
    values: usize,
    /// Nesting of what stands in it.
    nesting: usize,
    /// Where references stand, how deep, and to which part they lead.
    references: Vec<(usize, usize)>,
    /// The part that a reference leads to, where the part is nothing else.
    alias: Option<usize>,
}

/// Checks one schema.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let most = |what: &'static str, found: usize, most: usize| match found > most {
        true => Err(GrammarError::TooLarge { what, found, most }),
        false => Ok(()),
    };
    most("levels of nesting", nesting(schema), MAX_NESTING)?;
    most("bytes", schema.to_string().len(), MAX_BYTES)?;
    most("properties in one object", properties(schema), MAX_PROPERTIES)?;
    check_numbers(schema)?;
    most("bytes in one pattern", pattern(schema), MAX_PATTERN)?;
    most("combinations in one `allOf`", combinations(schema), MAX_WAYS)?;
    let parts = parts(schema);
    most("references in a row", chain(&parts)?, MAX_CHAIN)?;
    most("levels of nesting with its references followed", depth(&parts), MAX_DEPTH)?;
    let followed = parts.iter().flat_map(|part| &part.references).map(|(_, to)| parts[*to].values);
    most(
        "values with its references followed",
        parts[0].values + followed.sum::<usize>(),
        MAX_VALUES,
    )
}

/// Every value with how deep it stands.
fn walk<'a>(schema: &'a Value, mut visit: impl FnMut(&'a Value, usize)) {
    let mut left = vec![(schema, 1)];
    while let Some((value, depth)) = left.pop() {
        visit(value, depth);
        match value {
            Value::Object(object) => left.extend(object.values().map(|value| (value, depth + 1))),
            Value::Array(items) => left.extend(items.iter().map(|value| (value, depth + 1))),
            _ => {}
        }
    }
}

fn nesting(schema: &Value) -> usize {
    let mut deepest = 0;
    walk(schema, |_, depth| deepest = deepest.max(depth));
    deepest
}

fn properties(schema: &Value) -> usize {
    let mut found = 0;
    walk(schema, |value, _| {
        let Value::Object(object) = value else { return };
        for name in ["properties", "patternProperties", "required"] {
            let count = object.get(name).map_or(0, |named| match named {
                Value::Object(properties) => properties.len(),
                Value::Array(names) => names.len(),
                _ => 0,
            });
            found = found.max(count);
        }
    });
    found
}

/// Refuses bounds that leave only numbers of more than 18 digits.
fn check_numbers(schema: &Value) -> Result<(), GrammarError> {
    let mut beyond = None;
    walk(schema, |value, _| {
        let number = |name: &str| value.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        let least =
            ["minimum", "exclusiveMinimum"].into_iter().find(|name| number(name) > MOST as f64);
        let most =
            ["maximum", "exclusiveMaximum"].into_iter().find(|name| number(name) < -(MOST as f64));
        beyond = beyond.or(least).or(most);
    });
    let what = "schema";
    let refused = |name: &str| GrammarError::Refused {
        what,
        reason: format!("a `{name}` has more than 18 digits"),
    };
    beyond.map_or(Ok(()), |name| Err(refused(name)))
}

fn pattern(schema: &Value) -> usize {
    let mut found = 0;
    walk(schema, |value, _| {
        let own = value.get("pattern").and_then(Value::as_str).map_or(0, str::len);
        let names = value.get("patternProperties").and_then(Value::as_object);
        let longest = names.and_then(|names| names.keys().map(String::len).max()).unwrap_or(0);
        found = found.max(own).max(longest);
    });
    found
}

/// Alternatives of one object, where those that all have to hold are multiplied.
fn combinations(schema: &Value) -> usize {
    let mut found = 0;
    walk(schema, |value, _| {
        let ways = |value: &'_ Value| {
            // A reference inside counts as what it leads to says itself.
            let value =
                value.as_object().and_then(|object| follow(schema, object)).unwrap_or(value);
            let lists =
                ["anyOf", "oneOf", "enum"].iter().filter_map(|name| value.get(name)?.as_array());
            lists.map(|list| list.len().max(1)).fold(1, usize::saturating_mul)
        };
        let parts = value.get("allOf").and_then(Value::as_array).into_iter().flatten();
        let all = parts.map(ways).fold(1, usize::saturating_mul);
        // Without `allOf` nothing is multiplied but lists beside each other.
        let beside =
            ["anyOf", "oneOf", "enum"].iter().filter(|name| value.get(name).is_some()).count();
        if all > 1 || beside > 1 {
            found = found.max(all.saturating_mul(ways(value)));
        }
    });
    found
}

/// The whole schema and every part that a reference in it leads to.
fn parts(schema: &Value) -> Vec<Part> {
    let mut targets = vec![schema];
    let mut places: HashMap<*const Value, usize> = HashMap::from([(std::ptr::from_ref(schema), 0)]);
    let mut parts: Vec<Part> = Vec::new();
    while let Some(target) = targets.get(parts.len()).copied() {
        let mut part = Part::default();
        walk(target, |value, depth| {
            part.values += 1;
            part.nesting = part.nesting.max(depth);
            let Some(to) = value.as_object().and_then(|object| follow(schema, object)) else {
                return;
            };
            let place = *places.entry(std::ptr::from_ref(to)).or_insert_with(|| {
                targets.push(to);
                targets.len() - 1
            });
            part.references.push((depth, place));
            if depth == 1 {
                part.alias = Some(place);
            }
        });
        parts.push(part);
    }
    parts
}

/// What the reference of an object leads to, if it has one that leads anywhere.
fn follow<'a>(schema: &'a Value, object: &Map<String, Value>) -> Option<&'a Value> {
    let path = object.get("$ref")?.as_str()?.strip_prefix('#')?;
    let names = path.strip_prefix('/').unwrap_or(path);
    if names.is_empty() {
        return Some(schema);
    }
    names.split('/').try_fold(schema, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        value => value.get(name),
    })
}

/// The longest row of references that lead to nothing but the next; an error where they never end.
fn chain(parts: &[Part]) -> Result<usize, GrammarError> {
    let mut lengths: Vec<Option<usize>> = vec![None; parts.len()];
    for start in 0..parts.len() {
        let mut row = Vec::new();
        let mut at = start;
        let end = loop {
            if let Some(known) = lengths[at] {
                break known;
            }
            if row.contains(&at) {
                return Err(GrammarError::Loop);
            }
            // Longer rows are refused anyway, and need not be followed to their ends.
            if row.len() > MAX_CHAIN {
                break 0;
            }
            row.push(at);
            match parts[at].alias {
                Some(next) => at = next,
                None => {
                    row.pop();
                    lengths[at] = Some(0);
                }
            }
        };
        for (back, place) in row.iter().rev().enumerate() {
            lengths[*place] = Some(end + back + 1);
        }
    }
    Ok(lengths.into_iter().flatten().max().unwrap_or(0))
}

/// The deepest place that following references can lead to, each part entered once on the way.
/// Parts that lead back to themselves may be entered in any order, so all of them count.
fn depth(parts: &[Part]) -> usize {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
    let mut unknown: Vec<usize> = vec![0; parts.len()];
    for (place, part) in parts.iter().enumerate() {
        unknown[place] = part.references.len();
        part.references.iter().for_each(|(_, to)| users[*to].push(place));
    }
    let mut heights: Vec<Option<usize>> = vec![None; parts.len()];
    let mut ready: Vec<usize> = (0..parts.len()).filter(|place| unknown[*place] == 0).collect();
    while let Some(place) = ready.pop() {
        let part = &parts[place];
        let below = part.references.iter().map(|(depth, to)| depth + heights[*to].unwrap_or(0));
        heights[place] = Some(below.fold(part.nesting, usize::max));
        for user in &users[place] {
            unknown[*user] -= 1;
            if unknown[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    let looped = parts.iter().zip(&heights).filter(|(_, height)| height.is_none());
    let looped: usize = looped.map(|(part, _)| part.nesting).sum();
    looped + heights.into_iter().flatten().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(schema: &Value) -> Option<&'static str> {
        match check(schema) {
            Ok(()) => None,
            Err(GrammarError::TooLarge { what, .. }) => Some(what),
            Err(GrammarError::Loop) => Some("loop"),
            Err(error) => panic!("{error}"),
        }
    }

    fn defined(definitions: impl Iterator<Item = (String, Value)>) -> Value {
        json!({"$ref": "#/$defs/d0", "$defs": definitions.collect::<Map<_, _>>()})
    }

    /// `d0` leads to `d1` and so on, each as `wrap` has it; the last is an integer.
    fn row(length: usize, wrap: impl Fn(Value) -> Value) -> Value {
        let link = |i: usize| wrap(json!({"$ref": format!("#/$defs/d{}", i + 1)}));
        let links = (0..length).map(|i| (format!("d{i}"), link(i)));
        defined(links.chain([(format!("d{length}"), json!({"type": "integer"}))]))
    }

    #[test]
    fn what_is_in_use_is_taken() {
        let node = json!({"$ref": "#/$defs/node"});
        let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
            "properties": {"left": node, "right": {"anyOf": [node, {"type": "null"}]}}}}});
        assert_eq!(refused(&tree), None);
        assert_eq!(refused(&row(MAX_CHAIN - 1, |to| to)), None);
        assert_eq!(refused(&row(200, |to| json!({"type": "array", "items": to}))), None);
        assert_eq!(refused(&json!({"$ref": "http://elsewhere/x"})), None);
        // A property may be called so, and a value may look so.
        assert_eq!(
            refused(&json!({"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "#"}})),
            None
        );
    }

    #[test]
    fn each_bound_is_named() {
        let deep = (0..MAX_NESTING).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(refused(&deep), Some("levels of nesting"));
        assert_eq!(refused(&json!({"description": "x".repeat(MAX_BYTES)})), Some("bytes"));
        let many: Map<_, _> = (0..=MAX_PROPERTIES).map(|i| (format!("p{i}"), json!({}))).collect();
        assert_eq!(refused(&json!({"properties": many})), Some("properties in one object"));
        let long = "x".repeat(MAX_PATTERN + 1);
        assert_eq!(refused(&json!({"items": {"pattern": long}})), Some("bytes in one pattern"));
        assert_eq!(
            refused(&json!({"patternProperties": {long: {}}})),
            Some("bytes in one pattern")
        );
        let any = |count: usize| json!({"anyOf": vec![json!({}); count]});
        assert_eq!(
            refused(&json!({"allOf": [any(50), any(50)]})),
            Some("combinations in one `allOf`")
        );
        assert_eq!(refused(&json!({"allOf": [any(40), any(40)]})), None);
        assert_eq!(refused(&any(5000)), None);
        assert_eq!(refused(&row(MAX_CHAIN + 1, |to| to)), Some("references in a row"));
        assert_eq!(refused(&row(7000, |to| to)), Some("references in a row"));
        let nested = row(400, |to| json!({"type": "object", "properties": {"a": to}}));
        assert_eq!(refused(&nested), Some("levels of nesting with its references followed"));
        let wide: Vec<Value> = (0..2000).map(|_| json!({})).collect();
        let uses: Vec<Value> = (0..2000).map(|_| json!({"$ref": "#/$defs/wide"})).collect();
        let wide = json!({"anyOf": uses, "$defs": {"wide": {"anyOf": wide}}});
        assert_eq!(refused(&wide), Some("values with its references followed"));
    }

    #[test]
    fn references_that_lead_nowhere_are_a_loop() {
        assert_eq!(refused(&json!({"$ref": "#"})), Some("loop"));
        assert_eq!(refused(&json!({"$ref": "#/", "description": "me"})), Some("loop"));
        let two = json!({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}});
        assert_eq!(
            refused(&json!({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": two})),
            Some("loop")
        );
        let long = (0..50)
            .map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", (i + 1) % 50)})));
        assert_eq!(refused(&defined(long)), Some("loop"));
    }
}
