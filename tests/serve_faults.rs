//! What goes wrong around a server: bodies nobody can read, clients that stall or vanish, thousands
//! of them, a kill. The next good request is answered.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Server, read};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn ask(prompt: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": prompt}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn assert_answers(server: &Server) {
    let body =
        ask("hi", json!({"max_tokens": 2, "unknown": {"a": 1}, "model": "any", "user": "me"}));
    assert_eq!(server.chat(&body)["model"], "embedded");
}

/// Bodies, the status they get and the field that the error names.
fn table() -> Vec<(&'static str, String, u16, &'static str)> {
    let message = json!({"role": "user", "content": "hi"});
    let chat = |more: Value| ask("hi", more).to_string();
    let said = |messages: Value| json!({"messages": messages}).to_string();
    let tool =
        |function: Value| chat(json!({"tools": [{"type": "function", "function": function}]}));
    let format = |format: Value| chat(json!({"response_format": format}));
    let schema = |schema: Value| {
        format(json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}))
    };
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let call = |arguments: Value| json!([message, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]);
    let text = |body: Value| body.to_string();
    vec![
        (CHAT, "".to_owned(), 400, ""),
        (CHAT, "{".to_owned(), 400, ""),
        (CHAT, "[]".to_owned(), 400, ""),
        (CHAT, "null".to_owned(), 400, ""),
        (CHAT, "\u{0}".to_owned(), 400, ""),
        (CHAT, "{\"messages\": [{}], }".to_owned(), 400, ""),
        (CHAT, "{'messages': []}".to_owned(), 400, ""),
        (CHAT, "{\"messages\": \"\\ud800\"}".to_owned(), 400, ""),
        (CHAT, "{\"temperature\": 1e999}".to_owned(), 400, ""),
        (CHAT, "[".repeat(1000), 400, ""),
        (CHAT, "{\"a\":".repeat(1000), 400, ""),
        (CHAT, "{}".to_owned(), 400, "messages"),
        (CHAT, said(json!([])), 400, "messages"),
        (CHAT, said(json!("hi")), 400, "messages"),
        (CHAT, said(json!({"0": message})), 400, "messages"),
        (CHAT, said(json!([null])), 400, "messages[0]"),
        (CHAT, said(json!([{"role": "robot", "content": "x"}])), 400, "messages[0].role"),
        (CHAT, said(json!([{"role": "user", "content": null}])), 400, "messages[0].content"),
        (
            CHAT,
            said(json!([{"role": "user", "content": {"text": "x"}}])),
            400,
            "messages[0].content",
        ),
        (CHAT, said(image), 400, "messages[0].content[0]"),
        (CHAT, said(call(json!(3))), 400, "messages[1].tool_calls[0].function.arguments"),
        (CHAT, said(call(json!([1]))), 400, "messages[1].tool_calls[0].function.arguments"),
        (CHAT, ask(&"word ".repeat(100), json!({})).to_string(), 400, "messages"),
        (CHAT, chat(json!({"temperature": -1})), 400, "temperature"),
        (CHAT, chat(json!({"temperature": "0"})), 400, "temperature"),
        (CHAT, chat(json!({"top_p": 1.1})), 400, "top_p"),
        (CHAT, chat(json!({"top_k": "all"})), 400, "top_k"),
        (CHAT, chat(json!({"min_p": -1})), 400, "min_p"),
        (CHAT, chat(json!({"n": 1000})), 400, "n"),
        (CHAT, chat(json!({"n": 0})), 400, "n"),
        (CHAT, chat(json!({"seed": "x"})), 400, "seed"),
        (CHAT, chat(json!({"stop": {}})), 400, "stop"),
        (CHAT, chat(json!({"stop": ["a", 1]})), 400, "stop[1]"),
        (CHAT, chat(json!({"max_tokens": 0})), 400, "max_tokens"),
        (CHAT, chat(json!({"max_completion_tokens": 1.5})), 400, "max_completion_tokens"),
        (CHAT, chat(json!({"logit_bias": [1]})), 400, "logit_bias"),
        (CHAT, chat(json!({"logit_bias": {"-1": 1}})), 400, "logit_bias"),
        (CHAT, chat(json!({"logprobs": "yes"})), 400, "logprobs"),
        (CHAT, chat(json!({"logprobs": true, "top_logprobs": 50})), 400, "top_logprobs"),
        (CHAT, chat(json!({"presence_penalty": 9})), 400, "presence_penalty"),
        (CHAT, chat(json!({"stream": "yes"})), 400, "stream"),
        (CHAT, chat(json!({"stream_options": true})), 400, "stream_options"),
        (CHAT, chat(json!({"user": 3})), 400, "user"),
        (CHAT, chat(json!({"forerun": true})), 400, "forerun"),
        (CHAT, chat(json!({"tools": "all"})), 400, "tools"),
        (CHAT, chat(json!({"tools": [{}]})), 400, "tools[0].type"),
        (CHAT, tool(json!({})), 400, "tools[0].function.name"),
        (CHAT, tool(json!({"name": ""})), 400, "tools[0].function.name"),
        (
            CHAT,
            tool(json!({"name": "f", "parameters": "none"})),
            400,
            "tools[0].function.parameters",
        ),
        (CHAT, chat(json!({"parallel_tool_calls": "no"})), 400, "parallel_tool_calls"),
        (CHAT, chat(json!({"tool_choice": "sometimes"})), 400, "tool_choice"),
        (CHAT, chat(json!({"tool_choice": "required"})), 400, "tool_choice"),
        (CHAT, chat(json!({"tool_choice": {"type": "custom"}})), 400, "tool_choice.type"),
        (
            CHAT,
            chat(json!({"tool_choice": {"type": "function", "function": {"name": "f"}}})),
            400,
            "tool_choice.function.name",
        ),
        (CHAT, chat(json!({"reasoning_effort": "extreme"})), 400, "reasoning_effort"),
        (CHAT, chat(json!({"chat_template_kwargs": 1})), 400, "chat_template_kwargs"),
        (CHAT, format(json!("json")), 400, "response_format"),
        (CHAT, format(json!({})), 400, "response_format.type"),
        (CHAT, format(json!({"type": "xml"})), 400, "response_format.type"),
        (CHAT, format(json!({"type": "json_schema"})), 400, "response_format.json_schema"),
        (
            CHAT,
            format(json!({"type": "json_schema", "json_schema": {}})),
            400,
            "response_format.json_schema.schema",
        ),
        (CHAT, schema(json!("object")), 400, "response_format.json_schema.schema"),
        (CHAT, schema(json!({"type": "unicorn"})), 400, "response_format"),
        (CHAT, schema(json!({"$ref": "https://example.com/schema"})), 400, "response_format"),
        (CHAT, schema(json!({"type": "string", "pattern": "(("})), 400, "response_format"),
        (CHAT, schema(json!({"description": "x".repeat(300_000)})), 400, "response_format"),
        (TEXT, "{}".to_owned(), 400, "prompt"),
        (TEXT, text(json!({"prompt": ""})), 400, "prompt"),
        (TEXT, text(json!({"prompt": []})), 400, "prompt"),
        (TEXT, text(json!({"prompt": [1, "a"]})), 400, "prompt[1]"),
        (TEXT, text(json!({"prompt": [5_000_000]})), 400, "prompt[0]"),
        (TEXT, text(json!({"prompt": [[1], [-1]]})), 400, "prompt[1][0]"),
        (TEXT, text(json!({"prompt": {"a": 1}})), 400, "prompt"),
        (TEXT, text(json!({"prompt": "x", "suffix": "y"})), 400, "suffix"),
        (TEXT, text(json!({"prompt": "x", "best_of": 3})), 400, "best_of"),
        (RESPONSES, "{}".to_owned(), 400, "input"),
        (RESPONSES, text(json!({"input": 3})), 400, "input"),
        (RESPONSES, text(json!({"input": []})), 400, "input"),
        (
            RESPONSES,
            text(json!({"input": "x", "previous_response_id": "resp_1"})),
            400,
            "previous_response_id",
        ),
        (
            RESPONSES,
            text(json!({"input": "x", "text": {"format": {"type": "yaml"}}})),
            400,
            "text.format.type",
        ),
        (
            RESPONSES,
            text(json!({"input": "x", "reasoning": {"effort": "extreme"}})),
            400,
            "reasoning.effort",
        ),
        ("/tokenize", "{}".to_owned(), 400, "prompt"),
        ("/detokenize", text(json!({"tokens": "x"})), 400, "tokens"),
        ("/detokenize", text(json!({"tokens": [1e9]})), 400, "tokens[0]"),
        ("/v1/nothing", "{}".to_owned(), 404, ""),
        ("/health", "{}".to_owned(), 405, ""),
    ]
}

#[test]
fn wrong_requests_get_an_error_that_names_the_field() {
    let server = Server::start(&["--ctx", "64"]);
    let table = table();
    assert!(table.len() >= 60);
    for (path, body, status, field) in table {
        let shown: String = body.chars().take(200).collect();
        let response = server.post_raw(path, &body);
        assert_eq!(response.status, status, "{path} {shown}: {response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"].as_str().unwrap_or_default(), field, "{path} {shown}");
        assert!(
            error["message"].is_string() && error["type"] == "invalid_request_error",
            "{error}"
        );
    }
    let alone = server.post(CHAT, &ask("x", json!({"tool_choice": "required"}))).json();
    assert_eq!(alone["error"]["message"], "`tool_choice` is `required`, but there are no `tools`");
    let long = server.post(CHAT, &ask(&"word ".repeat(100), json!({}))).json();
    assert_eq!(long["error"]["code"], "context_length_exceeded");
    for body in [
        "",
        "{}",
        "{\"max_tokens\": 1}",
        "{\"max_tokens\": 1, \"messages\": [{\"role\": \"robot\"}]}",
    ] {
        let response = server.post_raw(MESSAGES, body);
        assert_eq!(
            (response.status, &response.json()["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{body}"
        );
    }
    let plain =
        "POST /tokenize HTTP/1.0\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(read(server.send(plain)).status, 415);
    let huge = format!(
        "POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n"
    );
    assert_eq!(read(server.send(&huge)).status, 413);
    assert_answers(&server);
}

#[test]
fn what_is_no_http_harms_nobody() {
    let server = Server::start(&[]);
    let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(5000));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let requests = [
        "\r\n\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}".to_owned(),
        "GET".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        many,
        long,
        format!("{head}content-length: -1\r\n\r\n"),
        format!("{head}content-length: 10\r\ncontent-length: 20\r\n\r\n"),
        format!("{head}content-length: 100\r\n\r\n{{"),
        format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n"),
        format!("{head}transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n{{"),
        format!("{head}content-length: 8\r\n\r\n{}", "{\"prompt"),
    ];
    for request in requests {
        let mut stream = TcpStream::connect(server.url().trim_start_matches("http://")).unwrap();
        // The server may have said no before all of it was sent.
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains("200 OK"), "{request:.100}: {answer}");
    }
    // A body that is no UTF-8.
    let mut stream = server.send(&format!("{head}connection: close\r\ncontent-length: 13\r\n\r\n"));
    stream.write_all(b"{\"prompt\":\"\xff\"}"[..13].as_ref()).unwrap();
    assert_eq!(read(stream).status, 400);
    assert_answers(&server);
}

/// An answer that does not end by itself: the end tokens are forbidden.
fn endless(server: &Server) -> String {
    let ends =
        server.ask("/tokenize", &json!({"prompt": "<|im_end|><|endoftext|>"}))["tokens"].clone();
    let ends = ends.as_array().unwrap().iter();
    let bias: serde_json::Map<String, Value> =
        ends.map(|id| (id.to_string(), json!(-100))).collect();
    json!({"prompt": "def f(x):", "max_tokens": 20_000, "stream": true, "logit_bias": bias})
        .to_string()
}

#[test]
fn slow_and_silent_clients_hold_nobody_up() {
    let server = Server::start(&["--slots", "2"]);
    // One says nothing, one begins a head, one begins a body.
    let mut silent = server.send("");
    let mut slow_head = server.send("POST /v1/chat/completions HTTP/1.1\r\nhost: loc");
    let _slow_body = server.send("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{");
    // One asks for much and reads nothing of it.
    let _deaf = server.post_open(TEXT, &endless(&server), "");
    assert_answers(&server);
    // Whoever has not said what they want is let go.
    for stream in [&mut silent, &mut slow_head] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the server closes");
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    assert_answers(&server);
}

#[cfg(unix)]
#[test]
fn ten_thousand_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = 10_000.min(files.saturating_sub(200)) as usize;
    if count < 10_000 {
        eprintln!("ten_thousand_connections: only {count}, {files} files may be open");
    }
    let server = Server::start(&[]);
    let idle: Vec<TcpStream> = (0..count).map(|_| server.send("")).collect();
    assert_answers(&server);
    let streaming = server.stream(CHAT, &ask("hi", json!({"max_tokens": 8, "stream": true})));
    assert!(!streaming.is_empty());
    drop(idle);
    assert_answers(&server);
}

#[cfg(unix)]
#[test]
fn killed_and_started_again_it_answers() {
    let mut server = Server::start(&[]);
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let mut stream = server.post_open(TEXT, &endless(&server), "");
    stream.read_exact(&mut [0; 500]).expect("the answer begins");
    server.child.kill().expect("SIGKILL");
    server.child.wait().expect("it is gone");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    // The same port, at once, although the old connection lingers.
    let again = Server::start_on(&port, &[]);
    assert!(again.url().ends_with(&port));
    assert_answers(&again);
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_is_written_to_disk() {
    // So a full disk can do no harm. Even what it prints may go nowhere.
    let server = Server::start(&[]);
    assert_answers(&server);
    let folder = format!("/proc/{}", server.child.id());
    for file in std::fs::read_dir(format!("{folder}/fd")).expect("open files").flatten() {
        let info = std::fs::read_to_string(format!(
            "{folder}/fdinfo/{}",
            file.file_name().to_string_lossy()
        ));
        let Ok(info) = info else { continue };
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        let flags =
            info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim();
        let writes = u32::from_str_radix(flags, 8).expect("octal") & 3 != 0;
        let regular = target.is_absolute() && !target.starts_with("/dev");
        assert!(
            !(writes && regular && target.is_file()) || inherited(&target),
            "{} is open for writing",
            target.display()
        );
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["serve", "--port", "0", "--threads", "1"])
        .stdout(full)
        .spawn()
        .expect("it starts");
    thread::sleep(Duration::from_secs(3));
    assert!(child.try_wait().expect("a status").is_none(), "it ended because it could not print");
    child.kill().expect("it ends");
    child.wait().expect("it ends");
}

/// Whether this very process has the file too, as where tests write their output to one.
#[cfg(target_os = "linux")]
fn inherited(target: &std::path::Path) -> bool {
    std::fs::read_dir("/proc/self/fd")
        .expect("open files")
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|own| own == target))
}

#[test]
fn pages_elsewhere_are_kept_out_unless_invited() {
    let server = Server::start(&[]);
    let get = |server: &Server, headers: &str| {
        read(server.send(&format!("GET /v1/models HTTP/1.0\r\n{headers}\r\n")))
    };
    assert_eq!(get(&server, "host: localhost:8000\r\n").status, 200);
    assert_eq!(get(&server, "host: [::1]:8000\r\n").status, 200);
    // A name that was made to point here.
    assert_eq!(get(&server, "host: evil.example:8000\r\n").status, 403);
    let plain = get(&server, "origin: https://chat.example\r\n");
    assert!(!plain.head.to_lowercase().contains("access-control"), "{}", plain.head);

    let server = Server::start(&["--cors", "https://chat.example"]);
    let invited = get(&server, "origin: https://chat.example\r\n");
    assert!(
        invited.head.contains("access-control-allow-origin: https://chat.example"),
        "{}",
        invited.head
    );
    let other = get(&server, "origin: https://evil.example\r\n");
    assert!(!other.head.contains("access-control-allow-origin"), "{}", other.head);
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.0\r\norigin: https://chat.example\r\n\
        access-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type\r\n\r\n";
    let preflight = read(server.send(preflight));
    assert_eq!(preflight.status, 200);
    assert!(
        preflight.head.contains("access-control-allow-headers: authorization,content-type"),
        "{}",
        preflight.head
    );
    let any = Server::start(&["--cors", "*"]);
    assert!(
        get(&any, "origin: https://a.example\r\n").head.contains("access-control-allow-origin: *")
    );
}
