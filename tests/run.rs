//! `forerun run` and `forerun chat`, through the program, with the embedded pair.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::{command, forerun, parsed};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

const QUICKSORT: &str = "Write Python quicksort";

fn json(args: &[&str]) -> Value {
    parsed(&[&["run", "--json"], args].concat())
}

fn with_input(args: &[&str], input: &str) -> Output {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn the_embedded_pair_writes_quicksort() {
    let output = forerun(&["run", QUICKSORT, "--temp", "0", "--no-think"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success());
    assert!(
        text.contains("def quicksort(items):\n    if len(items) <= 1:\n        return items\n"),
        "{text}"
    );
    assert!(text.ends_with("```\n"), "the end token is not shown: {text}");

    let object = json(&[QUICKSORT, "--temp", "0", "--no-think", "--spec", "chain"]);
    assert_eq!(object["text"].as_str().map(|t| format!("{t}\n")), Some(text));
    assert_eq!((&object["finish"], &object["model"]), (&"stop".into(), &"embedded".into()));
    let ids = object["ids"].as_array().expect("ids");
    assert_eq!(object["completion_tokens"], ids.len());
    assert_eq!(ids.last(), Some(&4066.into()), "the end token counts");
    let spec = &object["spec"];
    assert_eq!(
        (&spec["mode"], &spec["fallback"], &spec["exact"]),
        (&"chain".into(), &Value::Null, &true.into())
    );
    let lengths = spec["accept_lengths"].as_array().expect("lengths");
    assert_eq!(spec["rounds"], lengths.len());
    let sum: u64 = lengths.iter().filter_map(Value::as_u64).sum();
    assert_eq!(spec["accepted"], sum - lengths.len() as u64);
    // Nearly all of every block of 8 rows stands.
    assert!(spec["mean_accept_length"].as_f64() > Some(7.0), "{spec}");
    for key in
        ["load_s", "prefill_s", "decode_s", "tokens_per_s", "draft_s", "verify_s", "commit_s"]
    {
        assert!(object["timing"][key].is_f64(), "{key}");
    }
    assert!(object["seed"].is_u64());
}

#[test]
fn neither_mode_nor_threads_change_the_text() {
    let base = ["Compute 12 * 7", "--seed", "11", "--temp", "1", "--max-tokens", "60"];
    let plain = json(&[&base[..], &["--spec", "off", "--threads", "1"]].concat())["ids"].take();
    let others: [&[&str]; 8] = [
        &["--spec", "off", "--threads", "2"],
        &["--spec", "chain", "--threads", "1"],
        &["--spec", "chain", "--block", "4"],
        &["--spec", "tree", "--budget", "40", "--threads", "2"],
        &["--spec", "mtp", "--budget", "5"],
        &["--spec", "lookup"],
        &["--spec", "auto"],
        &[],
    ];
    for flags in others {
        assert_eq!(json(&[&base[..], flags].concat())["ids"], plain, "{flags:?}");
    }
    assert_ne!(
        json(&["Compute 12 * 7", "--seed", "12", "--temp", "1", "--max-tokens", "60"])["ids"],
        plain
    );
}

#[test]
fn prompts_come_in_many_ways() {
    let from_flag = json(&["--temp", "0", "--raw", "def fib", "--max-tokens", "8"]);
    let args = ["run", "--json", "--temp", "0", "--raw", "-", "--max-tokens", "8"];
    let piped: Value = serde_json::from_slice(&with_input(&args, "def fib").stdout).expect("JSON");
    assert_eq!(piped["ids"], from_flag["ids"]);
    assert_eq!(from_flag["finish"], "length");
    let by_ids = json(&[
        "--temp",
        "0",
        "--prompt-ids",
        "4065,360,198,918,565,1360,1194,4066,198",
        "--max-tokens",
        "4",
    ]);
    assert_eq!(by_ids["prompt_tokens"], 9);
    let system =
        json(&["Hi", "--system", "Answer in one word.", "--temp", "0", "--max-tokens", "4"]);
    let plain = json(&["Hi", "--temp", "0", "--max-tokens", "4"]);
    assert!(system["prompt_tokens"].as_u64() > plain["prompt_tokens"].as_u64());
    let thinking = json(&["Hi", "--no-think", "--temp", "0", "--max-tokens", "4"]);
    assert_ne!(thinking["prompt_tokens"], plain["prompt_tokens"]);
}

#[test]
fn what_can_go_wrong_is_said() {
    let long = "word ".repeat(200);
    let cases: [(&[&str], &str); 16] = [
        (
            &["run", "x", "--model", "absent.gguf"],
            "absent.gguf: No such file or directory (os error 2)",
        ),
        (
            &["run", "x", "--model", "models/dense/draft-Q8_0.gguf"],
            "models/dense/draft-Q8_0.gguf: this is a drafter, a target was expected",
        ),
        (
            &["run", "x", "--draft", "models/dense/target-Q4_K_M.gguf"],
            "models/dense/target-Q4_K_M.gguf: this is a target, a drafter was expected",
        ),
        (&["run", "  "], "the prompt is empty"),
        (
            &["run", "x", "--device", "tpu"],
            "unknown device `tpu`: auto, cpu, cuda or cuda:N expected",
        ),
        (
            &["run", &long, "--ctx", "100"],
            "the prompt has 211 tokens, which leaves no room for an answer in `--ctx 100`",
        ),
        (
            &["run", "x", "--model", "models/dense/target-Q4_K_M.gguf", "--spec", "chain"],
            "`--spec chain` needs a drafter: give `--draft FILE`",
        ),
        (
            &["run", "x", "--model", "tests/fixtures/moe/target-Q4_K_M.gguf", "--spec", "mtp"],
            "`--spec mtp`: the model has no MTP block",
        ),
        (
            &["run", "x", "--block", "20"],
            "`--block 20` is more than the 8 rows the drafter was trained for",
        ),
        (
            &["run", "x", "--relaxed-thinking", "--temp", "1"],
            "`--relaxed-thinking` is for greedy decoding: give `--temp 0`",
        ),
        (
            &["run", "x", "--spec", "chain", "--budget", "40"],
            "`--budget 40`: a chain over a block of 8 rows has at most 7 tokens",
        ),
        (
            &["run", "x", "--budget", "64", "--device", "cpu"],
            "`--budget 64`: a text has 64 rows here, for the newest token and at most 63 others",
        ),
        (
            &["run", "--prompt-ids", "5000"],
            "token 5000 of `--prompt-ids` is not below the vocabulary of 4096",
        ),
        (
            &["run", "x", "--logit-bias", "4096=1"],
            "`--logit-bias 4096=...`: the vocabulary has 4096 tokens, from 0 to 4095",
        ),
        (
            &["run", "x", "--model", "models/dense/target-Q4_K_M.gguf", "--draft-window", "64"],
            "`--draft-window` is about a drafter, and there is none: give `--draft FILE`",
        ),
        (&["run", "x", "--max-tokens", "0"], "`--max-tokens 0` leaves no room for an answer"),
    ];
    for (args, sentence) in cases {
        let output = forerun(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said, format!("forerun: {sentence}\n"), "{args:?}");
    }
    let usage: [&[&str]; 5] = [
        &["run", "x", "--spec", "fast"],
        &["run", "x", "--temp", "-1"],
        &["run", "x", "--top-p", "2"],
        &["run", "x", "--kv", "q3"],
        &["run", "x", "--logit-bias", "a=b"],
    ];
    for args in usage {
        assert_eq!(forerun(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_drafter_for_another_target_runs_exactly() {
    // The MoE drafter fits the dense target in shape, if in nothing else.
    let args =
        [QUICKSORT, "--temp", "0", "--no-think", "--model", "models/dense/target-Q4_K_M.gguf"];
    let plain = json(&[&args[..], &["--spec", "off"]].concat());
    let other = ["--draft", "tests/fixtures/moe/draft-Q8_0.gguf"];
    let mut drafted = 0;
    for mode in ["chain", "tree", "auto"] {
        let object = json(&[&args[..], &other, &["--spec", mode]].concat());
        assert_eq!(object["ids"], plain["ids"], "{mode}");
        let count = object["spec"]["drafted"].as_u64().expect("a count");
        match mode {
            "chain" => {
                assert!(
                    object["spec"]["mean_accept_length"].as_f64() < Some(2.0),
                    "{}",
                    object["spec"]
                );
                drafted = count;
            }
            // It is tried a few times, then left; how often follows from times.
            "auto" => assert!(count < drafted / 2, "{} against {drafted}", object["spec"]),
            _ => {}
        }
    }
}

#[test]
fn verbose_and_explain_show_the_rounds() {
    let args = [QUICKSORT, "--temp", "0", "--no-think", "--spec", "chain"];
    let spec = json(&args)["spec"].take();
    let (rounds, mean) = (&spec["rounds"], spec["mean_accept_length"].as_f64().expect("a mean"));
    let full = spec["accept_lengths"].as_array().expect("lengths").iter().filter(|l| **l == 8);
    let output = forerun(&[&["run", "-v"], &args[..]].concat());
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(lines.lines().count(), *rounds, "{lines}");
    assert!(
        lines.starts_with("round    1  dflash drafted  7  accepted  7  rows  8  draft "),
        "{lines}"
    );

    let output = forerun(&[&["run", "--explain"], &args[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\u{1b}[32m") && text.contains("\u{1b}[33m"), "both colours: {text}");
    assert!(text.contains("acceptance length, rounds\n"), "{text}");
    assert!(text.contains(&format!("\n  8 {:5} ########", full.count())), "{text}");
    assert!(text.contains(&format!("mean {mean:.2} over {rounds} rounds")), "{text}");
}

#[test]
fn thoughts_are_told_apart_from_the_answer() {
    let args = [QUICKSORT, "--temp", "0"];
    let whole = json(&args);
    let whole = whole["text"].as_str().expect("a text");
    let (thoughts, answer) = whole.split_once("\n</think>\n\n").expect("it thinks first");
    let output = forerun(&[&["run"], &args[..]].concat());
    // Whoever reads standard output gets the answer alone.
    assert_eq!(String::from_utf8(output.stdout).expect("text"), format!("{answer}\n"));
    let aside = String::from_utf8(output.stderr).expect("text");
    assert!(aside.starts_with(thoughts.trim_start()), "{aside}");
    // A sampled answer ends with a line that says what it was drawn with and how fast it came.
    let sampled = forerun(&["run", QUICKSORT, "--no-think", "--temp", "0.1", "--seed", "3"]);
    let line = String::from_utf8(sampled.stderr).expect("text");
    assert!(line.contains(" a second; ") && line.ends_with("; seed 3\n"), "{line}");
}

#[test]
fn relaxed_thinking_is_reported() {
    let args = ["Compute 3 + 4", "--temp", "0", "--spec", "chain", "--max-tokens", "40"];
    let strict = json(&args);
    assert_eq!(strict["spec"]["exact"], true);
    let relaxed = json(&[&args[..], &["--relaxed-thinking"]].concat());
    assert_eq!(relaxed["spec"]["exact"], false);
    // Where the prompt has closed the thinking, there is nothing to relax.
    let closed = json(&[&args[..], &["--relaxed-thinking", "--no-think"]].concat());
    assert_eq!(closed["spec"]["exact"], true);
}

#[test]
fn a_chat_remembers_and_starts_over() {
    let args = ["chat", "--temp", "0", "--no-think", "--max-tokens", "48"];
    let output = with_input(
        &args,
        "Write Python binary search\nCompute 2 + 3\n/new\n//tmp\n/new\nCompute 2 + 3\n/help\n/what\n/quit\n",
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("def binary_search"), "{text}");
    let slash = forerun(&["run", "/tmp", "--temp", "0", "--no-think", "--max-tokens", "48"]).stdout;
    assert!(
        text.contains(&*String::from_utf8_lossy(&slash)),
        "two slashes begin a message with one: {text}"
    );
    let fresh =
        forerun(&["run", "Compute 2 + 3", "--temp", "0", "--no-think", "--max-tokens", "48"])
            .stdout;
    assert!(
        text.ends_with(&*String::from_utf8_lossy(&fresh)),
        "after /new as in the beginning: {text}"
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("unknown command `/what`") && said.contains("/new starts over"),
        "{said}"
    );
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_turn_and_not_the_chat() {
    // An answer that never ends by itself.
    let endless =
        ["--logit-bias", "4066=-inf", "--logit-bias", "4064=-inf", "--temp", "1", "--seed", "1"];
    let mut child: Child = command(&[&["chat"][..], &endless].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("piped");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    input.write_all(b"Write a very long story\n").expect("it reads");
    let mut first = [0; 64];
    out.read_exact(&mut first).expect("the answer begins");
    let status =
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(status.success());
    // The chat goes on: it takes a command and says so.
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    input.write_all(b"/what\n").expect("it still reads");
    let drain = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let mut line = String::new();
    while !line.contains("unknown command `/what`") {
        line.clear();
        assert!(said.read_line(&mut line).expect("a line") > 0, "the program ended");
    }
    input.write_all(b"/quit\n").expect("it still reads");
    assert!(child.wait().expect("it ends").success());
    drain.join().expect("no panic").expect("read");
}

/// Conversations under a name: what is said with one command is known to the next, which reads only
/// what is new.
#[test]
fn sessions_go_on_where_they_were_left() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str], input: &str| {
        let mut child = command(args)
            .env("XDG_STATE_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8(output.stderr).expect("text");
        (output.status.success(), String::from_utf8(output.stdout).expect("text"), said)
    };
    let rules = "Answer in Python. ".repeat(40);
    let ask = |name: &str, question: &str, more: &[&str]| {
        let args =
            ["run", "--json", "--temp", "0", "--max-tokens", "24", "--session", name, question];
        let (done, out, said) = run(&[&args[..], more].concat(), "");
        assert!(done, "{said}");
        serde_json::from_str::<Value>(&out).expect("JSON")
    };
    let first = ask("sorting", QUICKSORT, &["--system", &rules]);
    assert_eq!(first["cached_tokens"], 0);
    let second = ask("sorting", "And now merge sort", &[]);
    let known = second["cached_tokens"].as_u64().expect("a number");
    let prompt = first["prompt_tokens"].as_u64().expect("a number");
    assert!(known > 100 && prompt - known < 20, "{known} of {prompt}");
    // Without what was kept the same is answered, only later.
    let path = home.path().join("forerun/sessions/sorting");
    let saved = std::fs::read_to_string(path.join("conversation.json")).expect("a conversation");
    let third = ask("sorting", "Shorter", &[]);
    assert!(third["cached_tokens"].as_u64() > second["cached_tokens"].as_u64());
    std::fs::remove_dir_all(path.join("states")).expect("states go");
    std::fs::write(path.join("conversation.json"), saved).expect("it is as before");
    let again = ask("sorting", "Shorter", &[]);
    assert_eq!((&again["cached_tokens"], &again["ids"]), (&Value::from(0), &third["ids"]));

    // A chat goes on with it too, and hears of it.
    let args = ["chat", "--temp", "0", "--max-tokens", "4", "--session", "sorting"];
    let (done, _, said) = run(&args, "Thanks\n");
    assert!(done && said.contains("the session has 3 turns"), "{said}");
    let listed = |args: &[&str]| run(args, "").1;
    let all: Value = serde_json::from_str(&listed(&["sessions", "--json"])).expect("JSON");
    assert_eq!(
        (&all["sessions"][0]["name"], &all["sessions"][0]["turns"]),
        (&"sorting".into(), &4.into())
    );
    assert!(listed(&["sessions"]).starts_with("sorting "));
    let refused = |args: &[&str], why: &str| {
        let (done, _, said) = run(args, "");
        assert!(!done && said.contains(why), "{said}");
    };
    refused(&["run", "--session", "sorting", "--system", "Else", "Hi"], "begin another one");
    refused(&["run", "--session", "../x", "Hi"], "is no name of a session");
    refused(&["sessions", "--remove", "nobody"], "there is no session `nobody`");
    assert!(run(&["sessions", "--remove", "sorting"], "").0 && !path.exists());
    assert!(listed(&["sessions"]).starts_with("no sessions"));
}
