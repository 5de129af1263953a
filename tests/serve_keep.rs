//! Speculative prefill over HTTP: what is written is what the target writes to the kept tokens, a
//! conversation keeps what it kept, nothing lossy is ever taken for the whole, and who asks for
//! what cannot be hears of it.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use checkpoint::Target;
use compute::{Activations, Backend, Cpu, CpuLevel, Faults, Faulty, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Long, Scorer, Shortener, Spec, WeightSource};
use http::Server;
use serde_json::{Value, json};
use server::{Facts, Options, Prefill, Served};
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, mpsc};
use std::thread;
use text::{Droppable, Tokenizer};

const FROM: usize = 400;
const TEXT: &str = "/v1/completions";

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The embedded target with itself as the scorer.
fn flags() -> Vec<String> {
    let scorer = file("models/dense/target-Q4_K_M.gguf").display().to_string();
    let from = FROM.to_string();
    let words =
        ["--prefill-scorer", &scorer, "--prefill-keep", "0.25", "--prefill-keep-from", &from];
    words.map(str::to_owned).to_vec()
}

fn start(more: &[&str]) -> Server {
    let flags = flags();
    Server::start(&[&flags.iter().map(String::as_str).collect::<Vec<_>>()[..], more].concat())
}

/// What the server has to keep of a prompt.
fn kept(prompt: &[u32]) -> Vec<u32> {
    let target = Target::open(&file("models/dense/target-Q4_K_M.gguf")).expect("a target");
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let mut shortener = Shortener::new(Scorer::load(cpu, weights).expect("it loads"));
    let tokenizer = Tokenizer::from_json(file("crates/text/tests/fixtures/tokenizer.json"));
    let found = Droppable::within(&tokenizer.expect("a tokenizer"), prompt, FROM);
    let (droppable, boundary) = (&found.ranges[..], found.boundary);
    let long = Long { prompt, droppable, boundary, share: 0.25 };
    let shortened = shortener.shorten(long, || true).expect("it is scored").expect("whole");
    shortened.tokens(prompt)
}

/// Functions that nobody asks for, and then a question.
fn document() -> String {
    let function = |i: usize| format!("def add_{i}(a):\n    return a + {}\n", i * 37 % 101);
    let all: Vec<String> = (0..60).map(function).collect();
    format!("{}\nWrite Python quicksort.", all.join("\n"))
}

fn chat() -> Value {
    let messages = json!([
        {"role": "system", "content": "You answer with code."},
        {"role": "user", "content": document()},
    ]);
    json!({"messages": messages, "max_tokens": 40, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}})
}

fn ids(server: &Server, chat: &Value) -> Vec<u32> {
    serde_json::from_value(server.ask("/tokenize", chat)["tokens"].clone()).expect("ids")
}

fn continued(prompt: &[u32], more: Value) -> Value {
    let mut body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_shortened_prompt_is_answered_as_the_kept_tokens_are_in_every_mode() {
    let mut expected = None;
    for spec in ["off", "chain", "tree", "mtp", "lookup", "auto"] {
        let server = start(&["--spec", spec]);
        let prompt = ids(&server, &chat());
        let kept = kept(&prompt);
        assert!(kept.len() < prompt.len() / 2, "{} of {}", kept.len(), prompt.len());
        let whole = json!({"forerun": {"prefill_keep": 1}});
        let direct = server.ask(TEXT, &continued(&kept, whole));
        assert_eq!(direct["forerun"]["prefill"], Value::Null);
        let lossy = server.ask(TEXT, &continued(&prompt, json!({"n": 2})));
        for choice in lossy["choices"].as_array().unwrap() {
            assert_eq!(choice["text"], direct["choices"][0]["text"], "{spec}");
        }
        let told = &lossy["forerun"]["prefill"];
        assert_eq!(told["lossy"], true);
        assert_eq!(told["prompt_tokens"], prompt.len());
        assert_eq!(told["kept_tokens"], kept.len());
        assert_eq!(told["scored_tokens"], prompt.len());
        assert_eq!(told["scorer"], "target-Q4_K_M.gguf");
        assert_eq!(lossy["usage"]["prompt_tokens"], prompt.len());
        let text = direct["choices"][0]["text"].clone();
        assert_eq!(*expected.get_or_insert(text.clone()), text, "{spec}");
    }
}

#[test]
fn a_conversation_keeps_what_it_kept_and_reads_only_what_is_new() {
    let server = start(&["--spec", "off"]);
    let first = server.chat(&chat());
    let boundary = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let mut next = chat();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "def quicksort(items): pass"}));
    messages.push(json!({"role": "user", "content": "Now merge sort."}));
    let second = server.chat(&next);
    let (before, told) = (&first["forerun"]["prefill"], &second["forerun"]["prefill"]);
    let settled = told["settled_tokens"].as_u64().unwrap();
    assert!(settled > 0 && settled < boundary && boundary - settled < 20);
    // All that is new is short, so nothing of it may be dropped and nothing is scored.
    assert_eq!(told["scored_tokens"], 0);
    assert_eq!(told["lossy"], true);
    // What the target had read is known to it.
    let cached = second["forerun"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 20 > before["kept_tokens"].as_u64().unwrap(), "{told}, {cached} cached");
    // The same question again is kept the same.
    let again = server.chat(&chat());
    assert_eq!(again["choices"][0]["message"], first["choices"][0]["message"]);
    assert_eq!(again["forerun"]["prefill"]["scored_tokens"], 0);
    let metrics = server.get("/metrics", "").body;
    assert!(metrics.contains("forerun_prefill_dropped_tokens_total"));
}

#[cfg(unix)]
#[test]
fn nothing_lossy_is_taken_for_the_whole_on_disk_either() {
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("{},1", folder.path().display());
    let exact = Server::start(&["--spec", "off"]).chat(&chat());
    let mut whole = chat();
    whole["forerun"] = json!({"prefill_keep": 1});
    let mut server = start(&["--spec", "off", "--prefix-cache-disk", &disk]);
    assert_eq!(server.chat(&chat())["forerun"]["prefill"]["lossy"], true);
    let asked = server.chat(&whole);
    assert_eq!(asked["choices"], exact["choices"]);
    assert_eq!(asked["forerun"]["prefill"], Value::Null);
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(server.child.wait().unwrap().success());
    // A server without a scorer goes on from the same folder.
    let server = Server::start(&["--spec", "off", "--prefix-cache-disk", &disk]);
    let after = server.chat(&chat());
    assert_eq!(after["forerun"]["cached_from"], "disk");
    assert_eq!(after["choices"], exact["choices"]);
}

#[test]
fn what_cannot_be_shortened_is_refused_or_read_whole_and_said() {
    let server = start(&["--spec", "off"]);
    let prompt = ids(&server, &chat());
    let asks = json!({"prefill_keep": 0.5});
    for (more, with) in [
        (json!({"prompt_logprobs": 1, "forerun": asks}), "prompt_logprobs"),
        (json!({"echo": true, "logprobs": 1, "forerun": asks}), "echo"),
        (json!({"forerun": {"prefill_keep": 0.5, "written": 3}}), "forerun.written"),
        (json!({"forerun": {"prefill_keep": 0}}), "0.001 to 1"),
        (json!({"forerun": {"prefill_keep": 2}}), "0.001 to 1"),
    ] {
        let refused = server.post(TEXT, &continued(&prompt, more));
        assert_eq!(refused.status, 400, "{with}");
        let error = &refused.json()["error"];
        assert_eq!(error["param"], "forerun.prefill_keep", "{error}");
        assert!(error["message"].as_str().unwrap().contains(with), "{error}");
    }
    // Where only the server wishes it, the prompt is read whole.
    for more in [json!({"prompt_logprobs": 1}), json!({"forerun": {"written": 3}})] {
        let told = server.ask(TEXT, &continued(&prompt, more))["forerun"]["prefill"].clone();
        assert_eq!((&told["lossy"], &told["kept_tokens"]), (&json!(false), &json!(prompt.len())));
        assert!(told["whole"].is_string(), "{told}");
    }
    // A short prompt is no matter, and where it was asked for that is said.
    let short = &prompt[..100];
    assert_eq!(server.ask(TEXT, &continued(short, json!({})))["forerun"]["prefill"], Value::Null);
    let told = server.ask(TEXT, &continued(short, json!({"forerun": asks})));
    assert!(told["forerun"]["prefill"]["whole"].as_str().unwrap().contains("400 tokens"));
    // The prompt that comes back is what was sent.
    let echoed = server.ask(TEXT, &continued(&prompt, json!({"echo": true, "max_tokens": 1})));
    assert!(echoed["choices"][0]["text"].as_str().unwrap().contains("def add_30(a)"));
    assert_eq!(echoed["forerun"]["prefill"]["lossy"], true);
    // A head says what was to be kept, before anything is known of the answer.
    let mut streamed = chat();
    streamed["stream"] = json!(true);
    let response = server.post("/v1/chat/completions", &streamed);
    assert!(response.head.contains("x-forerun-prefill-keep: 0.25"), "{}", response.head);
    let chunks = response.chunks();
    assert!(chunks.iter().any(|chunk| chunk["forerun"]["prefill"]["lossy"] == true));
    // Every API says it.
    let message = json!({"max_tokens": 4, "messages": [{"role": "user", "content": document()}]});
    assert_eq!(server.ask("/v1/messages", &message)["forerun"]["prefill"]["lossy"], true);
    // Of several prompts, whichever was shortened.
    let two = json!({"prompt": [short, prompt, prompt], "max_tokens": 1, "n": 2});
    let told = server.ask(TEXT, &two)["forerun"]["prefill"].clone();
    assert_eq!((&told["lossy"], &told["prompt_tokens"]), (&json!(true), &json!(2 * prompt.len())));
    // And in every API a request can have all of its prompt read.
    let keep = json!({"prefill_keep": 1, "whim": true});
    for (path, field) in
        [("/v1/messages", "messages"), ("/v1/responses", "input"), ("/api/chat", "messages")]
    {
        let mut asked = json!({"max_tokens": 4, "max_output_tokens": 20, "stream": false});
        asked[field] = message["messages"].clone();
        let head = |body: &Value| server.post(path, body).head.to_ascii_lowercase();
        assert!(head(&asked).contains("x-forerun-prefill-keep: 0.25"), "{path}");
        asked["forerun"] = keep.clone();
        assert!(!head(&asked).contains("x-forerun-prefill-keep"), "{path}");
        assert!(head(&asked).contains("forerun.whim"), "{path}");
        // Many names and odd ones do not break the head.
        let odd = (0..400).map(|i| (format!("wish{i}\u{e9}\r\n"), json!(1)));
        asked.as_object_mut().unwrap().extend(odd);
        let told = head(&asked);
        assert!(told.contains("wish0") && told.len() < 4000, "{path}: {told}");
    }

    let plain = Server::start(&["--spec", "off"]);
    let refused = plain.post(TEXT, &continued(short, json!({"forerun": asks})));
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("--prefill-scorer"), "{}", refused.body);
    let whole = json!({"forerun": {"prefill_keep": 1}});
    assert_eq!(plain.post(TEXT, &continued(short, whole)).status, 200);
}

/// The embedded target's file, on a backend that fails when it is told to.
fn faulty(faults: &Faults) -> Box<dyn Backend> {
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    Box::new(Faulty::new(cpu, faults.clone()))
}

/// A server of it whose scorers fail as each of these says, one after the other.
fn serve_with(faults: Vec<Faults>) -> String {
    let target = Target::open(&file("models/dense/target-Q4_K_M.gguf")).expect("a target");
    let (config, fixture) = (target.config.clone(), "crates/text/tests/fixtures/tokenizer.json");
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let engine = Engine::load(faulty(&Faults::default()), weights, None, KvType::F16, Spec::Off);
    let served = Served {
        names: vec!["tiny".to_owned()],
        engine: Some(engine.expect("it loads")),
        load: Arc::new(|| Err("nothing is loaded twice".to_owned())),
        mode: "off",
        tokenizer: Tokenizer::from_json(file(fixture)).expect("a tokenizer"),
        template: Err("none".to_owned()),
        sampling: Sampling::default(),
        context: 8192,
        trained_context: 8192,
        vocab: config.vocab,
        hidden: config.hidden,
        kv: "f16".to_owned(),
        load_s: 0.0,
        facts: Facts::default(),
    };
    let mut faults = faults.into_iter();
    let load = move || {
        let faults = faults.next().ok_or("there are no more of them")?;
        let weights = (&target.config, &target.weights as &dyn WeightSource);
        let scorer = Scorer::load(faulty(&faults), weights).map_err(|error| error.to_string())?;
        Ok(Shortener::new(scorer))
    };
    let (scorer, keep) = ("tiny".to_owned(), 0.25);
    let prefill = Some(Prefill { load: Box::new(load), scorer, keep, from: FROM });
    let (tell, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            tell.send(listener.local_addr().expect("an address").to_string()).expect("a test");
            let options = Options { prefill, ..Options::default() };
            server::serve(listener, vec![served], options, std::future::pending()).await
        })
    });
    address.recv().expect("an address")
}

#[test]
fn a_scorer_that_fails_has_the_prompt_read_whole_and_is_loaded_anew() {
    let exact = Server::start(&["--spec", "off"]);
    let prompt = ids(&exact, &chat());
    let ask = continued(&prompt, json!({}));
    let expected = exact.ask(TEXT, &ask)["choices"][0]["text"].clone();
    let faults = Faults::default();
    let address = serve_with(vec![faults.clone(), Faults::default()]);
    let post = |body: &Value| -> Value {
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        let body = body.to_string();
        let head = format!("POST {TEXT} HTTP/1.0\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).expect("the server reads");
        http::read(stream).json()
    };
    faults.lose_after(2);
    let whole = post(&ask);
    let told = &whole["forerun"]["prefill"];
    assert_eq!((&told["lossy"], &told["kept_tokens"]), (&json!(false), &json!(prompt.len())));
    assert!(told["whole"].as_str().unwrap().starts_with("the scorer failed: "), "{told}");
    assert_eq!(whole["choices"][0]["text"], expected);
    let told = post(&ask)["forerun"]["prefill"].clone();
    assert_eq!((&told["lossy"], &told["scored_tokens"]), (&json!(true), &json!(prompt.len())));
}

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forerun")).args(args).output().expect("the program starts")
}

#[test]
fn run_says_that_it_is_not_exact() {
    let (flags, document) = (flags(), document());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let ask = ["run", &document, "--temp", "0", "--no-think", "--max-tokens", "30"];
    let object = |args: &[&str]| -> Value {
        let output = run(args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let told = object(&[&ask[..], &flags, &["--json"]].concat());
    assert_eq!(told["prefill"]["lossy"], true);
    assert_eq!(told["prefill"]["prompt_tokens"], told["prompt_tokens"]);
    let output = run(&[&ask[..], &flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not exact: ") && said.contains("target-Q4_K_M.gguf"), "{said}");
    assert_eq!(object(&[&ask[..], &["--json"]].concat())["prefill"], Value::Null);
    // What makes no sense is said.
    let refused = |args: &[&str]| String::from_utf8_lossy(&run(args).stderr).into_owned();
    let said = refused(&[&ask[..], &["--prefill-keep", "0.5"]].concat());
    assert!(said.contains("--prefill-scorer"), "{said}");
    let said = refused(&[&ask[..], &flags[..2], &["--prefill-keep", "0"]].concat());
    assert!(said.contains("a share above 0"), "{said}");
    let drafter = file("models/dense/draft-Q8_0.gguf").display().to_string();
    let said = refused(&[&ask[..], &["--prefill-scorer", &drafter]].concat());
    assert!(said.contains("this is a drafter"), "{said}");
}
