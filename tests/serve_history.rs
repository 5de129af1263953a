//! Conversations as agents and editors send them, over HTTP, under a template that is as strict as
//! Qwen3.5's.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Server, read};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn strict(more: &[&str]) -> Server {
    Server::start(&[&["--chat-template", "tests/fixtures/strict-template.jinja"], more].concat())
}

#[test]
fn every_client_s_system_messages_are_answered() {
    let server = strict(&[]);
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    for (path, body) in [
        (
            RESPONSES,
            json!({"input": [said("developer", "a"), said("developer", "b"), said("user", "x")]}),
        ),
        (
            RESPONSES,
            json!({"instructions": "i", "input": [said("developer", "a"), said("user", "x")]}),
        ),
        (
            CHAT,
            json!({"messages": [said("system", "a"), said("user", "x"), said("system", "b"), said("user", "y")]}),
        ),
        (CHAT, json!({"messages": [said("system", "Write Python quicksort")]})),
        (MESSAGES, json!({"max_tokens": 5, "messages": [said("user", "x"), said("system", "b")]})),
        (
            MESSAGES,
            json!({"max_tokens": 5, "system": "a", "messages": [said("system", "b"), said("user", "x")]}),
        ),
    ] {
        let mut body = body;
        body["temperature"] = json!(0);
        body[if path == RESPONSES { "max_output_tokens" } else { "max_tokens" }] = json!(5);
        server.ask(path, &body);
    }
}

#[test]
fn a_later_system_message_leaves_the_cached_prefix_alone() {
    let server = strict(&[]);
    let history = "def add(left, right):\n    return left + right\n\n".repeat(40);
    let mut messages = vec![
        json!({"role": "system", "content": history}),
        json!({"role": "user", "content": "x"}),
    ];
    let ask = |messages: &[Value]| {
        server.chat(&json!({"messages": messages, "temperature": 0, "max_tokens": 8}))
    };
    let first = ask(&messages);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "system", "content": "Be brief."}));
    messages.push(json!({"role": "user", "content": "y"}));
    let second = ask(&messages);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 300, "{}", second["usage"]);
}

#[test]
fn an_answer_goes_on_and_is_not_repeated() {
    let server = Server::start(&[]);
    let user = json!({"role": "user", "content": "Write Python quicksort"});
    let whole = server
        .chat(&json!({"messages": [user], "temperature": 0, "max_tokens": 60, "reasoning_effort": "none"}));
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // Cut between two words: half a word has other tokens, which the model may go on from
    // otherwise.
    let begun = whole.match_indices(' ').nth(1).map(|(at, _)| &whole[..at]).unwrap();
    let rest = whole.strip_prefix(begun).unwrap();
    let messages = json!([user, {"role": "assistant", "content": begun}]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 40, "continue_final_message": true,
        "add_generation_prompt": false});
    let answer = server.chat(&body);
    let on = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!on.is_empty() && !on.starts_with(begun), "{on}");
    assert_eq!(on[..8], rest[..8], "{whole}");
    let answer =
        server.ask(MESSAGES, &json!({"messages": messages, "temperature": 0, "max_tokens": 40}));
    assert_eq!(answer["content"][0]["text"].as_str().unwrap(), on);
}

#[test]
fn stop_strings_are_found_in_answers_and_not_in_thoughts() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}],
            "temperature": 0, "max_tokens": 400});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let free = server.chat(&ask(json!({})));
    let message = &free["choices"][0]["message"];
    let thought = message["reasoning_content"].as_str().expect("the tiny model thinks");
    let content = message["content"].as_str().unwrap();
    let word = thought.split_whitespace().find(|word| word.len() > 2).expect("a thought has words");
    for stop in [word, "\n\n", "</think>"] {
        let answer = server.chat(&ask(json!({"stop": stop})));
        let stopped = &answer["choices"][0]["message"];
        assert_eq!(stopped["reasoning_content"], thought, "{stop:?}");
        let expected = content.split(stop).next().unwrap();
        assert_eq!(stopped["content"], expected, "{stop:?}");
        let chunks = server.stream(CHAT, &ask(json!({"stop": stop, "stream": true})));
        let streamed: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(streamed, expected, "{stop:?}");
    }
    let stops = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}], "temperature": 0,
        "max_tokens": 400, "stop_sequences": ["def"]});
    let answer = server.ask(MESSAGES, &stops);
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("def"))
    );
    // Plain text is matched everywhere.
    let plain = server.ask(
        "/v1/completions",
        &json!({"prompt": "<think>\n", "temperature": 0, "max_tokens": 200, "stop": "\n"}),
    );
    assert!(!plain["choices"][0]["text"].as_str().unwrap().contains('\n'));
}

#[test]
fn thinking_ends_when_its_budget_is_spent() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}],
            "temperature": 0, "max_tokens": 200});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.chat(&body)["choices"][0]["message"].clone()
    };
    let free = ask(json!({}));
    let short = ask(json!({"thinking_token_budget": 3}));
    let (long, cut) =
        (free["reasoning_content"].as_str().unwrap(), short["reasoning_content"].as_str().unwrap());
    assert!(cut.len() < long.len() && long.starts_with(cut) && !cut.is_empty(), "{cut}");
    assert!(!short["content"].as_str().unwrap().is_empty());
    assert!(ask(json!({"thinking_budget": 0})).get("reasoning_content").is_none());
    assert_eq!(ask(json!({"thinking_budget": -1})), free);
}

#[test]
fn a_resent_history_is_answered() {
    let server = strict(&[]);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}});
    let cut = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"path\": \"a"}});
    let mut messages = vec![
        json!({"role": "user", "content": [image]}),
        json!({"role": "assistant", "content": "I see nothing.", "tool_calls": [cut]}),
        json!({"role": "tool", "tool_call_id": "c", "content": [image]}),
    ];
    let ask =
        |messages: &[Value]| server.post(CHAT, &json!({"messages": messages, "max_tokens": 5}));
    assert_eq!(ask(&messages).status, 200);
    messages.push(json!({"role": "user", "content": [image]}));
    let refused = ask(&messages);
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("messages[3].content[0]"))
    );
    messages.push(json!({"role": "user", "content": "Then without it."}));
    assert_eq!(ask(&messages).status, 200);
}

#[test]
fn custom_tools_come_back_as_they_were_offered() {
    let server = Server::start(&[]);
    let tools = json!([
        {"type": "custom", "name": "write", "description": "Writes text"},
        {"type": "namespace", "name": "mcp__git__", "description": "Git", "tools": [
            {"type": "function", "name": "log", "parameters": {"type": "object", "properties": {}}}]},
        {"type": "web_search"},
        {"type": "local_shell"},
    ]);
    let ask = |choice: Value, stream: bool| {
        let body = json!({"input": "Write Python quicksort", "tools": tools, "tool_choice": choice,
            "temperature": 0, "max_output_tokens": 300, "reasoning": {"effort": "none"}, "stream": stream});
        server.post(RESPONSES, &body)
    };
    let custom = json!({"type": "custom", "name": "write"});
    let whole = ask(custom.clone(), false).json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"]),
        (&json!("custom_tool_call"), &json!("write")),
        "{whole}"
    );
    let events = ask(custom, true).body;
    let events: Vec<Value> = events
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let of = |kind: &'static str| events.iter().filter(move |event| event["type"] == kind);
    let deltas: String =
        of("response.custom_tool_call_input.delta").filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(item["input"], deltas);
    assert_eq!(of("response.custom_tool_call_input.done").count(), 1);
    let log = ask(json!({"type": "function", "name": "log"}), false).json();
    let item = &log["output"][0];
    assert_eq!((&item["namespace"], &item["name"]), (&json!("mcp__git__"), &json!("log")), "{log}");
    let shell = ask(json!({"type": "local_shell"}), false).json();
    let item = &shell["output"][0];
    assert_eq!(
        (&item["type"], &item["action"]["type"]),
        (&json!("local_shell_call"), &json!("exec")),
        "{shell}"
    );
    let search = ask(json!({"type": "web_search"}), false);
    let message = "`tool_choice.type` is `web_search`: that tool is run by OpenAI's servers, this server has none";
    assert_eq!((search.status, &search.json()["error"]["message"]), (400, &json!(message)));
}

#[test]
fn errors_have_the_form_of_the_api_that_was_asked() {
    let keys = std::env::temp_dir().join(format!("forerun-history-keys-{}", std::process::id()));
    std::fs::write(&keys, "secret\n").unwrap();
    let server = Server::start(&["--api-key-file", keys.to_str().unwrap()]);
    let post =
        |path: &str, head: &str, body: &str| {
            let length = body.len();
            read(server.send(&format!(
                "POST {path} HTTP/1.0\r\ncontent-length: {length}\r\n{head}\r\n{body}"
            )))
        };
    let (json, key) = ("content-type: application/json\r\n", "x-api-key: secret\r\n");
    let both = format!("{json}{key}");
    for (path, head, body, status, kind) in [
        (MESSAGES, json.to_owned(), "{}", 401, "authentication_error"),
        (MESSAGES, key.to_owned(), "{}", 415, "invalid_request_error"),
        (MESSAGES, both.clone(), "{", 400, "invalid_request_error"),
        (MESSAGES, format!("{both}content-length: 99999999\r\n"), "", 413, "request_too_large"),
        ("/v1/messages/batches", both.clone(), "{}", 404, "not_found_error"),
    ] {
        let response = if status == 413 {
            read(server.send(&format!("POST {path} HTTP/1.0\r\n{head}\r\n")))
        } else {
            post(path, &head, body)
        };
        assert_eq!(response.status, status, "{path} {head}: {response:?}");
        let object = response.json();
        assert_eq!(
            (&object["type"], &object["error"]["type"]),
            (&json!("error"), &json!(kind)),
            "{object}"
        );
    }
    let method = server.get(MESSAGES, key);
    assert_eq!((method.status, &method.json()["type"]), (405, &json!("error")));
    // Elsewhere they are OpenAI's.
    assert_eq!(post("/v1/nothing", &both, "{}").json()["error"]["code"], "unknown_url");
    let robot = post(
        MESSAGES,
        &both,
        "{\"max_tokens\": 1, \"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]}",
    );
    let message = "`messages[0].role` is `robot`, `user`, `assistant` or `system` was expected";
    assert_eq!(robot.json()["error"]["message"], message);
    let _ = std::fs::remove_file(keys);
}
