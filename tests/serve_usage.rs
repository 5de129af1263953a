//! What an answer took, as every API tells it.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Value, json};

const QUESTION: &str = "Write Python quicksort";

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": 60, "chat_template_kwargs": {"enable_thinking": true}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn tokens_of_thinking_are_counted() {
    let server = Server::start(&[]);
    let answer = server.chat(&chat(json!({"logprobs": true})));
    // Every token is told, and one of them ends the thinking.
    let told = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let end =
        told.iter().position(|token| token["token"] == "</think>").expect("the thinking ends");
    let details = &answer["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], end + 1);
    assert_eq!(
        (&details["accepted_prediction_tokens"], &details["rejected_prediction_tokens"]),
        (&json!(0), &json!(0))
    );

    // A stop string that is held back does not change the count, and streams tell the same.
    let usage = json!({"stream": true, "stop": ["</thinking", "zzz"], "stream_options": {"include_usage": true}});
    let chunks = server.stream("/v1/chat/completions", &chat(usage));
    let last = &chunks.last().unwrap()["usage"];
    assert_eq!(last["completion_tokens_details"]["reasoning_tokens"], end + 1);

    let cut = server.chat(&chat(json!({"max_tokens": 5})))["usage"].take();
    assert_eq!(cut["completion_tokens_details"]["reasoning_tokens"], 5);
    let silent = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let silent = server.chat(&chat(silent))["usage"].take();
    assert_eq!(silent["completion_tokens_details"]["reasoning_tokens"], 0);

    let response = json!({"input": QUESTION, "temperature": 0, "max_output_tokens": 60,
        "chat_template_kwargs": {"enable_thinking": true}});
    let usage = server.ask("/v1/responses", &response)["usage"].take();
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], end + 1);
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
    let completion =
        server.ask("/v1/completions", &json!({"prompt": "<think>\n", "max_tokens": 3}));
    assert_eq!(completion["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

#[test]
fn every_chunk_tells_the_usage_so_far() {
    let server = Server::start(&[]);
    let options = json!({"stream": true, "stream_options": {"continuous_usage_stats": true}});
    let completion = json!({"prompt": ["a", "b c"], "n": 2, "max_tokens": 9, "stream": true,
        "stream_options": {"continuous_usage_stats": true}});
    let both = [("/v1/chat/completions", chat(options)), ("/v1/completions", completion)];
    for (path, body) in both {
        let chunks = server.stream(path, &body);
        let mut before = 0;
        for chunk in &chunks {
            let usage = &chunk["usage"];
            let number = |name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{chunk}"));
            assert!(
                number("completion_tokens") >= before && number("prompt_tokens") > 0,
                "{chunk}"
            );
            before = number("completion_tokens");
            assert_eq!(number("total_tokens"), number("prompt_tokens") + before);
        }
        let (last, rest) = chunks.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        let end = &rest.last().unwrap()["usage"];
        for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][name], end[name], "{path}");
        }
        assert!(before > 0);
    }
}

#[test]
fn models_tokens_and_metrics_are_told() {
    let server = Server::start(&["--ctx", "512"]);
    let models = server.get("/v1/models", "").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("embedded"), &json!(512))
    );
    assert_eq!(server.get("/v1/models/some/other", "").json()["id"], "embedded");
    let text = "Grüße, 世界 👋 <|im_end|>";
    let ids = server.ask("/tokenize", &json!({"content": text}));
    assert_eq!(ids["tokens"].as_array().unwrap().len(), ids["count"].as_u64().unwrap() as usize);
    assert_eq!(server.ask("/detokenize", &json!({"tokens": ids["tokens"]}))["content"], text);
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0});
    let answer = server.chat(&body);
    let rendered = server.ask("/tokenize", &body);
    assert_eq!(rendered["count"], answer["usage"]["prompt_tokens"]);
    let page = server.get("/metrics", "").body;
    let page =
        page.replace("{model_name=\"embedded\"}", "").replace("model_name=\"embedded\",", "");
    let value = |name: &str| {
        let line = page
            .lines()
            .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("{name}: {page}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    assert_eq!(json!(value("vllm:prompt_tokens_total") as u64), answer["usage"]["prompt_tokens"]);
    assert_eq!(
        json!(value("vllm:generation_tokens_total") as u64),
        answer["usage"]["completion_tokens"]
    );
    let spec = &answer["forerun"]["spec"];
    assert_eq!(json!(value("vllm:spec_decode_num_accepted_tokens_total") as u64), spec["accepted"]);
    assert_eq!(json!(value("vllm:spec_decode_num_draft_tokens_total") as u64), spec["drafted"]);
    assert_eq!(value("vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"stop\"}"), 1.0);
    assert!(!page.contains("quicksort"));
}
