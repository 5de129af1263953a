//! `forerun serve`, through the program and over HTTP.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Server, assert_fits, read};
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;
use std::thread;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// What `forerun run` answers.
fn run(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    let output = command.arg("run").args(args).args(["--json", "--threads", "1"]).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn ask(prompt: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": prompt}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of a chat answer as the model wrote it.
fn whole(message: &Value) -> String {
    let content = message["content"].as_str().unwrap_or_default();
    match message["reasoning_content"].as_str() {
        Some(reasoning) => format!("{reasoning}\n</think>\n\n{content}"),
        None => content.to_owned(),
    }
}

/// All pieces of a field of a streamed answer.
fn joined(chunks: &[Value], choice: u64, field: &str) -> String {
    let deltas = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    let deltas = deltas.filter(|c| c["index"] == choice);
    deltas.filter_map(|c| c.pointer(field).and_then(Value::as_str)).collect()
}

fn finish_of(chunks: &[Value]) -> Vec<&str> {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    choices.filter_map(|c| c["finish_reason"].as_str()).collect()
}

#[test]
fn the_text_is_that_of_run_streamed_or_not() {
    let server = Server::start(&[]);
    for (temperature, seed) in [("0", 1), ("1", 7)] {
        let seed_text = seed.to_string();
        let alone = run(&["Write Python quicksort", "--temp", temperature, "--seed", &seed_text]);
        let settings = json!({"temperature": temperature.parse::<f64>().unwrap(), "seed": seed});
        let body = ask("Write Python quicksort", settings);
        let answer = server.chat(&body);
        let message = &answer["choices"][0]["message"];
        assert_eq!(whole(message), alone["text"].as_str().unwrap());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["prompt_tokens"], alone["prompt_tokens"]);
        assert_eq!(answer["usage"]["completion_tokens"], alone["completion_tokens"]);
        assert_eq!(answer["forerun"]["seed"], seed);
        let lengths = answer["forerun"]["spec"]["accept_lengths"].as_array().unwrap();
        assert_eq!(answer["forerun"]["spec"]["rounds"], lengths.len());
        assert_eq!(answer["forerun"]["spec"]["mode"], "auto");
        assert!(answer["forerun"]["timing"]["verify_s"].is_number());

        let mut body = body;
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let chunks = server.stream(CHAT, &body);
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(joined(&chunks, 0, "/delta/content"), message["content"].as_str().unwrap());
        assert_eq!(
            joined(&chunks, 0, "/delta/reasoning_content"),
            message["reasoning_content"].as_str().unwrap()
        );
        assert_eq!(finish_of(&chunks), ["stop"]);
        let last = chunks.last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
        assert!(chunks[..chunks.len() - 1].iter().all(|c| c["usage"].is_null()));
    }

    let alone = run(&["def insertion_sort(items):", "--raw", "--temp", "0", "--max-tokens", "40"]);
    let mut body =
        json!({"prompt": "def insertion_sort(items):", "temperature": 0, "max_tokens": 40});
    let answer = server.ask(TEXT, &body);
    assert_eq!(answer["choices"][0]["text"], alone["text"]);
    assert_eq!(answer["choices"][0]["finish_reason"], alone["finish"]);
    body["stream"] = json!(true);
    assert_eq!(joined(&server.stream(TEXT, &body), 0, "/text"), alone["text"].as_str().unwrap());
    let ids = server.ask("/tokenize", &json!({"prompt": "def insertion_sort(items):"}));
    let from_ids =
        json!({"prompt": ids["tokens"], "temperature": 0, "max_tokens": 40, "echo": true});
    let echoed = format!("def insertion_sort(items):{}", alone["text"].as_str().unwrap());
    assert_eq!(server.ask(TEXT, &from_ids)["choices"][0]["text"], echoed);
}

#[test]
fn thinking_is_set_by_the_request() {
    let server = Server::start(&[]);
    let alone = run(&["Write Python quicksort", "--temp", "0", "--no-think"]);
    for more in [
        json!({"temperature": 0, "chat_template_kwargs": {"enable_thinking": false}}),
        json!({"temperature": 0, "reasoning_effort": "none"}),
    ] {
        let answer = server.chat(&ask("Write Python quicksort", more));
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], alone["text"]);
        assert_eq!(message.get("reasoning_content"), None);
    }
}

#[test]
fn requests_beside_each_other_get_the_text_they_get_alone() {
    let server = Server::start(&["--slots", "3", "--prefix-cache", "0"]);
    let long = "x = 1\n".repeat(300);
    let bodies: Vec<Value> = (0..8)
        .map(|i| match i % 4 {
            0 => ask("Write Python quicksort", json!({"temperature": 1, "seed": i})),
            1 => ask("What is 12 + 30?", json!({"temperature": 0.7, "seed": i, "top_p": 0.9})),
            2 => ask(&long, json!({"temperature": 1, "seed": i, "max_tokens": 24})),
            _ => ask("Write a binary search", json!({"temperature": 0, "max_tokens": 30 + i})),
        })
        .collect();
    let text = |body: &Value| {
        let answer = server.chat(body);
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
        (whole(&answer["choices"][0]["message"]), usage["completion_tokens"].clone())
    };
    let alone: Vec<_> = bodies.iter().map(text).collect();
    let together: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(|| text(body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn every_answer_of_n_is_one_of_its_own() {
    let server = Server::start(&["--slots", "2"]);
    let one = server.chat(&ask(
        "Write Python quicksort",
        json!({"temperature": 1, "seed": 3, "max_tokens": 30}),
    ));
    let body = ask(
        "Write Python quicksort",
        json!({"temperature": 1, "seed": 3, "max_tokens": 30, "n": 3}),
    );
    let three = server.chat(&body);
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(choices[0], one["choices"][0]);
    assert_eq!(three["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = server.stream(CHAT, &streamed);
    for (i, choice) in choices.iter().enumerate() {
        let message = &choice["message"];
        let reasoning = joined(&chunks, i as u64, "/delta/reasoning_content");
        assert_eq!(
            joined(&chunks, i as u64, "/delta/content"),
            message["content"].as_str().unwrap()
        );
        assert_eq!(reasoning, message["reasoning_content"].as_str().unwrap_or_default());
    }
    let prompts = json!({"prompt": ["def f(x):", "import"], "n": 2, "temperature": 1, "seed": 3});
    let answer = server.ask(TEXT, &prompts);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 4);
    let second =
        server.ask(TEXT, &json!({"prompt": "import", "n": 2, "temperature": 1, "seed": 3}));
    assert_eq!(answer["choices"][3]["text"], second["choices"][1]["text"]);
}

#[test]
fn answers_end_where_they_should() {
    let server = Server::start(&[]);
    let plain = server.chat(&ask("Write Python quicksort", json!({"temperature": 0})));
    let content = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let (before, _) = content.split_once("pivot").unwrap();
    for stream in [false, true] {
        let body = ask(
            "Write Python quicksort",
            json!({"temperature": 0, "stop": ["pivot", "zzz"], "stream": stream}),
        );
        let (text, finish) = match stream {
            true => {
                let chunks = server.stream(CHAT, &body);
                (joined(&chunks, 0, "/delta/content"), json!(finish_of(&chunks)[0]))
            }
            false => {
                let choice = server.chat(&body)["choices"][0].clone();
                (
                    choice["message"]["content"].as_str().unwrap().to_owned(),
                    choice["finish_reason"].clone(),
                )
            }
        };
        assert_eq!((text.as_str(), finish), (before, json!("stop")));
    }
    for limit in ["max_tokens", "max_completion_tokens"] {
        let mut body = ask("Write Python quicksort", json!({"temperature": 0}));
        body[limit] = json!(5);
        let answer = server.chat(&body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 5);
    }
}

#[test]
fn a_known_beginning_is_not_read_again_and_changes_nothing() {
    let cold = Server::start(&["--prefix-cache", "0"]);
    known_beginnings(&Server::start(&[]), &cold);
    // The same where states are stowed: all but the newest, and all of them.
    for near in ["8", "0"] {
        let stowing = Server::start(&["--prefix-cache", near, "--prefix-cache-host", "512"]);
        known_beginnings(&stowing, &cold);
        let metrics = stowing.get("/metrics", "").body;
        let bytes = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.rsplit(' ').next().and_then(|bytes| bytes.parse::<usize>().ok()).expect("a number")
        };
        assert!(bytes("forerun_prefix_cache_host_bytes{") > 0, "{metrics}");
        assert_eq!(bytes("forerun_prefix_cache_bytes{") > 0, near != "0", "{metrics}");
    }
}

fn known_beginnings(warm: &Server, cold: &Server) {
    let system = json!({"role": "system", "content": "You write Python. ".repeat(20)});
    let ask = |server: &Server, messages: &[Value]| {
        let answer = server
            .chat(&json!({"messages": messages, "temperature": 1, "seed": 5, "max_tokens": 60}));
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(answer["forerun"]["cached_tokens"], cached);
        (answer["choices"][0]["message"].clone(), cached)
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = [system.clone(), user("Write Python quicksort")];
    let (message, cached) = ask(warm, &first);
    assert_eq!(cached, 0);
    let (again, all) = ask(warm, &first);
    assert_eq!(again, message);
    // Another question shares the system message, the next turn shares the first one.
    let other = [system.clone(), user("Write a binary search")];
    let (answer, shared) = ask(warm, &other);
    assert!(0 < shared && shared < all, "{shared} {all}");
    assert_eq!((answer, 0), ask(cold, &other));
    let next = [system, first[1].clone(), message.clone(), user("Now bubble sort")];
    let (answer, kept) = ask(warm, &next);
    assert!(kept >= all, "{kept} {all}");
    assert_eq!((answer, 0), ask(cold, &next));
    assert_eq!((message, 0), ask(cold, &first));
}

/// A request whose answer does not end by itself: the end tokens are forbidden.
fn endless(server: &Server, max_tokens: usize) -> String {
    let ends = server.ask("/tokenize", &json!({"prompt": "<|im_end|><|endoftext|>"}));
    let ends = ends["tokens"].as_array().unwrap();
    assert_eq!(ends.len(), 2);
    let bias: serde_json::Map<String, Value> =
        ends.iter().map(|id| (id.to_string(), json!(-100))).collect();
    json!({"prompt": "def f(x):", "max_tokens": max_tokens, "stream": true, "logit_bias": bias})
        .to_string()
}

#[test]
fn a_client_that_leaves_makes_room() {
    let server = Server::start(&["--slots", "1", "--queue", "0"]);
    let body = endless(&server, 30_000);
    let mut stream = server.post_open(TEXT, &body, "");
    let mut begun = [0; 1000];
    stream.read_exact(&mut begun).expect("the answer begins");
    let short = json!({"prompt": "def f(x):", "max_tokens": 1});
    let refused = server.post(TEXT, &short);
    assert_eq!(refused.status, 429);
    assert!(refused.head.to_lowercase().contains("retry-after: "), "{}", refused.head);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    drop(stream);
    let free = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        server.post(TEXT, &short).status == 200
    });
    assert!(free, "the slot is still taken");
    // The same without a stream: the connection is closed while the server works.
    drop(server.post_open(TEXT, &body.replace("\"stream\":true", "\"stream\":false"), ""));
    let free = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        server.post(TEXT, &short).status == 200
    });
    assert!(free, "the slot is still taken");
}

#[test]
fn whoever_has_heard_the_end_finds_a_place() {
    let server = Server::start(&["--slots", "1", "--queue", "0"]);
    let text = json!({"prompt": "def f(x):", "max_tokens": 1});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let many = json!({"prompt": ["a", "b", "c"], "max_tokens": 1});
    let message = json!({"messages": messages, "max_tokens": 1});
    for i in 0..200 {
        for (path, body) in [(TEXT, &text), (TEXT, &many), ("/v1/messages", &message)] {
            let mut body = body.clone();
            body["stream"] = json!(i % 2 == 0);
            let response = server.post(path, &body);
            assert_eq!(response.status, 200, "{i}: {response:?}");
        }
    }
}

#[test]
fn a_deadline_ends_an_answer() {
    let server = Server::start(&["--timeout", "1"]);
    let body = endless(&server, 30_000);
    let response = server.post_raw(TEXT, &body);
    let chunks = response.chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "timeout");
    let response = server.post_raw(TEXT, &body.replace("\"stream\":true", "\"stream\":false"));
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("timeout")));
}

#[cfg(unix)]
#[test]
fn told_to_end_it_lets_answers_finish() {
    let mut server = Server::start(&["--drain", "600"]);
    let body = endless(&server, 600);
    let mut stream = server.post_open(TEXT, &body, "");
    let mut begun = [0; 400];
    stream.read_exact(&mut begun).expect("the answer begins");
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the answer goes on");
    assert!(rest.trim_end().ends_with("data: [DONE]"), "{rest}");
    assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn keys_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "# ours\nfirst-key\nsecond-key\n").unwrap();
    let server = Server::start(&["--api-key-file", path.to_str().unwrap()]);
    assert_eq!(server.get("/health", "").status, 200);
    for path in ["/v1/models", "/metrics"] {
        let refused = server.get(path, "");
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (401, &json!("invalid_api_key"))
        );
        assert_eq!(server.get(path, "authorization: Bearer wrong\r\n").status, 401);
        assert_eq!(server.get(path, "authorization: Bearer second-key\r\n").status, 200);
        assert_eq!(server.get(path, "x-api-key: first-key\r\n").status, 200);
    }
    let body = ask("hi", json!({"max_tokens": 1})).to_string();
    assert_eq!(read(server.post_open(CHAT, &body, "")).status, 401);
    assert_eq!(
        read(server.post_open(CHAT, &body, "authorization: Bearer first-key\r\n")).status,
        200
    );

    let open = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_forerun")).arg("serve").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, message) = open(&["--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("--api-key-file"), "{message}");
    std::fs::write(&path, "# none\n").unwrap();
    let (code, message) = open(&["--api-key-file", path.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(message.contains("there is no key in it"), "{message}");
}

#[test]
fn tools_are_called_and_their_results_read() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]});
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "Add two integers.",
        "parameters": schema}}]);
    let question = json!({"role": "user", "content": "Compute the sum of 947 and 477."});
    let mut body = json!({"messages": [question], "tools": tools, "temperature": 0});
    let answer = server.chat(&body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "add");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"a": 947, "b": 477}));

    body["stream"] = json!(true);
    let chunks = server.stream(CHAT, &body);
    assert_eq!(joined(&chunks, 0, "/delta/tool_calls/0/function/arguments"), arguments);
    assert_eq!(joined(&chunks, 0, "/delta/tool_calls/0/function/name"), "add");
    assert_eq!(joined(&chunks, 0, "/delta/content"), "");
    assert_eq!(finish_of(&chunks), ["tool_calls"]);

    body["stream"] = json!(false);
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "1424"});
    body["messages"] = json!([question, choice["message"], result]);
    let answer = server.chat(&body);
    assert_eq!(answer["choices"][0]["message"]["content"], "947 + 477 = 1424.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    body["messages"] = json!([question]);
    body["tool_choice"] = json!("none");
    let answer = server.chat(&body);
    assert_eq!(answer["choices"][0]["message"].get("tool_calls"), None);
}

#[test]
fn recorded_tool_chats_replay_alike_with_and_without_speculation() {
    let (auto, off) = (Server::start(&[]), Server::start(&["--spec", "off"]));
    let chats = std::fs::read_to_string("suites/tools.jsonl").expect("the suite");
    for line in chats.lines() {
        let mut body: Value = serde_json::from_str(line).expect("a chat");
        body["temperature"] = json!(0);
        body["max_tokens"] = json!(200);
        let answer = auto.chat(&body)["choices"][0].clone();
        let plain = off.chat(&body)["choices"][0].clone();
        assert_eq!(answer["finish_reason"], plain["finish_reason"]);
        let calls = answer["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let plain_calls = plain["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        assert_eq!(calls.len(), plain_calls.len());
        assert_eq!(whole(&answer["message"]), whole(&plain["message"]));
        for (call, plain_call) in calls.iter().zip(&plain_calls) {
            assert_eq!(call["function"], plain_call["function"]);
            assert_fits(&call["function"], &body["tools"]);
        }
        let answers_a_result =
            body["messages"].as_array().unwrap().last().unwrap()["role"] == "tool";
        assert_eq!(calls.is_empty(), answers_a_result, "{line}");
    }
}

#[test]
fn likelihoods_are_told_for_every_token() {
    let server = Server::start(&[]);
    let more = json!({"temperature": 0, "logprobs": true, "top_logprobs": 3, "max_tokens": 60});
    let mut body = ask("Write Python quicksort", more);
    let answer = server.chat(&body);
    let choice = &answer["choices"][0];
    let told = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(told.len(), 60);
    let text: String = told.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, whole(&choice["message"]));
    for token in told {
        // Greedy: the token drawn is the likeliest one.
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(token["top_logprobs"][0]["bytes"], token["bytes"]);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    body["stream"] = json!(true);
    let chunks = server.stream(CHAT, &body);
    let streamed: Vec<&Value> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, told.iter().collect::<Vec<_>>());

    // Speculation changes nothing but how the rows come together.
    let plain = Server::start(&["--spec", "off"]);
    body["stream"] = json!(false);
    assert_eq!(plain.chat(&body)["choices"][0], *choice);

    let text = json!({"prompt": "def f(x):", "logprobs": 2, "temperature": 0, "max_tokens": 4});
    let logprobs = &server.ask(TEXT, &text)["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
}
