//! Traces, as a collector of OpenTelemetry's receives them.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "serve/logged.rs"]
#[allow(dead_code)]
mod logged;

use http::read;
use logged::Logged;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A field of a protobuf message.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Value {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(number) => panic!("{number} is not bytes"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("UTF-8")
    }

    fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Takes a message apart.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("an end") + 1;
        let (number, rest) = bytes.split_at(length);
        *bytes = rest;
        number.iter().rev().fold(0, |all, byte| all << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_at(8);
                bytes = rest;
                Value::Number(u64::from_le_bytes(number.try_into().unwrap()))
            }
            2 => {
                let (text, rest) = {
                    let length = varint(&mut bytes) as usize;
                    bytes.split_at(length)
                };
                bytes = rest;
                Value::Bytes(text.to_vec())
            }
            kind => panic!("a field of kind {kind}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

/// The fields of a number in a message.
fn all(bytes: &[u8], number: u64) -> Vec<Value> {
    fields(bytes)
        .into_iter()
        .filter(|(field, _)| *field == number)
        .map(|(_, value)| value)
        .collect()
}

fn one(bytes: &[u8], number: u64) -> Value {
    let found = all(bytes, number);
    assert_eq!(found.len(), 1, "field {number}");
    found[0].clone()
}

fn attributes(bytes: &[u8], number: u64) -> BTreeMap<String, Value> {
    let pair = |value: &Value| {
        let inner = fields(one(value.bytes(), 2).bytes());
        (one(value.bytes(), 1).text(), inner[0].1.clone())
    };
    all(bytes, number).iter().map(pair).collect()
}

/// A collector: takes one batch after the other, each with the head it came with.
fn collector() -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, batches) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n")
                && reader.read_line(&mut head).is_ok_and(|read| read > 0)
            {}
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            if sender.send((head, body)).is_err() {
                return;
            }
        }
    });
    (url, batches)
}

#[test]
fn a_request_is_a_span_with_its_parts() {
    let (url, batches) = collector();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.args(["serve", "--port", "0", "--threads", "1", "--otlp-endpoint", &url]);
    command.env("OTEL_SERVICE_NAME", "mine").env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue");
    let mut logged = Logged::start_as(command);
    let server = &logged.server;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let ask = |flags: &str, body: &str| {
        let headers =
            format!("traceparent: 00-{trace}-{parent}-{flags}\r\nx-request-id: r{flags}\r\n");
        read(server.post_open("/v1/chat/completions", body, &headers))
    };
    let body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}], "temperature": 0});
    ask("00", "{\"nobody\": \"wants to know\"}");
    server.get("/health", "");
    let answer = ask("01", &body.to_string()).json();
    let (head, batch) = batches.recv_timeout(Duration::from_secs(60)).expect("a batch");
    assert!(
        head.starts_with("POST /v1/traces HTTP/1.1\r\n") && head.contains("x-team: blue\r\n"),
        "{head}"
    );
    assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
    assert!(!String::from_utf8_lossy(&batch).contains("quicksort"));

    let of_resource = one(&batch, 1);
    let resource = one(of_resource.bytes(), 1);
    assert_eq!(attributes(resource.bytes(), 1)["service.name"].text(), "mine");
    let spans = all(one(of_resource.bytes(), 2).bytes(), 2);
    let names: Vec<String> = spans.iter().map(|span| one(span.bytes(), 5).text()).collect();
    assert_eq!(names, ["POST /v1/chat/completions", "queue", "prefill", "decode"]);
    assert!(spans.iter().all(|span| one(span.bytes(), 1).hex() == trace));
    let (whole, parts) = (spans[0].bytes(), &spans[1..]);
    assert_eq!((one(whole, 4).hex().as_str(), one(whole, 6)), (parent, Value::Number(2)));
    let times = |span: &[u8]| match (one(span, 7), one(span, 8)) {
        (Value::Number(start), Value::Number(end)) => (start, end),
        other => panic!("{other:?}"),
    };
    let (start, end) = times(whole);
    let mut last = start;
    for part in parts.iter().map(Value::bytes) {
        assert_eq!(one(part, 4), one(whole, 2));
        let (from, to) = times(part);
        assert!(last <= from && from <= to && to <= end, "{start} {last} {from} {to} {end}");
        last = to;
    }
    let attributes = attributes(whole, 9);
    let count = |name: &str| Value::Number(answer["usage"][name].as_u64().unwrap());
    assert_eq!(attributes["gen_ai.usage.input_tokens"], count("prompt_tokens"));
    assert_eq!(attributes["gen_ai.usage.output_tokens"], count("completion_tokens"));
    assert_eq!(attributes["http.response.status_code"], Value::Number(200));
    assert_eq!(attributes["http.route"].text(), "/v1/chat/completions");
    assert_eq!(attributes["forerun.request_id"].text(), "r01");
    assert_eq!(attributes["forerun.outcome"].text(), "done");

    // The last spans are sent before the end.
    ask("01", "{}");
    let id = logged.server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(logged.server.child.wait().unwrap().success());
    let (_, batch) = batches.recv_timeout(Duration::from_secs(60)).expect("a batch");
    assert!(String::from_utf8_lossy(&batch).contains("POST /v1/chat/completions"));
}

#[test]
fn a_collector_that_is_gone_costs_spans_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let logged = Logged::start(&["--otlp-endpoint", &url]);
    let body = json!({"prompt": "hi", "max_tokens": 1});
    logged.server.ask("/v1/completions", &body);
    logged.wait_for("traces were not sent");
    logged.server.ask("/v1/completions", &body);

    let output = Command::new(env!("CARGO_BIN_EXE_forerun"))
        .args(["serve", "--otlp-endpoint", "https://collector"])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.contains("`--otlp-endpoint`") && message.contains("https://collector"),
        "{message}"
    );
}
