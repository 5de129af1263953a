//! `forerun convert`, through the program.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::{command, forerun};
use std::process::{Command, Output};

const TARGET: &str = "models/dense/target-Q4_K_M.gguf";
const DRAFT: &str = "models/dense/draft-Q8_0.gguf";

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_drafter_is_converted_and_reads_back_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let output = forerun(&["convert", DRAFT, "--out", out, "--type", "bf16", "--target", TARGET]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{out}: 47 tensors, 4.26 MiB to 8.14 MiB, bf16\n")
    );
    let config = |file: &str| {
        let output = forerun(&["inspect", file, "--json"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["config"].take()
    };
    assert_eq!(config(out), config(DRAFT));
}

#[test]
fn a_file_that_is_there_is_kept_without_force() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("out.gguf");
    let out = path.to_str().unwrap();
    std::fs::write(&path, "mine").unwrap();
    let refused = forerun(&["convert", DRAFT, "--out", out, "--type", "q8_0"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(stderr(&refused), format!("forerun: {out} exists; give `--force` to replace it\n"));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    // A conversion that fails leaves it alone even with `--force`.
    let failed = forerun(&["convert", TARGET, "--out", out, "--type", "q8_0", "--force"]);
    assert_eq!(
        stderr(&failed),
        format!("forerun: {TARGET}: this is a target, a drafter was expected\n")
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert!(
        forerun(&["convert", DRAFT, "--out", out, "--type", "q8_0", "--force"]).status.success()
    );
    assert!(std::fs::read(&path).unwrap().starts_with(b"GGUF"));
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
}

#[test]
fn wrong_usage_is_told_apart_from_failure() {
    for args in [&["convert", DRAFT][..], &["convert", DRAFT, "--out", "x", "--type", "q3_k"]] {
        assert_eq!(forerun(args).status.code(), Some(2), "{args:?}");
    }
    // What a file is loaded as is no matter of what is written.
    let loaded = forerun(&[
        "convert",
        DRAFT,
        "--out",
        "absent/x.gguf",
        "--type",
        "q8_0",
        "--draft-type",
        "q4_0",
    ]);
    assert_eq!(loaded.status.code(), Some(2), "{}", stderr(&loaded));
    assert!(stderr(&loaded).contains("unexpected argument '--draft-type'"), "{}", stderr(&loaded));
    let nowhere = forerun(&["convert", DRAFT, "--out", "absent/x.gguf", "--type", "f16"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(stderr(&nowhere).starts_with("forerun: absent/x.gguf: "), "{}", stderr(&nowhere));
}

/// A folder whose configuration forgot theta: an error that says what to do, not 1e6.
#[test]
fn a_missing_theta_stops_the_conversion() {
    let temp = tempfile::tempdir().unwrap();
    sparse_drafter(temp.path(), 64, r#""rope_theta": null"#);
    let folder = temp.path().to_str().unwrap();
    let out = temp.path().join("out.gguf");
    let args = ["convert", folder, "--out", out.to_str().unwrap(), "--type", "f16"];
    let output = forerun(&args);
    assert_eq!(output.status.code(), Some(1));
    let sentence = "nothing in the file says its rope theta: give `--draft-rope-theta` (10000000 \
                    for Qwen3.5 and later)";
    assert_eq!(stderr(&output), format!("forerun: {folder}: {sentence}\n"));
    assert!(!out.exists());
    let output = forerun(&[&args[..], &["--draft-rope-theta", "1e7"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing_behind() {
    let temp = tempfile::tempdir().unwrap();
    let (source, results) = (temp.path().join("source"), temp.path().join("results"));
    std::fs::create_dir(&source).unwrap();
    std::fs::create_dir(&results).unwrap();
    // Two gigabytes of zeros that are not on disk: seconds of work.
    sparse_drafter(&source, 8192, r#""rope_theta": 1e7"#);
    let mut child = command(&["convert", source.to_str().unwrap(), "--type", "q4_k_m", "--out"])
        .arg(results.join("out.gguf"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let started = || std::fs::read_dir(&results).unwrap().count() == 1;
    while !started() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the conversion ended before it began to write"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "forerun: stopped; nothing was written\n");
    assert_eq!(std::fs::read_dir(&results).unwrap().count(), 0);
}

/// A folder with a drafter of two layers, without data on disk.
fn sparse_drafter(folder: &std::path::Path, hidden: usize, theta: &str) {
    let (dim, ffn) = (16, 3 * hidden);
    let mut tensors = vec![
        ("fc".to_owned(), vec![hidden, 2 * hidden]),
        ("hidden_norm".to_owned(), vec![hidden]),
        ("norm".to_owned(), vec![hidden]),
    ];
    for i in 0..2 {
        let parts = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![4 * dim, hidden]),
            ("self_attn.k_proj", vec![2 * dim, hidden]),
            ("self_attn.v_proj", vec![2 * dim, hidden]),
            ("self_attn.o_proj", vec![hidden, 4 * dim]),
            ("self_attn.q_norm", vec![dim]),
            ("self_attn.k_norm", vec![dim]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
        ];
        tensors.extend(parts.map(|(part, shape)| (format!("layers.{i}.{part}"), shape)));
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * 2;
        let tensor =
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("{name}.weight"), tensor);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = folder.join("model.safetensors");
    std::fs::write(&file, [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len((8 + header.len() + end) as u64)
        .unwrap();
    let config = format!(
        r#"{{"architectures": ["DFlashDraftModel"], {theta}, "block_size": 16, "rms_norm_eps": 1e-6,
            "dflash_config": {{"mask_token_id": 9, "target_layer_ids": [1, 5]}}}}"#
    );
    std::fs::write(folder.join("config.json"), config).unwrap();
}
