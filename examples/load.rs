//! Load on a server of its own, over loopback: how much a number of clients get, and whether hours
//! of it would do harm.
//!
//!     cargo build --release && cargo run --release --example load -- target/release/forerun rate
//!     --spec off
//!     cargo run --release --example load -- target/release/forerun rate --spec off / --spec off
//!     --threads 1 --run serving
//!     cargo run --release --example load -- target/release/forerun soak --run soak
//!
//! `rate` measures tokens per second for 1 and 8 clients in turns, of a server for each set of
//! flags between `/`; `soak` runs 16 clients, a fifth of whose answers are dropped midway, compares
//! every whole answer with the one given alone, and watches the server's memory. `--run NAME`
//! writes the figures to `docs/runs`.

use runs::{Bench, Figure, Table, machine, median};
use serde_json::{Value, json};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Turns of a measured rate, and how often every request is made in one: the same work for one
/// client as for eight.
const TURNS: usize = 8;
const CYCLES: usize = 4;

/// Clients of a soak, and how long they stay.
const SOAKING: usize = 16;
const SOAK: Duration = Duration::from_secs(180);

const USAGE: &str = "load PROGRAM rate|soak [FLAGS OF SERVE] [--run NAME]";

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
        let address =
            line.trim().strip_prefix("listening on http://").ok_or("no address")?.to_owned();
        Ok(Self { child, address })
    }

    fn open(&self, body: &Value) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        let body = body.to_string();
        let head = "POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\n";
        stream
            .write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
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
        for data in answer
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
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
            bodies.push(json!({"messages": [{"role": "user", "content": prompt}],
                "temperature": temperature, "seed": i,
                "max_tokens": room, "stream": true, "stream_options": {"include_usage": true}}));
        }
    }
    Ok(bodies)
}

/// Tokens per second that `clients` clients get together, every one of `bodies` [`CYCLES`] times,
/// and microseconds of the server's processor time a token: other work on the machine disturbs the
/// second less.
fn rate(server: &Server, bodies: &[Value], clients: usize) -> Result<(f64, f64)> {
    let processor = server.processor()?;
    let (next, tokens) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let client = || -> Result<()> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= CYCLES * bodies.len() {
                    return Ok(());
                }
                tokens.fetch_add(server.ask(&bodies[n % bodies.len()])?.1, Ordering::Relaxed);
            }
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    })?;
    let tokens = tokens.into_inner() as f64;
    Ok((tokens / start.elapsed().as_secs_f64(), 1e6 * (server.processor()? - processor) / tokens))
}

/// A row of the table of rates.
fn measure_rates(server: &Server, flags: &[String]) -> Result<Vec<Figure>> {
    let bodies = bodies()?;
    let load = machine::load();
    let (mut one, mut eight) = (Vec::new(), Vec::new());
    // What a server learns and keeps from its first requests is nobody's.
    rate(server, &bodies, 8)?;
    for turn in 0..TURNS {
        // Who goes first changes: a machine that grows slower favours nobody.
        for side in [turn % 2, 1 - turn % 2] {
            let (clients, rates) = if side == 0 { (1, &mut one) } else { (8, &mut eight) };
            rates.push(rate(server, &bodies, clients)?);
        }
        let ((slow, dear), (fast, cheap)) = (one[turn], eight[turn]);
        println!(
            "turn {turn}: {slow:.0} tokens/s for 1 client, {fast:.0} for 8; {dear:.0} and \
             {cheap:.0} us a token"
        );
    }
    let of = |turns: &[(f64, f64)]| {
        (median(turns.iter().map(|t| t.0)), median(turns.iter().map(|t| t.1)))
    };
    let ((slow, dear), (fast, cheap)) = (of(&one), of(&eight));
    let names = if flags.is_empty() { "none".to_owned() } else { flags.join(" ") };
    // A machine's pace changes from turn to turn, and within one meets both.
    let times = median(one.iter().zip(&eight).map(|(one, eight)| eight.0 / one.0));
    let figures = [load, slow, fast, times, dear, cheap].map(Figure::from);
    Ok([vec![names.as_str().into()], figures.to_vec()].concat())
}

/// What came of the requests of a soak.
#[derive(Default)]
struct Tally {
    /// As they were alone.
    whole: AtomicUsize,
    dropped: AtomicUsize,
    /// Other answers, and none.
    wrong: AtomicUsize,
}

/// The table of a soak, and how many requests went wrong.
fn soak(server: &Server) -> Result<(Table, usize)> {
    let bodies = bodies()?;
    let alone = bodies.iter().map(|body| server.ask(body)).collect::<Result<Vec<_>>>()?;
    let (next, tally) = (AtomicUsize::new(0), Tally::default());
    let mut memory = vec![server.resident()?];
    let start = Instant::now();
    let ask = |n: usize| -> Result<&AtomicUsize> {
        let i = n * 7 % bodies.len();
        if n % 5 == 4 {
            // Midway: some of the answer has come, then the client is gone.
            let mut some = vec![0; 300 + n * 37 % 4000];
            let _ = server.open(&bodies[i])?.read(&mut some)?;
            return Ok(&tally.dropped);
        }
        let answer = server.ask(&bodies[i])?;
        match answer == alone[i] {
            true => Ok(&tally.whole),
            false => Err(format!("another answer than alone: {answer:?}, {:?}", alone[i]).into()),
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let client = || {
            while start.elapsed() < SOAK {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let outcome = ask(n).unwrap_or_else(|error| {
                    eprintln!("request {n}: {error}");
                    &tally.wrong
                });
                outcome.fetch_add(1, Ordering::Relaxed);
            }
        };
        (0..SOAKING).for_each(|_| drop(scope.spawn(client)));
        while start.elapsed() < SOAK {
            std::thread::sleep(Duration::from_secs(5));
            memory.push(server.resident()?);
        }
        Ok(())
    })?;
    let mib: Vec<usize> = memory.iter().map(|kib| kib / 1024).collect();
    println!("resident, MiB every 5 s: {mib:?}");
    let most = mib.iter().max().copied().unwrap_or_default();
    let counts =
        [&tally.whole, &tally.dropped, &tally.wrong].map(|count| count.load(Ordering::Relaxed));
    let columns = [
        "answers as alone",
        "dropped",
        "errors",
        "MiB at first",
        "at a third",
        "at the end",
        "at most",
    ];
    let memory = [mib[0], mib[mib.len() / 3], mib[mib.len() - 1], most];
    let row = counts.into_iter().chain(memory).map(Figure::from).collect();
    Ok((Table::new(&columns, vec![row]), counts[2]))
}

fn main() -> Result<()> {
    let mut bench = Bench::new("cargo run --release --example load")?;
    let words = bench.words.clone();
    let [program, what, flags @ ..] = &words[..] else { return Err(USAGE.into()) };
    bench.run.build = machine::build(program.as_ref());
    let about = "the embedded pair, 24 prompts of four suites, 24 to 200 tokens, streamed, 8 slots";
    let start = |flags: &[String]| {
        Server::start(program, &[&["--slots".into(), "8".into()], flags].concat())
    };
    match what.as_str() {
        "rate" => {
            let sets = flags.split(|flag| flag == "/");
            let rows =
                sets.map(|flags| measure_rates(&start(flags)?, flags)).collect::<Result<_>>()?;
            let columns = [
                "flags",
                "load",
                "tok/s, 1 client",
                "8 clients",
                "times",
                "us, 1 client",
                "us, 8 clients",
            ];
            let shapes = format!(
                "{about}, each {CYCLES} times; {TURNS} turns, medians, and of turns' ratios; us \
                 are the server's processor time of a token"
            );
            Ok(bench.finish(&shapes, [("rate", Table::new(&columns, rows))])?)
        }
        "soak" => {
            let (table, wrong) = soak(&start(flags)?)?;
            let shapes = format!("{about}; {SOAKING} clients for {} s", SOAK.as_secs());
            bench.finish(&shapes, [("soak", table)])?;
            if wrong == 0 { Ok(()) } else { Err(format!("{wrong} requests went wrong").into()) }
        }
        _ => Err(USAGE.into()),
    }
}
