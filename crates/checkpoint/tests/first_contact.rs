//! Things that people name and that are no model, each with the sentence that helps.

mod support;

use checkpoint::{Drafter, Overrides, Source, Target};
use formats::BlockType;
use formats::gguf::Header;
use serde_json::json;
use std::path::Path;
use support::*;

/// The sentence a path is refused with, its folder shortened to `T`.
fn sentence(path: &Path, temp: &Path) -> String {
    let found = Source::open(path).map_or_else(|error| error.to_string(), |_| "opened".to_owned());
    found.replace(&temp.display().to_string(), "T")
}

#[test]
fn files_of_other_kinds_are_called_what_they_are() {
    let pickle = "pickles can run code and are not read; get the model as safetensors or GGUF";
    let unpack = "unpack it and name what is inside";
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 16500000000\n";
    let page = "its address was that of a page about the file; on the Hub the file itself is at \
                `/resolve/` instead of `/blob/`";
    let cases: [(&str, &[u8], String); 15] = [
        (
            "model.gguf",
            pointer.as_bytes(),
            "this is a Git LFS pointer to a file of 16.5 GB, not the file: fetch it with `git lfs \
             pull`"
                .into(),
        ),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\n",
            "this is a Git LFS pointer to a file, not the file: fetch it with `git lfs pull`"
                .into(),
        ),
        ("model.gguf", b"<!DOCTYPE html><html>", format!("this is a web page: {page}")),
        ("model.gguf", b"\n  <html lang=en>", format!("this is a web page: {page}")),
        ("model.zip", b"PK\x03\x04", format!("this is a zip archive: {unpack}")),
        ("model.gguf", b"PK\x03\x04", format!("this is a zip archive: {unpack}")),
        ("pytorch_model.bin", b"PK\x03\x04", format!("this is a PyTorch checkpoint: {pickle}")),
        ("old.bin", b"\x80\x02}q", format!("this is a Python pickle: {pickle}")),
        ("model.tar.gz", b"\x1f\x8b\x08", format!("this is a gzip archive: {unpack}")),
        ("model.zst", b"\x28\xb5\x2f\xfd", format!("this is a zstd archive: {unpack}")),
        ("model.7z", b"7z\xbc\xaf\x27\x1c", format!("this is a 7z archive: {unpack}")),
        (
            "model.bin",
            b"lmgg\x01\0\0\0",
            "this is a GGML file from before GGUF: get the model as GGUF".into(),
        ),
        (
            "config.json",
            b"{\"architectures\": []}",
            "this is a JSON file: name the folder that it lies in".into(),
        ),
        ("model.gguf", b"", "this is an empty file: its download never began; get it again".into()),
        (
            "model.gguf",
            b"hello",
            "neither GGUF nor safetensors: the file starts with `hello`; name a GGUF file or a \
             Hugging Face folder"
                .into(),
        ),
    ];
    for (name, bytes, expected) in cases {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(sentence(&path, temp.path()), expected, "{name}");
    }
}

#[test]
fn ggufs_that_are_parts_of_something_else() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    let merge = "merge it into its model first (PEFT's `merge_and_unload`, or llama.cpp's \
                 `llama-export-lora`), and name the result";
    let cases = [
        (
            "clip",
            "mmproj",
            1,
            "this is the vision part of a model (mmproj): Forerun reads text; name the model's own \
             file"
                .to_owned(),
        ),
        ("qwen35", "adapter", 1, format!("this is a LoRA adapter: {merge}")),
        (
            "qwen35",
            "imatrix",
            1,
            "this is an importance matrix: it helps to quantise a model; name the model".to_owned(),
        ),
        (
            "qwen35",
            "model",
            0,
            "this is a GGUF without weights: it has a vocabulary or keys alone; get the model's \
             own file"
                .to_owned(),
        ),
    ];
    for (arch, kind, tensors, expected) in cases {
        let mut header = Header::new(arch);
        header.entries.string("general.type", kind);
        (0..tensors).for_each(|_| header.tensor("x", BlockType::F32, &[2]));
        sparse_gguf(&path, &header);
        assert_eq!(sentence(&path, temp.path()), expected, "{kind}");
    }
    let mut header = Header::new("llama");
    header.tensor("x", BlockType::F32, &[2]);
    sparse_gguf(&path, &header);
    assert_eq!(
        Target::open(&path).unwrap_err().to_string(),
        "`llama` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash drafters are"
    );
}

#[test]
fn downloads_that_were_cut_short_say_how_much_is_there() {
    let temp = tempfile::tempdir().unwrap();
    let rest = "its download was cut short; resume it, or get it again";
    let gguf = temp.path().join("target.gguf");
    let whole = std::fs::read(dense_target()).unwrap();
    std::fs::write(&gguf, &whole[..whole.len() / 2]).unwrap();
    let (half, all) = (whole.len() as f64 / 2e6, whole.len() as f64 / 1e6);
    // The padding after the last tensor is no part of it.
    assert_eq!(
        sentence(&gguf, temp.path()),
        format!("only {half:.1} of {all:.1} MB of the file are there: {rest}")
    );
    let file = temp.path().join("draft.safetensors");
    write_safetensors(&file, &numbered(SMALL.tensors()));
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 4]).unwrap();
    let (part, all) = (bytes.len() as f64 / 4e3, bytes.len() as f64 / 1e3);
    assert_eq!(
        sentence(&file, temp.path()),
        format!("only {part:.1} of {all:.1} kB of the file are there: {rest}")
    );
    // In a folder the file is named too.
    std::fs::rename(&file, temp.path().join("model.safetensors")).unwrap();
    std::fs::remove_file(&gguf).unwrap();
    std::fs::write(temp.path().join("config.json"), "{}").unwrap();
    assert_eq!(
        sentence(temp.path(), temp.path()),
        format!("T/model.safetensors: only {part:.1} of {all:.1} kB of the file are there: {rest}")
    );
}

#[test]
fn folders_and_what_is_in_them() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let put = |name: &str, bytes: usize| {
        std::fs::File::create(folder.join(name)).unwrap().set_len(bytes as u64).unwrap();
    };
    assert_eq!(
        sentence(folder, folder),
        "no model lies in T: it has neither a GGUF nor a `config.json`"
    );
    // One model, and what belongs to it.
    std::fs::copy(dense_target(), folder.join("model-Q4_K_M.gguf")).unwrap();
    put("mmproj-F16.gguf", 10);
    put("mtp-model.gguf", 10);
    assert_eq!(sentence(folder, folder), "opened");
    put("model-BF16-00001-of-00002.gguf", 30_000_000_000);
    put("model-BF16-00002-of-00002.gguf", 24_000_000_000);
    put("model-Q8_0.gguf", 28_600_000_000);
    let size = std::fs::metadata(dense_target()).unwrap().len() as f64 / 1e6;
    assert_eq!(
        sentence(folder, folder),
        format!(
            "3 models lie here; name one of them, such as `model-Q4_K_M.gguf`: \
             model-BF16-00001-of-00002.gguf (54.0 GB), model-Q4_K_M.gguf ({size:.1} MB), \
             model-Q8_0.gguf (28.6 GB)"
        )
    );

    let lora = tempfile::tempdir().unwrap();
    std::fs::write(lora.path().join("adapter_config.json"), "{}").unwrap();
    assert!(sentence(lora.path(), lora.path()).starts_with("this is a LoRA adapter: merge it"));
    let file = lora.path().join("adapter_model.safetensors");
    let name = "base_model.model.layers.0.self_attn.q_proj.lora_A.weight";
    sparse_safetensors(&file, "BF16", &[(name.into(), vec![4, 4])]);
    assert!(sentence(&file, lora.path()).starts_with("this is a LoRA adapter: merge it"));

    let torch = tempfile::tempdir().unwrap();
    std::fs::write(torch.path().join("pytorch_model-00001-of-00002.bin"), "PK").unwrap();
    assert!(
        sentence(torch.path(), torch.path()).starts_with("this is a folder of PyTorch checkpoints")
    );

    let clone = tempfile::tempdir().unwrap();
    std::fs::write(clone.path().join("config.json"), json!({}).to_string()).unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3850000000\n";
    std::fs::write(clone.path().join("model.safetensors"), pointer).unwrap();
    assert_eq!(
        sentence(clone.path(), clone.path()),
        "T/model.safetensors: this is a Git LFS pointer to a file of 3.9 GB, not the file: fetch \
         it with `git lfs pull`"
    );
}

#[test]
fn a_file_without_a_telling_name_is_told_by_its_content() {
    // As they lie among the blobs of a cache.
    let temp = tempfile::tempdir().unwrap();
    let blob = temp.path().join("9f2c81");
    write_safetensors(&blob, &numbered(SMALL.tensors()));
    assert_eq!(sentence(&blob, temp.path()), "opened");
}

#[test]
fn the_places_a_path_can_lead_to() {
    let temp = tempfile::tempdir().unwrap();
    let sentence = |path: &std::path::Path| {
        Drafter::open(path, &Overrides::default(), None)
            .unwrap_err()
            .to_string()
            .replace(&temp.path().display().to_string(), "T")
    };
    assert_eq!(
        sentence(&temp.path().join("absent")),
        "T/absent: No such file or directory (os error 2)"
    );
    assert_eq!(
        sentence(temp.path()),
        "no model lies in T: it has neither a GGUF nor a `config.json`"
    );
    std::fs::write(temp.path().join("config.json"), "[1]").unwrap();
    assert_eq!(
        sentence(temp.path()),
        "no `model.safetensors` and no `model.safetensors.index.json` in T"
    );
    sparse_safetensors(&temp.path().join("model.safetensors"), "BF16", &SMALL.tensors());
    assert_eq!(sentence(temp.path()), "configuration is not a JSON object");
    std::fs::write(temp.path().join("config.json"), "{").unwrap();
    assert_eq!(
        sentence(temp.path()),
        "T/config.json: not the JSON it should be (EOF while parsing an object at line 1 column \
         1): get it again"
    );
    std::fs::write(temp.path().join("model.bin"), "\x01\x02 unheard of").unwrap();
    let unknown = "neither GGUF nor safetensors: the file starts with `\\x01\\x02 unhea`; \
                   name a GGUF file or a Hugging Face folder";
    assert_eq!(sentence(&temp.path().join("model.bin")), unknown);
    std::fs::write(temp.path().join("config.json"), r#"{"architectures":["LlamaForCausalLM"]}"#)
        .unwrap();
    sparse_safetensors(&temp.path().join("model.safetensors"), "BF16", &[("x".into(), vec![1])]);
    assert_eq!(
        sentence(temp.path()),
        "`LlamaForCausalLM` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash \
         drafters are"
    );
}
