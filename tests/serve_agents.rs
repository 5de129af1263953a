//! What coding agents send, replayed over HTTP. `scripts/test-agents --record` wrote
//! `tests/fixtures/requests` while the agents did a task with a tool: fields, roles, tools and
//! schemas as they were, texts replaced.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Response, Server, read};
use serde_json::{Value, json};

const AGENTS: [&str; 5] = ["aider", "claude-code", "codex", "opencode", "qwen-code"];

#[test]
fn agents_are_answered_with_the_model_s_own_template() {
    replay_all(&Server::start(&[]));
}

#[test]
fn agents_are_answered_with_a_template_as_strict_as_qwen_s() {
    replay_all(&Server::start(&["--chat-template", "tests/fixtures/strict-template.jinja"]));
}

#[test]
fn agents_are_told_in_words_they_know_that_a_prompt_is_too_long() {
    let server = Server::start(&["--ctx", "64"]);
    let messages = json!([{"role": "user", "content": "word ".repeat(200)}]);
    let refused = |path: &str, body: Value| {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{refused:?}");
        refused.json()["error"].clone()
    };
    let chat = refused("/v1/chat/completions", json!({"messages": messages}));
    assert_eq!(chat["code"], "context_length_exceeded");
    let told = chat["message"].as_str().expect("words");
    assert!(told.contains("maximum context length is 64 tokens"), "{told}");
    let message = refused("/v1/messages", json!({"messages": messages, "max_tokens": 9}));
    let told = message["message"].as_str().expect("words");
    let count = told.strip_prefix("prompt is too long: ").expect(told);
    let (count, rest) = count.split_once(' ').expect(told);
    assert!(count.parse::<usize>().expect("a count") > 200, "{told}");
    assert_eq!(rest, "tokens > 64 maximum");
}

fn replay_all(server: &Server) {
    for agent in AGENTS {
        let file = format!("tests/fixtures/requests/{agent}.json");
        let recording = std::fs::read_to_string(&file).expect("a recording");
        let recording: Value = serde_json::from_str(&recording).expect("JSON");
        let requests = recording["requests"].as_array().expect("requests");
        assert!(!requests.is_empty(), "{file}");
        for (i, request) in requests.iter().enumerate() {
            replay(server, request, None, &format!("{agent}, request {i}"));
            if request["forced"] == true {
                let tool = recording["forced"].as_str().expect("a tool");
                replay(server, request, Some(tool), &format!("{agent}, request {i} with {tool}"));
            }
        }
    }
}

/// Sends a request as it was, but for a shorter answer; with a tool, as one that has to call it.
fn replay(server: &Server, request: &Value, tool: Option<&str>, about: &str) {
    let path = request["path"].as_str().expect("a path");
    let route = path.split('?').next().unwrap_or(path);
    let (limit, choice) = match route {
        "/v1/chat/completions" => {
            ("max_tokens", json!({"type": "function", "function": {"name": tool}}))
        }
        "/v1/responses" => ("max_output_tokens", json!({"type": "function", "name": tool})),
        "/v1/messages" => ("max_tokens", json!({"type": "tool", "name": tool})),
        other => panic!("{about} went to {other}"),
    };
    let mut body = request["body"].clone();
    body[limit] = json!(if tool.is_some() { 120 } else { 12 });
    body["temperature"] = json!(0);
    if tool.is_some() {
        body["tool_choice"] = choice;
        // The call comes at once where nothing is thought before.
        match route {
            "/v1/chat/completions" => body["reasoning_effort"] = json!("none"),
            "/v1/responses" => body["reasoning"] = json!({"effort": "none"}),
            _ => body["thinking"] = json!({"type": "disabled"}),
        }
    }
    let headers: String = request["headers"]
        .as_object()
        .expect("headers")
        .iter()
        .map(|(name, value)| format!("{name}: {}\r\n", value.as_str().expect("text")))
        .collect();
    let response = read(server.post_open(path, &body.to_string(), &headers));
    assert_eq!(response.status, 200, "{about}: {}", response.body);
    assert_eq!(body["stream"], true, "{about} was streamed");
    let called = match route {
        "/v1/chat/completions" => check_chat(&response, &body),
        "/v1/responses" => check_responses(&response),
        _ => check_messages(&response),
    };
    if tool.is_some() {
        assert_eq!(called.as_deref(), tool, "{about}: {}", response.body);
    }
}

/// Checks that a chat's stream is whole; the tool it calls first.
fn check_chat(response: &Response, body: &Value) -> Option<String> {
    let chunks = response.chunks();
    let (with, without): (Vec<&Value>, Vec<&Value>) =
        chunks.iter().partition(|chunk| chunk["choices"][0].is_object());
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"), "{response:?}");
    assert_eq!(with.first().expect("a chunk")["choices"][0]["delta"]["role"], "assistant");
    let ends = with.iter().filter(|chunk| chunk["choices"][0]["finish_reason"].is_string());
    assert_eq!(ends.count(), 1, "{response:?}");
    if body.pointer("/stream_options/include_usage") == Some(&json!(true)) {
        assert!(
            without.last().expect("a chunk")["usage"]["prompt_tokens"].is_u64(),
            "{response:?}"
        );
    }
    let place = "/choices/0/delta/tool_calls/0/function/name";
    with.iter().find_map(|chunk| Some(chunk.pointer(place)?.as_str()?.to_owned()))
}

/// The events of a stream whose events have names, each with the name its data has as well.
fn events(response: &Response) -> Vec<Value> {
    let events = response.body.split("\n\n").filter(|event| event.contains("data: "));
    let events = events.map(|event| {
        let (name, data) = event.split_once("\ndata: ").expect("a name and data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

/// Checks that a response's events are whole and in order; the tool it calls first.
fn check_responses(response: &Response) -> Option<String> {
    let events = events(response);
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{response:?}");
    }
    let kind =
        |event: Option<&Value>| event.and_then(|event| event["type"].as_str().map(str::to_owned));
    assert_eq!(kind(events.first()).as_deref(), Some("response.created"));
    let last = events.last().expect("events");
    assert!(
        last["type"] == "response.completed" || last["type"] == "response.incomplete",
        "{last}"
    );
    let begun = events.iter().filter(|event| event["type"] == "response.output_item.added").count();
    let ended = events.iter().filter(|event| event["type"] == "response.output_item.done").count();
    let output = last["response"]["output"].as_array().expect("output");
    assert_eq!((begun, ended), (output.len(), output.len()), "{response:?}");
    let call = output.iter().find(|item| item["type"] == "function_call");
    call.and_then(|call| Some(call["name"].as_str()?.to_owned()))
}

/// Checks that a message's blocks open and close in turn; the tool it calls first.
fn check_messages(response: &Response) -> Option<String> {
    let events = events(response);
    assert_eq!(events.first().expect("events")["type"], "message_start");
    assert_eq!(events.last().expect("events")["type"], "message_stop");
    let (mut open, mut blocks, mut called, mut reason) = (None, 0, None, Value::Null);
    for event in &events {
        match event["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(blocks)), "{response:?}");
                open = Some(blocks);
                blocks += 1;
                let name = event["content_block"]["name"].as_str().map(str::to_owned);
                called = called.or(name);
            }
            "content_block_delta" => assert_eq!(json!(open), event["index"], "{response:?}"),
            "content_block_stop" => assert_eq!(json!(open.take()), event["index"], "{response:?}"),
            "message_delta" => reason = event["delta"]["stop_reason"].clone(),
            "message_start" | "message_stop" | "ping" => {}
            other => panic!("{other}"),
        }
    }
    assert!(open.is_none() && reason.is_string(), "{response:?}");
    called
}
