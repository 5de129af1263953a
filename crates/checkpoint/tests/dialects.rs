//! One drafter in every form it is found in: the configuration and the weights must come out the
//! same.

mod support;

use checkpoint::drafter::Dialect;
use checkpoint::{Causality, Drafter, Overrides};
use formats::gguf::{Gguf, Header};
use serde_json::{Value, json};
use std::path::Path;
use support::*;

fn hf_name(name: &str) -> String {
    let name = match name {
        "fc.weight" => "fc",
        "enc.output_norm.weight" => "hidden_norm",
        "output_norm.weight" => "norm",
        _ => {
            let (index, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
            let part = match part.strip_suffix(".weight").unwrap() {
                "attn_norm" => "input_layernorm",
                "ffn_norm" => "post_attention_layernorm",
                "attn_output" => "self_attn.o_proj",
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_q_norm" => "self_attn.q_norm",
                "attn_k_norm" => "self_attn.k_norm",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                other => panic!("{other}"),
            };
            return format!("layers.{index}.{part}.weight");
        }
    };
    format!("{name}.weight")
}

/// The tiny dense drafter's `config.json`, as it was trained.
fn dense_config() -> Value {
    let size =
        Size { hidden: 256, layers: 4, q_heads: 4, kv_heads: 2, head_dim: 128, ffn: 768, taps: 4 };
    let mut config = size.nested(&[1, 3, 5, 6], 4090, 128);
    config["max_position_embeddings"] = json!(32768);
    config["is_causal"] = json!(false);
    config["num_target_layers"] = json!(8);
    config
}

fn write_folder(folder: &Path, config: &Value, prefix: &str) {
    let tensors = decoded(&Gguf::open(&dense_drafter()).unwrap());
    let named: Vec<_> =
        tensors.into_iter().map(|(n, s, v)| (format!("{prefix}{}", hf_name(&n)), s, v)).collect();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    write_safetensors(&folder.join("model.safetensors"), &named);
}

/// Copies the keys that all dialects share, under another architecture.
fn common_keys(gguf: &Gguf, header: &mut Header, arch: &str) {
    let shared = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
    ];
    for key in shared {
        header.entries.copy(&format!("{arch}.{key}"), gguf.get(&format!("dflash.{key}")).unwrap());
    }
    header.entries.u32(&format!("{arch}.dflash.block_size"), 16);
    header.entries.u32(&format!("{arch}.dflash.mask_token_id"), 4090);
    header.entries.i32s(&format!("{arch}.dflash.target_layer_ids"), &[1, 3, 5, 6]);
    header.entries.u32(&format!("{arch}.dflash.n_target_features"), 1024);
}

fn write_spiritbuun(out: &Path) {
    let keys = |gguf: &Gguf, header: &mut Header| {
        common_keys(gguf, header, "dflash-draft");
        header.entries.bool("dflash-draft.attention.causal", false);
        header.entries.u32("dflash-draft.rope.dimension_count", 128);
    };
    let rename = |name: &str| match name {
        "fc.weight" => "dflash_fc.weight".to_owned(),
        "enc.output_norm.weight" => "dflash_hidden_norm.weight".to_owned(),
        other => other.replace("ffn_norm", "post_attention_norm"),
    };
    rewrite_gguf(&dense_drafter(), out, "dflash-draft", keys, rename);
}

fn write_lucebox(out: &Path, with_window: bool) {
    let arch = "qwen35-dflash-draft";
    let keys = |gguf: &Gguf, header: &mut Header| {
        let mut all = Header::default();
        common_keys(gguf, &mut all, arch);
        if with_window {
            header.entries.append(&all.entries);
        } else {
            // What its converter writes: no windows at all.
            for (key, value) in gguf.metadata() {
                if let Some(name) = key
                    .strip_prefix("dflash.")
                    .filter(|n| !n.contains("sliding") && !n.contains("causal"))
                {
                    header.entries.copy(&format!("{arch}.{name}"), value);
                }
            }
            header.entries.u32(&format!("{arch}.dflash.mask_token_id"), 4090);
        }
        header.entries.u32(&format!("{arch}.dflash.n_target_layers"), 4);
        header.entries.u32(&format!("{arch}.vocab_size"), 4096);
    };
    let rename = |name: &str| match name {
        "fc.weight" => "dflash.fc.weight".to_owned(),
        "enc.output_norm.weight" => "dflash.hidden_norm.weight".to_owned(),
        other => other.to_owned(),
    };
    rewrite_gguf(&dense_drafter(), out, arch, keys, rename);
}

fn config_json(drafter: &Drafter) -> String {
    serde_json::to_string_pretty(&drafter.config).unwrap()
}

fn from_of(drafter: &Drafter, field: &str) -> String {
    drafter.report.resolved.iter().find(|r| r.field == field).unwrap().from.clone()
}

#[test]
fn four_forms_of_one_drafter_are_one_drafter() {
    let target = dense_target_config();
    let temp = tempfile::tempdir().unwrap();
    let plain = Overrides::default();
    let upstream = open(&dense_drafter(), &plain, Some(&target)).unwrap();
    assert_eq!(upstream.config.layer_summary(), "sliding 3 of 4, window 128, not causal");
    assert_eq!(upstream.config.taps, [1, 3, 5, 6]);

    let spiritbuun = temp.path().join("spiritbuun.gguf");
    write_spiritbuun(&spiritbuun);
    let lucebox = temp.path().join("lucebox.gguf");
    write_lucebox(&lucebox, true);
    let hf = temp.path().join("hf");
    std::fs::create_dir(&hf).unwrap();
    write_folder(&hf, &dense_config(), "");
    let prefixed = temp.path().join("prefixed");
    std::fs::create_dir(&prefixed).unwrap();
    write_folder(&prefixed, &dense_config(), "model.");

    let not_causal = Overrides { causal: Some(Causality::Nowhere), ..plain.clone() };
    let forms = [
        (open(&spiritbuun, &plain, Some(&target)).unwrap(), Dialect::Spiritbuun),
        (open(&lucebox, &not_causal, Some(&target)).unwrap(), Dialect::Lucebox),
        (open(&hf, &plain, Some(&target)).unwrap(), Dialect::HuggingFace),
        (open(&prefixed, &plain, Some(&target)).unwrap(), Dialect::HuggingFace),
    ];
    for (form, dialect) in &forms {
        assert_eq!(form.dialect, *dialect);
        assert_eq!(config_json(form), config_json(&upstream), "{dialect:?}");
        assert_eq!(form.weights.len(), 47);
        for weight in upstream.weights.iter() {
            let same = form.weights.get(&weight.name).unwrap();
            assert_eq!(
                form.weights.decode(same),
                upstream.weights.decode(weight),
                "{dialect:?} {}",
                weight.name
            );
        }
    }

    // Lucebox cannot say causality: the rule applies, and the report says that it did.
    let by_rule = open(&lucebox, &plain, Some(&target)).unwrap();
    assert_eq!(by_rule.config.layer_summary(), "sliding 3 of 4, window 128, causal where sliding");
    assert!(from_of(&by_rule, "causal").starts_with("the rule, as this dialect cannot say"));
    assert_eq!(from_of(&forms[1].0, "causal"), "`--draft-causal`");
    // Spiritbuun's converter writes the key into every file, so it deserves a second look.
    assert!(forms[0].0.report.warnings[0].contains("`--draft-causal true`"));
}

#[test]
fn lucebox_without_windows_asks_or_looks_beside_itself() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("draft.gguf");
    write_lucebox(&file, false);
    let sentence = open(&file, &Overrides::default(), None).unwrap_err().to_string();
    assert_eq!(
        sentence,
        "nothing in the file says which of its layers slide, and how far they look: give \
         `--draft-window` (2048 for Qwen3.6-27B drafters of April, 4096 for those of June: 3 \
         sliding layers and a full one; 0 if every layer is full)"
    );
    let windowed = Overrides { window: Some(128), ..Overrides::default() };
    let drafter = open(&file, &windowed, None).unwrap();
    assert_eq!(drafter.config.layer_summary(), "sliding 3 of 4, window 128, causal where sliding");
    assert_eq!(from_of(&drafter, "windows"), "`--draft-window` over all layers but the last");
    let full = Overrides { window: Some(0), ..Overrides::default() };
    assert_eq!(open(&file, &full, None).unwrap().config.layer_summary(), "full 4 of 4, not causal");

    std::fs::write(temp.path().join("config.json"), dense_config().to_string()).unwrap();
    let drafter = open(&file, &Overrides::default(), None).unwrap();
    assert_eq!(drafter.config.layers[0].window, Some(128));
    assert_eq!(drafter.config.layer_summary(), "sliding 3 of 4, window 128, not causal");
    for field in ["windows", "causal"] {
        assert!(from_of(&drafter, field).ends_with("of the `config.json` beside it"), "{field}");
    }
    // A file with windows of its own is still silent on causality, where a flag wins.
    write_lucebox(&file, true);
    let drafter = open(&file, &Overrides::default(), None).unwrap();
    assert!(!from_of(&drafter, "windows").contains("config.json"));
    assert_eq!(from_of(&drafter, "causal"), "`is_causal` of the `config.json` beside it");
    let causal = Overrides { causal: Some(Causality::Everywhere), ..Overrides::default() };
    let drafter = open(&file, &causal, None).unwrap();
    assert_eq!(drafter.config.layer_summary(), "sliding 3 of 4, window 128, causal");
    write_lucebox(&file, false);
    // Neither a target's configuration nor one of another drafter beside the file is an answer.
    std::fs::write(
        temp.path().join("config.json"),
        r#"{"partial_rotary_factor": 0.25, "num_hidden_layers": 4}"#,
    )
    .unwrap();
    assert!(
        open(&file, &Overrides::default(), None)
            .unwrap_err()
            .to_string()
            .contains("`--draft-window`")
    );
    assert!(open(&file, &windowed, None).is_ok());
    let mut other = dense_config();
    other["num_hidden_layers"] = json!(5);
    std::fs::write(temp.path().join("config.json"), other.to_string()).unwrap();
    assert!(open(&file, &Overrides::default(), None).is_err());
}

#[test]
fn lucebox_files_with_the_old_theta_are_stopped() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("draft.gguf");
    let arch = "qwen35-dflash-draft";
    let keys = |gguf: &Gguf, header: &mut Header| {
        for (key, value) in gguf.metadata() {
            match key.strip_prefix("dflash.") {
                Some("rope.freq_base") => {
                    header.entries.f32(&format!("{arch}.rope.freq_base"), 1e6)
                }
                Some(name) => header.entries.copy(&format!("{arch}.{name}"), value),
                None if key == "tokenizer.ggml.mask_token_id" => header.entries.copy(key, value),
                None => {}
            }
        }
    };
    rewrite_gguf(&dense_drafter(), &file, arch, keys, str::to_owned);
    let sentence = open(&file, &Overrides::default(), None).unwrap_err().to_string();
    assert_eq!(
        sentence,
        "rope theta is 1000000 by `qwen35-dflash-draft.rope.freq_base`, but 10000000 by the \
         architecture `qwen35-dflash-draft`: old converters wrote 1e6 by mistake; give \
         `--draft-rope-theta 10000000` (or `1000000`) to say which is right"
    );
    for theta in [1e6, 1e7] {
        let said = Overrides { rope_theta: Some(theta), ..Overrides::default() };
        assert_eq!(
            open(&file, &said, Some(&dense_target_config())).unwrap().config.rope.theta,
            theta
        );
    }
}

#[test]
fn a_bare_file_asks_for_all_it_cannot_tell_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("draft.safetensors");
    sparse_safetensors(&file, "F16", &SMALL.tensors());
    let sentence = open(&file, &Overrides::default(), None).unwrap_err().to_string();
    for flag in ["taps", "block", "mask-token", "rope-theta", "window"] {
        assert!(sentence.contains(&format!("give `--draft-{flag}`")), "{flag}: {sentence}");
    }
    let target = dense_target_config();
    let mut target = target.clone();
    target.hidden = 64;
    let sentence = open(&file, &Overrides::default(), Some(&target)).unwrap_err().to_string();
    assert!(
        sentence.contains("give `--draft-taps` (`1,5` for a target of 8 layers)"),
        "{sentence}"
    );
    assert!(
        sentence.contains("give `--draft-rope-theta` (10000000 is the target's)"),
        "{sentence}"
    );
    let said = Overrides {
        rope_theta: Some(1e7),
        mask_token: Some(4090),
        taps: Some(vec![1, 5]),
        window: Some(32),
        causal: None,
        yarn: None,
        block: Some(8),
        ..Overrides::default()
    };
    let drafter = open(&file, &said, Some(&target)).unwrap();
    assert_eq!(drafter.dialect, Dialect::Bare);
    assert_eq!(drafter.config.layer_summary(), "sliding 2 of 3, window 32, causal where sliding");
    assert_eq!(
        (drafter.config.q_heads, drafter.config.kv_heads, drafter.config.head_dim),
        (4, 2, 16)
    );
    assert!(from_of(&drafter, "norm_eps").contains("no key says it"));

    // The same file with its configuration beside it needs no flags.
    let config = SMALL.nested(&[1, 5], 4090, 32);
    std::fs::write(temp.path().join("config.json"), config.to_string()).unwrap();
    assert_eq!(
        open(&file, &Overrides::default(), Some(&target)).unwrap().dialect,
        Dialect::HuggingFace
    );
}

#[test]
fn flat_and_nested_configurations_say_the_same() {
    let flat = SMALL.flat(&[1, 5], 9);
    let mut nested = SMALL.nested(&[1, 5], 9, 32);
    nested["layer_types"] = flat["layer_types"].clone();
    let open = |config: &Value| {
        support::open(folder(config, &SMALL.tensors()).path(), &Overrides::default(), None)
    };
    let (flat, nested) = (open(&flat).unwrap(), open(&nested).unwrap());
    assert_eq!(flat.config, nested.config);
    assert_eq!(from_of(&flat, "rope_theta"), "`rope_theta`");
    assert_eq!(from_of(&nested, "rope_theta"), "`rope_parameters.rope_theta`");
    assert_eq!(from_of(&nested, "block"), "`dflash_config.block_size`");
}

#[test]
fn speculators_count_taps_from_one() {
    let mut config = SMALL.flat(&[1, 5], 9);
    config["dflash_config"].as_object_mut().unwrap().remove("target_layer_ids");
    config["aux_hidden_state_layer_ids"] = json!([2, 6]);
    let drafter =
        open(folder(&config, &SMALL.tensors()).path(), &Overrides::default(), None).unwrap();
    assert_eq!(drafter.config.taps, [1, 5]);
}

#[test]
fn speculators_nest_their_layer_settings() {
    let flat = SMALL.nested(&[1, 5], 9, 32);
    let mut nested = json!({"architectures": ["DFlashDraftModel"], "aux_hidden_state_layer_ids": [2,
        6],
        "block_size": 16, "mask_token_id": 9});
    let mut layers = flat.clone();
    layers.as_object_mut().unwrap().remove("dflash_config");
    layers.as_object_mut().unwrap().remove("architectures");
    nested["transformer_layer_config"] = layers;
    let open = |config: &Value| {
        support::open(folder(config, &SMALL.tensors()).path(), &Overrides::default(), None)
    };
    assert_eq!(open(&nested).unwrap().config, open(&flat).unwrap().config);
}

#[test]
fn yarn_is_read_from_both_containers() {
    let gguf = open(&moe_drafter(), &Overrides::default(), None).unwrap();
    let yarn = gguf.config.rope.scaling.unwrap();
    assert_eq!(
        (yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.original_context),
        (64.0, 32.0, 1.0, 512)
    );
    for key in ["rope_parameters", "rope_scaling"] {
        let mut config = SMALL.flat(&[1, 5], 9);
        config[key] = json!({"rope_type": "yarn", "rope_theta": 1e7, "factor": 64.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0, "original_max_position_embeddings": 512});
        let hf =
            open(folder(&config, &SMALL.tensors()).path(), &Overrides::default(), None).unwrap();
        assert_eq!(hf.config.rope, gguf.config.rope, "{key}");
    }
}

#[test]
fn yarn_frequencies_follow_the_formula() {
    let rope = open(&moe_drafter(), &Overrides::default(), None).unwrap().config.rope;
    let frequencies = rope.inverse_frequencies(128);
    // Pair 3 turns more than 32 times over the original 512 positions and stays; pair 18 less than
    // once and is divided by 64; pair 10 lies 7/15 of the way between.
    let plain = |i: i32| 1e7f64.powf(-2.0 * f64::from(i) / 128.0);
    let expect = |i: usize, value: f64| {
        let found = f64::from(frequencies[i]);
        assert!((found / value - 1.0).abs() < 1e-6, "{i}: {found} against {value}");
    };
    expect(0, 1.0);
    expect(3, plain(3));
    expect(10, plain(10) * (8.0 / 15.0) + plain(10) / 64.0 * (7.0 / 15.0));
    expect(18, plain(18) / 64.0);
    expect(63, plain(63) / 64.0);
    assert!((rope.attention_factor() - 1.4158883).abs() < 1e-6);
}

#[test]
fn one_switch_makes_all_layers_slide_without_being_causal() {
    let open = |config: &Value| {
        support::open(folder(config, &SMALL.tensors()).path(), &Overrides::default(), None).unwrap()
    };
    // All layers are full by their types, and windows are off by Transformers' default.
    let mut config = with(SMALL.flat(&[1, 5], 9), "dflash_config.use_swa", json!(true));
    config["dflash_config"]["swa_window_size"] = json!(32);
    let drafter = open(&config);
    assert_eq!(drafter.config.layer_summary(), "sliding 3 of 3, window 32, not causal");
    assert_eq!(from_of(&drafter, "causal").split(',').next(), Some("`dflash_config.use_swa`"));
    // Its own window wins over the backbone's, which is taken where it has none.
    config["sliding_window"] = json!(64);
    assert_eq!(open(&config).config, drafter.config);
    config.as_object_mut().unwrap().remove("layer_types");
    assert_eq!(open(&config).config, drafter.config);
    let other = with(config.clone(), "dflash_config.swa_window_size", Value::Null);
    assert_eq!(open(&other).config.layer_summary(), "sliding 3 of 3, window 64, not causal");
    let off = with(config.clone(), "dflash_config.use_swa", json!(false));
    assert_eq!(open(&off).config.layer_summary(), "full 3 of 3, not causal");
    // A word on causality is heard, and types that name sliding layers are followed.
    let causal = with(config.clone(), "is_causal", json!(true));
    assert_eq!(open(&causal).config.layer_summary(), "sliding 3 of 3, window 32, causal");
    config["layer_types"] = json!(["sliding_attention", "sliding_attention", "full_attention"]);
    let summary = "sliding 2 of 3, window 32, causal where sliding";
    assert_eq!(open(&config).config.layer_summary(), summary);
}

#[test]
fn a_window_by_its_other_name_is_the_same_window() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &dense_config(), "");
    let expected = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    for place in ["swa_window_size", "dflash_config.swa_window_size"] {
        let mut config = with(dense_config(), place, json!(128));
        config.as_object_mut().unwrap().remove("sliding_window");
        write_folder(folder.path(), &config, "");
        let found = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
        assert_eq!(config_json(&found), config_json(&expected), "{place}");
    }
    let keys = |gguf: &Gguf, header: &mut Header| {
        for (key, value) in gguf.metadata().filter(|(key, _)| !key.starts_with("general.")) {
            match key {
                "dflash.attention.sliding_window" => {
                    header.entries.u32("dflash.swa_window_size", 128);
                }
                _ => header.entries.copy(key, value),
            }
        }
    };
    let file = folder.path().join("swa.gguf");
    rewrite_gguf(&dense_drafter(), &file, "dflash", keys, str::to_owned);
    let found = Drafter::open(&file, &Overrides::default(), None).unwrap();
    assert_eq!(config_json(&found), config_json(&expected));
}
