//! Several models behind one server: a request names the one that it wants, models come when they
//! are asked for and go when another needs the place, and no text is cut for that.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "support/program.rs"]
#[allow(dead_code)]
mod program;

use checkpoint::{Source, Target};
use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Spec};
use http::{Response, Server};
use serde_json::{Value, json};
use server::{Load, Options, Served};
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use text::Tokenizer;

const TEXT: &str = "/v1/completions";
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The files of the dense pair and of the MoE pair.
fn files() -> [String; 4] {
    [
        "models/dense/target-Q4_K_M.gguf",
        "models/dense/draft-Q8_0.gguf",
        "tests/fixtures/moe/target-Q4_K_M.gguf",
        "tests/fixtures/moe/draft-Q8_0.gguf",
    ]
    .map(|file| format!("{ROOT}/{file}"))
}

/// Both pairs under the names `dense` and `moe`.
fn both(more: &[&str]) -> Server {
    let [dense, dense_draft, moe, moe_draft] = &files();
    let pairs = ["--model", dense, "--draft", dense_draft, "--model", moe, "--draft", moe_draft];
    let names = ["--served-model-name", "dense", "--served-model-name", "moe"];
    Server::start(&[&pairs[..], &names, &["--spec", "chain"], more].concat())
}

/// What each writes when it is alone.
fn alone(body: &Value) -> [Value; 2] {
    let [dense, dense_draft, moe, moe_draft] = &files();
    [(dense, dense_draft), (moe, moe_draft)].map(|(target, draft)| {
        let server = Server::start(&["--model", target, "--draft", draft, "--spec", "chain"]);
        server.ask(TEXT, body)["choices"][0]["text"].clone()
    })
}

fn ask(model: &str, tokens: usize, stream: bool) -> Value {
    json!({"model": model, "prompt": "def sort(", "max_tokens": tokens, "temperature": 0,
        "ignore_eos": true, "stream": stream})
}

/// The names of models that are loaded.
fn loaded(server: &Server) -> Vec<String> {
    let models = server.get("/v1/models", "").json();
    let models = models["data"].as_array().expect("a list");
    assert_eq!(models.len(), 2);
    let loaded = models.iter().filter(|model| model["status"]["value"] == "loaded");
    loaded.map(|model| model["id"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_request_chooses_its_model_on_every_path() {
    let server = both(&[]);
    assert_eq!(loaded(&server), ["dense"]);
    let user = json!([{"role": "user", "content": "Write Python quicksort"}]);
    let few = json!({"num_predict": 8});
    let asked = [
        (TEXT, json!({"prompt": "def", "max_tokens": 8})),
        ("/v1/chat/completions", json!({"messages": user, "max_tokens": 8})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 8})),
        ("/v1/messages", json!({"messages": user, "max_tokens": 8})),
        ("/api/chat", json!({"messages": user, "stream": false, "options": few})),
        ("/api/generate", json!({"prompt": "hi", "stream": false, "options": few})),
    ];
    for (path, mut body) in asked {
        for name in ["moe", "dense"] {
            body["model"] = json!(name);
            let answer = server.ask(path, &body);
            assert_eq!(answer["model"], name, "{path}");
            assert_eq!(loaded(&server), [name], "{path}");
        }
        // Another's answer is not what was asked for.
        body["model"] = json!("other");
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 404, "{path}: {refused:?}");
        let sentence = "no model is called `other`: there are `dense` and `moe`";
        assert!(refused.body.contains(sentence), "{path}: {refused:?}");
    }
    let refused = server.post(TEXT, &ask("other", 1, false)).json();
    assert_eq!(refused["error"]["code"], "model_not_found");
    assert_eq!(refused["error"]["param"], "model");
    assert_eq!(server.get("/v1/models/other", "").status, 404);

    // Each writes what it writes when it is alone, with its drafter.
    let expected = alone(&ask("any", 40, false));
    for (name, expected) in ["dense", "moe"].iter().zip(expected) {
        let answer = server.ask(TEXT, &ask(name, 40, false));
        assert_eq!(answer["choices"][0]["text"], expected, "{name}");
        assert!(answer["forerun"]["spec"]["accepted"].as_u64() > Some(5), "{answer}");
    }
    // Without a name it is the first.
    let answer = server.ask(TEXT, &json!({"prompt": "def", "max_tokens": 1}));
    assert_eq!(answer["model"], "dense");
}

#[test]
fn what_is_told_of_models_does_not_load_them() {
    let server = both(&[]);
    let count = |name: &str| server.ask("/tokenize", &json!({"model": name, "prompt": "a b"}));
    assert_eq!(count("moe")["count"], count("dense")["count"]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    server.ask("/v1/messages/count_tokens", &json!({"model": "moe", "messages": messages}));
    let family =
        |name: &str| server.ask("/api/show", &json!({"model": name}))["details"]["family"].clone();
    assert_eq!([family("dense"), family("moe:latest")], ["qwen35", "qwen35moe"]);
    let named = |path: &str| -> Vec<Value> {
        let models = server.get(path, "").json()["models"].clone();
        models.as_array().expect("a list").iter().map(|model| model["name"].clone()).collect()
    };
    assert_eq!(named("/api/tags"), ["dense", "moe"]);
    assert_eq!(named("/api/ps"), ["dense"]);
    assert_eq!(server.get("/v1/models/moe", "").json()["status"]["value"], "unloaded");
    assert_eq!(server.get("/tokenizer_info?model=moe", "").status, 200);
    assert_eq!(server.get("/tokenizer_info?model=other", "").status, 404);

    // Ollama's way of having a model loaded.
    server.ask("/api/generate", &json!({"model": "moe", "stream": false}));
    assert_eq!((loaded(&server), named("/api/ps")), (vec!["moe".to_owned()], vec![json!("moe")]));

    // What is counted is counted by model, and each family is told once.
    server.ask(TEXT, &ask("moe", 8, false));
    let page = server.get("/metrics", "").body;
    let value = |name: &str, model: &str| {
        let start = format!("{name}{{model_name=\"{model}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&start)).expect("a sample").to_owned()
    };
    assert_eq!(["dense", "moe"].map(|m| value("forerun_model_loaded", m)), ["0", "1"]);
    assert_eq!(["dense", "moe"].map(|m| value("forerun_model_loads_total", m)), ["1", "1"]);
    assert_eq!(["dense", "moe"].map(|m| value("vllm:generation_tokens_total", m)), ["0", "8"]);
    let mut heads: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let count = heads.len();
    heads.sort_unstable();
    heads.dedup();
    assert!(count > 20 && heads.len() == count, "{page}");
    assert_eq!(server.get("/health", "").json(), json!({"status": "ok"}));
}

#[test]
fn a_text_is_finished_before_its_model_goes() {
    let long = ask("any", 250, false);
    let [dense, moe] = alone(&long);
    let server = both(&[]);
    let mut stream = server.post_open(TEXT, &ask("dense", 250, true).to_string(), "");
    let mut begun = [0; 512];
    let read = stream.read(&mut begun).expect("the stream has begun");
    assert!(read > 0 && loaded(&server) == ["dense"]);
    thread::scope(|scope| {
        // The other model, and while it comes the first one again.
        let text = |name| server.ask(TEXT, &ask(name, 250, false))["choices"][0]["text"].clone();
        let other = scope.spawn(move || text("moe"));
        let again = scope.spawn(move || text("dense"));
        let rest = rest(stream);
        let whole = String::from_utf8_lossy(&begun[..read]).into_owned() + &rest;
        let (_, body) = whole.split_once("\r\n\r\n").expect("a head");
        let body = Response { status: 200, head: String::new(), body: body.to_owned() };
        let pieces = body.chunks();
        let pieces = pieces.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(json!(pieces.collect::<String>()), dense);
        assert_eq!(other.join().expect("an answer"), moe);
        assert_eq!(again.join().expect("an answer"), dense);
    });
}

fn rest(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the rest of the stream");
    String::from_utf8(rest).expect("UTF-8")
}

#[test]
fn several_models_are_loaded_at_once_where_that_is_said() {
    let server = both(&["--models-loaded", "2"]);
    for name in ["moe", "dense", "moe"] {
        server.ask(TEXT, &ask(name, 4, false));
    }
    assert_eq!(loaded(&server), ["dense", "moe"]);
    let page = server.get("/metrics", "").body;
    for name in ["dense", "moe"] {
        let line = format!("forerun_model_loads_total{{model_name=\"{name}\"}} 1");
        assert!(page.contains(&line), "{page}");
    }
}

/// The tiny dense target without a drafter.
fn engine() -> Engine {
    let target = Target::read(Source::open(files()[0].as_ref()).expect("the file"));
    let target = target.expect("a target");
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    let weights = (&target.config, &target.weights as _);
    Engine::load(cpu, weights, None, KvType::F16, Spec::Off).expect("it loads")
}

fn served(name: &str, vocab: usize, load: Load) -> Served {
    let tokenizer = format!("{ROOT}/crates/text/tests/fixtures/tokenizer.json");
    Served {
        names: vec![name.to_owned()],
        engine: None,
        load,
        mode: "off",
        tokenizer: Tokenizer::from_json(tokenizer).expect("a tokenizer"),
        template: Err("none".to_owned()),
        sampling: Sampling::default(),
        context: 2048,
        trained_context: 2048,
        vocab,
        hidden: 0,
        kv: "f16".to_owned(),
        load_s: 0.0,
        facts: server::Facts::default(),
    }
}

#[test]
fn a_model_that_cannot_be_loaded_fails_its_request_alone() {
    let vocab = engine().model().config().vocab;
    let tries = Arc::new(AtomicUsize::new(0));
    let good = served("good", vocab, Arc::new(|| Ok(engine())));
    // With another beside it and alone, once more, in a panic, and then it works.
    let moody = Arc::new(move || match tries.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err("the card is full".to_owned()),
        2 => panic!("while loading"),
        _ => Ok(engine()),
    });
    let moody = served("moody", vocab, moody);
    let (tell, address) = mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let serving = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            tell.send(listener.local_addr().expect("an address").to_string()).expect("a test");
            let options = Options { models_loaded: 2, ..Options::default() };
            let ended = async move { ended.await.unwrap_or_default() };
            server::serve(listener, vec![good, moody], options, ended).await
        })
    });
    let address = address.recv().expect("an address");
    let post = |name: &str| {
        use std::io::Write;
        let body = ask(name, 8, false).to_string();
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        let head = format!("POST {TEXT} HTTP/1.0\r\ncontent-type: application/json\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).expect("the server reads");
        http::read(stream)
    };
    let expected = post("good");
    assert_eq!(expected.status, 200, "{expected:?}");
    let expected = expected.json()["choices"].clone();
    // It failed beside the good one, which had to go, and failed alone.
    let refused = post("moody");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "model_not_loaded");
    assert!(refused.body.contains("`moody` cannot be loaded: the card is full"), "{refused:?}");
    let panicked = post("moody");
    assert!(panicked.body.contains("`moody` cannot be loaded: loading panicked"), "{panicked:?}");
    assert_eq!(post("good").json()["choices"], expected);
    assert_eq!(post("moody").json()["choices"], expected);
    end.send(()).expect("a server");
    assert!(serving.join().expect("no panic").is_ok());
}

#[test]
fn flags_that_cannot_be_meant_are_refused() {
    let [dense, draft, moe, _] = &files();
    let two = ["--model", dense, "--model", moe];
    let refused = |verb: &str, more: &[&str]| program::refused(&[&[verb][..], &two, more].concat());
    let said = refused("serve", &["--draft", draft]);
    let sentence = "there are 2 models (`--model`) and 1 drafters (`--draft`): give one for each";
    assert!(said.contains(sentence), "{said}");
    let said = refused("serve", &["--served-model-name", "one"]);
    assert!(said.contains("2 models (`--model`) and 1 names (`--served-model-name`)"), "{said}");
    // Both files are called the same.
    let said = refused("serve", &[]);
    assert!(said.contains("two models are called `target-Q4_K_M.gguf`"), "{said}");
    let said = refused("run", &["hi"]);
    assert!(said.contains("`--model` is given 2 times, and one model runs here"), "{said}");
    // A model that is no good is refused before anything is served.
    let names = ["--served-model-name", "a", "--served-model-name", "b"];
    let said =
        program::refused(&[&["serve", "--model", dense, "--model", draft][..], &names].concat());
    assert!(said.contains("this is a drafter, a target was expected"), "{said}");
}
