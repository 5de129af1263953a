//! The largest schemas and grammars that are taken compile within a quarter of a compiler's stack,
//! in bounded time, and leave masks that can be made on a small one; what is larger is refused
//! before anything recurses.

use super::tests::tokenizer;
use super::*;
use std::time::Duration;

/// Compiles on a quarter of the stack, makes some masks on a thread as small as any, and says how
/// it went.
fn outcome(grammars: &Grammars, form: Form<'_>) -> Result<(), String> {
    let rules = form.rules().map_err(|error| error.to_string())?;
    let factory = Arc::clone(&grammars.factory);
    let lark = format!("start: value\n{rules}");
    let work = move || matcher(&factory, lark, "schema");
    let compiled =
        grammars.compilers.run_within(compile::STACK / 4, Duration::from_secs(60), "schema", work);
    let mut matcher = compiled.map_err(|error| error.to_string())?;
    let masks = move || {
        for _ in 0..6 {
            let mask =
                matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))?;
            let token = mask.iter().last().ok_or("nothing may come next")?;
            if matcher.is_stopped() {
                break;
            }
            matcher.consume_token(token).map_err(|error| first_line(&error.to_string()))?;
        }
        let other = matcher.deep_clone();
        drop(other);
        Ok(())
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(masks).unwrap();
    thread.join().expect("a mask does not panic")
}

fn chained(length: usize, wrap: impl Fn(Value) -> Value) -> Value {
    let mut defs: serde_json::Map<_, _> = (0..length)
        .map(|i| (format!("d{i}"), wrap(json!({"$ref": format!("#/$defs/d{}", i + 1)}))))
        .collect();
    defs.insert(format!("d{length}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

fn object_of(count: usize, required: bool) -> Value {
    let names: Vec<String> = (0..count).map(|i| format!("p{i}")).collect();
    let properties: serde_json::Map<_, _> =
        names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
    let required = if required { names } else { Vec::new() };
    json!({"type": "object", "properties": properties, "required": required,
        "additionalProperties": false})
}

#[test]
fn the_largest_that_are_taken_fit_a_quarter_of_the_stack() {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    let nested = |count: usize, inner: &dyn Fn(Value) -> Value| {
        (0..count).fold(json!({"type": "integer"}), |value, _| inner(value))
    };
    let array = |items: Value| json!({"type": "array", "items": items, "minItems": 1});
    let object = |a: Value| json!({"type": "object", "properties": {"a": a}, "required": ["a"]});
    let either = |one: Value| json!({"anyOf": [one, {"type": "null"}]});
    let all = |one: Value| json!({"allOf": [one, {"description": "x"}]});
    for schema in [
        chained(bounds::MAX_CHAIN - 1, |to| to),
        chained(500, array),
        chained(330, object),
        chained(330, either),
        chained(330, all),
        nested(126, &array),
        nested(63, &object),
        nested(63, &either),
        nested(63, &all),
        object_of(bounds::MAX_PROPERTIES, true),
        object_of(bounds::MAX_PROPERTIES, false),
        json!({"type": "array", "prefixItems": vec![json!({"type": "null"}); 5000],
            "items": false}),
        json!({"enum": (0..14_000).map(|i| format!("value-{i}")).collect::<Vec<_>>()}),
        json!({"const": nested(120, &|value| json!([value]))}),
    ] {
        let text = schema.to_string();
        outcome(&grammars, Form::Json(&schema))
            .unwrap_or_else(|error| panic!("{error}: {:.100}", text));
    }
}

#[test]
fn hard_schemas_end_in_an_answer_or_a_reason() {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let doubled: serde_json::Map<_, _> = (0..60)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            (format!("d{i}"), json!({"allOf": [next.clone(), next]}))
        })
        .chain([("d60".to_owned(), object_of(20, false))])
        .collect();
    // What a refusal says; nothing where it is taken.
    let any = |name: &str| -> Vec<Value> {
        (0..200).map(|i| json!({"type": "object", "required": [format!("{name}{i}")]})).collect()
    };
    let patterns: serde_json::Map<_, _> =
        (0..60).map(|i| (format!("^(a|b)*{i}.*$"), json!({}))).collect();
    for (schema, refusal) in [
        (text("^(a+)+$"), ""),
        (text("^(a{1,1000}){1,1000}$"), ""),
        (text("^((((a{0,100}){0,100}){0,100}){0,100})$"), ""),
        (text("^[\\p{L}]{1,500}$"), ""),
        (text("(x+x+)+y"), ""),
        (text("^(.*a.{30}|.*b.{40})$"), ""),
        (text(&"(".repeat(2000)), "does not parse"),
        (text(&"a?".repeat(2000)), "too many"),
        (json!({"type": "string", "minLength": 1_000_000_000}), ""),
        (json!({"type": "string", "minLength": 10_000_000_000_000u64}), "does not parse"),
        (json!({"type": "string", "pattern": "a", "minLength": 1_000_000}), "Unable to determine"),
        (json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000_000}), ""),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 5,
                "maxItems": 1_000_000_000}),
            "",
        ),
        (json!({"type": "object", "minProperties": 1_000_000_000}), ""),
        (json!({"type": "integer", "minimum": -1e30, "maximum": 1e30}), ""),
        (json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX}), ""),
        (
            json!({"type": "array", "items": {"type": "number", "minimum": -1e300,
                "exclusiveMaximum": 1e300}}),
            "",
        ),
        (
            json!({"type": "integer", "minimum": -9_007_199_254_740_991i64,
                "maximum": 9_007_199_254_740_991i64}),
            "",
        ),
        (json!({"type": "integer", "minimum": 1e30}), "18 digits"),
        (json!({"type": "integer", "multipleOf": 4_294_967_291u64}), "too large"),
        (json!({"type": "number", "multipleOf": 1e-300}), "too many digits"),
        (json!({"$ref": "#/$defs/d0", "$defs": doubled}), ""),
        (json!({"allOf": [{"anyOf": any("a")}, {"anyOf": any("b")}]}), "combinations"),
        (json!({"patternProperties": patterns}), "not disjoint"),
        (json!({"anyOf": [{"$ref": "#"}]}), "nothing fits"),
        (json!({"allOf": [{"$ref": "#"}], "type": "object"}), "circular"),
        (json!({"minimum": "é".repeat(60)}), "gave up"),
    ] {
        let text = schema.to_string();
        let said = outcome(&grammars, Form::Json(&schema)).err().unwrap_or_default();
        assert!(
            said.contains(refusal) && said.is_empty() == refusal.is_empty(),
            "{said}: {text:.100}"
        );
    }
}

#[test]
fn hard_grammars_end_in_an_answer_or_a_reason() {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    let row = |count: usize, name: &str| -> String {
        (0..count).map(|i| format!("{name}{i}: {name}{}\n", i + 1)).collect()
    };
    let brackets = |count: usize| format!("start: {}\"x\"{}", "(".repeat(count), ")".repeat(count));
    let groups =
        |count: usize| format!("root ::= {}\"x\"{}", "(".repeat(count), ")*".repeat(count));
    for grammar in [
        brackets(lark::MAX_NESTING),
        groups(lark::MAX_NESTING),
        format!("start: t0\n{}t4000: \"x\"\n", row(4000, "t")),
        format!("start: T0\n{}T4000: \"x\"\n", row(4000, "T")),
        format!("start: A\nA: {}\nB: /[a-z]{{50}}/\n", "B ".repeat(30_000)),
        format!("root ::= {}", "\"a\"? ".repeat(2000)),
        "root ::= \"a\"{1000000000}".to_owned(),
        "root ::= a{1000000}\na ::= \"x\" | \"(\" a \")\"".to_owned(),
        "root ::= root root | \"a\" | \"\"".to_owned(),
        "start: a~1..1000000000\na: \"x\" | \"(\" a \")\"".to_owned(),
        "root ::= (([a-z]{1,100}){1,100}){1,100} \"!\"".to_owned(),
    ] {
        let result = outcome(&grammars, Form::Grammar(&grammar));
        assert_eq!(result, Ok(()), "{grammar:.100}");
    }
    for (regex, taken) in [
        ("(".repeat(bounds::MAX_PATTERN), false),
        ("a".repeat(bounds::MAX_PATTERN), true),
        ("a".repeat(bounds::MAX_PATTERN + 1), false),
        ("(a{1,1000}){1,1000}".to_owned(), true),
        (".*a.{1000}".to_owned(), true),
    ] {
        assert_eq!(outcome(&grammars, Form::Regex(&regex)).is_ok(), taken, "{regex:.100}");
    }
}
