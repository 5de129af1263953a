//! Modules of quantised folders against the packages that write such folders
//! (`scripts/make-folder-vectors.py`): the same tensors, and what those packages read in them.

use checkpoint::{Json, Source};
use formats::{Tensors, safetensors};
use serde_json::{Value, json};

/// `count` numbers of splitmix64, as the script has them.
fn mix(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (1..=count as u64).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

/// A tensor's bytes by the script's rule: floats are positive and of a sane size.
fn fill(seed: u64, name: &str, tensor: &Value) -> Vec<u8> {
    let dtype = tensor["dtype"].as_str().unwrap();
    if let Some(values) = tensor["values"].as_array() {
        let values = values.iter().map(|value| value.as_i64().unwrap());
        return match dtype {
            "I64" => values.flat_map(i64::to_le_bytes).collect(),
            _ => values.flat_map(|value| (value as i32).to_le_bytes()).collect(),
        };
    }
    let shape = tensor["shape"].as_array().unwrap();
    let count = shape.iter().map(|n| n.as_u64().unwrap() as usize).product();
    let numbers = mix(seed, count);
    match dtype {
        "F32" => numbers.flat_map(|n| (n as u32 & 0x7f_ffff | 0x3c00_0000).to_le_bytes()).collect(),
        "F16" => numbers.flat_map(|n| (n as u16 & 0x7ff | 0x2000).to_le_bytes()).collect(),
        "BF16" => numbers.flat_map(|n| (n as u16 & 0x7f | 0x3c00).to_le_bytes()).collect(),
        "I32" => numbers.flat_map(|n| (n as u32).to_le_bytes()).collect(),
        "F8_E4M3" => numbers.map(|n| n as u8 & 0xf7).collect(),
        "U8" if name == "weight_scale" => numbers.map(|n| (n as u8 & 31) + 111).collect(),
        _ => numbers.map(|n| n as u8).collect(),
    }
}

/// A safetensors file of a case's tensors, as those of one module.
fn file(case: &Value, number: usize) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    // The script numbers tensors in the order they have there, which an object does not keep.
    for tensor in case["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let (start, seed) = (data.len(), (100 * number + header.len()) as u64);
        data.extend(fill(seed, name, tensor));
        let entry = json!({"dtype": tensor["dtype"], "shape": tensor["shape"],
            "data_offsets": [start, data.len()]});
        header.insert(format!("m.q_proj.{name}"), entry);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The tensors of a folder with this `quantization_config` and file, put together.
fn read(quantisation: &Value, file: Vec<u8>) -> Result<Tensors, String> {
    let config = Json::from_value(json!({"quantization_config": quantisation})).unwrap();
    let tensors = safetensors::parse(file).unwrap();
    let source = Source::Safetensors { config: Some(config), tensors };
    source.assembled().map_err(|error| error.to_string())
}

#[test]
fn modules_are_read_as_the_packages_that_write_them_read_them() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("vectors/folders.json")).unwrap();
    for (number, case) in cases.iter().enumerate() {
        let scheme = &case["scheme"];
        let tensors = read(&case["config"], file(case, number));
        let tensors = tensors.unwrap_or_else(|error| panic!("{scheme}: {error}"));
        let weight = tensors.get("m.q_proj.weight").expect("a weight");
        assert_eq!(json!(weight.shape), case["shape"], "{scheme}");
        let mut numbers = vec![f32::NAN; weight.elements()];
        formats::blocks::decode(weight.ty, &tensors.bytes(weight), &mut numbers);
        let first: Vec<f32> = serde_json::from_value(case["first"].clone()).unwrap();
        assert_eq!(numbers[..8], first, "{scheme}: the numbers spelled out");
        let pairs = numbers.iter().zip(mix(0, numbers.len()));
        // A zero's sign is nobody's, as in the script.
        let digest = pairs.fold(0u64, |sum, (number, key)| {
            sum.wrapping_add(u64::from((number + 0.0).to_bits()).wrapping_mul(key))
        });
        assert_eq!(format!("{digest:016x}"), case["digest"], "{scheme}: all numbers");
    }
}

#[test]
fn words_of_other_widths_are_refused() {
    let case = json!({"tensors": [
        {"name": "weight_packed", "dtype": "I32", "shape": [16, 24]},
        {"name": "weight_scale", "dtype": "BF16", "shape": [16, 2]},
        {"name": "weight_shape", "dtype": "I64", "shape": [2], "values": [16, 256]},
    ]});
    assert_eq!(
        read(&json!({"quant_method": "compressed-tensors"}), file(&case, 0)).unwrap_err(),
        "a checkpoint of 3 bits (4 and 8 are read) is not supported \
         (`quantization_config.config_groups`)"
    );
}

/// The first version of GPTQ takes one off every zero by a subtraction of whole words, so that a
/// zero of 0 borrows from the next. Read back, every zero from 0 to 15 is itself.
#[test]
fn zeros_of_gptq_are_words() {
    let zeros: [u32; 4] = [0x8888_8888, 0x7654_3210, 0xfedc_ba98, 0x0f0f_f000];
    let stored = zeros.map(|word| i64::from(word.wrapping_sub(0x1111_1111) as i32));
    let case = json!({"tensors": [
        {"name": "qweight", "dtype": "I32", "shape": [4, 32], "values": vec![0; 128]},
        {"name": "qzeros", "dtype": "I32", "shape": [1, 4], "values": stored},
        {"name": "scales", "dtype": "F16", "shape": [1, 32]},
    ]});
    let tensors = read(&json!({"quant_method": "gptq", "bits": 4}), file(&case, 0)).unwrap();
    let weight = tensors.get("m.q_proj.weight").expect("a weight");
    let mut numbers = vec![f32::NAN; weight.elements()];
    formats::blocks::decode(weight.ty, &tensors.bytes(weight), &mut numbers);
    for (row, numbers) in numbers.chunks_exact(32).enumerate() {
        let scale = half::f16::from_bits(mix(2, 32).nth(row).unwrap() as u16 & 0x7ff | 0x2000);
        let zero = zeros[row / 8] >> (4 * (row % 8)) & 15;
        assert!(numbers.iter().all(|x| *x == -(zero as f32) * scale.to_f32()), "row {row}");
    }
}
