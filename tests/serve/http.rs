//! A server to test and just enough of a client: HTTP/1.0, so that a body ends with its connection.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A test that hangs fails after this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// `forerun serve` on a port of its own; ends with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    /// `host:port`.
    pub(crate) address: String,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Server {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_on("0", args)
    }

    pub(crate) fn start_on(port: &str, args: &[&str]) -> Self {
        Self::start_among(port, args, &[])
    }

    /// With these words in its environment.
    pub(crate) fn start_among(port: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(["serve", "--port", port, "--threads", "1"]).args(args);
        let mut child = command
            .stdout(Stdio::piped())
            .env("RUST_LOG", "warn")
            .envs(environment.iter().copied())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address =
            line.trim().strip_prefix("listening on http://").expect("an address").to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        Self { child, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request as it is and leaves the connection open.
    pub(crate) fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("the server reads");
        stream
    }

    /// Posts a body and leaves the connection open.
    pub(crate) fn post_open(&self, path: &str, body: &str, headers: &str) -> TcpStream {
        let length = body.len();
        self.send(&format!(
            "POST {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        ))
    }

    pub(crate) fn post_raw(&self, path: &str, body: &str) -> Response {
        read(self.post_open(path, body, ""))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.post_raw(path, &body.to_string())
    }

    /// Posts a body that must be answered.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    pub(crate) fn chat(&self, body: &Value) -> Value {
        self.ask("/v1/chat/completions", body)
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Response {
        read(self.send(&format!("GET {path} HTTP/1.0\r\n{headers}\r\n")))
    }

    /// The chunks of a streamed answer, which must end as it should.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{response:?}");
        assert!(
            response.head.to_lowercase().contains("content-type: text/event-stream"),
            "{}",
            response.head
        );
        response.chunks()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn chunks(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut data: Vec<&str> = data.collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|data| serde_json::from_str(data).expect("a chunk is JSON")).collect()
    }
}

/// Reads a response to its end.
pub(crate) fn read(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("a response");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Response { status, head: head.to_owned(), body: body.to_owned() }
}

/// That a call names a tool on offer and its arguments fit the tool's schema.
pub(crate) fn assert_fits(function: &Value, tools: &Value) {
    let tool =
        tools.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == function["name"]);
    let schema =
        &tool.unwrap_or_else(|| panic!("{function} is not on offer"))["function"]["parameters"];
    let arguments: Value =
        serde_json::from_str(function["arguments"].as_str().unwrap()).expect("JSON");
    for name in schema["required"].as_array().unwrap() {
        assert!(arguments.get(name.as_str().unwrap()).is_some(), "{function} lacks {name}");
    }
    for (name, value) in arguments.as_object().expect("an object") {
        let property = &schema["properties"][name];
        let fits = match property["type"].as_str() {
            Some("string") => value.is_string(),
            Some("integer") => value.is_i64(),
            other => panic!("{name}: {other:?}"),
        };
        let choices = property["enum"].as_array();
        assert!(fits && choices.is_none_or(|choices| choices.contains(value)), "{function}");
    }
}
