//! The prefix cache: states that earlier prompts and answers left, found again by the tokens that
//! led to them. They have a budget of bytes where passes read them and another in the host's
//! memory: what is used least recently is stowed there when the first is spent, fetched when it is
//! wanted, and let go of when the second is spent too.

use crate::beside::{Change, Tier};
use engine::{Engine, Sequence, StateBlock, Stowed};
use std::collections::HashMap;
use tokio::sync::mpsc::UnboundedSender;

/// Copies states to the host's memory, nothing where there is no room, and back.
pub(crate) trait Keeper {
    /// A state that passes can read.
    type State: Clone;
    /// Its copy in the host's memory.
    type Stowed;
    fn stow(&mut self, state: &Self::State) -> Option<Self::Stowed>;
    fn fetch(&mut self, stowed: &Self::Stowed) -> Fetched<Self::State>;
    /// Those of a state's blocks that take of the memory where passes read it.
    fn near_blocks(&self, state: &Self::State) -> Vec<StateBlock>;
    /// All that are copied when it is stowed, or go along.
    fn blocks(state: &Self::State) -> Vec<StateBlock>;
    fn stowed_blocks(stowed: &Self::Stowed) -> Vec<StateBlock>;
}

/// What came of fetching a state.
pub(crate) enum Fetched<S> {
    State(S),
    NoRoom,
    Failed,
}

impl Keeper for Engine {
    type State = Sequence;
    type Stowed = Stowed;

    fn stow(&mut self, state: &Sequence) -> Option<Stowed> {
        Engine::stow(self, state).ok()
    }

    fn fetch(&mut self, stowed: &Stowed) -> Fetched<Sequence> {
        match Engine::fetch(self, stowed) {
            Ok(state) => Fetched::State(state),
            Err(error) if error.is_out_of_memory() => Fetched::NoRoom,
            Err(_) => Fetched::Failed,
        }
    }

    fn near_blocks(&self, state: &Sequence) -> Vec<StateBlock> {
        Engine::near_blocks(self, state)
    }

    fn blocks(state: &Sequence) -> Vec<StateBlock> {
        state.blocks()
    }

    fn stowed_blocks(stowed: &Stowed) -> Vec<StateBlock> {
        stowed.blocks()
    }
}

/// Where a state was found.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Source {
    /// Where passes read.
    Memory,
    /// The host's memory.
    Host,
    /// A file.
    Disk,
}

impl Source {
    /// For clients and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// A state that a prompt goes on from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hit<S> {
    /// Tokens that led to it.
    pub(crate) len: usize,
    pub(crate) state: S,
    pub(crate) from: Source,
}

/// Bytes of the blocks that states refer to; a block that several share counts once.
#[derive(Debug)]
struct Tally {
    budget: usize,
    bytes: usize,
    /// How many states refer to a block, by its id.
    uses: HashMap<usize, usize>,
}

impl Tally {
    fn new(budget: usize) -> Self {
        Self { budget, bytes: 0, uses: HashMap::new() }
    }

    /// Whether it could be kept with nothing beside it.
    fn could_hold(&self, blocks: &[StateBlock]) -> bool {
        blocks.iter().map(|block| block.bytes).sum::<usize>() <= self.budget
    }

    fn is_overdrawn(&self) -> bool {
        self.bytes > self.budget
    }

    fn add(&mut self, blocks: &[StateBlock]) {
        for block in blocks {
            let uses = self.uses.entry(block.id).or_default();
            self.bytes += if *uses == 0 { block.bytes } else { 0 };
            *uses += 1;
        }
    }

    fn remove(&mut self, blocks: &[StateBlock]) {
        for block in blocks {
            let uses = self.uses.get_mut(&block.id).expect("it was added");
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&block.id);
                self.bytes -= block.bytes;
            }
        }
    }
}

/// States by the tokens before them.
pub(crate) struct PrefixCache<K: Keeper> {
    entries: Vec<Entry<K>>,
    /// Where passes read, and the host's memory beside it.
    near: Tally,
    far: Tally,
    /// Counts uses; an entry's age is how long ago it was stamped.
    clock: u64,
    /// Who hears of states that are kept, that move and that go.
    listener: Option<UnboundedSender<Change>>,
}

struct Entry<K: Keeper> {
    tokens: Box<[u32]>,
    state: Place<K>,
    used: u64,
}

enum Place<K: Keeper> {
    Near(K::State),
    Far(K::Stowed),
}

impl<K: Keeper> Entry<K> {
    fn is_near(&self) -> bool {
        matches!(self.state, Place::Near(_))
    }

    fn tier(&self) -> Tier {
        if self.is_near() { Tier::Device } else { Tier::Host }
    }

    fn blocks(&self) -> Vec<StateBlock> {
        match &self.state {
            Place::Near(state) => K::blocks(state),
            Place::Far(stowed) => K::stowed_blocks(stowed),
        }
    }
}

impl<K: Keeper> PrefixCache<K> {
    /// A cache of at most `near` bytes where passes read states, and `far` bytes of the host's
    /// memory beside them.
    pub(crate) fn new(near: usize, far: usize) -> Self {
        let (near, far) = (Tally::new(near), Tally::new(far));
        Self { entries: Vec::new(), near, far, clock: 0, listener: None }
    }

    /// Tells `listener` of every change from now on. What was kept before is gone.
    pub(crate) fn heard_by(mut self, listener: Option<UnboundedSender<Change>>) -> Self {
        self.listener = listener;
        self.tell(|| Change::Cleared);
        self
    }

    /// Nobody may be there to hear it, and then nothing is copied.
    fn tell(&self, change: impl FnOnce() -> Change) {
        if let Some(listener) = &self.listener {
            let _ = listener.send(change());
        }
    }

    fn tell_of(&self, tokens: &[u32], from: Option<Tier>, to: Option<Tier>) {
        self.tell(|| Change::Moved { tokens: tokens.into(), from, to });
    }

    /// The entry of the longest known beginning of `prompt`, less than all of it: the logits of its
    /// last token are wanted, so that one is always read.
    fn longest(&self, prompt: &[u32]) -> Option<usize> {
        // The newest first: a conversation's last state is its longest, and then no other of its
        // states is compared token by token.
        let longer = |best: Option<usize>, i: usize| {
            let tokens = &self.entries[i].tokens;
            let is_longer = best.is_none_or(|best| tokens.len() > self.entries[best].tokens.len());
            let is_match = is_longer && tokens.len() < prompt.len() && prompt.starts_with(tokens);
            if is_match { Some(i) } else { best }
        };
        (0..self.entries.len()).rev().fold(None, longer)
    }

    /// How many tokens of `prompt` are known.
    pub(crate) fn known(&self, prompt: &[u32]) -> usize {
        self.longest(prompt).map_or(0, |best| self.entries[best].tokens.len())
    }

    /// The state after the longest known beginning of `prompt`.
    pub(crate) fn find(&mut self, keeper: &mut K, prompt: &[u32]) -> Option<Hit<K::State>> {
        let mut best = self.longest(prompt)?;
        self.clock += 1;
        let entry = &mut self.entries[best];
        entry.used = self.clock;
        let len = entry.tokens.len();
        let from = if entry.is_near() { Source::Memory } else { Source::Host };
        let state = loop {
            let fetched = match &self.entries[best].state {
                Place::Near(state) => Fetched::State(state.clone()),
                Place::Far(stowed) => keeper.fetch(stowed),
            };
            match fetched {
                Fetched::State(state) => break state,
                // What is kept of others makes room for what is wanted; entries move by that.
                Fetched::NoRoom if self.make_way(keeper) => best = self.longest(prompt)?,
                Fetched::NoRoom | Fetched::Failed => return None,
            }
        };
        let entry = &mut self.entries[best];
        let blocks = keeper.near_blocks(&state);
        if !entry.is_near() && self.near.could_hold(&blocks) {
            self.far.remove(&entry.blocks());
            self.near.add(&blocks);
            entry.state = Place::Near(state.clone());
            self.tell_of(&prompt[..len], Some(Tier::Host), Some(Tier::Device));
            self.settle(keeper);
        }
        Some(Hit { len, state, from })
    }

    /// Whether exactly these tokens are known; counts as a use.
    fn touch(&mut self, tokens: &[u32]) -> bool {
        self.clock += 1;
        let found = self.entries.iter_mut().find(|e| *e.tokens == *tokens);
        found.map(|e| e.used = self.clock).is_some()
    }

    /// Keeps a state.
    pub(crate) fn insert(&mut self, keeper: &mut K, tokens: &[u32], state: K::State) {
        if tokens.is_empty() || self.touch(tokens) {
            return;
        }
        let blocks = keeper.near_blocks(&state);
        let state = if self.near.could_hold(&blocks) {
            self.near.add(&blocks);
            Place::Near(state)
        } else if self.far.could_hold(&K::blocks(&state))
            && let Some(stowed) = keeper.stow(&state)
        {
            self.far.add(&K::stowed_blocks(&stowed));
            Place::Far(stowed)
        } else {
            return;
        };
        let entry = Entry { tokens: tokens.into(), state, used: self.clock };
        self.tell_of(tokens, None, Some(entry.tier()));
        self.entries.push(entry);
        self.settle(keeper);
    }

    /// Keeps to the budgets: stows what is near, lets go of what is far, the least recently used
    /// first.
    fn settle(&mut self, keeper: &mut K) {
        while self.near.is_overdrawn() && self.make_way(keeper) {}
        while self.far.is_overdrawn()
            && let Some(oldest) = self.oldest(false)
        {
            let gone = self.entries.swap_remove(oldest);
            self.far.remove(&gone.blocks());
            self.tell_of(&gone.tokens, Some(Tier::Host), None);
        }
    }

    /// Lets go of the state that passes could read and that was used longest ago, or stows it;
    /// whether there was one.
    pub(crate) fn make_way(&mut self, keeper: &mut K) -> bool {
        let Some(oldest) = self.oldest(true) else { return false };
        let Place::Near(state) = &self.entries[oldest].state else { return false };
        let can_be_stowed = self.far.could_hold(&K::blocks(state));
        let stowed = if can_be_stowed { keeper.stow(state) } else { None };
        self.near.remove(&keeper.near_blocks(state));
        let to = stowed.as_ref().map(|_| Tier::Host);
        self.tell_of(&self.entries[oldest].tokens, Some(Tier::Device), to);
        match stowed {
            Some(stowed) => {
                self.far.add(&K::stowed_blocks(&stowed));
                self.entries[oldest].state = Place::Far(stowed);
            }
            None => drop(self.entries.swap_remove(oldest)),
        }
        true
    }

    fn oldest(&self, near: bool) -> Option<usize> {
        let there = (0..self.entries.len()).filter(|i| self.entries[*i].is_near() == near);
        there.min_by_key(|i| self.entries[*i].used)
    }

    /// Bytes that states take where passes read them, and in the host's memory beside that.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.near.bytes, self.far.bytes)
    }

    /// Number of states.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
