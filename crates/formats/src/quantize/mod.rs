//! Encoding `f32` rows into block formats.
//!
//! `simple` holds what is rounded directly, `k` the formats whose scales are searched for with the
//! least-squares steps of `fit`.

mod fit;
mod k;
mod simple;

use crate::blocks::{Block, BlockType, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};

/// Why values could not be encoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EncodeError {
    /// A value is NaN or infinite; `index` is that of the first one.
    #[error("value {index} is {value}, not a finite number")]
    NotFinite {
        /// Index into the values.
        index: usize,
        /// The value there.
        value: f32,
    },
    /// A value is larger than the type can hold; `index` is that of the first one.
    #[error("value {index} is {value:e}, beyond the {limit:e} that `{ty}` holds")]
    TooLarge {
        /// Index into the values.
        index: usize,
        /// The value there.
        value: f32,
        /// The largest magnitude the type holds.
        limit: f32,
        /// The type asked for.
        ty: BlockType,
    },
    /// The type is read but not written.
    #[error("type `{0}` can be read but not written")]
    Unsupported(BlockType),
}

/// A block that can be made from values.
trait Encode<const LEN: usize>: Block<LEN> {
    /// The block nearest to `values`, which are within the type's `limit`.
    fn encode(values: &[f32; LEN]) -> Self;
}

/// Whether `encode` writes this type.
pub fn supports(ty: BlockType) -> bool {
    limit(ty).is_some()
}

/// Encodes whole blocks of `ty`; `out` has exactly the bytes that `values` take.
pub fn encode(ty: BlockType, values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    assert_eq!(
        Some(out.len()),
        ty.bytes_for(values.len()),
        "bytes of {} `{ty}` elements",
        values.len()
    );
    let limit = limit(ty).ok_or(EncodeError::Unsupported(ty))?;
    // Values are checked just before they are encoded, while they are in the cache.
    const CHUNK: usize = 4096;
    let chunk_bytes = CHUNK / ty.block_len() * ty.block_bytes();
    for (i, (values, out)) in values.chunks(CHUNK).zip(out.chunks_mut(chunk_bytes)).enumerate() {
        check(ty, limit, values, i * CHUNK)?;
        match ty {
            BlockType::F32 => simple::encode_f32(values, out),
            BlockType::F16 => simple::encode_f16(values, out),
            BlockType::BF16 => simple::encode_bf16(values, out),
            BlockType::Q8_0 => encode_blocks::<Q8_0, _>(values, out),
            BlockType::Q4_0 => encode_blocks::<Q4_0, _>(values, out),
            BlockType::Q4_K => encode_blocks::<Q4_K, _>(values, out),
            BlockType::Q5_K => encode_blocks::<Q5_K, _>(values, out),
            BlockType::Q6_K => encode_blocks::<Q6_K, _>(values, out),
            _ => unreachable!("`{ty}` has no limit"),
        }
    }
    Ok(())
}

fn encode_blocks<B: Encode<LEN>, const LEN: usize>(values: &[f32], out: &mut [u8]) {
    for (values, block) in values.as_chunks().0.iter().zip(bytemuck::cast_slice_mut(out)) {
        *block = B::encode(values);
    }
}

/// The largest magnitude, of either sign, that survives encoding; `None` for a type that is not
/// written.
fn limit(ty: BlockType) -> Option<f32> {
    const HALF_MAX: f32 = 65504.0;
    match ty {
        BlockType::F32 => Some(f32::MAX),
        // Half a unit further rounds to infinity.
        BlockType::F16 => Some(65520.0_f32.next_down()),
        BlockType::BF16 => Some(f32::from_bits(0x7f7f_7fff)),
        BlockType::Q8_0 => Some(HALF_MAX * 127.0),
        BlockType::Q4_0 => Some(HALF_MAX * 7.0),
        // The most negative value is all `dmin * min`.
        BlockType::Q4_K | BlockType::Q5_K => Some(HALF_MAX * 63.0),
        BlockType::Q6_K => Some(HALF_MAX * 127.0 * 31.0),
        _ => None,
    }
}

/// Refuses the first value that is not finite or not within `limit`.
fn check(ty: BlockType, limit: f32, values: &[f32], start: usize) -> Result<(), EncodeError> {
    let outside = |value: f32| value.abs() > limit || value.is_nan();
    // Without an early exit it vectorises.
    if !values.iter().fold(false, |any, &value| any | outside(value)) {
        return Ok(());
    }
    let found = values.iter().enumerate().find(|(_, value)| outside(**value));
    let (at, &value) = found.expect("a value is outside");
    let index = start + at;
    Err(if value.is_finite() {
        EncodeError::TooLarge { index, value, limit, ty }
    } else {
        EncodeError::NotFinite { index, value }
    })
}
