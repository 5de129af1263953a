//! Kept states as blocks of tokens, which is what gateways count.
//!
//! A state stands for all tokens before it, so it is told as the whole blocks of them. States share
//! their beginnings: in each tier a block is held as long as a state there goes through it, and a
//! block that is held has its parent held.

use server::{Change, Tier};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

/// What a gateway is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Nothing is held.
    Cleared,
    /// Blocks that follow each other, the first of them behind `parent`.
    Stored { tier: Tier, parent: Option<u64>, hashes: Vec<u64>, tokens: Vec<u32> },
    /// Blocks that are no longer held, the last first.
    Removed { tier: Tier, hashes: Vec<u64> },
}

/// Blocks that states go through.
#[derive(Debug)]
pub(crate) struct Blocks {
    size: usize,
    /// By the hash of all tokens up to their end.
    held: HashMap<u64, Block>,
}

#[derive(Debug)]
struct Block {
    parent: Option<u64>,
    tokens: Box<[u32]>,
    /// Blocks before it.
    depth: usize,
    /// States that go through it, by tier.
    uses: [usize; 3],
}

const TIERS: [Tier; 3] = [Tier::Device, Tier::Host, Tier::Disk];

fn place(tier: Tier) -> usize {
    match tier {
        Tier::Device => 0,
        Tier::Host => 1,
        Tier::Disk => 2,
    }
}

impl Blocks {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, held: HashMap::new() }
    }

    /// Tokens of a block.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// What a change means. What comes is told before what goes, so that a state which moves is
    /// never nowhere.
    pub(crate) fn apply(&mut self, change: &Change) -> Vec<Event> {
        match change {
            Change::Cleared => {
                self.held.retain(|_, block| {
                    (block.uses[place(Tier::Device)], block.uses[place(Tier::Host)]) = (0, 0);
                    block.uses[place(Tier::Disk)] > 0
                });
                // Who hears that all is gone has to hear again what lies on disk.
                self.all()
            }
            Change::Moved { tokens, from, to } => {
                let hashes = self.hashes(tokens);
                let came = to.and_then(|tier| self.add(tokens, &hashes, tier));
                let went = from.and_then(|tier| self.remove(&hashes, tier));
                came.into_iter().chain(went).collect()
            }
        }
    }

    /// All that is held, parents first, for who has heard nothing yet.
    pub(crate) fn all(&self) -> Vec<Event> {
        let mut held: Vec<(&u64, &Block)> = self.held.iter().collect();
        held.sort_unstable_by_key(|(hash, block)| (block.depth, **hash));
        let stored = held.into_iter().flat_map(|(hash, block)| {
            let tiers = TIERS.into_iter();
            tiers.filter(|tier| block.uses[place(*tier)] > 0).map(|tier| Event::Stored {
                tier,
                parent: block.parent,
                hashes: vec![*hash],
                tokens: block.tokens.to_vec(),
            })
        });
        std::iter::once(Event::Cleared).chain(stored).collect()
    }

    /// Of the whole blocks of `tokens`.
    fn hashes(&self, tokens: &[u32]) -> Vec<u64> {
        let mut hasher = DefaultHasher::new();
        let blocks = tokens.chunks_exact(self.size).map(|block| {
            block.iter().for_each(|token| hasher.write_u32(*token));
            hasher.finish()
        });
        blocks.collect()
    }

    fn add(&mut self, tokens: &[u32], hashes: &[u64], tier: Tier) -> Option<Event> {
        let mut new = Vec::new();
        let mut parent = None;
        for (depth, (hash, block)) in hashes.iter().zip(tokens.chunks(self.size)).enumerate() {
            let tokens = || Block { parent, tokens: block.into(), depth, uses: [0; 3] };
            let uses = &mut self.held.entry(*hash).or_insert_with(tokens).uses[place(tier)];
            if *uses == 0 {
                new.push(depth);
            }
            *uses += 1;
            parent = Some(*hash);
        }
        // They are the last ones: who goes through a block goes through those before it.
        let first = *new.first()?;
        Some(Event::Stored {
            tier,
            parent: first.checked_sub(1).map(|before| hashes[before]),
            hashes: hashes[first..].to_vec(),
            tokens: tokens[first * self.size..hashes.len() * self.size].to_vec(),
        })
    }

    fn remove(&mut self, hashes: &[u64], tier: Tier) -> Option<Event> {
        let mut gone = Vec::new();
        for hash in hashes.iter().rev() {
            let Some(block) = self.held.get_mut(hash) else { continue };
            let uses = &mut block.uses[place(tier)];
            if *uses == 1 {
                gone.push(*hash);
            }
            *uses = uses.saturating_sub(1);
            if block.uses == [0; 3] {
                self.held.remove(hash);
            }
        }
        (!gone.is_empty()).then_some(Event::Removed { tier, hashes: gone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(tokens: &[u32], from: Option<Tier>, to: Option<Tier>) -> Change {
        Change::Moved { tokens: tokens.into(), from, to }
    }

    #[test]
    fn a_block_is_held_as_long_as_a_state_goes_through_it() {
        let mut blocks = Blocks::new(2);
        let near = Some(Tier::Device);
        let kept = |tokens: &[u32]| moved(tokens, None, near);
        let gone = |tokens: &[u32]| moved(tokens, near, None);
        let removed = |hashes: &[u64]| Event::Removed { tier: Tier::Device, hashes: hashes.into() };
        let stored = |parent, hashes: &[u64], tokens: &[u32]| Event::Stored {
            tier: Tier::Device,
            parent,
            hashes: hashes.into(),
            tokens: tokens.into(),
        };
        let hashes = blocks.hashes(&[1, 2, 3, 4, 5]);
        assert_eq!(hashes.len(), 2);
        let told = stored(None, &hashes, &[1, 2, 3, 4]);
        assert_eq!(blocks.apply(&kept(&[1, 2, 3, 4, 5])), [told]);
        assert_eq!(blocks.apply(&kept(&[1, 2, 3])), []);
        let other = blocks.hashes(&[1, 2, 9, 9])[1];
        let told = stored(Some(hashes[0]), &[other], &[9, 9]);
        assert_eq!(blocks.apply(&kept(&[1, 2, 9, 9])), std::slice::from_ref(&told));
        assert_eq!(blocks.all().len(), 4);
        assert_eq!(blocks.apply(&gone(&[1, 2, 3, 4, 5])), [removed(&[hashes[1]])]);
        assert_eq!(blocks.apply(&gone(&[1, 2, 3])), []);
        let all = [Event::Cleared, stored(None, &[hashes[0]], &[1, 2]), told];
        assert_eq!(blocks.all(), all);
        assert_eq!(blocks.apply(&gone(&[1, 2, 9, 9])), [removed(&[other, hashes[0]])]);
        assert_eq!(blocks.all(), [Event::Cleared]);
    }

    #[test]
    fn a_state_that_moves_is_never_nowhere() {
        let mut blocks = Blocks::new(2);
        let (near, far) = (Some(Tier::Device), Some(Tier::Host));
        blocks.apply(&moved(&[1, 2], None, near));
        blocks.apply(&moved(&[1, 2, 3, 4], None, near));
        let hashes = blocks.hashes(&[1, 2, 3, 4]);
        let told = blocks.apply(&moved(&[1, 2, 3, 4], near, far));
        let stored = Event::Stored {
            tier: Tier::Host,
            parent: None,
            hashes: hashes.clone(),
            tokens: vec![1, 2, 3, 4],
        };
        let removed = Event::Removed { tier: Tier::Device, hashes: vec![hashes[1]] };
        assert_eq!(told, [stored, removed]);
        // The first block is held in both, by a state each.
        assert_eq!(blocks.all().len(), 4);
        assert_eq!(blocks.apply(&Change::Cleared), [Event::Cleared]);
        assert_eq!(blocks.all(), [Event::Cleared]);
    }

    #[test]
    fn what_lies_on_disk_outlives_what_is_in_memory() {
        let mut blocks = Blocks::new(2);
        let disk = Some(Tier::Disk);
        blocks.apply(&moved(&[1, 2, 3, 4], None, Some(Tier::Device)));
        let hashes = blocks.hashes(&[1, 2, 3, 4]);
        let stored = |parent, hash, tokens: &[u32]| Event::Stored {
            tier: Tier::Disk,
            parent,
            hashes: vec![hash],
            tokens: tokens.into(),
        };
        let first = stored(None, hashes[0], &[1, 2]);
        assert_eq!(blocks.apply(&moved(&[1, 2], None, disk)), std::slice::from_ref(&first));
        assert_eq!(blocks.apply(&Change::Cleared), [Event::Cleared, first]);
        let second = stored(Some(hashes[0]), hashes[1], &[3, 4]);
        assert_eq!(blocks.apply(&moved(&[1, 2, 3, 4], None, disk)), [second]);
        blocks.apply(&moved(&[1, 2], disk, None));
        let removed =
            Event::Removed { tier: Tier::Disk, hashes: hashes.iter().rev().copied().collect() };
        assert_eq!(blocks.apply(&moved(&[1, 2, 3, 4], disk, None)), [removed]);
        // What is gone already is not told again.
        assert_eq!(blocks.apply(&moved(&[1, 2, 3, 4], disk, None)), []);
    }
}
