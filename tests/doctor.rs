//! `forerun doctor`, through the program: faults that are planted in a drafter's file or flags are
//! found by name.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use formats::gguf::{Entries, Gguf, Header, Overwrite, Writer};
use program::{parsed, refused, stdout};
use serde_json::Value;
use std::path::{Path, PathBuf};

const DENSE: [&str; 2] = ["models/dense/target-Q4_K_M.gguf", "models/dense/draft-Q8_0.gguf"];
/// With a drafter of the second generation.
const DENSE2: [&str; 2] = ["models/dense/target-Q4_K_M.gguf", "models/dense/draft2-Q8_0.gguf"];
const MOE: [&str; 2] =
    ["tests/fixtures/moe/target-Q4_K_M.gguf", "tests/fixtures/moe/draft-Q8_0.gguf"];

fn doctor(args: &[&str]) -> String {
    stdout(&[&["doctor", "--threads", "1"], args].concat())
}

fn seen(args: &[&str]) -> Value {
    parsed(&[&["doctor", "--threads", "1", "--json"], args].concat())
}

/// The one fault that was found, and the advice.
fn only_fault(found: &Value) -> (String, String) {
    let faults = found["drafter"]["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{}", found["advice"]);
    (
        faults[0]["setting"].as_str().unwrap().to_owned(),
        found["advice"].as_str().unwrap().to_owned(),
    )
}

/// A copy of a drafter's file without some keys, and with others; a tensor has the data of the one
/// that `data_of` names.
fn rewritten(
    folder: &Path,
    from: &str,
    without: &[&str],
    with: impl FnOnce(&mut Entries),
    data_of: impl Fn(&str) -> String,
) -> PathBuf {
    let gguf = Gguf::open(from.as_ref()).unwrap();
    let mut header = Header::default();
    for (key, value) in gguf.metadata().filter(|(key, _)| !without.contains(key)) {
        header.entries.copy(key, value);
    }
    with(&mut header.entries);
    let tensors = gguf.tensors();
    tensors.iter().for_each(|t| header.tensor(&t.name, t.ty, &t.shape));
    let path = folder.join("rewritten.gguf");
    let writer = Writer::create(&path, &header, Overwrite::Replace).unwrap();
    for (i, tensor) in tensors.iter().enumerate() {
        let tensor = tensors.get(&data_of(&tensor.name)).unwrap();
        writer.write_at(i, 0, tensors.data(tensor)).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// A fault in the file of a pair's drafter: its name and the flag that mends it.
fn planted(
    pair: [&str; 2],
    texts: &str,
    without: &[&str],
    with: impl FnOnce(&mut Entries),
) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let drafter = rewritten(folder.path(), pair[1], without, with, str::to_owned);
    only_fault(&seen(&["--model", pair[0], "--draft", drafter.to_str().unwrap(), "--texts", texts]))
}

#[test]
fn shifted_taps_are_found() {
    // Counted from 0 where the dialect counts from 1, which reads one layer lower; and the other
    // way round.
    let key = "dflash.target_layers";
    let lower = planted(DENSE, "8", &[key], |entries| entries.i32s(key, &[1, 3, 5, 6]));
    assert_eq!(lower.0, "taps");
    assert!(lower.1.starts_with("Set `--draft-taps 1,3,5,6`: the taps are shifted"), "{}", lower.1);
    let higher = planted(MOE, "4", &[key], |entries| entries.i32s(key, &[2, 3, 4]));
    assert!(higher.1.starts_with("Set `--draft-taps 0,1,2`: the taps are shifted"), "{}", higher.1);
}

#[test]
fn a_wrong_theta_is_found() {
    let found = only_fault(&seen(&["--draft-rope-theta", "1e6", "--texts", "4"]));
    assert_eq!(found.0, "theta");
    assert!(
        found.1.starts_with("Set `--draft-rope-theta 1e7`: the rope theta is wrong"),
        "{}",
        found.1
    );
}

#[test]
fn flipped_causality_is_found() {
    let key = "dflash.attention.causal";
    let found = planted(DENSE, "8", &[key], |entries| entries.bool(key, true));
    assert_eq!(found.0, "causality");
    assert!(
        found.1.starts_with("Set `--draft-causal false`: the causality of the block"),
        "{}",
        found.1
    );
}

#[test]
fn a_dropped_window_is_found() {
    let keys = ["dflash.attention.sliding_window", "dflash.attention.sliding_window_pattern"];
    let found = planted(DENSE, "4", &keys, |_| ());
    assert_eq!(found.0, "window");
    assert!(found.1.starts_with("Set `--draft-window 128`: the window is wrong"), "{}", found.1);
}

#[test]
fn dropped_yarn_is_found() {
    let gguf = Gguf::open(MOE[1].as_ref()).unwrap();
    let keys: Vec<&str> =
        gguf.metadata().map(|(key, _)| key).filter(|k| k.contains("rope.scaling")).collect();
    let found = planted(MOE, "4", &keys, |_| ());
    assert_eq!(found.0, "yarn");
    assert!(
        found.1.starts_with("Set `--draft-yarn 64,512`: the YaRN scaling is wrong"),
        "{}",
        found.1
    );
}

#[test]
fn a_wrong_mask_token_is_found() {
    let key = "tokenizer.ggml.mask_token_id";
    let found = planted(DENSE, "4", &[key], |entries| entries.u32(key, 4091));
    assert_eq!(found.0, "mask_token");
    assert!(
        found.1.starts_with("Set `--draft-mask-token 4090`: the mask token is wrong"),
        "{}",
        found.1
    );
}

#[test]
fn a_selector_that_does_harm_is_found() {
    let sound = seen(&["--model", DENSE2[0], "--draft", DENSE2[1], "--texts", "4"]);
    let tried = sound["drafter"]["alternatives"].as_array().unwrap();
    let off = tried.iter().find(|tried| tried["name"] == "selector off").unwrap();
    assert!(off["gain"]["mean"].as_f64().unwrap() < 0.0, "{off}");
    let advice = sound["advice"].as_str().unwrap();
    assert!(advice.starts_with("Leave everything as it is"), "{advice}");
    // Each codebook in the other's place.
    let swapped = |name: &str| match name {
        "selector_predecessor.weight" => "selector_successor.weight".to_owned(),
        "selector_successor.weight" => "selector_predecessor.weight".to_owned(),
        name => name.to_owned(),
    };
    let folder = tempfile::tempdir().unwrap();
    let drafter = rewritten(folder.path(), DENSE2[1], &[], |_| (), swapped);
    let args = ["--model", DENSE2[0], "--draft", drafter.to_str().unwrap(), "--texts", "4"];
    let found = only_fault(&seen(&args));
    assert_eq!(found.0, "selector");
    assert!(found.1.starts_with("Set `--draft-selector false`"), "{}", found.1);
}

#[test]
fn sound_pairs_are_left_alone() {
    for pair in [DENSE, MOE] {
        let found = seen(&["--model", pair[0], "--draft", pair[1], "--draft-source", pair[1]]);
        let advice = found["advice"].as_str().unwrap();
        assert!(advice.starts_with("Leave everything as it is"), "{advice}");
        let drafter = &found["drafter"];
        assert!(
            drafter["acceptance"]["accept_length"].as_f64().unwrap() > 13.0,
            "{}",
            drafter["acceptance"]
        );
        assert_eq!(drafter["source"]["mean"], 0.0, "the same weights gain nothing");
        let shares = |name: &str| -> Vec<f64> {
            drafter["acceptance"][name]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_f64)
                .collect()
        };
        let (right, accepted) = (shares("right_by_position"), shares("accepted_by_position"));
        assert_eq!((right.len(), right[0]), (15, accepted[0]));
        assert!(accepted.is_sorted_by(|a, b| a >= b), "{accepted:?}");
    }
}

#[test]
fn a_drafter_of_another_target_is_called_that() {
    let text = doctor(&["--model", DENSE[0], "--draft", MOE[1], "--texts", "4"]);
    let advice = text.lines().last().unwrap();
    assert!(advice.starts_with("This drafter was trained for another target"), "{advice}");
    for part in ["machine", "GB/s from memory", "right %", "alternative", "as set"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_file_that_holds_no_prompts_is_named_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.md");
    let path = path.to_str().unwrap();
    let said = |text: &str| {
        std::fs::write(path, text).unwrap();
        refused(&["doctor", "--prompts", path])
    };
    for (text, line, reason) in [
        ("# A page\n", 1, "no JSON object: expected value"),
        ("\n[\"a list\"]\n", 2, "no JSON object: invalid type: sequence"),
        ("{\"prompt\": \"x\"}\n\n{\"prompt\": 3}\n", 3, "invalid type: integer `3`"),
        ("\n\n{}\n", 3, "neither `prompt` nor `messages`"),
    ] {
        let said = said(text);
        assert!(said.contains(&format!("forerun: {path}, line {line}: {reason}")), "{said}");
    }
    assert!(said("\n").contains(&format!("forerun: {path} has no prompts")));
}

#[test]
fn a_target_alone_has_nothing_to_look_at() {
    let text = doctor(&["--model", DENSE[0]]);
    assert!(text.ends_with("give a drafter with `--draft FILE` to have it looked at.\n"), "{text}");
}

#[test]
fn every_call_of_the_backend_may_fail() {
    let text = doctor(&["--faults", "--device", "cpu", "--spec", "chain"]);
    for fault in ["allocation", "launch", "read", "write", "commit"] {
        let line = text.lines().find(|line| line.starts_with(&format!("chain  {fault} ")));
        let faults = line.and_then(|line| line.split_whitespace().nth(2)?.parse::<usize>().ok());
        assert!(faults.is_some_and(|faults| faults > 10), "{fault}: {text}");
    }
    assert!(text.ends_with("and no memory stayed behind\n"), "{text}");
}
