//! Requests that nobody in their right mind would send. Each gets an answer or a refusal, the next
//! good request is served, and when all of them have come twice the server has no more memory than
//! after the first time.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

/// Bytes that the second round may leave behind, for what allocators and caches do.
#[cfg(target_os = "linux")]
const MARGIN: u64 = 64 << 20;

/// What is sent, and the statuses that may come back; 0 is a connection that ends without one.
struct Abuse {
    name: String,
    bytes: Vec<u8>,
    statuses: &'static [u16],
}

/// A request and its body's length, as it should be.
fn request(path: &str, body: &str, headers: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n\
        Content-Length: {length}\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

fn abuse(name: impl Into<String>, path: &str, body: &Value, statuses: &'static [u16]) -> Abuse {
    Abuse { name: name.into(), bytes: request(path, &body.to_string(), ""), statuses }
}

/// A chat that asks for more than a chat.
fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn format_of(schema: Value) -> Value {
    chat(
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
    )
}

fn chain(length: usize, wrap: fn(Value) -> Value) -> Value {
    let link = |i: usize| (format!("d{i}"), wrap(json!({"$ref": format!("#/$defs/d{}", i + 1)})));
    let mut definitions: Map<String, Value> = (0..length).map(link).collect();
    definitions.insert(format!("d{length}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn object_of(count: usize) -> Value {
    let properties: Map<_, _> =
        (0..count).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    json!({"type": "object", "properties": properties})
}

fn nested(count: usize, wrap: fn(Value) -> Value) -> Value {
    (0..count).fold(json!({"type": "integer"}), |inner, _| wrap(inner))
}

/// A schema through every way into the server.
fn through(name: &str, schema: &Value) -> Vec<Abuse> {
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]);
    let format = json!({"type": "json_schema", "name": "x", "schema": schema});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let ways = [
        ("response_format", CHAT, format_of(schema.clone())),
        ("forced tool", CHAT, chat(json!({"tools": tool, "tool_choice": "required"}))),
        (
            "text.format",
            "/v1/responses",
            json!({"input": "hi", "max_output_tokens": 3, "text": {"format": format}}),
        ),
        (
            "anthropic tool",
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 3, "tool_choice": {"type": "any"},
                "tools": [{"name": "f", "input_schema": schema}]}),
        ),
        (
            "output_config",
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 3, "output_config": {"format": format}}),
        ),
        (
            "guided_json",
            "/v1/completions",
            json!({"prompt": "hi", "max_tokens": 3, "guided_json": schema}),
        ),
        ("json_schema", CHAT, chat(json!({"json_schema": schema.to_string()}))),
    ];
    ways.into_iter()
        .map(|(way, path, body)| abuse(format!("{name} by {way}"), path, &body, &[400]))
        .collect()
}

fn schemas() -> Vec<Abuse> {
    let property = |inner: Value| json!({"type": "object", "properties": {"a": inner}});
    let mut all = through("a chain of 700 references", &chain(700, |to| to));
    all.extend(through("1500 objects nested by references", &chain(1500, property)));
    let deep = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": chain(300, property)}});
    all.push(abuse(
        "300 objects nested by references",
        CHAT,
        &chat(json!({"response_format": deep})),
        &[200],
    ));
    all.extend(through("4500 properties", &object_of(4500)));
    all.extend(through("a reference to itself", &json!({"$ref": "#"})));
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let any = |count: usize| json!({"anyOf": (0..count).map(|i| json!({"required": [format!("r{i}")]})).collect::<Vec<_>>()});
    let two = json!({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}});
    let double: fn(Value) -> Value = |to| json!({"allOf": [to, to]});
    for (name, schema, statuses) in [
        ("two references to each other", json!({"$ref": "#/$defs/a", "$defs": two}), &[400][..]),
        ("any of itself", json!({"anyOf": [{"$ref": "#"}]}), &[400]),
        ("all of itself", json!({"allOf": [{"$ref": "#"}], "type": "object"}), &[400]),
        ("a reference elsewhere", json!({"$ref": "http://127.0.0.1:1/x.json"}), &[400]),
        ("a reference to nowhere", json!({"$ref": "#/$defs/none"}), &[400]),
        (
            "a tree of itself",
            chain(1, |_| json!({"type": "array", "items": {"$ref": "#/$defs/d0"}})),
            &[200],
        ),
        (
            "50 arrays inside each other",
            nested(50, |inner| json!({"type": "array", "items": inner})),
            &[200],
        ),
        (
            "120 arrays inside each other",
            nested(120, |inner| json!({"type": "array", "items": inner})),
            &[200, 400],
        ),
        ("a doubling allOf", chain(60, double), &[200, 400]),
        ("200 times 200 combinations", json!({"allOf": [any(200), any(200)]}), &[400]),
        ("anyOf in anyOf", nested(12, |inner| json!({"anyOf": [inner, inner]})), &[200]),
        (
            "an enum of 10000",
            json!({"enum": (0..10_000).map(|i| format!("v{i}")).collect::<Vec<_>>()}),
            &[200],
        ),
        (
            "an enum of 50000",
            json!({"enum": (0..50_000).map(|i| format!("v{i}")).collect::<Vec<_>>()}),
            &[400],
        ),
        ("a description of 300 KB", json!({"description": "x".repeat(300_000)}), &[400]),
        ("repeats of repeats", text("^(a+)+$"), &[200]),
        ("a million letters at most", text("^(a{1,1000}){1,1000}$"), &[200]),
        ("four repeats", text("^((((a{0,100}){0,100}){0,100}){0,100})$"), &[200]),
        ("2000 brackets", text(&"(".repeat(2000)), &[400]),
        ("3000 letters that need not be", text(&"a?".repeat(3000)), &[200, 400]),
        ("a look ahead", text("^(?=a)b$"), &[400]),
        ("any letters", text("^[\\p{L}]{1,500}$"), &[200]),
        ("a billion letters", json!({"type": "string", "minLength": 1_000_000_000}), &[200]),
        ("too many letters to count", json!({"type": "string", "minLength": 1e18 as u64}), &[400]),
        ("a billion items", json!({"type": "array", "minItems": 1_000_000_000}), &[200]),
        ("a billion properties", json!({"type": "object", "minProperties": 1_000_000_000}), &[200]),
        (
            "numbers beyond numbers",
            json!({"type": "integer", "minimum": -1e30, "maximum": 1e30}),
            &[200, 400],
        ),
        (
            "multiples of a prime",
            json!({"type": "integer", "multipleOf": 4_294_967_291u64}),
            &[400],
        ),
        ("nothing at all", json!(false), &[400]),
        ("a type that is none", json!({"type": "unicorn"}), &[400]),
        ("a type that is a number", json!({"type": 3}), &[400]),
        ("properties that are none", json!({"properties": 3}), &[400]),
        ("a long name in a wrong place", json!({"minimum": "é".repeat(60)}), &[400]),
        ("a schema that is a number", json!(3), &[400]),
    ] {
        all.push(abuse(name, CHAT, &format_of(schema), statuses));
    }
    all
}

fn forms() -> Vec<Abuse> {
    let row: String = (0..8000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let doubled: String = (0..30).map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1)).collect();
    let brackets =
        |count: usize| format!("root ::= {}\"x\"{}", "(".repeat(count), ")".repeat(count));
    let cases = [
        ("a regex of brackets", json!({"guided_regex": "(".repeat(8000)}), &[400][..]),
        ("a regex of options", json!({"guided_regex": "a?".repeat(4000)}), &[200, 400]),
        ("a regex that looks back", json!({"regex": "(a)\\1"}), &[400]),
        (
            "a regex of a megabyte",
            json!({"structured_outputs": {"regex": "a".repeat(1 << 20)}}),
            &[400],
        ),
        ("a regex that is none", json!({"guided_regex": 3}), &[400]),
        ("100000 choices", json!({"guided_choice": vec!["x"; 100_000]}), &[400]),
        ("no choice", json!({"structured_outputs": {"choice": []}}), &[400]),
        ("a grammar of 1000 brackets", json!({"grammar": brackets(1000)}), &[400]),
        (
            "a grammar of 8000 rules",
            json!({"guided_grammar": format!("root ::= r0\n{row}r8000 ::= \"x\"")}),
            &[400],
        ),
        (
            "a grammar that doubles",
            json!({"ebnf": format!("start: T0\n{doubled}T30: \"x\"\n")}),
            &[400],
        ),
        ("a grammar of itself", json!({"grammar": "root ::= root"}), &[400]),
        (
            "a grammar of both its sides",
            json!({"grammar": "root ::= root root | \"a\" | \"\""}),
            &[200, 400],
        ),
        (
            "a grammar that breaks out",
            json!({"grammar": "start: \"x\"\n}\nvalue: /.*/\n%lark {"}),
            &[400],
        ),
        ("a grammar with a schema", json!({"grammar": "start: %json {\"$ref\": \"#\"}"}), &[400]),
        ("a grammar of a billion", json!({"grammar": "root ::= \"a\"{1000000000}"}), &[200, 400]),
        ("a tag", json!({"response_format": {"type": "structural_tag", "structures": []}}), &[400]),
        ("two forms", json!({"guided_regex": "a", "guided_choice": ["a"]}), &[400]),
        ("a form without an end", json!({"guided_regex": "a", "ignore_eos": true}), &[400]),
        ("no token at all", json!({"allowed_token_ids": []}), &[400]),
        ("tokens that are none", json!({"stop_token_ids": [4_000_000_000u64]}), &[400]),
        ("a negative least", json!({"min_tokens": -1}), &[400]),
        ("more at least than at most", json!({"min_tokens": 50}), &[400]),
        ("1000 bad words", json!({"bad_words": vec!["x"; 1000]}), &[400]),
        (
            "1025 tools",
            json!({"tools": vec![json!({"type": "function", "function": {"name": "f"}}); 1025]}),
            &[400],
        ),
        (
            "functions of nothing",
            json!({"functions": [{}], "function_call": {"name": "f"}}),
            &[400],
        ),
    ];
    cases
        .into_iter()
        .map(|(name, more, statuses)| abuse(name, CHAT, &chat(more), statuses))
        .collect()
}

/// Bodies and heads, byte for byte.
fn bytes() -> Vec<Abuse> {
    let good = chat(json!({})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n";
    let length = format!("Content-Length: {}\r\n", good.len());
    let chunk = format!("{:x}\r\n{good}\r\n0\r\n\r\n", good.len());
    let smuggled = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let many: String = (0..300).map(|i| format!("X{i}: a\r\n")).collect();
    let deep =
        |count: usize| format!("{{\"messages\":{}{}}}", "[".repeat(count), "]".repeat(count));
    let post = |body: &str| request(CHAT, body, "");
    let text = |body: &[u8]| {
        let mut bytes =
            format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len())
                .into_bytes();
        bytes.extend(body);
        bytes
    };
    let cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("a body 100000 deep", post(&deep(100_000)), &[400]),
        ("a body 127 deep", post(&deep(127)), &[400]),
        ("no body", post(""), &[400]),
        ("no JSON", post("hello"), &[400]),
        ("an array", post("[]"), &[400]),
        ("half of a body", post(&good[..20]), &[400]),
        ("a number beyond numbers", post(&good.replace("\"max_tokens\":3", "\"max_tokens\":1e999")), &[400]),
        ("NaN", post(&good.replace("\"max_tokens\":3", "\"max_tokens\":NaN")), &[400]),
        ("a lone surrogate", post(&good.replace("\"hi\"", "\"\\ud800\"")), &[400]),
        ("bytes that are no text", text(b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"), &[400]),
        ("zeros and controls", post(&good.replace("\"hi\"", "\"\\u0000\\u001b[31m\\u202e\\ufdd0<|im_end|>\"")), &[200]),
        ("names said twice", post(&good.replacen('{', "{\"max_tokens\":9,", 1)), &[200]),
        ("17 MB", post(&format!("{{\"x\":\"{}\"}}", "a".repeat(17 << 20))), &[413, 0]),
        ("plain text", [b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}".as_slice()].concat(), &[415]),
        ("a length and an encoding", format!("{head}{length}Transfer-Encoding: chunked\r\n\r\n{chunk}{smuggled}").into_bytes(), &[400]),
        ("an encoding and a length", format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunk}{smuggled}").into_bytes(), &[400]),
        ("two lengths", format!("{head}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}").into_bytes(), &[400]),
        ("a length below nothing", format!("{head}Content-Length: -1\r\n\r\n").into_bytes(), &[400]),
        ("a length that is none", format!("{head}Content-Length: two\r\n\r\n{{}}").into_bytes(), &[400]),
        ("an encoding that is none", format!("{head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n").into_bytes(), &[400]),
        ("a chunk of no size", format!("{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n{good}\r\n0\r\n\r\n").into_bytes(), &[400, 0]),
        ("a chunk of any size", format!("{head}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{good}").into_bytes(), &[400, 0]),
        ("half of a chunk", format!("{head}Transfer-Encoding: chunked\r\n\r\nff\r\n{{").into_bytes(), &[400, 0]),
        ("a header of a megabyte", format!("{head}X: {}\r\n\r\n", "a".repeat(1 << 20)).into_bytes(), &[431, 0]),
        ("300 headers", format!("{head}{many}{length}\r\n{good}").into_bytes(), &[431, 400, 0]),
        ("a header with a zero", format!("{head}X: \0\r\n\r\n").into_bytes(), &[400]),
        ("half of a head", head.as_bytes()[..40].to_vec(), &[0, 400]),
        ("half of a promised body", format!("{head}{length}\r\n{}", &good[..30]).into_bytes(), &[400, 0]),
        ("another protocol", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), &[0, 400, 505]),
        ("a handshake", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), &[0; 100]].concat(), &[0, 400]),
        ("a method that is none", b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".to_vec(), &[404, 405]),
        ("somebody else's name", b"GET /health HTTP/1.1\r\nHost: elsewhere\r\nConnection: close\r\n\r\n".to_vec(), &[403]),
    ];
    cases
        .into_iter()
        .map(|(name, bytes, statuses)| Abuse { name: name.to_owned(), bytes, statuses })
        .collect()
}

/// Sends bytes and nothing more; the status that comes back, and all of it. Whoever refuses early
/// may end the connection before everything is sent.
fn exchange(server: &Server, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let _ = stream.write_all(bytes);
    // Whoever hangs up is answered no more, so a whole request waits for its answer.
    if !bytes.windows(17).any(|window| window == b"Connection: close") {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

/// Bytes of memory that the server has.
#[cfg(target_os = "linux")]
fn memory(server: &Server) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn after_every_abuse_the_next_good_request_is_served() {
    let server = Server::start(&[]);
    let abuses: Vec<Abuse> = [schemas(), forms(), bytes()].into_iter().flatten().collect();
    assert!(abuses.len() >= 60, "{} abuses", abuses.len());
    let good = chat(json!({}));
    let served = server.chat(&good)["choices"].clone();
    let mut sizes = Vec::new();
    for _ in 0..2 {
        for Abuse { name, bytes, statuses } in &abuses {
            let (status, answer) = exchange(&server, bytes);
            let told: String = answer.chars().take(700).collect();
            assert!(statuses.contains(&status), "{name}: {status}, not {statuses:?}\n{told}");
            // Errors of the server's own say which field is wrong; one answer comes back, whatever
            // was smuggled.
            assert_eq!(
                answer.matches("HTTP/1.1 ").count(),
                usize::from(status > 0),
                "{name}: {told}"
            );
            assert_eq!(server.chat(&good)["choices"], served, "after {name}");
        }
        #[cfg(target_os = "linux")]
        sizes.push(memory(&server));
    }
    #[cfg(target_os = "linux")]
    assert!(sizes[1] <= sizes[0] + MARGIN, "{sizes:?}");
}

#[test]
fn a_refused_schema_names_its_field_in_the_shape_of_the_api() {
    let server = Server::start(&[]);
    for Abuse { name, bytes, .. } in through("a reference to itself", &json!({"$ref": "#"})) {
        let (status, answer) = exchange(&server, &bytes);
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        let body: Value =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (_, way) = name.rsplit_once(" by ").unwrap();
        let (param, anthropic) = match way {
            "forced tool" => ("tool_choice", false),
            "anthropic tool" => ("tool_choice", true),
            "output_config" => ("output_config.format", true),
            way => (way, false),
        };
        assert_eq!(status, 400, "{name}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(
            message.contains(param) && message.contains("lead back to themselves"),
            "{name}: {body}"
        );
        match anthropic {
            true => assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("invalid_request_error"))
            ),
            false => assert_eq!(body["error"]["param"], param, "{name}: {body}"),
        }
    }
}
