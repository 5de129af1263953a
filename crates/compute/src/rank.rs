//! The best tokens of a row of logits with their log-probabilities. A drafter's rows are ranked in
//! every round, over the whole vocabulary, so the two scans are written to be vectorised.

/// Candidates of one position: (token, log-probability), best first.
pub type Ranked = Vec<(u32, f32)>;

/// Numbers handled side by side.
const LANES: usize = 16;

/// The best `ranks` tokens, of equals the lowest; nothing where a logit is not a number.
pub fn rank(logits: &[f32], ranks: usize) -> Option<Ranked> {
    let highest = highest(logits)?;
    let normaliser = highest + sum_of_exponentials(logits, highest).ln();
    // Selection by a rising threshold: few tokens ever enter.
    let mut best: Ranked = Vec::with_capacity(ranks + 1);
    let mut threshold = f32::NEG_INFINITY;
    for (chunk, numbers) in logits.chunks(LANES).enumerate() {
        if best.len() == ranks && numbers.iter().all(|logit| *logit <= threshold) {
            continue;
        }
        for (token, &logit) in (chunk * LANES..).zip(numbers) {
            if best.len() < ranks || logit > threshold {
                let at = best.partition_point(|(_, b)| *b >= logit);
                best.insert(at, (token as u32, logit));
                best.truncate(ranks);
                threshold = best[best.len() - 1].1;
            }
        }
    }
    Some(best.into_iter().map(|(token, logit)| (token, logit - normaliser)).collect())
}

/// The highest logit; nothing where one is not a number.
fn highest(logits: &[f32]) -> Option<f32> {
    let (mut highest, mut sums) = ([f32::NEG_INFINITY; LANES], [0.0f32; LANES]);
    for numbers in logits.chunks(LANES) {
        for (i, &logit) in numbers.iter().enumerate() {
            highest[i] = if logit > highest[i] { logit } else { highest[i] };
            // A NaN or an infinity makes this sum a NaN.
            sums[i] += logit * 0.0;
        }
    }
    let highest = highest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (sums.iter().all(|sum| *sum == 0.0) && highest.is_finite()).then_some(highest)
}

fn sum_of_exponentials(logits: &[f32], highest: f32) -> f32 {
    let mut sums = [0.0f32; LANES];
    for numbers in logits.chunks(LANES) {
        for (i, logit) in numbers.iter().enumerate() {
            sums[i] += exp(logit - highest);
        }
    }
    sums.iter().sum()
}

/// `e^x` for `x <= 0` to about five digits, without a call, so that it is vectorised.
#[inline]
fn exp(x: f32) -> f32 {
    // 2^t = 2^n * 2^f with -0.5 <= f <= 0.5; adding 1.5 * 2^23 rounds t to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let t = (x * std::f32::consts::LOG2_E).max(-126.0);
    let shifted = t + ROUND;
    let f = (t - (shifted - ROUND)) * std::f32::consts::LN_2;
    // Taylor's series of e^f.
    let p = 1.0
        + f * (1.0
            + f * (0.5 + f * (1.0 / 6.0 + f * (1.0 / 24.0 + f * (1.0 / 120.0 + f / 720.0)))));
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    p * f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranking_is_a_sorted_softmax() {
        let ranked = rank(&[0.0, 2.0, 1.0, 2.0, -1.0], 3).unwrap();
        let tokens: Vec<u32> = ranked.iter().map(|(t, _)| *t).collect();
        assert_eq!(tokens, [1, 3, 2]);
        let total: f32 = [0.0f32, 2.0, 1.0, 2.0, -1.0].iter().map(|l| l.exp()).sum();
        assert!((ranked[0].1 - (2.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn exponentials_are_good_enough_for_probabilities() {
        for i in 0..2000 {
            let x = -0.05 * i as f32;
            let (found, right) = (exp(x), x.exp());
            assert!(
                (found - right).abs() <= 1e-5 * right + 1e-37,
                "exp({x}) = {found}, not {right}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn what_is_not_a_number_is_no_ranking() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(rank(&[0.0, bad, 1.0], 2).is_none());
        }
    }
}
