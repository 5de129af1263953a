//! Targets whose files contradict themselves are refused with both values named.

mod support;

use checkpoint::{Error, Target};
use formats::gguf::{Gguf, Header};
use serde_json::{Value, json};
use support::hf::{Tensor, config, to_hf};
use support::*;

/// The sentence a changed GGUF target is refused with.
fn gguf_refusal(
    architecture: &str,
    entries: impl Fn(&Gguf, &mut Header),
    tensor: impl Fn(&str, &[usize]) -> Option<Tensor>,
) -> String {
    let source = Gguf::open(&dense_target()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let mut header = Header::new(architecture);
    entries(&source, &mut header);
    for t in source.tensors() {
        match tensor(&t.name, &t.shape) {
            None => header.tensor(&t.name, t.ty, &t.shape),
            Some((name, ..)) if name.is_empty() => {}
            Some((name, shape, _)) => header.tensor(&name, formats::BlockType::F32, &shape),
        }
    }
    sparse_gguf(&path, &header);
    Target::open(&path).map_or_else(|e: Error| e.to_string(), |_| "accepted".to_owned())
}

#[test]
fn a_gguf_that_contradicts_itself_is_refused() {
    let keep = |_: &str, _: &[usize]| None;
    let all = |gguf: &Gguf, header: &mut Header| {
        gguf.metadata().skip(1).for_each(|(key, value)| header.entries.copy(key, value));
    };
    let changed = |change: &'static str, value: u32| {
        move |gguf: &Gguf, header: &mut Header| {
            for (key, old) in gguf.metadata().skip(1) {
                if key == change {
                    header.entries.u32(key, value)
                } else {
                    header.entries.copy(key, old)
                }
            }
        }
    };
    let without = |gone: &'static str| {
        move |gguf: &Gguf, header: &mut Header| {
            let kept = gguf.metadata().skip(1).filter(|(key, _)| *key != gone);
            kept.for_each(|(key, value)| header.entries.copy(key, value));
        }
    };
    assert_eq!(gguf_refusal("qwen35", all, keep), "accepted");
    assert_eq!(
        gguf_refusal("llama", all, keep),
        "`llama` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash drafters are"
    );
    let shape = |key, value| gguf_refusal("qwen35", changed(key, value), keep);
    assert_eq!(
        shape("qwen35.embedding_length", 512),
        "tensor `token_embd.weight` has shape [4096, 256], [4096, 512] expected"
    );
    assert_eq!(
        shape("qwen35.attention.head_count", 8),
        "tensor `blk.3.attn_q.weight` has shape [2048, 256], [4096, 256] expected"
    );
    assert_eq!(
        shape("qwen35.attention.head_count", 3),
        "attention is 3 query heads over 2 key heads by the configuration; a whole number of query \
         heads per key head expected"
    );
    assert_eq!(
        shape("qwen35.attention.value_length", 128),
        "head_dim is 256 by `qwen35.attention.key_length`, but 128 by \
         `qwen35.attention.value_length`"
    );
    assert_eq!(
        shape("qwen35.feed_forward_length", 700),
        "tensor `blk.0.ffn_gate.weight` has shape [768, 256], [700, 256] expected"
    );
    assert_eq!(
        shape("qwen35.ssm.inner_size", 1024),
        "GDN value width is 1024 by `qwen35.ssm.inner_size`, but 768 by \
         `qwen35.ssm.time_step_rank` times `qwen35.ssm.state_size`"
    );
    assert_eq!(
        shape("qwen35.ssm.conv_kernel", 5),
        "tensor `blk.0.ssm_conv1d.weight` has shape [1280, 4], [1280, 5] expected"
    );
    assert_eq!(
        shape("qwen35.full_attention_interval", 2),
        "the mixer of layer 1 is attention by `qwen35.full_attention_interval`, but Gated DeltaNet \
         by tensor `blk.1.attn_qkv.weight`"
    );
    assert_eq!(
        shape("qwen35.full_attention_interval", 0),
        "attention_interval is 0 by `qwen35.full_attention_interval`; 1 to 16777216 expected"
    );
    assert_eq!(
        shape("qwen35.block_count", 4_000_000_000),
        "blocks is 4000000000 by `qwen35.block_count`; 1 to 256 expected"
    );
    assert_eq!(
        shape("qwen35.block_count", 10),
        "the mixer of layer 8 is Gated DeltaNet by `qwen35.full_attention_interval`, but attention \
         by tensor `blk.8.attn_q.weight`"
    );
    assert_eq!(
        shape("qwen35.nextn_predict_layers", 2),
        "a model with 2 MTP blocks of 9 blocks is not supported (`qwen35.nextn_predict_layers`)"
    );
    assert_eq!(
        shape("qwen35.rope.dimension_count", 512),
        "rotary dimensions is 512 by the configuration; an even number up to the head's width \
         expected"
    );
    assert_eq!(
        gguf_refusal("qwen35", without("qwen35.rope.freq_base"), keep),
        "`qwen35.rope.freq_base` is missing from the configuration"
    );
    let dropped = |name: &str, shape: &[usize]| {
        (name == "blk.2.ssm_a").then(|| (String::new(), shape.to_vec(), vec![]))
    };
    assert_eq!(gguf_refusal("qwen35", all, dropped), "tensor `blk.2.ssm_a` is missing");
    let renamed = |name: &str, shape: &[usize]| {
        (name == "blk.2.ssm_norm.weight")
            .then(|| ("blk.2.ssm_norm.scale".into(), shape.to_vec(), vec![]))
    };
    assert_eq!(gguf_refusal("qwen35", all, renamed), "tensor `blk.2.ssm_norm.weight` is missing");
    // An addition, such as NVFP4's scales, is not ignored.
    let added = |gguf: &Gguf, header: &mut Header| {
        all(gguf, header);
        header.tensor("blk.0.ffn_up.scale", formats::BlockType::F32, &[1]);
    };
    assert_eq!(
        gguf_refusal("qwen35", added, keep),
        "1 tensors are not part of the model: `blk.0.ffn_up.scale`"
    );
    let many = |gguf: &Gguf, header: &mut Header| {
        all(gguf, header);
        (0..20).for_each(|i| header.tensor(&format!("x.{i}"), formats::BlockType::F32, &[1]));
    };
    let sentence = gguf_refusal("qwen35", many, keep);
    assert!(
        sentence.starts_with("20 tensors are not part of the model: `x.0`, `x.1`")
            && sentence.ends_with("`x.7`")
    );
}

#[test]
fn a_folder_that_contradicts_itself_is_refused() {
    let source = Gguf::open(&dense_target()).unwrap();
    let listed: Vec<Listed> =
        to_hf(&source, "model.", 8, false).into_iter().map(|(n, s, _)| (n, s)).collect();
    let refuse = |path: &[&str], value: Value| {
        let mut config = config(false);
        let mut at = &mut config;
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        let folder = folder(&config, &listed);
        Target::open(folder.path()).map_or_else(|e| e.to_string(), |_| "accepted".to_owned())
    };
    let cases: [(&[&str], Value, &str); 13] = [
        (
            &["architectures"],
            json!(["LlamaForCausalLM"]),
            "`LlamaForCausalLM` is not a model Forerun runs: Qwen3.5/3.6/3.8 targets and DFlash \
             drafters are",
        ),
        (
            &["hidden_size"],
            json!("256"),
            "`hidden_size` is \"256\", a non-negative integer expected",
        ),
        (&["hidden_size"], Value::Null, "`hidden_size` is missing from the configuration"),
        (
            &["vocab_size"],
            json!(4000),
            "tensor `model.embed_tokens.weight` has shape [4096, 256], [4000, 256] expected",
        ),
        (
            &["layer_types"],
            json!(["full_attention"]),
            "layer count is 1 by `layer_types`, but 8 by `num_hidden_layers`",
        ),
        (
            &["layer_types"],
            json!(["full_attention", 1]),
            "`layer_types` is [\"full_attention\",1], a list of strings expected",
        ),
        (
            &["rope_parameters", "rope_theta"],
            Value::Null,
            "`rope_parameters.rope_theta` is missing from the configuration",
        ),
        (
            &["rope_parameters", "rope_theta"],
            json!(0.5),
            "rope theta is 0.5 by `rope_parameters.rope_theta`; a finite number above 1 expected",
        ),
        (
            &["rope_theta"],
            json!(5e5),
            "rope theta is 10000000 by `rope_parameters.rope_theta`, but 500000 by `rope_theta`",
        ),
        (
            &["rope_parameters", "rope_type"],
            json!("longrope"),
            "`longrope` rope scaling is not supported (`rope_parameters.rope_type`)",
        ),
        (&["hidden_act"], json!("gelu"), "activation `gelu` is not supported (`hidden_act`)"),
        (
            &["mtp_num_hidden_layers"],
            json!(3),
            "a model with 3 MTP blocks is not supported (`mtp_num_hidden_layers`)",
        ),
        (
            &["linear_value_head_dim"],
            json!(64),
            "GDN head_dim is 128 by `linear_key_head_dim`, but 64 by `linear_value_head_dim`",
        ),
    ];
    for (path, value, sentence) in cases {
        assert_eq!(refuse(path, value), sentence, "{path:?}");
    }
}
