//! Which experts have a copy in the memory of a device that has no room for all of them. Every
//! expert lies in the host's memory, where the device can read it; those that are chosen often lie
//! in slots of the device's own memory as well. Copies hold the same tiles, so what this file
//! decides changes how fast a pass is and no bit of it.
//!
//! It knows no device: who has one asks for swaps between passes, makes the copies while passes
//! run, and says when they are there. Until then nobody is sent to a slot that is being written.

/// What the place of an expert with a copy begins with; the rest of it is the slot.
pub const HOT: u32 = 1 << 15;

/// Choices for each expert that are remembered, on average: two thousand tokens of eight experts
/// among 256, so that what a text wants replaces what the one before it did while it is read.
const MEMORY: f32 = 64.0;
/// A copy is replaced by one that was chosen more often by so many standard deviations, that of a
/// count being its root: experts that are chosen alike would take turns otherwise. With 3 the best
/// copies come late, with 1 twice as many copies are made where all are chosen alike.
const DEVIATIONS: f32 = 1.5;
/// Choices of a layer for each of its copies that is replaced, and how many are at most: copies come
/// over the bus that passes read from, so a pass is followed by few and a long prompt by many.
const CHOICES_OF_SWAP: u64 = 16;
const MOST_SWAPS: u64 = 64;

/// An expert's copy that goes into a slot, in place of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The layer.
    pub layer: usize,
    /// The expert whose copy it is.
    pub expert: usize,
    /// Where it goes.
    pub slot: usize,
}

/// Slots of all layers, and who is in them.
pub struct ExpertCache {
    experts: usize,
    slots: usize,
    /// Of `[layers][experts]`: an expert's own number, or `HOT` and the slot of its copy.
    places: Vec<u32>,
    places_changed: bool,
    /// Of `[layers][slots]`: whose copy lies there or is on its way.
    held: Vec<usize>,
    /// Of `[layers][experts]`: whether it is one of those.
    is_held: Vec<bool>,
    /// Of `[layers][experts]`: choices, older ones counting less.
    heat: Vec<f32>,
    /// Of `[layers][experts]`: choices when they were last counted.
    counted: Vec<u32>,
    coming: Vec<Swap>,
    /// Choices of a layer since copies were last replaced.
    recent: u64,
    hits: Hits,
}

/// Choices of experts so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Those that found a copy.
    pub hot: u64,
    /// Those that were read over the bus.
    pub cold: u64,
}

/// Slots that each layer has of so many bytes, where an expert of all layers together takes `each`.
pub fn slots_within(bytes: usize, each: usize, experts: usize) -> usize {
    (bytes / each.max(1)).min(experts)
}

impl ExpertCache {
    /// So many layers of so many experts, with slots for some of each. The first experts are on
    /// their way into them.
    pub fn new(layers: usize, experts: usize, slots: usize) -> Self {
        assert!(slots <= experts && experts <= HOT as usize, "{slots} slots, {experts} experts");
        let swaps = |layer| (0..slots).map(move |slot| Swap { layer, expert: slot, slot });
        Self {
            experts,
            slots,
            places: (0..layers).flat_map(|_| 0..experts as u32).collect(),
            places_changed: true,
            held: (0..layers).flat_map(|_| 0..slots).collect(),
            is_held: (0..layers).flat_map(|_| (0..experts).map(|e| e < slots)).collect(),
            heat: vec![0.0; layers * experts],
            counted: vec![0; layers * experts],
            coming: (0..layers).flat_map(swaps).collect(),
            recent: 0,
            hits: Hits::default(),
        }
    }

    /// Where each expert is to be read, of `[layers][experts]`.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Whether places have changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.places_changed)
    }

    /// Copies that are on their way.
    pub fn coming(&self) -> &[Swap] {
        &self.coming
    }

    /// What choices have met so far.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// The copies that were on their way are there.
    pub fn arrived(&mut self) {
        for Swap { layer, expert, slot } in self.coming.drain(..) {
            self.places[layer * self.experts + expert] = HOT | slot as u32;
            self.places_changed = true;
        }
    }

    /// Takes in how often each expert was chosen elsewhere, of `[layers][experts]`, as if it had
    /// been here and just now: copies of the most wanted are on their way. To be asked while no
    /// others are.
    pub fn expect(&mut self, chosen: &[u32]) {
        assert!(self.coming.is_empty() && chosen.len() == self.heat.len());
        for (layer, chosen) in chosen.chunks(self.experts.max(1)).enumerate() {
            let all: f32 = chosen.iter().map(|n| *n as f32).sum();
            let each = MEMORY * self.experts as f32 / all.max(1.0);
            let heat = &mut self.heat[layer * self.experts..][..self.experts];
            heat.iter_mut().zip(chosen).for_each(|(heat, n)| *heat = *n as f32 * each);
            let swaps: Vec<Swap> = std::iter::from_fn(|| self.replace(layer, 0.0)).collect();
            self.coming.extend(swaps);
        }
    }

    /// Takes in how often each expert has been chosen since the beginning, of `[layers][experts]`.
    pub fn count(&mut self, chosen: &[u32]) {
        assert_eq!(chosen.len(), self.counted.len());
        let mut most = 0;
        for first in (0..chosen.len()).step_by(self.experts.max(1)) {
            let layer = first..first + self.experts;
            // Counters may come round to 0.
            let new = |i: usize| chosen[i].wrapping_sub(self.counted[i]);
            let all: u64 = layer.clone().map(|i| u64::from(new(i))).sum();
            most = most.max(all);
            let kept = (-(all as f32) / (MEMORY * self.experts as f32)).exp();
            for i in layer {
                let new = chosen[i].wrapping_sub(self.counted[i]);
                self.heat[i] = self.heat[i] * kept + new as f32;
                match self.places[i] & HOT {
                    0 => self.hits.cold += u64::from(new),
                    _ => self.hits.hot += u64::from(new),
                }
            }
        }
        self.recent += most;
        self.counted.copy_from_slice(chosen);
    }

    /// Decides which copies to replace; they are on their way from now on, and whom they replace
    /// is read from the host's memory. Nothing while others are on their way.
    pub fn choose(&mut self) -> &[Swap] {
        if !self.coming.is_empty() || self.slots == 0 {
            return &[];
        }
        let most = (self.recent / CHOICES_OF_SWAP).min(MOST_SWAPS);
        if most > 0 {
            self.recent = 0;
        }
        for layer in 0..self.held.len() / self.slots {
            for _ in 0..most {
                let Some(swap) = self.replace(layer, DEVIATIONS) else { break };
                self.coming.push(swap);
            }
        }
        &self.coming
    }

    /// Replaces the copy of a layer that is worth least, if another was chosen more often by more
    /// than so many standard deviations.
    fn replace(&mut self, layer: usize, deviations: f32) -> Option<Swap> {
        let experts = layer * self.experts..(layer + 1) * self.experts;
        let heat = &self.heat[experts.clone()];
        let (places, is_held) = (&mut self.places[experts.clone()], &mut self.is_held[experts]);
        let held = &mut self.held[layer * self.slots..][..self.slots];
        let cold = (0..self.experts).filter(|e| !is_held[*e]);
        let expert = cold.max_by(|a, b| heat[*a].total_cmp(&heat[*b]))?;
        let slot = (0..held.len()).min_by(|a, b| heat[held[*a]].total_cmp(&heat[held[*b]]))?;
        let (gain, loss) = (heat[expert], heat[held[slot]]);
        if gain - loss <= deviations * (gain + loss).sqrt() + 1.0 {
            return None;
        }
        let old = std::mem::replace(&mut held[slot], expert);
        (is_held[old], is_held[expert]) = (false, true);
        places[old] = old as u32;
        self.places_changed = true;
        Some(Swap { layer, expert, slot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that writes a copy piece by piece: while it does, the slot has nobody's tiles.
    struct Device {
        experts: usize,
        slots: Vec<Vec<Option<usize>>>,
        chosen: Vec<u32>,
        state: u64,
    }

    impl Device {
        fn new(layers: usize, experts: usize, slots: usize, seed: u64) -> Self {
            let slots = vec![vec![None; slots]; layers];
            Self { experts, slots, chosen: vec![0; layers * experts], state: seed }
        }

        /// Whose tiles a pass would read at each place.
        fn read(&self, places: &[u32]) -> Vec<Option<usize>> {
            let read = |(i, place): (usize, &u32)| match place & HOT {
                0 => Some(*place as usize),
                _ => self.slots[i / self.experts][(place & (HOT - 1)) as usize],
            };
            places.iter().enumerate().map(read).collect()
        }

        /// Passes that choose eight experts of each layer by `choice`.
        fn passes(&mut self, cache: &mut ExpertCache, count: usize, choice: impl Fn(u64) -> usize) {
            let (layers, experts) = (self.slots.len(), self.experts);
            for _ in 0..count {
                // Copies take one pass or several.
                if random(&mut self.state).is_multiple_of(3) {
                    cache.coming().iter().for_each(|s| {
                        self.slots[s.layer][s.slot] = Some(s.expert);
                    });
                    cache.arrived();
                }
                let read = self.read(cache.places());
                let own = (0..layers).flat_map(|_| (0..experts).map(Some));
                assert!(read.into_iter().eq(own), "an expert is read where another's tiles lie");
                for (layer, slots) in cache.places().chunks(experts).zip(&self.slots) {
                    let hot = layer.iter().filter(|place| **place & HOT != 0).count();
                    assert!(hot <= slots.len(), "{hot} copies in {} slots", slots.len());
                }
                for i in 0..8 * layers {
                    self.chosen[i % layers * experts + choice(random(&mut self.state))] += 1;
                }
                cache.count(&self.chosen);
                let swaps = cache.choose();
                swaps.iter().for_each(|s| self.slots[s.layer][s.slot] = None);
            }
        }
    }

    /// Numbers that look random: splitmix64.
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
    }

    #[test]
    fn an_expert_is_read_where_its_tiles_are() {
        for seed in 0..40 {
            let mut state = seed;
            let mut below = |n: usize| random(&mut state) as usize % n;
            let (layers, experts) = (1 + below(4), 1 + below(40));
            let slots = below(experts + 1);
            let mut cache = ExpertCache::new(layers, experts, slots);
            // Low numbers are favourites, and wander.
            let choice = |r: u64| {
                let (a, b) = (r as usize % experts, (r >> 20) as usize % experts);
                (a * b / experts + experts / 2) % experts
            };
            Device::new(layers, experts, slots, seed).passes(&mut cache, 300, choice);
        }
    }

    #[test]
    fn what_is_chosen_often_comes_and_what_no_longer_is_goes() {
        let (experts, slots) = (64, 16);
        let mut cache = ExpertCache::new(2, experts, slots);
        let mut device = Device::new(2, experts, slots, 1);
        for favourites in [40, 20] {
            device.passes(&mut cache, 2000, |r| favourites + r as usize % 12);
            for layer in cache.places().chunks(experts) {
                assert!(layer[favourites..][..12].iter().all(|place| place & HOT != 0));
            }
        }
        let before = cache.hits();
        device.passes(&mut cache, 100, |r| 20 + r as usize % 12);
        assert_eq!(cache.hits().cold, before.cold, "everything is there");
        assert_eq!(cache.hits().hot, before.hot + 100 * 2 * 8);
    }

    #[test]
    fn what_is_expected_is_there_before_anything_is_chosen() {
        let (layers, experts, slots) = (3, 64, 16);
        let favourites = |layer: usize| 10 * layer + 5..10 * layer + 15;
        let chosen: Vec<u32> = (0..layers * experts)
            .map(|i| 1 + 100 * u32::from(favourites(i / experts).contains(&(i % experts))))
            .collect();
        let mut cache = ExpertCache::new(layers, experts, slots);
        cache.arrived();
        cache.expect(&chosen);
        let mut device = Device::new(layers, experts, slots, 7);
        // What was there from the beginning, and what is not replaced by it.
        for (layer, slots) in device.slots.iter_mut().enumerate() {
            slots.iter_mut().enumerate().for_each(|(slot, held)| *held = Some(slot));
            for swap in cache.coming().iter().filter(|swap| swap.layer == layer) {
                slots[swap.slot] = Some(swap.expert);
            }
        }
        cache.arrived();
        assert!(
            device.read(cache.places()).iter().enumerate().all(|(i, e)| *e == Some(i % experts))
        );
        for (layer, places) in cache.places().chunks(experts).enumerate() {
            assert!(places[favourites(layer)].iter().all(|place| place & HOT != 0), "{layer}");
        }
        // What is expected is no more than a beginning: others are wanted now.
        device.passes(&mut cache, 2000, |r| 50 + r as usize % 12);
        for places in cache.places().chunks(experts) {
            assert!(places[50..62].iter().all(|place| place & HOT != 0));
        }
        // Nobody was counted: nothing to expect.
        let mut cache = ExpertCache::new(1, experts, slots);
        cache.arrived();
        cache.expect(&vec![0; experts]);
        assert!(cache.coming().is_empty());
    }

    #[test]
    fn equals_do_not_take_turns() {
        let mut cache = ExpertCache::new(1, 32, 16);
        cache.arrived();
        let mut chosen = vec![0u32; 32];
        let mut swaps = 0;
        for round in 0..1000 {
            (0..8).for_each(|i| chosen[(round * 8 + i) % 32] += 1);
            cache.count(&chosen);
            swaps += cache.choose().len();
            cache.arrived();
        }
        assert!(swaps <= 16, "{swaps} swaps of experts that are all chosen alike");
        // Counters that come round count on.
        let all = |hits: Hits| hits.hot + hits.cold;
        let before = all(cache.hits());
        cache.counted = vec![u32::MAX; 32];
        cache.count(&[3; 32]);
        assert_eq!(all(cache.hits()), before + 4 * 32);
    }

    #[test]
    fn slots_stay_within_their_bytes() {
        assert_eq!([0, 99, 100, 250, 9999].map(|b| slots_within(b, 100, 8)), [0, 0, 1, 2, 8]);
    }
}
