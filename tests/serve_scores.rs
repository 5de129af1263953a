//! How likely the tokens of prompts are, over HTTP: what evaluators ask for.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;
use testing::Tensors;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

const CODE: &str =
    "def insertion_sort(items):\n    for i in range(1, len(items)):\n        key = items[i]\n";
const PLAIN: &str = "Zoe has 18 stickers and gives 8 of them to Ines. Grüße, 世界 👋!";

/// What a request adds to a prompt that is only to be scored.
fn scored(prompt: &Value, top: usize) -> Value {
    json!({"prompt": prompt, "echo": true, "logprobs": top, "max_tokens": 0})
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// The tokens of a golden prompt, and for its last ones how likely they are by the float32 logits
/// before them.
fn golden_scores(golden: &Tensors, prompt: &str) -> (Vec<u32>, Vec<f64>) {
    let ids = golden.ids(&format!("{prompt}.ids")).expect("ids");
    let rows = golden.rows(&format!("{prompt}.logits")).expect("logits");
    let scored = &ids[ids.len() + 1 - rows.len()..];
    let scores = rows.iter().zip(scored).map(|(row, id)| {
        let total: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        f64::from(row[*id as usize]) - total.ln()
    });
    let scores = scores.collect();
    (ids, scores)
}

#[test]
fn scores_are_those_of_float32() {
    let golden = Tensors::open(&testing::goldens(), "dense-q4");
    // (flags, how far a token may be off, how far all of a prompt on the average)
    for (flags, each, mean) in [(&["--activations", "f32"][..], 1e-2, 1e-3), (&[][..], 0.25, 2e-2)]
    {
        let server = Server::start(flags);
        for prompt in ["p0", "p1", "plong700"] {
            let (ids, expected) = golden_scores(&golden, prompt);
            let answer = server.ask(TEXT, &scored(&json!(ids), 1));
            let told = numbers(&answer["choices"][0]["logprobs"]["token_logprobs"]);
            assert_eq!(told.len() + 1, ids.len());
            let told = &told[told.len() - expected.len()..];
            let off: Vec<f64> = told.iter().zip(&expected).map(|(t, e)| t - e).collect();
            let worst = off.iter().fold(0.0f64, |worst, off| worst.max(off.abs()));
            let average = off.iter().sum::<f64>().abs() / off.len() as f64;
            println!(
                "{flags:?} {prompt}: {} tokens, worst {worst:.2e}, mean {average:.2e}",
                off.len()
            );
            assert!(worst <= each && average <= mean, "{flags:?} {prompt}: {worst} {average}");
        }
    }
}

#[test]
fn every_token_of_a_prompt_is_told() {
    let server = Server::start(&[]);
    for prompt in [CODE, PLAIN, "<|im_start|>user\nhi<|im_end|>\n", "x"] {
        let ids = server.ask("/tokenize", &json!({"prompt": prompt}))["tokens"].clone();
        let count = ids.as_array().unwrap().len();
        let whole = server.ask(TEXT, &scored(&json!(prompt), 3));
        let choice = &whole["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(prompt), &json!("length")));
        assert_eq!(whole["usage"]["prompt_tokens"], count);
        assert_eq!(
            (&whole["usage"]["completion_tokens"], &whole["usage"]["total_tokens"]),
            (&json!(0), &json!(count))
        );
        let told = &choice["logprobs"];
        for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(told[field].as_array().unwrap().len(), count, "{field} of {prompt:?}");
        }
        assert!(told["token_logprobs"][0].is_null() && told["top_logprobs"][0].is_null());
        for at in 1..count {
            let (own, top) =
                (&told["token_logprobs"][at], told["top_logprobs"][at].as_object().unwrap());
            assert!(own.as_f64().unwrap() <= 0.0);
            // Halves of characters share a name, which has the likeliest's figure.
            let name = told["tokens"][at].as_str().unwrap();
            assert!(top[name] == *own || name.contains('\u{fffd}'), "{name:?}: {own} {top:?}");
            assert!((1..=4).contains(&top.len()), "{top:?}");
        }
        // A token stands where its text is; halves of a character where the character is.
        let characters: Vec<char> = prompt.chars().collect();
        for (name, offset) in
            told["tokens"].as_array().unwrap().iter().zip(numbers(&told["text_offset"]))
        {
            let name = name.as_str().unwrap();
            let here: String =
                characters[offset as usize..].iter().take(name.chars().count()).collect();
            assert!(
                here == name || name.contains('\u{fffd}'),
                "{name:?} at {offset} of {prompt:?}"
            );
        }
        // The same from tokens, and with an answer behind.
        assert_eq!(server.ask(TEXT, &scored(&ids, 3))["choices"][0], *choice);
        let mut longer = scored(&json!(prompt), 3);
        longer["max_tokens"] = json!(4);
        longer["temperature"] = json!(0);
        let longer = server.ask(TEXT, &longer);
        let all = longer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone();
        assert_eq!(all[..count], told["token_logprobs"].as_array().unwrap()[..]);
        assert_eq!(
            all.len() as u64,
            count as u64 + longer["usage"]["completion_tokens"].as_u64().unwrap()
        );
        let alone = json!({"prompt": prompt, "logprobs": 3, "max_tokens": 4, "temperature": 0});
        let alone = server.ask(TEXT, &alone);
        assert_eq!(
            all[count..],
            alone["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[..]
        );
        let text = longer["choices"][0]["text"].as_str().unwrap();
        assert_eq!(text, format!("{prompt}{}", alone["choices"][0]["text"].as_str().unwrap()));
    }
}

#[test]
fn an_end_has_a_figure_too() {
    // Evaluators leave out the last figure as the answer's, so there must be one.
    let server = Server::start(&[]);
    let end = server.ask("/tokenize", &json!({"prompt": "<|im_end|>"}))["tokens"][0].clone();
    let body = json!({"prompt": CODE, "echo": true, "logprobs": 1, "max_tokens": 1, "logit_bias": {end.to_string(): 100}});
    let choice = server.ask(TEXT, &body)["choices"][0].clone();
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(CODE), &json!("stop")));
    let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
    assert_eq!(tokens.last().unwrap(), "<|im_end|>");
    assert_eq!(numbers(&choice["logprobs"]["token_logprobs"]).len() + 1, tokens.len());
}

#[test]
fn prompt_logprobs_have_ids_and_ranks() {
    let server = Server::start(&[]);
    let ids = server.ask("/tokenize", &json!({"prompt": CODE}))["tokens"].clone();
    let echoed = server.ask(TEXT, &scored(&json!(CODE), 2));
    let expected = numbers(&echoed["choices"][0]["logprobs"]["token_logprobs"]);
    let check = |told: &Value, ids: &[Value]| {
        let told = told.as_array().unwrap();
        assert_eq!(told.len(), ids.len());
        assert!(told[0].is_null());
        for (at, id) in ids.iter().enumerate().skip(1) {
            let by_id = told[at].as_object().unwrap();
            let own = &by_id[&id.to_string()];
            assert!(own["decoded_token"].is_string());
            let better =
                by_id.values().filter(|o| o["logprob"].as_f64() > own["logprob"].as_f64()).count();
            let rank = own["rank"].as_u64().unwrap();
            assert_eq!(by_id.len(), if rank <= 2 { 2 } else { 3 });
            assert!((better as u64) < rank && (rank > 2 || better as u64 == rank - 1), "{by_id:?}");
        }
        let ids = ids.iter().enumerate().skip(1);
        ids.map(|(at, id)| told[at][id.to_string()]["logprob"].as_f64().unwrap())
            .collect::<Vec<f64>>()
    };
    let body = json!({"prompt": [CODE, ids], "prompt_logprobs": 2, "max_tokens": 2, "n": 2, "temperature": 1});
    let answer = server.ask(TEXT, &body);
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(check(&choice["prompt_logprobs"], ids.as_array().unwrap()), expected);
        assert!(choice["logprobs"].is_null());
    }
    assert_eq!(answer["choices"].as_array().unwrap().len(), 4);

    let messages = json!([{"role": "user", "content": "Write Python quicksort"}]);
    let tokens = server.ask("/tokenize", &json!({"messages": messages}))["tokens"].clone();
    let body = json!({"messages": messages, "prompt_logprobs": 2, "max_tokens": 2});
    let answer = server.ask(CHAT, &body);
    let raw = server.ask(TEXT, &scored(&tokens, 2));
    let expected = numbers(&raw["choices"][0]["logprobs"]["token_logprobs"]);
    assert_eq!(check(&answer["prompt_logprobs"], tokens.as_array().unwrap()), expected);

    for (path, more, field) in [
        (TEXT, json!({"prompt": "x", "prompt_logprobs": 21}), "prompt_logprobs"),
        (TEXT, json!({"prompt": "x", "prompt_logprobs": -1}), "prompt_logprobs"),
        (TEXT, json!({"prompt": "x", "prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        (TEXT, json!({"prompt": vec!["x"; 2049]}), "prompt"),
        (
            TEXT,
            json!({"prompt": vec![vec![1; 1000]; 60], "prompt_logprobs": 20}),
            "prompt_logprobs",
        ),
        (
            TEXT,
            json!({"prompt": vec![vec![1; 1000]; 60], "logprobs": 20, "echo": true}),
            "logprobs",
        ),
        (TEXT, json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (TEXT, json!({"prompt": "x", "best_of": 2}), "best_of"),
        (
            CHAT,
            json!({"messages": messages, "prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs",
        ),
        (CHAT, json!({"messages": messages, "max_tokens": 0}), "max_tokens"),
    ] {
        let refused = server.post(path, &more);
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(field)),
            "{refused:?}"
        );
    }
}

#[test]
fn scores_do_not_depend_on_company_or_speculation() {
    let long = CODE.repeat(12);
    let body = scored(&json!(long), 2);
    let score = |server: &Server| server.ask(TEXT, &body)["choices"][0]["logprobs"].clone();
    let server = Server::start(&["--slots", "3"]);
    let alone = score(&server);
    // Read in smaller chunks beside answers that are being written, and beside its like.
    let story = json!({"prompt": "def f(x):", "max_tokens": 400, "temperature": 1, "seed": 5});
    let in_company = thread::scope(|scope| {
        let story = scope.spawn(|| server.ask(TEXT, &story));
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| score(&server))).collect();
        let both: Vec<Value> = both.into_iter().map(|thread| thread.join().unwrap()).collect();
        story.join().unwrap();
        both
    });
    assert_eq!(in_company, [alone.clone(), alone.clone()]);
    // A prompt that was answered before is in the prefix cache, and is scored all the same.
    server.ask(TEXT, &json!({"prompt": long, "max_tokens": 3}));
    assert_eq!(score(&server), alone);
    let hit = server.ask(TEXT, &json!({"prompt": long, "max_tokens": 3}));
    assert!(hit["forerun"]["cached_tokens"].as_u64().unwrap() > 0, "{hit}");
    for spec in ["off", "chain", "tree", "mtp"] {
        assert_eq!(score(&Server::start(&["--spec", spec])), alone, "{spec}");
    }
}

#[test]
fn an_echo_is_streamed_with_its_figures() {
    let server = Server::start(&[]);
    for (max_tokens, choices) in [(0, 1), (6, 1), (6, 2)] {
        let mut body = scored(&json!([PLAIN, "x", CODE]), 2);
        body["max_tokens"] = json!(max_tokens);
        body["n"] = json!(choices);
        body["seed"] = json!(3);
        let whole = server.ask(TEXT, &body);
        body["stream"] = json!(true);
        let chunks = server.stream(TEXT, &body);
        for expected in whole["choices"].as_array().unwrap() {
            let own = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let own: Vec<&Value> =
                own.filter(|choice| choice["index"] == expected["index"]).collect();
            let text: String = own.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
            assert_eq!(text, expected["text"].as_str().unwrap());
            for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let parts = own.iter().filter_map(|choice| choice["logprobs"][field].as_array());
                let all: Vec<&Value> = parts.flatten().collect();
                assert_eq!(json!(all), expected["logprobs"][field], "{field}");
            }
            let finish: Vec<&Value> =
                own.iter().map(|c| &c["finish_reason"]).filter(|f| !f.is_null()).collect();
            assert_eq!(finish, [&expected["finish_reason"]]);
        }
    }
}

#[test]
fn a_prompt_may_be_read_for_nothing() {
    let server = Server::start(&["--slots", "2"]);
    let body = json!({"prompt": [CODE, "y"], "max_tokens": 0, "n": 3});
    let answer = server.ask(TEXT, &body);
    assert_eq!(answer["choices"].as_array().unwrap().len(), 6);
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("length")));
    }
    // It left its state behind.
    let again = server.ask(TEXT, &json!({"prompt": CODE, "max_tokens": 1}));
    let tokens = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["forerun"]["cached_tokens"], tokens - 1);
}

#[test]
fn many_prompts_leave_room_for_others() {
    // Four places in all, of which one request may have two.
    let server = Server::start(&["--slots", "1", "--queue", "3"]);
    let prompts: Vec<String> = (0..100).map(|i| format!("item {i}: x = y")).collect();
    let body = scored(&json!(prompts), 0);
    let alone = |prompt: &str| {
        server.ask(TEXT, &scored(&json!(prompt), 0))["choices"][0]["logprobs"].clone()
    };
    let (first, last) = (alone(&prompts[0]), alone(&prompts[99]));
    thread::scope(|scope| {
        let many = scope.spawn(|| server.ask(TEXT, &body));
        let mut served = 0;
        while !many.is_finished() {
            let other = server.post(TEXT, &json!({"prompt": "def f(x):", "max_tokens": 1}));
            assert_eq!(other.status, 200, "{other:?}");
            served += 1;
        }
        let answer = many.join().unwrap();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 100);
        assert_eq!((&choices[0]["logprobs"], &choices[99]["logprobs"]), (&first, &last));
        assert!(served > 1, "nobody else was served meanwhile");
    });
}

/// A counter of the metrics page; nothing was counted where there is none.
fn counter(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics", "").body;
    let line = page.lines().find(|line| line.starts_with(name));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
}

/// Waits for what must happen; a test that waits in vain fails.
fn wait(what: &str, happens: impl Fn() -> bool) {
    let happened = (0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        happens()
    });
    assert!(happened, "{what} never happens");
}

#[test]
fn a_prompt_whose_client_left_is_not_read_on() {
    const READ: &str = "forerun_prefill_tokens_total";
    const LEFT: &str =
        "vllm:request_success_total{model_name=\"embedded\",finished_reason=\"abort\"}";
    const RUNNING: &str = "vllm:num_requests_running";
    let server = Server::start(&["--slots", "1", "--queue", "0"]);
    // As long as the context has room for: reading all of it takes seconds.
    let limit =
        server.get("/v1/models", "").json()["data"][0]["max_model_len"].as_u64().unwrap() as u32;
    let tokens: Vec<u32> = (0..limit - 8).map(|i| 300 + i * 7919 % 3000).collect();
    for (left, stream) in [(1, false), (2, true)] {
        let before = counter(&server, READ);
        let body = json!({"prompt": tokens, "max_tokens": 1, "stream": stream}).to_string();
        let connection = server.post_open(TEXT, &body, "");
        wait("reading", || counter(&server, READ) > before);
        drop(connection);
        wait("leaving", || counter(&server, LEFT) == left);
        // It is counted before its place is free.
        wait("making room", || counter(&server, RUNNING) == 0);
        let read = counter(&server, READ);
        assert!(read - before < tokens.len() as u64, "all of {} tokens were read", tokens.len());
        // From then on nothing more of it is read: only the two tokens of the next prompt.
        let next = server.ask(TEXT, &json!({"prompt": [300 + left, 6], "max_tokens": 1}));
        assert_eq!(next["usage"]["completion_tokens"], 1);
        assert_eq!(counter(&server, READ), read + 2);
    }
}

#[test]
fn the_tokenizer_is_described() {
    let server = Server::start(&[]);
    let info = server.get("/tokenizer_info", "").json();
    assert_eq!((&info["eos_token"], &info["bos_token"]), (&json!("<|im_end|>"), &Value::Null));
    assert!(info["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    let end = server.ask("/tokenize", &json!({"prompt": "<|im_end|>", "return_token_strs": true}));
    assert_eq!(end["token_strs"], json!(["<|im_end|>"]));
    let described = &info["added_tokens_decoder"][end["tokens"][0].to_string()];
    assert_eq!(*described, json!({"content": "<|im_end|>", "special": true}));
    let text = server.ask("/tokenize", &json!({"prompt": "x", "add_special_tokens": false}));
    assert_eq!((&text["count"], &text["token_strs"]), (&json!(1), &Value::Null));
}
