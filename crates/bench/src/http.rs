//! Just enough HTTP to time a streamed answer: one request a connection, over the standard
//! library's sockets. A client crate would bring connection pools and TLS that a measurement on a
//! local port has no use for, and would hide when bytes arrive.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A server and the key it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// `host:port`.
    address: String,
    /// What stands before `/chat/completions`, such as `/v1`.
    base: String,
    key: Option<String>,
}

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Streamed {
    /// From the request to the first chunk with content, and to the last one.
    pub(crate) first_s: f64,
    pub(crate) last_s: f64,
    /// Chunks with content.
    pub(crate) chunks: usize,
    pub(crate) usage: Value,
    /// What a Forerun server says of its speculation; null from others.
    pub(crate) forerun: Value,
}

/// A server that says nothing for this long is taken for dead.
const SILENCE: Duration = Duration::from_secs(600);
/// No header is this long.
const LONGEST_LINE: u64 = 1 << 16;

impl Client {
    pub(crate) fn new(url: &str, key: Option<String>) -> Result<Self> {
        let Some(rest) = url.strip_prefix("http://") else {
            bail!(
                "`--server {url}`: an address that begins with http:// expected (for HTTPS, put a \
                 proxy before it)"
            );
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            bail!("`--server {url}` names no host");
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        let path = path.trim_matches('/');
        let base = if path.is_empty() { "/v1".to_owned() } else { format!("/{path}") };
        if key.as_ref().is_some_and(|k| k.chars().any(char::is_control)) {
            bail!("the key has characters that no header can hold");
        }
        Ok(Self { address, base, key })
    }

    /// The first model the server names.
    pub(crate) fn model(&self) -> Result<String> {
        let mut text = String::new();
        self.send("GET", "/models", "")?.read_to_string(&mut text)?;
        let list: Value = serde_json::from_str(&text).context("the server's list of models")?;
        let name = list["data"][0]["id"].as_str().context("the server names no model")?;
        Ok(name.to_owned())
    }

    /// The tokens of a text, where the server tells them.
    pub(crate) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let (root, mut told) = (Self { base: String::new(), ..self.clone() }, String::new());
        let body = json!({"prompt": text}).to_string();
        root.send("POST", "/tokenize", &body)?.read_to_string(&mut told)?;
        let told: Value = serde_json::from_str(&told).context("the server's tokens")?;
        let ids = told["tokens"].as_array().context("the server tells no tokens")?;
        Ok(ids.iter().filter_map(|id| Some(id.as_u64()? as u32)).collect())
    }

    /// Posts a request that asks for a stream, and times what comes.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Result<Streamed> {
        let start = Instant::now();
        let mut found = Streamed {
            first_s: 0.0,
            last_s: 0.0,
            chunks: 0,
            usage: Value::Null,
            forerun: Value::Null,
        };
        for line in self.send("POST", path, &body.to_string())?.lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return match found.chunks {
                    0 => Err(anyhow!("the server's answer is empty")),
                    _ => Ok(found),
                };
            }
            let chunk: Value =
                serde_json::from_str(data).context("a chunk of the server's answer")?;
            if !chunk["error"].is_null() {
                bail!("the server answers: {}", chunk["error"]);
            }
            if has_content(&chunk) {
                found.last_s = start.elapsed().as_secs_f64();
                found.first_s = if found.chunks == 0 { found.last_s } else { found.first_s };
                found.chunks += 1;
            }
            for (part, kept) in [("usage", &mut found.usage), ("forerun", &mut found.forerun)] {
                if !chunk[part].is_null() {
                    *kept = chunk[part].clone();
                }
            }
        }
        bail!("the server's answer breaks off")
    }

    /// Sends a request; the body of a response that is in order.
    fn send(&self, method: &str, path: &str, body: &str) -> Result<Box<dyn BufRead>> {
        let shown = || self.address.clone();
        let mut stream = TcpStream::connect(&self.address).with_context(shown)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_nodelay(true)?;
        let key =
            self.key.as_ref().map_or(String::new(), |k| format!("authorization: Bearer {k}\r\n"));
        let head = format!(
            "{method} {}{path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             content-type: application/json\r\n\
             content-length: {}\r\n{key}\r\n",
            self.base,
            self.address,
            body.len()
        );
        stream.write_all((head + body).as_bytes()).with_context(shown)?;
        let mut reader = BufReader::new(stream);
        let status = line(&mut reader).with_context(shown)?;
        let code: u16 =
            status.split(' ').nth(1).and_then(|c| c.parse().ok()).context("no HTTP response")?;
        let mut chunked = false;
        loop {
            let header = line(&mut reader)?.to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
        }
        let mut body: Box<dyn BufRead> = match chunked {
            true => Box::new(BufReader::new(Chunked { reader, left: 0, ended: false })),
            false => Box::new(reader),
        };
        if code != 200 {
            let mut said = String::new();
            let _ = body.by_ref().take(2000).read_to_string(&mut said);
            bail!("the server answers {code}: {}", said.trim());
        }
        Ok(body)
    }
}

/// A line of a head, without its end.
fn line(reader: &mut impl BufRead) -> Result<String> {
    let mut text = String::new();
    reader.take(LONGEST_LINE).read_line(&mut text)?;
    if !text.ends_with('\n') {
        bail!("the server's response breaks off");
    }
    Ok(text.trim_end().to_owned())
}

fn has_content(chunk: &Value) -> bool {
    let choice = &chunk["choices"][0];
    let said = |value: &Value| value.as_str().is_some_and(|s| !s.is_empty());
    let delta = &choice["delta"];
    said(&choice["text"])
        || said(&delta["content"])
        || said(&delta["reasoning_content"])
        || said(&delta["reasoning"])
        || delta["tool_calls"].is_array()
}

/// A body in chunks, each after its length.
struct Chunked<R> {
    reader: R,
    left: usize,
    ended: bool,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wrong =
            |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        while self.left == 0 && !self.ended {
            let text = line(&mut self.reader).map_err(|e| wrong(&e.to_string()))?;
            // The end of the chunk before.
            if text.is_empty() {
                continue;
            }
            let length = text.split(';').next().unwrap_or_default();
            self.left = usize::from_str_radix(length.trim(), 16)
                .map_err(|_| wrong("a chunk without a length"))?;
            self.ended = self.left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let room = buffer.len().min(self.left);
        let count = self.reader.read(&mut buffer[..room])?;
        if count == 0 {
            return Err(wrong("a chunk breaks off"));
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let client = |url: &str| Client::new(url, None).map(|c| (c.address, c.base));
        let expected = |address: &str, base: &str| (address.to_owned(), base.to_owned());
        assert_eq!(client("http://127.0.0.1:8000").unwrap(), expected("127.0.0.1:8000", "/v1"));
        assert_eq!(client("http://host/api/v3/").unwrap(), expected("host:80", "/api/v3"));
        for wrong in ["https://host", "host:80", "http://"] {
            assert!(client(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn chunks_are_joined() {
        let body = |text: &'static str| {
            let mut joined = String::new();
            let mut reader =
                Chunked { reader: BufReader::new(text.as_bytes()), left: 0, ended: false };
            reader.read_to_string(&mut joined).map(|_| joined)
        };
        assert_eq!(
            body("4\r\nabcd\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n").unwrap(),
            "abcd0123456789"
        );
        assert!(body("4\r\nab").is_err() && body("zz\r\n").is_err());
    }
}
