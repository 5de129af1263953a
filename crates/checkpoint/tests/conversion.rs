//! Conversion: the configuration survives, the weights are as good as they can be, and nothing is
//! lost on the way.

mod support;

use checkpoint::convert::{Mix, Progress, convert, tokenizer_of};
use checkpoint::{Causality, Drafter, Error, Overrides, Target};
use formats::BlockType;
use formats::gguf::{Entries, Gguf, Overwrite};
use std::path::Path;
use std::sync::atomic::Ordering;
use support::*;

fn write(drafter: &Drafter, mix: Mix, tokenizer: Option<&Entries>, out: &Path) {
    convert(drafter, "Name", mix, tokenizer, out, Overwrite::Refuse, &Progress::default()).unwrap();
}

fn reopened(path: &Path) -> Drafter {
    Drafter::open(path, &Overrides::default(), None).unwrap()
}

/// The GGUF drafter as an F32 folder, whose numbers are the GGUF's exactly.
fn as_folder(gguf: &Path, config: &serde_json::Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let drafter = reopened(gguf);
    let hf = |name: &str| {
        let pairs = [
            ("enc.output_norm", "hidden_norm"),
            ("output_norm", "norm"),
            ("blk.", "layers."),
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("attn_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_output", "self_attn.o_proj"),
            ("attn_q.", "self_attn.q_proj."),
            ("attn_k.", "self_attn.k_proj."),
            ("attn_v", "self_attn.v_proj"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ];
        pairs.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
    };
    let tensors: Vec<_> = drafter
        .weights
        .iter()
        .map(|w| (hf(&w.name), w.shape.clone(), drafter.weights.decode(w)))
        .collect();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    folder
}

fn dense_json() -> serde_json::Value {
    let size =
        Size { hidden: 256, layers: 4, q_heads: 4, kv_heads: 2, head_dim: 128, ffn: 768, taps: 4 };
    let mut config = size.nested(&[1, 3, 5, 6], 4090, 128);
    config["max_position_embeddings"] = 32768.into();
    config["is_causal"] = false.into();
    config
}

fn moe_json() -> serde_json::Value {
    let size =
        Size { hidden: 256, layers: 3, q_heads: 4, kv_heads: 2, head_dim: 128, ffn: 768, taps: 3 };
    let mut config = size.flat(&[0, 1, 2], 4090);
    config["max_position_embeddings"] = 32768.into();
    config["rope_parameters"] = serde_json::json!({"rope_type": "yarn", "rope_theta": 1e7,
        "factor": 64.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 512});
    config
}

fn metadata(path: &Path) -> Vec<(String, String)> {
    let gguf = Gguf::open(path).unwrap();
    let mut list: Vec<_> = gguf
        .metadata()
        .filter(|(key, _)| *key != "general.name")
        .map(|(key, value)| (key.to_owned(), format!("{} {value}", value.describe())))
        .collect();
    list.sort();
    list
}

#[test]
fn eight_bits_from_a_folder_are_the_files_that_ggml_wrote() {
    for (gguf, target, json) in
        [(dense_drafter(), dense_target(), dense_json()), (moe_drafter(), moe_target(), moe_json())]
    {
        let folder = as_folder(&gguf, &json);
        let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
        let out = folder.path().join("out.gguf");
        let tokenizer = tokenizer_of(&target, &Target::open(&target).unwrap().config).unwrap();
        write(&source, Mix::Q8_0, Some(&tokenizer), &out);
        assert_eq!(metadata(&out), metadata(&gguf));
        let (ours, theirs) = (Gguf::open(&out).unwrap(), Gguf::open(&gguf).unwrap());
        assert_eq!(ours.tensors().len(), theirs.tensors().len());
        for tensor in theirs.tensors() {
            let same = ours.tensors().get(&tensor.name).unwrap();
            assert_eq!((same.ty, &same.shape), (tensor.ty, &tensor.shape));
            assert_eq!(ours.tensors().data(same), theirs.tensors().data(tensor), "{}", tensor.name);
        }
        // Reading it back gives the source's configuration, YaRN, windows and causality included.
        assert_eq!(reopened(&out).config, source.config);
    }
}

#[test]
fn every_mix_keeps_its_promises() {
    let folder = as_folder(&dense_drafter(), &dense_json());
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    for (name, mix) in Mix::NAMES {
        let out = folder.path().join(name);
        write(&source, mix, None, &out);
        let back = reopened(&out);
        assert_eq!(back.config, source.config, "{name}");
        for weight in source.weights.iter() {
            let found = back.weights.get(&weight.name).unwrap();
            let (a, b) = (source.weights.decode(weight), back.weights.decode(found));
            if weight.shape.len() == 1 {
                assert_eq!(
                    (found.ty, &a),
                    (BlockType::F32, &b),
                    "{name} {}: norms are exact",
                    weight.name
                );
                continue;
            }
            let (mut error, mut power) = (0.0f64, 0.0f64);
            for (x, y) in a.iter().zip(&b) {
                error += f64::from(x - y).powi(2);
                power += f64::from(*x).powi(2);
            }
            let relative = (error / power).sqrt();
            let (ty, limit) = match (mix, weight.name.as_str()) {
                (Mix::F16, _) => (BlockType::F16, 5e-4),
                (Mix::Bf16, _) => (BlockType::BF16, 3e-3),
                // The source's numbers are 8-bit blocks already, so they come back exactly.
                (Mix::Q8_0, _) | (Mix::Q4KM, "fc.weight") => (BlockType::Q8_0, 1e-7),
                (Mix::Q4KM, name) if name.contains("attn_v") || name.contains("ffn_down") => {
                    let more = name.starts_with("blk.2") || name.starts_with("blk.3");
                    if more { (BlockType::Q6_K, 0.02) } else { (BlockType::Q4_K, 0.08) }
                }
                (Mix::Q4KM, _) => (BlockType::Q4_K, 0.08),
            };
            assert_eq!(found.ty, ty, "{name} {}", weight.name);
            assert!(relative <= limit, "{name} {}: {relative}", weight.name);
        }
    }
}

#[test]
fn the_second_generation_is_written_as_upstream_has_it() {
    let size =
        Size { hidden: 256, layers: 2, q_heads: 4, kv_heads: 2, head_dim: 128, ffn: 512, taps: 2 };
    let mut config = size.dflash2(&[1, 5], 300, 320, 256);
    config["dflash_config"]["output_multiplier"] = 0.5.into();
    config["dflash_config"]["final_logit_softcapping"] = 20.0.into();
    config["dflash_config"]["input_embedding_scale"] = 2.0.into();
    let folder = filled_folder(&config, size.dflash2_tensors(320, 256));
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    for (name, mix) in Mix::NAMES {
        let out = folder.path().join(name);
        write(&source, mix, None, &out);
        let back = reopened(&out);
        assert_eq!(back.config, source.config, "{name}");
        assert_eq!(back.weights.len(), 2 * 15 + 6, "{name}");
        // Base kernels are exact in every mix, and stored without a suffix.
        for weight in source.weights.iter().filter(|w| w.name.ends_with("_conv_base")) {
            let same = back.weights.get(&weight.name).unwrap();
            assert_eq!((same.ty, &same.shape), (BlockType::F32, &vec![2, 2, 256]));
            assert_eq!(back.weights.decode(same), source.weights.decode(weight));
        }
    }
    let gguf = Gguf::open(&folder.path().join("q4_k_m")).unwrap();
    let ty = |name: &str| gguf.tensors().get(name).unwrap().ty;
    assert_eq!(ty("fc.weight"), BlockType::Q8_0);
    assert_eq!(ty("blk.1.attn_conv_proj.weight"), BlockType::Q8_0);
    assert_eq!(ty("blk.0.ffn_conv_proj.weight"), BlockType::Q8_0);
    assert_eq!(ty("selector_predecessor.weight"), BlockType::Q4_K);
    assert_eq!(ty("selector_hidden.weight"), BlockType::Q4_K);
    let expected = [
        ("dflash.attention.causal", "bool false"),
        ("dflash.block_size", "u32 8"),
        ("dflash.conv_group_size", "u32 16"),
        ("dflash.conv_kernel_size", "u32 2"),
        ("dflash.embedding_scale", "f32 2"),
        ("dflash.final_logit_softcapping", "f32 20"),
        ("dflash.logit_scale", "f32 0.5"),
        ("dflash.selector_rank", "u32 256"),
        ("dflash.selector_top_k", "u32 16"),
    ];
    for (key, value) in expected {
        assert_eq!(gguf.get(key).unwrap().describe(), value, "{key}");
    }
    assert_eq!(gguf.integers("dflash.target_layers").unwrap(), Some(vec![2, 6]));
    let sections = gguf.integers("dflash.rope.dimension_sections").unwrap();
    assert_eq!(sections, Some(vec![64, 0, 0, 0]));
    let pattern = gguf.bools("dflash.attention.sliding_window_pattern").unwrap();
    assert_eq!(pattern, Some(vec![true, true]));
}

#[test]
fn a_selector_that_is_left_out_is_not_written() {
    let folder = filled_folder(&SMALL.dflash2(&[1, 5], 90, 96, 8), SMALL.dflash2_tensors(96, 8));
    let without = Overrides { selector: Some(false), ..Overrides::default() };
    let source = Drafter::open(folder.path(), &without, None).unwrap();
    let out = folder.path().join("out.gguf");
    let progress = Progress::default();
    let summary = convert(&source, "", Mix::F16, None, &out, Overwrite::Refuse, &progress).unwrap();
    assert_eq!(summary.tensors, source.weights.len() - 3);
    assert_eq!(summary.source_bytes, progress.done.load(Ordering::Relaxed));
    let back = reopened(&out);
    assert_eq!(back.config, source.config);
    assert_eq!(back.weights.len(), summary.tensors);
}

#[test]
fn rows_too_short_for_a_block_fall_back() {
    let size =
        Size { hidden: 64, layers: 1, q_heads: 2, kv_heads: 1, head_dim: 24, ffn: 96, taps: 2 };
    let folder = folder(&size.flat(&[1, 2], 9), &size.tensors());
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    let out = folder.path().join("out.gguf");
    write(&source, Mix::Q4KM, None, &out);
    let back = reopened(&out);
    let ty = |name: &str| back.weights.get(name).unwrap().ty;
    assert_eq!(ty("blk.0.attn_q.weight"), BlockType::Q8_0, "rows of 64 are no superblock");
    assert_eq!(ty("blk.0.attn_output.weight"), BlockType::F16, "rows of 48 are no block at all");
}

#[test]
fn a_gguf_of_another_dialect_keeps_its_blocks_and_tokenizer() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.gguf");
    let source = reopened(&dense_drafter());
    write(&source, Mix::Q8_0, None, &out);
    assert_eq!(metadata(&out), metadata(&dense_drafter()));
    assert_eq!(Gguf::open(&out).unwrap().string("general.name").unwrap(), Some("Draft"));
    let q4 = temp.path().join("q4.gguf");
    let summary =
        convert(&source, "", Mix::Q4KM, None, &q4, Overwrite::Refuse, &Progress::default())
            .unwrap();
    assert_eq!(summary.requantised, 28, "every matrix but `fc` was quantised twice");
}

#[test]
fn causality_by_rule_stays_a_rule() {
    let size = &SMALL;
    let folder = folder(&size.nested(&[1, 5], 9, 32), &size.tensors());
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    let out = folder.path().join("out.gguf");
    write(&source, Mix::F16, None, &out);
    assert!(Gguf::open(&out).unwrap().get("dflash.attention.causal").is_none());
    assert_eq!(reopened(&out).config.layers, source.config.layers);
    let forced = Overrides { causal: Some(Causality::Everywhere), ..Overrides::default() };
    let source = Drafter::open(folder.path(), &forced, None).unwrap();
    let out = folder.path().join("causal.gguf");
    write(&source, Mix::F16, None, &out);
    assert_eq!(reopened(&out).config.layer_summary(), "sliding 2 of 3, window 32, causal");
}

#[test]
fn causality_by_rule_beside_a_selector_is_written_down() {
    let mut config = SMALL.dflash2(&[1, 5], 90, 96, 8);
    config.as_object_mut().unwrap().remove("is_causal");
    let folder = filled_folder(&config, SMALL.dflash2_tensors(96, 8));
    let source = reopened(folder.path());
    assert_eq!(source.config.layer_summary(), "sliding 3 of 3, window 2048, causal");
    let out = folder.path().join("out.gguf");
    write(&source, Mix::F16, None, &out);
    assert_eq!(reopened(&out).config.layers, source.config.layers);

    // One word cannot say that only some layers are causal.
    config["layer_types"][2] = "full_attention".into();
    let folder = filled_folder(&config, SMALL.dflash2_tensors(96, 8));
    let out = folder.path().join("out.gguf");
    let convert = |overrides: &Overrides| {
        let source = Drafter::open(folder.path(), overrides, None).unwrap();
        convert(&source, "", Mix::F16, None, &out, Overwrite::Refuse, &Progress::default())
    };
    assert_eq!(
        convert(&Overrides::default()).unwrap_err().to_string(),
        "writing a drafter with a selector that is sliding 2 of 3, window 2048, causal where \
         sliding is not supported (the one key says it for all layers; give `--draft-causal \
         true` or `false`)"
    );
    assert!(!out.exists());
    convert(&Overrides { causal: Some(Causality::Nowhere), ..Overrides::default() }).unwrap();
    assert_eq!(reopened(&out).config.layer_summary(), "sliding 2 of 3, window 2048, not causal");
}

#[test]
fn a_failure_or_a_stop_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.gguf");
    let source = reopened(&dense_drafter());
    let progress = Progress::default();
    progress.stop.store(true, Ordering::Relaxed);
    let stopped = convert(&source, "", Mix::Q4KM, None, &out, Overwrite::Refuse, &progress);
    assert!(matches!(stopped, Err(Error::Stopped)));

    // A weight that is not a number cannot be quantised; the tensor is named.
    let mut tensors: Vec<_> = SMALL
        .tensors()
        .into_iter()
        .map(|(n, s)| (n, s.clone(), vec![0.5; s.iter().product()]))
        .collect();
    tensors.iter_mut().find(|(n, ..)| n == "layers.1.mlp.up_proj.weight").unwrap().2[70] = f32::NAN;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), SMALL.flat(&[1, 5], 9).to_string()).unwrap();
    write_safetensors(&folder.path().join("model.safetensors"), &tensors);
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    let failed =
        convert(&source, "", Mix::Q8_0, None, &out, Overwrite::Refuse, &Progress::default())
            .unwrap_err();
    assert!(
        failed
            .to_string()
            .starts_with("tensor `layers.1.mlp.up_proj.weight` cannot be written as Q8_0: "),
        "{failed}"
    );
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}
