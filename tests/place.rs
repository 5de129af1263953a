//! Models bigger than the memory they may use: weights lie elsewhere, and the text is the same. The
//! processor plans within `--device-memory` as a GPU does, so this is the placement that a GPU has.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::{forerun, misunderstood, refused};
use serde_json::Value;

const MOE: [&str; 4] = [
    "--model",
    "tests/fixtures/moe/target-Q4_K_M.gguf",
    "--draft",
    "tests/fixtures/moe/draft-Q8_0.gguf",
];

/// An answer of the mixture on the processor: its ids, and what was said beside it.
fn answer(args: &[&str]) -> (Value, String) {
    let fixed =
        ["run", "--json", "Write Python quicksort", "--device", "cpu", "--max-tokens", "24"];
    let output = forerun(&[&fixed, &MOE[..], args].concat());
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{args:?}: {told}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    (answer["ids"].clone(), told)
}

/// The megabytes that the mixture takes where all of it lies on the device.
fn whole_megabytes() -> f64 {
    let fixed = ["run", "x", "--device", "cpu", "--ctx", "512", "--device-memory", "1MiB"];
    let told = refused(&[&fixed, &MOE[..]].concat());
    let (_, needs) = told.split_once("it needs ").expect("what it needs");
    needs.split_once(" MB").expect("megabytes").0.parse().expect("a number")
}

/// The megabytes of weights that a plan leaves in the host's memory.
fn elsewhere(told: &str) -> Option<f64> {
    let (_, rest) = told.split_once("and weights of ")?;
    rest.split_once(" MB in the host's memory")?.0.parse().ok()
}

#[test]
fn less_memory_changes_no_token() {
    let all = whole_megabytes();
    let rooms = [2.0, 5.0, 8.0].map(|less| format!("{:.1}MB", all - less));
    for mode in ["off", "chain", "tree"] {
        let asked = ["--spec", mode, "--ctx", "512", "--temp", "0.8", "--seed", "3"];
        let (whole, told) = answer(&asked);
        assert_eq!(elsewhere(&told), None, "{told}");
        let mut before = 0.0;
        for memory in &rooms {
            let (ids, told) = answer(&[&asked[..], &["--device-memory", memory]].concat());
            assert_eq!(ids, whole, "{mode} within {memory}");
            let gone = elsewhere(&told).unwrap_or(0.0);
            assert!(gone >= before, "{memory}: {gone} MB after {before}");
            before = gone;
        }
        assert!(before > 0.0, "nothing had to leave");
    }
}

#[test]
fn what_lies_where_can_be_said() {
    let asked = ["--spec", "chain", "--ctx", "512", "--temp", "0"];
    let (whole, _) = answer(&asked);
    for place in ["experts=host", "layers=0-1", "experts=host,layers=0-2"] {
        let (ids, told) = answer(&[&asked[..], &["--place", place]].concat());
        assert_eq!(ids, whole, "{place}");
        assert!(told.contains("`--place` changes nothing of that"), "{told}");
    }
    // What is left of the memory is for copies of experts.
    let memory = format!("{:.1}MB", whole_megabytes() + 10.0);
    let hot = ["--place", "experts=hot", "--device-memory", &memory];
    let (ids, told) = answer(&[&asked[..], &hot].concat());
    assert_eq!(ids, whole);
    assert!(told.contains("copies of experts "), "{told}");
}

#[test]
#[cfg(target_os = "linux")]
fn experts_may_lie_on_a_disk() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let place = format!("experts=disk:{}", folder.path().display());
    for mode in ["off", "chain", "tree"] {
        let asked = ["--spec", mode, "--ctx", "512", "--temp", "0.8", "--seed", "3"];
        let (whole, _) = answer(&asked);
        for more in [&[][..], &["--device-memory", "200MiB"]] {
            let (ids, _) = answer(&[&asked[..], &["--place", &place], more].concat());
            assert_eq!(ids, whole, "{mode} {more:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
    }
    let gone = format!("{place}/gone");
    let args = [&["run", "x", "--device", "cpu", "--place", &gone], &MOE[..]].concat();
    let told = refused(&args);
    assert!(told.contains("gone` cannot hold ") && told.contains("No such file"), "{told}");
}

#[test]
fn what_cannot_be_is_refused() {
    fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["run", "x", "--device", "cpu"], args].concat()
    }
    let too_little = refused(&run(&[&MOE[..], &["--device-memory", "1MiB"]].concat()));
    assert!(too_little.contains("the model does not fit on the device"), "{too_little}");
    let no_drafter = refused(&run(&["--draft", "none", "--block", "100"]));
    assert!(no_drafter.contains("`--block 100` is about a drafter"), "{no_drafter}");
    for place in ["experts=host", "experts=hot", "experts=disk:."] {
        let dense = refused(&run(&["--place", place]));
        let why = format!("`--place {place}`: the model has no experts");
        assert!(dense.contains(&why), "{dense}");
    }
    let beyond = refused(&run(&[&MOE[..], &["--place", "layers=0-99"]].concat()));
    assert!(beyond.contains("`--place layers=0-99`: the model has the layers 0 to"), "{beyond}");
    for (flag, value) in [("--place", "kv=disk"), ("--device-memory", "12")] {
        let told = misunderstood(&run(&[flag, value]));
        assert!(told.contains("expected"), "{told}");
    }
}

/// The object that an answer of the embedded pair is told in, and what was said beside it.
fn told_of(args: &[&str]) -> (Value, String) {
    let fixed =
        ["run", "--json", "Write Python quicksort", "--device", "cpu", "--max-tokens", "24"];
    let output = forerun(&[&fixed, args].concat());
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{args:?}: {told}");
    (serde_json::from_slice(&output.stdout).expect("one JSON object"), told)
}

#[test]
fn a_drafter_may_have_a_device_of_its_own() {
    for mode in ["chain", "tree"] {
        let asked = ["--spec", mode, "--temp", "0.8", "--seed", "3"];
        let (beside, told) = told_of(&asked);
        assert!(beside["spec"].get("draft_device").is_none(), "{beside}");
        assert!(!told.contains("copies of the embedding table"), "{told}");
        for apart in [["--draft-device", "cpu"], ["--place", "draft=cpu"]] {
            let (same, told) = told_of(&[&asked[..], &apart].concat());
            assert_eq!(same["ids"], beside["ids"], "{mode}");
            assert_eq!(same["spec"]["accept_lengths"], beside["spec"]["accept_lengths"], "{mode}");
            assert_eq!(same["spec"]["draft_device"], "cpu");
            assert!(told.contains("copies of the embedding table"), "{told}");
        }
    }
    // Memory is counted where it is taken.
    let limited = ["--ctx", "512", "--device-memory", "200MiB", "--draft-device", "cpu"];
    let (_, told) = told_of(&limited);
    assert!(told.contains("the drafter on cpu "), "{told}");
}

#[test]
fn a_device_that_no_drafter_can_have_is_refused() {
    fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["run", "x", "--device", "cpu"], args].concat()
    }
    let both = run(&["--draft-device", "cpu", "--place", "draft=cuda:1"]);
    let told = refused(&both);
    assert!(told.contains("`--place draft=cuda:1` say different things"), "{told}");
    let nobody = refused(&run(&["--draft-device", "cpu", "--draft", "none"]));
    assert!(nobody.contains("`--draft-device cpu`: there is no drafter"), "{nobody}");
    assert!(nobody.contains("the MTP block shares the target's weights"), "{nobody}");
    for word in ["auto", "gpu"] {
        let told = misunderstood(&run(&["--draft-device", word]));
        assert!(told.contains("cpu, cuda or cuda:N expected"), "{told}");
    }
    let beyond = refused(&run(&["--draft-device", "cuda:99"]));
    assert!(beyond.contains("`--draft-device cuda:99`"), "{beyond}");
}

#[test]
fn experts_are_counted_for_copies_to_begin_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    let (out, other) = (path("counts.json"), path("other.json"));
    let asked = ["--suite", "code", "--per-suite", "1", "--max-tokens", "8", "--out", &out];
    let counted = forerun(&[&["bench", "experts", "--device", "cpu"], &MOE[..], &asked].concat());
    let told = String::from_utf8(counted.stdout).expect("text");
    assert!(counted.status.success() && told.contains("60 % of a layer's 16 experts"), "{told}");
    let text = std::fs::read_to_string(&out).expect("the file");
    let counts: Value = serde_json::from_str(&text).expect("JSON");
    // Every token that was read or written went to four experts of each layer, but the last one.
    let tokens = counts["tokens"].as_u64().expect("tokens");
    let layers = counts["layers"].as_array().expect("layers");
    assert!(!layers.is_empty());
    for layer in layers {
        let counts = layer.as_array().expect("experts").iter().map(|n| n.as_u64().expect("count"));
        assert_eq!(counts.sum::<u64>(), 4 * (tokens - 1), "{layer}");
    }
    // They change no token, and what is not the model's is refused.
    let (plain, _) = answer(&[]);
    let (ids, told) = answer(&["--expert-counts", &out]);
    assert_eq!(ids, plain);
    assert!(told.contains("`--expert-counts` changes nothing"), "{told}");
    let fixed = ["run", "x", "--device", "cpu", "--expert-counts"];
    std::fs::write(&other, r#"{"model": "m", "tokens": 1, "layers": [[1, 2]]}"#).expect("a file");
    let told = refused(&[&fixed[..], &[other.as_str()], &MOE[..]].concat());
    assert!(told.contains("counts of 2 in 1 layers, the model has 16 experts in"), "{told}");
    std::fs::write(&other, "[]").expect("a file");
    let told = refused(&[&fixed[..], &[other.as_str()], &MOE[..]].concat());
    assert!(told.contains("not counts of experts"), "{told}");
    let told = refused(&[&fixed[..], &[&out]].concat());
    assert!(told.contains("the model has no experts"), "{told}");
}
