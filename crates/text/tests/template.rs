//! Templates against Python's jinja2, and templates that mean harm.

use serde_json::{Map, Value, json};
use text::{ChatTemplate, Prompt, TemplateError};

const TEMPLATES: [(&str, &str); 2] = [
    ("chat_template.jinja", include_str!("fixtures/chat_template.jinja")),
    ("features.jinja", include_str!("fixtures/features.jinja")),
];

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn text_is_that_of_python() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("template/cases.json")).expect("json");
    let expected: Value =
        serde_json::from_str(include_str!("template/expected.json")).expect("json");
    for (file, source) in TEMPLATES {
        let template = ChatTemplate::new(source).expect("parses");
        for case in &cases {
            let name = case["name"].as_str().expect("a name");
            let prompt = Prompt {
                messages: list(&case["messages"]),
                tools: list(&case["tools"]),
                add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(true),
                enable_thinking: case["enable_thinking"].as_bool(),
                extra: case["extra"].as_object().cloned().unwrap_or_default(),
            };
            let found = match template.render(&prompt) {
                Ok(text) => json!({"text": text}),
                Err(TemplateError::Refused(message)) => json!({"refused": message}),
                Err(error) => json!({"failed": error.to_string()}),
            };
            let expected = &expected[file][name];
            for (line, (found, expected)) in lines(&found).zip(lines(expected)).enumerate() {
                assert_eq!(found, expected, "{file}, {name}, line {line}");
            }
            assert_eq!(&found, expected, "{file}, {name}");
        }
    }
}

/// Where Python stops ours may go on (`for` over none), and `%` between texts is not there.
#[test]
fn expressions_are_those_of_python() {
    let cases: Vec<(String, Option<String>)> =
        serde_json::from_str(include_str!("template/expressions.json")).expect("json");
    let found = cases.iter().map(|(line, expected)| (line, render(line).ok(), expected));
    let other: Vec<_> = found.filter(|(_, found, expected)| found != *expected).collect();
    assert!(other.is_empty(), "{other:#?}");
}

fn lines(outcome: &Value) -> impl Iterator<Item = &str> {
    outcome["text"].as_str().unwrap_or_default().lines()
}

fn render(source: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&Prompt::default())
}

#[test]
fn errors_have_a_type() {
    assert!(matches!(render("{% if %}"), Err(TemplateError::Syntax(_))));
    assert!(matches!(render("{{ nothing.at.all }}"), Err(TemplateError::Failed(_))));
    assert!(matches!(render("{{ nothing | tojson }}"), Err(TemplateError::Failed(_))));
    assert!(matches!(render("{% include 'other' %}"), Err(TemplateError::Failed(_))));
    assert!(matches!(render(&"x".repeat(200_000)), Err(TemplateError::TooLong(200_000))));
    let error = render("{% macro f() %}{{ raise_exception('no ' ~ 1) }}{% endmacro %}{{ f() }}")
        .expect_err("fails");
    assert_eq!(error.to_string(), "the chat template refuses: no 1");
}

#[test]
fn a_hostile_template_ends() {
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}";
    assert!(matches!(render(endless), Err(TemplateError::OutOfFuel)));
    assert!(matches!(
        render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        Err(TemplateError::Failed(_))
    ));
}

/// Nesting that neither the parser nor the destructors of the engine bound; without a deep stack
/// the process dies.
#[test]
fn a_deep_template_does_not_overflow_the_stack() {
    let n = 120_000;
    for (before, each, middle, after) in [
        ("{{ ", "-", "1", " }}"),
        ("{{ ", "not ", "1", " }}"),
        ("{{ 1", "+1", "", " }}"),
        ("{{ 1", "**1", "", " }}"),
        ("{{ a", ".b", "", " }}"),
        ("{{ 1", " if 1 else 2", "", " }}"),
        ("{{ ", "(", "1", " }}"),
        ("{% if 0 %}", "{% elif 0 %}", "", "{% endif %}"),
        ("{{ 'x'", "|e", "", " }}"),
        ("{{ 1", "~1", "", " }}"),
        ("{{ 1", " or 1", "", " }}"),
        ("{{ 1", "<1", "", " }}"),
        ("{{ a", "[1]", "", " }}"),
        ("{{ a", "()", "", " }}"),
        ("", "{% if 1 %}", "", ""),
    ] {
        let _ = render(&format!("{before}{}{middle}{after}", each.repeat(n / each.len())));
    }
    for show in [
        "",
        "{{ ns.x }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x == ns.y }}",
        "{{ {ns.x: 1} }}",
        "{{ ns.x | string | length }}",
    ] {
        let nest = "{% set ns = namespace(x=[], y=[]) %}{% for i in range(99999) %}{% for j in range(9) %}\
                    {% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{% endfor %}";
        let nest_less = nest.replace("99999", "9999");
        let _ = render(&format!("{nest}{show}"));
        let _ = render(&format!("{nest_less}{show}"));
    }
}

#[test]
fn requests_cannot_change_what_is_asked() {
    let mut extra = Map::new();
    extra.insert("messages".into(), json!("smuggled"));
    let template = ChatTemplate::new("{{ messages | length }} {{ strftime_now('%Y') | length }}")
        .expect("parses");
    let prompt = Prompt { extra, messages: &[json!({"role": "user"})], ..Prompt::default() };
    assert_eq!(template.render(&prompt).expect("renders"), "1 4");
}
