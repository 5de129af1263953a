//! What is measured: modes over suites, shapes, sweeps, servers, rounds.

use crate::http;
use crate::program::{forerun, misunderstood, parsed, refused, stdout};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn results_are_whole_and_files_agree_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let small =
        ["--suite", "code,complete", "--per-suite", "2", "--repeats", "2", "--max-tokens", "16"];
    let sweeps = ["--sweep", "budget=1,8", "--sweep", "rows=1,4", "--sweep", "context=64"];
    let args = [&["bench", "--json", "--seed", "7", "--out", out][..], &small, &sweeps].concat();
    let found = parsed(&args);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    assert_eq!(found, serde_json::from_str::<Value>(&read("results.json")).unwrap());

    let cells = found["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3 * 6, "two suites and overall, six modes");
    for cell in cells {
        assert_eq!(cell["different_texts"], 0, "{cell}");
        let interval = |name: &str| {
            let part = |part: &str| {
                cell[name][part].as_f64().unwrap_or_else(|| panic!("{name} of {cell}"))
            };
            let (low, value, high) = (part("low"), part("value"), part("high"));
            assert!(0.0 < low && low <= high && value.is_finite(), "{name} of {cell}");
            value
        };
        for name in ["tokens_per_s", "ratio", "first_token_ms", "prefill_tokens_per_s"] {
            interval(name);
        }
        let accepted = interval("accept_length");
        let off = cell["mode"] == "off";
        // Auto may find that nothing pays, and lookup that nothing repeats.
        if cell["mode"] != "auto" && cell["mode"] != "lookup" {
            assert!(if off { accepted == 1.0 } else { accepted > 1.0 }, "{cell}");
            assert_eq!(cell["accepted_per_drafted"].is_null(), off);
        }
    }
    assert_eq!(found["samples"].as_array().unwrap().len(), 2 * 2 * 2 * 6);
    for sample in found["samples"].as_array().unwrap() {
        let lengths: Vec<u64> =
            sample["accept_lengths"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        assert_eq!(
            lengths.iter().sum::<u64>(),
            sample["accepted"].as_u64().unwrap() + lengths.len() as u64
        );
        let (draft, mode) = (sample["stages"]["draft"].as_f64().unwrap(), &sample["mode"]);
        assert!(draft > 0.0 || mode == "off" || mode == "auto", "{sample}");
    }
    assert_eq!(found["sweeps"][0]["points"].as_array().unwrap().len(), 2 * 3);
    assert_eq!(found["sweeps"][1]["points"][0]["prompt_tokens"], 64.0, "as counted");
    assert_eq!(found["cost"]["rows"].as_array().unwrap().len(), 2);

    for name in ["cells.csv", "samples.csv"] {
        let text = read(name);
        let columns = |line: &str| line.split(',').count();
        let wanted = columns(text.lines().next().unwrap());
        assert!(text.lines().all(|line| columns(line) == wanted), "{name}");
    }
    assert_eq!(read("samples.csv").lines().count(), 1 + 48);
    let page = read("report.html");
    for title in [
        "Tokens per second by suite and mode",
        "Acceptance lengths of tree",
        "Budget sweep",
        "Speed against context",
        "Milliseconds of a verify by rows",
    ] {
        assert!(page.contains(&format!("aria-label='{title}'")), "{title}");
    }
    assert!(
        page.contains("prefers-color-scheme: dark")
            && !page.contains("NaN")
            && !page.contains("http")
    );
}

#[test]
fn a_shape_has_costs_and_a_floor() {
    let found = parsed(&[
        "bench",
        "--synthetic",
        "tiny-moe",
        "--mix",
        "q8_0",
        "--bandwidth",
        "10",
        "--json",
    ]);
    let cost = &found["cost"];
    assert_eq!(cost["model"], "synthetic tiny-moe Q8_0");
    assert_eq!((&cost["bandwidth_gb_s"], &cost["bandwidth_from"]), (&json!(10.0), &json!("given")));
    let (all, token) =
        (cost["weight_bytes"].as_u64().unwrap(), cost["token_bytes"].as_u64().unwrap());
    assert!(token < all, "a token goes to 4 of 16 experts");
    let rows = cost["rows"].as_array().unwrap();
    assert_eq!(
        rows.iter().filter_map(|r| r["rows"].as_u64()).collect::<Vec<_>>(),
        [1, 2, 4, 8, 16, 32, 64]
    );
    let floor = |i: usize| rows[i]["floor_ms"].as_f64().unwrap();
    assert!((floor(0) - token as f64 / 1e7).abs() < 1e-9);
    assert!(floor(6) > floor(0) && floor(6) <= all as f64 / 1e7, "more rows meet more experts");
    assert!(
        refused(&["bench", "--synthetic", "huge"])
            .contains("unknown shape `huge`: tiny, tiny-moe, qwen3.5-0.8b")
    );
}

#[test]
fn texts_at_once_are_a_sweep() {
    let args =
        ["--suite", "code,complete", "--per-suite", "2", "--repeats", "2", "--max-tokens", "8"];
    let sweep = ["bench", "--json", "--modes", "off,chain", "--sweep", "slots=1,3"];
    let found = parsed(&[&sweep[..], &args].concat());
    let points = found["sweeps"][0]["points"].as_array().unwrap();
    assert_eq!(found["sweeps"][0]["axis"], "slots");
    let seen: Vec<_> = points
        .iter()
        .map(|p| (p["value"].as_u64().unwrap(), p["mode"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [(1, "off"), (1, "chain"), (3, "off"), (3, "chain")]);
    for point in points {
        assert_eq!(point["different_texts"], 0, "company changes no text: {point}");
        let length = point["accept_length"]["value"].as_f64().unwrap();
        assert_eq!(length > 1.0, point["mode"] == "chain", "{point}");
    }
    let state = |i: usize| points[i]["state_bytes"].as_u64().unwrap();
    assert!(state(2) > 2 * state(0), "three texts keep three states");
}

#[test]
fn a_server_is_measured_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "# ours\nsecret\n").unwrap();
    let keys = keys.to_str().unwrap();
    let server = http::Server::start(&["--slots", "4", "--spec", "chain", "--api-key-file", keys]);
    let url = format!("http://{}", server.address);
    let ask = |more: &[&str]| {
        let small = [
            "--suite",
            "code,complete",
            "--per-suite",
            "2",
            "--repeats",
            "2",
            "--max-tokens",
            "12",
        ];
        [&["bench", "--server", &url, "--concurrency", "1,3"][..], &small, more].concat().join(" ")
    };
    let run = |line: &str| forerun(&line.split(' ').collect::<Vec<_>>());
    let out = folder.path().join("out");
    let line = ask(&["--json", "--api-key-file", keys, "--out", out.to_str().unwrap()]);
    let output = run(&line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = found["served"]["points"].as_array().unwrap();
    assert_eq!(
        points.iter().map(|p| p["concurrency"].as_u64().unwrap()).collect::<Vec<_>>(),
        [1, 3]
    );
    for point in points {
        assert_eq!(point["requests"], 2 * 4, "{point}");
        for figure in ["tokens_per_s", "answer_tokens_per_s", "first_token_ms", "token_ms"] {
            assert!(point[figure]["value"].as_f64().unwrap() > 0.0, "{figure}: {point}");
        }
        for (figure, tail) in
            [("first_token_ms", "first_token_tail_ms"), ("token_ms", "token_tail_ms")]
        {
            let figures = [&point[figure]["value"], &point[tail]["p95"], &point[tail]["p99"]];
            assert!(figures.map(|f| f.as_f64().unwrap()).is_sorted(), "{tail}: {point}");
        }
        assert!(point["accept_length"].as_f64().unwrap() > 1.0, "the server is ours: {point}");
        assert!(point["prompt_tokens"].as_f64().unwrap() > 10.0, "{point}");
        assert!(point["completion_tokens"].as_f64().unwrap() <= 12.0, "{point}");
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(read("served.csv").lines().count(), 3);
    for plot in ["Tokens per second by requests at a time", "Milliseconds a token by throughput"] {
        assert!(read("report.html").contains(&format!("aria-label='{plot}'")), "{plot}");
    }

    let refused = |line: &str| {
        let output = run(line);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&ask(&[])).contains("the server answers 401"), "no key");
    assert!(refused("bench --server https://127.0.0.1").contains("begins with http://"));
}

#[test]
fn prompts_of_ones_own_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.jsonl");
    let lines = [
        json!({"question": "What is 3 + 4?"}),
        json!({"prompt": "def add(a, b):\n", "raw": true}),
        json!({"messages": [{"role": "user", "content": "Write Python gcd"}], "thinking": false}),
    ];
    std::fs::write(&own, lines.map(|l| l.to_string()).join("\n")).unwrap();
    let bench = |file: &Path| {
        let file = file.to_str().unwrap().to_owned();
        ["bench", "--max-tokens", "8", "--modes", "off", "--repeats", "1", "--json", "--prompts"]
            .map(str::to_owned)
            .into_iter()
            .chain([file])
            .collect::<Vec<_>>()
    };
    let args = bench(&own);
    let found = parsed(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found["settings"]["suites"], json!(["own"]));
    assert_eq!(found["samples"].as_array().unwrap().len(), 3);
    std::fs::write(&own, "{\"text\": \"no prompt\"}\n").unwrap();
    let said = refused(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said.contains("own.jsonl, line 1: neither `prompt` nor `messages`"), "{said}");
}

#[test]
fn rounds_of_a_shape_are_measured() {
    let names = stdout(&["bench", "rounds", "--synthetic", "list"]);
    assert_eq!(names.lines().take(3).collect::<Vec<_>>(), ["tiny", "tiny-moe", "qwen3.5-0.8b"]);
    // As few as can be asked for leave no figure without a number.
    let few =
        ["--rounds", "1", "--rows", "1,64", "--prompt", "8", "--context", "16", "--texts", "3"];
    let found = stdout(
        &[&["bench", "rounds", "--synthetic", "tiny", "--device", "cpu"][..], &few].concat(),
    );
    let parts = [
        "prompt of 8",
        "plain decode",
        "verify of 1 rows",
        "verify of 64 rows",
        "plain decode, 3 texts",
    ];
    for part in parts {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(!found.contains("NaN"), "{found}");
    let tiny = ["bench", "rounds", "--synthetic", "tiny"];
    for wrong in [["--rounds", "0"], ["--rows", "0"], ["--chain", "1"], ["--texts", "1"]] {
        misunderstood(&[&tiny[..], &wrong].concat());
    }
    // How many rows a pass has is the backend's to say, which flags do not know.
    for beyond in [["--rows", "65"], ["--tree", "64"]] {
        let told = refused(&[&tiny[..], &beyond].concat());
        assert!(told.contains("which has 64 at most here"), "{told}");
    }
}
