//! A stand-in for the Hugging Face Hub on this machine: it speaks the same HTTP, sends large files
//! from a second host, and fails where a test says so.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The commit that every repository is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repository.
#[derive(Clone, Default)]
pub struct Repository {
    /// `owner/name`.
    pub name: String,
    /// Paths and bytes.
    pub files: Vec<(String, Vec<u8>)>,
    /// The token that opens it, where it is gated.
    pub gate: Option<String>,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The Hub, what a repository has.
    Listing,
    /// The Hub, where a file lies.
    File,
    /// The second host, the bytes of large files.
    Store,
}

/// What goes wrong with a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with `Retry-After` where it is said.
    Status(u16, Option<u64>),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// A byte is another one.
    Flip,
    /// A Git LFS pointer comes in place of the file, as long as the file.
    Pointer,
    /// The whole file comes, whatever was asked for.
    Whole,
    /// The answer comes so many milliseconds later.
    Late(u64),
    /// The body comes in sixteen parts, so many milliseconds apart.
    Slow(u64),
}

/// A request that came.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who was asked.
    pub at: At,
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path.
    pub path: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    repositories: Vec<Repository>,
    faults: VecDeque<(At, Fault)>,
    /// Faults that never end.
    lasting: Vec<(At, Fault)>,
    requests: Vec<Request>,
    store: String,
}

/// The running stand-in; its threads end with the process.
pub struct Hub {
    /// What `HF_ENDPOINT` is to be.
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Hub {
    /// Serves these repositories on a port of this machine.
    ///
    /// # Panics
    /// Where no port can be had.
    pub fn start(repositories: Vec<Repository>) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (hub, store) = (listen(), listen());
        let address = |listener: &TcpListener| {
            format!("http://{}", listener.local_addr().expect("an address"))
        };
        let endpoint = address(&hub);
        let state = State { repositories, store: address(&store), ..State::default() };
        let state = Arc::new(Mutex::new(state));
        for (listener, is_store) in [(hub, false), (store, true)] {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || converse(connection, is_store, &state));
                }
            });
        }
        Self { endpoint, state }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    /// Lets the next request of that kind fail; several fail one after the other.
    pub fn fail(&self, at: At, fault: Fault) {
        self.state().faults.push_back((at, fault));
    }

    /// Lets every request of that kind fail from now on.
    pub fn fail_always(&self, at: At, fault: Fault) {
        self.state().lasting.push((at, fault));
    }

    /// Ends all failures.
    pub fn recover(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.lasting.clear();
    }

    /// What was asked since the last time, in order.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }
}

/// The checksum of a large file.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The checksum of a small file, as Git has it.
pub fn git_sha1(bytes: &[u8]) -> String {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Weights are large files, whatever their size here.
fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

/// Answers requests until the other side has enough.
fn converse(connection: TcpStream, is_store: bool, state: &Mutex<State>) {
    let Ok(mut output) = connection.try_clone() else { return };
    let mut input = BufReader::new(connection);
    while let Some(request) = read(&mut input, is_store) {
        let (fault, answer) = {
            let mut state = state.lock().expect("no test panics with it");
            state.requests.push(request.clone());
            let next = state.faults.iter().position(|(at, _)| *at == request.at);
            let lasting = || state.lasting.iter().find(|(at, _)| *at == request.at).cloned();
            let fault = match next {
                Some(index) => state.faults.remove(index),
                None => lasting(),
            };
            (fault.map(|(_, fault)| fault), answer(&state, &request))
        };
        if write(&mut output, &request, answer, fault).is_none() {
            return;
        }
    }
}

fn read(input: &mut impl BufRead, is_store: bool) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines.first()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let header = |name: &str| {
        let mut all = lines[1..].iter().filter_map(|line| line.split_once(':'));
        let found = all.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    };
    let at = match (is_store, path.starts_with("/api/")) {
        (true, _) => At::Store,
        (false, true) => At::Listing,
        (false, false) => At::File,
    };
    Some(Request {
        at,
        method,
        path,
        range: header("range"),
        authorization: header("authorization"),
    })
}

/// A status, headers and a body.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn refusal(status: u16, code: &str) -> Answer {
    Answer { status, headers: vec![("x-error-code", code.to_owned())], body: Vec::new() }
}

fn answer(state: &State, request: &Request) -> Answer {
    let path = request.path.split('?').next().unwrap_or_default();
    if request.at == At::Store {
        // As stores do, which are told who asks by their address.
        if request.authorization.is_some() {
            return refusal(400, "InvalidArgument");
        }
        let mut files = state.repositories.iter().flat_map(|repository| &repository.files);
        let wanted = path.trim_start_matches('/');
        return match files.find(|(_, bytes)| sha256(bytes) == wanted) {
            Some((_, bytes)) => Answer { status: 200, headers: Vec::new(), body: bytes.clone() },
            None => refusal(403, "AccessDenied"),
        };
    }
    let path = path.trim_start_matches("/api/models/").trim_start_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    let named = parts.get(..2).map(|parts| parts.join("/")).unwrap_or_default();
    let Some(repository) = state.repositories.iter().find(|one| one.name == named) else {
        return refusal(if request.authorization.is_some() { 404 } else { 401 }, "RepoNotFound");
    };
    let token = request.authorization.as_deref().and_then(|text| text.strip_prefix("Bearer "));
    if repository.gate.is_some() && repository.gate.as_deref() != token {
        return refusal(if token.is_some() { 403 } else { 401 }, "GatedRepo");
    }
    if !matches!(parts.get(3).copied(), Some("main" | COMMIT)) {
        return refusal(404, "RevisionNotFound");
    }
    if request.at == At::Listing {
        let body = listing(repository).to_string().into_bytes();
        return Answer { status: 200, headers: Vec::new(), body };
    }
    let wanted = parts[4..].join("/");
    let Some((_, bytes)) = repository.files.iter().find(|(path, _)| *path == wanted) else {
        return refusal(404, "EntryNotFound");
    };
    let commit = ("x-repo-commit", COMMIT.to_owned());
    if !is_large(&wanted) {
        let etag = ("etag", format!("\"{}\"", git_sha1(bytes)));
        return Answer { status: 200, headers: vec![commit, etag], body: bytes.clone() };
    }
    let etag = sha256(bytes);
    let headers = vec![
        commit,
        ("location", format!("{}/{etag}?signature=good", state.store)),
        ("x-linked-etag", format!("\"{etag}\"")),
        ("x-linked-size", bytes.len().to_string()),
    ];
    Answer { status: 302, headers, body: Vec::new() }
}

fn listing(repository: &Repository) -> Value {
    let file = |(path, bytes): &(String, Vec<u8>)| match is_large(path) {
        true => json!({"rfilename": path, "size": bytes.len(), "blobId": "0".repeat(40),
            "lfs": {"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 135}}),
        false => json!({"rfilename": path, "size": bytes.len(), "blobId": git_sha1(bytes)}),
    };
    let siblings: Vec<Value> = repository.files.iter().map(file).collect();
    json!({"id": repository.name, "sha": COMMIT, "siblings": siblings})
}

/// Sends an answer; nothing where the connection is to end.
fn write(
    output: &mut TcpStream,
    request: &Request,
    mut answer: Answer,
    fault: Option<Fault>,
) -> Option<()> {
    let mut sent = usize::MAX;
    let (mut is_whole, mut pause) = (false, 0);
    match fault {
        Some(Fault::Status(status, after)) => {
            let headers = after.map(|seconds| ("retry-after", seconds.to_string()));
            answer = Answer { status, headers: headers.into_iter().collect(), body: Vec::new() };
        }
        Some(Fault::Cut(bytes)) => sent = bytes,
        Some(Fault::Flip) => answer.body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
        Some(Fault::Pointer) => {
            let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
            answer.body.iter_mut().zip(pointer).for_each(|(byte, other)| *byte = *other);
        }
        Some(Fault::Whole) => is_whole = true,
        Some(Fault::Late(time)) => std::thread::sleep(std::time::Duration::from_millis(time)),
        Some(Fault::Slow(time)) => pause = time,
        None => {}
    }
    let range = request.range.as_deref().filter(|_| answer.status == 200 && !is_whole);
    if let Some((first, last)) = range.and_then(|range| span(range, answer.body.len())) {
        let total = answer.body.len();
        answer.headers.push(("content-range", format!("bytes {first}-{last}/{total}")));
        answer.body = answer.body[first..=last].to_vec();
        answer.status = 206;
    }
    let mut head =
        format!("HTTP/1.1 {} x\r\ncontent-length: {}\r\n", answer.status, answer.body.len());
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    output.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if request.method != "HEAD" {
        let body = &answer.body[..sent.min(answer.body.len())];
        for part in body.chunks(body.len().div_ceil(if pause > 0 { 16 } else { 1 }).max(1)) {
            std::thread::sleep(std::time::Duration::from_millis(pause));
            output.write_all(part).ok()?;
        }
    }
    (sent >= answer.body.len()).then_some(())
}

fn span(range: &str, size: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last) = (first.parse().ok()?, last.parse::<usize>().ok()?);
    (first <= last && last < size).then_some((first, last))
}
