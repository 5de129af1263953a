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
//! flags between `/`; `beside` what eight running texts keep of their rate while a prompt of 32,000
//! tokens is read, and `burst` how soon many clients that come at once have their first tokens, of
//! such servers too; `soak` runs many clients, a fifth of whose answers are dropped midway, compares
//! every whole answer with the one given alone, and watches the server's memory. `--clients N` is
//! how many come to a burst (64) or a soak (16), `--tokens N` another length of that prompt,
//! `--seconds N` another length of a soak. `--run NAME` writes the figures to `docs/runs`.

mod server;

use runs::{Bench, Figure, Table, machine, median};
use serde_json::{Value, json};
use server::{Answer, Server, share};
use std::error::Error;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
/// Measures a server that was started with these flags: a row of the table.
type Measure<'a> = &'a dyn Fn(&Server, &[String]) -> Result<Vec<Figure>>;

/// Turns of a measured rate, and how often every request is made in one: the same work for one
/// client as for eight.
const TURNS: usize = 8;
const CYCLES: usize = 4;

/// Clients of a soak unless said, and seconds that they stay.
const SOAKING: usize = 16;
const SOAK: usize = 180;

/// Texts that run beside a long prompt, its tokens, and how long the texts are watched without it.
const RUNNING: usize = 8;
const LONG: usize = 32_000;
const WATCHED: Duration = Duration::from_secs(4);

/// Clients of a burst unless said, bursts, and words of a prompt, which has about 200 tokens.
const BURSTING: usize = 64;
const BURSTS: usize = 5;
const WORDS: usize = 120;

const USAGE: &str = "load PROGRAM rate|beside|burst|soak [--clients N] [--tokens N] [--seconds N] \
                     [FLAGS OF SERVE] [--run NAME]";

/// How a set of flags is called in a table.
fn named(flags: &[String]) -> Figure {
    let names = if flags.is_empty() { "none".to_owned() } else { flags.join(" ") };
    names.as_str().into()
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
                tokens.fetch_add(server.ask(&bodies[n % bodies.len()])?.tokens, Ordering::Relaxed);
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
    // A machine's pace changes from turn to turn, and within one meets both.
    let times = median(one.iter().zip(&eight).map(|(one, eight)| eight.0 / one.0));
    let figures = [load, slow, fast, times, dear, cheap].map(Figure::from);
    Ok([vec![named(flags)], figures.to_vec()].concat())
}

/// Tokens a second that a server writes while `f` goes on, and how long that is.
fn watch(server: &Server, f: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (before, start) = (server.written()?, Instant::now());
    f()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(((server.written()? - before) / seconds, seconds))
}

/// A row of the table of texts beside a long prompt.
fn measure_beside(server: &Server, flags: &[String], tokens: usize) -> Result<Vec<Figure>> {
    // Prompts that differ from the first token on: nothing is known of them.
    let long = |first: usize| -> Value {
        let ids: Vec<usize> = (0..tokens).map(|i| 300 + (first + i) * 7919 % 3000).collect();
        json!({"prompt": ids, "max_tokens": 1, "temperature": 0, "stream": true})
    };
    let read = |first: usize| server.ask(&long(first)).map(drop);
    let stop = AtomicBool::new(false);
    let client = |i: usize| -> Result<()> {
        let body = json!({"prompt": format!("def f{i}("), "max_tokens": LONG, "ignore_eos": true,
            "temperature": 1, "seed": i, "stream": true});
        let (mut stream, mut some) = (server.open(&body)?, [0; 1 << 16]);
        while !stop.load(Ordering::Relaxed) {
            if stream.read(&mut some)? == 0 {
                return Err("a text has ended before it was measured".into());
            }
        }
        Ok(())
    };
    let rest = || {
        std::thread::sleep(WATCHED);
        Ok(())
    };
    let measure = || -> Result<_> {
        rest()?;
        let before = watch(server, rest)?.0;
        let beside = watch(server, || read(1))?;
        let after = watch(server, rest)?.0;
        Ok(((before + after) / 2.0, beside))
    };
    let (alone, beside) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..RUNNING).map(|i| scope.spawn(move || client(i))).collect();
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|c| c.join().map_err(|_| "a client panicked")?)?;
        measured
    })?;
    // Those who ran have to be noticed to be gone.
    std::thread::sleep(Duration::from_millis(500));
    let (_, seconds) = watch(server, || read(2))?;
    let figures = [alone, beside.0, beside.0 / alone, seconds, beside.1].map(Figure::from);
    println!("{alone:.0} tokens/s, {:.0} beside a prompt of {:.1} s", beside.0, beside.1);
    Ok([vec![named(flags)], figures.to_vec()].concat())
}

/// A row of the table of bursts.
fn measure_bursts(server: &Server, flags: &[String], clients: usize) -> Result<Vec<Figure>> {
    const WORD: [&str; 12] = [
        "list", "number", "return", "text", "function", "index", "value", "first", "sort", "word",
        "line", "count",
    ];
    let mut seed = 1u64;
    let mut word = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        WORD[(seed >> 33) as usize % WORD.len()]
    };
    let (mut firsts, mut tokens, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    // What a server learns and keeps from its first requests is nobody's.
    for burst in 0..=BURSTS {
        let mut ask = |i: usize| {
            let words: Vec<&str> = (0..WORDS).map(|_| word()).collect();
            json!({"messages": [{"role": "user", "content": words.join(" ")}], "seed": i,
                "temperature": 0, "max_tokens": 48, "ignore_eos": true, "stream": true,
                "stream_options": {"include_usage": true}})
        };
        let bodies: Vec<Value> = (0..clients).map(&mut ask).collect();
        let start = Instant::now();
        let answers = std::thread::scope(|scope| -> Result<Vec<Answer>> {
            let asking: Vec<_> =
                bodies.iter().map(|body| scope.spawn(move || server.ask(body))).collect();
            asking.into_iter().map(|a| a.join().map_err(|_| "a client panicked")?).collect()
        })?;
        if burst == 0 {
            continue;
        }
        let written: usize = answers.iter().map(|answer| answer.tokens).sum();
        rates.push(written as f64 / start.elapsed().as_secs_f64());
        firsts.extend(answers.iter().filter_map(|answer| answer.first_s).map(|s| 1e3 * s));
        tokens.extend(answers.iter().filter_map(Answer::token_ms));
    }
    let figures = [
        share(&firsts, 0.5),
        share(&firsts, 0.95),
        share(&firsts, 0.99),
        share(&tokens, 0.5),
        share(&tokens, 0.99),
        median(rates),
    ];
    Ok([vec![named(flags)], figures.map(Figure::from).to_vec()].concat())
}

/// What came of the requests of a soak.
#[derive(Default)]
struct Tally {
    /// As they were alone.
    whole: AtomicUsize,
    dropped: AtomicUsize,
    /// Other answers, and none.
    wrong: AtomicUsize,
    /// Milliseconds to the first token of whole ones, and from token to token.
    times: Mutex<[Vec<f64>; 2]>,
}

/// The table of a soak, and how many requests went wrong.
fn soak(server: &Server, clients: usize, length: Duration) -> Result<(Table, usize)> {
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
        let Answer { text, tokens, .. } = &alone[i];
        let answer = server.ask(&bodies[i])?;
        if (&answer.text, &answer.tokens) != (text, tokens) {
            return Err(format!("another answer than alone: {:?}, {text:?}", answer.text).into());
        }
        let [firsts, between] = &mut *tally.times.lock().expect("nobody panics");
        firsts.extend(answer.first_s.map(|s| 1e3 * s));
        between.extend(answer.token_ms());
        Ok(&tally.whole)
    };
    std::thread::scope(|scope| -> Result<()> {
        let client = || {
            while start.elapsed() < length {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let outcome = ask(n).unwrap_or_else(|error| {
                    eprintln!("request {n}: {error}");
                    &tally.wrong
                });
                outcome.fetch_add(1, Ordering::Relaxed);
            }
        };
        (0..clients).for_each(|_| drop(scope.spawn(client)));
        while start.elapsed() < length {
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
        "first token ms p50",
        "p99",
        "ms a token p50",
        "p99",
    ];
    let memory = [mib[0], mib[mib.len() / 3], mib[mib.len() - 1], most];
    let times = tally.times.into_inner()?;
    let times = times.iter().flat_map(|times| [share(times, 0.5), share(times, 0.99)]);
    let row = counts.into_iter().chain(memory).map(Figure::from);
    let row = row.chain(times.map(Figure::from)).collect();
    Ok((Table::new(&columns, vec![row]), counts[2]))
}

/// Takes a flag with a number out of the arguments.
fn take_number(words: &mut Vec<String>, flag: &str) -> Result<Option<usize>> {
    let Some(at) = words.iter().position(|word| word == flag) else { return Ok(None) };
    let taken: Vec<String> = words.drain(at..words.len().min(at + 2)).collect();
    let number = taken.get(1).ok_or_else(|| format!("`{flag}`: a number expected"))?;
    Ok(Some(number.parse()?))
}

fn main() -> Result<()> {
    let mut bench = Bench::new("cargo run --release --example load")?;
    let mut words = bench.words.clone();
    let clients = take_number(&mut words, "--clients")?;
    let length_s = take_number(&mut words, "--seconds")?;
    let long = take_number(&mut words, "--tokens")?.unwrap_or(LONG);
    let [program, what, flags @ ..] = &words[..] else { return Err(USAGE.into()) };
    bench.run.build = machine::build(program.as_ref());
    let suites = "the embedded pair, 24 prompts of four suites, 24 to 200 tokens, streamed";
    let start = |slots: usize, flags: &[String]| {
        let slots =
            ["--slots".to_owned(), slots.to_string(), "--queue".to_owned(), "512".to_owned()];
        Server::start(program, &[&slots, flags].concat())
    };
    let each = |slots: usize, measure: Measure<'_>| {
        let sets = flags.split(|flag| flag == "/");
        sets.map(|flags| measure(&start(slots, flags)?, flags)).collect::<Result<Vec<_>>>()
    };
    match what.as_str() {
        "rate" => {
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
                "{suites}, 8 slots, each {CYCLES} times; {TURNS} turns, medians, and of turns' \
                 ratios; us are the server's processor time of a token"
            );
            let table = Table::new(&columns, each(8, &measure_rates)?);
            Ok(bench.finish(&shapes, [("rate", table)])?)
        }
        "beside" => {
            let columns =
                ["flags", "tok/s", "beside the prompt", "share", "prompt s alone", "beside texts"];
            let shapes = format!(
                "the embedded pair; {RUNNING} texts at temperature 1, watched {} s before and \
                 after a prompt of {long} tokens and while it is read",
                WATCHED.as_secs()
            );
            let measure = |server: &Server, flags: &[String]| measure_beside(server, flags, long);
            let table = Table::new(&columns, each(2 * RUNNING, &measure)?);
            Ok(bench.finish(&shapes, [("beside", table)])?)
        }
        "burst" => {
            let clients = clients.unwrap_or(BURSTING);
            let columns = [
                "flags",
                "first token ms p50",
                "p95",
                "p99",
                "ms a token p50",
                "p99",
                "tok/s of all",
            ];
            let shapes = format!(
                "the embedded pair; {clients} clients at once, each with a prompt of {WORDS} words \
                 and an answer of 48 tokens; {BURSTS} bursts"
            );
            let measure =
                |server: &Server, flags: &[String]| measure_bursts(server, flags, clients);
            let table = Table::new(&columns, each(clients.min(64), &measure)?);
            Ok(bench.finish(&shapes, [("burst", table)])?)
        }
        "soak" => {
            let clients = clients.unwrap_or(SOAKING);
            let slots = if clients == SOAKING { 8 } else { clients };
            let seconds = length_s.unwrap_or(SOAK);
            let length = Duration::from_secs(seconds as u64);
            let (table, wrong) = soak(&start(slots, flags)?, clients, length)?;
            let shapes = format!("{suites}, {slots} slots; {clients} clients for {seconds} s");
            bench.finish(&shapes, [("soak", table)])?;
            if wrong == 0 { Ok(()) } else { Err(format!("{wrong} requests went wrong").into()) }
        }
        _ => Err(USAGE.into()),
    }
}
