//! What quantised folders are refused with.

mod support;

use checkpoint::Target;
use serde_json::{Value, json};
use std::io::Write;
use support::hf::config;

/// Name, type, shape, and the byte that all of it consists of.
type Given = (&'static str, &'static str, Vec<usize>, u8);

/// The sentence a folder with this `quantization_config` and these tensors is refused with.
fn refusal(quantisation: Value, tensors: &[Given]) -> String {
    sentence(&folder(quantisation, tensors))
}

fn sentence(folder: &tempfile::TempDir) -> String {
    Target::open(folder.path()).map_or_else(|e| e.to_string(), |_| "accepted".to_owned())
}

fn folder(quantisation: Value, tensors: &[Given]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(false);
    if !quantisation.is_null() {
        config["quantization_config"] = quantisation;
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, byte) in tensors {
        let width = match *dtype {
            "I64" => 8,
            "F32" | "I32" => 4,
            "F16" | "BF16" => 2,
            _ => 1,
        };
        let start = data.len();
        data.resize(start + shape.iter().product::<usize>() * width, *byte);
        header.insert(
            (*name).to_owned(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.write_all(&data).unwrap();
    drop(file);
    folder
}

const METHODS: &str = "(read are `fp8`, `modelopt`, `compressed-tensors`, `awq`, `gptq`; a GGUF of \
                       the model, or the folder before it was quantised, would do)";

#[test]
fn methods_are_refused_by_name_before_any_tensor_is_looked_at() {
    for method in ["bitsandbytes", "hqq", "quark", "exl2", "auto-round", "mxfp4", "torchao"] {
        assert_eq!(
            refusal(json!({"quant_method": method}), &[("a.weight", "F8_E5M2", vec![4], 0)]),
            format!(
                "a checkpoint quantised by `{method}` {METHODS} is not supported \
                 (`quantization_config.quant_method`)"
            )
        );
    }
}

/// Older versions of modelopt say so in a file of its own and nowhere else.
#[test]
fn what_modelopt_says_beside_the_configuration_is_read() {
    let folder = folder(Value::Null, &[]);
    let said = json!({"producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "W4A8_AWQ", "exclude_modules": ["lm_head"]}});
    std::fs::write(folder.path().join("hf_quant_config.json"), said.to_string()).unwrap();
    assert_eq!(
        sentence(&folder),
        "the algorithm `W4A8_AWQ` of modelopt is not supported (`hf_quant_config.quant_algo`)"
    );
}

#[test]
fn folders_of_mlx_are_called_that() {
    assert_eq!(
        refusal(json!({"group_size": 64, "bits": 4}), &[]),
        format!(
            "a checkpoint quantised by `mlx` {METHODS} is not supported (`quantization_config`)"
        )
    );
}

#[test]
fn settings_that_are_not_read_are_refused_by_name() {
    let cases = [
        (
            json!({"quant_method": "gptq", "bits": 4, "desc_act": true}),
            "GPTQ with act-order (quantise with `desc_act` false, or take AWQ) is not supported \
             (`quantization_config.desc_act`)",
        ),
        (
            json!({"quant_method": "gptq", "bits": 8}),
            "`gptq` of 8 bits (4 are read) is not supported (`quantization_config.bits`)",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "version": "gemv"}),
            "AWQ in the layout `gemv` (`gemm` is read) is not supported \
             (`quantization_config.version`)",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "zero_point": false}),
            "AWQ without zero points is not supported (`quantization_config.zero_point`)",
        ),
        (
            json!({"quant_method": "fp8", "fmt": "e5m2"}),
            "the 8-bit float `e5m2` is not supported (`quantization_config.fmt`)",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [64, 64]}),
            "a scale for [64, 64] elements (128 by 128 is read) is not supported \
             (`quantization_config.weight_block_size`)",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
            "the algorithm `W4A8_AWQ` of modelopt is not supported \
             (`quantization_config.quant_algo`)",
        ),
    ];
    for (quantisation, sentence) in cases {
        assert_eq!(refusal(quantisation, &[]), sentence);
    }
}

/// An 8-bit matrix of 256 by 256 with these scales.
fn fp8(scales: Option<Given>) -> Vec<Given> {
    let weight = ("m.q_proj.weight", "F8_E4M3", vec![256, 256], 0);
    [Some(weight), scales].into_iter().flatten().collect()
}

#[test]
fn bad_scales_and_shapes_are_refused() {
    let method = || json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let scale = |shape: Vec<usize>, byte| Some(("m.q_proj.weight_scale_inv", "F32", shape, byte));
    assert_eq!(refusal(method(), &fp8(None)), "tensor `m.q_proj.weight_scale` is missing");
    assert_eq!(
        refusal(method(), &fp8(scale(vec![3, 2], 0))),
        "tensor `m.q_proj.weight_scale_inv` has shape [3, 2], [2, 2] expected"
    );
    assert_eq!(
        refusal(method(), &fp8(scale(vec![2, 2], 0xff))),
        "a scale is NaN by tensor `m.q_proj.weight_scale_inv`; a finite number expected"
    );
    assert_eq!(
        refusal(method(), &[("m.q_proj.weight", "F8_E4M3", vec![16, 96], 0)]),
        "the length of a quantised row is 96 by tensor `m.q_proj.weight`; a multiple of 128 \
         expected"
    );
    assert_eq!(
        refusal(method(), &[("m.q_proj.weight", "F8_E5M2", vec![16, 128], 0)]),
        "a tensor's type is F8_E5M2 by `m.q_proj.weight` of a checkpoint quantised by `fp8`; \
         F8_E4M3, I8 or U8 expected"
    );
    let ignored = json!({"quant_method": "fp8", "modules_to_not_convert": ["q_proj"]});
    assert_eq!(
        refusal(ignored, &fp8(scale(vec![2, 2], 0))),
        "the type of `m.q_proj` is not quantised by `quantization_config`, but FP8 by its tensors"
    );
    // Without a word in the configuration nothing is guessed.
    let embedding = ("model.embed_tokens.weight", "BF16", vec![4096, 256], 0);
    let found = refusal(Value::Null, &[embedding, fp8(None)[0].clone()]);
    assert!(found.starts_with("tensor `"), "{found}");
}

#[test]
fn bad_groups_zeros_and_orders_are_refused() {
    let method = || json!({"quant_method": "gptq", "bits": 4, "group_size": 128});
    let codes = ("m.q_proj.qweight", "I32", vec![32, 16], 0);
    let scales = |dtype, shape| ("m.q_proj.scales", dtype, shape, 0);
    let zeros = |shape| ("m.q_proj.qzeros", "I32", shape, 0);
    let order = ("m.q_proj.g_idx", "I32", vec![256], 1);
    assert_eq!(
        refusal(method(), &[codes.clone(), scales("F32", vec![2, 16]), zeros(vec![2, 2])]),
        "the type of scales is F32 by tensor `m.q_proj.scales`; F16 or BF16 expected"
    );
    assert_eq!(
        refusal(method(), &[codes.clone(), scales("F16", vec![16, 16]), zeros(vec![16, 2])]),
        "the length of a group is 16 by tensor `m.q_proj.scales`; 32, 64 or a multiple of 128 \
         expected"
    );
    assert_eq!(
        refusal(method(), &[codes.clone(), scales("F16", vec![2, 8]), zeros(vec![2, 2])]),
        "tensor `m.q_proj.scales` has shape [2, 8], [2, 16] expected"
    );
    assert_eq!(
        refusal(method(), &[codes.clone(), scales("F16", vec![2, 16]), zeros(vec![1, 2])]),
        "tensor `m.q_proj.qzeros` has shape [1, 2], [2, 2] expected"
    );
    assert_eq!(
        refusal(method(), &[codes.clone(), scales("F16", vec![2, 16])]),
        "tensor `m.q_proj.qzeros` is missing"
    );
    assert_eq!(
        refusal(method(), &[codes, scales("F16", vec![2, 16]), zeros(vec![2, 2]), order]),
        "an order of columns by activation (act-order) is not supported (tensor \
         `m.q_proj.g_idx`)"
    );
    let eight = [
        ("m.q_proj.weight", "I8", vec![16, 128], 0),
        ("m.q_proj.weight_scale", "BF16", vec![16, 1], 0),
        ("m.q_proj.weight_zero_point", "I8", vec![16, 1], 1),
    ];
    assert_eq!(
        refusal(json!({"quant_method": "compressed-tensors"}), &eight),
        "a zero point of 8-bit integers is not 0 by tensor `m.q_proj.weight_zero_point`; 0 expected"
    );
}

#[test]
fn relatives_of_what_is_read_are_refused_by_name() {
    let method = json!({"quant_method": "compressed-tensors"});
    let small = [
        ("m.q_proj.weight", "F8_E4M3", vec![16, 128], 0),
        ("m.q_proj.weight_scale", "U8", vec![16, 4], 127),
    ];
    assert_eq!(
        refusal(method, &small),
        "MXFP8 (a power of two for 32 numbers; FP8, NVFP4 and MXFP4 are read) is not supported \
         (`quantization_config.format`)"
    );
}

#[test]
fn modules_that_a_pattern_excludes_and_that_are_quantised_are_refused() {
    let method = |ignore: &str| json!({"quant_method": "fp8", "ignore": [ignore]});
    let tensors = fp8(Some(("m.q_proj.weight_scale", "F32", vec![1], 0)));
    let sentence = "the type of `m.q_proj` is not quantised by `quantization_config`, but fp8 by \
                    its tensors";
    assert_eq!(refusal(method("re:.*q_proj$"), &tensors).to_lowercase(), sentence);
    // One that fits nothing, and one that is not understood, say nothing.
    for pattern in ["re:.*visual.*", "re:(?!x)y"] {
        assert!(!refusal(method(pattern), &tensors).contains("the type of"), "{pattern}");
    }
}
