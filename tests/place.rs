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
        assert_eq!(answer(&[&asked[..], &["--place", place]].concat()).0, whole, "{place}");
    }
    // What is left of the memory is for copies of experts.
    let memory = format!("{:.1}MB", whole_megabytes() + 10.0);
    let hot = ["--place", "experts=hot", "--device-memory", &memory];
    let (ids, told) = answer(&[&asked[..], &hot].concat());
    assert_eq!(ids, whole);
    assert!(told.contains("copies of experts "), "{told}");
}

#[test]
fn what_cannot_be_is_refused() {
    fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["run", "x", "--device", "cpu"], args].concat()
    }
    let too_little = refused(&run(&[&MOE[..], &["--device-memory", "1MiB"]].concat()));
    assert!(too_little.contains("the model does not fit on the device"), "{too_little}");
    for place in ["experts=host", "experts=hot"] {
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
