//! Flags and names that make no sense are refused.

use crate::program::{misunderstood, refused, stdout};

#[test]
fn what_does_not_exist_is_named() {
    assert!(
        refused(&["bench", "--suite", "poems"]).contains("unknown suite `poems`: code, math, plan")
    );
    assert!(
        refused(&["bench", "--modes", "fast"]).contains("unknown mode `fast`: off, chain[:BLOCK]")
    );
    assert!(refused(&["bench", "--modes", "tree:64"]).contains("a budget of 64, 1 to 63 expected"));
    assert!(misunderstood(&["bench", "--sweep", "speed=1..2"]).contains("AXIS=FIRST..LAST"));
    assert!(
        refused(&["bench", "--sweep", "budget=63,64"]).contains("budget is 64, 63 at most here")
    );
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let model = ["--model", "models/dense/target-Q4_K_M.gguf"];
    for flags in [&["--concurrency", "3"][..], &["--mix", "q8_0"], &["--api-key-file", "keys"]] {
        misunderstood(&[&["bench"], flags].concat());
        misunderstood(&[&["bench"], flags, &model].concat());
        misunderstood(&[&["bench"], flags, &["--modes", "off"]].concat());
    }
    misunderstood(&["bench", "--mix", "q8_0", "--server", "http://127.0.0.1:1"]);
    misunderstood(&["bench", "--concurrency", "3", "--synthetic", "tiny"]);
    for flag in ["--name", "--command"] {
        misunderstood(&["bench", "tables", flag, "x"]);
        misunderstood(&["bench", "tables", flag, "x", "--check"]);
    }
    for flags in [&model[..], &["--spec", "chain"], &["--ctx", "5"], &["--draft-block", "4"]] {
        misunderstood(&[&["bench", "rounds", "--synthetic", "tiny"], flags].concat());
    }
    for (flag, value, instead) in [
        ("--kv", "q8_0", "--caches"),
        ("--spec", "chain", "--modes"),
        ("--budget", "4", "--modes"),
        ("--block", "4", "--modes"),
    ] {
        let said = refused(&["bench", "parity", "--quick", flag, value]);
        assert!(
            said.contains(&format!("`{flag}`: ")) && said.contains(&format!("`{instead}`")),
            "{said}"
        );
    }
    let help = stdout(&["bench", "parity", "--help"]);
    assert!(
        help.contains("--caches") && !help.contains("--kv ") && !help.contains("--spec "),
        "{help}"
    );
}
