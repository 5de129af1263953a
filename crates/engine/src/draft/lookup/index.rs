//! Where in a text a run of tokens occurred before. Places after the same few tokens form a chain,
//! newest first, as in dictionary compressors: a token more costs two table entries, a search a
//! few dozen comparisons however long the text is.

/// Lengths of the runs that are indexed, the longer first. Where a text repeats itself much, the
/// longer finds the few places among the many.
const RUNS: [usize; 2] = [8, SHORTEST];
/// A match of fewer tokens says nothing.
const SHORTEST: usize = 3;
/// Places of a chain that are looked at.
const LOOKED_AT: usize = 16;
/// Tokens that are compared backwards: a match is not told from a longer one.
const LONGEST: usize = 64;

/// Tokens, and where each short run of them occurred before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    tokens: Vec<u32>,
    chains: [Chain; RUNS.len()],
}

/// Places after the same run of tokens. Place 0 is none, since no run comes before it.
#[derive(Clone, Debug, Default)]
struct Chain {
    /// The newest place, by hash of the run. Hashes may collide: whoever follows a chain compares.
    newest: Vec<u32>,
    /// The place before it, by place.
    older: Vec<u32>,
}

/// A place whose tokens before it are those that a text ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Where what followed begins.
    pub(crate) place: usize,
    /// Tokens that are the same.
    pub(crate) length: usize,
}

impl Index {
    /// Tokens in it.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes it takes, roughly: tables are at most twice as large as they need be.
    pub(crate) fn bytes(&self) -> usize {
        let chain = |chain: &Chain| 4 * (chain.newest.len() + chain.older.len());
        4 * self.tokens.len() + self.chains.iter().map(chain).sum::<usize>()
    }

    /// The token at a place, where there is one.
    pub(crate) fn token(&self, place: usize) -> Option<u32> {
        self.tokens.get(place).copied()
    }

    /// Another token at the end.
    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let Self { tokens, chains } = self;
        for (chain, run) in chains.iter_mut().zip(RUNS) {
            if tokens.len() >= chain.newest.len() {
                chain.grow(tokens, run);
            } else {
                chain.add(tokens, tokens.len(), run);
            }
        }
    }

    /// The longest match of the end of `context`, of equals the newest, unless there is none of
    /// [`SHORTEST`] tokens. The context is what is indexed and another token, or another text.
    pub(crate) fn longest(&self, context: Context<'_>) -> Option<Match> {
        for (chain, run) in self.chains.iter().zip(RUNS) {
            let Some(hash) = context.hash(run).filter(|_| !chain.newest.is_empty()) else {
                continue;
            };
            let mut best: Option<Match> = None;
            let mut place = chain.newest[slot(hash, chain.newest.len())] as usize;
            for _ in 0..LOOKED_AT {
                if place == 0 {
                    break;
                }
                let length = self.same(place, context);
                if length >= run && best.is_none_or(|best| length > best.length) {
                    best = Some(Match { place, length });
                }
                place = chain.older[place] as usize;
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// How many tokens before a place are those that `context` ends with.
    fn same(&self, place: usize, context: Context<'_>) -> usize {
        let before = self.tokens[..place].iter().rev().take(LONGEST);
        before.zip(context.backwards()).take_while(|(a, b)| *a == b).count()
    }

    /// What followed a match, `count` tokens at most. Behind the newest token, which is `tip` where
    /// the text is this one, it goes on with itself: a text that repeats a phrase goes on doing so.
    pub(crate) fn following(&self, place: usize, tip: Option<u32>, count: usize) -> Vec<u32> {
        let mut found: Vec<u32> = self.tokens[place..].iter().copied().take(count).collect();
        if let Some(tip) = tip
            && found.len() < count
        {
            found.push(tip);
            for i in 0..count - found.len() {
                found.push(found[i]);
            }
        }
        found
    }

    /// Lets go of the older half.
    pub(crate) fn halve(&mut self) {
        let kept = self.tokens.split_off(self.tokens.len() / 2);
        *self = Self::default();
        kept.into_iter().for_each(|token| self.push(token));
    }
}

impl Chain {
    /// The place at the end of `tokens[..place]`.
    fn add(&mut self, tokens: &[u32], place: usize, run: usize) {
        self.older.resize(place, 0);
        let hash = Context { tokens: &tokens[..place], tip: None }.hash(run);
        let newest = hash.map(|hash| slot(hash, self.newest.len()));
        self.older.push(newest.map_or(0, |newest| self.newest[newest]));
        if let Some(newest) = newest {
            self.newest[newest] = place as u32;
        }
    }

    /// A table of twice the size, with everything in it again.
    fn grow(&mut self, tokens: &[u32], run: usize) {
        self.newest = vec![0; (2 * tokens.len()).next_power_of_two().max(64)];
        self.older.clear();
        (run..=tokens.len()).for_each(|place| self.add(tokens, place, run));
    }
}

/// What a text ends with: some tokens and perhaps one more.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) tip: Option<u32>,
}

impl<'a> Context<'a> {
    /// From the newest token on.
    fn backwards(self) -> impl Iterator<Item = u32> + 'a {
        self.tip.into_iter().chain(self.tokens.iter().rev().copied())
    }

    /// Of the last `run` tokens, where there are so many.
    fn hash(self, run: usize) -> Option<u64> {
        let enough = self.tokens.len() + usize::from(self.tip.is_some()) >= run;
        let mix = |hash: u64, token: u32| {
            (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        };
        enough.then(|| self.backwards().take(run).fold(run as u64, mix))
    }
}

/// The upper bits of a product are the mixed ones.
fn slot(hash: u64, slots: usize) -> usize {
    (hash >> 32) as usize & (slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(tokens: &[u32]) -> Index {
        let mut index = Index::default();
        tokens.iter().for_each(|token| index.push(*token));
        index
    }

    #[test]
    fn a_phrase_goes_on_as_it_did_and_a_refrain_with_itself() {
        let tokens = [1, 2, 3, 4, 5, 6, 7, 1, 2];
        let found = index(&tokens).longest(Context { tokens: &tokens, tip: Some(3) });
        assert_eq!(found, Some(Match { place: 3, length: 3 }));
        assert_eq!(index(&tokens).following(3, Some(3), 4), [4, 5, 6, 7]);
        let tokens = [8, 9, 8, 9, 8];
        let found = index(&tokens).longest(Context { tokens: &tokens, tip: Some(9) }).unwrap();
        assert_eq!(index(&tokens).following(found.place, Some(9), 5), [8, 9, 8, 9, 8]);
    }

    proptest! {
        /// Against a search of the whole text.
        #[test]
        fn the_longest_match_is_found(tokens in prop::collection::vec(0u32..3, 3..40)) {
            let (tip, before) = tokens.split_last().unwrap();
            let found = index(before).longest(Context { tokens: before, tip: Some(*tip) });
            let same = |place: usize| {
                (0..place.min(LONGEST))
                    .take_while(|i| before[place - 1 - i] == tokens[tokens.len() - 1 - i])
                    .count()
            };
            let best = (1..=before.len()).map(same).max().unwrap();
            if let Some(found) = found {
                prop_assert_eq!(same(found.place), found.length);
            }
            // No chain is longer than what is looked at.
            if before.len() <= LOOKED_AT {
                let found = found.map_or(0, |found| found.length);
                prop_assert_eq!(found, if best < SHORTEST { 0 } else { best });
            }
        }
    }
}
