//! Weighted least-squares fits of `scale * q - min` to a run of values, `q` being integers of a given range.
//!
//! A fit tries a few scales. For each it rounds the values to quants and solves for the scale (and min) that serve
//! those quants best; the best of them rounds once more, twice.

use crate::blocks::Half;

/// Adding and subtracting it rounds to the nearest integer, ties to even (magnitudes below 2^22). It vectorises
/// where `round` would be a call.
pub(super) const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// A small integer held in a float, as a byte.
#[inline(always)]
pub(super) fn low_byte(integer: f32) -> i8 {
    (integer + ROUND).to_bits() as i8
}

/// `1 / value`, or 0 for 0.
#[inline(always)]
pub(super) fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

const LARGEST_HALF: f32 = 65504.0;
const SMALLEST_HALF: f32 = 1.0 / 16_777_216.0; // 2^-24, subnormal

/// The nearest half, but neither infinite nor, unless the value is, zero.
#[inline]
pub(super) fn half(value: f32) -> Half {
    if value == 0.0 {
        return Half::default();
    }
    Half::new(value.abs().clamp(SMALLEST_HALF, LARGEST_HALF).copysign(value))
}

/// The half next to `largest / levels` that is not nearer to zero, so that no scale needs more than `levels`. This
/// tells among subnormal halves, where the scales of small weights' scales lie.
#[inline]
pub(super) fn half_for(largest: f32, levels: f32) -> Half {
    let wanted = largest / levels;
    let near = half(wanted);
    let short = near.get().abs() < wanted.abs().min(LARGEST_HALF);
    Half((u16::from_le_bytes(near.0) + u16::from(short)).to_le_bytes())
}

/// Sums are kept in as many parts, so that they vectorise.
const LANES: usize = 4;

/// The lowest and the highest of the values and 0.
#[inline]
fn extent<const N: usize>(values: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
    for values in values.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            low[i] = if values[i] < low[i] { values[i] } else { low[i] };
            high[i] = if values[i] > high[i] { values[i] } else { high[i] };
        }
    }
    (low.into_iter().fold(0.0, f32::min), high.into_iter().fold(0.0, f32::max))
}

/// The value of largest magnitude.
#[inline]
pub(super) fn peak<const N: usize>(values: &[f32; N]) -> f32 {
    let (low, high) = extent(values);
    if -low > high { low } else { high }
}

/// What a squared error counts: one, and half as much again at the root mean square. Large weights so keep their
/// precision at little cost to the plain error.
#[inline]
pub(super) fn weights<const N: usize>(values: &[f32; N]) -> [f32; N] {
    let mut squares = [0.0; LANES];
    for values in values.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            squares[i] += values[i] * values[i];
        }
    }
    let half_inverse = inverse(2.0 / N as f32 * squares.iter().sum::<f32>()).min(f32::MAX);
    values.map(|value| 1.0 + value * value * half_inverse)
}

/// The integers a quant can be.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) lowest: f32,
    pub(super) highest: f32,
}

/// Weighted sums over values `x` and the quants `q` they round to.
pub(super) struct Moments {
    pub(super) q: f32,
    pub(super) qq: f32,
    pub(super) x: f32,
    pub(super) xq: f32,
}

/// A fit first rounds by the values' extent over the range's steps and these many more.
const EXTRA_STEPS: [f32; 8] = [-1.0, -0.7, -0.4, -0.15, 0.15, 0.4, 0.7, 1.0];
/// Then, twice, by the best so far: the one with the largest gain, which is how much it takes off the values' sum of
/// squares.
const TRIALS: usize = EXTRA_STEPS.len() + 2;

impl Range {
    /// The nearest quant as a float; the lowest for NaN.
    #[inline(always)]
    pub(super) fn nearest(self, value: f32) -> f32 {
        let value = if value > self.lowest { value } else { self.lowest };
        let value = if value < self.highest { value } else { self.highest };
        (value + ROUND) - ROUND
    }

    /// The nearest quant and its neighbours.
    #[inline]
    pub(super) fn around(self, value: f32) -> [f32; 3] {
        [value, value - 1.0, value + 1.0].map(|value| self.nearest(value))
    }

    /// The quants of `values` under `scale` and `min`.
    #[inline]
    pub(super) fn quants<const N: usize>(self, values: &[f32; N], scale: f32, min: f32) -> [i8; N] {
        let inverse = inverse(scale);
        values.map(|value| low_byte(self.nearest((value + min) * inverse)))
    }

    /// The squared error that `scale` and `min` leave.
    #[inline]
    pub(super) fn error<const N: usize>(
        self,
        values: &[f32; N],
        weights: &[f32; N],
        scale: f32,
        min: f32,
    ) -> f32 {
        let inverse = inverse(scale);
        let mut sums = [0.0; LANES];
        for (x, w) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let rest = x[i] - (scale * self.nearest((x[i] + min) * inverse) - min);
                sums[i] += w[i] * rest * rest;
            }
        }
        sums.iter().sum()
    }

    /// The sums for `values` rounded under `scale` and `min`.
    #[inline]
    pub(super) fn moments<const N: usize>(
        self,
        values: &[f32; N],
        weights: &[f32; N],
        scale: f32,
        min: f32,
    ) -> Moments {
        let inverse = inverse(scale);
        let [mut q_sum, mut qq, mut x_sum, mut xq] = [[0.0; LANES]; 4];
        for (x, w) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let q = self.nearest((x[i] + min) * inverse);
                q_sum[i] += w[i] * q;
                qq[i] += w[i] * q * q;
                x_sum[i] += w[i] * x[i];
                xq[i] += w[i] * q * x[i];
            }
        }
        let [q, qq, x, xq] = [q_sum, qq, x_sum, xq].map(|lanes| lanes.iter().sum());
        Moments { q, qq, x, xq }
    }

    /// The scale that fits `values` best, without a min.
    #[inline]
    pub(super) fn scale<const N: usize>(self, values: &[f32; N], weights: &[f32; N]) -> f32 {
        let peak = peak(values);
        let (mut most, mut best) = (0.0, 0.0);
        for trial in 0..TRIALS {
            let rounding = EXTRA_STEPS.get(trial).map_or(best, |extra| peak / (self.lowest - extra));
            let m = self.moments(values, weights, rounding, 0.0);
            let scale = m.xq * inverse(m.qq);
            let gain = scale * m.xq;
            if gain > most {
                (most, best) = (gain, scale);
            }
        }
        best
    }

    /// The `(scale, min)` that fit `values` best, both at least 0.
    #[inline]
    pub(super) fn scale_and_min<const N: usize>(self, values: &[f32; N], weights: &[f32; N]) -> (f32, f32) {
        let n: f32 = weights.iter().sum();
        let (low, high) = extent(values);
        // Fitted from the lowest value up, lest a large min drown the differences: `x - low` is near
        // `scale * q + base`, and the min is `-low - base`.
        let values = values.map(|value| value - low);
        let (mut most, mut best) = (0.0, (0.0, 0.0));
        for trial in 0..TRIALS {
            let rounding =
                EXTRA_STEPS.get(trial).map_or(best, |extra| ((high - low) / (self.highest + extra), 0.0));
            let m = self.moments(&values, weights, rounding.0, -rounding.1);
            let spread = n * m.qq - m.q * m.q;
            let slope = (n * m.xq - m.x * m.q) * inverse(spread);
            // The min cannot be negative; and quants that are all the same tell nothing of the base.
            let base = if spread > 1e-5 * n * m.qq { ((m.x - slope * m.q) / n).min(-low) } else { 0.0 };
            let above = m.xq - base * m.q;
            let scale = above * inverse(m.qq);
            let gain = scale * above + base * (2.0 * m.x - n * base);
            if gain > most && scale >= 0.0 {
                (most, best) = (gain, (scale, base));
            }
        }
        (best.0, -low - best.1)
    }
}
