//! Ollama's API over HTTP: lines by default, figures at the end, whole calls, and refusals in its
//! own shape.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Response, Server};
use serde_json::{Value, json};

const QUESTION: &str = "Write Python quicksort";

/// The lines of a streamed answer.
fn lines(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{response:?}");
    assert!(
        response.head.to_lowercase().contains("content-type: application/x-ndjson"),
        "{}",
        response.head
    );
    response.body.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn chat(message: &str) -> Value {
    json!({"model": "any", "messages": [{"role": "user", "content": message}], "think": false,
        "options": {"num_predict": 60, "temperature": 0, "seed": 1}})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(lines: &[Value], place: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(place).and_then(Value::as_str)).collect()
}

#[test]
fn answers_are_lines_unless_one_object_is_wanted() {
    let server = Server::start(&[]);
    let streamed = lines(&server.post("/api/chat", &chat(QUESTION)));
    let whole = server.ask("/api/chat", &with(chat(QUESTION), json!({"stream": false})));
    let openai = server
        .chat(&json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": 60, "seed": 1, "chat_template_kwargs": {"enable_thinking": false}}));
    let said = openai["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!said.is_empty());
    assert_eq!(text(&streamed, "/message/content"), said);
    assert_eq!(whole["message"], json!({"role": "assistant", "content": said}));

    let (last, before) = streamed.split_last().unwrap();
    assert!(
        before.iter().all(|line| line["done"] == false && line["message"]["role"] == "assistant")
    );
    for end in [last, &whole] {
        assert_eq!((&end["done"], &end["done_reason"]), (&json!(true), &json!("length")), "{end}");
        assert_eq!(end["eval_count"], 60);
        assert_eq!(end["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
        assert_eq!(end["load_duration"], 0);
        let times =
            ["prompt_eval_duration", "eval_duration"].map(|name| end[name].as_u64().unwrap());
        assert!(times.iter().all(|time| *time > 0), "{end}");
        assert!(end["total_duration"].as_u64().unwrap() >= times.iter().sum::<u64>(), "{end}");
        assert!(end["forerun"]["spec"]["rounds"].as_u64().unwrap() > 0);
    }

    let asked =
        json!({"model": "any", "prompt": QUESTION, "think": false, "options": chat("")["options"]});
    let generated = lines(&server.post("/api/generate", &asked));
    assert_eq!(text(&generated, "/response"), said);
    assert_eq!(generated.last().unwrap()["done_reason"], "length");
}

#[test]
fn thinking_is_apart_from_the_answer() {
    let server = Server::start(&[]);
    let thinking = with(chat(QUESTION), json!({"think": true}));
    let streamed = lines(&server.post("/api/chat", &thinking));
    let whole = server.ask("/api/chat", &with(thinking, json!({"stream": false})));
    let thought = whole["message"]["thinking"].as_str().expect("the embedded model thinks");
    assert!(!thought.is_empty());
    assert_eq!(text(&streamed, "/message/thinking"), thought);
    let effort =
        server.ask("/api/chat", &with(chat(QUESTION), json!({"think": "high", "stream": false})));
    assert_eq!(effort["message"], whole["message"]);
    let asked =
        json!({"prompt": QUESTION, "think": true, "stream": false, "options": chat("")["options"]});
    assert_eq!(server.ask("/api/generate", &asked)["thinking"], thought);
}

#[test]
fn shapes_and_calls_are_whole_objects() {
    let server = Server::start(&[]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"], "additionalProperties": false});
    let shaped =
        server.ask("/api/chat", &with(chat(QUESTION), json!({"format": schema, "stream": false})));
    let object: Value =
        serde_json::from_str(shaped["message"]["content"].as_str().unwrap()).unwrap();
    assert!(object["a"].is_i64(), "{object}");
    assert_eq!(shaped["done_reason"], "stop");
    let raw = json!({"prompt": "One: ", "raw": true, "format": schema, "stream": false});
    let raw = server.ask("/api/generate", &raw);
    assert!(
        serde_json::from_str::<Value>(raw["response"].as_str().unwrap()).unwrap()["a"].is_i64()
    );

    let agent: Value = serde_json::from_str(include_str!("serve/agent.json")).unwrap();
    let (mut tools, turn) = (agent["tools"].clone(), &agent["turns"][0]);
    tools[0].as_object_mut().unwrap().remove("type");
    let asked = with(chat(turn["user"].as_str().unwrap()), json!({"think": true, "tools": tools}));
    let streamed = lines(&server.post("/api/chat", &asked));
    let whole = server.ask("/api/chat", &with(asked.clone(), json!({"stream": false})));
    let arguments: Value =
        serde_json::from_str(turn["call"]["arguments"].as_str().unwrap()).unwrap();
    let function = json!({"index": 0, "name": turn["call"]["name"], "arguments": arguments});
    let calling: Vec<&Value> =
        streamed.iter().filter(|line| line.pointer("/message/tool_calls").is_some()).collect();
    assert_eq!(calling.len(), 1, "{streamed:?}");
    for message in [&calling[0]["message"], &whole["message"]] {
        assert_eq!(message["tool_calls"][0]["function"], function);
    }
    assert_eq!(whole["done_reason"], "stop");
    // A call that the limit cuts has no arguments and is not told.
    let tokens = whole["eval_count"].as_u64().unwrap();
    for missing in 6..20 {
        let options = json!({"options": {"num_predict": tokens - missing, "temperature": 0}});
        let cut = lines(&server.post("/api/chat", &with(asked.clone(), options.clone())));
        let object =
            server.ask("/api/chat", &with(with(asked.clone(), options), json!({"stream": false})));
        for line in cut.iter().chain([&object]) {
            assert_eq!(line["message"].get("tool_calls"), None, "{line}");
        }
        assert_eq!(
            (&object["done_reason"], &cut.last().unwrap()["done_reason"]),
            (&json!("length"), &json!("length"))
        );
    }

    // The call goes into the next prompt, with its result that names the tool.
    let mut next = asked;
    let history = next["messages"].as_array_mut().unwrap();
    history.push(whole["message"].clone());
    history.push(json!({"role": "tool", "tool_name": "get_weather", "content": turn["result"]}));
    let next = server.ask("/api/chat", &with(next, json!({"stream": false})));
    let called = json!({"role": "assistant", "content": "", "reasoning_content": turn["thought"],
        "tool_calls": [{"id": "c", "type": "function", "function": turn["call"]}]});
    let result = json!({"role": "tool", "tool_call_id": "c", "content": turn["result"]});
    let openai = server.chat(&json!({"temperature": 0, "max_tokens": 60, "tools": agent["tools"],
        "chat_template_kwargs": {"enable_thinking": true},
        "messages": [{"role": "user", "content": turn["user"]}, called, result]}));
    assert_eq!(next["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
    assert_eq!(next["message"]["content"], openai["choices"][0]["message"]["content"]);

    let told = json!({"logprobs": true, "top_logprobs": 2, "stream": false, "options": {"num_predict": 3}});
    let told = server.ask("/api/chat", &with(chat(QUESTION), told));
    let logprobs = told["logprobs"].as_array().expect("logprobs");
    assert_eq!((logprobs.len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (3, 2));
    assert!(logprobs[0]["logprob"].as_f64().unwrap() <= 0.0);
}

#[test]
fn the_model_is_told_of() {
    let server = Server::start(&["--ctx", "512"]);
    assert_eq!(server.send("HEAD / HTTP/1.0\r\n\r\n").peek(&mut [0; 1]).unwrap(), 1);
    let get = |path: &str| server.get(path, "").json();
    let version = get("/api/version")["version"].as_str().unwrap().to_owned();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![0, 6, 4], "{version}");
    let (tags, ps) = (get("/api/tags"), get("/api/ps"));
    for model in [&tags["models"][0], &ps["models"][0]] {
        assert_eq!((&model["name"], &model["model"]), (&json!("embedded"), &json!("embedded")));
        assert_eq!(model["digest"].as_str().unwrap().len(), 64);
        assert!(model["size"].as_u64().unwrap() > 0);
        assert_eq!(model["details"]["family"], "qwen35");
    }
    assert_eq!(ps["models"][0]["context_length"], 512);
    let show = server.ask("/api/show", &json!({"model": "whatever"}));
    assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking"]));
    assert_eq!(show["model_info"]["general.architecture"], "qwen35");
    assert_eq!(show["model_info"]["qwen35.context_length"], 512);
    assert!(show["template"].as_str().unwrap().contains("messages"));

    for (path, body) in
        [("/api/generate", json!({"model": "x"})), ("/api/chat", json!({"messages": []}))]
    {
        let loaded = server.ask(path, &body);
        assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
        let gone = server.ask(path, &with(body, json!({"keep_alive": 0})));
        assert_eq!(gone["done_reason"], "unload");
    }
    let pulled = lines(&server.post("/api/pull", &json!({"model": "embedded:latest"})));
    assert_eq!(pulled.last().unwrap()["status"], "success");
}

#[test]
fn refusals_have_ollama_s_shape_and_name_what_is_wrong() {
    let server = Server::start(&["--ctx", "512"]);
    let message = |role: &str, more: Value| json!({"messages": [with(json!({"role": role, "content": "x"}), more)]});
    for (path, body, status, named) in [
        ("/api/chat", json!({"messages": 3}), 400, "`messages`"),
        ("/api/chat", message("robot", json!({})), 400, "`messages[0].role`"),
        ("/api/chat", message("user", json!({"images": ["aGk="]})), 400, "`messages[0].images`"),
        (
            "/api/chat",
            with(chat("x"), json!({"options": {"temperature": 900}})),
            400,
            "`options.temperature`",
        ),
        ("/api/chat", with(chat("x"), json!({"options": {"stop": [3]}})), 400, "`options.stop[0]`"),
        (
            "/api/chat",
            with(chat("x"), json!({"options": {"mirostat": 1}})),
            400,
            "`options.mirostat`",
        ),
        ("/api/chat", with(chat("x"), json!({"format": "xml"})), 400, "`format`"),
        ("/api/chat", with(chat("x"), json!({"format": {"type": 3}})), 400, "`format`"),
        ("/api/chat", with(chat("x"), json!({"think": 3})), 400, "`think`"),
        ("/api/chat", chat(&"word ".repeat(600)), 400, "context length is 512"),
        ("/api/generate", json!({"prompt": "word ".repeat(600)}), 400, "context length is 512"),
        ("/api/generate", json!({"prompt": "x", "suffix": "y"}), 400, "`suffix`"),
        ("/api/generate", json!({"prompt": "x", "template": "{{ .Prompt }}"}), 400, "`template`"),
        ("/api/generate", json!({"prompt": "x", "context": [1, 2]}), 400, "`context`"),
        ("/api/generate", json!({"prompt": "x", "raw": true, "system": "y"}), 400, "`system`"),
        ("/api/show", json!({}), 400, "`model`"),
        ("/api/pull", json!({"model": "llama3"}), 404, "`embedded`"),
        ("/api/embed", json!({"input": "x"}), 501, "embeddings"),
        ("/api/create", json!({"model": "x"}), 501, "started with"),
        ("/api/tags", json!({}), 405, "/api/tags"),
        ("/api/nonsense", json!({}), 404, "/api/nonsense"),
    ] {
        let response = server.post(path, &body);
        let error = response.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(response.status == status && error.contains(named), "{path} {body}: {response:?}");
    }
    let response = server.post_raw("/api/chat", "{");
    assert!(response.status == 400 && response.json()["error"].is_string(), "{response:?}");

    // What is not done and changes no answer is named.
    let asked = json!({"stream": false, "magic": 1, "options": {"num_ctx": 9999, "num_thread": 2, "num_predict": 1}});
    let response = server.post("/api/chat", &with(chat("x"), asked));
    assert_eq!(response.json()["forerun"]["ignored"], json!(["options.num_ctx", "magic"]));
    assert!(
        response.head.to_lowercase().contains("x-forerun-ignored: options.num_ctx, magic"),
        "{response:?}"
    );
}

#[test]
fn keys_hold_here_and_pages_must_say_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "secret\n").unwrap();
    let server = Server::start(&["--api-key-file", file.to_str().unwrap()]);
    let refused = server.get("/api/tags", "");
    assert!(refused.status == 401 && refused.json()["error"].is_string(), "{refused:?}");
    assert_eq!(server.get("/api/tags", "authorization: Bearer secret\r\n").status, 200);
    // As curl sends it; a page in a browser cannot leave its origin out.
    let post = |headers: &str| {
        let body = json!({"model": "any"}).to_string();
        let request = format!(
            "POST /api/generate HTTP/1.0\r\nauthorization: Bearer secret\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        http::read(server.send(&request)).status
    };
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    assert_eq!(post(form), 200);
    assert_eq!(post(&format!("{form}origin: https://evil.example\r\n")), 415);
    assert_eq!(post("content-type: text/plain\r\n"), 415);
}
