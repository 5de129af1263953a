//! The vocabulary of the published models, 248,320 rows, in files that are made here from the tiny
//! pairs: their tokens are the last 4,096, and every row before them is nothing. So each id is
//! beyond what 16 bits hold, and the text has to be the one that the tiny pair writes.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "support/program.rs"]
#[allow(dead_code)]
mod program;

use formats::gguf::{Gguf, Header, Overwrite, Writer};
use http::Server;
use serde_json::{Value, json};
use std::path::Path;

const VOCABULARY: usize = 248_320;
const MOVED: usize = VOCABULARY - 4096;
const QUESTION: &str = "Write Python quicksort";

/// The same model with that vocabulary.
fn widen(source: &Path, to: &Path) {
    let source = Gguf::open(source).expect("a file of the repository");
    let architecture = source.string("general.architecture").expect("a string").expect("a name");
    let mut header = Header::new(architecture);
    for (key, value) in source.metadata().filter(|(key, _)| !key.starts_with("general.")) {
        let entries = &mut header.entries;
        match key {
            "tokenizer.ggml.tokens" => {
                let own = source.strings(key).expect("strings").expect("tokens");
                let others = (0..MOVED).map(|i| format!("<|row_{i}|>"));
                let all: Vec<String> = others.chain(own.into_iter().map(str::to_owned)).collect();
                entries.strings(key, &all);
            }
            "tokenizer.ggml.token_type" => {
                let own = source.integers(key).expect("integers").expect("types");
                let own = own.into_iter().map(|kind| i32::try_from(kind).expect("a type"));
                entries.i32s(key, &std::iter::repeat_n(1, MOVED).chain(own).collect::<Vec<_>>());
            }
            _ if key.starts_with("tokenizer.") && key.ends_with("_token_id") => {
                let id = source.integer(key).expect("an integer").expect("an id");
                entries.u32(key, (MOVED + id) as u32);
            }
            _ => entries.copy(key, value),
        }
    }
    let has_tokens = |shape: &[usize]| shape.len() == 2 && shape[0] == 4096;
    for tensor in source.tensors() {
        let mut shape = tensor.shape.clone();
        if has_tokens(&shape) {
            shape[0] = VOCABULARY;
        }
        header.tensor(&tensor.name, tensor.ty, &shape);
    }
    let writer = Writer::create(to, &header, Overwrite::Replace).expect("a file");
    for (i, tensor) in source.tensors().iter().enumerate() {
        let data = source.tensors().data(tensor);
        // What is not written is zero.
        let first = if has_tokens(&tensor.shape) { data.len() / 4096 * MOVED } else { 0 };
        writer.write_at(i, first as u64, data).expect("a file");
    }
    writer.finish().expect("a file");
}

/// What `forerun run` tells of a text of 32 tokens.
fn answer([target, draft]: &[String; 2], mode: &str) -> Value {
    let model = ["run", "--model", target, "--draft", draft, "--spec", mode, "--ctx", "2048"];
    let how = ["--temp", "0", "--max-tokens", "32", "--json", QUESTION];
    program::parsed(&[&model[..], &how].concat())
}

/// Every mode of the widened pair writes the tiny pair's text, and so does the server.
fn writes_the_same(folder: &str, modes: &[&str]) {
    let place = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let names = ["target-Q4_K_M.gguf", "draft-Q8_0.gguf"];
    let tiny = names.map(|name| root.join(name).display().to_string());
    let wide = names.map(|name| {
        let file = place.path().join(name);
        widen(&root.join(name), &file);
        file.display().to_string()
    });
    let ids = |answer: &Value| -> Vec<u64> {
        let ids = answer["ids"].as_array().expect("ids");
        ids.iter().map(|id| id.as_u64().expect("an id")).collect()
    };
    let expected: Vec<u64> =
        ids(&answer(&tiny, "off")).iter().map(|id| id + MOVED as u64).collect();
    assert!(expected.len() > 20, "{expected:?}");
    for mode in modes {
        assert_eq!(ids(&answer(&wide, mode)), expected, "{folder} {mode}");
    }
    let [target, draft] = &wide;
    let server = Server::start(&["--model", target, "--draft", draft, "--spec", "chain"]);
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": 32, "logprobs": true, "top_logprobs": 3});
    let served = server.chat(&body);
    let alone = Server::start(&["--model", &tiny[0], "--draft", &tiny[1], "--spec", "chain"]);
    let alone = alone.chat(&body);
    assert_eq!(served["choices"][0]["message"], alone["choices"][0]["message"]);
    assert!(served["forerun"]["spec"]["accepted"].as_u64() > Some(3), "{served}");
    assert_eq!(server.get("/v1/models", "").json()["data"][0]["meta"]["n_vocab"], VOCABULARY);
}

#[test]
fn a_dense_model_with_dflash_and_mtp_is_loaded_run_and_served() {
    writes_the_same("models/dense", &["off", "chain", "tree", "mtp", "lookup", "auto"]);
}

#[test]
fn a_mixture_of_experts_with_dflash_is_loaded_run_and_served() {
    writes_the_same("tests/fixtures/moe", &["off", "chain", "tree", "auto"]);
}
