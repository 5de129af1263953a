//! Rows through the anchor's state.

use crate::cpu::lanes::Lanes;

/// How many rows of the state ahead it is fetched.
const FETCH_AHEAD: usize = 16;

/// `out[n] = S^T x[n]` for the key and query of each row. `dim` is a multiple of 32.
#[inline(always)]
pub(super) unsafe fn through_state<L: Lanes>(
    state: *const f32,
    dim: usize,
    x: &[[*const f32; 2]],
    out: *mut f32,
) {
    /// `16 C` columns for `N` rows; returns the number of columns.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const N: usize, const C: usize>(
        state: *const f32,
        dim: usize,
        x: &[[*const f32; 2]],
        column: usize,
        out: *mut f32,
    ) -> usize {
        unsafe {
            let mut sums = [[[L::zero(); C]; 2]; N];
            for key in 0..dim {
                let s: [L; C] =
                    std::array::from_fn(|c| L::load(state.add(key * dim + column + 16 * c)));
                if N > 1 {
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
            16 * C
        }
    }
    unsafe {
        for (n, rows) in x.chunks(3).enumerate() {
            let out = out.add(n * 6 * dim);
            let mut column = 0;
            while column < dim {
                // Three rows by 64 columns are 24 sums, which fit the registers of AVX-512 and were
                // the fastest; one row streams better by whole rows of the state.
                let left = dim - column;
                column += match rows.len() {
                    1 if L::ROOMY && left >= 128 => {
                        columns::<L, 1, 8>(state, dim, rows, column, out)
                    }
                    2 if L::ROOMY && left >= 64 => {
                        columns::<L, 2, 4>(state, dim, rows, column, out)
                    }
                    3 if L::ROOMY && left >= 64 => {
                        columns::<L, 3, 4>(state, dim, rows, column, out)
                    }
                    1 => columns::<L, 1, 2>(state, dim, rows, column, out),
                    2 => columns::<L, 2, 1>(state, dim, rows, column, out),
                    _ => columns::<L, 3, 1>(state, dim, rows, column, out),
                };
            }
        }
    }
}
