//! Drafters that disagree with themselves or with their target, each with the exact sentence its
//! owner reads.

mod support;

use checkpoint::{Drafter, Overrides};
use formats::gguf::{Gguf, Header};
use serde_json::{Value, json};
use support::*;

const TAPS: [usize; 2] = [1, 5];

fn base() -> Value {
    SMALL.nested(&TAPS, 9, 32)
}

fn sentence(path: &str, value: Value) -> String {
    refusal(&with(base(), path, value), &SMALL.tensors(), &Overrides::default(), None)
}

fn reshaped(name: &str, shape: &[usize]) -> String {
    let mut tensors = SMALL.tensors();
    let tensor = tensors.iter_mut().find(|(n, _)| n == name).unwrap();
    tensor.1 = shape.to_vec();
    refusal(&base(), &tensors, &Overrides::default(), None)
}

fn extra(name: &str) -> String {
    let mut tensors = SMALL.tensors();
    tensors.push((name.to_owned(), vec![2]));
    refusal(&base(), &tensors, &Overrides::default(), None)
}

#[test]
fn the_base_is_accepted() {
    assert_eq!(refusal(&base(), &SMALL.tensors(), &Overrides::default(), None), "accepted");
}

#[test]
fn configurations_that_disagree_with_the_tensors() {
    let cases = [
        (
            "hidden_size",
            json!(128),
            "hidden is 128 by `hidden_size`, but 64 by shape of `fc.weight`",
        ),
        (
            "num_hidden_layers",
            json!(4),
            "layers is 4 by `num_hidden_layers`, but 3 by count of layers with query weights",
        ),
        (
            "num_attention_heads",
            json!(8),
            "q_heads is 8 by `num_attention_heads`, but 4 by shapes of query weights and norm",
        ),
        (
            "num_key_value_heads",
            json!(4),
            "kv_heads is 4 by `num_key_value_heads`, but 2 by shapes of key weights and norm",
        ),
        ("head_dim", json!(32), "head_dim is 32 by `head_dim`, but 16 by shape of the query norm"),
        (
            "intermediate_size",
            json!(97),
            "ffn is 97 by `intermediate_size`, but 96 by shape of the gate weights",
        ),
        (
            "dflash_config.target_layer_ids",
            json!([1, 3, 5]),
            "tap count is 3 by `dflash_config.target_layer_ids`, but 2 by shape of `fc.weight`",
        ),
        (
            "dflash_config.target_layer_ids",
            json!([-1, 3]),
            "a tap is [-1, 3] by `dflash_config.target_layer_ids`; target layers counted from 0 \
             expected",
        ),
        (
            "dflash_config.target_layer_ids",
            json!("1,5"),
            "`dflash_config.target_layer_ids` is \"1,5\", a list of integers expected",
        ),
        (
            "layer_types",
            json!(["full_attention"]),
            "layer count is 1 by `layer_types`, but 3 by count of layers with query weights",
        ),
        (
            "layer_types",
            json!(["full_attention", "chunked_attention", "full_attention"]),
            "a drafter layer of type `chunked_attention` is not supported (`layer_types`)",
        ),
        (
            "dflash_config.block_size",
            json!(1),
            "block size is 1 by `dflash_config.block_size`; 2 to 256 expected",
        ),
        (
            "dflash_config.block_size",
            json!(1000),
            "block size is 1000 by `dflash_config.block_size`; 2 to 256 expected",
        ),
        (
            "dflash_config.block_size",
            json!(-3),
            "`dflash_config.block_size` is -3, a non-negative integer expected",
        ),
        (
            "dflash_config.mask_token_id",
            json!(1u64 << 40),
            "mask token is 1099511627776 by `dflash_config.mask_token_id`; a token id expected",
        ),
        (
            "rms_norm_eps",
            json!(0.0),
            "norm epsilon is 0 by `rms_norm_eps`; a small positive number expected",
        ),
        (
            "rope_parameters.rope_theta",
            json!(0),
            "rope theta is 0 by `rope_parameters.rope_theta`; a finite number above 1 expected",
        ),
        (
            "rope_parameters.rope_type",
            json!("linear"),
            "`linear` rope scaling is not supported (`rope_parameters.rope_type`)",
        ),
        (
            "rope_parameters",
            json!({"full_attention": {"rope_theta": 1e7}}),
            "a set of rope parameters for `full_attention` layers alone is not supported \
             (`rope_parameters`)",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "rope_theta": 1e7, "factor": 64.0}),
            "`rope_parameters.original_max_position_embeddings` is missing from the configuration",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "rope_theta": 1e7, "factor": 0.5,
                "original_max_position_embeddings": 512}),
            "YaRN scaling is factor 0.5 by `rope_parameters.rope_type`; a factor of at least 1 \
             expected",
        ),
        (
            "rope_parameters",
            json!({"rope_type": "yarn", "rope_theta": 1e7, "factor": 64.0, "attention_factor": 1.0,
                "original_max_position_embeddings": 512}),
            "YaRN attention factor is 1 by `rope_parameters.attention_factor`, but 1.4158883 by \
             0.1 ln(factor) + 1",
        ),
        (
            "dflash_config.target_layer_ids",
            json!([3, 3]),
            "a tap is 3 twice in [3, 3] by `dflash_config.target_layer_ids`; each layer once \
             expected",
        ),
        (
            "rope_scaling",
            json!({"factor": 4.0}),
            "rope scaling that names no type is not supported (`rope_scaling.factor`)",
        ),
        (
            "sample_from_anchor",
            json!(true),
            "a DFlash drafter whose anchor row proposes is not supported (`sample_from_anchor`)",
        ),
        (
            "max_position_embeddings",
            json!(1u64 << 33),
            "context length is 8589934592 by `max_position_embeddings`; 1 to 16777216 expected",
        ),
        (
            "attention_bias",
            json!(true),
            "attention with biases is not supported (`attention_bias`)",
        ),
        ("hidden_act", json!("gelu"), "activation `gelu` is not supported (`hidden_act`)"),
        (
            "partial_rotary_factor",
            json!(0.25),
            "a drafter that rotates 0.25 of its head is not supported (`partial_rotary_factor`)",
        ),
        (
            "num_target_layers",
            json!(4),
            "a tap is 5 of [1, 5] by the drafter; 0 to 3, for the 4 layers of `num_target_layers`, \
             expected",
        ),
        ("is_causal", json!("no"), "`is_causal` is \"no\", true or false expected"),
    ];
    for (path, value, expected) in cases {
        assert_eq!(sentence(path, value), expected, "{path}");
    }
}

#[test]
fn what_nothing_says_is_asked_for() {
    let ask = |path: &str| sentence(path, Value::Null);
    assert_eq!(
        ask("rope_parameters.rope_theta"),
        "nothing in the file says its rope theta: give `--draft-rope-theta` (10000000 for Qwen3.5 \
         and later)"
    );
    assert_eq!(
        ask("dflash_config.mask_token_id"),
        "nothing in the file says its mask token: give `--draft-mask-token` (248070 for Qwen3.5 \
         and 3.6 drafters with 2 taps)"
    );
    assert_eq!(
        ask("dflash_config.target_layer_ids"),
        "nothing in the file says which target layers it reads: give `--draft-taps`"
    );
    assert_eq!(
        ask("dflash_config.block_size"),
        "nothing in the file says its block size: give `--draft-block` (16 in most drafters)"
    );
    let window = "give `--draft-window` (2048 for Qwen3.6-27B drafters of April, 4096 for those of \
                  June: 2 sliding layers and a full one; 0 if every layer is full)";
    assert_eq!(
        ask("sliding_window"),
        format!("nothing in the file says how far its sliding layers look: {window}")
    );
    assert_eq!(
        ask("layer_types"),
        format!("nothing in the file says which of its layers slide: {window}")
    );
    let off = sentence("use_sliding_window", json!(false));
    assert_eq!(off, format!("nothing in the file says how far its sliding layers look: {window}"));
}

#[test]
fn tensors_that_disagree_with_each_other() {
    assert_eq!(
        reshaped("fc.weight", &[64, 100]),
        "fc.weight's columns is 100 by shape of `fc.weight`; a multiple of 64 expected"
    );
    assert_eq!(
        reshaped("fc.weight", &[128]),
        "tensor `fc.weight` has shape [128], a matrix expected"
    );
    assert_eq!(
        reshaped("layers.0.self_attn.q_proj.weight", &[60, 64]),
        "query rows is 60 by shape of `layers.0.self_attn.q_proj.weight`; a multiple of 16 expected"
    );
    assert_eq!(
        reshaped("layers.0.self_attn.k_proj.weight", &[48, 64]),
        "attention is 4 query heads over 3 key heads by shapes of \
         `layers.0.self_attn.q_proj.weight` and `layers.0.self_attn.k_proj.weight`; a whole number \
         of query heads per key head expected"
    );
    let shape = "tensor `layers.2.mlp.down_proj.weight` has shape [64, 95], [64, 96] expected";
    assert_eq!(reshaped("layers.2.mlp.down_proj.weight", &[64, 95]), shape);
    assert_eq!(
        reshaped("norm.weight", &[63]),
        "tensor `norm.weight` has shape [63], [64] expected"
    );
    let mut tensors = SMALL.tensors();
    tensors.retain(|(name, _)| name != "layers.1.self_attn.k_norm.weight");
    let missing = refusal(&base(), &tensors, &Overrides::default(), None);
    assert_eq!(missing, "tensor `layers.1.self_attn.k_norm.weight` is missing");
    tensors.retain(|(name, _)| name != "fc.weight");
    assert_eq!(
        refusal(&base(), &tensors, &Overrides::default(), None),
        "tensor `fc.weight` is missing"
    );
    assert_eq!(extra("rotary.weight"), "1 tensors are not part of the model: `rotary.weight`");
}

#[test]
fn relatives_are_refused_by_name() {
    let rest = "DFlash, DFlash 2, DSpark and JetSpec drafters are, and a target's own MTP block \
                drafts without any";
    let cases = [
        ("midlayer.self_attn.q_proj.weight", "EAGLE-3"),
        ("prefix_gru.weight_ih_l0", "Domino"),
        ("d2t", "reduced-vocabulary"),
        ("layers.0.self_attn.g_proj.weight", "Laguna DFlash"),
        ("layers.0.self_attn.attention_sink_bias", "MiMo DFlash"),
        ("layers.0.mlp.experts.0.gate_proj.weight", "mixture-of-experts"),
    ];
    for (name, variant) in cases {
        assert_eq!(
            extra(name),
            format!("{variant} drafters are not run (tensor `{name}`): {rest}")
        );
    }
    let names = [
        ("LlamaForCausalLMEagle3", "EAGLE-3"),
        ("Eagle3DraftModel", "EAGLE-3"),
        ("PEagleDraftModel", "P-EAGLE"),
        ("DominoDraftModel", "Domino"),
        ("XPressSpeculator", "XPress"),
    ];
    for (name, variant) in names {
        let sign = format!("architecture `{name}`");
        assert_eq!(
            sentence("architectures", json!([name])),
            format!("{variant} drafters are not run ({sign}): {rest}")
        );
    }
    let keys = [
        ("dflash_config.projector_type", "domino", "Domino"),
        ("speculators_model_type", "xpress", "XPress"),
        ("speculators_model_type", "eagle3", "EAGLE-3"),
    ];
    for (key, value, variant) in keys {
        assert_eq!(
            sentence(key, json!(value)),
            format!("{variant} drafters are not run (`{key}`): {rest}")
        );
    }
    assert_eq!(
        sentence("num_experts", json!(16)),
        "a drafter with 16 experts is not supported (`num_experts`)"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let keys = |gguf: &Gguf, header: &mut Header| {
        gguf.metadata().skip(1).for_each(|(key, value)| header.entries.copy(key, value));
    };
    rewrite_gguf(&dense_drafter(), &path, "eagle3", keys, str::to_owned);
    assert_eq!(
        Drafter::open(&path, &Overrides::default(), None).unwrap_err().to_string(),
        format!("EAGLE-3 drafters are not run (architecture `eagle3`): {rest}")
    );
}

#[test]
fn copies_of_what_the_target_has_are_left_alone() {
    let mut tensors = SMALL.tensors();
    tensors.push(("embed_tokens.weight".into(), vec![100, 64]));
    tensors.push(("lm_head.weight".into(), vec![100, 64]));
    let config = with(base(), "vocab_size", json!(100));
    let folder = folder(&config, &tensors);
    let drafter = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    assert_eq!(drafter.report.skipped, ["embed_tokens.weight", "lm_head.weight"]);
    assert_eq!(
        drafter.report.warnings,
        [
            "the drafter carries a copy of `embed_tokens.weight`; the target's is used",
            "the drafter carries a copy of `lm_head.weight`; the target's is used",
        ]
    );
    let smaller = with(base(), "vocab_size", json!(200));
    assert_eq!(
        refusal(&smaller, &tensors, &Overrides::default(), None),
        "tensor `embed_tokens.weight` has shape [100, 64], [200, 64] expected"
    );
}

#[test]
fn a_target_in_a_drafters_place_is_refused() {
    let sentence =
        Drafter::open(&dense_target(), &Overrides::default(), None).unwrap_err().to_string();
    assert_eq!(sentence, "this is a target, a drafter was expected");
    let sentence = checkpoint::Target::open(&dense_drafter()).unwrap_err().to_string();
    assert_eq!(sentence, "this is a drafter, a target was expected");
}

#[test]
fn drafters_that_do_not_fit_their_target() {
    let mut target = dense_target_config();
    let config = || {
        let size = Size {
            hidden: 256,
            layers: 2,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 128,
            ffn: 768,
            taps: 2,
        };
        (size.nested(&[1, 5], 4090, 32), size.tensors())
    };
    let pair =
        |path: &str, value: Value, target: &checkpoint::TargetConfig, overrides: &Overrides| {
            let (base, tensors) = config();
            refusal(&with(base, path, value), &tensors, overrides, Some(target))
        };
    let plain = Overrides::default();
    assert_eq!(pair("is_causal", Value::Null, &target, &plain), "accepted");
    // A padding row may be the mask; a row beyond the embedding may not.
    assert_eq!(pair("dflash_config.mask_token_id", json!(4095), &target, &plain), "accepted");
    assert_eq!(
        pair("dflash_config.mask_token_id", json!(4096), &target, &plain),
        "mask token is 4096 by the drafter; a row of the target's embedding, below 4096, expected"
    );
    assert_eq!(
        pair("dflash_config.target_layer_ids", json!([1, 8]), &target, &plain),
        "a tap is 8 of [1, 8] by the drafter; 0 to 7, for the 8 layers of the target, expected"
    );
    assert_eq!(
        pair("num_target_layers", json!(64), &target, &plain),
        "the target's layer count is 64 by `num_target_layers`, but 8 by the target"
    );
    assert_eq!(
        pair("rope_parameters.rope_theta", json!(1e6), &target, &plain),
        "rope theta is 1000000 by `rope_parameters.rope_theta`, but 10000000 by the target: old \
         converters wrote 1e6 by mistake; give `--draft-rope-theta 10000000` (or `1000000`) to say \
         which is right"
    );
    let confirmed = Overrides { rope_theta: Some(1e6), ..plain.clone() };
    assert_eq!(pair("rope_parameters.rope_theta", json!(1e6), &target, &confirmed), "accepted");
    target.hidden = 512;
    assert_eq!(
        pair("is_causal", Value::Null, &target, &plain),
        "hidden size is 256 by the drafter, but 512 by the target"
    );
    // The MoE drafter on the dense target: its folder says how many layers its own target has.
    let moe = Drafter::open(&moe_drafter(), &plain, Some(&dense_target_config())).unwrap();
    assert_eq!(moe.config.taps, [0, 1, 2], "the GGUF does not say, and runs");
    let warning = "taps [0, 1, 2] end at 2 in a target of 8 layers, where drafters read nearly to \
                   the last: it seems to have been trained for another target, of which few \
                   drafts would be accepted";
    assert_eq!(moe.report.warnings, [warning]);
}

#[test]
fn taps_of_the_other_counting_draw_a_warning() {
    let size =
        Size { hidden: 256, layers: 2, q_heads: 4, kv_heads: 2, head_dim: 128, ffn: 768, taps: 3 };
    let mut target = dense_target_config();
    target.layers = vec![checkpoint::target::Mixer::Gdn; 64];
    let warnings = |taps: &[usize]| {
        let folder = folder(&size.nested(taps, 9, 32), &size.tensors());
        Drafter::open(folder.path(), &Overrides::default(), Some(&target)).unwrap().report.warnings
    };
    assert_eq!(warnings(&[1, 31, 61]), [""; 0]);
    let shifted = warnings(&[2, 32, 62]);
    assert_eq!(
        shifted,
        ["taps [2, 32, 62] start at 2 and end at 62 in a target of 64 layers, one more than \
             usual: a list counted from 1 (llama.cpp's `target_layers`) seems to have been meant; \
             if acceptance is low, compare `--draft-taps 1,31,61`"]
    );
    assert!(warnings(&[0, 30, 60])[0].contains("one less than usual"));
}

#[test]
fn conflicting_keys_draw_a_warning_and_the_nested_one_wins() {
    let mut config = base();
    config["block_size"] = json!(8);
    config["mask_token_id"] = json!(7);
    config["rope_theta"] = json!(1e6);
    config["vocab_size"] = json!(100);
    let folder = folder(&config, &SMALL.tensors());
    let mut target = dense_target_config();
    target.hidden = 64;
    let drafter = Drafter::open(folder.path(), &Overrides::default(), Some(&target)).unwrap();
    assert_eq!(
        (drafter.config.block, drafter.config.mask_token, drafter.config.rope.theta),
        (16, 9, 1e7)
    );
    assert_eq!(
        drafter.report.warnings,
        [
            "block size is 16 by `dflash_config.block_size`, but 8 by `block_size`; the first is \
             taken",
            "mask token is 9 by `dflash_config.mask_token_id`, but 7 by `mask_token_id`; the first \
             is taken",
            "rope theta is 10000000 by `rope_parameters.rope_theta`, but 1000000 by `rope_theta`; \
             the first is taken",
            "the drafter was made for a vocabulary of 100 (`vocab_size`), the target's embedding \
             has 4096 rows",
        ]
    );
}

#[test]
fn numbers_that_are_no_weights_are_left_alone() {
    let folder = folder(&base(), &SMALL.tensors());
    let path = folder.path().join("model.safetensors");
    let open_with = |extra: &str, dtype: &str| {
        let (list, name, shape) = (SMALL.tensors(), extra.to_owned(), vec![4]);
        let mut typed: Vec<_> = list.iter().map(|(name, shape)| (name, "BF16", shape)).collect();
        typed.push((&name, dtype, &shape));
        typed_safetensors(&path, &typed);
        Drafter::open(folder.path(), &Overrides::default(), None).map_err(|e| e.to_string())
    };
    for (name, dtype) in [("position_ids", "I64"), ("seen", "BOOL")] {
        assert_eq!(open_with(name, dtype).unwrap().report.skipped, [name]);
    }
    // A table of words is what it is, whatever its type.
    let reduced = open_with("d2t", "I64").unwrap_err();
    assert!(reduced.starts_with("reduced-vocabulary drafters are not run"), "{reduced}");
    let reduced = open_with("t2d", "BOOL").unwrap_err();
    assert!(reduced.starts_with("reduced-vocabulary drafters are not run"), "{reduced}");
}
