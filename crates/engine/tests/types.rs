//! The tiny targets in every form that weights have. Quantised Hugging Face folders are made here
//! from the layouts that the packages publish; GGUF files have random blocks of each type. All are
//! read as the numbers that were meant and run in every mode. So does what other programs made of
//! the tiny target, where `FORERUN_FILES` names a folder of it (`scripts/test-files`).

#[path = "../../checkpoint/tests/support/mod.rs"]
#[allow(clippy::duplicate_mod)]
mod checkpoints;
#[path = "support/quantise.rs"]
mod quantise;
mod support;

use checkpoint::Target;
use checkpoints::hf::{Tensor, config, to_hf};
use compute::selftest::{Random, random_blocks};
use compute::{Activations, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Spec, WeightSource};
use formats::gguf::{Gguf, Header, Overwrite, Writer};
use formats::{BlockType, TensorInfo};
use quantise::{Scheme, Stored, plain, quantise};
use serde_json::Value;
use std::path::Path;
use support::{CHAIN, Pair, answer, cpu, pair};
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
        if let [experts, rows, cols] = shape[..]
            && name.contains(".experts.")
        {
            // All experts in one tensor: `NAME`, `NAME_scale` and so on, with an axis in front.
            let (parts, numbers) = quantise(scheme, &name, [experts * rows, cols], &values);
            stored.extend(parts.into_iter().map(|part| Stored {
                name: part.name.replace(".weight", ""),
                shape: match part.shape[..] {
                    [all, across] => vec![experts, all / experts, across],
                    _ => part.shape,
                },
                ..part
            }));
            meant.push(plain(&name, &shape, &numbers));
            continue;
        }
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

/// The same answer of a few tokens in every mode.
fn runs_in_every_mode(target: &Target, pair: &Pair, count: usize, name: &str) {
    let tree = Spec::Tree { block: 16, budget: 22 };
    let modes = [CHAIN, tree, Spec::Mtp { depth: 3 }, Spec::Auto { block: 16, budget: 63 }];
    runs_in(&modes, target, pair, count, name);
}

/// The same answer in these modes as without speculation.
fn runs_in(modes: &[Spec], target: &Target, pair: &Pair, count: usize, name: &str) {
    let prompt = &pair.prompts("math", 1)[0];
    let drafter = (&pair.drafter.config, &pair.drafter.weights as &dyn WeightSource);
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let backend = cpu(2, Activations::Int8);
    let mut engine = Engine::load(backend, weights, Some(drafter), KvType::F16, Spec::Off)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let sampling = Sampling { temperature: 0.7, seed: 3, ..Sampling::default() };
    let (expected, _) = answer(&mut engine, prompt, &sampling, count);
    assert!(!expected.is_empty());
    for mode in modes.iter().copied() {
        engine.set_spec(mode);
        let (tokens, _) = answer(&mut engine, prompt, &sampling, count);
        assert_eq!(tokens, expected, "{name} {mode:?}");
    }
}

#[test]
fn every_folder_reads_as_the_numbers_that_were_meant_and_runs_in_every_mode() {
    let source = Gguf::open(&checkpoints::dense_target()).expect("the tiny target");
    let pair = pair("dense");
    for scheme in Scheme::ALL {
        let folders = folders(to_hf(&source, "model.", 8, false), false, scheme);
        let target = same_numbers(&folders, scheme);
        runs_in_every_mode(&target, &pair, 24, &format!("{scheme:?}"));
    }
}

/// The tiny target with random blocks of a type for matrices, and for `NVFP4` a scale beside each.
fn gguf_of(source: &Gguf, ty: BlockType, path: &Path) {
    let is_matrix = |t: &TensorInfo| {
        let small = t.name.contains("conv1d") || t.name.contains("inp");
        t.shape.len() == 2 && t.shape[1].is_multiple_of(256) && !small
    };
    let mut header = Header::new("qwen35");
    for (key, value) in source.metadata().filter(|(key, _)| !key.starts_with("general.")) {
        header.entries.copy(key, value);
    }
    let (mut data, mut random) = (Vec::new(), Random(5));
    for tensor in source.tensors() {
        let taken = if is_matrix(tensor) { ty } else { tensor.ty };
        header.tensor(&tensor.name, taken, &tensor.shape);
        data.push(match is_matrix(tensor) {
            true => random_blocks(&mut random, ty, tensor.elements()),
            false => source.tensors().data(tensor).to_vec(),
        });
        if is_matrix(tensor) && ty == BlockType::NVFP4 {
            let module = tensor.name.strip_suffix(".weight").expect("a weight");
            header.tensor(&format!("{module}.scale"), BlockType::F32, &[1]);
            data.push(0.25f32.to_le_bytes().to_vec());
        }
    }
    let writer = Writer::create(path, &header, Overwrite::Replace).expect("a file");
    for (i, bytes) in data.iter().enumerate() {
        writer.write_at(i, 0, bytes).expect("a file");
    }
    writer.finish().expect("a file");
}

#[test]
fn every_gguf_type_runs_in_every_mode() {
    let source = Gguf::open(&checkpoints::dense_target()).expect("the tiny target");
    let pair = pair("dense");
    let folder = tempfile::tempdir().expect("a folder");
    for ty in BlockType::ALL.into_iter().filter(|ty| ty.ggml_id().is_some()) {
        let path = folder.path().join(format!("{ty}.gguf"));
        gguf_of(&source, ty, &path);
        let target = Target::open(&path).unwrap_or_else(|e| panic!("{ty}: {e}"));
        if ty == BlockType::NVFP4 {
            let weight = target.weights.get("blk.0.ffn_up.weight").expect("a matrix");
            let file = Gguf::open(&path).expect("a file");
            let stored = file.tensors().get("blk.0.ffn_up.weight").expect("a tensor");
            let mut numbers = vec![0.0; stored.elements()];
            formats::blocks::decode(stored.ty, file.tensors().data(stored), &mut numbers);
            let scaled: Vec<f32> = numbers.iter().map(|x| 0.25 * x).collect();
            assert!(weight.ty == BlockType::FP4 && target.weights.decode(weight) == scaled);
        }
        runs_in_every_mode(&target, &pair, 10, ty.name());
        drop(target);
        std::fs::remove_file(&path).expect("a file");
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

#[test]
fn experts_in_one_tensor_are_quantised_too() {
    let source = Gguf::open(&checkpoints::moe_target()).expect("the tiny mixture");
    let pair = pair("moe");
    for scheme in [
        Scheme::Fp8Squares,
        Scheme::Fp8Rows,
        Scheme::Int8Rows,
        Scheme::Mxfp4,
        Scheme::Nvfp4Modelopt,
    ] {
        let folders = folders(to_hf(&source, "model.", 4, false), true, scheme);
        let target = same_numbers(&folders, scheme);
        for part in ["gate", "up", "down"] {
            let experts = target.weights.get(&format!("blk.0.ffn_{part}_exps.weight"));
            let experts = experts.expect("experts");
            assert_eq!((experts.ty, experts.shape.len()), (scheme.ty(), 3), "{scheme:?} {part}");
        }
        runs_in(&[CHAIN], &target, &pair, 12, &format!("{scheme:?} in one tensor"));
    }
}

/// The likeliest tokens after a prompt are those that llama.cpp wrote with the same numbers.
fn writes_as_its_maker(target: &Target, text: &str, name: &str) {
    let said: Value = serde_json::from_str(text).expect("JSON");
    let (prompt, expected) = (testing::ids(&said["prompt"]), testing::ids(&said["written"]));
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let backend = cpu(2, Activations::F32);
    let mut engine = Engine::load(backend, weights, None, KvType::F16, Spec::Off).expect("a model");
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let (tokens, _) = answer(&mut engine, &prompt, &sampling, expected.len());
    assert_eq!(tokens, expected[..tokens.len()], "{name}");
}

/// Each GGUF and folder that others made; what `NAME.plain` says was meant by it is compared.
#[test]
fn what_others_made_is_read_as_they_read_it_and_runs_in_every_mode() {
    let Some(folder) = std::env::var_os("FORERUN_FILES") else {
        println!("skipped: FORERUN_FILES names no folder");
        return;
    };
    let pair = pair("dense");
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.unwrap().path());
    let is_model = |path: &Path| path.is_dir() || path.extension().is_some_and(|e| e == "gguf");
    let is_plain = |path: &Path| path.extension().is_some_and(|e| e == "plain");
    let mut files: Vec<_> = entries.filter(|path| is_model(path) && !is_plain(path)).collect();
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let name = path.display().to_string();
        let target = Target::open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        if let Ok(meant) = Target::open(Path::new(&format!("{name}.plain"))) {
            for weight in target.weights.iter() {
                let other = meant.weights.get(&weight.name).expect("the same model");
                let (a, b) = (target.weights.decode(weight), meant.weights.decode(other));
                // Packages multiply scales in their own order: two roundings of float32.
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2f32.powi(-22) * b.abs();
                assert!(a.iter().zip(&b).all(near), "{name} {}", weight.name);
            }
        }
        if let Ok(text) = std::fs::read_to_string(path.with_extension("ids")) {
            writes_as_its_maker(&target, &text, &name);
        }
        runs_in_every_mode(&target, &pair, 24, &name);
        println!("{name}: runs in every mode");
    }
}

/// GGUF has none of our own types; a folder's are told apart.
#[test]
fn types_of_folders_have_names_of_their_own() {
    for scheme in Scheme::ALL {
        assert!(scheme.ty() == BlockType::MXFP4 || scheme.ty().ggml_id().is_none());
    }
}
