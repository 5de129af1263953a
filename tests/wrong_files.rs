//! Over forty wrong things given as `--model` or `--draft`: each is called what it is, with what to
//! do, in exactly these words. What words that are no files mean is in `names.rs`.

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use formats::BlockType;
use formats::gguf::{Header, Overwrite, Writer};
use program::refused;
use serde_json::{Value, json};
use tempfile::TempDir;

const TARGET: &str = "models/dense/target-Q4_K_M.gguf";
const DRAFTER: &str = "models/dense/draft-Q8_0.gguf";
const POINTER: &[u8] =
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 17612564704\n";
const UNPACK: &str = "unpack it and name what is inside";
const PICKLES: &str = "pickles can run code and are not read; get the model as safetensors or GGUF";
const MERGE: &str = "merge it into its model first (PEFT's `merge_and_unload`, or llama.cpp's \
                     `llama-export-lora`), and name the result";
const AGAIN: &str = "its download was cut short; resume it, or get it again";

/// A folder of wrong things.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Writes a file and the folders above it.
    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// A Hugging Face folder with this configuration and one small tensor.
    fn put_folder(&self, name: &str, config: &Value) {
        self.put(&format!("{name}/config.json"), config.to_string().as_bytes());
        let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  "#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
        self.put(&format!("{name}/model.safetensors"), &file);
    }

    /// A GGUF of that architecture and kind with so many tensors of nothing.
    fn put_gguf(&self, name: &str, architecture: &str, kind: &str, tensors: usize) {
        let mut header = Header::new(architecture);
        header.entries.string("general.type", kind);
        (0..tensors).for_each(|_| header.tensor("x", BlockType::F32, &[2]));
        let path = self.0.path().join(name);
        Writer::create(&path, &header, Overwrite::Replace).unwrap().finish().unwrap();
    }

    /// What a flag says to a thing, the desk shortened to `T`.
    fn said(&self, flag: &str, name: &str) -> String {
        let path = self.0.path().join(name);
        let message = refused(&["run", "Hi", flag, path.to_str().unwrap()]);
        message.replace(self.0.path().to_str().unwrap(), "T")
    }

    /// That both flags refuse a thing with this sentence behind its name and no other word.
    fn refuses(&self, name: &str, sentence: &str) {
        for flag in ["--model", "--draft"] {
            assert_eq!(self.said(flag, name), format!("forerun: T/{name}: {sentence}\n"), "{flag}");
        }
    }

    /// The same where the sentence itself says where.
    fn refuses_in(&self, name: &str, sentence: &str) {
        for flag in ["--model", "--draft"] {
            assert_eq!(self.said(flag, name), format!("forerun: {sentence}\n"), "{flag}");
        }
    }
}

#[test]
fn files_of_other_kinds_are_called_what_they_are() {
    let desk = Desk::new();
    let web = "this is a web page: its address was that of a page about the file; on the Hub the \
               file itself is at `/resolve/` instead of `/blob/`";
    let message = "this is a server's error message in place of a file: its address was wrong, or \
                   not open to all; `forerun pull` fetches from the Hub with your token";
    let archive = |kind: &str| format!("this is {kind} archive: {UNPACK}");
    let neither = |start: &str| {
        format!(
            "neither GGUF nor safetensors: the file starts with `{start}`; name a GGUF file or a \
             Hugging Face folder"
        )
    };
    let cases: &[(&str, &[u8], String)] = &[
        (
            "pointer.gguf",
            POINTER,
            "this is a Git LFS pointer to a file of 17.6 GB, not the file: fetch it with `git lfs \
             pull`"
                .into(),
        ),
        ("page.gguf", b"<!DOCTYPE html><html>", web.into()),
        ("absent.gguf", b"Entry not found", message.into()),
        ("gated.gguf", b"{\"error\":\"Access denied\"}", message.into()),
        ("model.zip", b"PK\x03\x04rest", archive("a zip")),
        ("model.tar.gz", b"\x1f\x8b\x08rest", archive("a gzip")),
        ("model.zst", b"\x28\xb5\x2f\xfdrest", archive("a zstd")),
        ("model.xz", b"\xfd7zXZ\x00rest", archive("an xz")),
        ("model.7z", b"7z\xbc\xaf\x27\x1crest", archive("a 7z")),
        ("model.rar", b"Rar!\x1a\x07rest", archive("a RAR")),
        (
            "pytorch_model.bin",
            b"PK\x03\x04rest",
            format!("this is a PyTorch checkpoint: {PICKLES}"),
        ),
        ("old.pt", b"\x80\x02}q", format!("this is a Python pickle: {PICKLES}")),
        (
            "old.bin",
            b"tjggrest",
            "this is a GGML file from before GGUF: get the model as GGUF".into(),
        ),
        (
            "model.h5",
            b"\x89HDF\r\n",
            "this is an HDF5 file: get the model as safetensors or GGUF".into(),
        ),
        ("empty.gguf", b"", "this is an empty file: its download never began; get it again".into()),
        (
            "config.json",
            b"{\"a\": 1}",
            "this is a JSON file: name the folder that it lies in".into(),
        ),
        (
            "Modelfile",
            b"FROM qwen3.6\n",
            "this is a Modelfile of Ollama's: name what stands behind FROM, or the model by \
             `ollama:NAME`"
                .into(),
        ),
        ("notes.txt", b"hello there", neither("hello th")),
        ("picture.png", b"\x89PNG\r\n\x1a\n", neither("\\x89PNG\\r\\n\\x1a\\n")),
        ("program", b"\x7fELF\x02\x01\x01\x00", neither("\\x7fELF\\x02\\x01\\x01\\x00")),
    ];
    for (name, bytes, sentence) in cases {
        desk.put(name, bytes);
        desk.refuses(name, sentence);
    }
}

#[test]
fn downloads_that_were_cut_short_say_so() {
    let desk = Desk::new();
    let target = std::fs::read(TARGET).unwrap();
    let (half, all) = (target.len() as f64 / 2e6, target.len() as f64 / 1e6);
    desk.put("half.gguf", &target[..target.len() / 2]);
    desk.refuses(
        "half.gguf",
        &format!("only {half:.1} of {all:.1} MB of the file are there: {AGAIN}"),
    );
    desk.put("beginning.gguf", &target[..5000]);
    desk.refuses(
        "beginning.gguf",
        &format!("only 5.0 kB of the file are there, and they end within its header: {AGAIN}"),
    );
    let header = br#"{"a":{"dtype":"F32","shape":[500],"data_offsets":[0,2000]}}     "#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 928]].concat();
    desk.put("half.safetensors", &file);
    desk.refuses("half.safetensors", &format!("only 1.0 of 2.1 kB of the file are there: {AGAIN}"));
}

#[test]
fn ggufs_that_are_no_model_or_another_one() {
    let desk = Desk::new();
    let cases = [
        (
            "mmproj.gguf",
            ("clip", "mmproj", 1),
            "this is the vision part of a model (mmproj): Forerun reads text; name the model's own \
             file"
                .to_owned(),
        ),
        ("lora.gguf", ("qwen35", "adapter", 1), format!("this is a LoRA adapter: {MERGE}")),
        (
            "imatrix.gguf",
            ("qwen35", "imatrix", 1),
            "this is an importance matrix: it helps to quantise a model; name the model".to_owned(),
        ),
        (
            "vocabulary.gguf",
            ("qwen35", "model", 0),
            "this is a GGUF without weights: it has a vocabulary or keys alone; get the model's \
             own file"
                .to_owned(),
        ),
        (
            "llama.gguf",
            ("llama", "model", 1),
            "`llama` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash drafters are"
                .to_owned(),
        ),
    ];
    for (name, (architecture, kind, tensors), sentence) in cases {
        desk.put_gguf(name, architecture, kind, tensors);
        desk.refuses(name, &sentence);
    }
    desk.put("version.gguf", b"GGUF\x01\0\0\0aaaaaaaabbbbbbbb");
    desk.refuses("version.gguf", "GGUF version 1 is not read; versions 2 and 3 are");
    desk.put("endian.gguf", b"GGUF\0\0\0\x03aaaaaaaabbbbbbbb");
    desk.refuses("endian.gguf", "big-endian GGUF is not read (version field 0x03000000)");

    // A type that is newer than this program: the number behind the name and the two dimensions.
    let mut target = std::fs::read(TARGET).unwrap();
    let name = b"token_embd.weight";
    let at = target.windows(name.len()).position(|bytes| bytes == name).unwrap() + name.len();
    target[at + 20..at + 24].copy_from_slice(&41u32.to_le_bytes());
    desk.put("new.gguf", &target);
    desk.refuses(
        "new.gguf",
        "tensor `token_embd.weight`: tensor type `Q1_0` (41) is not supported: get the model in \
         another quantisation, such as Q4_K_M",
    );
}

#[test]
fn folders_that_are_no_model_or_another_one() {
    let desk = Desk::new();
    desk.put("adapter/adapter_config.json", b"{}");
    desk.refuses("adapter", &format!("this is a LoRA adapter: {MERGE}"));
    desk.put("pickles/pytorch_model-00001-of-00002.bin", b"x");
    desk.refuses("pickles", &format!("this is a folder of PyTorch checkpoints: {PICKLES}"));
    desk.put("nothing/README.md", b"x");
    desk.refuses_in(
        "nothing",
        "no model lies in T/nothing: it has neither a GGUF nor a `config.json`",
    );
    desk.put("several/a-Q4_K_M.gguf", &[b'x'; 1000]);
    desk.put("several/a-Q8_0.gguf", &[b'x'; 2000]);
    desk.refuses(
        "several",
        "2 models lie here; name one of them, such as `a-Q4_K_M.gguf`: a-Q4_K_M.gguf (1.0 kB), \
         a-Q8_0.gguf (2.0 kB)",
    );
    desk.put_folder("llama", &json!({"architectures": ["LlamaForCausalLM"]}));
    desk.refuses(
        "llama",
        "`LlamaForCausalLM` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash \
         drafters are",
    );
    desk.put("bare/config.json", br#"{"architectures": ["Qwen3_5ForCausalLM"]}"#);
    desk.refuses("bare", "no `model.safetensors` and no `model.safetensors.index.json` in T/bare");
    desk.put_folder("broken", &json!({}));
    desk.put("broken/config.json", b"{");
    desk.refuses_in(
        "broken",
        "T/broken/config.json: not the JSON it should be (EOF while parsing an object at line 1 \
         column 1): get it again",
    );
    desk.put_folder("clone", &json!({}));
    desk.put("clone/model.safetensors", POINTER);
    desk.refuses(
        "clone",
        "T/clone/model.safetensors: this is a Git LFS pointer to a file of 17.6 GB, not the file: \
         fetch it with `git lfs pull`",
    );
}

/// Folders whose method is not read, and relatives of a drafter: by the flag that they are for.
#[test]
fn models_and_drafters_of_other_methods_are_refused_by_name() {
    let desk = Desk::new();
    let read = "(read are `fp8`, `modelopt`, `compressed-tensors`, `awq`, `gptq`; a GGUF of the \
                model, or the folder before it was quantised, would do)";
    let architectures = ["Qwen3_5ForCausalLM"];
    let target =
        |method: Value| json!({"architectures": architectures, "quantization_config": method});
    let cases = [
        (json!({"quant_method": "bitsandbytes"}), "bitsandbytes", ".quant_method"),
        (json!({"quant_method": "exl2"}), "exl2", ".quant_method"),
        (json!({"group_size": 64, "bits": 4}), "mlx", ""),
    ];
    for (quantisation, method, key) in cases {
        desk.put_folder(method, &target(quantisation));
        let sentence = format!(
            "forerun: T/{method}: a checkpoint quantised by `{method}` {read} is not supported \
             (`quantization_config{key}`)\n"
        );
        assert_eq!(desk.said("--model", method), sentence);
    }
    let order = json!({"quant_method": "gptq", "bits": 4, "desc_act": true});
    desk.put_folder("order", &target(order));
    assert_eq!(
        desk.said("--model", "order"),
        "forerun: T/order: GPTQ with act-order (quantise with `desc_act` false, or take AWQ) is \
         not supported (`quantization_config.desc_act`)\n"
    );
    let rest = "DFlash, DFlash 2, DSpark and JetSpec drafters are, and a target's own MTP block \
                drafts without any";
    for (architecture, variant) in [
        ("LlamaForCausalLMEagle3", "EAGLE-3"),
        ("PEagleDraftModel", "P-EAGLE"),
        ("DominoDraftModel", "Domino"),
    ] {
        desk.put_folder(variant, &json!({"architectures": [architecture]}));
        let sentence = format!(
            "forerun: T/{variant}: {variant} drafters are not run (architecture \
             `{architecture}`): {rest}\n"
        );
        assert_eq!(desk.said("--draft", variant), sentence);
    }
}

#[test]
fn a_target_and_a_drafter_are_not_taken_for_each_other() {
    assert_eq!(
        refused(&["run", "Hi", "--model", DRAFTER]),
        format!("forerun: {DRAFTER}: this is a drafter, a target was expected\n")
    );
    assert_eq!(
        refused(&["run", "Hi", "--draft", TARGET]),
        format!("forerun: {TARGET}: this is a target, a drafter was expected\n")
    );
}
