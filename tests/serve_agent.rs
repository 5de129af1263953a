//! Long conversations over HTTP: an agent's turns with tools, and a chat with a long history.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Server, assert_fits};
use serde_json::{Value, json};

/// `tests/serve/agent.json`: twelve turns of a conversation, each with a call, its result and an
/// answer.
#[test]
fn twelve_turns_of_an_agent_replay_alike_with_valid_calls() {
    let recording = std::fs::read_to_string("tests/serve/agent.json").expect("the recording");
    let recording: Value = serde_json::from_str(&recording).expect("JSON");
    let (tools, turns) = (&recording["tools"], recording["turns"].as_array().unwrap());
    assert_eq!(turns.len(), 12);
    let servers = [
        Server::start(&["--spec", "off"]),
        Server::start(&["--spec", "chain"]),
        Server::start(&[]),
    ];
    let ask = |messages: &[Value], choice: &str| {
        let body = json!({"messages": messages, "tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
            "temperature": 0, "max_tokens": 200});
        let answers: Vec<Value> = servers.iter().map(|server| server.chat(&body)).collect();
        let (first, cached) =
            (answers[0]["choices"][0].clone(), answers[1]["forerun"]["cached_tokens"].as_u64());
        for answer in &answers[1..] {
            let mut answer = answer["choices"][0].clone();
            // Calls are the same but for their ids.
            if let Some(id) = first.pointer("/message/tool_calls/0/id") {
                answer["message"]["tool_calls"][0]["id"] = id.clone();
            }
            assert_eq!(answer, first);
        }
        (first, cached.unwrap())
    };
    let mut messages: Vec<Value> = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        messages.push(json!({"role": "user", "content": turn["user"]}));
        let (asked, cached) = ask(&messages, "required");
        assert_eq!(asked["finish_reason"], "tool_calls", "turn {i}");
        let function = &asked["message"]["tool_calls"][0]["function"];
        assert_fits(function, tools);
        assert_eq!(*function, turn["call"], "turn {i} as recorded");
        assert!(i == 0 || cached > 100, "turn {i} read what it knew: {cached}");
        let call = json!({"id": format!("call_{i}"), "type": "function", "function": turn["call"]});
        messages.push(json!({"role": "assistant", "content": "", "reasoning_content": turn["thought"], "tool_calls": [call]}));
        messages.push(
            json!({"role": "tool", "tool_call_id": format!("call_{i}"), "content": turn["result"]}),
        );
        let (told, _) = ask(&messages, "none");
        assert_eq!(told["message"]["content"], turn["answer"], "turn {i} as recorded");
        messages.push(json!({"role": "assistant", "content": turn["answer"]}));
    }
}

#[test]
fn a_long_history_is_read_once() {
    let (warm, cold) = (
        Server::start(&["--spec", "chain"]),
        Server::start(&["--spec", "chain", "--prefix-cache", "0"]),
    );
    let history = "def add(left, right):\n    return left + right\n\n".repeat(350);
    let mut messages = vec![
        json!({"role": "system", "content": history}),
        json!({"role": "user", "content": "Write Python quicksort"}),
    ];
    let ask = |server: &Server, messages: &[Value]| {
        server.chat(
            &json!({"messages": messages, "temperature": 0, "max_tokens": 60, "reasoning_effort": "none"}),
        )
    };
    let first = ask(&warm, &messages);
    assert!(first["usage"]["prompt_tokens"].as_u64().unwrap() >= 4096, "{}", first["usage"]);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "Write a binary search"}));
    let (hit, miss) = (ask(&warm, &messages), ask(&cold, &messages));
    assert_eq!(hit["choices"], miss["choices"]);
    let start = |answer: &Value| answer["forerun"]["timing"]["prefill_s"].as_f64().unwrap();
    let acceptance =
        |answer: &Value| answer["forerun"]["spec"]["mean_accept_length"].as_f64().unwrap();
    let (cached, all) =
        (hit["forerun"]["cached_tokens"].as_u64().unwrap(), &hit["usage"]["prompt_tokens"]);
    println!(
        "{cached} of {all} tokens known: {:.3} s instead of {:.3} s, acceptance {:.2} and {:.2}",
        start(&hit),
        start(&miss),
        acceptance(&hit),
        acceptance(&miss)
    );
    assert!(start(&miss) >= 5.0 * start(&hit), "{} s, {} s cold", start(&hit), start(&miss));
    assert!((acceptance(&hit) / acceptance(&miss) - 1.0).abs() <= 0.03);
}
