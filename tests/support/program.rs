//! The program, run as a user runs it.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// The program with these arguments and nothing to read.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forerun"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn forerun(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

/// What a command prints that must work.
pub(crate) fn stdout(args: &[&str]) -> String {
    let output = forerun(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The same as JSON.
pub(crate) fn parsed(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("one JSON object")
}

/// What is said of a command that cannot be done.
pub(crate) fn refused(args: &[&str]) -> String {
    failed(args, 1)
}

/// What is said of a command line that cannot be meant.
pub(crate) fn misunderstood(args: &[&str]) -> String {
    failed(args, 2)
}

fn failed(args: &[&str], code: i32) -> String {
    let output = forerun(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}
