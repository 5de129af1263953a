//! `bench compare` and `bench versus`: what changed between two runs or two builds.

use crate::program::{parsed, refused, stdout};
use serde_json::{Value, json};

/// A run of a machine that is steady to about 1 %, `slower` times as slow as another.
fn steady(results: &Value, slower: f64) -> Value {
    let mut results = results.clone();
    results["cost"] = Value::Null;
    for (i, sample) in results["samples"].as_array_mut().unwrap().iter_mut().enumerate() {
        let jitter = 1.0 + 0.01 * ((i * 7 % 5) as f64 - 2.0) / 2.0;
        for (seconds, tokens) in [("decode_s", "tokens"), ("prefill_s", "prompt_tokens")] {
            sample[seconds] = json!(sample[tokens].as_f64().unwrap() / 1000.0 * jitter * slower);
        }
        let rounds = sample["round_us"].as_array().unwrap().len();
        let round = 1e6 * sample["decode_s"].as_f64().unwrap() / rounds as f64;
        sample["round_us"] = json!(vec![round; rounds]);
    }
    results
}

#[test]
fn compare_sees_a_slowdown_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let found = parsed(&[
        "bench",
        "--suite",
        "code,plan",
        "--per-suite",
        "4",
        "--repeats",
        "3",
        "--max-tokens",
        "12",
        "--modes",
        "off,chain",
        "--json",
    ]);
    let put = |name: &str, results: &Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, results.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let before = put("before.json", &steady(&found, 1.0));
    let slower = put("slower.json", &steady(&found, 1.1));
    let same = parsed(&["bench", "compare", &before, &before, "--json"]);
    assert_eq!(same["changed"], json!([]));
    assert_eq!(same["figures"], 2 * (3 * 2 + 1), "plain decoding has no ratio to itself");

    let changed = parsed(&["bench", "compare", &before, &slower, "--json"]);
    for change in changed["all"].as_array().unwrap() {
        let is_speed = change["figure"] == "tok/s" || change["figure"] == "prompt tok/s";
        assert_eq!(change["changed"], is_speed, "{change}");
        if is_speed {
            assert!((change["change"]["value"].as_f64().unwrap() - 1.0 / 1.1).abs() < 1e-6);
        }
    }
    let text = stdout(&["bench", "compare", &before, &slower]);
    assert!(
        text.contains("-9.1 [-9.1, -9.1]")
            && text.ends_with("8 of 14 figures changed beyond noise\n"),
        "{text}"
    );
    // A slowdown by a machine that ran at another pace is not the build's.
    let mut paced = steady(&found, 1.5);
    for sample in paced["samples"].as_array_mut().unwrap() {
        sample["pace"] = json!(sample["pace"].as_f64().unwrap() / 1.5);
    }
    let paced = put("paced.json", &paced);
    let text = stdout(&["bench", "compare", &before, &paced]);
    assert!(text.contains("the machine ran at 0.67 of its earlier pace"), "{text}");
    assert!(text.ends_with("\n0 of 6 figures changed beyond noise\n"), "{text}");
    let broken = put("broken.json", &json!({"format": 1}));
    assert!(refused(&["bench", "compare", &before, &broken]).contains("broken.json"));
}

/// `tests/fixtures/bench`: five runs of one build on a machine with a load of 2 to 3 on its 2
/// cores, the slower ones with `--slow-down 10`; two suites and two modes of them, 3 repeats.
#[test]
fn ten_percent_are_seen_in_recorded_runs_and_nothing_where_nothing_changed() {
    let compare = |before: &str, after: &str| {
        let [before, after] =
            [before, after].map(|name| format!("tests/fixtures/bench/{name}.json"));
        parsed(&["bench", "compare", &before, &after, "--json"])
    };
    let same = ["first", "second", "third"];
    for before in same {
        for after in same {
            assert_eq!(compare(before, after)["changed"], json!([]), "{before} and {after}");
        }
        for after in ["slower-first", "slower-second"] {
            for change in compare(before, after)["all"].as_array().unwrap() {
                assert_eq!(
                    change["changed"],
                    change["figure"] == "tok/s",
                    "{before} and {after}: {change}"
                );
            }
        }
    }
}

/// Commands that print recorded runs, one repeat of them: what they say does not hang on the
/// machine that tests.
#[cfg(unix)]
#[test]
fn turns_show_a_slowdown() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = std::fs::read_to_string("tests/fixtures/bench/first.json").unwrap();
    let mut recorded: Value = serde_json::from_str(&recorded).unwrap();
    recorded["samples"].as_array_mut().unwrap().retain(|sample| sample["repeat"] == 0);
    let command = |name: &str, slower: f64| {
        let (results, script) =
            (folder.path().join(format!("{name}.json")), folder.path().join(name));
        std::fs::write(&results, steady(&recorded, slower).to_string()).unwrap();
        std::fs::write(&script, format!("cat '{}'\n", results.display())).unwrap();
        format!("sh {}", script.display())
    };
    let (before, after) = (command("before", 1.0), command("after", 1.1));
    let versus =
        |after: &str| parsed(&["bench", "versus", &before, after, "--times", "3", "--json"]);
    assert_eq!(versus(&before)["changed"], json!([]));
    for change in versus(&after)["all"].as_array().unwrap() {
        let is_speed = change["figure"] == "tok/s" || change["figure"] == "prompt tok/s";
        assert_eq!(change["changed"], is_speed, "{change}");
        let factor = if is_speed { 1.0 / 1.1 } else { 1.0 };
        assert!((change["change"]["value"].as_f64().unwrap() - factor).abs() < 1e-6, "{change}");
    }
    assert!(
        refused(&["bench", "versus", "false", "false"])
            .contains("`false --json --repeats 1` failed")
    );
}

#[test]
fn a_slowdown_that_is_asked_for_takes_its_time() {
    let line = "bench --suite code --per-suite 2 --repeats 1 --max-tokens 12 --modes off \
                --slow-down 200 --json";
    let found = parsed(&line.split(' ').collect::<Vec<_>>());
    for sample in found["samples"].as_array().unwrap() {
        let stage = |name: &str| sample["stages"][name].as_f64().unwrap();
        let rounds = stage("draft") + stage("verify") + stage("judge") + stage("commit");
        // However busy the machine is, a pause is no shorter than it was to be.
        assert!(stage("host") > 1.99 * rounds && rounds > 0.0, "{sample}");
    }
}
