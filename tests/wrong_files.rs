//! Wrong files given as `--model` or `--draft`: each is called what it is, with what to do. What
//! words that are no files mean is in `names.rs`.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::refused;
use std::path::Path;
use tempfile::TempDir;

const POINTER: &[u8] =
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 17612564704\n";

/// Writes a file and the folders above it.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn files_that_are_no_model_are_called_what_they_are() {
    let folder = TempDir::new().unwrap();
    let target = std::fs::read("models/dense/target-Q4_K_M.gguf").unwrap();
    let cases: &[(&str, &[u8], &str)] = &[
        ("pointer.gguf", POINTER, "this is a Git LFS pointer to a file of 17.6 GB, not the file"),
        ("page.gguf", b"<!DOCTYPE html><html>", "this is a web page: "),
        ("packed.gguf", b"PK\x03\x04rest", "this is a zip archive: unpack it"),
        ("packed.gz", b"\x1f\x8b\x08rest", "this is a gzip archive: unpack it"),
        ("packed.zst", b"\x28\xb5\x2f\xfdrest", "this is a zstd archive: unpack it"),
        ("pytorch_model.bin", b"PK\x03\x04rest", "this is a PyTorch checkpoint: pickles can run"),
        ("old.bin", b"tjggrest", "this is a GGML file from before GGUF: get the model as GGUF"),
        ("empty.gguf", b"", "this is an empty file: its download never began"),
        ("config.json", b"{\"a\": 1}", "this is a JSON file: name the folder that it lies in"),
        ("cut.gguf", &target[..target.len() / 2], "its download was cut short; resume it"),
        ("notes.txt", b"hello there", "neither GGUF nor safetensors"),
    ];
    for (name, bytes, sentence) in cases {
        put(folder.path(), name, bytes);
        let path = folder.path().join(name);
        said(path.to_str().unwrap(), sentence);
    }
}

#[test]
fn folders_that_are_no_model_are_called_what_they_are() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "adapter/adapter_config.json", b"{}");
    put(folder.path(), "pickles/pytorch_model-00001-of-00002.bin", b"x");
    put(folder.path(), "nothing/README.md", b"x");
    put(folder.path(), "several/a-Q4_K_M.gguf", b"GGUF");
    put(folder.path(), "several/a-Q8_0.gguf", b"GGUF");
    let cases = [
        ("adapter", "this is a LoRA adapter: merge it into its model first"),
        ("pickles", "this is a folder of PyTorch checkpoints: "),
        ("nothing", "no `config.json` in "),
        ("several", "a-Q4_K_M.gguf"),
    ];
    for (name, sentence) in cases {
        said(folder.path().join(name).to_str().unwrap(), sentence);
    }
}

/// That both flags refuse a path with one message that has the sentence in it.
fn said(path: &str, sentence: &str) {
    for flag in ["--model", "--draft"] {
        let message = refused(&["run", "Hi", flag, path]);
        assert!(message.contains(sentence), "{flag} {path}: {message}");
        assert!(message.starts_with("forerun: "), "{message}");
    }
}
