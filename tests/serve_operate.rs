//! What somebody who runs the server for others relies on: the log and what is not in it, request
//! ids, metrics, names of the model, TLS, a file of flags, what a service manager hears.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "serve/logged.rs"]
mod logged;

use http::{Server, read};
use logged::Logged;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::Command;

const CHAT: &str = "/v1/chat/completions";
const OPEN: &str = "accept: application/openmetrics-text\r\n";
const SECRET: &str = "Schnabeltier";

fn ask(prompt: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": prompt}], "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An answer that goes on for as long as anybody listens.
fn endless(more: Value) -> String {
    ask(SECRET, json!({"stream": true, "min_p": 1e-4, "temperature": 1.5, "logit_bias": more}))
        .to_string()
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// A bias that keeps every answer from ending.
fn never_ends(server: &Server) -> Value {
    let ends = server.ask("/tokenize", &json!({"prompt": "<|im_end|><|endoftext|>"}));
    let ids = ends["tokens"].as_array().unwrap().iter().map(|id| (id.to_string(), json!(-100)));
    Value::Object(ids.collect())
}

#[test]
fn a_request_is_a_line_without_what_was_said() {
    let logged = Logged::start(&["--ctx", "512", "--log-format", "json", "--log-level", "trace"]);
    let server = &logged.server;
    let question = ask("Write Python quicksort", json!({}));
    let post = |id: &str, path: &str, body: &str| {
        read(server.post_open(path, body, &format!("x-request-id: {id}\r\n")))
    };
    let answer = post("good", CHAT, &question.to_string()).json();
    assert!(answer["choices"].to_string().contains("quicksort"), "{answer}");
    let line = logged.line("good");
    for (name, value) in [
        ("level", json!("INFO")),
        ("message", json!("request")),
        ("method", json!("POST")),
        ("route", json!(CHAT)),
        ("status", json!(200)),
        ("outcome", json!("done")),
        ("prompt_tokens", answer["usage"]["prompt_tokens"].clone()),
        ("completion_tokens", answer["usage"]["completion_tokens"].clone()),
        ("cached_tokens", json!(0)),
    ] {
        assert_eq!(line[name], value, "{name} of {line}");
    }
    assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    let mean = answer["forerun"]["spec"]["mean_accept_length"].as_f64().unwrap();
    assert!((line["accept_length"].as_f64().unwrap() - mean).abs() < 0.01, "{line}");
    for name in ["queue_ms", "prefill_ms", "decode_ms", "ms"] {
        assert!(line[name].as_f64().is_some_and(|ms| ms >= 0.0), "{name} of {line}");
    }
    let again = post("again", CHAT, &question.to_string()).json();
    assert!(logged.line("again")["cached_tokens"].as_u64().unwrap() > 0, "{again}");

    post("cut", CHAT, &ask(SECRET, json!({"max_tokens": 3, "stream": true})).to_string());
    assert_eq!(logged.line("cut")["outcome"], "length");
    assert_eq!(logged.line("cut")["completion_tokens"], 3);
    let two = ask(SECRET, json!({"max_tokens": 3, "n": 2}));
    let usage = post("two", CHAT, &two.to_string()).json()["usage"].clone();
    assert_eq!(logged.line("two")["prompt_tokens"], usage["prompt_tokens"]);
    assert_eq!(logged.line("two")["completion_tokens"], 6);

    // Whoever leaves in the middle of an answer.
    let mut stream = server.post_open(CHAT, &endless(never_ends(server)), "x-request-id: left\r\n");
    stream.read_exact(&mut [0; 600]).expect("the answer begins");
    drop(stream);
    let line = logged.line("left");
    assert_eq!((&line["outcome"], &line["status"]), (&json!("cancelled"), &json!(200)), "{line}");
    assert!(line["completion_tokens"].as_u64().unwrap() > 0, "{line}");

    // Errors that quote what they were given, or could.
    let said = |message: Value| json!({"messages": [message]}).to_string();
    for (id, path, body, outcome, field) in [
        (
            "effort",
            CHAT,
            ask(SECRET, json!({"reasoning_effort": SECRET})).to_string(),
            "field",
            "reasoning_effort",
        ),
        (
            "role",
            CHAT,
            said(json!({"role": SECRET, "content": SECRET})),
            "field",
            "messages[0].role",
        ),
        (
            "bias",
            CHAT,
            ask("hi", json!({"logit_bias": {"5": SECRET}})).to_string(),
            "field",
            "logit_bias.5",
        ),
        ("json", CHAT, format!("{{\"messages\": {SECRET}"), "body", ""),
        (
            "long",
            CHAT,
            ask(&format!("{SECRET} ").repeat(300), json!({})).to_string(),
            "too_long",
            "messages",
        ),
        (
            "claude",
            "/v1/messages",
            ask(SECRET, json!({"max_tokens": SECRET})).to_string(),
            "field",
            "max_tokens",
        ),
        (
            "item",
            "/v1/responses",
            json!({"input": SECRET, "reasoning": {"effort": SECRET}}).to_string(),
            "field",
            "reasoning",
        ),
        ("path", "/v1/nothing", "{}".to_owned(), "not_found", ""),
    ] {
        post(id, path, &body);
        let line = logged.line(id);
        assert_eq!(line["outcome"], outcome, "{line}");
        assert!(line["field"].as_str().unwrap_or_default().starts_with(field), "{line}");
        assert!(line["status"].as_u64().unwrap() >= 400, "{line}");
    }
    let text = logged.text();
    for said in [SECRET, "quicksort"] {
        assert!(!text.contains(said), "{said}: {text}");
    }
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
}

#[test]
fn requests_have_ids_and_the_log_has_levels() {
    let logged = Logged::start(&["--log-level", "info", "--cors", "https://chat.example"]);
    let server = &logged.server;
    let id_of = |path: &str, headers: &str| {
        let response = server.get(path, headers);
        header(&response.head, "x-request-id")
            .unwrap_or_else(|| panic!("{}", response.head))
            .to_owned()
    };
    assert_eq!(id_of("/v1/models", "x-request-id: trace-1.a:b_c\r\n"), "trace-1.a:b_c");
    for path in ["/v1/models", "/nothing", "/v1/chat/completions", "/health"] {
        let long = format!("x-request-id: {}\r\n", "x".repeat(129));
        for bad in ["", "x-request-id: a b\r\n", "x-request-id: a\"b\r\n", long.as_str()] {
            let id = id_of(path, bad);
            assert!(
                id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()),
                "{path} {bad}: {id}"
            );
        }
    }
    assert_ne!(id_of("/health", ""), id_of("/health", ""));
    let wrong_host = server.get("/v1/models", "host: evil.example\r\n");
    assert!(wrong_host.status == 403 && header(&wrong_host.head, "x-request-id").is_some());
    let claude = server.post("/v1/messages", &json!({}));
    assert_eq!(header(&claude.head, "request-id"), header(&claude.head, "x-request-id"));
    let page = server.get("/v1/models", "origin: https://chat.example\r\n");
    assert_eq!(
        header(&page.head, "access-control-expose-headers"),
        Some("x-request-id,x-forerun-ignored")
    );

    id_of("/v1/models", "x-request-id: last-one\r\n");
    let text = logged.wait_for("id=last-one");
    assert!(text.contains(" INFO request id=trace-1.a:b_c client=127.0.0.1:"), "{text}");
    assert!(text.contains("route=/v1/models status=200 outcome=done"), "{text}");
    assert!(text.contains("status=403 outcome=host"), "{text}");
    assert!(text.contains(" INFO listening address=127.0.0.1:"), "{text}");
    assert!(!text.contains("route=/health"), "probes are not worth a line: {text}");

    let output =
        Command::new(env!("CARGO_BIN_EXE_forerun")).args(["serve", "--log-level", "loud"]).output();
    let output = output.unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && message.contains("`--log-level` is `loud`"),
        "{message}"
    );
}

#[test]
fn an_end_is_announced() {
    let mut logged = Logged::start(&["--log-level", "info"]);
    let server = &logged.server;
    assert_eq!(server.get("/ready", "").status, 200);
    assert_eq!(server.get("/ping", "").status, 200);
    let mut stream = server.post_open(CHAT, &endless(never_ends(server)), "");
    stream.read_exact(&mut [0; 400]).expect("the answer begins");
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    logged.wait_for("draining answers=1 limit_s=30");
    let ready = server.get("/ready", "");
    assert_eq!((ready.status, ready.json()), (503, json!({"status": "draining"})));
    let health = server.get("/health", "");
    assert_eq!((health.status, health.json()), (200, json!({"status": "draining"})));
    let refused = server.post(CHAT, &ask("hi", json!({})));
    assert_eq!((refused.status, header(&refused.head, "retry-after")), (503, Some("1")));
    let loads = server.get("/v1/loads", "").json();
    let load = &loads["loads"][0];
    assert_eq!((&load["num_running_reqs"], &load["max_running_requests"]), (&json!(1), &json!(4)));
    assert!(load["num_used_tokens"].as_u64() > Some(0), "{loads}");
    assert_eq!(loads["aggregate"]["total_reqs"], 1);
    drop(stream);
    assert!(logged.server.child.wait().unwrap().success());
    let text = logged.wait_for("stopped");
    assert!(
        text.contains("status=503 outcome=closing") && text.contains("outcome=cancelled"),
        "{text}"
    );
}

/// What `/metrics` says: the type of each family, and samples by name and labels.
fn metrics(server: &Server, accept: &str) -> (BTreeMap<String, String>, BTreeMap<String, f64>) {
    let page = server.get("/metrics", accept).body;
    let (mut types, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = BTreeSet::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(help.len() > 3, "{line}");
            helped.insert(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(helped.contains(name), "{line}");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            assert!(name.contains("model_name=\"tiny\""), "{line}");
            let family = types.iter().any(|(family, _)| name.starts_with(family.as_str()));
            assert!(family, "{line}");
            let name =
                name.replace("model_name=\"tiny\",", "").replace("{model_name=\"tiny\"}", "");
            assert!(samples.insert(name, value.parse().expect("a number")).is_none(), "{line}");
        }
    }
    (types, samples)
}

#[test]
fn metrics_add_up() {
    let server = Server::start(&["--ctx", "512", "--served-model-name", "tiny", "--spec", "chain"]);
    let (types, _) = metrics(&server, "");
    assert_eq!(types.get("vllm:prompt_tokens_total").map(String::as_str), Some("counter"));
    let (types, before) = metrics(&server, OPEN);
    for (name, kind) in [
        ("vllm:time_to_first_token_seconds", "histogram"),
        ("vllm:inter_token_latency_seconds", "histogram"),
        ("vllm:time_per_output_token_seconds", "histogram"),
        ("vllm:request_time_per_output_token_seconds", "histogram"),
        ("vllm:e2e_request_latency_seconds", "histogram"),
        ("vllm:request_queue_time_seconds", "histogram"),
        ("vllm:request_prefill_time_seconds", "histogram"),
        ("vllm:request_decode_time_seconds", "histogram"),
        ("vllm:request_prompt_tokens", "histogram"),
        ("vllm:request_generation_tokens", "histogram"),
        ("vllm:request_params_max_tokens", "histogram"),
        ("vllm:request_params_n", "histogram"),
        ("vllm:request_success", "counter"),
        ("vllm:spec_decode_num_drafts", "counter"),
        ("vllm:spec_decode_num_draft_tokens", "counter"),
        ("vllm:spec_decode_num_accepted_tokens", "counter"),
        ("vllm:spec_decode_num_accepted_tokens_per_pos", "counter"),
        ("vllm:prompt_tokens", "counter"),
        ("vllm:generation_tokens", "counter"),
        ("vllm:prefix_cache_queries", "counter"),
        ("vllm:prefix_cache_hits", "counter"),
        ("vllm:num_requests_running", "gauge"),
        ("vllm:num_requests_waiting", "gauge"),
        ("vllm:kv_cache_usage_perc", "gauge"),
        ("vllm:cache_config_info", "gauge"),
        ("forerun_request_errors", "counter"),
    ] {
        assert_eq!(types.get(name).map(String::as_str), Some(kind), "{name}");
    }
    let config =
        before.keys().find(|name| name.starts_with("vllm:cache_config_info")).expect("an info");
    for label in [
        "block_size=\"64\"",
        "num_gpu_blocks=\"32\"",
        "cache_dtype=\"f16\"",
        "enable_prefix_caching=\"true\"",
    ] {
        assert!(config.contains(label), "{config}");
    }
    // A share that nobody chose has room for a long conversation of a large model.
    let share =
        config.split("prefix_cache_bytes=\"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(share.and_then(|bytes| bytes.parse().ok()) >= Some(1u64 << 30), "{config}");

    let whole = server.chat(&ask("Compute the sum of 947 and 477.", json!({})));
    let cut = server.chat(&ask("Compute the sum of 1 and 2.", json!({"max_tokens": 5})));
    server.post(CHAT, &ask("hi", json!({"temperature": 900})));
    server.get("/nothing", "");
    server.get("/nothing", "");
    let (_, after) = metrics(&server, OPEN);
    let value =
        |name: &str| after.get(name).copied().unwrap_or_else(|| panic!("{name}: {after:#?}"));
    let sum = |pick: &dyn Fn(&Value) -> &Value| {
        [&whole, &cut].map(|a| pick(a).as_f64().unwrap()).iter().sum::<f64>()
    };
    let prompt = sum(&|answer| &answer["usage"]["prompt_tokens"]);
    let completion = sum(&|answer| &answer["usage"]["completion_tokens"]);
    let rounds = sum(&|answer| &answer["forerun"]["spec"]["rounds"]);
    assert_eq!(value("vllm:request_prompt_tokens_sum"), prompt);
    assert_eq!(value("vllm:prompt_tokens_total"), prompt);
    assert_eq!(value("vllm:prefix_cache_queries_total"), prompt);
    assert_eq!(value("vllm:prefix_cache_hits_total"), sum(&|a| &a["forerun"]["cached_tokens"]));
    assert_eq!(value("vllm:request_generation_tokens_sum"), completion);
    assert_eq!(value("vllm:inter_token_latency_seconds_count"), rounds);
    assert_eq!(
        value("vllm:spec_decode_num_draft_tokens_total"),
        sum(&|a| &a["forerun"]["spec"]["drafted"])
    );
    let accepted = sum(&|answer| &answer["forerun"]["spec"]["accepted"]);
    assert_eq!(value("vllm:spec_decode_num_accepted_tokens_total"), accepted);
    let at = |position: usize| {
        after.get(&format!(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"{position}\"}}"
        ))
    };
    let positions: Vec<f64> = (0..).map_while(|position| at(position).copied()).collect();
    assert!(positions.len() > 1 && positions.is_sorted_by(|a, b| a >= b), "{positions:?}");
    assert_eq!(positions.iter().sum::<f64>(), accepted);
    for name in [
        "e2e_request_latency",
        "request_queue_time",
        "request_prefill_time",
        "request_decode_time",
        "time_to_first_token",
    ] {
        assert_eq!(value(&format!("vllm:{name}_seconds_count")), 2.0, "{name}");
    }
    assert_eq!(value("vllm:request_params_max_tokens_bucket{le=\"5.0\"}"), 1.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"stop\"}"), 1.0);
    assert_eq!(value("vllm:request_success_total{finished_reason=\"length\"}"), 1.0);
    assert_eq!(value("forerun_request_errors_total{kind=\"field\"}"), 1.0);
    assert_eq!(value("forerun_request_errors_total{kind=\"not_found\"}"), 2.0);
}

#[test]
fn the_model_has_the_names_it_is_given() {
    let server = Server::start(&[
        "--ctx",
        "512",
        "--served-model-name",
        "first",
        "--served-model-name",
        "org/second",
    ]);
    let list = server.get("/v1/models", "anthropic-version: 2023-06-01\r\n").json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("first"), &json!("org/second")));
    let [first, second] = list["data"].as_array().unwrap().as_slice() else { panic!("{list}") };
    for (model, name) in [(first, "first"), (second, "org/second")] {
        assert_eq!(
            (&model["id"], &model["display_name"], &model["root"]),
            (&json!(name), &json!(name), &json!("first"))
        );
        assert_eq!((&model["object"], &model["type"]), (&json!("model"), &json!("model")));
        assert_eq!((&model["max_model_len"], &model["context_length"]), (&json!(512), &json!(512)));
        assert_eq!(model["meta"]["n_ctx_train"], 32768);
        assert!(model["meta"]["n_params"].as_u64().unwrap() > 100_000, "{model}");
        let created_at = model["created_at"].as_str().unwrap();
        assert!(created_at.len() == 20 && created_at.ends_with('Z'), "{created_at}");
        let can = &model["capabilities"];
        assert!(
            [&can["tools"], &can["thinking"], &can["structured_outputs"]]
                .iter()
                .all(|can| can["supported"] == true)
        );
        assert_eq!(can["image_input"]["supported"], false);
        assert_eq!(
            (&model["max_input_tokens"], &model["lifecycle"]),
            (&json!(512), &json!("active"))
        );
    }
    assert_eq!(server.get("/v1/models/org/second", "").json()["id"], "org/second");
    assert_eq!(server.get("/v1/models/any", "").json()["id"], "first");
    for (asked, told) in [("org/second", "org/second"), ("first", "first"), ("any", "first")] {
        let body = ask("hi", json!({"max_tokens": 1, "model": asked}));
        assert_eq!(server.chat(&body)["model"], told);
        assert_eq!(server.ask("/v1/messages", &body)["model"], told);
        let text = json!({"prompt": "hi", "max_tokens": 1, "model": asked});
        assert_eq!(server.ask("/v1/completions", &text)["model"], told);
        let input = json!({"input": "hi", "max_output_tokens": 1, "model": asked});
        assert_eq!(server.ask("/v1/responses", &input)["model"], told);
    }
    assert_eq!(server.chat(&ask("hi", json!({"max_tokens": 1})))["model"], "first");
    assert_eq!(server.get("/version", "").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
}

#[test]
fn the_document_tells_what_is_read() {
    let server = Server::start(&["--ctx", "256"]);
    let document = server.get("/openapi.json", "").json();
    assert_eq!(document["openapi"], "3.1.0");
    let schemas = &document["components"]["schemas"];
    for (path, methods) in document["paths"].as_object().unwrap() {
        // Nothing is kept here.
        let status = if path.contains("{id}") { 404 } else { 200 };
        let path = path.replace("{name}", "embedded").replace("{id}", "none");
        for (method, operation) in methods.as_object().unwrap() {
            let schema = operation.pointer("/requestBody/content/application~1json/schema/$ref");
            let Some(schema) =
                schema.and_then(Value::as_str).and_then(|name| name.rsplit('/').next())
            else {
                let head = format!("{} {path} HTTP/1.0\r\n\r\n", method.to_uppercase());
                assert_eq!(read(server.send(&head)).status, status, "{method} {path}");
                continue;
            };
            // What it calls an example is answered, and what it calls needed is needed.
            let schema = &schemas[schema];
            for example in schema["examples"].as_array().unwrap() {
                server.ask(&path, example);
                for name in schema["required"].as_array().unwrap() {
                    let mut less = example.clone();
                    less.as_object_mut().unwrap().remove(name.as_str().unwrap());
                    assert_eq!(server.post(&path, &less).status, 400, "{path} without {name}");
                }
            }
            // So are the ends of ranges, and what lies beyond them is not.
            let ranges = schema["properties"].as_object().unwrap().iter();
            for (name, field) in ranges.filter(|(_, field)| field["maximum"].is_number()) {
                let ask = |value: f64| {
                    let mut body = schema["examples"][0].clone();
                    body[name] = json!(value);
                    server.post(&path, &body)
                };
                let beyond = ask(field["maximum"].as_f64().unwrap() * 2.0 + 1.0);
                assert_eq!(beyond.status, 400, "{path} {name}: {beyond:?}");
            }
        }
    }
    let chat = &schemas["Chat"];
    assert_eq!(
        (&chat["required"], &chat["properties"]["messages"]["type"]),
        (&json!(["messages"]), &json!("array"))
    );
    assert_eq!(chat["properties"]["top_p"]["maximum"], 1);
    assert_eq!(chat["properties"]["stream"]["type"], json!(["boolean", "null"]));
    let nested = &chat["properties"]["stream_options"]["properties"]["include_usage"];
    assert!(nested["description"].is_string(), "{nested}");
    assert_eq!(schemas["Tokenize"]["required"], json!([]));
}
