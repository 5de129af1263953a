//! Checkpoints made for tests: header-only files of any shape, and rewritings of the repository's
//! tiny models.
#![allow(dead_code, unreachable_pub)]

pub mod hf;

use checkpoint::{Drafter, Error, Overrides, Target, TargetConfig};
use formats::gguf::{Gguf, Header, Overwrite, Writer};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use testing::Pair;

/// Name and shape of a tensor.
pub type Listed = (String, Vec<usize>);

pub fn dense_target() -> PathBuf {
    Pair::dense().target
}

pub fn dense_drafter() -> PathBuf {
    Pair::dense().drafter
}

pub fn moe_target() -> PathBuf {
    Pair::moe().target
}

pub fn moe_drafter() -> PathBuf {
    Pair::moe().drafter
}

/// A safetensors file with the right header and a hole for data.
pub fn sparse_safetensors(path: &Path, dtype: &str, tensors: &[Listed]) {
    let typed: Vec<_> = tensors.iter().map(|(name, shape)| (name, dtype, shape)).collect();
    typed_safetensors(path, &typed);
}

/// The same with a type for each tensor.
pub fn typed_safetensors(path: &Path, tensors: &[(&String, &str, &Vec<usize>)]) {
    let mut end = 0usize;
    let mut header = serde_json::Map::new();
    for (name, dtype, shape) in tensors {
        let width = match *dtype {
            "I64" => 8,
            "F32" => 4,
            "BOOL" => 1,
            _ => 2,
        };
        let start = end;
        end += shape.iter().product::<usize>() * width;
        header.insert(
            name.to_string(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
}

/// A safetensors file with F32 data.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let listed: Vec<Listed> =
        tensors.iter().map(|(name, shape, _)| (name.clone(), shape.clone())).collect();
    sparse_safetensors(path, "F32", &listed);
    let data: Vec<u8> =
        tensors.iter().flat_map(|(_, _, v)| v.iter().flat_map(|x| x.to_le_bytes())).collect();
    let mut bytes = std::fs::read(path).unwrap();
    let start = bytes.len() - data.len();
    bytes[start..].copy_from_slice(&data);
    std::fs::write(path, bytes).unwrap();
}

/// A GGUF with the given metadata and a hole for data.
pub fn sparse_gguf(path: &Path, header: &Header) {
    Writer::create(path, header, Overwrite::Replace).unwrap().finish().unwrap();
}

/// Sizes of a drafter to be made.
pub struct Size {
    pub hidden: usize,
    pub layers: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub taps: usize,
}

pub const SMALL: Size =
    Size { hidden: 64, layers: 3, q_heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, taps: 2 };

impl Size {
    /// The tensors under Hugging Face's names.
    pub fn tensors(&self) -> Vec<Listed> {
        let Self { hidden, head_dim, ffn, .. } = *self;
        let (queries, keys) = (self.q_heads * head_dim, self.kv_heads * head_dim);
        let mut list: Vec<Listed> = vec![
            ("fc.weight".into(), vec![hidden, self.taps * hidden]),
            ("hidden_norm.weight".into(), vec![hidden]),
            ("norm.weight".into(), vec![hidden]),
        ];
        for i in 0..self.layers {
            let parts: [(&str, Vec<usize>); 11] = [
                ("input_layernorm", vec![hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.q_proj", vec![queries, hidden]),
                ("self_attn.k_proj", vec![keys, hidden]),
                ("self_attn.v_proj", vec![keys, hidden]),
                ("self_attn.o_proj", vec![hidden, queries]),
                ("self_attn.q_norm", vec![head_dim]),
                ("self_attn.k_norm", vec![head_dim]),
                ("mlp.gate_proj", vec![ffn, hidden]),
                ("mlp.up_proj", vec![ffn, hidden]),
                ("mlp.down_proj", vec![hidden, ffn]),
            ];
            list.extend(parts.map(|(part, shape)| (format!("layers.{i}.{part}.weight"), shape)));
        }
        list
    }

    /// The same and what DFlash 2 adds: two taps, groups of 16 channels, codebooks of `rank`
    /// columns.
    pub fn dflash2_tensors(&self, vocab: usize, rank: usize) -> Vec<Listed> {
        let hidden = self.hidden;
        let mut list = self.tensors();
        for i in 0..self.layers {
            for part in ["attention_conv", "mlp_conv"] {
                let name = format!("layers.{i}.{part}");
                list.push((format!("{name}.base_kernel"), vec![2, 2, hidden]));
                let projection = vec![4 * hidden / 16, hidden];
                list.push((format!("{name}.kernel_projection.weight"), projection));
            }
        }
        let name = "candidate_selector";
        list.push((format!("{name}.predecessor_codebook"), vec![vocab, rank]));
        list.push((format!("{name}.successor_codebook"), vec![vocab, rank]));
        list.push((format!("{name}.hidden_projection.weight"), vec![rank, hidden]));
        list
    }

    /// A DFlash 2 configuration as it is published: every layer slides, none is causal.
    pub fn dflash2(&self, taps: &[usize], mask: u32, vocab: usize, rank: usize) -> Value {
        let mut config = self.nested(taps, mask, 2048);
        config["architectures"] = json!(["DFlash2DraftModel"]);
        config["layer_types"] = json!(vec!["sliding_attention"; self.layers]);
        config["is_causal"] = json!(false);
        config["vocab_size"] = json!(vocab);
        let inner = &mut config["dflash_config"];
        inner["block_size"] = json!(8);
        inner["conv_kernel_size"] = json!(2);
        inner["conv_group_size"] = json!(16);
        inner["selector_rank"] = json!(rank);
        inner["selector_top_k"] = json!(16);
        config
    }

    /// A configuration in the flat form of April.
    pub fn flat(&self, taps: &[usize], mask: u32) -> Value {
        assert_eq!(taps.len(), self.taps);
        json!({
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers, "num_attention_heads": self.q_heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "attention_bias": false,
            "rope_theta": 10000000, "rope_scaling": null, "use_sliding_window": false,
            "sliding_window": null, "layer_types": vec!["full_attention"; self.layers],
            "block_size": 16, "dflash_config": {"mask_token_id": mask, "target_layer_ids": taps}
        })
    }

    /// A configuration in the nested form of June: all but the last layer slide.
    pub fn nested(&self, taps: &[usize], mask: u32, window: usize) -> Value {
        let mut config = self.flat(taps, mask);
        let mut types = vec!["sliding_attention"; self.layers];
        types[self.layers - 1] = "full_attention";
        let keys = config.as_object_mut().unwrap();
        keys.remove("rope_theta");
        keys.remove("rope_scaling");
        keys.remove("block_size");
        keys.insert("rope_parameters".into(), json!({"rope_type": "default", "rope_theta": 1e7}));
        keys.insert("use_sliding_window".into(), json!(true));
        keys.insert("sliding_window".into(), json!(window));
        keys.insert("layer_types".into(), json!(types));
        keys["dflash_config"]["block_size"] = json!(16);
        config
    }
}

/// Sets (or, with null, removes) a dotted key.
pub fn with(mut config: Value, path: &str, value: Value) -> Value {
    let mut at = &mut config;
    let (parents, key) = path.rsplit_once('.').map_or((None, path), |(p, k)| (Some(p), k));
    for parent in parents.into_iter().flat_map(|p| p.split('.')) {
        at = &mut at[parent];
    }
    at[key] = value;
    config
}

/// A folder with this configuration and these tensors, empty of data.
pub fn folder(config: &Value, tensors: &[Listed]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    sparse_safetensors(&folder.path().join("model.safetensors"), "BF16", tensors);
    folder
}

pub fn open(
    path: &Path,
    overrides: &Overrides,
    target: Option<&TargetConfig>,
) -> Result<Drafter, Error> {
    Drafter::open(path, overrides, target)
}

/// The sentence a drafter folder is refused with.
pub fn refusal(
    config: &Value,
    tensors: &[Listed],
    overrides: &Overrides,
    target: Option<&TargetConfig>,
) -> String {
    let folder = folder(config, tensors);
    open(folder.path(), overrides, target).map_or_else(|e| e.to_string(), |_| "accepted".to_owned())
}

pub fn dense_target_config() -> TargetConfig {
    Target::open(&dense_target()).unwrap().config
}

/// Numbers for every tensor of a list, the same each time.
pub fn numbered(tensors: Vec<Listed>) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let fill = |(name, shape): Listed| {
        let values = (0..shape.iter().product()).map(|_| next()).collect();
        (name, shape, values)
    };
    tensors.into_iter().map(fill).collect()
}

/// A folder with this configuration and numbers in its tensors.
pub fn filled_folder(config: &Value, tensors: Vec<Listed>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    write_safetensors(&folder.path().join("model.safetensors"), &numbered(tensors));
    folder
}

/// Writes a drafter's tensors as an F32 GGUF under another architecture's keys and names.
pub fn write_gguf(drafter: &Drafter, out: &Path, header: Header, rename: impl Fn(&str) -> String) {
    let mut header = header;
    for weight in drafter.weights.iter() {
        header.tensor(&rename(&weight.name), formats::BlockType::F32, &weight.shape);
    }
    let writer = Writer::create(out, &header, Overwrite::Replace).unwrap();
    for (index, weight) in drafter.weights.iter().enumerate() {
        let numbers = drafter.weights.decode(weight);
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write_at(index, 0, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// Rewrites a GGUF under other keys and names, with the data as it is.
pub fn rewrite_gguf(
    source: &Path,
    out: &Path,
    architecture: &str,
    entries: impl Fn(&Gguf, &mut Header),
    rename: impl Fn(&str) -> String,
) {
    let gguf = Gguf::open(source).unwrap();
    let mut header = Header::new(architecture);
    entries(&gguf, &mut header);
    for tensor in gguf.tensors() {
        header.tensor(&rename(&tensor.name), tensor.ty, &tensor.shape);
    }
    let writer = Writer::create(out, &header, Overwrite::Replace).unwrap();
    for (index, tensor) in gguf.tensors().iter().enumerate() {
        writer.write_at(index, 0, gguf.tensors().data(tensor)).unwrap();
    }
    writer.finish().unwrap();
}

/// Every tensor of a GGUF as `f32`.
pub fn decoded(gguf: &Gguf) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let decode = |t: &formats::TensorInfo| {
        let mut values = vec![f32::NAN; t.elements()];
        formats::blocks::decode(t.ty, gguf.tensors().data(t), &mut values);
        (t.name.clone(), t.shape.clone(), values)
    };
    gguf.tensors().iter().map(decode).collect()
}
