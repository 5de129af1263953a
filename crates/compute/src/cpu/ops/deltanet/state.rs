//! Rows through the anchor's state.

use crate::cpu::lanes::Lanes;

/// How many rows of the state ahead it is fetched.
const FETCH_AHEAD: usize = 16;

/// Rows of the state that all rows of a pass go through before the next ones: with 128 columns they
/// are most of a first-level cache.
const KEYS: usize = 64;

/// Keys `first..end` of a state.
#[derive(Clone, Copy)]
struct Part {
    state: *const f32,
    dim: usize,
    first: usize,
    end: usize,
}

impl Part {
    /// Adds `16 C` columns for `N` rows to `out`, which begins with the first key.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const N: usize, const C: usize>(
        self,
        x: &[[*const f32; 2]],
        column: usize,
        fetch: bool,
        out: *mut f32,
    ) {
        unsafe {
            let Self { state, dim, first, end } = self;
            let mut sums = [[[L::zero(); C]; 2]; N];
            if first > 0 {
                for n in 0..N {
                    for i in 0..2 {
                        for c in 0..C {
                            sums[n][i][c] = L::load(out.add((2 * n + i) * dim + column + 16 * c));
                        }
                    }
                }
            }
            for key in first..end {
                let mut s = [L::zero(); C];
                for c in 0..C {
                    s[c] = L::load(state.add(key * dim + column + 16 * c));
                }
                if fetch {
                    // Parts of rows are no stream that the processor would fetch ahead by itself.
                    for c in 0..C {
                        L::fetch(
                            state.wrapping_add((key + FETCH_AHEAD) * dim + column + 16 * c).cast(),
                        );
                    }
                }
                for n in 0..N {
                    for i in 0..2 {
                        let x = L::splat(*x[n][i].add(key));
                        for c in 0..C {
                            sums[n][i][c] = x.fma(s[c], sums[n][i][c]);
                        }
                    }
                }
            }
            for n in 0..N {
                for i in 0..2 {
                    for c in 0..C {
                        sums[n][i][c].store(out.add((2 * n + i) * dim + column + 16 * c));
                    }
                }
            }
        }
    }

    /// The same for up to three rows: that many by 64 columns are 24 sums, which fit the registers
    /// of AVX-512 and were the fastest.
    #[inline(always)]
    unsafe fn three<L: Lanes, const C: usize>(
        self,
        x: &[[*const f32; 2]],
        column: usize,
        fetch: bool,
        out: *mut f32,
    ) {
        unsafe {
            match x.len() {
                1 => self.columns::<L, 1, C>(x, column, fetch, out),
                2 => self.columns::<L, 2, C>(x, column, fetch, out),
                _ => self.columns::<L, 3, C>(x, column, fetch, out),
            }
        }
    }
}

/// `out[n] = S^T x[n]` for the key and query of each row. `dim` is a multiple of 32.
#[inline(always)]
pub(super) unsafe fn through_state<L: Lanes>(
    state: *const f32,
    dim: usize,
    x: &[[*const f32; 2]],
    out: *mut f32,
) {
    unsafe {
        if x.len() == 1 {
            // One row streams better by whole rows of the state.
            let whole = Part { state, dim, first: 0, end: dim };
            let mut column = 0;
            while column < dim {
                if L::ROOMY && dim - column >= 128 {
                    whole.columns::<L, 1, 8>(x, column, false, out);
                    column += 128;
                } else {
                    whole.columns::<L, 1, 2>(x, column, false, out);
                    column += 32;
                }
            }
            return;
        }
        for first in (0..dim).step_by(KEYS) {
            let part = Part { state, dim, first, end: dim.min(first + KEYS) };
            let mut column = 0;
            while column < dim {
                let wide = L::ROOMY && dim - column >= 64;
                for (n, rows) in x.chunks(3).enumerate() {
                    let (out, fetch) = (out.add(n * 6 * dim), n == 0);
                    if wide {
                        part.three::<L, 4>(rows, column, fetch, out);
                    } else {
                        part.three::<L, 1>(rows, column, fetch, out);
                    }
                }
                column += if wide { 64 } else { 16 };
            }
        }
    }
}
