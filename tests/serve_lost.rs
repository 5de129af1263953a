//! A device that is lost: whoever is under way hears of it, the next request is answered by an
//! engine that was built anew, and a second loss ends the server with a code of its own.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use checkpoint::{Source, Target};
use compute::{Activations, Backend, Cpu, CpuLevel, Faults, Faulty, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Spec};
use http::Server;
use serde_json::{Value, json};
use server::{Options, ServeError, Served};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use text::Tokenizer;

const TEXT: &str = "/v1/completions";
const VOCAB: usize = 4096;

/// The tiny target on a backend that fails when it is told to.
fn build_engine(faults: Faults) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/dense/target-Q4_K_M.gguf");
    let target = Target::read(Source::open(&path).expect("the file")).expect("a target");
    let cpu: Box<dyn Backend> = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    let backend = Box::new(Faulty::new(cpu, faults));
    let weights = (&target.config, &target.weights as _);
    Engine::load(backend, weights, None, KvType::F16, Spec::Off).expect("it loads")
}

fn ask(tokens: usize, stream: bool) -> Value {
    json!({"prompt": "def sort(", "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream})
}

/// Where a server listens.
struct Client(String);

/// A model that is loaded, or is when it is asked for.
fn served(
    name: &str,
    engine: Option<Engine>,
    load: impl Fn() -> Result<Engine, String> + Send + Sync + 'static,
) -> Served {
    let tokenizer = "crates/text/tests/fixtures/tokenizer.json";
    let tokenizer = Tokenizer::from_json(Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer));
    Served {
        names: vec![name.to_owned()],
        engine,
        load: Arc::new(load),
        mode: "off",
        tokenizer: tokenizer.expect("a tokenizer"),
        template: Err("none".to_owned()),
        sampling: Sampling::default(),
        context: 2048,
        trained_context: 2048,
        vocab: VOCAB,
        hidden: 0,
        kv: "f16".to_owned(),
        load_s: 0.0,
        facts: server::Facts {
            family: "qwen35",
            format: "gguf",
            shape: Vec::new(),
            parameters: 0,
            bytes: 0,
            device_bytes: 0,
            level: String::new(),
        },
    }
}

impl Client {
    fn send(&self, request: &str) -> http::Response {
        use std::io::Write;
        let mut stream = TcpStream::connect(&self.0).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        stream.write_all(request.as_bytes()).expect("the server reads");
        http::read(stream)
    }

    fn get(&self, path: &str) -> http::Response {
        self.send(&format!("GET {path} HTTP/1.0\r\n\r\n"))
    }

    fn post(&self, body: &Value) -> http::Response {
        let body = body.to_string();
        let head = format!("POST {TEXT} HTTP/1.0\r\ncontent-type: application/json\r\n");
        self.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
    }
}

#[test]
fn an_engine_is_built_anew_once() {
    let (first, second) = (Faults::default(), Faults::default());
    let (build, told_to_build) = mpsc::channel::<()>();
    let told_to_build = Mutex::new(told_to_build);
    let reloaded = second.clone();
    // Building takes as long as the test wants.
    let load = move || {
        let told_to_build = told_to_build.lock().map_err(|error| error.to_string())?;
        told_to_build.recv().map_err(|error| error.to_string())?;
        Ok(build_engine(reloaded.clone()))
    };
    let served = served("tiny", Some(build_engine(first.clone())), load);
    let (tell, address) = mpsc::channel();
    let serving = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            tell.send(listener.local_addr().expect("an address").to_string()).expect("a test");
            server::serve(listener, vec![served], Options::default(), std::future::pending()).await
        })
    });
    let client = Client(address.recv().expect("an address"));
    let expected = client.post(&ask(8, false)).json()["choices"].clone();
    assert_eq!(client.get("/health").status, 200);

    // The device goes in the middle of an answer. Its reader hears why.
    first.lose_after(20);
    let cut = client.post(&ask(500, true));
    assert_eq!(cut.status, 200);
    let last = cut.body.lines().rfind(|line| line.starts_with("data: {")).expect("an event");
    assert!(last.contains("\"code\":\"device_lost\""), "{last}");

    // Until there is an engine again the server is no good, and says why; requests wait.
    let sick = loop {
        let health = client.get("/health");
        if health.status != 200 {
            break health;
        }
    };
    assert_eq!(sick.status, 503);
    assert!(sick.body.contains("the device is lost"), "{sick:?}");
    assert_eq!(client.get("/ready").status, 503);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.post(&ask(8, false)).json()["choices"].clone());
        build.send(()).expect("a server that builds");
        assert_eq!(waiting.join().expect("an answer"), expected);
    });
    assert_eq!(client.get("/health").status, 200);
    let page = client.get("/metrics").body;
    let count = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name)).expect("a counter");
        line.rsplit(' ').next().expect("a number").to_owned()
    };
    assert_eq!(count("forerun_device_lost_total"), "1");
    assert_eq!(count("forerun_engine_errors_total{model_name=\"tiny\",kind=\"device_lost\""), "1");

    // Lost again so soon, it is not worth another try.
    second.lose_after(20);
    let refused = client.post(&ask(500, false));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "device_lost");
    let ended = serving.join().expect("no panic");
    assert!(matches!(ended, Err(ServeError::DeviceLost(_))), "{ended:?}");
}

#[test]
fn a_server_ends_while_a_model_is_loaded_for_somebody_who_left() {
    let (finish, told_to_finish) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let told_to_finish = Mutex::new(told_to_finish);
    let load = move || {
        begin.send(()).map_err(|error| error.to_string())?;
        let told_to_finish = told_to_finish.lock().map_err(|error| error.to_string())?;
        Err(told_to_finish.recv().map_or_else(|error| error.to_string(), |()| "told".to_owned()))
    };
    let tiny = served("tiny", Some(build_engine(Faults::default())), || Err("no".to_owned()));
    let models = vec![tiny, served("slow", None, load)];
    let options = Options { models_loaded: 2, ..Options::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let stop = async move {
            let asking = tokio::task::spawn_blocking(move || {
                use std::io::Write;
                let body = json!({"model": "slow", "prompt": "x", "max_tokens": 1}).to_string();
                let head = format!("POST {TEXT} HTTP/1.0\r\ncontent-type: application/json\r\n");
                let mut stream = TcpStream::connect(address).expect("the server listens");
                write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("sent");
                begun.recv().expect("it is loaded");
            });
            asking.await.expect("no panic");
        };
        server::serve(listener, models, options, stop).await.expect("it ends");
    });
    finish.send(()).expect("it loads still");
}

#[test]
fn a_server_without_a_device_exits_with_a_code_of_its_own() {
    let expected = Server::start(&[]).ask(TEXT, &ask(8, false))["choices"].clone();
    // The embedded pair, which drafts: passes of drafters count as well.
    let mut server = Server::start(&["--lose-device", "150,150"]);
    let lost = |server: &Server| {
        let response = server.post(TEXT, &ask(1500, false));
        assert_eq!(response.status, 503, "{response:?}");
        assert_eq!(response.json()["error"]["code"], "device_lost");
    };
    lost(&server);
    assert_eq!(server.ask(TEXT, &ask(8, false))["choices"], expected);
    lost(&server);
    assert_eq!(server.child.wait().expect("an exit").code(), Some(75));
}

/// Shortens the files of that folder that a process has mapped, which have no name; whether this
/// process may.
#[cfg(target_os = "linux")]
fn shorten_mapped(process: u32, folder: &Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).expect("the kernel tells");
    let folder = folder.to_str().expect("a name");
    let ranges = maps.lines().filter(|line| line.contains(folder));
    let ranges: Vec<&str> = ranges.filter_map(|line| line.split(' ').next()).collect();
    assert!(!ranges.is_empty(), "nothing lies there");
    ranges.iter().all(|range| {
        let path = format!("/proc/{process}/map_files/{range}");
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(0)).is_ok()
    })
}

#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_gives_no_experts_back_ends_requests_and_not_the_process() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().canonicalize().expect("its name");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/moe/target-Q4_K_M.gguf");
    let (model, place) = (model.display().to_string(), format!("experts=disk:{}", path.display()));
    let args = ["--model", &model, "--device", "cpu", "--spec", "off", "--place", &place];
    let server = Server::start(&args);
    let asked = ask(40, false);
    let whole = server.ask(TEXT, &asked)["choices"][0]["text"].clone();
    if !shorten_mapped(server.child.id(), &path) {
        return eprintln!("skipped: files that are mapped cannot be opened here");
    }
    let failed = server.post(TEXT, &asked);
    assert_eq!((failed.status, &failed.json()["error"]["code"]), (503, &json!("device_lost")));
    // The experts are written to new files.
    assert_eq!(server.ask(TEXT, &asked)["choices"][0]["text"], whole);
    // A stream says it in the events that its clients wait for.
    assert!(shorten_mapped(server.child.id(), &path));
    let failed = server.post("/v1/responses", &json!({"input": "Hello", "stream": true}));
    let event = |name: &str| {
        let at = failed.body.find(&format!("event: {name}\ndata: ")).expect(name);
        let data = failed.body[at..].lines().nth(1).expect("its data");
        serde_json::from_str::<Value>(&data["data: ".len()..]).expect("JSON")
    };
    assert_eq!(event("error")["code"], "device_lost");
    let response = event("response.failed")["response"].take();
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("device_lost"))
    );
}
