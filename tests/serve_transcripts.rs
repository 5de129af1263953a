//! Transcripts: what is sent, as curl would say it, and what comes back, kept as snapshots. Ids,
//! times and figures that depend on the clock are left out. `cargo insta review`, or
//! `INSTA_UPDATE=always cargo test`, takes a change in.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Response, Server};
use serde_json::{Value, json};

/// Replaces what differs from run to run.
fn steady(value: &mut Value) {
    let Value::Object(fields) = value else {
        if let Value::Array(items) = value {
            items.iter_mut().for_each(steady);
        }
        return;
    };
    for (name, field) in fields.iter_mut() {
        match (name.as_str(), &field) {
            ("created" | "created_at", _) => *field = json!("[time]"),
            ("timing", Value::Object(_)) => *field = json!("[timing]"),
            ("id" | "call_id" | "item_id", Value::String(id)) => {
                if let Some((kind, _)) = id.split_once(['-', '_']) {
                    *field = json!(format!("[{kind}]"));
                }
            }
            _ => steady(field),
        }
    }
}

/// Where the pieces of a delta are: how a text is cut into events depends on the clock.
const PIECES: [&str; 7] = [
    "/choices/0/delta/content",
    "/choices/0/delta/reasoning_content",
    "/choices/0/delta/tool_calls/0/function/arguments",
    "/delta/text",
    "/delta/thinking",
    "/delta/partial_json",
    "/delta",
];

/// Adds an event to the one before it where both are pieces of one text.
fn merge(last: &mut Value, next: &Value) -> bool {
    // The beginning of a message or a call, and what a token says of itself, are events of their
    // own.
    let own = ["/choices/0/delta/role", "/choices/0/delta/tool_calls/0/id", "/forerun"];
    let alone = |event: &Value| own.iter().any(|place| event.pointer(place).is_some());
    let differ = ["type", "item_id", "index"].iter().any(|name| last[*name] != next[*name]);
    if differ || alone(last) || alone(next) {
        return false;
    }
    let piece = |event: &Value, place: &str| {
        event.pointer(place).and_then(Value::as_str).map(str::to_owned)
    };
    let shared =
        PIECES.iter().find_map(|place| Some((place, piece(last, place)?, piece(next, place)?)));
    let Some((place, text, more)) = shared else { return false };
    if let Some(whole) = last.pointer_mut(place) {
        *whole = json!(text + &more);
    }
    true
}

/// The lines of a stream with texts put together, and numbered anew.
fn joined(body: &str) -> String {
    let mut events: Vec<(String, Result<Value, String>)> = Vec::new();
    for event in body.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.split_at(event.find("data: ").unwrap_or(0));
        let data = data.strip_prefix("data: ").unwrap_or(data);
        let next = serde_json::from_str::<Value>(data).map_err(|_| data.to_owned());
        let merged = match (events.last_mut(), &next) {
            (Some((_, Ok(last))), Ok(next)) => merge(last, next),
            _ => false,
        };
        if !merged {
            events.push((name.to_owned(), next));
        }
    }
    let mut text = String::new();
    for (i, (name, data)) in events.into_iter().enumerate() {
        let data = match data {
            Ok(mut data) => {
                if data.get("sequence_number").is_some() {
                    data["sequence_number"] = json!(i);
                }
                data.to_string()
            }
            Err(other) => other,
        };
        text += &format!("{name}data: {data}\n\n");
    }
    text
}

/// A line of a body without what differs from run to run.
fn steady_line(line: &str) -> String {
    let (prefix, data) = line.strip_prefix("data: ").map_or(("", line), |data| ("data: ", data));
    match serde_json::from_str::<Value>(data) {
        Ok(mut value @ Value::Object(_)) => {
            steady(&mut value);
            format!("{prefix}{value}")
        }
        _ => line.to_owned(),
    }
}

fn transcript(method: &str, path: &str, body: Option<&Value>, response: &Response) -> String {
    let mut text = format!("$ curl -i -X {method} http://127.0.0.1:8000{path}");
    if let Some(body) = body {
        text += &format!(" \\\n    -H 'content-type: application/json' \\\n    -d '{body}'");
    }
    let kept =
        ["http/", "content-type:", "retry-after:", "www-authenticate:", "content-security-policy:"];
    let heads = response
        .head
        .lines()
        .filter(|line| kept.iter().any(|name| line.to_lowercase().starts_with(name)));
    let heads: Vec<&str> = heads.collect();
    let stream = response.head.contains("text/event-stream");
    let body = if stream { joined(&response.body) } else { response.body.clone() };
    let lines: Vec<String> = body.lines().map(steady_line).collect();
    format!("{text}\n\n{}\n\n{}\n", heads.join("\n"), lines.join("\n"))
}

#[test]
fn transcripts() {
    let server = Server::start(&["--spec", "chain"]);
    let sum = json!([{"role": "user", "content": "Compute the sum of 947 and 477."}]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]});
    let function = json!({"name": "add", "description": "Add two integers.", "parameters": schema});
    let tools = json!([{"type": "function", "function": function}]);
    let responses_tools = json!([{"type": "function", "name": "add", "description": "Add two integers.", "parameters": schema}]);
    let anthropic_tools =
        json!([{"name": "add", "description": "Add two integers.", "input_schema": schema}]);
    let boolean =
        json!({"type": "json_schema", "json_schema": {"name": "b", "schema": {"type": "boolean"}}});
    let cases = [
        ("chat", "/v1/chat/completions", json!({"messages": sum, "temperature": 0, "seed": 1})),
        (
            "chat_stream",
            "/v1/chat/completions",
            json!({"messages": sum, "temperature": 0, "seed": 1, "max_tokens": 12,
            "stream": true, "stream_options": {"include_usage": true}}),
        ),
        (
            "chat_origins",
            "/v1/chat/completions",
            json!({"messages": sum, "temperature": 0, "seed": 1, "max_tokens": 6,
            "stream": true, "forerun": {"origins": true}}),
        ),
        (
            "chat_tools_stream",
            "/v1/chat/completions",
            json!({"messages": sum, "temperature": 0, "seed": 1,
            "tools": tools, "stream": true}),
        ),
        (
            "chat_schema",
            "/v1/chat/completions",
            json!({"messages": sum, "temperature": 0, "seed": 1,
            "reasoning_effort": "none", "response_format": boolean}),
        ),
        (
            "chat_logprobs",
            "/v1/chat/completions",
            json!({"messages": sum, "temperature": 0, "seed": 1,
            "max_tokens": 1, "logprobs": true, "top_logprobs": 1}),
        ),
        (
            "completion",
            "/v1/completions",
            json!({"prompt": "def add(a, b):", "temperature": 0, "seed": 1, "max_tokens": 8}),
        ),
        (
            "responses",
            "/v1/responses",
            json!({"input": "Compute the sum of 947 and 477.", "temperature": 0, "seed": 1,
            "tools": responses_tools}),
        ),
        (
            "responses_stream",
            "/v1/responses",
            json!({"input": "Compute the sum of 947 and 477.", "temperature": 0, "seed": 1,
            "max_output_tokens": 40, "tools": responses_tools, "stream": true}),
        ),
        (
            "messages",
            "/v1/messages",
            json!({"messages": sum, "max_tokens": 60, "temperature": 0, "seed": 1}),
        ),
        (
            "messages_stream",
            "/v1/messages",
            json!({"messages": sum, "max_tokens": 60, "temperature": 0, "seed": 1,
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": anthropic_tools, "stream": true}),
        ),
        ("tokenize", "/tokenize", json!({"prompt": "Grüße, 世界 👋"})),
        ("wrong_field", "/v1/chat/completions", json!({"messages": sum, "temperature": 300})),
        (
            "wrong_schema",
            "/v1/chat/completions",
            json!({"messages": sum,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "unicorn"}}}}),
        ),
        (
            "wrong_image",
            "/v1/messages",
            json!({"max_tokens": 1,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        ),
    ];
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("serve/transcripts");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, path, body) in &cases {
            let response = server.post(path, body);
            insta::assert_snapshot!(*name, transcript("POST", path, Some(body), &response));
        }
        for (name, path) in
            [("models", "/v1/models"), ("health", "/health"), ("nothing", "/v1/nothing")]
        {
            insta::assert_snapshot!(name, transcript("GET", path, None, &server.get(path, "")));
        }
    });
}
