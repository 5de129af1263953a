//! The prefix cache: states that earlier prompts and answers left, found again by the tokens that led to them. The
//! least recently used go when the bytes they refer to are more than the budget.

/// States by the tokens before them.
#[derive(Debug)]
pub(crate) struct PrefixCache<S> {
    entries: Vec<Entry<S>>,
    budget: usize,
    bytes: usize,
    /// Counts uses; an entry's age is how long ago it was stamped.
    clock: u64,
}

#[derive(Debug)]
struct Entry<S> {
    tokens: Box<[u32]>,
    state: S,
    bytes: usize,
    used: u64,
}

impl<S: Clone> PrefixCache<S> {
    /// A cache of at most `budget` bytes.
    pub(crate) fn new(budget: usize) -> Self {
        Self { entries: Vec::new(), budget, bytes: 0, clock: 0 }
    }

    /// The state after the longest known beginning of `prompt`, less than all of it: the logits of its last token are
    /// wanted, so that one is always read.
    pub(crate) fn find(&mut self, prompt: &[u32]) -> Option<(usize, S)> {
        let known = |e: &&mut Entry<S>| e.tokens.len() < prompt.len() && prompt.starts_with(&e.tokens);
        let best = self.entries.iter_mut().filter(known).max_by_key(|e| e.tokens.len())?;
        self.clock += 1;
        best.used = self.clock;
        Some((best.tokens.len(), best.state.clone()))
    }

    /// Whether exactly these tokens are known; counts as a use.
    pub(crate) fn touch(&mut self, tokens: &[u32]) -> bool {
        self.clock += 1;
        let found = self.entries.iter_mut().find(|e| *e.tokens == *tokens);
        found.map(|e| e.used = self.clock).is_some()
    }

    /// Keeps a state that refers to `bytes` of memory. Memory shared between states is counted once for each, so the
    /// budget is kept with room to spare.
    pub(crate) fn insert(&mut self, tokens: &[u32], state: S, bytes: usize) {
        let bytes = bytes + size_of_val(tokens);
        if tokens.is_empty() || bytes > self.budget || self.touch(tokens) {
            return;
        }
        while self.bytes + bytes > self.budget {
            let Some(oldest) = (0..self.entries.len()).min_by_key(|i| self.entries[*i].used) else { return };
            self.bytes -= self.entries.swap_remove(oldest).bytes;
        }
        self.bytes += bytes;
        self.entries.push(Entry { tokens: tokens.into(), state, bytes, used: self.clock });
    }

    /// Bytes the entries refer to.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of states.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an entry of one token besides its state.
    const TOKEN: usize = 4;

    #[test]
    fn the_longest_beginning_is_found_but_never_all() {
        let mut cache = PrefixCache::new(1000);
        cache.insert(&[1], 'a', 1);
        cache.insert(&[1, 2, 3], 'b', 1);
        cache.insert(&[1, 9], 'c', 1);
        assert_eq!(cache.find(&[1, 2, 3, 4]), Some((3, 'b')));
        assert_eq!(cache.find(&[1, 2, 3]), Some((1, 'a')));
        assert_eq!(cache.find(&[1, 2]), Some((1, 'a')));
        assert_eq!(cache.find(&[2, 1]), None);
        assert_eq!(cache.find(&[1]), None);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = PrefixCache::new(2 * (10 + TOKEN));
        cache.insert(&[1], 'a', 10);
        cache.insert(&[2], 'b', 10);
        assert!(cache.find(&[1, 0]).is_some());
        cache.insert(&[3], 'c', 10);
        assert_eq!(cache.find(&[2, 0]), None);
        assert_eq!(cache.find(&[1, 0]), Some((1, 'a')));
        assert_eq!(cache.find(&[3, 0]), Some((1, 'c')));
        assert_eq!((cache.len(), cache.bytes()), (2, 2 * (10 + TOKEN)));
    }

    #[test]
    fn what_cannot_fit_is_not_kept_and_nothing_is_lost_for_it() {
        let mut cache = PrefixCache::new(20);
        cache.insert(&[1], 'a', 10);
        cache.insert(&[2], 'b', 100);
        assert_eq!(cache.find(&[1, 0]), Some((1, 'a')));
        assert_eq!(cache.len(), 1);
        let mut none = PrefixCache::new(0);
        none.insert(&[1], 'a', 0);
        assert_eq!(none.len(), 0);
    }

    #[test]
    fn the_same_tokens_are_kept_once() {
        let mut cache = PrefixCache::new(100);
        cache.insert(&[1, 2], 'a', 10);
        cache.insert(&[1, 2], 'b', 10);
        assert_eq!((cache.len(), cache.bytes()), (1, 18));
        assert_eq!(cache.find(&[1, 2, 3]), Some((2, 'a')));
    }
}
