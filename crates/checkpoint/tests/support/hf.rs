//! The tiny targets as Hugging Face checkpoints.

use formats::gguf::Gguf;
use serde_json::{Value, json};

use super::decoded;

/// A tensor: name, shape, numbers.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

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
pub fn to_hf(gguf: &Gguf, prefix: &str, layers: usize, experts_apart: bool) -> Vec<Tensor> {
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

pub fn config(moe: bool) -> Value {
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
