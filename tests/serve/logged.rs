//! A server whose log is read.

use crate::http::Server;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A line that has not come by then will not come.
const PATIENCE: Duration = Duration::from_secs(180);

/// `forerun serve` and what it has logged so far.
pub(crate) struct Logged {
    pub(crate) server: Server,
    log: Arc<Mutex<String>>,
}

impl Logged {
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
        command.args(["serve", "--port", "0", "--threads", "1"]).args(args);
        Self::start_as(command)
    }

    /// Starts a command that serves.
    pub(crate) fn start_as(mut command: Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
        let mut child = command.spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, copy) = (child.stderr.take().expect("a pipe"), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *copy.lock().unwrap() += &(line + "\n");
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().rsplit("//").next().expect("an address").to_owned();
        Self { server: Server { child, address }, log }
    }

    /// All of the log so far.
    pub(crate) fn text(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The log once it has `part`.
    pub(crate) fn wait_for(&self, part: &str) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if text.contains(part) {
                return text;
            }
            assert!(start.elapsed() < PATIENCE, "no {part} in {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The line of the request of that name, of a log in JSON.
    pub(crate) fn line(&self, id: &str) -> Value {
        let part = format!("\"id\":\"{id}\"");
        let text = self.wait_for(&part);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(&part)).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        serde_json::from_str(lines[0]).expect("JSON")
    }
}
