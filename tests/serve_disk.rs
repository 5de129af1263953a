//! States that outlive the server: a restarted one answers as the one before it would have, from
//! files, whatever became of them.
#![cfg(unix)]

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::Server;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A share of the disk for a folder.
fn share(folder: &Path) -> String {
    format!("{},1", folder.display())
}

fn start(folder: &Path, more: &[&str]) -> Server {
    Server::start(&[&["--prefix-cache-disk", &share(folder)], more].concat())
}

/// Lets a server end as it would: what it has kept is written.
fn stop(mut server: Server) {
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert!(server.child.wait().expect("it ends").success());
}

/// A conversation up to a turn: a system prompt of some pages, then questions with answers.
fn turn(number: usize) -> Value {
    let rules: Vec<String> =
        (0..60).map(|i| format!("Rule {i}: a name of {} letters is fine.", 3 + i % 7)).collect();
    let mut messages = vec![json!({"role": "system", "content": rules.join("\n")})];
    for i in 0..number {
        let asked = format!("Write a Python function number {i} that sorts a list.");
        messages.push(json!({"role": "user", "content": asked}));
        if i + 1 < number {
            let answer = format!("def sort_{i}(items):\n    return sorted(items)");
            messages.push(json!({"role": "assistant", "content": answer}));
        }
    }
    json!({"messages": messages, "max_tokens": 40, "temperature": 0})
}

/// An answer, what of its prompt was known, and how long accepted runs were.
fn told(answer: &Value) -> (Value, Value) {
    (answer["choices"].clone(), answer["forerun"]["spec"]["accept_lengths"].clone())
}

fn cached(answer: &Value) -> (u64, Option<&str>) {
    let forerun = &answer["forerun"];
    (forerun["cached_tokens"].as_u64().expect("a number"), forerun["cached_from"].as_str())
}

fn metric(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics", "").body;
    let line = page.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("{name} in {page}"));
    line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Waits until so many states lie in the folder.
fn wait_for(folder: &Path, states: usize) {
    let start = Instant::now();
    while files(&folder.join("states")).len() < states {
        assert!(start.elapsed() < Duration::from_secs(60), "states are not written");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_restarted_server_answers_from_disk_as_from_memory_and_as_from_nothing() {
    // DFlash's state, the MTP block's and lookup's, and none.
    for spec in ["chain", "mtp", "lookup", "off"] {
        let folder = tempfile::tempdir().unwrap();
        let first = start(folder.path(), &["--spec", spec]);
        assert_eq!(cached(&first.chat(&turn(1))), (0, None));
        let memory = first.chat(&turn(2));
        let (known, from) = cached(&memory);
        assert!(known > 400 && from == Some("memory"), "{known}");
        stop(first);
        let nothing = Server::start(&["--spec", spec, "--prefix-cache", "0"]).chat(&turn(2));
        assert_eq!(cached(&nothing), (0, None));

        let second = start(folder.path(), &["--spec", spec]);
        let disk = second.chat(&turn(2));
        assert_eq!(cached(&disk).1, Some("disk"), "{spec}");
        assert!(cached(&disk).0 >= known);
        for other in [&memory, &nothing] {
            assert_eq!(disk["choices"], other["choices"], "{spec}");
            // A drafter's state is the same too; lookup also looks into what a server wrote before.
            assert!(spec == "lookup" || told(&disk) == told(other), "{spec}");
        }
        // The state is in memory from now on.
        assert_eq!(cached(&second.chat(&turn(3))).1, Some("memory"));
        let hits = |from: &str| {
            metric(
                &second,
                &format!(
                    "forerun_prefix_cache_hit_tokens_total{{model_name=\"embedded\",from=\"{from}\"}}"
                ),
            )
        };
        assert!(hits("disk") >= known as f64 && hits("memory") > 0.0 && hits("host") == 0.0);
        assert!(metric(&second, "forerun_prefix_cache_disk_bytes") > 0.0);
        // Another mode has other states, and another type of cache too.
        let other = start(folder.path(), &["--spec", spec, "--kv", "q8_0"]);
        assert_eq!(cached(&other.chat(&turn(2))), (0, None));
    }
}

#[test]
fn a_changed_last_message_costs_its_own_tokens_after_a_restart_too() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &[]);
    server.chat(&turn(3));
    let whole = server.chat(&turn(4))["usage"]["prompt_tokens"].as_u64().expect("a number");
    stop(server);
    let server = start(folder.path(), &[]);
    let mut changed = turn(4);
    let last = changed["messages"].as_array().unwrap().len() - 1;
    changed["messages"][last]["content"] = json!("Write a haiku.");
    let answer = server.chat(&changed);
    let (known, from) = cached(&answer);
    assert!(from == Some("disk") && whole - known < 40, "{known} of {whole} from {from:?}");
    // One in the middle is read again from there.
    let mut edited = turn(4);
    edited["messages"][last - 2]["content"] = json!("Write a limerick.");
    let (less, _) = cached(&server.chat(&edited));
    assert!(less > 400 && less < known, "{less} of {known}");
}

#[test]
fn servers_that_are_killed_leave_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let expected: Vec<Value> = {
        let plain = Server::start(&["--prefix-cache", "0", "--spec", "chain"]);
        (1..=6).map(|i| plain.chat(&turn(i))["choices"].clone()).collect()
    };
    let mut from_disk = 0;
    for (round, expected) in expected.iter().enumerate() {
        let mut server = start(folder.path(), &["--spec", "chain"]);
        let answer = server.chat(&turn(round + 1));
        assert_eq!(&answer["choices"], expected, "turn {round}");
        from_disk += usize::from(cached(&answer).1 == Some("disk"));
        // In the middle of what it writes behind, sometimes before and sometimes after.
        thread::sleep(Duration::from_millis(2 * round as u64));
        server.child.kill().expect("it is killed");
        server.child.wait().expect("it has ended");
    }
    let last = start(folder.path(), &["--spec", "chain"]);
    for (i, expected) in expected.iter().enumerate() {
        assert_eq!(&last.chat(&turn(i + 1))["choices"], expected, "turn {i} again");
    }
    assert_eq!(
        metric(&last, "forerun_prefix_cache_disk_fates{model_name=\"embedded\",what=\"damaged\"}"),
        0.0
    );
    stop(last);
    assert!(files(&folder.path().join("tmp")).is_empty());
    let again = start(folder.path(), &["--spec", "chain"]);
    assert_eq!(cached(&again.chat(&turn(6))).1, Some("disk"), "{from_disk} before");
}

#[test]
fn damaged_files_cost_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["--spec", "chain"]);
    server.chat(&turn(1));
    let expected = server.chat(&turn(2))["choices"].clone();
    stop(server);
    for path in files(&folder.path().join("pieces")) {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&path, bytes).unwrap();
    }
    let server = start(folder.path(), &["--spec", "chain"]);
    let answer = server.chat(&turn(2));
    assert_eq!((&answer["choices"], cached(&answer)), (&expected, (0, None)));
    server.chat(&turn(3));
    assert!(
        metric(
            &server,
            "forerun_prefix_cache_disk_fates{model_name=\"embedded\",what=\"damaged\"}"
        ) > 0.0
    );
}

#[test]
fn two_servers_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let plain = Server::start(&["--prefix-cache", "0", "--spec", "chain"]);
    let servers = [0, 1].map(|_| start(folder.path(), &["--spec", "chain", "--prefix-cache", "0"]));
    let mut from_disk = 0;
    for i in 1..=6 {
        let answers: Vec<Value> = thread::scope(|scope| {
            let asked: Vec<_> =
                servers.iter().map(|server| scope.spawn(move || server.chat(&turn(i)))).collect();
            asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
        });
        let expected = plain.chat(&turn(i));
        for answer in answers {
            assert_eq!(told(&answer), told(&expected), "turn {i}");
            from_disk += usize::from(cached(&answer).1 == Some("disk"));
        }
        wait_for(folder.path(), i);
    }
    assert!(from_disk > 0, "{from_disk} of 12");
    // What one wrote the other reads.
    let [one, other] = servers;
    let mut asked = turn(1);
    asked["messages"][0]["content"] = json!("A system prompt that nobody has sent. ".repeat(40));
    let expected = told(&one.chat(&asked));
    stop(one);
    // Who is asked something looks now and then what there is.
    let start = Instant::now();
    let is_known = || {
        other.chat(&turn(1));
        let there = files(&folder.path().join("states")).len();
        metric(&other, "forerun_prefix_cache_disk_states") == there as f64
    };
    while !is_known() {
        assert!(start.elapsed() < Duration::from_secs(60), "states are not found");
        thread::sleep(Duration::from_millis(50));
    }
    let answer = other.chat(&asked);
    assert_eq!((told(&answer), cached(&answer).1), (expected, Some("disk")));
}

/// Files cannot grow beyond some KB: writes come back short and then fail, as on a full disk.
#[test]
fn a_full_disk_costs_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_forerun");
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
    let mut child = Command::new("bash")
        .args([
            "-c",
            script,
            "bash",
            program,
            "serve",
            "--port",
            "0",
            "--threads",
            "1",
            "--spec",
            "chain",
        ])
        .args(["--prefix-cache", "0", "--prefix-cache-disk", &share(folder.path())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
    let address = line.trim().strip_prefix("listening on http://").expect("an address").to_owned();
    let server = Server { child, address };
    let plain = Server::start(&["--prefix-cache", "0", "--spec", "chain"]);
    for i in 1..=3 {
        assert_eq!(told(&server.chat(&turn(i))), told(&plain.chat(&turn(i))), "turn {i}");
    }
    let failed = "forerun_prefix_cache_disk_fates{model_name=\"embedded\",what=\"failed\"}";
    assert!(metric(&server, failed) > 0.0);
    stop(server);
    assert!(files(&folder.path().join("states")).is_empty());
    assert!(files(&folder.path().join("tmp")).is_empty());
    // With room again it is as if nothing had been.
    let server = start(folder.path(), &["--spec", "chain"]);
    assert_eq!(told(&server.chat(&turn(2))), told(&plain.chat(&turn(2))));
}

#[test]
fn a_folder_of_something_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let run = |share: &str| {
        let program = env!("CARGO_BIN_EXE_forerun");
        let args = ["serve", "--port", "0", "--prefix-cache-disk", share];
        let output = Command::new(program).args(args).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let said = run(&share(folder.path()));
    assert!(said.contains("has other files: give a folder that is empty"), "{said}");
    for wrong in ["folder", "folder,", ",5", "folder,0", "folder,-1", "folder,lots"] {
        let said = run(wrong);
        assert!(said.contains("a folder and GiB are expected"), "{wrong}: {said}");
    }
}

/// `tests/serve/session.json`: an agent's session with 25 tools, results, a changed message and an
/// edited question. One server answers all of it; others take over every few turns, with nothing
/// but the files that were left; and some turns are asked of one that knows nothing.
#[test]
fn an_agents_session_goes_on_after_restarts_as_without_them() {
    let text = fs::read_to_string("tests/serve/session.json").expect("the session");
    let make = ["scripts/agent-session", "make", "--turns", "18", "--tokens", "6000"];
    match Command::new("python3").args(make).output() {
        Ok(made) => assert_eq!(String::from_utf8(made.stdout).expect("text"), text),
        Err(_) => {
            eprintln!("there is no python3: whether the session is what makes it says is skipped")
        }
    }
    let session: Value = serde_json::from_str(&text).expect("JSON");
    let folder = tempfile::tempdir().unwrap();
    let warm = Server::start(&["--spec", "chain"]);
    let cold = Server::start(&["--spec", "chain", "--prefix-cache", "0"]);
    let mut restarted = None;
    let (mut messages, mut before): (Vec<Value>, u64) = (Vec::new(), 0);
    // All of it takes minutes on two cores; `scripts/agent-session measure` replays that.
    let turns = session["turns"].as_array().expect("turns");
    for (i, turn) in turns.iter().take(7).enumerate() {
        messages.truncate(turn["keep"].as_u64().unwrap_or(0) as usize);
        messages.extend(turn["add"].as_array().expect("messages").iter().cloned());
        let tools = &session["tools"];
        let body = json!({"messages": messages, "tools": tools, "max_tokens": 6, "temperature": 0});
        let answer = warm.chat(&body);
        if i % 3 == 0 {
            restarted.take().into_iter().for_each(stop);
            restarted = Some(start(folder.path(), &["--spec", "chain"]));
        }
        let after = restarted.as_ref().expect("a server").chat(&body);
        assert_eq!(told_apart(&after), told_apart(&answer), "turn {i}");
        if i > 0 {
            // As much is known as without the restart.
            assert_eq!(cached(&after).0, cached(&answer).0, "turn {i}");
            // An edit goes back to an earlier state, and a new question makes the template drop
            // earlier thoughts: what is still the same may then be in the files alone.
            let goes_back = ["question", "edited"].map(|kind| turn["kind"] == kind).contains(&true);
            let from = if i % 3 == 0 { "disk" } else { "memory" };
            assert!(cached(&after).1 == Some(from) || goes_back, "turn {i}");
        }
        if ["changed", "edited"].contains(&turn["kind"].as_str().expect("a kind")) {
            assert_eq!(told_apart(&cold.chat(&body)), told_apart(&answer), "turn {i}");
        }
        let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
        let known = cached(&answer).0;
        match turn["kind"].as_str() {
            Some("first") => assert_eq!(known, 0),
            // All that was asked before but for the opening of the answer.
            Some("results") => {
                assert!(before.saturating_sub(known) < 20, "turn {i}: {known} of {before}");
            }
            Some("changed") => {
                let last = json!({"prompt": messages.last().expect("a message")["content"]});
                let own = warm.ask("/tokenize", &last)["count"].as_u64().expect("a number");
                assert!(tokens - known < own + 30, "turn {i}: {} of {own}", tokens - known);
            }
            _ => assert!(known > 1000, "turn {i}: {known}"),
        }
        before = tokens;
    }
}

/// What was said, whatever calls were named.
fn told_apart(answer: &Value) -> (Value, Value) {
    let (mut choices, lengths) = told(answer);
    if let Some(calls) = choices.pointer_mut("/0/message/tool_calls").and_then(Value::as_array_mut)
    {
        calls.iter_mut().for_each(|call| call["id"] = Value::Null);
    }
    (choices, lengths)
}
