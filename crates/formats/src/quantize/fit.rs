//! Weighted least-squares fits of `scale * q - min` to a run of values, `q` being integers of a
//! given range.
//!
//! A fit tries a few scales. By each it rounds the values to quants and solves for the scale (and
//! min) that serve those quants best.

use crate::blocks::Half;

/// Adding and subtracting it rounds to the nearest integer, ties to even (magnitudes below 2^22).
/// It vectorises where `round` would be a call.
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

/// The nearest finite half.
#[inline]
pub(super) fn half(value: f32) -> Half {
    Half::new(value.clamp(-65504.0, 65504.0))
}

/// The half next to `largest / levels` that is not nearer to zero, so that no scale needs more than
/// `levels`. This tells among subnormal halves, where the scales of small weights' scales lie.
#[inline]
pub(super) fn half_for(largest: f32, levels: f32) -> Half {
    let wanted = largest / levels;
    let near = half(wanted);
    let short = near.get().abs() < wanted.abs().min(65504.0);
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

/// What a squared error counts: one, and a quarter more at the root mean square. Large values so
/// keep their precision at little cost to the plain error.
#[inline]
pub(super) fn weights<const N: usize>(values: &[f32; N]) -> [f32; N] {
    let mut squares = [0.0; LANES];
    for values in values.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            squares[i] += values[i] * values[i];
        }
    }
    let mean = squares.iter().sum::<f32>() / N as f32;
    let factor = (0.25 * inverse(mean)).min(f32::MAX);
    values.map(|value| 1.0 + value * value * factor)
}

/// The integers a quant can be.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) lowest: f32,
    pub(super) highest: f32,
}

/// Weighted sums over values `x` and the quants `q` they round to.
struct Moments {
    q: f32,
    qq: f32,
    x: f32,
    xq: f32,
}

/// A fit rounds by the values' extent over the range's steps and these many more. It compares by
/// gain: how much a solved scale takes off the values' sum of squares.
const EXTRA_STEPS: [f32; 8] = [-1.5, -1.1, -0.7, -0.3, 0.0, 0.35, 0.7, 1.1];

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

    /// The sums for `values` rounded by `scale`.
    #[inline]
    fn moments<const N: usize>(self, values: &[f32; N], weights: &[f32; N], scale: f32) -> Moments {
        let inverse = inverse(scale);
        let [mut q_sum, mut qq, mut x_sum, mut xq] = [[0.0; LANES]; 4];
        for (x, w) in values.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let q = self.nearest(x[i] * inverse);
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
        for extra in EXTRA_STEPS {
            let m = self.moments(values, weights, peak / (self.lowest - extra));
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
    pub(super) fn scale_and_min<const N: usize>(
        self,
        values: &[f32; N],
        weights: &[f32; N],
    ) -> (f32, f32) {
        let n: f32 = weights.iter().sum();
        let (low, high) = extent(values);
        // Fitted from the lowest value up, lest a large min drown the differences: `x - low` is
        // near `scale * q + base`, and the min is `-low - base`.
        let values = values.map(|value| value - low);
        let (mut most, mut best) = (0.0, (0.0, 0.0));
        for extra in EXTRA_STEPS {
            let m = self.moments(&values, weights, (high - low) / (self.highest + extra));
            let spread = n * m.qq - m.q * m.q;
            let slope = (n * m.xq - m.x * m.q) * inverse(spread);
            // The min cannot be negative; and quants that are all the same tell nothing of the
            // base.
            let base =
                if spread > 1e-5 * n * m.qq { ((m.x - slope * m.q) / n).min(-low) } else { 0.0 };
            let above = m.xq - base * m.q;
            let scale = above * inverse(m.qq);
            let gain = scale * above + base * (2.0 * m.x - n * base);
            if gain > most {
                (most, best) = (gain, (scale, base));
            }
        }
        (best.0, -low - best.1)
    }
}
