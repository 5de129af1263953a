//! The K formats. Each sub-block's scale (and min) is fitted alone, then made an integer multiple
//! of the block's.

use super::Encode;
use super::fit::{self, Range, inverse};
use crate::blocks::{Half, Q4_K, Q5_K, Q6_K, k};

/// A block of `Q4_K` or `Q5_K` before its bits are packed: `d * scale * q - dmin * min`.
struct Parts {
    d: Half,
    dmin: Half,
    scales: [u8; 8],
    mins: [u8; 8],
    quants: [u8; 256],
}

impl Parts {
    fn fit(values: &[f32; 256], range: Range) -> Self {
        const SIX_BITS: Range = Range { lowest: 0.0, highest: 63.0 };
        let subs: &[[f32; 32]; 8] = values.as_chunks().0.try_into().expect("8 sub-blocks");
        let weights = fit::weights(values);
        let weights: &[[f32; 32]; 8] = weights.as_chunks().0.try_into().expect("8 sub-blocks");
        let fits: [_; 8] = std::array::from_fn(|i| range.scale_and_min(&subs[i], &weights[i]));
        let d = fit::half_for(fit::peak(&fits.map(|(scale, _)| scale)), SIX_BITS.highest);
        let dmin = fit::half_for(fit::peak(&fits.map(|(_, min)| min)), SIX_BITS.highest);

        // Of the integers near the fitted scale and min, the pair that leaves the least error: of
        // six bits each, to round them alone would cost a part in a hundred.
        let (mut scales, mut mins) = ([0.0; 8], [0.0; 8]);
        for i in 0..8 {
            let (scale, min) = (fits[i].0 * inverse(d.get()), fits[i].1 * inverse(dmin.get()));
            let mut least = f32::INFINITY;
            for scale in SIX_BITS.around(scale) {
                for min in SIX_BITS.around(min) {
                    let error =
                        range.error(&subs[i], &weights[i], scale * d.get(), min * dmin.get());
                    if error < least {
                        (least, scales[i], mins[i]) = (error, scale, min);
                    }
                }
            }
        }

        let mut quants = [0; 256];
        for (i, quants) in quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *quants =
                range.quants(&subs[i], scales[i] * d.get(), mins[i] * dmin.get()).map(|q| q as u8);
        }
        Self { d, dmin, scales: scales.map(|s| s as u8), mins: mins.map(|m| m as u8), quants }
    }
}

impl Encode<256> for Q4_K {
    fn encode(values: &[f32; 256]) -> Self {
        let Parts { d, dmin, scales, mins, quants } =
            Parts::fit(values, Range { lowest: 0.0, highest: 15.0 });
        Self {
            d,
            dmin,
            packed_scales: k::pack_scales(&scales, &mins),
            qs: Self::pack_quants(&quants),
        }
    }
}

impl Encode<256> for Q5_K {
    fn encode(values: &[f32; 256]) -> Self {
        let Parts { d, dmin, scales, mins, quants } =
            Parts::fit(values, Range { lowest: 0.0, highest: 31.0 });
        let (qh, qs) = Self::pack_quants(&quants);
        Self { d, dmin, packed_scales: k::pack_scales(&scales, &mins), qh, qs }
    }
}

impl Encode<256> for Q6_K {
    fn encode(values: &[f32; 256]) -> Self {
        const QUANTS: Range = Range { lowest: -32.0, highest: 31.0 };
        const SCALES: Range = Range { lowest: -128.0, highest: 127.0 };
        let subs: &[[f32; 16]; 16] = values.as_chunks().0.try_into().expect("16 sub-blocks");
        let weights = fit::weights(values);
        let weights: &[[f32; 16]; 16] = weights.as_chunks().0.try_into().expect("16 sub-blocks");
        let fits: [_; 16] = std::array::from_fn(|i| QUANTS.scale(&subs[i], &weights[i]));
        let d = fit::half_for(fit::peak(&fits), SCALES.lowest);

        let scales = fits.map(|scale| SCALES.nearest(scale * inverse(d.get())));

        let mut quants = [0; 256];
        for (i, quants) in quants.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            *quants = QUANTS.quants(&subs[i], scales[i] * d.get(), 0.0);
        }
        let (ql, qh) = Self::pack_quants(&quants);
        Self { ql, qh, scales: scales.map(|s| s as i8), d }
    }
}
