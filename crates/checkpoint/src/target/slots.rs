//! The tensors a target is made of: canonical name and shape, and where each container keeps them.

use super::{Ffn, Mixer, TargetConfig};
use crate::weights::{Half, Map, Order, Place, Slot};

/// Every tensor of a target with this configuration. The places looked in are those of GGUF.
pub fn slots(config: &TargetConfig) -> Vec<Slot> {
    list(config, None)
}

/// The same for a Hugging Face checkpoint whose language model's names start with `prefix`.
pub(super) fn hf_slots(config: &TargetConfig, prefix: &str) -> Vec<Slot> {
    list(config, Some(prefix))
}

struct List<'a> {
    config: &'a TargetConfig,
    /// Set for a Hugging Face checkpoint.
    hf: Option<&'a str>,
    slots: Vec<Slot>,
}

fn list(config: &TargetConfig, hf: Option<&str>) -> Vec<Slot> {
    let mut list = List { config, hf, slots: Vec::new() };
    let (hidden, vocab) = (config.hidden, config.vocab);
    let prefix = hf.unwrap_or_default();
    list.add("token_embd.weight", &format!("{prefix}embed_tokens.weight"), &[vocab, hidden]);
    list.norm("output_norm.weight", &format!("{prefix}norm.weight"), hidden);
    if !config.tied_head {
        list.add("output.weight", "lm_head.weight", &[vocab, hidden]);
    }
    for (index, mixer) in config.layers.iter().enumerate() {
        list.block(&format!("blk.{index}"), &format!("{prefix}layers.{index}"), *mixer);
    }
    if let Some(mtp) = &config.mtp {
        let block = format!("blk.{}", config.layers.len());
        list.block(&block, "mtp.layers.0", Mixer::Attention);
        list.add(&format!("{block}.nextn.eh_proj.weight"), "mtp.fc.weight", &[hidden, 2 * hidden]);
        list.norm(
            &format!("{block}.nextn.enorm.weight"),
            "mtp.pre_fc_norm_embedding.weight",
            hidden,
        );
        list.norm(&format!("{block}.nextn.hnorm.weight"), "mtp.pre_fc_norm_hidden.weight", hidden);
        if mtp.own_norm {
            list.norm(&format!("{block}.nextn.shared_head_norm.weight"), "mtp.norm.weight", hidden);
        }
        if mtp.own_embedding {
            list.add(
                &format!("{block}.nextn.embed_tokens.weight"),
                "mtp.embed_tokens.weight",
                &[vocab, hidden],
            );
        }
        if mtp.own_head {
            list.add(
                &format!("{block}.nextn.shared_head_head.weight"),
                "mtp.lm_head.weight",
                &[vocab, hidden],
            );
        }
    }
    list.slots
}

impl List<'_> {
    fn add(&mut self, gguf: &str, hf: &str, shape: &[usize]) -> &mut Slot {
        let place = Place::whole(if self.hf.is_some() { hf } else { gguf });
        self.slots.push(Slot::new(gguf, shape, vec![place]));
        self.slots.last_mut().expect("just pushed")
    }

    /// A norm that Hugging Face stores as the difference from 1.
    fn norm(&mut self, gguf: &str, hf: &str, width: usize) {
        let map = if self.hf.is_some() { Map::PlusOne } else { Map::AsStored };
        self.add(gguf, hf, &[width]).map = map;
    }

    fn block(&mut self, gguf: &str, hf: &str, mixer: Mixer) {
        let hidden = self.config.hidden;
        self.norm(
            &format!("{gguf}.attn_norm.weight"),
            &format!("{hf}.input_layernorm.weight"),
            hidden,
        );
        match mixer {
            Mixer::Attention => self.attention(gguf, &format!("{hf}.self_attn")),
            Mixer::Gdn => self.gdn(gguf, &format!("{hf}.linear_attn")),
        }
        let post = format!("{gguf}.post_attention_norm.weight");
        self.norm(&post, &format!("{hf}.post_attention_layernorm.weight"), hidden);
        self.ffn(gguf, &format!("{hf}.mlp"));
    }

    fn attention(&mut self, gguf: &str, hf: &str) {
        let hidden = self.config.hidden;
        let a = &self.config.attention;
        let (queries, keys, dim) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim, a.head_dim);
        // Queries are per head a query, then a gate. Some files keep all three in one tensor.
        let fused = format!("{gguf}.attn_qkv.weight");
        let all = 2 * queries + 2 * keys;
        let parts = [("q", 0, 2 * queries), ("k", 2 * queries, keys), ("v", all - keys, keys)];
        for (part, first, rows) in parts {
            let name = format!("{gguf}.attn_{part}.weight");
            let slot = self.add(&name, &format!("{hf}.{part}_proj.weight"), &[rows, hidden]);
            slot.places.push(Place::rows(&fused, first, all));
        }
        self.add(
            &format!("{gguf}.attn_output.weight"),
            &format!("{hf}.o_proj.weight"),
            &[hidden, queries],
        );
        self.norm(&format!("{gguf}.attn_q_norm.weight"), &format!("{hf}.q_norm.weight"), dim);
        self.norm(&format!("{gguf}.attn_k_norm.weight"), &format!("{hf}.k_norm.weight"), dim);
    }

    fn gdn(&mut self, gguf: &str, hf: &str) {
        let hidden = self.config.hidden;
        let gdn = &self.config.gdn;
        let (heads, dim, channels) = (gdn.value_heads, gdn.head_dim, gdn.conv_channels());
        let (width, kernel, key_heads) = (gdn.value_width(), gdn.conv_kernel, gdn.key_heads);
        let per_key = heads / key_heads;
        let grouped = self.hf.is_some();
        let rows = |first, rows| match grouped {
            true => Order::GroupedRows { first, rows, key_heads, per_key },
            false => Order::AsStored,
        };
        let values = channels - width;
        let decay = if grouped { Map::MinusExp } else { Map::AsStored };
        let columns = match grouped {
            true => Order::GroupedColumns { columns: dim, key_heads, per_key },
            false => Order::AsStored,
        };

        let qkv = format!("{gguf}.attn_qkv.weight");
        self.add(&qkv, &format!("{hf}.in_proj_qkv.weight"), &[channels, hidden]).order =
            rows(values, dim);
        let gate = format!("{gguf}.attn_gate.weight");
        self.add(&gate, &format!("{hf}.in_proj_z.weight"), &[width, hidden]).order = rows(0, dim);
        let alpha = format!("{gguf}.ssm_alpha.weight");
        self.add(&alpha, &format!("{hf}.in_proj_a.weight"), &[heads, hidden]).order = rows(0, 1);
        let beta = format!("{gguf}.ssm_beta.weight");
        self.add(&beta, &format!("{hf}.in_proj_b.weight"), &[heads, hidden]).order = rows(0, 1);
        let conv = format!("{gguf}.ssm_conv1d.weight");
        self.add(&conv, &format!("{hf}.conv1d.weight"), &[channels, kernel]).order =
            rows(values, dim);
        let bias = format!("{gguf}.ssm_dt.bias");
        let bias = self.add(&bias, &format!("{hf}.dt_bias"), &[heads]);
        bias.order = rows(0, 1);
        // Ollama's files leave the suffix out.
        bias.places.push(Place::whole(format!("{gguf}.ssm_dt")));
        let a = self.add(&format!("{gguf}.ssm_a"), &format!("{hf}.A_log"), &[heads]);
        (a.order, a.map) = (rows(0, 1), decay);
        // The only norm that is plain in both containers.
        self.add(&format!("{gguf}.ssm_norm.weight"), &format!("{hf}.norm.weight"), &[dim]);
        let out = format!("{gguf}.ssm_out.weight");
        self.add(&out, &format!("{hf}.out_proj.weight"), &[hidden, width]).order = columns;
    }

    fn ffn(&mut self, gguf: &str, hf: &str) {
        let hidden = self.config.hidden;
        match self.config.ffn {
            Ffn::Dense { width } => self.swiglu(gguf, "", hf, width),
            Ffn::Moe { experts, width, shared_width, .. } => {
                let router = format!("{gguf}.ffn_gate_inp.weight");
                self.add(&router, &format!("{hf}.gate.weight"), &[experts, hidden]);
                self.experts(gguf, hf, "gate", &[experts, width, hidden], Some(Half::First));
                self.experts(gguf, hf, "up", &[experts, width, hidden], Some(Half::Second));
                self.experts(gguf, hf, "down", &[experts, hidden, width], None);
                let gate = format!("{gguf}.ffn_gate_inp_shexp.weight");
                self.add(&gate, &format!("{hf}.shared_expert_gate.weight"), &[hidden]);
                self.swiglu(gguf, "_shexp", &format!("{hf}.shared_expert"), shared_width);
            }
        }
    }

    fn swiglu(&mut self, gguf: &str, suffix: &str, hf: &str, width: usize) {
        let hidden = self.config.hidden;
        for (part, shape) in
            [("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])]
        {
            let name = format!("{gguf}.ffn_{part}{suffix}.weight");
            self.add(&name, &format!("{hf}.{part}_proj.weight"), &shape);
        }
    }

    /// One of the three expert tensors: on its own, as a half of a fused gate-and-up tensor, or
    /// expert by expert.
    fn experts(
        &mut self,
        gguf: &str,
        hf: &str,
        part: &str,
        shape: &[usize; 3],
        half: Option<Half>,
    ) {
        let name = format!("{gguf}.ffn_{part}_exps.weight");
        let places = match (self.hf, half) {
            (None, None) => vec![Place::whole(&name)],
            (None, Some(half)) => {
                vec![
                    Place::whole(&name),
                    Place::half(format!("{gguf}.ffn_gate_up_exps.weight"), half),
                ]
            }
            (Some(_), half) => {
                let fused = match half {
                    Some(half) => Place::half(format!("{hf}.experts.gate_up_proj"), half),
                    None => Place::whole(format!("{hf}.experts.{part}_proj")),
                };
                let one_by_one =
                    (0..shape[0]).map(|e| format!("{hf}.experts.{e}.{part}_proj.weight"));
                vec![fused, Place::stack(one_by_one)]
            }
        };
        self.slots.push(Slot::new(name, shape, places));
    }
}
