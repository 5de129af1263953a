//! Memory for the state of texts that is shorter than what is asked for: every answer is what it is
//! with plenty.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Value, json};
use std::thread;

const CHAT: &str = "/v1/chat/completions";

fn ask(i: usize) -> Value {
    let asked = format!("Write a Python function number {i} that sorts a list.");
    json!({"messages": [{"role": "user", "content": asked}], "max_tokens": 200, "seed": i, "temperature": 0.8})
}

/// The answers to requests that come together.
fn answers(server: &Server, count: usize) -> Vec<Value> {
    thread::scope(|scope| {
        let asked: Vec<_> = (0..count).map(|i| scope.spawn(move || server.chat(&ask(i)))).collect();
        asked
            .into_iter()
            .map(|answer| answer.join().expect("an answer")["choices"].clone())
            .collect()
    })
}

#[test]
fn texts_that_share_too_little_memory_are_all_written() {
    let plenty = Server::start(&["--slots", "6", "--spec", "chain"]);
    let expected = answers(&plenty, 6);
    let held = |server: &Server| {
        let page = server.get("/metrics", "").body;
        let line =
            page.lines().find(|line| line.starts_with("forerun_state_bytes")).expect("a gauge");
        line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")
    };
    assert!(held(&plenty) > 0.0);
    // A text of these takes about 10 MiB: two fit, six do not, and nothing of earlier prompts can
    // stay.
    let short = Server::start(&["--slots", "6", "--spec", "chain", "--state-memory", "24"]);
    for _ in 0..2 {
        assert_eq!(answers(&short, 6), expected);
    }
    assert!(held(&short) <= f64::from(24 << 20));
}

#[test]
fn what_was_stowed_comes_back_where_kept_states_fill_the_memory() {
    let shares = ["--prefix-cache", "1024", "--prefix-cache-host", "1024"];
    let short =
        Server::start(&[&["--spec", "chain", "--state-memory", "24"], &shares[..]].concat());
    let plenty = Server::start(&["--spec", "chain", "--prefix-cache", "0"]);
    let turn = |talk: usize, asked: &[&str]| {
        let system = format!("You are agent number {talk}. {}", "You write Python. ".repeat(40));
        let mut messages = vec![json!({"role": "system", "content": system})];
        messages.extend(asked.iter().map(|asked| json!({"role": "user", "content": asked})));
        json!({"messages": messages, "max_tokens": 20, "temperature": 0})
    };
    for talk in 0..5 {
        short.chat(&turn(talk, &["Write Python quicksort"]));
    }
    // By now the first ones' states had to make way for the last ones'.
    let mut from_host = 0;
    for talk in 0..5 {
        let asked = turn(talk, &["Write Python quicksort", "Now bubble sort"]);
        let answer = short.chat(&asked);
        assert!(answer["forerun"]["cached_tokens"].as_u64() > Some(100), "{answer}");
        from_host += usize::from(answer["forerun"]["cached_from"] == "host");
        assert_eq!(answer["choices"], plenty.chat(&asked)["choices"]);
    }
    assert!(from_host > 0, "nothing had been stowed");
}

#[test]
fn a_text_that_does_not_fit_alone_ends_with_a_reason() {
    let server = Server::start(&["--state-memory", "12"]);
    let long = json!({"prompt": "x ".repeat(6000), "max_tokens": 4});
    let refused = server.post("/v1/completions", &long);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "out_of_memory");
    let short = server
        .post(CHAT, &json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}));
    assert_eq!(short.status, 200, "{short:?}");
}
