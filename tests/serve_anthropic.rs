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
    let thought = &answer["usage"]["output_tokens_details"]["thinking_tokens"];
    assert_eq!(thought, &plain["usage"]["completion_tokens_details"]["reasoning_tokens"]);
    assert!(thought.as_u64() > Some(0), "{answer}");
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

#[test]
fn a_tool_that_is_looked_up_leaves_the_beginning_of_the_prompt_as_it_was() {
    let server = Server::start(&[]);
    let integer = json!({"type": "integer"});
    let schema = json!({"type": "object", "properties": {"a": integer, "b": integer},
        "required": ["a", "b"]});
    let tool = |name: &str, waits: bool| {
        json!({"name": name, "description": "A tool.", "input_schema": schema,
            "defer_loading": waits})
    };
    let ask = |tools: &[Value], messages: &[Value]| {
        let body = json!({"tools": tools, "messages": messages, "max_tokens": 4,
            "temperature": 0});
        let answer = server.ask("/v1/messages", &body);
        assert_eq!(answer["forerun"].get("ignored"), None);
        let usage = |name: &str| answer["usage"][name].as_u64().unwrap();
        (usage("input_tokens") + usage("cache_read_input_tokens"), usage("cache_read_input_tokens"))
    };
    let asked = json!({"role": "user", "content": "Compute the sum of 947 and 477."});
    // One that waits is not told of: the prompt is the same without it.
    let (search, add) = (tool("search", false), tool("add", true));
    let (alone, _) = ask(std::slice::from_ref(&search), std::slice::from_ref(&asked));
    let (first, _) = ask(&[add.clone(), search.clone()], std::slice::from_ref(&asked));
    assert_eq!(first, alone);
    let call = json!({"type": "tool_use", "id": "t", "name": "search", "input": {"a": 1, "b": 2}});
    let found = json!({"type": "tool_reference", "tool_name": "add"});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [found]});
    let conversation = [
        asked.clone(),
        json!({"role": "assistant", "content": [call]}),
        json!({"role": "user", "content": [result]}),
    ];
    let (whole, cached) = ask(&[add.clone(), search.clone()], &conversation);
    assert!(whole > first + 40, "{whole} tokens tell nothing more than {first}");
    assert!(cached + 16 > first, "of {first} tokens only {cached} were not read again");
    // It can be called as any other.
    let body = json!({"tools": [add, search], "messages": conversation, "max_tokens": 60,
        "temperature": 0, "tool_choice": {"type": "any"}});
    let called = server.ask("/v1/messages", &body)["content"][0]["name"].clone();
    assert!(called == "add" || called == "search", "{called}");
    // What is taken away cannot be called any more, also where something must be.
    let gone = |name: &str| {
        let tool = json!({"type": "tool_reference", "name": name});
        json!({"role": "system", "content": [{"type": "tool_removal", "tool": tool}]})
    };
    let force = |gone: &[Value], choice: Value| {
        let messages = [&conversation[..], gone].concat();
        json!({"tools": body["tools"], "messages": messages, "max_tokens": 60, "temperature": 0,
            "tool_choice": choice})
    };
    let any = json!({"type": "any"});
    for (other, left) in [("add", "search"), ("search", "add")] {
        let called = server.ask("/v1/messages", &force(&[gone(other)], any.clone()));
        assert_eq!(called["content"][0]["name"], left);
    }
    let none = force(&[gone("add"), gone("search")], any);
    let named = force(&[gone("add")], json!({"type": "tool", "name": "add"}));
    for body in [none, named] {
        let refused = server.post("/v1/messages", &body);
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("taken away"), "{}", refused.body);
    }
}

#[test]
fn a_prompt_is_read_for_the_sake_of_the_cache() {
    let server = Server::start(&[]);
    let said = json!([{"role": "user", "content": "Write Python quicksort. ".repeat(20)}]);
    let body = json!({"messages": said, "max_tokens": 0});
    let read = server.ask("/v1/messages", &body);
    assert_eq!((&read["content"], &read["stop_reason"]), (&json!([]), &json!("max_tokens")));
    assert_eq!(read["usage"]["output_tokens"], 0);
    let answer = server.ask("/v1/messages", &json!({"messages": said, "max_tokens": 1}));
    assert_eq!(answer["usage"]["input_tokens"], 1, "{}", answer["usage"]);
}

#[test]
fn wrong_fields_are_called_what_the_request_calls_them() {
    let server = Server::start(&[]);
    let said = json!([{"role": "user", "content": "x"}]);
    let refused = |field: &str, value: Value| {
        let mut body = json!({"messages": said, "max_tokens": 1});
        body[field] = value;
        server.post("/v1/messages", &body).body
    };
    assert!(refused("stop_sequences", json!(vec!["x"; 20])).contains("`stop_sequences` "));
    assert!(refused("stop_sequences", json!([1])).contains("`stop_sequences[0]` "));
    assert!(refused("stop_token_ids", json!("x")).contains("`stop_token_ids` "));
}

#[test]
fn what_is_too_long_is_counted_all_the_same() {
    let server = Server::start(&["--ctx", "64"]);
    let said = "Write Python quicksort. ".repeat(40);
    let body = json!({"messages": [{"role": "user", "content": said}], "max_tokens": 1});
    assert_eq!(server.post("/v1/messages", &body).status, 400);
    for (path, body) in [
        ("/v1/messages/count_tokens", body),
        ("/v1/responses/input_tokens", json!({"input": said})),
    ] {
        let tokens = server.ask(path, &body)["input_tokens"].as_u64().unwrap();
        assert!(tokens > 160, "{path}: {tokens}");
    }
}

#[test]
fn what_the_system_says_for_one_turn_goes_with_it() {
    let server = Server::start(&[]);
    let count = |messages: Value| {
        let body = json!({"messages": messages});
        server.ask("/v1/messages/count_tokens", &body)["input_tokens"].as_u64().unwrap()
    };
    let user = json!({"role": "user", "content": "Write Python quicksort"});
    let note = json!({"role": "system", "content": "Be brief.", "clear_at": "next_user_message"});
    let kept = json!({"role": "system", "content": "Be brief.", "clear_at": "never"});
    assert_eq!(count(json!([user, note])), count(json!([user, kept])));
    assert_eq!(count(json!([user, note, user])), count(json!([user, user])));
    assert!(count(json!([user, kept, user])) > count(json!([user, user])));
}

#[test]
fn a_thread_is_refused_in_the_words_by_which_packages_go_on_without() {
    let server = Server::start(&["--ctx", "256"]);
    let question = json!([{"role": "user", "content": "hi"}]);
    let mut body = json!({"messages": question, "max_tokens": 1, "thread": {"type": "create"}});
    let refused = server.post("/v1/messages", &body);
    let error = refused.json()["error"].clone();
    assert_eq!(refused.status, 400);
    assert_eq!(error["details"], json!({"error_code": "thread_unsupported_request"}));
    body["thread"] = json!(null);
    body["max_tokens"] = json!("many");
    let refused = server.post("/v1/messages", &body).json();
    assert!(refused["error"]["message"].is_string() && refused["error"]["details"].is_null());
}
