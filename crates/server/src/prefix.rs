//! The prefix cache: states that earlier prompts and answers left, found again by the tokens that
//! led to them. They have a budget of bytes where passes read them and another in the host's
//! memory: what is used least recently is stowed there when the first is spent, fetched when it is
//! wanted, and let go of when the second is spent too.

use crate::beside::{Change, Tier};
use engine::{Engine, Sequence, StateBlock, Stowed};
use std::collections::HashMap;
use tokio::sync::mpsc::UnboundedSender;

/// Copies states to the host's memory and back; nothing where there is no room.
pub(crate) trait Keeper {
    /// A state that passes can read.
    type State: Clone;
    /// Its copy in the host's memory.
    type Stowed;
    fn stow(&mut self, state: &Self::State) -> Option<Self::Stowed>;
    fn fetch(&mut self, stowed: &Self::Stowed) -> Option<Self::State>;
    fn blocks(state: &Self::State) -> Vec<StateBlock>;
    fn stowed_blocks(stowed: &Self::Stowed) -> Vec<StateBlock>;
}

impl Keeper for Engine {
    type State = Sequence;
    type Stowed = Stowed;

    fn stow(&mut self, state: &Sequence) -> Option<Stowed> {
        Engine::stow(self, state).ok()
    }

    fn fetch(&mut self, stowed: &Stowed) -> Option<Sequence> {
        Engine::fetch(self, stowed).ok()
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
        let known = |e: &Entry<K>| e.tokens.len() < prompt.len() && prompt.starts_with(&e.tokens);
        let matches = (0..self.entries.len()).filter(|i| known(&self.entries[*i]));
        matches.max_by_key(|i| self.entries[*i].tokens.len())
    }

    /// How many tokens of `prompt` are known.
    pub(crate) fn known(&self, prompt: &[u32]) -> usize {
        self.longest(prompt).map_or(0, |best| self.entries[best].tokens.len())
    }

    /// The state after the longest known beginning of `prompt`.
    pub(crate) fn find(&mut self, keeper: &mut K, prompt: &[u32]) -> Option<Hit<K::State>> {
        let best = self.longest(prompt)?;
        self.clock += 1;
        let entry = &mut self.entries[best];
        entry.used = self.clock;
        let len = entry.tokens.len();
        let from = if entry.is_near() { Source::Memory } else { Source::Host };
        let state = match &entry.state {
            Place::Near(state) => state.clone(),
            Place::Far(stowed) => keeper.fetch(stowed)?,
        };
        let blocks = K::blocks(&state);
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
        let blocks = K::blocks(&state);
        let state = if self.near.could_hold(&blocks) {
            self.near.add(&blocks);
            Place::Near(state)
        } else if self.far.could_hold(&blocks)
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
        let blocks = self.entries[oldest].blocks();
        let Place::Near(state) = &self.entries[oldest].state else { return false };
        let stowed = if self.far.could_hold(&blocks) { keeper.stow(state) } else { None };
        self.near.remove(&blocks);
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
mod tests {
    use super::*;

    /// A state is a list of blocks of 10 bytes; stowed, their ids are 1000 more. Counts the blocks
    /// it copied.
    #[derive(Default)]
    struct Lists {
        stowed: usize,
        fetched: usize,
    }

    struct Away(Vec<usize>);

    fn tens(ids: &[usize]) -> Vec<StateBlock> {
        ids.iter().map(|id| StateBlock { id: *id, bytes: 10 }).collect()
    }

    impl Keeper for Lists {
        type State = Vec<usize>;
        type Stowed = Away;
        fn stow(&mut self, state: &Vec<usize>) -> Option<Away> {
            self.stowed += state.len();
            Some(Away(state.iter().map(|id| id + 1000).collect()))
        }
        fn fetch(&mut self, stowed: &Away) -> Option<Vec<usize>> {
            self.fetched += stowed.0.len();
            Some(stowed.0.iter().map(|id| id - 1000).collect())
        }
        fn blocks(state: &Vec<usize>) -> Vec<StateBlock> {
            tens(state)
        }
        fn stowed_blocks(stowed: &Away) -> Vec<StateBlock> {
            tens(&stowed.0)
        }
    }

    /// A cache with its keeper, with room for so many blocks near and far.
    struct Case(PrefixCache<Lists>, Lists, Option<Source>);

    impl Case {
        fn new(near: usize, far: usize) -> Self {
            Self(PrefixCache::new(10 * near, 10 * far), Lists::default(), None)
        }
        fn insert(&mut self, tokens: &[u32], state: &[usize]) {
            self.0.insert(&mut self.1, tokens, state.to_vec());
        }
        fn find(&mut self, prompt: &[u32]) -> Option<(usize, Vec<usize>)> {
            let known = self.0.known(prompt);
            let hit = self.0.find(&mut self.1, prompt)?;
            assert_eq!(hit.len, known);
            self.2 = Some(hit.from);
            Some((hit.len, hit.state))
        }
    }

    #[test]
    fn the_longest_beginning_is_found_but_never_all() {
        let mut case = Case::new(9, 0);
        case.insert(&[1], &[1]);
        case.insert(&[1, 2, 3], &[2]);
        case.insert(&[1, 9], &[3]);
        assert_eq!(case.find(&[1, 2, 3, 4]), Some((3, vec![2])));
        assert_eq!(case.find(&[1, 2, 3]), Some((1, vec![1])));
        assert_eq!(case.find(&[1, 2]), Some((1, vec![1])));
        assert_eq!(case.find(&[2, 1]), None);
        assert_eq!(case.find(&[1]), None);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut case = Case::new(2, 0);
        case.insert(&[1], &[1]);
        case.insert(&[2], &[2]);
        assert!(case.find(&[1, 0]).is_some());
        case.insert(&[3], &[3]);
        assert_eq!(case.find(&[2, 0]), None);
        assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
        assert_eq!(case.find(&[3, 0]), Some((1, vec![3])));
        assert_eq!((case.0.len(), case.0.bytes()), (2, (20, 0)));
    }

    #[test]
    fn what_cannot_fit_is_not_kept_and_nothing_is_lost_for_it() {
        let mut case = Case::new(2, 0);
        case.insert(&[1], &[1]);
        case.insert(&[2], &[2, 3, 4]);
        assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
        assert_eq!(case.0.len(), 1);
        let mut none = Case::new(0, 0);
        none.insert(&[1], &[1]);
        assert_eq!(none.0.len(), 0);
    }

    #[test]
    fn the_same_tokens_are_kept_once() {
        let mut case = Case::new(9, 0);
        case.insert(&[1, 2], &[1]);
        case.insert(&[1, 2], &[2]);
        assert_eq!((case.0.len(), case.0.bytes()), (1, (10, 0)));
        assert_eq!(case.find(&[1, 2, 3]), Some((2, vec![1])));
    }

    #[test]
    fn a_block_that_states_share_counts_once() {
        let mut case = Case::new(4, 0);
        case.insert(&[1], &[1, 2]);
        case.insert(&[1, 2], &[1, 2, 3]);
        assert_eq!((case.0.len(), case.0.bytes()), (2, (30, 0)));
        // The older one goes, and leaves what the other needs.
        case.insert(&[9], &[7, 8]);
        assert_eq!(case.0.bytes(), (20, 0));
        assert_eq!((case.0.len(), case.find(&[9, 0])), (1, Some((1, vec![7, 8]))));
    }

    #[test]
    fn states_are_stowed_fetched_and_let_go_of_in_turn() {
        let mut case = Case::new(2, 2);
        for id in 1..=4 {
            case.insert(&[id], &[id as usize]);
        }
        // 1 and 2 are far, 3 and 4 near.
        assert_eq!((case.0.len(), case.0.bytes()), (4, (20, 20)));
        assert_eq!((case.1.stowed, case.1.fetched), (2, 0));
        // 1 comes back, 3 makes room for it.
        assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
        assert_eq!(case.2, Some(Source::Host));
        assert_eq!((case.1.stowed, case.1.fetched, case.0.bytes()), (3, 1, (20, 20)));
        // Now 1 is near: finding it again copies nothing.
        assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
        assert_eq!((case.1.stowed, case.1.fetched, case.2), (3, 1, Some(Source::Memory)));
        // 5 pushes 4 out of the near memory and 2, the oldest, out of the far one.
        case.insert(&[5], &[5]);
        assert_eq!((case.0.len(), case.0.bytes()), (4, (20, 20)));
        assert_eq!(case.find(&[2, 0]), None);
        assert!(
            [1, 3, 4, 5].into_iter().all(|id| case.find(&[id, 0]) == Some((1, vec![id as usize])))
        );
    }

    #[test]
    fn who_listens_can_tell_what_is_kept_where() {
        let (listener, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut case = Case::new(2, 2);
        case.0 = case.0.heard_by(Some(listener));
        for id in [1, 2, 3, 1, 4, 5, 2, 6, 5] {
            if case.find(&[id, 0]).is_none() {
                case.insert(&[id], &[id as usize]);
            }
        }
        assert_eq!(heard.try_recv(), Ok(Change::Cleared));
        let mut kept: HashMap<Box<[u32]>, Tier> = HashMap::new();
        let mut stowed = 0;
        while let Ok(Change::Moved { tokens, from, to }) = heard.try_recv() {
            assert_eq!(kept.remove(&tokens), from);
            stowed += usize::from(to == Some(Tier::Host));
            kept.extend(to.map(|to| (tokens, to)));
        }
        let entries = case.0.entries.iter().map(|e| (e.tokens.clone(), e.tier()));
        assert_eq!(kept, entries.collect());
        assert!(stowed > 2 && case.0.len() == 4);
    }

    #[test]
    fn a_state_too_large_for_the_near_memory_is_far_and_stays_there() {
        let mut case = Case::new(2, 4);
        case.insert(&[1], &[1]);
        case.insert(&[2], &[2, 3, 4]);
        assert_eq!(case.0.bytes(), (10, 30));
        assert_eq!(case.find(&[2, 0]), Some((1, vec![2, 3, 4])));
        assert_eq!(case.0.bytes(), (10, 30));
        assert_eq!(case.find(&[1, 0]), Some((1, vec![1])));
    }
}
