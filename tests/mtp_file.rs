//! A target whose next-token block lies in a file of its own, through the program.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use formats::gguf::{Gguf, Header, Overwrite, Writer};
use program::{forerun, parsed, refused};
use serde_json::Value;
use std::path::Path;

const TARGET: &str = "models/dense/target-Q4_K_M.gguf";
const ASKED: [&str; 6] = ["Write Python quicksort", "--no-think", "--device", "cpu", "--temp", "0"];

/// Copies the tensors that are wanted, under the same keys but for the counts of blocks.
fn write(path: &Path, wanted: impl Fn(&str) -> bool, blocks: u32, mtp_blocks: u32) {
    let source = Gguf::open(Path::new(TARGET)).unwrap();
    let mut header = Header::new("qwen35");
    let counts = ["qwen35.block_count", "qwen35.nextn_predict_layers"];
    let kept = source.metadata().skip(1).filter(|(key, _)| !counts.contains(key));
    kept.for_each(|(key, value)| header.entries.copy(key, value));
    header.entries.u32(counts[0], blocks);
    header.entries.u32(counts[1], mtp_blocks);
    let tensors: Vec<_> = source.tensors().iter().filter(|t| wanted(&t.name)).collect();
    tensors.iter().for_each(|t| header.tensor(&t.name, t.ty, &t.shape));
    let writer = Writer::create(path, &header, Overwrite::Refuse).unwrap();
    for (index, tensor) in tensors.iter().enumerate() {
        writer.write_at(index, 0, source.tensors().data(tensor)).unwrap();
    }
    writer.finish().unwrap();
}

fn run(args: &[&str]) -> Value {
    parsed(&[&["run", "--json"], &ASKED[..], args].concat())
}

#[test]
fn a_block_of_its_own_file_drafts_like_the_one_inside() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("apart");
    std::fs::create_dir(&folder).unwrap();
    let (target, mtp) = (folder.join("target.gguf"), temp.path().join("mtp-target.gguf"));
    write(&target, |name| !name.starts_with("blk.8."), 8, 0);
    let is_block = |name: &str| name.starts_with("blk.8.") || name == "token_embd.weight";
    write(&mtp, is_block, 9, 1);
    let (target, mtp) = (target.to_str().unwrap(), mtp.to_str().unwrap());

    let inside = run(&["--model", TARGET, "--spec", "mtp"]);
    let given = run(&["--model", target, "--draft", mtp, "--spec", "mtp"]);
    assert_eq!(given["ids"], inside["ids"]);
    assert_eq!(given["spec"]["accept_lengths"], inside["spec"]["accept_lengths"]);
    assert!(inside["spec"]["mean_accept_length"].as_f64() > Some(1.0), "{inside}");

    // Alone the target has none; with the file beside it, it is found and said.
    let alone = refused(&["run", "x", "--model", target, "--device", "cpu", "--spec", "mtp"]);
    assert!(alone.contains("MTP"), "{alone}");
    std::fs::copy(mtp, folder.join("mtp-target.gguf")).unwrap();
    let args = [&["run"], &ASKED[..], &["--model", target, "--spec", "mtp"]].concat();
    let found = forerun(&args);
    let said = String::from_utf8(found.stderr).unwrap();
    assert!(said.contains("found the target's MTP block beside it: "), "{said}");
    let text = inside["text"].as_str().unwrap();
    assert_eq!(String::from_utf8(found.stdout).unwrap().trim_end(), text.trim_end());

    let found = parsed(&["inspect", mtp, "--json"]);
    assert_eq!(found["kind"], "MTP block");
    assert!(refused(&["run", "x", "--model", mtp]).contains("give it as `--draft`"));
}
