//! Checks against the full-precision tiny models, which are too large for the repository;
//! `training/` makes them. `FORERUN_FULL_MODELS=DIR cargo test -p forerun-checkpoint --test full_models --
//! --nocapture`, where DIR has `dense/` and `moe/`. Without it each test says that it was skipped.

use checkpoint::convert::{Mix, Progress, convert, tokenizer_of};
use checkpoint::{Causality, Drafter, Overrides, Target};
use formats::BlockType;
use formats::gguf::{Gguf, Overwrite};
use formats::{blocks, quantize};
use std::path::{Path, PathBuf};

fn models(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FORERUN_FULL_MODELS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: {test} needs FORERUN_FULL_MODELS");
    }
    folder
}

/// Root mean square of the difference, relative to the first.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let sum = |f: &dyn Fn(f64, f64) -> f64| {
        a.iter().zip(b).map(|(&x, &y)| f(x.into(), y.into())).sum::<f64>()
    };
    (sum(&|x, y| (x - y) * (x - y)) / sum(&|x, _| x * x)).sqrt()
}

#[test]
fn folders_and_ggufs_hold_the_same_targets() {
    let Some(models) = models("folders_and_ggufs_hold_the_same_targets") else { return };
    let pairs = [
        ("dense/hf", "dense/target-bf16.gguf", 0.0),
        ("dense/hf", "dense/target-Q8_0.gguf", 0.01),
        ("dense/hf", "dense/target-Q4_K_M.gguf", 0.1),
        ("moe/hf", "moe/target-Q4_K_M.gguf", 0.1),
    ];
    for (folder, gguf, limit) in pairs {
        let (hf, gguf) = (
            Target::open(&models.join(folder)).unwrap(),
            Target::open(&models.join(gguf)).unwrap(),
        );
        assert_eq!(hf.config, gguf.config);
        assert_eq!(hf.weights.len(), gguf.weights.len());
        for weight in hf.weights.iter() {
            let other = gguf.weights.get(&weight.name).unwrap();
            let (a, b) = (hf.weights.decode(weight), gguf.weights.decode(other));
            // `exp` rounds differently from library to library.
            let limit = if weight.name.ends_with("ssm_a") { 1e-7 } else { limit };
            assert!(distance(&a, &b) <= limit, "{folder} {}: {}", weight.name, distance(&a, &b));
        }
    }
}

#[test]
fn four_drafter_files_are_one_drafter() {
    let Some(models) = models("four_drafter_files_are_one_drafter") else { return };
    let target = Target::open(&models.join("dense/hf")).unwrap().config;
    let open = |file: &str, causal| {
        let overrides = Overrides { causal, ..Overrides::default() };
        Drafter::open(&models.join("dense").join(file), &overrides, Some(&target)).unwrap()
    };
    let source = open("draft-hf", None);
    for (file, causal) in [
        ("draft-bf16.gguf", None),
        ("draft-Q8_0.gguf", None),
        ("draft-Q8_0.spiritbuun.gguf", None),
        ("draft-Q8_0.lucebox.gguf", Some(Causality::Nowhere)),
    ] {
        let other = open(file, causal);
        assert_eq!(
            serde_json::to_string(&other.config).unwrap(),
            serde_json::to_string(&source.config).unwrap(),
            "{file}"
        );
        for weight in source.weights.iter() {
            let same = other.weights.get(&weight.name).unwrap();
            let distance = distance(&source.weights.decode(weight), &other.weights.decode(same));
            let limit = if same.ty == BlockType::Q8_0 { 0.01 } else { 0.0 };
            assert!(distance <= limit, "{file} {}: {distance}", weight.name);
        }
    }
}

#[test]
fn conversions_equal_those_of_ggml() {
    let Some(models) = models("conversions_equal_those_of_ggml") else { return };
    let temp = tempfile::tempdir().unwrap();
    let cases = [
        ("dense", "dense/hf", Mix::Q8_0, "draft-Q8_0.gguf"),
        ("dense", "dense/target-Q8_0.gguf", Mix::Bf16, "draft-bf16.gguf"),
        ("moe", "moe/target-Q4_K_M.gguf", Mix::Q8_0, "draft-Q8_0.gguf"),
    ];
    for (kind, target, mix, theirs) in cases {
        let config = Target::open(&models.join(target)).unwrap().config;
        let drafter = Drafter::open(
            &models.join(kind).join("draft-hf"),
            &Overrides::default(),
            Some(&config),
        )
        .unwrap();
        let tokenizer = tokenizer_of(&models.join(target), &config).unwrap();
        let out = temp.path().join("out.gguf");
        convert(
            &drafter,
            "Draft",
            mix,
            Some(&tokenizer),
            &out,
            Overwrite::Replace,
            &Progress::default(),
        )
        .unwrap();
        assert_eq!(everything(&out), everything(&models.join(kind).join(theirs)), "{kind} {mix}");
    }
}

/// A tensor to the byte.
type Stored = (String, BlockType, Vec<u8>);

/// All metadata and all tensor bytes, in name order.
fn everything(path: &Path) -> (Vec<String>, Vec<Stored>) {
    let gguf = Gguf::open(path).unwrap();
    let text = |value: formats::gguf::Value<'_>| match value.as_array() {
        Some(array) => array.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(","),
        None => value.to_string(),
    };
    let mut metadata: Vec<String> =
        gguf.metadata().map(|(key, value)| format!("{key} = {}", text(value))).collect();
    let mut tensors: Vec<_> = gguf
        .tensors()
        .iter()
        .map(|t| (t.name.clone(), t.ty, gguf.tensors().data(t).to_vec()))
        .collect();
    metadata.sort();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    (metadata, tensors)
}

#[test]
fn quantised_targets_are_as_good_as_those_of_ggml() {
    let Some(models) = models("quantised_targets_are_as_good_as_those_of_ggml") else { return };
    let exact = Target::open(&models.join("dense/target-bf16.gguf")).unwrap();
    for file in ["dense/target-Q4_K_M.gguf", "dense/target-Q8_0.gguf"] {
        let theirs = Target::open(&models.join(file)).unwrap();
        let mut worst = std::collections::BTreeMap::<BlockType, f64>::new();
        for weight in theirs.weights.iter().filter(|w| w.ty.block_len() > 1) {
            let source = exact.weights.decode(exact.weights.get(&weight.name).unwrap());
            let mut bytes = vec![0; weight.byte_len()];
            quantize::encode(weight.ty, &source, &mut bytes).unwrap();
            let mut ours = vec![f32::NAN; source.len()];
            blocks::decode(weight.ty, &bytes, &mut ours);
            let ratio =
                distance(&source, &ours) / distance(&source, &theirs.weights.decode(weight));
            let entry = worst.entry(weight.ty).or_default();
            *entry = entry.max(ratio);
        }
        println!("{file}: our error over ggml's, worst tensor: {worst:.4?}");
        assert!(worst.values().all(|&ratio| ratio <= 1.02), "{worst:?}");
    }
}
