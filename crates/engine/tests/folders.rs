//! Quantised Hugging Face folders: the tiny targets in every form of them, made here from the
//! layouts that the packages publish, read as the numbers that were meant and run in every mode.

#[path = "../../checkpoint/tests/support/mod.rs"]
#[allow(clippy::duplicate_mod)]
mod checkpoints;
#[path = "support/quantise.rs"]
mod quantise;
mod support;

use checkpoint::Target;
use checkpoints::hf::{Tensor, config, to_hf};
use compute::{Activations, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Spec};
use formats::BlockType;
use formats::gguf::Gguf;
use quantise::{Scheme, Stored, plain, quantise};
use serde_json::Value;
use support::{CHAIN, answer, cpu, pair};
use tempfile::TempDir;

/// A folder of these tensors.
fn folder(config: &Value, tensors: &[Stored]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = serde_json::json!({"dtype": tensor.dtype, "shape": tensor.shape,
            "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header).expect("JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    std::fs::write(folder.path().join("model.safetensors"), bytes).expect("a file");
    folder
}

/// The linear layers in a scheme, everything else as it is; and the same model as plain numbers.
fn folders(tensors: Vec<Tensor>, moe: bool, scheme: Scheme) -> [TempDir; 2] {
    let (mut stored, mut meant) = (Vec::new(), Vec::new());
    for (name, shape, values) in tensors {
        let module = name.strip_suffix(".weight").filter(|m| m.ends_with("_proj"));
        match module {
            Some(module) if shape[1].is_multiple_of(128) => {
                let (parts, numbers) = quantise(scheme, module, [shape[0], shape[1]], &values);
                stored.extend(parts);
                meant.push(plain(&name, &shape, &numbers));
            }
            _ => {
                stored.push(plain(&name, &shape, &values));
                meant.push(plain(&name, &shape, &values));
            }
        }
    }
    let mut said = config(moe);
    said["quantization_config"] = scheme.config();
    [folder(&said, &stored), folder(&config(moe), &meant)]
}

/// Reads both and compares every number.
fn same_numbers([quantised, meant]: &[TempDir; 2], scheme: Scheme) -> Target {
    let target = Target::open(quantised.path()).unwrap_or_else(|e| panic!("{scheme:?}: {e}"));
    let meant = Target::open(meant.path()).expect("plain numbers");
    let mut blocks = 0;
    for weight in target.weights.iter() {
        let other = meant.weights.get(&weight.name).expect("the same model");
        let (a, b) = (target.weights.decode(weight), meant.weights.decode(other));
        assert!(a.iter().zip(&b).all(|(a, b)| a == b), "{scheme:?} {}", weight.name);
        blocks += usize::from(weight.ty == scheme.ty());
    }
    assert!(blocks > 20, "{scheme:?}: {blocks} weights are {}", scheme.ty());
    target
}

#[test]
fn every_form_reads_as_the_numbers_that_were_meant_and_runs_in_every_mode() {
    let source = Gguf::open(&checkpoints::dense_target()).expect("the tiny target");
    let pair = pair("dense");
    let prompt = &pair.prompts("math", 1)[0];
    for scheme in Scheme::ALL {
        let folders = folders(to_hf(&source, "model.", 8, false), false, scheme);
        let target = same_numbers(&folders, scheme);
        let drafter = (&pair.drafter.config, &pair.drafter.weights as &dyn engine::WeightSource);
        let weights = (&target.config, &target.weights as &dyn engine::WeightSource);
        let backend = cpu(2, Activations::Int8);
        let mut engine = Engine::load(backend, weights, Some(drafter), KvType::F16, Spec::Off)
            .unwrap_or_else(|e| panic!("{scheme:?}: {e}"));
        let sampling = Sampling { temperature: 0.7, seed: 3, ..Sampling::default() };
        let (expected, _) = answer(&mut engine, prompt, &sampling, 24);
        assert!(expected.len() > 4, "{scheme:?}: {expected:?}");
        let tree = Spec::Tree { block: 16, budget: 22 };
        for mode in [CHAIN, tree, Spec::Mtp { depth: 3 }, Spec::Auto { block: 16, budget: 63 }] {
            engine.set_spec(mode);
            let (tokens, _) = answer(&mut engine, prompt, &sampling, 24);
            assert_eq!(tokens, expected, "{scheme:?} {mode:?}");
        }
    }
}

#[test]
fn experts_one_by_one_are_quantised_too() {
    let source = Gguf::open(&checkpoints::moe_target()).expect("the tiny mixture");
    for scheme in [Scheme::Fp8Squares, Scheme::Awq, Scheme::Nvfp4Modelopt] {
        let target =
            same_numbers(&folders(to_hf(&source, "model.", 4, true), true, scheme), scheme);
        let experts = target.weights.get("blk.0.ffn_gate_exps.weight").expect("experts");
        assert_eq!(experts.ty, scheme.ty());
    }
}

/// GGUF has none of our own types; a folder's are told apart.
#[test]
fn types_of_folders_have_names_of_their_own() {
    for scheme in Scheme::ALL {
        assert!(scheme.ty() == BlockType::MXFP4 || scheme.ty().ggml_id().is_none());
    }
}
