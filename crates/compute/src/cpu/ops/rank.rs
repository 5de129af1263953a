//! The best tokens of a row of logits: as `crate::rank`, sixteen numbers at a time.

use crate::{
    cpu::lanes::{Lanes, at_level},
    rank::Ranked,
};

/// Numbers that are passed over together where none of them can enter.
const BLOCK: usize = 64;

/// Sixteen numbers, or what is left of them and then `rest`.
#[inline(always)]
unsafe fn load<L: Lanes>(numbers: &[f32], rest: f32) -> L {
    unsafe {
        if let Some(full) = numbers.first_chunk::<16>() {
            return L::load(full.as_ptr());
        }
        let mut padded = [rest; 16];
        padded[..numbers.len()].copy_from_slice(numbers);
        L::load(padded.as_ptr())
    }
}

#[inline(always)]
unsafe fn rank_row<L: Lanes>(logits: &[f32], ranks: usize, out: &mut Option<Ranked>) {
    unsafe {
        let (mut highest, mut zeros) = (L::splat(f32::NEG_INFINITY), L::zero());
        for numbers in logits.chunks(16) {
            let x = load::<L>(numbers, numbers[0]);
            highest = highest.max(x);
            // A NaN or an infinity makes this a NaN.
            zeros = x.fma(L::zero(), zeros);
        }
        let highest = highest.largest();
        if zeros.sum() != 0.0 || !highest.is_finite() {
            *out = None;
            return;
        }
        let mut sum = L::zero();
        for numbers in logits.chunks(16) {
            sum = sum.add(load::<L>(numbers, f32::MIN).sub(L::splat(highest)).exp());
        }
        let normaliser = highest + sum.sum().ln();

        // Selection by a rising threshold: few tokens ever enter.
        let mut best: Ranked = Vec::with_capacity(ranks + 1);
        let mut threshold = f32::NEG_INFINITY;
        for (block, numbers) in logits.chunks(BLOCK).enumerate() {
            let mut above = L::splat(f32::NEG_INFINITY);
            for numbers in numbers.chunks(16) {
                above = above.max(load::<L>(numbers, numbers[0]));
            }
            if best.len() == ranks && above.largest() <= threshold {
                continue;
            }
            for (token, &logit) in (block * BLOCK..).zip(numbers) {
                if best.len() < ranks || logit > threshold {
                    let at = best.partition_point(|(_, b)| *b >= logit);
                    best.insert(at, (token as u32, logit));
                    best.truncate(ranks);
                    threshold = best[best.len() - 1].1;
                }
            }
        }
        best.iter_mut().for_each(|(_, logit)| *logit -= normaliser);
        *out = Some(best);
    }
}

at_level!(
    /// The best `ranks` tokens, of equals the lowest; nothing where a logit is not a number.
    pub(crate) fn rank = rank_row(logits: &[f32], ranks: usize, out: &mut Option<Ranked>)
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuLevel;

    fn ranked(level: CpuLevel, logits: &[f32], ranks: usize) -> Option<Ranked> {
        let mut out = None;
        // SAFETY: only levels that are available are asked for.
        unsafe { rank(level, logits, ranks, &mut out) };
        out
    }

    #[test]
    fn every_level_ranks_as_the_reference_does() {
        for len in [1usize, 15, 16, 63, 64, 65, 1003, 4096] {
            let logits: Vec<f32> =
                (0..len).map(|i| ((i * 7919 % 509) as f32).sqrt() - 20.0).collect();
            let expected = crate::rank::rank(&logits, 9).expect("numbers");
            let first = ranked(CpuLevel::Scalar, &logits, 9).expect("numbers");
            assert_eq!(first.len(), expected.len());
            for ((token, log), (expected_token, expected_log)) in first.iter().zip(&expected) {
                assert_eq!(token, expected_token, "{len} logits");
                assert!((log - expected_log).abs() < 1e-4, "{len} logits: {log} {expected_log}");
            }
            for level in CpuLevel::ALL.into_iter().filter(|level| level.is_available()) {
                assert_eq!(
                    ranked(level, &logits, 9).as_ref(),
                    Some(&first),
                    "{level:?}, {len} logits"
                );
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_no_ranking() {
        for level in CpuLevel::ALL.into_iter().filter(|level| level.is_available()) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 17, 69] {
                    let mut logits = vec![0.5; 70];
                    logits[at] = bad;
                    assert_eq!(ranked(level, &logits, 2), None, "{level:?} {bad} at {at}");
                }
            }
        }
    }
}
