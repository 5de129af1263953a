//! Where in a text a run of tokens occurred before. Places after the same few tokens form a chain,
//! newest first, as in dictionary compressors: a token more costs two table entries, a search a
//! few dozen comparisons. A text is indexed in parts, and those that are full are shared by whoever
//! goes on from it, so that a turn of a long conversation indexes what is new.

use std::sync::Arc;

/// Lengths of the runs that are indexed, the longer first. Where a text repeats itself much, the
/// longer finds the few places among the many.
const RUNS: [usize; 2] = [8, SHORTEST];
/// A match of fewer tokens says nothing.
const SHORTEST: usize = 3;
/// Places of a chain that are looked at.
const LOOKED_AT: usize = 16;
/// Tokens that are compared backwards: a match is not told from a longer one.
const LONGEST: usize = 64;
/// Tokens of a part. A search looks into every part, two entries each.
const PART: usize = 4096;
/// Places by hash of the run before them.
const SLOTS: usize = 2 * PART;

/// Tokens, and where each short run of them occurred before.
#[derive(Debug, Default)]
pub(crate) struct Index {
    full: Vec<Arc<Part>>,
    last: Part,
}

/// Tokens, and the places behind them, counted from the part's beginning. Place 0 is none: what
/// comes before it belongs to the part before.
#[derive(Debug, Default)]
struct Part {
    tokens: Vec<u32>,
    chains: [Chain; RUNS.len()],
}

/// Places after the same run of tokens.
#[derive(Debug, Default)]
struct Chain {
    /// The newest place, by hash of the run. Hashes may collide: whoever follows a chain compares.
    newest: Vec<u16>,
    /// The place before it, by place.
    older: Vec<u16>,
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
        PART * self.full.len() + self.last.tokens.len()
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.parts().map(|(_, part)| part);
        let chain = |chain: &Chain| 2 * (chain.newest.len() + chain.older.len());
        parts.map(|p| 4 * p.tokens.len() + p.chains.iter().map(chain).sum::<usize>()).sum()
    }

    /// As much of it as others can share.
    pub(crate) fn shared(&self) -> Self {
        Self { full: self.full.clone(), last: Part::default() }
    }

    /// The token at a place, where there is one.
    pub(crate) fn token(&self, place: usize) -> Option<u32> {
        let part = (place / PART).min(self.full.len());
        self.part(part).tokens.get(place - PART * part).copied()
    }

    /// The tokens before a place, from the newest on.
    fn before(&self, place: usize) -> impl Iterator<Item = u32> {
        (0..place).rev().map_while(|place| self.token(place))
    }

    /// Another token at the end.
    pub(crate) fn push(&mut self, token: u32) {
        self.last.tokens.push(token);
        let len = self.len();
        let hashes = RUNS.map(|run| hash(run, self.before(len)));
        self.last.chains.iter_mut().zip(hashes).for_each(|(chain, hash)| chain.add(hash));
        if self.last.tokens.len() == PART {
            self.full.push(Arc::new(std::mem::take(&mut self.last)));
        }
    }

    /// A part; the last one is behind all that are full.
    fn part(&self, i: usize) -> &Part {
        self.full.get(i).map_or(&self.last, |part| part)
    }

    /// Parts with the places where they begin, the newest first.
    fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        (0..=self.full.len()).rev().map(|i| (PART * i, self.part(i)))
    }

    /// Places after runs of this hash, the newest first.
    fn places(&self, which: usize, hash: u64) -> impl Iterator<Item = usize> {
        self.parts().flat_map(move |(start, part)| {
            let chain = &part.chains[which];
            let newest = chain.newest.get(slot(hash)).copied();
            let older = move |place: &u16| Some(chain.older[usize::from(*place)]);
            let places = std::iter::successors(newest, older).take_while(|place| *place > 0);
            places.map(move |place| start + usize::from(place))
        })
    }

    /// The longest match of the end of `context`, of equals the newest, unless there is none of
    /// [`SHORTEST`] tokens. The context is what is indexed and another token, or another text.
    pub(crate) fn longest(&self, context: Context<'_>) -> Option<Match> {
        for (which, run) in RUNS.into_iter().enumerate() {
            let Some(hash) = context.hash(run) else { continue };
            let mut best: Option<Match> = None;
            for place in self.places(which, hash).take(LOOKED_AT) {
                let length = self.same(place, context);
                if length >= run && best.is_none_or(|best| length > best.length) {
                    best = Some(Match { place, length });
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// How many tokens before a place are those that `context` ends with.
    fn same(&self, place: usize, context: Context<'_>) -> usize {
        let before = self.before(place).take(LONGEST);
        before.zip(context.backwards()).take_while(|(a, b)| a == b).count()
    }

    /// What followed a match, `count` tokens at most. Behind the newest token, which is `tip` where
    /// the text is this one, it goes on with itself: a text that repeats a phrase goes on doing so.
    pub(crate) fn following(&self, place: usize, tip: Option<u32>, count: usize) -> Vec<u32> {
        let mut found: Vec<u32> =
            (place..place + count).map_while(|place| self.token(place)).collect();
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
        match self.full.len() {
            0 => self.last = Part::default(),
            full => drop(self.full.drain(..full.div_ceil(2))),
        }
    }
}

impl Chain {
    /// The next place, behind a run of this hash, where there are so many tokens.
    fn add(&mut self, hash: Option<u64>) {
        if self.older.is_empty() {
            (self.newest, self.older) = (vec![0; SLOTS], vec![0]);
        }
        let place = self.older.len() as u16;
        let older = hash.map(|hash| std::mem::replace(&mut self.newest[slot(hash)], place));
        self.older.push(older.unwrap_or(0));
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
        hash(run, self.backwards())
    }
}

/// Of the first `run` of some tokens, where there are so many.
fn hash(run: usize, mut tokens: impl Iterator<Item = u32>) -> Option<u64> {
    (0..run).try_fold(run as u64, |hash, _| {
        let token = u64::from(tokens.next()?);
        Some((hash ^ token).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
    })
}

/// The upper bits of a product are the mixed ones.
fn slot(hash: u64) -> usize {
    (hash >> 32) as usize % SLOTS
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

    #[test]
    fn what_is_shared_goes_on_as_the_whole_does() {
        let tokens: Vec<u32> = (0..3 * PART as u32).map(|i| i.wrapping_mul(i) % 251).collect();
        let whole = index(&tokens);
        let (before, half) = tokens.split_at(PART + 100);
        let mut shared = index(before).shared();
        assert_eq!((shared.len(), shared.bytes()), (PART, index(&tokens[..PART]).bytes()));
        before[PART..].iter().chain(half).for_each(|token| shared.push(*token));
        assert_eq!((shared.len(), shared.bytes()), (whole.len(), whole.bytes()));
        for end in [5, PART - 1, PART, PART + 1, 2 * PART + 7, 3 * PART] {
            let context = Context { tokens: &tokens[..end], tip: None };
            assert!(whole.longest(context).is_some(), "{end}");
            assert_eq!(shared.longest(context), whole.longest(context), "{end}");
            assert_eq!(shared.following(end, Some(7), 9), whole.following(end, Some(7), 9));
        }
    }

    #[test]
    fn matches_reach_across_parts_and_the_newer_half_stays() {
        let mut tokens: Vec<u32> = (0..2 * PART as u32 + 50).collect();
        // What stands around the first boundary comes again.
        tokens.extend(PART as u32 - 20..PART as u32 + 1);
        let mut index = index(&tokens);
        let context = Context { tokens: &tokens, tip: Some(PART as u32 + 1) };
        let found = Match { place: PART + 2, length: 22 };
        assert_eq!(index.longest(context), Some(found));
        assert_eq!(index.following(found.place, None, 2), [PART as u32 + 2, PART as u32 + 3]);
        index.halve();
        assert_eq!(index.len(), tokens.len() - PART);
        // Of the first part there is no place, and no token to compare with.
        assert_eq!(index.longest(context), None);
        index.halve();
        index.halve();
        assert_eq!((index.len(), index.bytes()), (0, 0));
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
