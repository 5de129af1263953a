//! Targets as other makers write them: Ollama's files, fused projections, files that leave a key
//! out, and next-token blocks in files of their own.

mod support;

use checkpoint::{Checkpoint, MtpBlock, Overrides, Target};
use formats::BlockType;
use formats::gguf::{Gguf, Header, Overwrite, Writer};
use std::path::Path;
use support::hf::to_hf;
use support::*;

/// A tensor as it lies in a file: name, type, shape, data.
type Raw = (String, BlockType, Vec<usize>, Vec<u8>);

fn raw(gguf: &Gguf) -> Vec<Raw> {
    let copy = |t: &formats::TensorInfo| {
        (t.name.clone(), t.ty, t.shape.clone(), gguf.tensors().data(t).to_vec())
    };
    gguf.tensors().iter().map(copy).collect()
}

/// The keys of a GGUF, without those that `without` names.
fn keys(gguf: &Gguf, without: &[&str]) -> Header {
    let arch = gguf.string("general.architecture").unwrap().unwrap();
    let mut header = Header::new(arch);
    let kept = gguf.metadata().skip(1).filter(|(key, _)| !without.contains(key));
    kept.for_each(|(key, value)| header.entries.copy(key, value));
    header
}

fn write(path: &Path, mut header: Header, tensors: &[Raw]) {
    for (name, ty, shape, _) in tensors {
        header.tensor(name, *ty, shape);
    }
    let writer = Writer::create(path, &header, Overwrite::Replace).unwrap();
    for (index, (.., data)) in tensors.iter().enumerate() {
        writer.write_at(index, 0, data).unwrap();
    }
    writer.finish().unwrap();
}

fn assert_same_weights(found: &Target, expected: &Target) {
    assert_eq!(found.weights.len(), expected.weights.len());
    for weight in expected.weights.iter() {
        let same = found.weights.get(&weight.name).unwrap();
        assert_eq!(found.weights.decode(same), expected.weights.decode(weight), "{}", weight.name);
    }
}

fn from_of(target: &Target, field: &str) -> String {
    target.report.resolved.iter().find(|r| r.field == field).unwrap().from.clone()
}

#[test]
fn a_file_of_ollamas_is_the_same_model() {
    let source = Gguf::open(&moe_target()).unwrap();
    let expected = Target::open(&moe_target()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("sha256-blob");
    let without = [
        "qwen35moe.attention.head_count_kv",
        "qwen35moe.full_attention_interval",
        "qwen35moe.rope.dimension_sections",
    ];
    let ollama = |heads: &[i32], reordered: bool| {
        let mut header = keys(&source, &without);
        header.entries.i32s("qwen35moe.attention.head_count_kv", heads);
        header.entries.i32s("qwen35moe.rope.dimension_sections", &[11, 11, 10]);
        header.entries.bool("qwen35moe.ssm.v_head_reordered", reordered);
        let mut tensors = raw(&source);
        for tensor in &mut tensors {
            tensor.0 = tensor.0.replace("ssm_dt.bias", "ssm_dt");
        }
        for name in ["v.blk.0.attn_q.weight", "mtp.fc.weight", "mtp.layers.0.attn_q.weight"] {
            tensors.push((name.to_owned(), BlockType::F32, vec![2, 2], vec![0; 16]));
        }
        write(&path, header, &tensors);
        Target::open(&path).map_err(|error| error.to_string())
    };
    let found = ollama(&[0, 0, 0, 2], true).unwrap();
    assert_eq!(found.config, expected.config);
    assert_same_weights(&found, &expected);
    let listed = "`qwen35moe.attention.head_count_kv`";
    assert_eq!(from_of(&found, "kv_heads"), listed);
    assert_eq!(from_of(&found, "layers"), format!("the zeros of {listed}"));
    assert_eq!(found.report.skipped.len(), 3);
    assert_eq!(
        found.report.warnings,
        ["the file has an MTP block under Ollama's older names (`mtp.*`): it is not run"]
    );
    assert_eq!(
        ollama(&[0, 0, 0, 2], false).unwrap_err(),
        "a file with value heads in Hugging Face's order is not supported \
         (`qwen35moe.ssm.v_head_reordered`)"
    );
    assert_eq!(
        ollama(&[0, 0, 1, 2], true).unwrap_err(),
        "key heads by layer is array of 4 i32 by `qwen35moe.attention.head_count_kv`; the same \
         number wherever it is not 0 expected"
    );
    assert_eq!(
        ollama(&[0, 2], true).unwrap_err(),
        "layer count is 2 by the zeros of `qwen35moe.attention.head_count_kv`, but 4 by \
         `qwen35moe.block_count`"
    );
}

#[test]
fn every_fourth_layer_attends_where_no_key_says() {
    let source = Gguf::open(&dense_target()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    write(&path, keys(&source, &["qwen35.full_attention_interval"]), &raw(&source));
    let found = Target::open(&path).unwrap();
    assert_eq!(found.config, Target::open(&dense_target()).unwrap().config);
    assert_eq!(
        from_of(&found, "layers"),
        "no `qwen35.full_attention_interval`; 4 in every Qwen3.5, 3.6 and 3.8"
    );
}

#[test]
fn queries_keys_and_values_in_one_tensor() {
    let source = Gguf::open(&dense_target()).unwrap();
    // One type for all three, as a converter fuses them before it quantises.
    let floats = decoded(&source);
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let part = |name: &str| floats.iter().find(|(n, ..)| n == name).unwrap();
    let mut tensors: Vec<Raw> = Vec::new();
    for (name, shape, values) in &floats {
        let Some(block) = name.strip_suffix(".attn_q.weight") else {
            if !name.ends_with(".attn_k.weight") && !name.ends_with(".attn_v.weight") {
                tensors.push((name.clone(), BlockType::F32, shape.clone(), bytes(values)));
            }
            continue;
        };
        let (_, keys, k) = part(&format!("{block}.attn_k.weight"));
        let (_, _, v) = part(&format!("{block}.attn_v.weight"));
        let rows = shape[0] + 2 * keys[0];
        let data = [bytes(values), bytes(k), bytes(v)].concat();
        let name = format!("{block}.attn_qkv.weight");
        tensors.push((name, BlockType::F32, vec![rows, shape[1]], data));
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("x.gguf");
    write(&path, keys(&source, &[]), &tensors);
    let expected = Target::open(&dense_target()).unwrap();
    let found = Target::open(&path).unwrap();
    assert_eq!(found.config, expected.config);
    assert_same_weights(&found, &expected);
    assert_eq!(
        found.weights.get("blk.3.attn_v.weight").unwrap().sources,
        ["blk.3.attn_qkv.weight"]
    );

    let fused = tensors.iter_mut().find(|(n, ..)| n == "blk.3.attn_qkv.weight").unwrap();
    fused.2[0] -= 1;
    fused.3.truncate(fused.2[0] * fused.2[1] * 4);
    write(&path, keys(&source, &[]), &tensors);
    let sentence = Target::open(&path).unwrap_err().to_string();
    assert!(sentence.starts_with("tensor `blk.3.attn_qkv.weight` has shape"), "{sentence}");
}

/// The tiny target without its block, and the block in a file as llama.cpp's converter writes it:
/// with the target's keys and copies of embedding, head and norm.
fn apart(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let source = Gguf::open(&dense_target()).unwrap();
    let (block, trunk): (Vec<Raw>, Vec<Raw>) =
        raw(&source).into_iter().partition(|(name, ..)| name.starts_with("blk.8."));
    let target = folder.join("target.gguf");
    let mut header = keys(&source, &["qwen35.block_count", "qwen35.nextn_predict_layers"]);
    header.entries.u32("qwen35.block_count", 8);
    write(&target, header, &trunk);
    let mtp = folder.join("mtp-target.gguf");
    let shared = ["token_embd.weight", "output.weight", "output_norm.weight"];
    let copies = trunk.into_iter().filter(|(name, ..)| shared.contains(&name.as_str()));
    let tensors: Vec<Raw> = copies.chain(block).collect();
    write(&mtp, keys(&source, &[]), &tensors);
    (target, mtp)
}

#[test]
fn a_block_in_its_own_file_joins_its_target() {
    let temp = tempfile::tempdir().unwrap();
    let (target, mtp) = apart(temp.path());
    let whole = Target::open(&dense_target()).unwrap();
    let mut joined = Target::open(&target).unwrap();
    assert_eq!(joined.config.mtp, None);
    assert_eq!(MtpBlock::beside(&target).as_ref(), Some(&mtp));
    let block = MtpBlock::open(&mtp, Some(&joined.config)).unwrap();
    assert_eq!(block.report.skipped.len(), 3, "copies are not taken twice");
    joined.join(block).unwrap();
    assert_eq!(joined.config, whole.config);
    assert_same_weights(&joined, &whole);
    assert_eq!(from_of(&joined, "mtp"), "a file of its own");

    let again = MtpBlock::open(&mtp, Some(&joined.config)).unwrap();
    assert_eq!(
        joined.join(again).unwrap_err().to_string(),
        "the target has an MTP block already, and drafts with that one alone"
    );
    // By itself it is described by what it says of its target.
    let alone = Checkpoint::open(&mtp, &Overrides::default(), None).unwrap();
    assert!(matches!(alone, Checkpoint::Mtp(block) if block.config == whole.config));
    // Two such files beside a target are nobody's choice but the user's.
    std::fs::copy(&mtp, temp.path().join("MTP-other.gguf")).unwrap();
    assert_eq!(MtpBlock::beside(&target), None);
}

#[test]
fn a_block_of_safetensors_joins_its_target_too() {
    let temp = tempfile::tempdir().unwrap();
    let (target, _) = apart(temp.path());
    let source = Gguf::open(&dense_target()).unwrap();
    let mut tensors = to_hf(&source, "model.", 8, false);
    tensors.retain(|(name, ..)| name.starts_with("mtp."));
    let file = temp.path().join("mtp.safetensors");
    write_safetensors(&file, &tensors);
    let mut joined = Target::open(&target).unwrap();
    let block = MtpBlock::open(&file, Some(&joined.config)).unwrap();
    joined.join(block).unwrap();
    let whole = Target::open(&dense_target()).unwrap();
    assert_eq!(joined.config, whole.config);
    for weight in whole.weights.iter() {
        let same = joined.weights.get(&weight.name).unwrap();
        let (a, b) = (whole.weights.decode(weight), joined.weights.decode(same));
        let worst = a.iter().zip(&b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-6, "{}: {worst}", weight.name);
    }
    assert_eq!(
        MtpBlock::open(&file, None).unwrap_err().to_string(),
        "an MTP block without a configuration is read against its target: name that too"
    );
}

#[test]
fn blocks_in_the_wrong_place() {
    let temp = tempfile::tempdir().unwrap();
    let (_, mtp) = apart(temp.path());
    assert_eq!(
        Target::open(&mtp).unwrap_err().to_string(),
        "this is a target's MTP block (give it as `--draft`, and its target as `--model`), a \
         target was expected"
    );
    assert_eq!(
        open(&mtp, &Overrides::default(), None).unwrap_err().to_string(),
        "this is a target's MTP block, a drafter was expected"
    );
    let mixture = Target::open(&moe_target()).unwrap().config;
    assert_eq!(
        MtpBlock::open(&mtp, Some(&mixture)).unwrap_err().to_string(),
        "layer count is 8 by the MTP block, but 4 by the target"
    );
    assert_eq!(
        MtpBlock::open(&dense_target(), None).unwrap_err().to_string(),
        "this is something else, a target's MTP block was expected"
    );
}
