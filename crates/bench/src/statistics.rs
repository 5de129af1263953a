//! Medians and what they are worth: bootstrap intervals over prompts and repeats.

pub(crate) use runs::median;
use serde::{Deserialize, Serialize};

/// Resamples behind an interval.
const DRAWS: usize = 1000;

/// A figure with the interval that holds it in 95 of 100 resamples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// A figure with its resamples, so that figures made of it have intervals too.
#[derive(Clone, Debug)]
pub(crate) struct Estimate {
    value: f64,
    draws: Vec<f64>,
}

/// What 95 and 99 of a hundred are not above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tail {
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

impl Tail {
    pub(crate) fn of(numbers: &[f64]) -> Self {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        let at = |share: f64| sorted.get((share * last).round() as usize).copied().unwrap_or(0.0);
        Self { p95: at(0.95), p99: at(0.99) }
    }
}

/// The standard deviation of some numbers; 0 of fewer than two.
pub fn deviation(numbers: &[f64]) -> f64 {
    if numbers.len() < 2 {
        return 0.0;
    }
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    let squares: f64 = numbers.iter().map(|x| (x - mean) * (x - mean)).sum();
    (squares / (numbers.len() - 1) as f64).sqrt()
}

impl Estimate {
    /// `figure` of all `count` things, and of as many drawn from them with replacement, again and
    /// again.
    pub(crate) fn of(count: usize, seed: u64, figure: impl Fn(&[usize]) -> f64) -> Self {
        let all: Vec<usize> = (0..count).collect();
        let mut random = Random(seed);
        let mut drawn = all.clone();
        let mut draw = || {
            drawn.iter_mut().for_each(|i| *i = random.below(count));
            figure(&drawn)
        };
        let draws = if count == 0 { Vec::new() } else { (0..DRAWS).map(|_| draw()).collect() };
        Self { value: figure(&all), draws }
    }

    /// The median over prompts of each prompt's median over repeats: `[prompts][repeats]`. Repeats
    /// are drawn for all prompts at once, since what disturbs one prompt disturbs its neighbours.
    pub(crate) fn of_medians(values: &[Vec<f64>], seed: u64) -> Self {
        let repeats = values.iter().map(Vec::len).max().unwrap_or(0);
        let figure = |prompts: &[usize], repeats: &[usize]| {
            let inner =
                |p: &usize| median(repeats.iter().filter_map(|r| values[*p].get(*r).copied()));
            median(prompts.iter().map(inner).filter(|x| !x.is_nan()))
        };
        let all: Vec<usize> = (0..values.len()).collect();
        let each: Vec<usize> = (0..repeats).collect();
        let mut random = Random(seed);
        let mut draw = || {
            let prompts: Vec<usize> = all.iter().map(|_| random.below(all.len())).collect();
            let repeats: Vec<usize> = each.iter().map(|_| random.below(each.len())).collect();
            figure(&prompts, &repeats)
        };
        let empty = all.is_empty() || each.is_empty();
        let draws = if empty { Vec::new() } else { (0..DRAWS).map(|_| draw()).collect() };
        Self { value: figure(&all, &each), draws }
    }

    /// The geometric mean of several figures whose resamples had seeds of their own.
    pub(crate) fn geometric_mean(parts: &[Self]) -> Self {
        let mean = |part: &dyn Fn(&Self) -> f64| {
            let logs: f64 = parts.iter().map(|p| part(p).ln()).sum();
            (logs / parts.len() as f64).exp()
        };
        let count = parts.iter().map(|p| p.draws.len()).min().unwrap_or(0);
        let draws = (0..count).map(|i| mean(&|p: &Self| p.draws[i])).collect();
        Self { value: mean(&|p: &Self| p.value), draws }
    }

    pub(crate) fn interval(&self) -> Interval {
        let mut sorted: Vec<f64> = self.draws.iter().copied().filter(|x| !x.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().checked_sub(1);
            last.map_or(self.value, |last| sorted[(share * last as f64).round() as usize])
        };
        Interval { value: self.value, low: at(0.025), high: at(0.975) }
    }
}

/// The median of one list of numbers with its interval.
pub(crate) fn interval(numbers: &[f64]) -> Interval {
    let seed = numbers.len() as u64;
    Estimate::of(numbers.len(), seed, |drawn| median(drawn.iter().map(|i| numbers[*i]))).interval()
}

/// splitmix64: the same numbers every time, so that a report made twice is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_true_median_about_as_often_as_it_says() {
        let mut random = Random(7);
        let mut held = 0;
        for _ in 0..200 {
            let numbers: Vec<f64> = (0..40).map(|_| random.below(10_001) as f64).collect();
            let found = interval(&numbers);
            assert!(found.low <= found.value && found.value <= found.high);
            held += usize::from(found.low <= 5000.0 && 5000.0 <= found.high);
        }
        assert!(held >= 180, "{held} of 200");
    }

    #[test]
    fn tails_are_of_the_slowest() {
        let numbers: Vec<f64> = (0..=200).rev().map(f64::from).collect();
        assert_eq!(Tail::of(&numbers), Tail { p95: 190.0, p99: 198.0 });
        assert_eq!(Tail::of(&[3.0]), Tail { p95: 3.0, p99: 3.0 });
        assert_eq!(Tail::of(&[]), Tail::default());
    }

    #[test]
    fn a_disturbed_repeat_does_not_move_the_figure_but_widens_it() {
        let calm = vec![vec![100.0, 100.0, 100.0]; 8];
        let disturbed = vec![vec![100.0, 50.0, 100.0]; 8];
        assert_eq!(
            Estimate::of_medians(&calm, 1).interval(),
            Interval { value: 100.0, low: 100.0, high: 100.0 }
        );
        let found = Estimate::of_medians(&disturbed, 1).interval();
        assert_eq!((found.value, found.low, found.high), (100.0, 50.0, 100.0));
    }
}
