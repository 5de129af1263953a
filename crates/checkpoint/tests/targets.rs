//! One target in every form: the tiny GGUFs rewritten as Hugging Face checkpoints must read as the
//! same model, number for number.

mod support;

use checkpoint::target::{Ffn, Mixer};
use checkpoint::{Error, Target};
use formats::gguf::{Gguf, Header};
use serde_json::{Value, json};
use std::path::Path;
use support::*;

type Tensor = (String, Vec<usize>, Vec<f32>);

/// Puts canonical value heads back into Hugging Face's groups: head `k * per_key + i` is canonical
/// `i * key_heads + k`.
fn group(values: &[f32], unit: usize, key_heads: usize, per_key: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for set in values.chunks_exact(unit * key_heads * per_key) {
        for k in 0..key_heads {
            for i in 0..per_key {
                let canonical = i * key_heads + k;
                out.extend_from_slice(&set[canonical * unit..(canonical + 1) * unit]);
            }
        }
    }
    out
}

/// A GGUF target as Hugging Face would store it, in F32.
fn to_hf(gguf: &Gguf, prefix: &str, layers: usize, experts_apart: bool) -> Vec<Tensor> {
    const KEY_HEADS: usize = 2;
    const PER_KEY: usize = 3;
    const DIM: usize = 128;
    let mut out: Vec<Tensor> = Vec::new();
    let mut gate_up: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (name, mut shape, values) in decoded(gguf) {
        let less_one = || values.iter().map(|x| x - 1.0).collect::<Vec<f32>>();
        let grouped = |unit: usize| group(&values, unit, KEY_HEADS, PER_KEY);
        // The rows before the values (queries and keys) stay where they are.
        let grouped_from = |first: usize, unit: usize| {
            let (head, tail) = values.split_at(first);
            [head.to_vec(), group(tail, unit, KEY_HEADS, PER_KEY)].concat()
        };
        let Some(rest) = name.strip_prefix("blk.") else {
            let (hf, values) = match name.as_str() {
                "token_embd.weight" => (format!("{prefix}embed_tokens.weight"), values.clone()),
                "output_norm.weight" => (format!("{prefix}norm.weight"), less_one()),
                "output.weight" => ("lm_head.weight".to_owned(), values.clone()),
                other => panic!("{other}"),
            };
            out.push((hf, shape, values));
            continue;
        };
        let (index, part) = rest.split_once('.').unwrap();
        let index: usize = index.parse().unwrap();
        let block = if index < layers {
            format!("{prefix}layers.{index}")
        } else {
            "mtp.layers.0".to_owned()
        };
        let hidden = 256;
        let (hf, values) = match part {
            "attn_norm.weight" => (format!("{block}.input_layernorm.weight"), less_one()),
            "post_attention_norm.weight" => {
                (format!("{block}.post_attention_layernorm.weight"), less_one())
            }
            "attn_q_norm.weight" => (format!("{block}.self_attn.q_norm.weight"), less_one()),
            "attn_k_norm.weight" => (format!("{block}.self_attn.k_norm.weight"), less_one()),
            "attn_q.weight" => (format!("{block}.self_attn.q_proj.weight"), values.clone()),
            "attn_k.weight" => (format!("{block}.self_attn.k_proj.weight"), values.clone()),
            "attn_v.weight" => (format!("{block}.self_attn.v_proj.weight"), values.clone()),
            "attn_output.weight" => (format!("{block}.self_attn.o_proj.weight"), values.clone()),
            "attn_qkv.weight" => (
                format!("{block}.linear_attn.in_proj_qkv.weight"),
                grouped_from(512 * hidden, DIM * hidden),
            ),
            "attn_gate.weight" => {
                (format!("{block}.linear_attn.in_proj_z.weight"), grouped(DIM * hidden))
            }
            "ssm_alpha.weight" => {
                (format!("{block}.linear_attn.in_proj_a.weight"), grouped(hidden))
            }
            "ssm_beta.weight" => (format!("{block}.linear_attn.in_proj_b.weight"), grouped(hidden)),
            "ssm_conv1d.weight" => {
                shape = vec![1280, 1, 4];
                (format!("{block}.linear_attn.conv1d.weight"), grouped_from(512 * 4, DIM * 4))
            }
            "ssm_dt.bias" => (format!("{block}.linear_attn.dt_bias"), grouped(1)),
            "ssm_a" => {
                let logs = grouped(1).iter().map(|a| (-a).ln()).collect();
                (format!("{block}.linear_attn.A_log"), logs)
            }
            "ssm_norm.weight" => (format!("{block}.linear_attn.norm.weight"), values.clone()),
            "ssm_out.weight" => (format!("{block}.linear_attn.out_proj.weight"), grouped(DIM)),
            "ffn_gate.weight" => (format!("{block}.mlp.gate_proj.weight"), values.clone()),
            "ffn_up.weight" => (format!("{block}.mlp.up_proj.weight"), values.clone()),
            "ffn_down.weight" => (format!("{block}.mlp.down_proj.weight"), values.clone()),
            "nextn.eh_proj.weight" => ("mtp.fc.weight".to_owned(), values.clone()),
            "nextn.enorm.weight" => ("mtp.pre_fc_norm_embedding.weight".to_owned(), less_one()),
            "nextn.hnorm.weight" => ("mtp.pre_fc_norm_hidden.weight".to_owned(), less_one()),
            "nextn.shared_head_norm.weight" => ("mtp.norm.weight".to_owned(), less_one()),
            "ffn_gate_inp.weight" => (format!("{block}.mlp.gate.weight"), values.clone()),
            "ffn_gate_inp_shexp.weight" => {
                shape = vec![1, hidden];
                (format!("{block}.mlp.shared_expert_gate.weight"), values.clone())
            }
            "ffn_gate_shexp.weight" => {
                (format!("{block}.mlp.shared_expert.gate_proj.weight"), values.clone())
            }
            "ffn_up_shexp.weight" => {
                (format!("{block}.mlp.shared_expert.up_proj.weight"), values.clone())
            }
            "ffn_down_shexp.weight" => {
                (format!("{block}.mlp.shared_expert.down_proj.weight"), values.clone())
            }
            "ffn_gate_exps.weight" | "ffn_up_exps.weight" | "ffn_down_exps.weight" => {
                let part = part.strip_prefix("ffn_").unwrap().strip_suffix("_exps.weight").unwrap();
                if experts_apart {
                    for (e, expert) in values.chunks_exact(shape[1] * shape[2]).enumerate() {
                        let name = format!("{block}.mlp.experts.{e}.{part}_proj.weight");
                        out.push((name, shape[1..].to_vec(), expert.to_vec()));
                    }
                } else if part == "down" {
                    out.push((format!("{block}.mlp.experts.down_proj"), shape, values.clone()));
                } else {
                    gate_up.push((format!("{block} {part}"), shape, values.clone()));
                }
                continue;
            }
            other => panic!("{other}"),
        };
        out.push((hf, shape, values));
    }
    for (name, shape, gate) in gate_up.iter().filter(|(name, ..)| name.ends_with(" gate")) {
        let block = name.strip_suffix(" gate").unwrap();
        let up = &gate_up.iter().find(|(n, ..)| *n == format!("{block} up")).unwrap().2;
        let size = shape[1] * shape[2];
        let fused =
            gate.chunks(size).zip(up.chunks(size)).flat_map(|(g, u)| [g, u].concat()).collect();
        out.push((
            format!("{block}.mlp.experts.gate_up_proj"),
            vec![shape[0], 2 * shape[1], shape[2]],
            fused,
        ));
    }
    out
}

fn config(moe: bool) -> Value {
    let layers = if moe { 4 } else { 8 };
    let types: Vec<&str> = (1..=layers)
        .map(|n| if n % 4 == 0 { "full_attention" } else { "linear_attention" })
        .collect();
    let mut config = json!({
        "architectures": ["Qwen3_5ForCausalLM"], "hidden_act": "silu", "vocab_size": 4096,
        "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_parameters":
            {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "layer_types": types,
        "mtp_num_hidden_layers": 1
    });
    if moe {
        let extra = json!({"architectures": ["Qwen3_5MoeForCausalLM"], "moe_intermediate_size": 256,
            "shared_expert_intermediate_size": 256, "num_experts_per_tok": 4, "num_experts": 16,
            "mtp_num_hidden_layers": 0});
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    }
    config
}

/// Every weight decodes to the same numbers. Norms went through `x - 1` and `A_log` through a
/// logarithm, which round; everything else must be equal to the last bit.
fn assert_same(left: &Target, right: &Target) {
    assert_eq!(left.config, right.config);
    assert_eq!(left.weights.len(), right.weights.len());
    for weight in left.weights.iter() {
        let same =
            right.weights.get(&weight.name).unwrap_or_else(|| panic!("{} is missing", weight.name));
        let (a, b) = (left.weights.decode(weight), right.weights.decode(same));
        let rounds = (weight.name.contains("norm") && !weight.name.contains("ssm_norm"))
            || weight.name.contains("ssm_a");
        let tolerance = if rounds && !weight.name.contains("alpha") { 1e-6 } else { 0.0 };
        assert_eq!(a.len(), b.len());
        let worst =
            a.iter().zip(&b).map(|(x, y)| (x - y).abs() / x.abs().max(1.0)).fold(0.0, f32::max);
        assert!(worst <= tolerance, "{}: {worst}", weight.name);
    }
}

fn write(folder: &Path, config: &Value, tensors: &[Tensor]) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    write_safetensors(&folder.join("model.safetensors"), tensors);
}

#[test]
fn dense_gguf_and_folder_are_one_model() {
    let gguf = Target::open(&dense_target()).unwrap();
    let layers: Vec<Mixer> =
        (1..=8).map(|n| if n % 4 == 0 { Mixer::Attention } else { Mixer::Gdn }).collect();
    assert_eq!(gguf.config.layers, layers);
    assert_eq!(gguf.config.ffn, Ffn::Dense { width: 768 });
    assert!(gguf.config.mtp.as_ref().unwrap().own_norm && !gguf.config.tied_head);
    assert_eq!((gguf.config.attention.rotary_dims, gguf.config.gdn.conv_channels()), (64, 1280));
    assert_eq!(gguf.weights.len(), 124);

    let source = Gguf::open(&dense_target()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(false), &to_hf(&source, "model.", 8, false));
    assert_same(&gguf, &Target::open(folder.path()).unwrap());
}

#[test]
fn a_multimodal_checkpoint_gives_its_language_model() {
    let source = Gguf::open(&dense_target()).unwrap();
    let mut tensors = to_hf(&source, "model.language_model.", 8, false);
    tensors.push(("model.visual.patch_embed.weight".into(), vec![4], vec![0.0; 4]));
    let root = json!({"architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": config(false),
        "vision_config": {"depth": 27}, "tie_word_embeddings": false});
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &root, &tensors);
    let target = Target::open(folder.path()).unwrap();
    assert_eq!(target.report.skipped, ["model.visual.patch_embed.weight"]);
    assert_same(&Target::open(&dense_target()).unwrap(), &target);
}

#[test]
fn moe_gguf_and_folders_are_one_model() {
    let gguf = Target::open(&moe_target()).unwrap();
    let ffn = Ffn::Moe { experts: 16, used: 4, width: 256, shared_width: 256, weights_scale: 1.0 };
    assert_eq!((&gguf.config.ffn, &gguf.config.mtp), (&ffn, &None));
    let source = Gguf::open(&moe_target()).unwrap();
    for experts_apart in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &config(true), &to_hf(&source, "model.", 4, experts_apart));
        assert_same(&gguf, &Target::open(folder.path()).unwrap());
    }
}

#[test]
fn a_gguf_with_fused_experts_is_split() {
    // Gate and up rows of every expert joined, block by block, as some converters write them.
    let source = Gguf::open(&moe_target()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("fused.gguf");
    let mut header = Header::new("qwen35moe");
    source.metadata().skip(1).for_each(|(key, value)| header.entries.copy(key, value));
    let mut data: Vec<Vec<u8>> = Vec::new();
    for tensor in source.tensors() {
        let bytes = source.tensors().data(tensor);
        if tensor.name.contains("ffn_up_exps") {
            continue;
        }
        if tensor.name.contains("ffn_gate_exps") {
            let up = source.tensors().get(&tensor.name.replace("gate_exps", "up_exps")).unwrap();
            let up = source.tensors().data(up);
            let expert = bytes.len() / 16;
            let fused = bytes
                .chunks(expert)
                .zip(up.chunks(expert))
                .flat_map(|(g, u)| [g, u].concat())
                .collect();
            header.tensor(
                &tensor.name.replace("gate_exps", "gate_up_exps"),
                tensor.ty,
                &[16, 512, 256],
            );
            data.push(fused);
        } else {
            header.tensor(&tensor.name, tensor.ty, &tensor.shape);
            data.push(bytes.to_vec());
        }
    }
    let writer =
        formats::gguf::Writer::create(&path, &header, formats::gguf::Overwrite::Refuse).unwrap();
    data.iter().enumerate().for_each(|(i, bytes)| writer.write_at(i, 0, bytes).unwrap());
    writer.finish().unwrap();
    assert_same(&Target::open(&moe_target()).unwrap(), &Target::open(&path).unwrap());
}

#[test]
fn a_tied_head_is_the_embedding() {
    let source = Gguf::open(&dense_target()).unwrap();
    let mut tensors = to_hf(&source, "model.", 8, false);
    let mut config = config(false);
    config["tie_word_embeddings"] = json!(true);
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config, &tensors);
    let stored = Target::open(folder.path()).unwrap();
    assert_eq!(stored.report.skipped, ["lm_head.weight"], "a stored copy is not used");
    tensors.retain(|(name, ..)| name != "lm_head.weight");
    write(folder.path(), &config, &tensors);
    let tied = Target::open(folder.path()).unwrap();
    assert!(tied.config.tied_head && tied.weights.get("output.weight").is_none());
    config["tie_word_embeddings"] = json!(false);
    write(folder.path(), &config, &tensors);
    let sentence = Target::open(folder.path()).unwrap_err().to_string();
    assert_eq!(sentence, "tensor `lm_head.weight` is missing");

    // A GGUF without `output.weight` is tied.
    let path = folder.path().join("tied.gguf");
    let mut header = Header::new("qwen35");
    source.metadata().skip(1).for_each(|(key, value)| header.entries.copy(key, value));
    source
        .tensors()
        .iter()
        .filter(|t| t.name != "output.weight")
        .for_each(|t| header.tensor(&t.name, t.ty, &t.shape));
    sparse_gguf(&path, &header);
    assert!(Target::open(&path).unwrap().config.tied_head);
}

#[test]
fn a_folder_whose_mtp_block_was_stripped_is_read_with_a_warning() {
    let source = Gguf::open(&dense_target()).unwrap();
    let mut tensors = to_hf(&source, "model.", 8, false);
    tensors.retain(|(name, ..)| !name.starts_with("mtp."));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config(false), &tensors);
    let target = Target::open(folder.path()).unwrap();
    assert_eq!(target.config.mtp, None);
    assert!(target.report.warnings[0].contains("the MTP block was left out"));
}

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
    let cases: [(&[&str], Value, &str); 14] = [
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
            &["quantization_config"],
            json!({"quant_method": "fp8"}),
            "a checkpoint quantised by `fp8` is not supported (`quantization_config.quant_method`)",
        ),
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
