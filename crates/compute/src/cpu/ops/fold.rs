//! Folding 32 rows into a state: how an anchor follows from the one before it.

use crate::{
    cpu::lanes::{Lanes, at_level},
    recurrent::ANCHOR_TOKENS,
};

/// A row that a state is folded with.
#[derive(Clone, Copy)]
pub(crate) struct FoldRow {
    /// [dim].
    pub(crate) key: *const f32,
    /// [dim].
    pub(crate) delta: *const f32,
    /// Log decay.
    pub(crate) gate: f32,
}

/// `out = e^{G} S + sum_i e^{G - G_i} k_i d_i^T` over 32 rows. `state` may be null (zero) or `out`
/// itself.
#[inline(always)]
pub(super) unsafe fn fold_body<L: Lanes>(
    state: *const f32,
    rows: &[FoldRow; ANCHOR_TOKENS],
    dim: usize,
    scaled_keys: *mut f32, // [ANCHOR_TOKENS, dim]
    out: *mut f32,
) {
    unsafe {
        let mut sums = [0f32; ANCHOR_TOKENS];
        let mut sum = 0.0;
        for (i, row) in rows.iter().enumerate() {
            sum += row.gate;
            sums[i] = sum;
        }
        let decay = L::splat(sum).exp();
        for (i, row) in rows.iter().enumerate() {
            let factor = L::splat(sum - sums[i]).exp();
            for d in (0..dim).step_by(16) {
                L::load(row.key.add(d)).mul(factor).store(scaled_keys.add(i * dim + d));
            }
        }
        for key in (0..dim).step_by(4) {
            let mut column = 0;
            while column < dim {
                if L::ROOMY && column + 64 <= dim {
                    fold_columns::<L, 4>(state, rows, dim, scaled_keys, decay, key, column, out);
                    column += 64;
                } else {
                    fold_columns::<L, 1>(state, rows, dim, scaled_keys, decay, key, column, out);
                    column += 16;
                }
            }
        }
    }
}

/// Four keys times `16 C` values.
#[inline(always)]
unsafe fn fold_columns<L: Lanes, const C: usize>(
    state: *const f32,
    rows: &[FoldRow; ANCHOR_TOKENS],
    dim: usize,
    scaled_keys: *const f32,
    decay: L,
    key: usize,
    column: usize,
    out: *mut f32,
) {
    unsafe {
        let mut sums = [[L::zero(); C]; 4];
        if !state.is_null() {
            for j in 0..4 {
                for c in 0..C {
                    sums[j][c] = L::load(state.add((key + j) * dim + column + 16 * c)).mul(decay);
                }
            }
        }
        for (i, row) in rows.iter().enumerate() {
            let mut delta = [L::zero(); C];
            for c in 0..C {
                delta[c] = L::load(row.delta.add(column + 16 * c));
            }
            for j in 0..4 {
                let k = L::splat(*scaled_keys.add(i * dim + key + j));
                for c in 0..C {
                    sums[j][c] = k.fma(delta[c], sums[j][c]);
                }
            }
        }
        for j in 0..4 {
            for c in 0..C {
                sums[j][c].store(out.add((key + j) * dim + column + 16 * c));
            }
        }
    }
}

at_level!(
    /// Folds 32 rows into a state; the pass and the commit use this same function, so they agree to
    /// the bit.
    pub(crate) fn fold = fold_body(
        state: *const f32, rows: &[FoldRow; ANCHOR_TOKENS], dim: usize, scaled_keys: *mut f32,
        out: *mut f32,
    )
);
