//! Matrices in the forms that Hugging Face folders have them, written from the layouts that the
//! packages publish and not with the reader's code.
#![allow(unreachable_pub)]

use formats::BlockType;
use serde_json::{Value, json};

/// A tensor as a file has it.
pub struct Stored {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Fp8Squares,
    Fp8Rows,
    Fp8Tensor,
    Nvfp4Modelopt,
    Nvfp4Compressed,
    Mxfp4,
    Awq,
    GptqSymmetric,
    Gptq32,
    Int4Symmetric32,
    Int4Asymmetric128,
    Int8Rows,
    Int8Packed,
}

impl Scheme {
    pub const ALL: [Self; 13] = [
        Self::Fp8Squares,
        Self::Fp8Rows,
        Self::Fp8Tensor,
        Self::Nvfp4Modelopt,
        Self::Nvfp4Compressed,
        Self::Mxfp4,
        Self::Awq,
        Self::GptqSymmetric,
        Self::Gptq32,
        Self::Int4Symmetric32,
        Self::Int4Asymmetric128,
        Self::Int8Rows,
        Self::Int8Packed,
    ];

    pub fn ty(self) -> BlockType {
        match self {
            Self::Fp8Squares | Self::Fp8Rows | Self::Fp8Tensor => BlockType::FP8,
            Self::Nvfp4Modelopt | Self::Nvfp4Compressed => BlockType::FP4,
            Self::Mxfp4 => BlockType::MXFP4,
            Self::Awq | Self::GptqSymmetric | Self::Int4Asymmetric128 => BlockType::INT4,
            Self::Gptq32 | Self::Int4Symmetric32 => BlockType::INT4_32,
            Self::Int8Rows | Self::Int8Packed => BlockType::INT8,
        }
    }

    pub fn config(self) -> Value {
        let ignore = json!(["lm_head", "re:.*visual.*"]);
        match self {
            Self::Fp8Squares => json!({"quant_method": "fp8", "fmt": "e4m3",
                "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                "modules_to_not_convert": ["lm_head"]}),
            Self::Fp8Tensor => json!({"quant_method": "modelopt", "quant_algo": "FP8",
                "ignore": ignore}),
            Self::Nvfp4Modelopt => json!({"quant_method": "modelopt", "quant_algo": "NVFP4",
                "exclude_modules": ["lm_head"]}),
            Self::Awq => json!({"quant_method": "awq", "bits": 4, "group_size": 128,
                "zero_point": true, "version": "gemm", "modules_to_not_convert": null}),
            Self::GptqSymmetric => json!({"quant_method": "gptq", "bits": 4, "group_size": 128,
                "sym": true, "desc_act": false}),
            Self::Gptq32 => json!({"quant_method": "gptq", "bits": 4, "group_size": 32,
                "sym": false, "desc_act": false, "checkpoint_format": "gptq_v2"}),
            _ => json!({"quant_method": "compressed-tensors", "ignore": ignore}),
        }
    }
}

/// A tensor of F32.
pub fn plain(name: &str, shape: &[usize], values: &[f32]) -> Stored {
    floats(name.to_owned(), shape.to_vec(), values)
}

fn floats(name: String, shape: Vec<usize>, values: &[f32]) -> Stored {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Stored { name, dtype: "F32", shape, bytes }
}

fn f16s(name: String, shape: Vec<usize>, values: &[f32]) -> Stored {
    let bytes = values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    Stored { name, dtype: "F16", shape, bytes }
}

fn bf16s(name: String, shape: Vec<usize>, values: &[f32]) -> Stored {
    let bytes = values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
    Stored { name, dtype: "BF16", shape, bytes }
}

fn words(name: String, shape: Vec<usize>, values: &[u32]) -> Stored {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Stored { name, dtype: "I32", shape, bytes }
}

/// The value of an 8-bit float, from the definition: bias 7, three bits of mantissa.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let value = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { value } else { -value }
}

/// The code of the largest magnitude that is not larger, which is near enough.
fn to_e4m3(x: f32) -> u8 {
    let (mut low, mut high) = (0u8, 0x7e);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if e4m3(middle) <= x.abs() { low = middle } else { high = middle - 1 }
    }
    low | if x < 0.0 { 0x80 } else { 0 }
}

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(code: u8) -> f32 {
    let value = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { value } else { -value }
}

fn to_e2m1(x: f32) -> u8 {
    let code = E2M1.iter().rposition(|v| *v <= x.abs()).expect("zero is not larger") as u8;
    code | if x < 0.0 { 8 } else { 0 }
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.map(f32::abs).fold(1e-6, f32::max)
}

/// The tensors of a linear layer, and the numbers they stand for.
pub fn quantise(
    scheme: Scheme,
    module: &str,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let name = |end: &str| format!("{module}.{end}");
    match scheme {
        Scheme::Fp8Squares | Scheme::Fp8Rows | Scheme::Fp8Tensor => {
            fp8(scheme, name, [rows, cols], values)
        }
        Scheme::Nvfp4Modelopt | Scheme::Nvfp4Compressed => {
            nvfp4(scheme, name, [rows, cols], values)
        }
        Scheme::Mxfp4 => mxfp4(name, [rows, cols], values),
        Scheme::Int8Rows | Scheme::Int8Packed => int8(scheme, name, [rows, cols], values),
        _ => int4(scheme, name, [rows, cols], values),
    }
}

fn fp8(
    scheme: Scheme,
    name: impl Fn(&str) -> String,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let (high, wide, end, shape) = match scheme {
        Scheme::Fp8Squares => {
            (128, 128, "weight_scale_inv", vec![rows.div_ceil(128), cols.div_ceil(128)])
        }
        Scheme::Fp8Rows => (1, cols, "weight_scale", vec![rows, 1]),
        _ => (rows, cols, "weight_scale", vec![]),
    };
    let across = cols.div_ceil(wide);
    let mut scales = vec![1e-6f32; rows.div_ceil(high) * across];
    let place = |i: usize| i / cols / high * across + i % cols / wide;
    for (i, value) in values.iter().enumerate() {
        scales[place(i)] = scales[place(i)].max(value.abs() / 448.0);
    }
    let codes: Vec<u8> =
        values.iter().enumerate().map(|(i, x)| to_e4m3(x / scales[place(i)])).collect();
    let numbers = codes.iter().enumerate().map(|(i, q)| scales[place(i)] * e4m3(*q)).collect();
    let mut stored = vec![
        Stored { name: name("weight"), dtype: "F8_E4M3", shape: vec![rows, cols], bytes: codes },
        floats(name(end), shape, &scales),
    ];
    if scheme == Scheme::Fp8Tensor {
        // What only matters where activations are rounded.
        stored.push(floats(name("input_scale"), vec![], &[0.5]));
    }
    (stored, numbers)
}

fn pairs(codes: &[u8]) -> Vec<u8> {
    codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect()
}

fn nvfp4(
    scheme: Scheme,
    name: impl Fn(&str) -> String,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let is_modelopt = scheme == Scheme::Nvfp4Modelopt;
    let whole = largest(values.iter().copied()) / (6.0 * 448.0);
    // compressed-tensors stores the inverse.
    let stored = if is_modelopt { whole } else { 1.0 / whole };
    let scale = if is_modelopt { stored } else { 1.0 / stored };
    let (mut codes, mut scales, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for sixteen in values.as_chunks::<16>().0 {
        let small = to_e4m3(largest(sixteen.iter().copied()) / 6.0 / scale);
        scales.push(small);
        for x in sixteen {
            let code = to_e2m1(x / (e4m3(small).max(1e-3) * scale));
            codes.push(code);
            numbers.push(scale * (e4m3(small) * e2m1(code)));
        }
    }
    let bytes = pairs(&codes);
    let (weight, whole) = match is_modelopt {
        true => ("weight", "weight_scale_2"),
        false => ("weight_packed", "weight_global_scale"),
    };
    let shape = if is_modelopt { vec![] } else { vec![1] };
    let stored = vec![
        Stored { name: name(weight), dtype: "U8", shape: vec![rows, cols / 2], bytes },
        Stored {
            name: name("weight_scale"),
            dtype: "F8_E4M3",
            shape: vec![rows, cols / 16],
            bytes: scales,
        },
        floats(name(whole), shape, &[stored]),
    ];
    (stored, numbers)
}

fn mxfp4(
    name: impl Fn(&str) -> String,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let (mut codes, mut exponents, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.as_chunks::<32>().0 {
        let power = largest(group.iter().copied()).log2().floor() as i32 - 2;
        exponents.push((power + 127) as u8);
        for x in group {
            let code = to_e2m1(x / 2f32.powi(power));
            codes.push(code);
            numbers.push(2f32.powi(power) * e2m1(code));
        }
    }
    let shape = vec![rows, cols / 2];
    let stored = vec![
        Stored { name: name("weight_packed"), dtype: "U8", shape, bytes: pairs(&codes) },
        Stored {
            name: name("weight_scale"),
            dtype: "U8",
            shape: vec![rows, cols / 32],
            bytes: exponents,
        },
    ];
    (stored, numbers)
}

fn int8(
    scheme: Scheme,
    name: impl Fn(&str) -> String,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let (mut codes, mut scales, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for row in values.chunks_exact(cols) {
        let scale = half::bf16::from_f32(largest(row.iter().copied()) / 120.0).to_f32();
        scales.push(scale);
        for x in row {
            let q = (x / scale).round().clamp(-127.0, 127.0);
            codes.push(q as i8 as u8);
            numbers.push(scale * q);
        }
    }
    let mut stored = vec![bf16s(name("weight_scale"), vec![rows, 1], &scales)];
    if scheme == Scheme::Int8Rows {
        let shape = vec![rows, cols];
        stored.push(Stored { name: name("weight"), dtype: "I8", shape, bytes: codes });
    } else {
        // Four a word, each 128 more than it is.
        let bytes = codes.iter().map(|q| q.wrapping_add(128)).collect();
        let shape = vec![rows, cols / 4];
        stored.push(Stored { name: name("weight_packed"), dtype: "I32", shape, bytes });
        stored.push(shape_of(name("weight_shape"), [rows, cols]));
    }
    (stored, numbers)
}

fn shape_of(name: String, shape: [usize; 2]) -> Stored {
    let bytes = shape.iter().flat_map(|n| (*n as i64).to_le_bytes()).collect();
    Stored { name, dtype: "I64", shape: vec![2], bytes }
}

/// Eight codes of four bits as a word.
fn word(code: impl Fn(usize) -> u8) -> u32 {
    (0..8).fold(0, |word, i| word | u32::from(code(i)) << (4 * i))
}

fn int4(
    scheme: Scheme,
    name: impl Fn(&str) -> String,
    [rows, cols]: [usize; 2],
    values: &[f32],
) -> (Vec<Stored>, Vec<f32>) {
    let group = match scheme {
        Scheme::Gptq32 | Scheme::Int4Symmetric32 => 32,
        _ => 128,
    };
    let is_symmetric = matches!(scheme, Scheme::GptqSymmetric | Scheme::Int4Symmetric32);
    let groups = cols / group;
    let (mut codes, mut scales, mut zeros, mut numbers) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for set in values.chunks_exact(group) {
        let low = set.iter().copied().fold(0.0, f32::min);
        let high = set.iter().copied().fold(0.0, f32::max);
        let (scale, zero) = match is_symmetric {
            true => (largest(set.iter().copied()) / 7.0, 8.0),
            false => {
                ((high - low).max(1e-6) / 15.0, (-low / ((high - low).max(1e-6) / 15.0)).round())
            }
        };
        // Both types of scales hold it.
        let scale = half::bf16::from_f32(scale).to_f32();
        let scale = half::f16::from_f32(scale).to_f32();
        scales.push(scale);
        zeros.push(zero as u8);
        for x in set {
            let q = (x / scale + zero).round().clamp(0.0, 15.0);
            codes.push(q as u8);
            numbers.push(scale * (q - zero));
        }
    }
    let code = |r: usize, c: usize| codes[r * cols + c];
    let zero = |r: usize, g: usize| zeros[r * groups + g];
    // [groups, rows]
    let across: Vec<f32> =
        (0..groups * rows).map(|i| scales[i % rows * groups + i / rows]).collect();
    let stored = match scheme {
        Scheme::Awq => {
            const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
            let pack = |count: usize, at: &dyn Fn(usize, usize) -> u8| -> Vec<u32> {
                let place = |i: usize| (i / (rows / 8), i % (rows / 8) * 8);
                (0..count * rows / 8)
                    .map(|i| word(|k| at(place(i).1 + ORDER[k], place(i).0)))
                    .collect()
            };
            vec![
                words(name("qweight"), vec![cols, rows / 8], &pack(cols, &code)),
                words(name("qzeros"), vec![groups, rows / 8], &pack(groups, &zero)),
                f16s(name("scales"), vec![groups, rows], &across),
            ]
        }
        Scheme::GptqSymmetric | Scheme::Gptq32 => {
            let less = u8::from(scheme == Scheme::GptqSymmetric);
            let weight: Vec<u32> =
                (0..cols / 8 * rows).map(|i| word(|k| code(i % rows, i / rows * 8 + k))).collect();
            let zeros: Vec<u32> = (0..groups * rows / 8)
                .map(|i| word(|k| zero(i % (rows / 8) * 8 + k, i / (rows / 8)) - less))
                .collect();
            let order: Vec<u32> = (0..cols).map(|c| (c / group) as u32).collect();
            vec![
                words(name("qweight"), vec![cols / 8, rows], &weight),
                words(name("qzeros"), vec![groups, rows / 8], &zeros),
                words(name("g_idx"), vec![cols], &order),
                f16s(name("scales"), vec![groups, rows], &across),
            ]
        }
        _ => {
            let weight: Vec<u32> = (0..rows * cols / 8)
                .map(|i| word(|k| code(i / (cols / 8), i % (cols / 8) * 8 + k)))
                .collect();
            let mut stored = vec![
                words(name("weight_packed"), vec![rows, cols / 8], &weight),
                shape_of(name("weight_shape"), [rows, cols]),
                bf16s(name("weight_scale"), vec![rows, groups], &scales),
            ];
            if !is_symmetric {
                let zeros: Vec<u32> = (0..rows / 8 * groups)
                    .map(|i| word(|k| zero(i / groups * 8 + k, i % groups)))
                    .collect();
                let shape = vec![rows / 8, groups];
                stored.push(words(name("weight_zero_point"), shape, &zeros));
            }
            stored
        }
    };
    (stored, numbers)
}
