//! A server of its own and what it answers.

use crate::Result;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server; ends with this program.
pub(crate) struct Server {
    child: Child,
    address: String,
}

impl Server {
    pub(crate) fn start(program: &str, more: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).args(more).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let address =
            line.trim().strip_prefix("listening on http://").ok_or("no address")?.to_owned();
        Ok(Self { child, address })
    }

    /// Sends a request: a chat, or a prompt of its own.
    pub(crate) fn open(&self, body: &Value) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        let path = if body["prompt"].is_null() { "chat/completions" } else { "completions" };
        let body = body.to_string();
        let head = format!("POST /v1/{path} HTTP/1.0\r\ncontent-type: application/json\r\n");
        stream
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        Ok(stream)
    }

    /// A streamed answer, whole.
    pub(crate) fn ask(&self, body: &Value) -> Result<Answer> {
        let start = Instant::now();
        let mut lines = BufReader::new(self.open(body)?).lines();
        let status = lines.next().ok_or("nothing")??;
        let (mut answer, mut is_whole, mut last) = (Answer::default(), false, String::new());
        for line in lines {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ") else {
                last = line;
                continue;
            };
            if data == "[DONE]" {
                is_whole = true;
                continue;
            }
            let chunk: Value = serde_json::from_str(data)?;
            let choice = &chunk["choices"][0];
            let fields = [
                &choice["delta"]["reasoning_content"],
                &choice["delta"]["content"],
                &choice["text"],
            ];
            let said: String = fields.iter().filter_map(|field| field.as_str()).collect();
            if !said.is_empty() {
                answer.last_s = start.elapsed().as_secs_f64();
                answer.first_s = answer.first_s.or(Some(answer.last_s));
                answer.text += &said;
            }
            let tokens = chunk["usage"]["completion_tokens"].as_u64();
            answer.tokens = tokens.map_or(answer.tokens, |n| n as usize);
        }
        match is_whole && status.starts_with("HTTP/1.0 200") {
            true => Ok(answer),
            false => Err(format!("{status}: {last}").into()),
        }
    }

    /// Tokens that it has written so far, by its own count.
    pub(crate) fn written(&self) -> Result<f64> {
        let (mut stream, mut told) = (TcpStream::connect(&self.address)?, String::new());
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        stream.read_to_string(&mut told)?;
        let count = told.lines().find(|line| line.starts_with("vllm:generation_tokens_total"));
        Ok(count.and_then(|line| line.split(' ').nth(1)).ok_or("no count of tokens")?.parse()?)
    }

    /// Seconds of processor time so far.
    pub(crate) fn processor(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        // A tick is 10 ms on every Linux in use.
        Ok(ticks.sum::<std::result::Result<f64, _>>()? / 100.0)
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> Result<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

/// A streamed answer.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) tokens: usize,
    /// Seconds from the request to the first piece of it and to the last.
    pub(crate) first_s: Option<f64>,
    last_s: f64,
}

impl Answer {
    /// Milliseconds from token to token, where it came in several pieces.
    pub(crate) fn token_ms(&self) -> Option<f64> {
        let seconds = self.last_s - self.first_s?;
        (self.tokens > 1 && seconds > 0.0).then(|| 1e3 * seconds / (self.tokens - 1) as f64)
    }
}

/// What a share of some numbers is not above.
pub(crate) fn share(numbers: &[f64], share: f64) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((share * last).round() as usize).copied().unwrap_or(f64::NAN)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
