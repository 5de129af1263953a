//! Conversations that are cut short: by Ctrl-C, by a reader who leaves, by another process.
#![cfg(unix)]

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::command;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The program, with its sessions below `home`.
fn start(home: &Path, args: &[&str]) -> Child {
    let mut command = command(args);
    command.env("XDG_STATE_HOME", home).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn output(home: &Path, args: &[&str]) -> Output {
    start(home, args).wait_with_output().expect("it ends")
}

/// Reads lines until one of them holds `sought`.
fn wait_for(lines: &mut impl BufRead, sought: &str) {
    let mut line = String::new();
    while !line.contains(sought) {
        line.clear();
        assert!(lines.read_line(&mut line).expect("a line") > 0, "`{sought}` was never said");
    }
}

/// The turn is undone, and what it leaves of a new session can be seen and removed, once nobody is
/// at it any more.
#[test]
fn an_interrupt_while_a_prompt_is_read_undoes_the_turn() {
    let home = tempfile::tempdir().unwrap();
    let mut child = start(home.path(), &["chat", "--session", "long", "--temp", "0"]);
    let mut input = child.stdin.take().expect("piped");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    wait_for(&mut said, "/new starts over");
    // Half a minute of reading.
    writeln!(input, "{}", "word ".repeat(12_000)).expect("it reads");
    std::thread::sleep(Duration::from_secs(2));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    wait_for(&mut said, "stopped while the prompt was read");

    let listed = output(home.path(), &["sessions", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let session = &listed["sessions"][0];
    assert_eq!((&session["name"], &session["turns"]), (&"long".into(), &0.into()));
    let remove = ["sessions", "--remove", "long"];
    let refused = output(home.path(), &remove);
    let why = String::from_utf8(refused.stderr).expect("text");
    assert_eq!(why, "forerun: session `long` is open in another process\n");

    drop(input);
    assert!(child.wait().expect("it ends").success());
    let mut told = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut told).expect("text");
    assert_eq!(told, "", "nothing was answered");
    let path = home.path().join("forerun/sessions/long");
    assert!(path.is_dir() && !path.join("conversation.json").exists());
    let shown = String::from_utf8(output(home.path(), &["sessions"]).stdout).expect("text");
    assert!(shown.starts_with("long ") && shown.contains(" 0 turns, "), "{shown}");
    assert!(output(home.path(), &remove).status.success() && !path.exists());
}

/// `forerun chat < questions | head` answers no questions for nobody.
#[test]
fn a_chat_ends_when_its_reader_leaves() {
    let home = tempfile::tempdir().unwrap();
    let args = ["chat", "--session", "gone", "--temp", "0", "--max-tokens", "4"];
    let mut child = start(home.path(), &args);
    drop(child.stdout.take());
    child.stdin.take().expect("piped").write_all(b"Hi\nHi\nHi\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(!said.contains("Broken pipe") && said.lines().count() <= 2, "{said}");
}

/// The time of a prompt is that of all of it, not of its last tokens alone.
#[test]
fn reading_on_in_a_session_is_counted() {
    let home = tempfile::tempdir().unwrap();
    let prompt = "word ".repeat(1500);
    let seconds = |more: &[&str]| {
        let args = ["run", "--json", "--temp", "0", "--max-tokens", "2", &prompt];
        let told = output(home.path(), &[&args[..], more].concat());
        let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
        told["timing"]["prefill_s"].as_f64().expect("seconds")
    };
    let (plain, named) = (seconds(&[]), seconds(&["--session", "timed"]));
    assert!(named > plain / 5.0, "{named} against {plain}");
}
