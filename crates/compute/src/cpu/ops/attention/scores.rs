//! Two query heads with the keys and values of one page: scores, their softmax, weighed values.

use crate::{cpu::lanes::Lanes, kv::PAGE_TOKENS};

/// Sixteen numbers of a key or value from number `d` on, which is of halves or not.
#[inline(always)]
unsafe fn load<L: Lanes, const HALVES: bool>(from: *const f32, d: usize) -> L {
    unsafe { if HALVES { L::load_f16(from.cast::<u16>().add(d)) } else { L::load(from.add(d)) } }
}

/// Keys that are multiplied at a time.
pub(super) const EIGHT: usize = 8;

/// Scores of two queries with up to eight keys of a page, the first of which is number `first`.
#[inline(always)]
pub(super) unsafe fn score<L: Lanes, const HALVES: bool>(
    queries: [*const f32; 2],
    keys: &[*const f32],
    dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_TOKENS]; 2],
    first: usize,
) {
    unsafe {
        // Fewer keys repeat the last one; the surplus is not kept.
        let mut key = [keys[keys.len() - 1]; EIGHT];
        key[..keys.len()].copy_from_slice(keys);
        let mut dots = [L::zero(); 2 * EIGHT];
        let together = if L::ROOMY { EIGHT } else { 2 };
        for from in (0..EIGHT).step_by(together) {
            for d in (0..dim).step_by(16) {
                let (a, b) = (L::load(queries[0].add(d)), L::load(queries[1].add(d)));
                for j in from..from + together {
                    let k = load::<L, HALVES>(key[j], d);
                    dots[j] = a.fma(k, dots[j]);
                    dots[EIGHT + j] = b.fma(k, dots[EIGHT + j]);
                }
            }
        }
        let mut sums = [0f32; 2 * EIGHT];
        L::sums(dots).mul(L::splat(scale)).store(sums.as_mut_ptr());
        for h in 0..2 {
            scores[h][first..][..keys.len()].copy_from_slice(&sums[EIGHT * h..][..keys.len()]);
        }
    }
}

/// Turns the scores of a page into weights, and counts them into the maximum and total of the pages
/// so far. Returns the factors of what the pages before gave and of what this page gives.
#[inline(always)]
pub(super) unsafe fn soften<L: Lanes>(
    scores: &mut [f32; PAGE_TOKENS],
    maximum: &mut f32,
    total: &mut f32,
) -> (L, L) {
    unsafe {
        let mut largest = L::splat(f32::NEG_INFINITY);
        for i in (0..PAGE_TOKENS).step_by(16) {
            largest = largest.max(L::load(scores.as_ptr().add(i)));
        }
        let highest = largest.largest();
        let mut page_total = L::zero();
        for i in (0..PAGE_TOKENS).step_by(16) {
            let weight = L::load(scores.as_ptr().add(i)).sub(L::splat(highest)).exp();
            page_total = page_total.add(weight);
            weight.store(scores.as_mut_ptr().add(i));
        }
        let new_maximum = if *maximum > highest { *maximum } else { highest };
        let before = L::splat(*maximum - new_maximum).exp();
        let now = L::splat(highest - new_maximum).exp();
        *maximum = new_maximum;
        *total = before.largest().mul_add(*total, now.largest() * page_total.sum());
        (before, now)
    }
}

/// Columns of values that are weighed at a time, where so many are left.
#[inline(always)]
pub(super) fn width<L: Lanes>(left: usize) -> usize {
    match L::ROOMY {
        true if left >= 128 => 128,
        false if left >= 32 => 32,
        _ => 16,
    }
}

/// Adds some columns of a page's values, of which the first are of halves, to the sums of two query
/// heads: as many as `width` says of those that are left.
#[inline(always)]
pub(super) unsafe fn weigh<L: Lanes>(
    weights: &[[f32; PAGE_TOKENS]; 2],
    values: &[*const f32],
    halves: usize,
    (column, left): (usize, usize),
    merging: [(L, L); 2],
    sums: [*mut f32; 2],
) {
    #[inline(always)]
    unsafe fn add<L: Lanes, const C: usize, const HALVES: bool>(
        weights: [f32; 2],
        value: *const f32,
        column: usize,
        page: &mut [[L; C]; 2],
    ) {
        unsafe {
            let (a, b) = (L::splat(weights[0]), L::splat(weights[1]));
            for c in 0..C {
                let value = load::<L, HALVES>(value, column + 16 * c);
                page[0][c] = a.fma(value, page[0][c]);
                page[1][c] = b.fma(value, page[1][c]);
            }
        }
    }

    /// `16 C` columns.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const C: usize>(
        weights: &[[f32; PAGE_TOKENS]; 2],
        values: &[*const f32],
        halves: usize,
        column: usize,
        merging: [(L, L); 2],
        sums: [*mut f32; 2],
    ) {
        unsafe {
            let mut page = [[L::zero(); C]; 2];
            for (i, value) in values.iter().enumerate().take(halves) {
                add::<L, C, true>([weights[0][i], weights[1][i]], *value, column, &mut page);
            }
            for (i, value) in values.iter().enumerate().skip(halves) {
                add::<L, C, false>([weights[0][i], weights[1][i]], *value, column, &mut page);
            }
            for h in 0..2 {
                for c in 0..C {
                    let to = sums[h].add(column + 16 * c);
                    L::load(to).mul(merging[h].0).add(page[h][c].mul(merging[h].1)).store(to);
                }
            }
        }
    }
    unsafe {
        match width::<L>(left) {
            128 => columns::<L, 8>(weights, values, halves, column, merging, sums),
            32 => columns::<L, 2>(weights, values, halves, column, merging, sums),
            _ => columns::<L, 1>(weights, values, halves, column, merging, sums),
        }
    }
}
