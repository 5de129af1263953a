//! `forerun bench`, through the program. No test asks for a time to be short: the machine may be
//! busy.

#[allow(dead_code)]
#[path = "serve/http.rs"]
mod http;

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn forerun(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forerun")).args(args).output().expect("the program starts")
}

fn stdout(args: &[&str]) -> String {
    let output = forerun(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn parsed(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("one JSON object")
}

fn refused(args: &[&str]) -> String {
    let output = forerun(args);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).expect("text")
}

fn misunderstood(args: &[&str]) -> String {
    let output = forerun(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn every_mode_writes_the_same_text() {
    let dense = stdout(&["bench", "parity", "--quick", "--max-tokens", "24"]);
    assert!(dense.ends_with("96 answers, all equal to plain decoding\n"), "{dense}");
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
    assert!(moe.contains("3 modes beside `off` (chain tree:22 auto), 2 prompts"), "{moe}");
    assert!(moe.ends_with("18 answers, all equal to plain decoding\n"), "{moe}");
}

#[test]
fn parity_takes_prompts_and_caches_that_are_asked_for() {
    let prompts = "tests/goldens/dense-prompts.jsonl";
    let small = ["--prompts", prompts, "--per-suite", "1", "--max-tokens", "8", "--modes", "chain"];
    let args = [&["bench", "parity", "--quick", "--caches", "q8_0,q4_0"][..], &small].concat();
    let out = stdout(&args);
    let caches: Vec<_> =
        out.lines().filter_map(|line| line.strip_prefix("KV ")?.split(':').next()).collect();
    assert_eq!(caches, ["q8_0", "q4_0"], "{out}");
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
    assert_eq!(cells.len(), 3 * 5, "two suites and overall, five modes");
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
        // Auto may find that nothing pays.
        if cell["mode"] != "auto" {
            assert!(if off { accepted == 1.0 } else { accepted > 1.0 }, "{cell}");
            assert_eq!(cell["accepted_per_drafted"].is_null(), off);
        }
    }
    assert_eq!(found["samples"].as_array().unwrap().len(), 2 * 2 * 2 * 5);
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
    assert_eq!(read("samples.csv").lines().count(), 1 + 40);
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

/// No figure of the page's tables is typed: each table is a block's. Every run is quoted.
#[test]
fn tables_of_the_page_come_from_runs() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    let blocks = page
        .split("<!-- table: ")
        .skip(1)
        .map(|rest| rest.split_once("<!-- end -->").expect("an end").0);
    let lines = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(lines(&page), blocks.map(lines).sum::<usize>(), "a table outside of the blocks");
    for file in std::fs::read_dir("docs/runs").unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("<!-- table: {name} ")), "the page does not quote {name}");
    }
}

#[test]
fn the_page_is_what_the_runs_give() {
    stdout(&["bench", "tables", "--check"]);

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (runs, page, results) = (path("runs"), path("page.md"), path("results.json"));
    let args = [
        "--suite",
        "code",
        "--per-suite",
        "2",
        "--repeats",
        "1",
        "--max-tokens",
        "8",
        "--modes",
        "off,chain",
    ];
    let found = stdout(&[&["bench", "--json", "--sweep", "context=32"][..], &args].concat());
    std::fs::write(&results, &found).unwrap();
    let add = ["--add", &results, "--name", "mine", "--command", "forerun bench --quick"];
    stdout(&[&["bench", "tables", "--runs", &runs][..], &add].concat());
    let text = "# Page\n\n<!-- table: mine modes -->\n<!-- end -->\nafter\n<!-- table: mine context --><!-- end -->\n";
    std::fs::write(&page, text).unwrap();
    let tables = ["bench", "tables", "--runs", &runs, "--page", &page];
    let check = [&tables[..], &["--check"]].concat();
    assert!(refused(&check).contains("the tables are not what the runs give"));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), text, "checking writes nothing");
    stdout(&tables);
    stdout(&check);
    let written = std::fs::read_to_string(&page).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    let machine = found["machine"]["processor"].as_str().unwrap();
    let length = found["cells"][1]["accept_length"]["value"].as_f64().unwrap();
    for part in [
        "`forerun bench --quick`; ",
        machine,
        "| suite | off, tok/s | chain, times off | AL chain |",
        "\nafter\n",
    ] {
        assert!(written.contains(part), "{part}: {written}");
    }
    let length =
        if length.fract() == 0.0 { format!("| {length:.0} |") } else { format!("| {length:.1} |") };
    assert!(written.contains(&length), "{length}: {written}");
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
        assert!(point["accept_length"].as_f64().unwrap() > 1.0, "the server is ours: {point}");
        assert!(point["prompt_tokens"].as_f64().unwrap() > 10.0, "{point}");
        assert!(point["completion_tokens"].as_f64().unwrap() <= 12.0, "{point}");
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert_eq!(read("served.csv").lines().count(), 3);
    assert!(read("report.html").contains("aria-label='Tokens per second by requests at a time'"));

    let refused = |line: &str| {
        let output = run(line);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&ask(&[])).contains("the server answers 401"), "no key");
    assert!(refused("bench --server https://127.0.0.1").contains("begins with http://"));
}

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
    assert!(refused(&["bench", "versus", "false", "false"]).contains("`false` failed"));
}

#[test]
fn a_slowdown_that_is_asked_for_takes_its_time() {
    let line = "bench --suite code --per-suite 2 --repeats 1 --max-tokens 12 --modes off --slow-down 200 --json";
    let found = parsed(&line.split(' ').collect::<Vec<_>>());
    for sample in found["samples"].as_array().unwrap() {
        let stage = |name: &str| sample["stages"][name].as_f64().unwrap();
        let rounds = stage("draft") + stage("verify") + stage("judge") + stage("commit");
        // However busy the machine is, a pause is no shorter than it was to be.
        assert!(stage("host") > 1.99 * rounds && rounds > 0.0, "{sample}");
    }
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
        misunderstood(&["bench", "--sweep", "budget=1..64"])
            .contains("budget is 64, 1 to 63 expected")
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
    for wrong in [
        ["--rounds", "0"],
        ["--rows", "0"],
        ["--rows", "65"],
        ["--tree", "64"],
        ["--chain", "1"],
        ["--texts", "1"],
    ] {
        misunderstood(&[&["bench", "rounds", "--synthetic", "tiny"][..], &wrong].concat());
    }
}
