//! Load on a server of its own, over loopback: how much a number of clients get, and whether hours of it would do harm.
//!
//!     cargo build --release && cargo run --release --example load -- target/release/forerun rate --spec off
//!     cargo run --release --example load -- target/release/forerun rate=docs/runs/serving.json --spec off
//!     cargo run --release --example load -- target/release/forerun soak
//!
//! `rate` measures tokens per second for 1 and 8 clients in turns, and adds a row to a run that `forerun bench tables` can
//! quote where a file is named; `soak` runs 16 clients, a fifth of whose answers are
//! dropped midway, compares every whole answer with the one given alone, and watches the server's memory.

use serde_json::{Value, json};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Turns of a measured rate, each so many seconds long.
const TURNS: usize = 5;
const TURN: Duration = Duration::from_secs(6);

/// A running server; ends with this program.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(program: &str, more: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).args(more).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").ok_or("no address")?.to_owned();
        Ok(Self { child, address })
    }

    fn open(&self, body: &Value) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let body = body.to_string();
        let head = "POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\n";
        stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
        Ok(stream)
    }

    /// The text of a streamed answer and its number of tokens.
    fn ask(&self, body: &Value) -> Result<(String, usize)> {
        let mut answer = String::new();
        self.open(body)?.read_to_string(&mut answer)?;
        if !answer.starts_with("HTTP/1.0 200") || !answer.trim_end().ends_with("data: [DONE]") {
            return Err(answer.lines().next_back().unwrap_or("nothing").to_owned().into());
        }
        let (mut text, mut tokens) = (String::new(), 0);
        for data in
            answer.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
        {
            let chunk: Value = serde_json::from_str(data)?;
            for field in ["reasoning_content", "content"] {
                text += chunk["choices"][0]["delta"][field].as_str().unwrap_or_default();
            }
            tokens = chunk["usage"]["completion_tokens"].as_u64().map_or(tokens, |n| n as usize);
        }
        Ok((text, tokens))
    }

    /// Seconds of processor time so far.
    fn processor(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        // A tick is 10 ms on every Linux in use.
        Ok(ticks.sum::<std::result::Result<f64, _>>()? / 100.0)
    }

    /// Resident memory in KiB.
    fn resident(&self) -> Result<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests of mixed lengths, greedy and sampled.
fn bodies() -> Result<Vec<Value>> {
    let mut bodies = Vec::new();
    for suite in ["code", "math", "plan", "complete"] {
        let lines = std::fs::read_to_string(format!("suites/{suite}.jsonl"))?;
        for (i, line) in lines.lines().take(6).enumerate() {
            let line: Value = serde_json::from_str(line)?;
            let prompt = line["prompt"].as_str().ok_or("a suite without prompts")?;
            let temperature = if i % 2 == 0 { 0 } else { 1 };
            let room = [24, 96, 200][i % 3];
            bodies.push(json!({"messages": [{"role": "user", "content": prompt}], "temperature": temperature, "seed": i,
                "max_tokens": room, "stream": true, "stream_options": {"include_usage": true}}));
        }
    }
    Ok(bodies)
}

/// Tokens per second that `clients` clients get together, and microseconds of the server's processor time a token: other
/// work on the machine disturbs the second less.
fn rate(server: &Server, bodies: &[Value], clients: usize) -> Result<(f64, f64)> {
    let processor = server.processor()?;
    let (next, tokens) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let client = || -> Result<()> {
            while start.elapsed() < TURN {
                let body = &bodies[next.fetch_add(1, Ordering::Relaxed) % bodies.len()];
                tokens.fetch_add(server.ask(body)?.1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    })?;
    let tokens = tokens.into_inner() as f64;
    Ok((tokens / start.elapsed().as_secs_f64(), 1e6 * (server.processor()? - processor) / tokens))
}

/// Adds a row of figures to a named run, and makes it where there is none.
fn add_row(path: &str, row: Value) -> Result<()> {
    let command = |program: &str, args: &[&str]| -> Result<String> {
        Ok(String::from_utf8(Command::new(program).args(args).output()?.stdout)?.trim().to_owned())
    };
    let mut run = match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(_) => {
            let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
            let name = cpuinfo.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
            let processor = name.split_once(": ").map_or("an unknown processor", |(_, name)| name);
            let cores = std::thread::available_parallelism()?;
            json!({
                "machine": format!("{processor}, {cores} cores"),
                "build": format!("{} release", env!("CARGO_PKG_VERSION")),
                "date": command("date", &["-u", "+%Y-%m-%d"])?,
                "command": "cargo run --release --example load -- target/release/forerun rate=FILE FLAGS",
                "shapes": format!(
                    "the embedded pair, 24 prompts of four suites, 24 to 200 tokens, streamed, 8 slots; {TURNS} turns of {} s, \
                     medians; microseconds are processor time of the server a token",
                    TURN.as_secs()
                ),
                "tables": {"rate": {
                    "columns": ["flags", "UTC", "load", "tok/s, 1 client", "8 clients", "times", "us, 1 client", "8 clients"],
                    "rows": [],
                }},
            })
        }
    };
    let mut cells = vec![row[0].clone(), json!(command("date", &["-u", "+%H:%M"])?)];
    let load = std::fs::read_to_string("/proc/loadavg")?;
    cells.push(json!(load.split(' ').next().unwrap_or_default()));
    cells.extend(row.as_array().into_iter().flatten().skip(1).cloned());
    run["tables"]["rate"]["rows"].as_array_mut().ok_or("no rows")?.push(json!(cells));
    Ok(std::fs::write(path, format!("{run:#}\n"))?)
}

fn measure_rates(server: &Server, flags: &[String], out: Option<&str>) -> Result<()> {
    let bodies = bodies()?;
    let (mut one, mut eight) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        one.push(rate(server, &bodies, 1)?);
        eight.push(rate(server, &bodies, 8)?);
        let ((slow, dear), (fast, cheap)) = (one[turn], eight[turn]);
        println!(
            "turn {turn}: {slow:.0} tokens/s for 1 client, {fast:.0} for 8; {dear:.0} and {cheap:.0} us a token"
        );
    }
    let median = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of = |turns: &[(f64, f64)]| {
        (median(turns.iter().map(|turn| turn.0).collect()), median(turns.iter().map(|turn| turn.1).collect()))
    };
    let ((slow, dear), (fast, cheap)) = (of(&one), of(&eight));
    println!(
        "medians: {slow:.0} and {fast:.0} tokens/s, {:.2} times; {dear:.0} and {cheap:.0} us a token",
        fast / slow
    );
    match out {
        Some(path) => {
            add_row(path, json!([flags.join(" "), slow.round(), fast.round(), fast / slow, dear, cheap]))
        }
        None => Ok(()),
    }
}

fn soak(server: &Server, clients: usize, seconds: u64) -> Result<()> {
    let bodies = bodies()?;
    let alone = bodies.iter().map(|body| server.ask(body)).collect::<Result<Vec<_>>>()?;
    let (next, whole, dropped) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let length = Duration::from_secs(seconds);
    let start = Instant::now();
    let memory = std::thread::scope(|scope| {
        let client = || -> Result<()> {
            while start.elapsed() < length {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let i = n * 7 % bodies.len();
                if n % 5 == 4 {
                    // Midway: some of the answer has come, then the client is gone.
                    let mut some = vec![0; 300 + n * 37 % 4000];
                    let _ = server.open(&bodies[i])?.read(&mut some)?;
                    dropped.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let answer = server.ask(&bodies[i])?;
                if answer != alone[i] {
                    return Err(format!(
                        "request {i} got another answer than alone: {answer:?}, {:?}",
                        alone[i]
                    )
                    .into());
                }
                whole.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let mut memory = Vec::new();
        while start.elapsed() < length {
            std::thread::sleep(Duration::from_secs(5));
            memory.push(server.resident()?);
        }
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)?;
        Ok::<_, Box<dyn Error + Send + Sync>>(memory)
    })?;
    let (whole, dropped) = (whole.into_inner(), dropped.into_inner());
    println!("{whole} answers as alone, {dropped} dropped midway, in {:.0} s", start.elapsed().as_secs_f64());
    let mib: Vec<usize> = memory.iter().map(|kib| kib / 1024).collect();
    println!("resident, MiB every 5 s: {mib:?}");
    let warm = &mib[mib.len() / 3..];
    let growth = warm.last().zip(warm.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
    println!("grown by {growth} MiB in the last two thirds");
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let usage = "load PROGRAM rate[=FILE]|soak [FLAGS OF SERVE]";
    let (program, what) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let mut flags: Vec<String> = vec!["--slots".into(), "8".into()];
    let own: Vec<String> = args.collect();
    flags.extend(own.clone());
    let server = Server::start(&program, &flags)?;
    match what.split_once('=').unwrap_or((&what, "")) {
        ("rate", file) => measure_rates(&server, &own, Some(file).filter(|file| !file.is_empty())),
        ("soak", "") => soak(&server, 16, 180),
        _ => Err(usage.into()),
    }
}
