//! Which chunks of what may be dropped are kept.

use std::ops::Range;

/// Tokens of a chunk: kept together or dropped together, so that what is kept can be read. Chunks
/// lie at multiples of this in the prompt.
pub(super) const CHUNK: usize = 64;

/// The parts of `unsettled` that are kept: all that may not be dropped, and of what may the chunks
/// whose tokens score best, until a `share` of it is kept. `scores` are those of the tokens from
/// the first of `unsettled` on; what has none is not dropped.
pub(super) fn select(
    unsettled: Range<usize>,
    scores: &[f32],
    droppable: &[Range<usize>],
    share: f32,
) -> Vec<Range<usize>> {
    let scored = unsettled.start..unsettled.end.min(unsettled.start + scores.len());
    let within = |range: &Range<usize>| range.start.max(scored.start)..range.end.min(scored.end);
    let chunks = droppable.iter().map(within).flat_map(chunks_of);
    let mean = |chunk: &Range<usize>| {
        let scores = &scores[chunk.start - unsettled.start..chunk.end - unsettled.start];
        scores.iter().sum::<f32>() / scores.len() as f32
    };
    let mut chunks: Vec<(f32, Range<usize>)> = chunks.map(|c| (mean(&c), c)).collect();
    let total: usize = chunks.iter().map(|(_, chunk)| chunk.len()).sum();
    // Among equals the later: it is nearer to the question.
    chunks.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(second.start.cmp(&first.start)));
    let (most, mut kept) = ((share * total as f32).ceil() as usize, 0);
    let mut dropped: Vec<Range<usize>> = Vec::new();
    for (_, chunk) in chunks {
        match kept < most {
            true => kept += chunk.len(),
            false => dropped.push(chunk),
        }
    }
    dropped.sort_by_key(|chunk| chunk.start);
    without(unsettled, &dropped)
}

/// A range cut at multiples of [`CHUNK`].
fn chunks_of(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let numbers = match range.is_empty() {
        true => 0..0,
        false => range.start / CHUNK..range.end.div_ceil(CHUNK),
    };
    numbers.map(move |i| range.start.max(i * CHUNK)..range.end.min((i + 1) * CHUNK))
}

/// What is left of `whole` without `parts`, which are in order.
fn without(whole: Range<usize>, parts: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut left, mut start) = (Vec::new(), whole.start);
    for part in parts {
        left.push(start..part.start);
        start = part.end;
    }
    left.push(start..whole.end);
    left.retain(|range| !range.is_empty());
    left
}

#[cfg(test)]
// A list of one range is what is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn the_best_chunks_of_what_may_be_dropped_are_kept() {
        // Chunks of 64 from 0 on; 100..500 may go. The token at 300 matters most, then that at 130.
        let mut scores = vec![0.0; 600];
        (scores[300], scores[130], scores[550]) = (2.0, 1.0, 9.0);
        let kept = |share| select(0..640, &scores, &[100..500], share);
        assert_eq!(kept(1.0), [0..640]);
        // 40 of 400: a chunk is kept whole.
        assert_eq!(kept(0.1), [0..100, 256..320, 500..640]);
        assert_eq!(kept(0.3), [0..100, 128..192, 256..320, 500..640]);
        assert_eq!(kept(0.0), [0..100, 500..640]);
    }

    #[test]
    fn settled_and_unscored_tokens_are_left_alone() {
        let scores = [0.0; 100];
        assert_eq!(select(200..400, &scores, &[0..390], 0.0), [300..400]);
        assert_eq!(select(200..400, &scores, &[], 0.0), [200..400]);
        assert_eq!(select(200..400, &[], &[0..390], 0.0), [200..400]);
    }

    #[test]
    fn among_equals_the_later_are_kept() {
        assert_eq!(select(0..256, &[1.0; 256], &[0..256], 0.5), [128..256]);
    }
}
