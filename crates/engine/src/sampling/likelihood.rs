//! How likely the target held a token, and what else it thought of: before penalties, bias and
//! temperature.

/// A token and its natural logarithm of probability, with those of the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// The token that was drawn, or that stands in the prompt.
    pub token: u32,
    /// Of that token.
    pub logprob: f32,
    /// Its place among all tokens, from 1 for the likeliest.
    pub rank: usize,
    /// The likeliest tokens, best first; of equals the lower id.
    pub top: Vec<(u32, f32)>,
}

impl Likelihood {
    /// Of `token`, beside the `top` likeliest.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Self {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|l| f64::from(l - best).exp()).sum();
        let logprob = |t: u32| (f64::from(logits[t as usize] - best) - total.ln()) as f32;
        let by_logit =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let ids = || 0..logits.len() as u32;
        let rank = 1 + ids().filter(|other| by_logit(other, &token).is_lt()).count();
        let mut order: Vec<u32> = if top > 0 { ids().collect() } else { Vec::new() };
        if top > 0 && top < order.len() {
            order.select_nth_unstable_by(top - 1, by_logit);
        }
        order.truncate(top);
        order.sort_unstable_by(by_logit);
        let top = order.into_iter().map(|t| (t, logprob(t))).collect();
        Self { token, logprob: logprob(token), rank, top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_best_come_first() {
        let logits = [1.0, 3.0, 2.0, 3.0];
        let all = Likelihood::of(&logits, 2, 4);
        let sum: f64 = all.top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3, 2, 0]);
        assert_eq!(all.logprob, all.top[2].1);
        assert_eq!(Likelihood::of(&logits, 0, 2).top, all.top[..2]);
        assert_eq!(Likelihood::of(&logits, 0, 0).top, []);
        assert_eq!(
            Likelihood::of(&[5.0], 0, 3),
            Likelihood { token: 0, logprob: 0.0, rank: 1, top: vec![(0, 0.0)] }
        );
        assert_eq!([0, 1, 2, 3].map(|token| Likelihood::of(&logits, token, 0).rank), [4, 1, 3, 2]);
    }
}
