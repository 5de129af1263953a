//! `bench parity`: every mode writes what plain decoding writes.

use crate::program::stdout;
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn every_mode_writes_the_same_text() {
    let dense = stdout(&["bench", "parity", "--quick", "--max-tokens", "24"]);
    assert!(dense.ends_with("135 answers, all equal to plain decoding\n"), "{dense}");
    let moe = stdout(&[
        "bench",
        "parity",
        "--quick",
        "--max-tokens",
        "24",
        "--suite",
        "code,complete",
        "--model",
        "tests/fixtures/moe/target-Q4_K_M.gguf",
        "--draft",
        "tests/fixtures/moe/draft-Q8_0.gguf",
    ]);
    // The tiny mixture of experts has no MTP block.
    assert!(moe.contains("4 modes beside `off` (chain tree:22 lookup auto), 2 prompts"), "{moe}");
    assert!(moe.ends_with("24 answers, all equal to plain decoding\n"), "{moe}");
}

#[test]
fn parity_takes_prompts_and_caches_that_are_asked_for() {
    let prompts = "tests/goldens/dense-prompts.jsonl";
    let small = ["--prompts", prompts, "--per-suite", "1", "--max-tokens", "8", "--modes", "chain"];
    let args = [&["bench", "parity", "--quick", "--caches", "q4_0,q4_0h"][..], &small].concat();
    let out = stdout(&args);
    let caches: Vec<_> =
        out.lines().filter_map(|line| line.strip_prefix("KV ")?.split(':').next()).collect();
    assert_eq!(caches, ["q4_0", "q4_0h"], "{out}");
    assert!(out.ends_with("6 answers, all equal to plain decoding\n"), "{out}");
}

#[test]
fn prompts_of_the_goldens_are_theirs() {
    for pair in ["dense", "moe"] {
        let read =
            |name: String| std::fs::read_to_string(Path::new("tests/goldens").join(name)).unwrap();
        let goldens: Vec<Value> = serde_json::from_str(&read(format!("{pair}-q4.json"))).unwrap();
        let prompts = read(format!("{pair}-prompts.jsonl"));
        let lines: Vec<Value> =
            prompts.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected: Vec<Value> = goldens
            .iter()
            .map(|golden| match &golden["thinking"] {
                Value::Null => json!({"prompt": golden["prompt"], "raw": true}),
                thinking => json!({"prompt": golden["prompt"], "thinking": thinking}),
            })
            .collect();
        assert_eq!(lines, expected);
    }
}
