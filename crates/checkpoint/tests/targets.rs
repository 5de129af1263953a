//! One target in every form: the tiny GGUFs rewritten as Hugging Face checkpoints must read as the
//! same model, number for number.

mod support;

use checkpoint::Target;
use checkpoint::target::{Ffn, Mixer};
use formats::gguf::{Gguf, Header};
use serde_json::{Value, json};
use std::path::Path;
use support::hf::{Tensor, config, to_hf};
use support::*;

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
