//! Nothing that is asked and changes the answer is ignored in silence: every field that the APIs'
//! own packages publish (`fixtures/api-fields.json`), and those that other servers have added, is
//! sent and held against the server's tables.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

#[path = "serve/published.rs"]
mod published;

use http::{Response, Server};
use published::{Api, Published};
use serde_json::{Value, json};
use server::known::Fate;

/// Values of which no field takes all.
fn absurd() -> [Value; 5] {
    [json!({"absurd": [[]]}), json!("absurd"), json!(-17.5), json!([[["absurd"]]]), json!(true)]
}

fn ignored(response: &Response) -> Vec<String> {
    let head = response.head.lines().filter_map(|line| line.split_once(": "));
    let header = head
        .filter(|(name, _)| name.eq_ignore_ascii_case("x-forerun-ignored"))
        .map(|(_, names)| names);
    header.flat_map(|names| names.split(", ")).map(str::to_owned).collect()
}

/// Whether the answer refuses a request and names this field, perhaps by a path that leads there or
/// on from there.
fn refuses(response: &Response, name: &str) -> bool {
    // llama.cpp has names with a point inside.
    let name = name.rsplit('.').next().unwrap_or_default();
    let is_named = || {
        let error = response.json()["error"]["message"].to_string();
        error.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == name)
    };
    response.status == 400 && is_named()
}

/// What is wrong with the fate of a field, if anything.
fn judge(server: &Server, api: &Api, field: &Published, fate: Fate) -> Option<String> {
    let send = |value: &Value| server.post(api.path, &field.body(value));
    let (place, name) = (field.place(), field.name());
    let told = |response: &Response| ignored(response).iter().any(|told| told.starts_with(&place));
    let answered = |value: &Value| {
        let response = send(value);
        match response.status {
            200 if told(&response) => Some(format!("{value} is said to be ignored")),
            200 => None,
            _ => Some(format!("{value} is not taken: {}", response.body)),
        }
    };
    match fate {
        // Nothing in it is read; what is refused in it is sent for itself.
        Fate::Within(fields) if !fields.iter().any(|field| matches!(field.fate, Fate::Done)) => {
            None
        }
        Fate::Done | Fate::Within(_) | Fate::Kinds(_) => {
            let seen = absurd().iter().any(|value| {
                let response = send(value);
                refuses(&response, name) || told(&response)
            });
            (!seen).then(|| "anything is taken: nobody reads it".to_owned())
        }
        Fate::Harmless => answered(&field.telling()),
        Fate::Refused(taken) => {
            let response = send(&field.telling());
            if !refuses(&response, name) {
                return Some(format!("{} is not refused: {}", field.telling(), response.body));
            }
            taken.iter().find_map(|value| answered(&serde_json::from_str(value).unwrap()))
        }
        Fate::Ignored(taken) => {
            let response = send(&field.telling());
            if response.status != 200 || !told(&response) {
                return Some(format!(
                    "{} is passed over in silence: {response:?}",
                    field.telling()
                ));
            }
            taken.iter().find_map(|value| answered(&serde_json::from_str(value).unwrap()))
        }
    }
}

fn check(name: &str) {
    let server = Server::start(&[]);
    let api = published::api(name);
    let mut wrong = Vec::new();
    let mut seen = 0;
    for field in published::fields(&api) {
        match field.fate() {
            Ok(Some(fate)) => {
                seen += 1;
                wrong.extend(
                    judge(&server, &api, &field, fate).map(|why| format!("{}: {why}", field.path)),
                );
            }
            // A field of something that is judged as a whole.
            Ok(None) => {}
            Err(why) => wrong.push(format!("{}: {why}", field.path)),
        }
    }
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(seen > 10, "{seen}");
}

#[test]
fn every_field_of_chat_completions_is_accounted_for() {
    check("chat");
}

#[test]
fn every_field_of_completions_is_accounted_for() {
    check("completions");
}

#[test]
fn every_field_of_responses_is_accounted_for() {
    check("responses");
}

#[test]
fn every_field_of_messages_is_accounted_for() {
    check("messages");
}

#[test]
fn every_field_of_count_tokens_is_accounted_for() {
    check("count_tokens");
}

#[test]
fn what_nobody_knows_is_let_through_and_named() {
    let server = Server::start(&[]);
    for name in ["chat", "completions", "responses", "messages"] {
        let api = published::api(name);
        let mut body = api.body.clone();
        body["whim"] = json!(1);
        body["wish"] = json!({"x": 1});
        let response = server.post(api.path, &body);
        assert_eq!(
            (response.status, ignored(&response)),
            (200, vec!["whim".to_owned(), "wish".to_owned()])
        );
        assert_eq!(response.json()["forerun"]["ignored"], json!(["whim", "wish"]), "{name}");

        body["stream"] = json!(true);
        let response = server.post(api.path, &body);
        assert_eq!(
            (response.status, ignored(&response)),
            (200, vec!["whim".to_owned(), "wish".to_owned()])
        );
        let told = response.body.lines().filter_map(|line| line.strip_prefix("data: {"));
        let told = told.filter(|chunk| chunk.contains(r#""ignored":["whim","wish"]"#)).count();
        assert_eq!(told, 1, "{name}: {}", response.body);

        let response = server.post(api.path, &api.body);
        assert_eq!((response.status, ignored(&response)), (200, Vec::new()));
        assert_eq!(response.json()["forerun"].get("ignored"), None);
    }
    for (path, body) in [
        ("/tokenize", json!({"prompt": "x", "wish": 1})),
        ("/detokenize", json!({"tokens": [1], "wish": 1})),
        (
            "/v1/messages/count_tokens",
            json!({"messages": [{"role": "user", "content": "x"}], "wish": 1}),
        ),
    ] {
        let response = server.post(path, &body);
        assert_eq!((response.status, ignored(&response)), (200, vec!["wish".to_owned()]), "{path}");
    }
}

#[test]
fn numbers_are_taken_as_clients_spell_them() {
    let server = Server::start(&["--ctx", "64"]);
    let ask = |more: Value| {
        let mut body = json!({"prompt": "def f(x):", "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/v1/completions", &body)
    };
    let text = |more: Value| ask(more)["choices"][0]["text"].clone();
    assert_eq!(text(json!({"max_tokens": 8.0, "n": 1.0})), text(json!({"max_tokens": 8})));
    assert_eq!(text(json!({"n_predict": 8})), text(json!({"max_tokens": 8})));
    assert_eq!(text(json!({"stop": ["", "zzz"], "max_tokens": 8})), text(json!({"max_tokens": 8})));
    let drawn = |more: Value| {
        let mut more = more;
        more["temperature"] = json!(1);
        more["seed"] = json!(3.0);
        text(more)
    };
    assert_eq!(drawn(json!({"top_k": -1})), drawn(json!({"top_k": 0.0})));
    assert_eq!(drawn(json!({"repeat_penalty": 1.5})), drawn(json!({"repetition_penalty": 1.5})));
    let whole = ask(json!({"max_tokens": 1}))["usage"]["prompt_tokens"].as_u64().unwrap();
    let endless = ask(json!({"max_tokens": -1, "ignore_eos": true}));
    assert_eq!(endless["usage"]["total_tokens"], 64);
    assert_eq!(ask(json!({"ignore_eos": true}))["usage"]["completion_tokens"], 16);
    let cut = ask(json!({"max_tokens": 1, "truncate_prompt_tokens": 2}));
    assert!(whole > 2 && cut["usage"]["prompt_tokens"] == 2);
}

#[test]
fn thinking_is_set_under_the_names_of_others() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}],
            "temperature": 0, "max_tokens": 20});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.chat(&body)["choices"][0]["message"].clone()
    };
    let without = ask(json!({"chat_template_kwargs": {"enable_thinking": false}}));
    assert_ne!(without, ask(json!({})));
    for more in [
        json!({"enable_thinking": false}),
        json!({"thinking": {"type": "disabled"}}),
        json!({"reasoning": {"enabled": false}}),
        json!({"reasoning": {"effort": "none"}}),
    ] {
        assert_eq!(ask(more.clone()), without, "{more}");
    }
}

#[test]
fn tools_are_offered_refused_or_named() {
    let server = Server::start(&[]);
    for name in ["chat", "responses", "messages"] {
        let api = published::api(name);
        let prompt = |body: &Value| match server.post(api.path, body) {
            response if response.status == 200 => {
                let usage = &response.json()["usage"];
                let tokens = usage["prompt_tokens"].as_u64().or(usage["input_tokens"].as_u64());
                let cached = usage["cache_read_input_tokens"].as_u64();
                Ok((tokens.unwrap_or(0) + cached.unwrap_or(0), ignored(&response)))
            }
            response => Err(response),
        };
        let (alone, _) = prompt(&api.body).expect("an answer");
        let kinds = published::kinds(&api, "tools");
        assert!(kinds.len() > 1, "{name}: {kinds:?}");
        for kind in kinds {
            let mut body = api.body.clone();
            let tool = json!({"type": kind, "name": "g", "input_schema": {"type": "object"},
                "function": {"name": "g"}, "environment": {"type": "local"}, "tools": [{"type": "function", "name": "h"}]});
            body["tools"].as_array_mut().unwrap().push(tool);
            match prompt(&body) {
                Err(response) => assert!(refuses(&response, "type"), "{name} {kind}: {response:?}"),
                Ok((tokens, told)) => {
                    let told =
                        told.iter().any(|told| told.starts_with("tools[") && told.ends_with(&kind));
                    assert!(told || tokens > alone, "{name}: {kind} is dropped in silence");
                }
            }
        }
    }
}
