//! Rounds at imposed prices: everything is computed, and counts as if its stages took so long. What
//! `auto` makes of real acceptances on another machine can be seen without that machine, and
//! without the noise of this one.

use crate::Engine;
use crate::propose::{Learned, Slot};
use crate::size::{Costs, Curve};

/// What stages of a round take.
#[derive(Clone, Debug)]
pub struct Prices {
    /// Seconds of a verify by its rows, some of them.
    pub verify: Vec<(usize, f64)>,
    /// Seconds of a drafter's pass, by its name; one that is not here costs nothing.
    pub drafts: Vec<(String, f64)>,
    /// Seconds of a commit.
    pub commit: f64,
}

impl Prices {
    /// Of a verify.
    pub(crate) fn verify(&self, rows: usize) -> f64 {
        let mut curve = Curve::default();
        self.verify.iter().for_each(|(rows, seconds)| curve.add(*rows, *seconds, 1.0));
        curve.get(rows).unwrap_or(0.0)
    }

    /// Of a drafter's pass.
    pub(crate) fn pass(&self, name: &str) -> f64 {
        self.drafts.iter().find(|(drafter, _)| drafter == name).map_or(0.0, |(_, pass)| *pass)
    }
}

impl Engine {
    /// What stages of one text's rounds have taken on this machine.
    pub fn prices(&self) -> Prices {
        let pass = |slot: &Slot| slot.costs.get(1).map(|s| (slot.drafter.name().to_owned(), s));
        let drafts = self.drafters.iter().filter_map(pass).collect();
        let commit = self.commit_costs.get(1).unwrap_or(0.0);
        Prices { verify: self.costs.table.0.clone(), drafts, commit }
    }

    /// From now on stages of rounds are taken to last as long as these prices say, and what was
    /// measured and learned is forgotten.
    pub fn impose(&mut self, prices: Prices) {
        (self.costs, self.commit_costs) = (Costs::default(), Curve::default());
        self.learned = Learned::new(self.drafters.len());
        for (rows, seconds) in &prices.verify {
            self.costs.table.add(*rows, *seconds, 1.0);
        }
        for slot in &mut self.drafters {
            slot.costs = Curve::default();
            slot.costs.add(1, prices.pass(slot.drafter.name()), 1.0);
        }
        let plain = prices.verify(1) + prices.commit;
        self.learned.choices.iter_mut().for_each(|choice| choice.add(None, 1, plain));
        self.prices = Some(prices);
    }

    /// Seconds that count: the imposed price, else what was measured.
    pub(crate) fn seconds(&self, measured: f64, price: impl FnOnce(&Prices) -> f64) -> f64 {
        self.prices.as_ref().map_or(measured, price)
    }
}
