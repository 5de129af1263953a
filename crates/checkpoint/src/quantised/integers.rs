//! Integers in groups: AWQ, GPTQ, and compressed-tensors' packed ones.

use super::{Module, expect, matrix};
use crate::Error;
use formats::{Assembly, BlockType, Integers, RawTensor, TensorInfo, Zeros};

/// AWQ and GPTQ: words that run along the columns of the transposed matrix.
pub(super) fn packed_by_columns(module: &Module<'_>) -> Result<Assembly, Error> {
    let codes = module.raw("qweight")?;
    of_type(module, codes, "I32")?;
    let [first, second] = matrix(codes)?;
    let (form, shape) = match module.config.method {
        "gptq" => (Integers::Gptq, [second, 8 * first]),
        _ => (Integers::Awq, [8 * second, first]),
    };
    let [rows, cols] = shape;
    let scales = module.float("scales")?;
    let group = group_of(module, scales, [0, 1], shape)?;
    let zeros = module.raw("qzeros")?;
    of_type(module, zeros, "I32")?;
    expect(zeros, &[cols / group, rows.div_ceil(8)])?;
    if let Some(order) = module.raw.get("g_idx") {
        refuse_order(module, order, group)?;
    }
    // GPTQ writes one less in each of a word's eight places, unless it says that it is the second
    // version.
    let format = module.config.root.string(&module.config.path("checkpoint_format"))?;
    let is_less = form == Integers::Gptq && format != Some("gptq_v2");
    let more = if is_less { 0x1111_1111 } else { 0 };
    let (codes, scales) = (codes.clone(), scales.clone());
    let zeros = Zeros::Packed { tensor: zeros.clone(), more };
    Ok(Assembly::Int4 { codes, form, scales, zeros, group, shape })
}

/// compressed-tensors: words of eight or four columns, and the shape beside them.
pub(super) fn compressed(module: &Module<'_>, codes: &RawTensor) -> Result<Assembly, Error> {
    let [rows, words] = matrix(codes)?;
    let said = module.raw("weight_shape")?;
    let numbers: Vec<usize> = match said.dtype.as_str() {
        "I64" => words_of::<8>(module, said).map(|w| i64::from_le_bytes(w) as usize).collect(),
        _ => words_of::<4>(module, said).map(|w| i32::from_le_bytes(w) as usize).collect(),
    };
    let wrong = || Error::Shape {
        tensor: codes.name.clone(),
        found: codes.shape.clone(),
        expected: numbers.clone(),
    };
    let shape = <[usize; 2]>::try_from(&numbers[..]).map_err(|_| wrong())?;
    let cols = shape[1];
    if shape[0] != rows {
        return Err(wrong());
    }
    if let Some(order) = module.raw.get("weight_g_idx") {
        let scales = module.float("weight_scale")?;
        let group = group_of(module, scales, [1, 0], shape)?;
        refuse_order(module, order, group)?;
    }
    if words * 4 == cols {
        module.whole(cols, 128, codes)?;
        no_zeros(module)?;
        let scales = module.grid(shape)?;
        return Ok(Assembly::Int8 { codes: codes.clone(), packed: true, scales, shape });
    }
    if words * 8 != cols {
        let bits = words * 32 / cols.max(1);
        return Err(match bits {
            1..=8 => module.config.unsupported(
                format!("a checkpoint of {bits} bits (4 and 8 are read)"),
                "config_groups",
            ),
            _ => wrong(),
        });
    }
    let scales = module.float("weight_scale")?;
    let group = group_of(module, scales, [1, 0], shape)?;
    let zeros = match module.raw.get("weight_zero_point") {
        None => Zeros::Constant(8),
        Some(zeros) => {
            of_type(module, zeros, "I32")?;
            expect(zeros, &[rows.div_ceil(8), cols / group])?;
            Zeros::Packed { tensor: (*zeros).clone(), more: 0 }
        }
    };
    let (codes, scales) = (codes.clone(), scales.clone());
    let form = Integers::CompressedTensors;
    Ok(Assembly::Int4 { codes, form, scales, zeros, group, shape })
}

/// Columns of a group, from the shape of the scales, whose axes are `axes` (of groups, of rows).
fn group_of(
    module: &Module<'_>,
    scales: &TensorInfo,
    axes: [usize; 2],
    [rows, cols]: [usize; 2],
) -> Result<usize, Error> {
    // What f16 and bf16 have fits beside the zero.
    if scales.ty == BlockType::F32 {
        return Err(Error::Invalid {
            what: "the type of scales",
            value: scales.ty.to_string(),
            from: format!("tensor `{}`", scales.name),
            expected: "F16 or BF16".to_owned(),
        });
    }
    module.check_finite(scales)?;
    let groups = scales.shape.get(axes[0]).copied().unwrap_or(0);
    let is_right = scales.shape.len() == 2 && scales.shape[axes[1]] == rows;
    if !is_right || groups == 0 || !cols.is_multiple_of(groups) {
        let mut expected = [0; 2];
        (expected[axes[0]], expected[axes[1]]) = (cols / 128, rows);
        return Err(Error::Shape {
            tensor: scales.name.clone(),
            found: scales.shape.clone(),
            expected: expected.to_vec(),
        });
    }
    let group = cols / groups;
    if group == 32 || group == 64 || group.is_multiple_of(128) {
        return Ok(group);
    }
    Err(Error::Invalid {
        what: "the length of a group",
        value: group.to_string(),
        from: format!("tensor `{}`", scales.name),
        expected: "32, 64 or a multiple of 128".to_owned(),
    })
}

/// Whole-number weights are read where zero is zero.
pub(super) fn no_zeros(module: &Module<'_>) -> Result<(), Error> {
    let Some(zeros) = module.raw.get("weight_zero_point") else { return Ok(()) };
    if module.tensors.raw_data(zeros).iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "a zero point of 8-bit integers",
        value: "not 0".to_owned(),
        from: format!("tensor `{}`", zeros.name),
        expected: "0".to_owned(),
    })
}

/// Columns must lie in the order of their groups.
fn refuse_order(module: &Module<'_>, order: &RawTensor, group: usize) -> Result<(), Error> {
    let indices: Vec<i32> = words_of::<4>(module, order).map(i32::from_le_bytes).collect();
    let is_plain = |(i, index): (usize, &i32)| *index as usize == i / group;
    // compressed-tensors writes -1 where there is none.
    if indices.iter().all(|i| *i == -1) || indices.iter().enumerate().all(is_plain) {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "an order of columns by activation (act-order)".to_owned(),
        from: format!("tensor `{}`", order.name),
    })
}

fn words_of<'a, const LEN: usize>(
    module: &Module<'a>,
    tensor: &RawTensor,
) -> impl Iterator<Item = [u8; LEN]> + 'a {
    module.tensors.raw_data(tensor).as_chunks().0.iter().copied()
}

fn of_type(module: &Module<'_>, tensor: &RawTensor, dtype: &str) -> Result<(), Error> {
    if tensor.dtype == dtype { Ok(()) } else { Err(module.wrong_type(tensor, dtype)) }
}
