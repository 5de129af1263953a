//! `forerun inspect`, through the program.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::{forerun, parsed};
use serde_json::Value;
use std::process::Command;

const TARGET: &str = "models/dense/target-Q4_K_M.gguf";
const DRAFT: &str = "models/dense/draft-Q8_0.gguf";

#[test]
fn a_drafter_is_described() {
    let found = parsed(&["inspect", DRAFT, "--target", TARGET, "--json"]);
    assert_eq!(found["kind"], "drafter");
    assert_eq!(found["dialect"], "upstream GGUF (`dflash`)");
    assert_eq!(found["layers"], "sliding 3 of 4, window 128, not causal");
    assert_eq!(found["config"]["taps"], serde_json::json!([1, 3, 5, 6]));
    assert_eq!(found["config"]["rope"], serde_json::json!({"theta": 1e7, "scaling": null}));
    assert_eq!(found["totals"]["tensors"], 47);
    assert_eq!(found["totals"]["parameters"], 4_197_888);
    assert_eq!(
        found["tensors"][0],
        serde_json::json!({"name": "fc.weight", "stored_as": ["fc.weight"],
        "type": "Q8_0", "shape": [256, 1024], "bytes": 278_528})
    );
    let taps = found["resolved"].as_array().unwrap().iter().find(|r| r["field"] == "taps").unwrap();
    assert_eq!(taps["from"], "`dflash.target_layers`, less one");

    let text = forerun(&["inspect", DRAFT]).stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with(
        "models/dense/draft-Q8_0.gguf: DFlash drafter, upstream GGUF (`dflash`)\n\
         layers: sliding 3 of 4"
    ));
    assert!(text.contains("rope_theta         10000000.0               `dflash.rope.freq_base`"));
    assert!(
        text.ends_with("47 tensors, 4197888 parameters, 4.26 MiB (F32 14.00 KiB, Q8_0 4.25 MiB)\n"),
        "{text}"
    );
}

#[test]
fn a_target_is_described() {
    let found = parsed(&["inspect", TARGET, "--json"]);
    assert_eq!(found["kind"], "target");
    assert_eq!(found["layers"], "2 attention, 6 Gated DeltaNet, MTP block");
    assert_eq!(
        found["config"]["gdn"],
        serde_json::json!({"key_heads": 2, "value_heads": 6, "head_dim": 128, "conv_kernel": 4})
    );
    let moe = parsed(&["inspect", "tests/fixtures/moe/target-Q4_K_M.gguf", "--json"]);
    assert_eq!(moe["config"]["ffn"]["moe"]["experts"], 16);
}

#[test]
fn flags_change_what_is_resolved() {
    let flags = [
        "--draft-causal",
        "true",
        "--draft-window",
        "64",
        "--draft-block",
        "8",
        "--draft-taps",
        "0,2,4,5",
        "--draft-mask-token",
        "7",
        "--draft-rope-theta",
        "1e6",
    ];
    let found = parsed(&[&["inspect", DRAFT, "--json"][..], &flags].concat());
    let config = &found["config"];
    assert_eq!(found["layers"], "sliding 3 of 4, window 64, causal");
    assert_eq!((&config["block"], &config["mask_token"]), (&Value::from(8), &Value::from(7)));
    assert_eq!(
        (&config["taps"], &config["rope"]["theta"]),
        (&serde_json::json!([0, 2, 4, 5]), &Value::from(1e6))
    );
}

#[test]
fn errors_are_one_line_and_have_their_exit_code() {
    let cases: [(&[&str], i32, &str); 4] = [
        (
            &["inspect", "absent.gguf"],
            1,
            "forerun: absent.gguf: No such file or directory (os error 2)\n",
        ),
        (
            &["inspect", "README.md"],
            1,
            "forerun: README.md: neither GGUF nor safetensors: the file starts with `# Foreru`; \
             name a GGUF file or a Hugging Face folder\n",
        ),
        (
            &["inspect", DRAFT, "--draft-mask-token", "5000", "--target", TARGET],
            1,
            "forerun: models/dense/draft-Q8_0.gguf: mask token is 5000 by `--draft-mask-token`; a \
             row of the target's embedding, below 4096, expected\n",
        ),
        (
            &["inspect", DRAFT, "--target", DRAFT],
            1,
            "forerun: models/dense/draft-Q8_0.gguf: this is a drafter, a target was expected\n",
        ),
    ];
    for (args, code, stderr) in cases {
        let output = forerun(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), stderr);
        assert!(output.stdout.is_empty());
    }
    for usage in [&["inspect"][..], &["inspect", DRAFT, "--draft-rope-theta", "x"], &["frobnicate"]]
    {
        assert_eq!(forerun(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let program = env!("CARGO_BIN_EXE_forerun");
    let script = format!("set -o pipefail; {program} inspect {TARGET} | head -1 >/dev/null");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn flags_of_loading_are_not_taken() {
    let output = forerun(&["inspect", DRAFT, "--draft-type", "q4_0"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("unexpected argument '--draft-type'"), "{said}");
}

#[test]
fn a_flag_that_does_not_fit_the_target_is_named() {
    let said = |flag: &str, value: &str| {
        let output = forerun(&["inspect", DRAFT, "--target", TARGET, flag, value]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let mask = said("--draft-mask-token", "99999");
    assert!(
        mask.contains("mask token is 99999 by `--draft-mask-token`; a row of the target's"),
        "{mask}"
    );
    let taps = said("--draft-taps", "1,3,5,99");
    assert!(taps.contains("a tap is 99 of [1, 3, 5, 99] by `--draft-taps`; 0 to 7"), "{taps}");
}
