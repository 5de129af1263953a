//! The Hadamard transform of a head: it spreads what a few columns hold over all of them, so that
//! numbers rounded in groups have no large ones that coarsen the steps of their neighbours.

/// Multiplies with the Hadamard matrix, in place: `y[i] = sum of (-1)^ones(i & j) x[j] / sqrt(n)`,
/// where `n` is the length, or the largest power of two that divides it and each run of `n` is
/// transformed by itself. It is its own inverse, and products of two transformed vectors are those
/// of the vectors themselves.
///
/// Every processor adds the same two numbers in the same order, neighbours first, so all give the
/// same bits.
pub fn hadamard(x: &mut [f32]) {
    let run = 1usize << x.len().trailing_zeros();
    let mut far = 1;
    while far < run {
        for pair in x.chunks_exact_mut(2 * far) {
            let (low, high) = pair.split_at_mut(far);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        far *= 2;
    }
    let scale = 1.0 / (run as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::hadamard;
    use crate::{KvType, selftest::Random};

    /// By its definition, in f64.
    fn defined(x: &[f32], n: usize) -> Vec<f64> {
        let of = |i: usize| {
            let terms = (0..n).map(|j| {
                let ones = ((i % n) & j).count_ones();
                let sign = if ones.is_multiple_of(2) { 1.0 } else { -1.0 };
                sign * x[i / n * n + j] as f64
            });
            terms.sum::<f64>() / (n as f64).sqrt()
        };
        (0..x.len()).map(of).collect()
    }

    #[test]
    fn it_is_the_matrix_and_its_own_inverse() {
        for (width, n) in [(32, 32), (64, 64), (96, 32), (128, 128), (192, 64), (256, 256)] {
            let x = Random(width as u64).numbers(width);
            let mut y = x.clone();
            hadamard(&mut y);
            for (y, expected) in y.iter().zip(defined(&x, n)) {
                assert!((*y as f64 - expected).abs() < 2e-6, "{width}: {y}, {expected}");
            }
            hadamard(&mut y);
            for (y, x) in y.iter().zip(&x) {
                assert!((y - x).abs() < 2e-6, "{width}: {y}, {x}");
            }
        }
    }

    /// Error of rows that are stored in a type, relative to their size.
    fn error(kind: KvType, rows: &[Vec<f32>]) -> f64 {
        let (mut wrong, mut size) = (0.0, 0.0);
        for row in rows {
            let mut stored = row.clone();
            let mut bytes = vec![0; kind.row_bytes(row.len())];
            if kind.is_hadamard() {
                hadamard(&mut stored);
            }
            kind.encode(&stored, &mut bytes);
            kind.decode(&bytes, &mut stored);
            if kind.is_hadamard() {
                hadamard(&mut stored);
            }
            for (x, y) in row.iter().zip(&stored) {
                wrong += (*x as f64 - *y as f64).powi(2);
                size += (*x as f64).powi(2);
            }
        }
        (wrong / size).sqrt()
    }

    #[test]
    fn large_columns_cost_their_neighbours_less() {
        let mut random = Random(7);
        let even: Vec<Vec<f32>> = (0..100).map(|_| random.numbers(256)).collect();
        let mut uneven = even.clone();
        // One column of every group that shares a scale is large, as in keys of trained models.
        uneven.iter_mut().flat_map(|row| row.chunks_mut(32)).for_each(|group| group[5] *= 20.0);
        let [plain, spread] = [KvType::Q4_0, KvType::Q4_0H].map(|kind| error(kind, &uneven));
        eprintln!("one column of 32 is 20 times as large: q4_0 {plain:.4}, q4_0h {spread:.4}");
        assert!(2.0 * spread < plain, "{spread}, {plain}");
        let [plain, spread] = [KvType::Q4_0, KvType::Q4_0H].map(|kind| error(kind, &even));
        eprintln!("all columns are alike: q4_0 {plain:.4}, q4_0h {spread:.4}");
        assert!((spread / plain - 1.0).abs() < 0.1, "{spread}, {plain}");
    }
}
