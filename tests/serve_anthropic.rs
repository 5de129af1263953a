//! Anthropic's form of a chat, over HTTP.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Value, json};

#[test]
fn anthropic_s_form_gives_the_same_answers() {
    let server = Server::start(&[]);
    let path = "/v1/messages";
    let question = json!([{"role": "user", "content": "Write Python quicksort"}]);
    let body = json!({"messages": question, "max_tokens": 500, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let plain = server.chat(&json!({"messages": question, "temperature": 0}));
    let message = &plain["choices"][0]["message"];
    let answer = server.ask(path, &body);
    assert_eq!(answer["content"][0]["thinking"], message["reasoning_content"]);
    assert_eq!(answer["content"][1], json!({"type": "text", "text": message["content"]}));
    assert_eq!(answer["stop_reason"], "end_turn");
    assert_eq!(answer["usage"]["output_tokens"], plain["usage"]["completion_tokens"]);
    let counted = server.ask(
        "/v1/messages/count_tokens",
        &json!({"messages": question,
        "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    );
    assert_eq!(counted["input_tokens"], plain["usage"]["prompt_tokens"]);

    let mut stop = body.clone();
    stop["stop_sequences"] = json!(["zzz", "pivot"]);
    let stopped = server.ask(path, &stop);
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("pivot"))
    );
    let mut short = body.clone();
    short["max_tokens"] = json!(3);
    assert_eq!(server.ask(path, &short)["stop_reason"], "max_tokens");

    let integers = json!({"a": {"type": "integer"}, "b": {"type": "integer"}});
    let schema = json!({"type": "object", "properties": integers, "required": ["a", "b"]});
    let tools =
        json!([{"name": "add", "description": "Add two integers.", "input_schema": schema}]);
    let sum = json!({"role": "user", "content": "Compute the sum of 947 and 477."});
    let mut body = json!({"messages": [sum], "tools": tools, "temperature": 0, "max_tokens": 200,
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stream": true});
    let response = server.post(path, &body);
    let mut events = Vec::new();
    for event in response.body.split("\n\n").filter(|event| event.starts_with("event: ")) {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        events.push(data);
    }
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 2], kinds[kinds.len() - 1]),
        ("message_start", "message_delta", "message_stop")
    );
    let started: Vec<&str> =
        events.iter().filter_map(|event| event["content_block"]["type"].as_str()).collect();
    assert_eq!(started, ["thinking", "tool_use"]);
    let input: String =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), json!({"a": 947, "b": 477}));
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");

    body["stream"] = json!(false);
    let call = server.ask(path, &body);
    assert_eq!(call["content"][1]["input"], json!({"a": 947, "b": 477}));
    let result =
        json!({"type": "tool_result", "tool_use_id": call["content"][1]["id"], "content": "1424"});
    body["messages"] = json!([sum, {"role": "assistant", "content": call["content"]},
        {"role": "user", "content": [result]}]);
    let told = server.ask(path, &body);
    assert_eq!(told["content"].as_array().unwrap().last().unwrap()["text"], "947 + 477 = 1424.");

    let refused = server.post(path, &json!({"messages": question}));
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    assert_eq!(refused.json()["type"], "error");
}
