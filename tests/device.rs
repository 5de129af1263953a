//! `--device` through the binary: without a driver there is a sentence and no panic; with one the
//! device writes what the processor writes.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::forerun;
use std::io::Write;

/// Whether there is a device; says on standard error that `test` goes without one.
fn has_device(test: &str) -> bool {
    match compute::cuda::devices() {
        Ok(count) if count > 0 => true,
        found => {
            let reason =
                found.map_or_else(|e| e.to_string(), |_| "the driver has no device".to_owned());
            let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
            false
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let beyond = forerun(&["run", "--device", "cuda:99", "hello"]);
    assert_eq!(beyond.status.code(), Some(1));
    let message = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(message.contains("cuda:99") && !message.contains("panicked"), "{message}");
    let unknown = forerun(&["run", "--device", "gpu", "hello"]);
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(message.contains("unknown device `gpu`"), "{message}");
}

#[test]
fn the_self_test_says_what_it_lacks() {
    if compute::cuda::devices().unwrap_or(0) > 0 {
        return;
    }
    for args in [&["doctor", "--selftest"][..], &["doctor", "--selftest", "--only", "attention"]] {
        let found = forerun(args);
        assert_eq!(found.status.code(), Some(1));
        let message = String::from_utf8_lossy(&found.stderr).into_owned();
        assert!(
            message.contains("needs a CUDA device") && message.contains("libcuda"),
            "{message}"
        );
    }
    let third = forerun(&["doctor", "--selftest", "--device", "cuda:2"]);
    let message = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(message.contains("needs a CUDA device, cuda:2: "), "{message}");
    let alone = forerun(&["doctor", "--only", "attention"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("--selftest"));
}

#[test]
fn the_self_test_refuses_the_processor() {
    let found = forerun(&["doctor", "--selftest", "--device", "cpu"]);
    assert_eq!(found.status.code(), Some(1));
    let message = String::from_utf8_lossy(&found.stderr).into_owned();
    assert!(
        message.contains("the self-test is about a GPU, and `--device cpu` names none"),
        "{message}"
    );
}

#[test]
fn the_device_writes_what_the_processor_writes() {
    if !has_device("the_device_writes_what_the_processor_writes") {
        return;
    }
    let ask = |device: &str, spec: &str| {
        let args = [
            "run",
            "--device",
            device,
            "--spec",
            spec,
            "--temp",
            "0",
            "--max-tokens",
            "48",
            "--json",
        ];
        let output = forerun(&[&args[..], &["Write quicksort in Python."]].concat());
        let json: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one JSON object");
        json["ids"].clone()
    };
    let expected = ask("cpu", "off");
    for spec in ["off", "chain", "tree", "mtp", "lookup", "auto"] {
        assert_eq!(ask("cuda", spec), expected, "{spec}");
    }
}

#[test]
fn a_plan_of_device_memory_is_made_without_one() {
    let plan = |tokens: &str| {
        let found =
            forerun(&["inspect", "models/dense/target-Q4_K_M.gguf", "--json", "--device", tokens]);
        let json: serde_json::Value =
            serde_json::from_slice(&found.stdout).expect("one JSON object");
        let bytes = |part: &str| json["device_memory"][part].as_u64().unwrap_or(0);
        (bytes("weights"), bytes("state"), json["totals"]["bytes"].as_u64().unwrap_or(0))
    };
    let (short, long) = (plan("1024"), plan("65536"));
    // Tiles are as large as the blocks they are made of, up to padding and small matrices of
    // floats.
    assert!(short.0 >= short.2 && short.0 < short.2 * 3 / 2, "{short:?}");
    // Two attention layers of two heads of 256 numbers, keys and values, f16; beside them the
    // next-token block's.
    let grown = 3 * 2 * 2 * 256 * 2 * (65536 - 1024);
    assert_eq!((long.0, long.1 - short.1), (short.0, grown));
}
