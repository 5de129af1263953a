//! DFlash 2 in every form it is found in, and the ways its keys and tensors disagree.

mod support;

use checkpoint::drafter::{BlockConv, Dialect, Kind, Scales, Selector};
use checkpoint::{Causality, Drafter, Overrides};
use formats::gguf::Header;
use serde_json::{Value, json};
use std::path::Path;
use support::*;
use testing::repository;

const TAPS: [usize; 2] = [1, 5];
const VOCAB: usize = 96;
const RANK: usize = 8;

fn base() -> Value {
    SMALL.dflash2(&TAPS, 90, VOCAB, RANK)
}

fn tensors() -> Vec<Listed> {
    SMALL.dflash2_tensors(VOCAB, RANK)
}

fn opened(path: &Path) -> Drafter {
    open(path, &Overrides::default(), None).unwrap()
}

fn sentence(path: &str, value: Value) -> String {
    refusal(&with(base(), path, value), &tensors(), &Overrides::default(), None)
}

fn from_of(drafter: &Drafter, field: &str) -> String {
    drafter.report.resolved.iter().find(|r| r.field == field).unwrap().from.clone()
}

/// Same configuration and same numbers.
fn assert_same(found: &Drafter, expected: &Drafter, what: &str) {
    assert_eq!(found.config, expected.config, "{what}");
    assert_eq!(found.weights.len(), expected.weights.len(), "{what}");
    for weight in expected.weights.iter() {
        let same = found.weights.get(&weight.name).unwrap();
        let numbers = found.weights.decode(same);
        assert_eq!(numbers, expected.weights.decode(weight), "{what} {}", weight.name);
    }
}

/// The keys that all GGUF dialects share.
fn common(arch: &str) -> Header {
    let mut header = Header::new(arch);
    let entries = &mut header.entries;
    let counts = [
        ("block_count", 3),
        ("context_length", 262_144),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("attention.sliding_window", 2048),
    ];
    for (key, value) in counts {
        entries.u32(&format!("{arch}.{key}"), value);
    }
    entries.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6);
    entries.f32(&format!("{arch}.rope.freq_base"), 1e7);
    entries.bools(&format!("{arch}.attention.sliding_window_pattern"), &[true; 3]);
    header
}

fn second_generation(header: &mut Header, prefix: &str) {
    let counts = [
        ("conv_kernel_size", 2),
        ("conv_group_size", 16),
        ("selector_rank", 8),
        ("selector_top_k", 16),
    ];
    for (key, value) in counts {
        header.entries.u32(&format!("{prefix}.{key}"), value);
    }
}

fn upstream() -> Header {
    let mut header = common("dflash");
    second_generation(&mut header, "dflash");
    header.entries.u32("dflash.block_size", 8);
    header.entries.i32s("dflash.target_layers", &[2, 6]);
    header.entries.u32("tokenizer.ggml.mask_token_id", 90);
    header
}

fn lucebox() -> Header {
    let arch = "qwen35-dflash-draft";
    let mut header = common(arch);
    second_generation(&mut header, &format!("{arch}.dflash.dflash2"));
    header.entries.u32(&format!("{arch}.dflash.block_size"), 8);
    header.entries.u32(&format!("{arch}.dflash.mask_token_id"), 90);
    header.entries.u32(&format!("{arch}.dflash.n_target_layers"), 2);
    header.entries.i32s(&format!("{arch}.dflash.target_layer_ids"), &[1, 5]);
    header.entries.u32(&format!("{arch}.vocab_size"), VOCAB as u32);
    header
}

fn lucebox_name(name: &str) -> String {
    match name {
        "fc.weight" => "dflash.fc.weight".to_owned(),
        "enc.output_norm.weight" => "dflash.hidden_norm.weight".to_owned(),
        "selector_hidden.weight" => "dflash.selector.hproj.weight".to_owned(),
        "selector_predecessor.weight" => "dflash.selector.pred_cb".to_owned(),
        "selector_successor.weight" => "dflash.selector.succ_cb".to_owned(),
        other => other.replace("_conv_base", "_conv.base").replace("_conv_proj", "_conv.proj"),
    }
}

/// An earlier layout of upstream's names.
fn older_name(name: &str) -> String {
    match name {
        "selector_hidden.weight" => "selector.hidden_proj.weight".to_owned(),
        "selector_predecessor.weight" => "selector.pred_codebook".to_owned(),
        "selector_successor.weight" => "selector.succ_codebook".to_owned(),
        other => other.replace("_conv_base", "_conv.base").replace("_conv_proj", "_conv.proj"),
    }
}

#[test]
fn a_folder_as_it_is_published() {
    let folder = filled_folder(&base(), tensors());
    let drafter = opened(folder.path());
    let extras = &drafter.config.extras;
    assert_eq!(extras.kind(), Kind::Dflash2);
    assert_eq!(extras.conv, Some(BlockConv { kernel: 2, group: 16 }));
    assert_eq!(extras.selector, Some(Selector { rank: RANK, top_k: 16, vocab: VOCAB }));
    assert_eq!(extras.scales, Scales::default());
    assert_eq!(drafter.config.block, 8);
    assert_eq!(drafter.config.layer_summary(), "sliding 3 of 3, window 2048, not causal");
    assert_eq!(from_of(&drafter, "causal"), "`is_causal`");
    assert_eq!(
        from_of(&drafter, "selector"),
        "`dflash_config.selector_rank`, `dflash_config.selector_top_k` and rows of \
         `candidate_selector.predecessor_codebook`"
    );
    // 11 of the first generation and 4 convolutions a layer, 3 around them, 3 of the selector.
    assert_eq!(drafter.weights.len(), 3 * 15 + 6);
}

#[test]
fn every_form_of_one_drafter_is_one_drafter() {
    let folder = filled_folder(&base(), tensors());
    let hf = opened(folder.path());
    let prefixed = |mut list: Vec<Listed>, rename: &dyn Fn(&str) -> String| {
        list.iter_mut().for_each(|(name, _)| *name = rename(name));
        opened(filled_folder(&base(), list).path())
    };
    assert_same(&prefixed(tensors(), &|n| format!("model.{n}")), &hf, "prefixed");
    let weighted = |n: &str| match n.ends_with("_codebook") {
        true => format!("{n}.weight"),
        false => n.to_owned(),
    };
    assert_same(&prefixed(tensors(), &weighted), &hf, "codebooks with a suffix");

    // Away from the folder's configuration, which a lucebox file would be read with.
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    let gguf = |header: Header, rename: fn(&str) -> String| {
        write_gguf(&hf, &path, header, rename);
        opened(&path)
    };
    let found = gguf(upstream(), str::to_owned);
    assert_eq!(found.dialect, Dialect::Upstream);
    assert_same(&found, &hf, "upstream");
    assert_same(&gguf(upstream(), older_name), &hf, "older names");
    // What upstream adds for images is not a word about rotary dimensions.
    let mut with_sections = upstream();
    with_sections.entries.i32s("dflash.rope.dimension_sections", &[8, 0, 0, 0]);
    with_sections.entries.bool("dflash.attention.causal", false);
    assert_same(&gguf(with_sections, str::to_owned), &hf, "sections");

    let found = gguf(lucebox(), lucebox_name);
    assert_eq!(found.dialect, Dialect::Lucebox);
    assert_same(&found, &hf, "lucebox");
    let implied = "its selector, as no key says it: no published DFlash 2 drafter is causal";
    assert_eq!(from_of(&found, "causal"), implied);
    let flagged = Overrides { causal: Some(Causality::Sliding), ..Overrides::default() };
    let flagged = open(&path, &flagged, None).unwrap();
    assert!(flagged.config.layers.iter().all(|layer| layer.causal), "a flag wins");

    let mut buun = common("dflash-draft");
    second_generation(&mut buun, "dflash-draft");
    buun.entries.u32("dflash-draft.dflash.block_size", 8);
    buun.entries.u32("dflash-draft.dflash.mask_token_id", 90);
    buun.entries.i32s("dflash-draft.dflash.target_layer_ids", &[1, 5]);
    let found = gguf(buun, str::to_owned);
    assert_eq!(found.dialect, Dialect::Spiritbuun);
    assert_same(&found, &hf, "spiritbuun");
}

#[test]
fn a_bare_file_is_told_by_its_shapes() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("draft.safetensors");
    write_safetensors(&file, &numbered(tensors()));
    let said = Overrides {
        rope_theta: Some(1e7),
        mask_token: Some(90),
        taps: Some(TAPS.to_vec()),
        window: Some(2048),
        block: Some(8),
        ..Overrides::default()
    };
    let drafter = open(&file, &said, None).unwrap();
    assert_eq!(drafter.dialect, Dialect::Bare);
    let extras = &drafter.config.extras;
    assert_eq!(extras.conv, Some(BlockConv { kernel: 2, group: 16 }));
    assert_eq!(extras.selector, Some(Selector { rank: RANK, top_k: 16, vocab: VOCAB }));
    assert!(drafter.config.layers.iter().all(|layer| !layer.causal));
    assert!(from_of(&drafter, "selector").contains("16 in every published DFlash 2 drafter"));
}

#[test]
fn speculators_write_it_flat() {
    let published = opened(filled_folder(&base(), tensors()).path());
    let mut layers = base();
    let inner = layers["dflash_config"].take();
    for key in ["dflash_config", "architectures", "is_causal"] {
        layers.as_object_mut().unwrap().remove(key);
    }
    let mut config = json!({
        "architectures": ["DFlash2DraftModel"], "speculators_model_type": "dflash2",
        "transformer_layer_config": layers, "aux_hidden_state_layer_ids": [2, 6],
        "sample_from_anchor": false, "sliding_window_non_causal": true, "mask_token_id": 90
    });
    for key in
        ["block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
    {
        config[key] = inner[key].clone();
    }
    let found = opened(filled_folder(&config, tensors()).path());
    assert_same(&found, &published, "speculators");
    assert_eq!(from_of(&found, "causal"), "`sliding_window_non_causal`");
    config.as_object_mut().unwrap().remove("sliding_window_non_causal");
    let found = opened(filled_folder(&config, tensors()).path());
    assert_same(&found, &published, "speculators, silent");
}

#[test]
fn factors_on_what_is_borrowed() {
    let mut config = base();
    config["dflash_config"]["output_multiplier"] = json!(0.19611613513818404);
    config["dflash_config"]["final_logit_softcapping"] = json!(20.0);
    config["dflash_config"]["input_embedding_scale"] = json!(2.5);
    let hf = opened(filled_folder(&config, tensors()).path());
    let expected = Scales { embedding: 2.5, logits: 0.196_116_14, softcap: Some(20.0) };
    assert_eq!(hf.config.extras.scales, expected);
    let mut header = upstream();
    header.entries.f32("dflash.logit_scale", 0.196_116_14);
    header.entries.f32("dflash.final_logit_softcapping", 20.0);
    header.entries.f32("dflash.embedding_scale", 2.5);
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    write_gguf(&hf, &path, header, str::to_owned);
    assert_same(&opened(&path), &hf, "upstream");
    assert_eq!(
        sentence("dflash_config.output_multiplier", json!(-1)),
        "logit_scale is -1 by `dflash_config.output_multiplier`; a finite number above 0 expected"
    );
}

#[test]
fn keys_that_are_half_there_or_out_of_range() {
    let cases = [
        (
            "dflash_config.conv_group_size",
            Value::Null,
            "`dflash_config.conv_kernel_size` is there without `conv_group_size`: a drafter with \
             convolutions has both",
        ),
        (
            "dflash_config.conv_kernel_size",
            json!(0),
            "`dflash_config.conv_group_size` is there without `conv_kernel_size`: a drafter with \
             convolutions has both",
        ),
        (
            "dflash_config.selector_top_k",
            Value::Null,
            "`dflash_config.selector_rank` is there without `selector_top_k`: a drafter with a \
             selector has both",
        ),
        (
            "dflash_config.selector_rank",
            Value::Null,
            "`dflash_config.selector_top_k` is there without `selector_rank`: a drafter with a \
             selector has both",
        ),
        (
            "dflash_config.conv_group_size",
            json!(24),
            "channels of a convolution's group is 24 by `dflash_config.conv_group_size`; a divisor \
             of 64, the hidden size, expected",
        ),
        (
            "dflash_config.conv_kernel_size",
            json!(9),
            "convolution taps is 9 by `dflash_config.conv_kernel_size`; 1 to 8, the rows of a \
             block, expected",
        ),
        (
            "dflash_config.conv_kernel_size",
            json!(3),
            "tensor `layers.0.attention_conv.base_kernel` has shape [2, 2, 64], [2, 3, 64] \
             expected",
        ),
        (
            "dflash_config.selector_top_k",
            json!(97),
            "candidates of a position is 97 by `dflash_config.selector_top_k`; 1 to 96, the rows \
             of `candidate_selector.predecessor_codebook`, expected",
        ),
        (
            "dflash_config.selector_rank",
            json!(16),
            "tensor `candidate_selector.predecessor_codebook` has shape [96, 8], [96, 16] expected",
        ),
        (
            "vocab_size",
            json!(100),
            "vocabulary is 100 by `vocab_size`, but 96 by rows of \
             `candidate_selector.predecessor_codebook`",
        ),
    ];
    for (path, value, expected) in cases {
        assert_eq!(sentence(path, value), expected, "{path}");
    }
    let mut target = dense_target_config();
    target.hidden = 64;
    assert_eq!(
        refusal(&base(), &tensors(), &Overrides::default(), Some(&target)),
        "vocabulary is 96 by rows of the drafter's selector, but 4096 by the target"
    );
}

#[test]
fn keys_without_tensors_and_tensors_without_keys() {
    let without = |part: &str, config: &Value| {
        let mut tensors = tensors();
        tensors.retain(|(name, _)| !name.contains(part));
        refusal(config, &tensors, &Overrides::default(), None)
    };
    let lost = "it was lost when the file was made; get another, or convert it anew from its \
                Hugging Face folder";
    assert_eq!(
        without("_conv.", &base()),
        format!(
            "`dflash_config.conv_kernel_size` says that the drafter has convolutions, but tensor \
             `layers.0.attention_conv.base_kernel` is missing: {lost}"
        )
    );
    assert_eq!(
        without("candidate_selector", &base()),
        format!(
            "`dflash_config.selector_rank` says that the drafter has a selector, but tensor \
             `candidate_selector.predecessor_codebook` is missing: {lost}"
        )
    );
    assert_eq!(
        without("hidden_projection", &base()),
        "tensor `candidate_selector.hidden_projection.weight` is missing"
    );
    let mut first = base();
    for key in ["conv_kernel_size", "conv_group_size"] {
        first = with(first, &format!("dflash_config.{key}"), Value::Null);
    }
    assert_eq!(
        refusal(&first, &tensors(), &Overrides::default(), None),
        "tensor `layers.0.attention_conv.base_kernel` is of convolutions, but no key says so: \
         `conv_kernel_size` and `conv_group_size` are missing from the configuration"
    );
    // One part without the other is a drafter: others read them apart too.
    assert_eq!(without("_conv.", &first), "accepted");
    for key in ["selector_rank", "selector_top_k"] {
        first = with(first, &format!("dflash_config.{key}"), Value::Null);
    }
    assert_eq!(
        refusal(&first, &SMALL.tensors(), &Overrides::default(), None),
        "the drafter's kind is DFlash 2 by architecture `DFlash2DraftModel`, but DFlash by its \
         tensors: others were lost on the way; get the file again"
    );
    // Lucebox's script that drops the tensors and keeps the keys.
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    let v1 = opened(filled_folder(&SMALL.nested(&TAPS, 90, 2048), SMALL.tensors()).path());
    write_gguf(&v1, &path, lucebox(), lucebox_name);
    assert_eq!(
        open(&path, &Overrides::default(), None).unwrap_err().to_string(),
        format!(
            "`qwen35-dflash-draft.dflash.dflash2.conv_kernel_size` says that the drafter has \
             convolutions, but tensor `blk.0.attn_conv_base` is missing: {lost}"
        )
    );
}

#[test]
fn reduced_vocabularies_are_refused_by_name() {
    let mut tensors = tensors();
    tensors.push(("d2t".to_owned(), vec![VOCAB]));
    let found = refusal(&base(), &tensors, &Overrides::default(), None);
    assert!(found.starts_with("reduced-vocabulary drafters are not run (tensor `d2t`)"), "{found}");
}

#[test]
fn the_trained_drafter_is_read_with_its_target() {
    let path = repository().join("models/dense/draft2-Q8_0.gguf");
    let drafter = open(&path, &Overrides::default(), Some(&dense_target_config())).unwrap();
    let extras = &drafter.config.extras;
    assert_eq!(extras.conv, Some(BlockConv { kernel: 2, group: 16 }));
    assert_eq!(extras.selector, Some(Selector { rank: 32, top_k: 16, vocab: 4096 }));
    assert_eq!(drafter.config.taps, [1, 3, 5, 6]);
    assert_eq!(drafter.config.layer_summary(), "sliding 2 of 2, window 256, not causal");
    assert_eq!(drafter.report.warnings, [""; 0]);
}
