//! Formats without a search of their own: floats, `Q8_0` and, with one scale to find, `Q4_0`.

use super::Encode;
use super::fit::{self, Range};
use crate::blocks::{Half, Q4_0, Q8_0, float, legacy};
use half::f16;
use half::slice::HalfFloatSliceExt;

pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = value.to_le_bytes();
    }
}

/// Rounds to nearest, ties to even.
pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; float::CHUNK];
    for (values, out) in values.chunks(float::CHUNK).zip(out.chunks_mut(2 * float::CHUNK)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (half, out) in halves.iter().zip(out.as_chunks_mut().0) {
            *out = half.to_le_bytes();
        }
    }
}

/// Rounds finite values to nearest, ties to even.
pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        let bits = value.to_bits();
        *out = (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes();
    }
}

impl Encode<32> for Q8_0 {
    /// The scale takes the largest magnitude to 127 and quants round half away from zero, to the
    /// bit as ggml does.
    #[inline]
    fn encode(values: &[f32; 32]) -> Self {
        let d = fit::peak(values).abs() / 127.0;
        let inverse = fit::inverse(d).min(f32::MAX);
        let qs = values.map(|value| {
            let exact = value * inverse;
            let even = (exact + fit::ROUND) - fit::ROUND;
            let rest = exact - even;
            // A tie that went towards zero goes the other way.
            let away = if rest == 0.5_f32.copysign(exact) { rest + rest } else { 0.0 };
            fit::low_byte(even + away)
        });
        Self { d: Half::new(d), qs }
    }
}

impl Encode<32> for Q4_0 {
    #[inline]
    fn encode(values: &[f32; 32]) -> Self {
        const QUANTS: Range = Range { lowest: -8.0, highest: 7.0 };
        let d = fit::half(QUANTS.scale(values, &fit::weights(values)));
        let quants = QUANTS.quants(values, d.get(), 0.0);
        Self { d, qs: legacy::pack_nibbles(&quants.map(|q| (q + 8) as u8)) }
    }
}
