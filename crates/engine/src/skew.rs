//! Routers of random weights that prefer some experts to others, as trained ones do.

/// How often a row goes to each expert of a layer.
#[derive(Clone, Debug)]
pub struct Skew {
    /// The share of rows that visit an expert, the most wanted first.
    odds: Vec<f64>,
    /// What the row of a random router is multiplied with for these odds.
    factors: Vec<f32>,
}

/// The part of the experts whose share of all choices says how skewed a router is.
const BEST: f64 = 0.6;
/// Rows that may visit one expert: a normed row's logits are around 0, so none is chosen by more
/// than half of them.
const MOST_ODDS: f64 = 0.45;

impl Skew {
    /// A router whose best 60 % of `experts` take `share` of all choices, of which a row has
    /// `used`. Odds fall by the same factor from one expert to the next. None where there is no
    /// such router: a share below 60 % is not one of the best, and close to 1 a few experts would
    /// have to be chosen more often than rows can choose them.
    pub fn new(experts: usize, used: usize, share: f64) -> Option<Self> {
        let of_best = |steepness: f64| match steepness.abs() < 1e-9 {
            true => BEST,
            false => (1.0 - (-BEST * steepness).exp()) / (1.0 - (-steepness).exp()),
        };
        let steepness = bisect(0.0, 100.0, |steepness| of_best(steepness) < share);
        let wanted: Vec<f64> =
            (0..experts).map(|rank| (-steepness * rank as f64 / experts as f64).exp()).collect();
        let all: f64 = wanted.iter().sum();
        let odds: Vec<f64> = wanted.iter().map(|w| used as f64 * w / all).collect();
        let is_possible = (BEST..1.0).contains(&share) && *odds.first()? <= MOST_ODDS;
        let factors = odds.iter().map(|odds| (1.0 / deviations(*odds)) as f32).collect();
        is_possible.then_some(Self { odds, factors })
    }

    /// The share of rows that visit an expert, the most wanted first.
    pub fn odds(&self) -> &[f64] {
        &self.odds
    }

    /// What each expert's row of a random router is multiplied with: logits of a wider spread are
    /// among the highest more often. Who is wanted differs from seed to seed.
    pub(crate) fn factors(&self, mut random: impl FnMut() -> u64) -> Vec<f32> {
        let mut factors = self.factors.clone();
        for i in (1..factors.len()).rev() {
            factors.swap(i, (random() % (i as u64 + 1)) as usize);
        }
        factors
    }
}

/// Standard deviations that a normal number exceeds with these odds.
fn deviations(odds: f64) -> f64 {
    // The density, summed from far out.
    let tail = |from: f64| {
        const STEPS: i32 = 400;
        let step = (10.0 - from) / f64::from(STEPS);
        let density = |i: i32| (-0.5 * (from + (f64::from(i) + 0.5) * step).powi(2)).exp();
        (0..STEPS).map(density).sum::<f64>() * step / (2.0 * std::f64::consts::PI).sqrt()
    };
    bisect(1e-3, 9.0, |from| tail(from) > odds)
}

/// Where something stops being true.
fn bisect(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        if is_below(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_have_their_share() {
        for share in [0.6, 0.8, 0.93, 0.99, 0.999] {
            let skew = Skew::new(256, 8, share).expect("a router");
            let (all, best): (f64, f64) =
                (skew.odds().iter().sum(), skew.odds()[..154].iter().sum());
            assert!((all - 8.0).abs() < 1e-6 && skew.odds().is_sorted_by(|a, b| a >= b));
            assert!((best / all - share).abs() < 5e-3, "{} of {share}", best / all);
        }
        for impossible in [0.0, 0.5, 1.0, 0.999_999, f64::NAN] {
            assert!(Skew::new(256, 8, impossible).is_none(), "{impossible}");
        }
    }

    #[test]
    fn odds_are_tails_of_the_normal_distribution() {
        for (odds, expected) in [(0.158_655, 1.0), (0.022_75, 2.0), (0.45, 0.125_661)] {
            assert!((deviations(odds) - expected).abs() < 1e-3, "{odds}: {}", deviations(odds));
        }
    }
}
