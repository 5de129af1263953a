//! How much the end of a text attends to each of its tokens: the softmax of queries over committed
//! keys, the greatest over layers and heads, and of that the mean over the queries. The host works
//! it out from the pages of keys and the queries that a pass left, so no backend knows of it.

use crate::Error;
use crate::state::KvPages;
use compute::{KvLayout, PAGE_TOKENS};
use std::borrow::Cow;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
}

/// Of tokens `first..committed`. `queries` are those of the rows behind them, by layer: [rows,
/// heads, (query, gate)].
///
/// The rows' own keys are no part of the softmax: all rows see the same tokens then, and what they
/// give to each other says nothing about what may be dropped.
pub(super) fn relevance(
    heads: Heads,
    queries: &[Cow<'_, [f32]>],
    pages: &KvPages,
    committed: usize,
    first: usize,
) -> Result<Vec<f32>, Error> {
    let stride = heads.queries * 2 * heads.dim;
    let rows = queries.first().map_or(0, |layer| layer.len() / stride);
    let group = heads.queries / heads.keys;
    let table = pages.kept().1;
    let count = committed.div_ceil(PAGE_TOKENS);
    let layout = pages.layout();
    let scale = 1.0 / (heads.dim as f32).sqrt();
    // By page, [rows, PAGE_TOKENS]: the greatest share that a row gives to a token.
    let mut greatest = vec![vec![0f32; rows * PAGE_TOKENS]; count];
    for (layer, of_layer) in queries.iter().enumerate() {
        for head in 0..heads.keys {
            let query = |row: usize, g: usize| {
                &of_layer[row * stride + (head * group + g) * 2 * heads.dim..][..heads.dim]
            };
            let asked: Vec<&[f32]> =
                (0..rows).flat_map(|row| (0..group).map(move |g| query(row, g))).collect();
            let mut pages = Vec::with_capacity(count);
            for (page, memory) in table.iter().enumerate().take(count) {
                let tokens = (committed - page * PAGE_TOKENS).min(PAGE_TOKENS);
                let (at, bytes) = (layout.offset(layer, 0, head), tokens * layout.row_bytes());
                pages.push((memory.read::<u8>(at, bytes)?, Vec::new()));
            }
            spread(&mut pages, |(keys, logits)| *logits = products(layout, keys, &asked, scale));
            let logits: Vec<Vec<f32>> = pages.into_iter().map(|(_, logits)| logits).collect();
            let totals: Vec<(f32, f32)> =
                (0..asked.len()).map(|ask| total(&logits, ask, asked.len())).collect();
            // A greatest share would pass over what is no number.
            if !totals.iter().all(|(_, sum)| sum.is_finite()) {
                return Err(Error::NoAttention { position: committed });
            }
            let mut both: Vec<_> = greatest.iter_mut().zip(&logits).collect();
            spread(&mut both, |(greatest, logits)| raise(greatest, logits, &totals, group));
        }
    }
    let share = |token: usize| {
        let page = &greatest[token / PAGE_TOKENS];
        let of_rows = (0..rows).map(|row| page[row * PAGE_TOKENS + token % PAGE_TOKENS]);
        of_rows.sum::<f32>() / rows.max(1) as f32
    };
    Ok((first..committed).map(share).collect())
}

/// `query . key * scale` for each key of a page: [keys, queries].
fn products(layout: KvLayout, keys: &[u8], queries: &[&[f32]], scale: f32) -> Vec<f32> {
    let mut key = vec![0f32; layout.head_dim];
    let mut logits = Vec::with_capacity(keys.len() / layout.row_bytes() * queries.len());
    for stored in keys.chunks_exact(layout.row_bytes()) {
        layout.kind.decode(stored, &mut key);
        logits.extend(queries.iter().map(|query| dot(query, &key) * scale));
    }
    logits
}

/// Sixteen sums beside each other, so that the compiler finds lanes for them.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for (a, b) in a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

/// The greatest logit of a query, and the sum of what `exp` makes of them relative to it.
fn total(logits: &[Vec<f32>], query: usize, queries: usize) -> (f32, f32) {
    let all = || logits.iter().flat_map(|page| page.iter().skip(query).step_by(queries));
    let highest = all().copied().fold(f32::NEG_INFINITY, f32::max);
    (highest, all().map(|logit| (logit - highest).exp()).sum())
}

/// Takes a page's shares in where they are greater than those of other heads.
fn raise(greatest: &mut [f32], logits: &[f32], totals: &[(f32, f32)], group: usize) {
    for (token, logits) in logits.chunks_exact(totals.len()).enumerate() {
        for (query, (logit, (highest, sum))) in logits.iter().zip(totals).enumerate() {
            let greatest = &mut greatest[query / group * PAGE_TOKENS + token];
            *greatest = greatest.max((logit - highest).exp() / sum);
        }
    }
}

/// Does something to every item, by all processors. Items know nothing of each other, so who does
/// which changes nothing.
fn spread<T: Send>(items: &mut [T], work: impl Fn(&mut T) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let share = items.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for items in items.chunks_mut(share) {
            let work = &work;
            scope.spawn(move || items.iter_mut().for_each(work));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use compute::{KvType, Memory};
    use std::sync::Arc;

    /// Numbers that look random.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 32_768.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn it_is_the_greatest_softmax_over_layers_and_heads() {
        let heads = Heads { queries: 4, keys: 2, dim: 32 };
        let (layers, rows, committed, first) = (2, 3, 150, 70);
        let layout = KvLayout { kind: KvType::F16, layers, heads: 2, head_dim: 32 };
        let mut kept: Vec<Memory> = (0..3).map(|_| Memory::zeroed(layout.page_bytes())).collect();
        // [layer][head][token]: keys as the pages have them.
        let mut keys = vec![vec![Vec::new(); 2]; layers];
        for (layer, of_layer) in keys.iter_mut().enumerate() {
            for (head, keys) in of_layer.iter_mut().enumerate() {
                for token in 0..committed {
                    let mut key = numbers(32, (layer * 1000 + head * 500 + token) as u32 + 7);
                    let at = layout.offset(layer, 0, head) + token % 64 * layout.row_bytes();
                    let stored: &mut [u8] = kept[token / 64].slice_mut();
                    layout.kind.encode(&key, &mut stored[at..][..64]);
                    layout.kind.decode(&stored[at..][..64], &mut key);
                    keys.push(key);
                }
            }
        }
        let pages = KvPages::new(layout).with(0, kept.into_iter().map(Arc::new).collect());
        let queries: Vec<Vec<f32>> =
            (0..layers).map(|layer| numbers(rows * 4 * 64, layer as u32 + 90)).collect();
        let asked: Vec<Cow<'_, [f32]>> = queries.iter().map(|q| Cow::Borrowed(&q[..])).collect();
        let found = relevance(heads, &asked, &pages, committed, first).unwrap();
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut queries = queries.clone();
            queries[1][2 * 256 + 64] = wrong;
            let asked: Vec<Cow<'_, [f32]>> =
                queries.iter().map(|q| Cow::Borrowed(&q[..])).collect();
            let refused = relevance(heads, &asked, &pages, committed, first);
            assert!(matches!(refused, Err(Error::NoAttention { position: 150 })), "{wrong}");
        }

        let mut expected = vec![0f64; committed];
        for row in 0..rows {
            let mut greatest = vec![0f64; committed];
            for layer in 0..layers {
                for head in 0..4 {
                    let query = &queries[layer][row * 256 + head * 64..][..32];
                    let dots = keys[layer][head / 2].iter().map(|key| {
                        let products = query.iter().zip(key);
                        let dot: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        (dot / 32f64.sqrt()).exp()
                    });
                    let weights: Vec<f64> = dots.collect();
                    let sum: f64 = weights.iter().sum();
                    for (greatest, weight) in greatest.iter_mut().zip(weights) {
                        *greatest = greatest.max(weight / sum);
                    }
                }
            }
            expected.iter_mut().zip(greatest).for_each(|(e, g)| *e += g / rows as f64);
        }
        assert_eq!(found.len(), committed - first);
        for (found, expected) in found.iter().zip(&expected[first..]) {
            assert!((f64::from(*found) - expected).abs() < 1e-5 * expected.max(1e-3));
        }
    }
}
