//! Speculative prefill: a small model reads a long prompt and says which of its tokens matter, and
//! the target reads those alone, as a shorter prompt. What is dropped is not there for the target,
//! so this changes answers; nothing of it happens unless it is asked for.

mod relevance;
mod report;
mod scorer;
mod select;

pub use report::PrefillReport;
pub use scorer::Scorer;

use crate::{Error, Sequence};
use select::select;
use std::collections::HashMap;
use std::ops::Range;

/// Selections that are remembered.
const REMEMBERED: usize = 64;

/// Bytes of the scorer's states that are kept for turns to come.
const STATE_BYTES: usize = 1 << 30;

/// A prompt that is to be shortened.
#[derive(Clone, Copy, Debug)]
pub struct Long<'a> {
    /// All of its tokens.
    pub prompt: &'a [u32],
    /// Those that may be dropped, in order; none of the others is.
    pub droppable: &'a [Range<usize>],
    /// Where the next turn of the conversation is likely to part from this prompt: what is kept
    /// before is kept again then.
    pub boundary: usize,
    /// What is kept of that which may be dropped, 0 to 1.
    pub share: f32,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The parts that are kept, in order.
    pub kept: Vec<Range<usize>>,
    /// Tokens that an earlier turn had decided about.
    pub settled: usize,
    /// Tokens that the scorer read for it.
    pub scored: usize,
}

impl Shortened {
    /// The tokens that are kept.
    pub fn tokens(&self, prompt: &[u32]) -> Vec<u32> {
        self.kept.iter().flat_map(|part| &prompt[part.clone()]).copied().collect()
    }
}

/// Shortens prompts, and remembers what it kept of them.
pub struct Shortener {
    scorer: Scorer,
    remembered: Vec<Remembered>,
    /// Counts uses.
    clock: u64,
    /// Bytes that the states of what is remembered may take.
    state_bytes: usize,
}

/// What was decided about a prompt's beginning.
struct Remembered {
    tokens: Box<[u32]>,
    share: f32,
    kept: Vec<Range<usize>>,
    /// What the scorer had read of these tokens, as long as there is room for it.
    state: Option<Sequence>,
    used: u64,
}

impl Shortener {
    /// Goes by what `scorer` says.
    pub fn new(scorer: Scorer) -> Self {
        Self { scorer, remembered: Vec::new(), clock: 0, state_bytes: STATE_BYTES }
    }

    /// Keeps the scorer's states within so many bytes.
    pub fn set_state_bytes(&mut self, bytes: usize) {
        self.state_bytes = bytes;
    }

    /// Decides what is kept of a prompt. Nothing where `goes_on` said no on the way.
    pub fn shorten(
        &mut self,
        long: Long<'_>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Shortened>, Error> {
        match self.decide(long, &mut goes_on) {
            // States of other prompts had better make way.
            Err(error) if error.is_out_of_memory() => {
                self.remembered.iter_mut().for_each(|known| known.state = None);
                self.decide(long, &mut goes_on)
            }
            decided => decided,
        }
    }

    fn decide(
        &mut self,
        long: Long<'_>,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Shortened>, Error> {
        let Long { prompt, droppable, share, .. } = long;
        self.clock += 1;
        let (settled, mut kept) = self.settled(prompt, share);
        let tail = self.scorer.tail_of(prompt);
        if tail <= settled || droppable.last().is_none_or(|last| last.end <= settled) {
            kept.push(settled..prompt.len());
            self.remember(long, &kept, None);
            return Ok(Some(Shortened { kept: joined(kept), settled, scored: 0 }));
        }
        let mut sequence = self.read_before(&prompt[..tail]);
        let known = sequence.committed();
        let boundary = long.boundary.min(tail).max(known);
        if !self.scorer.read(&mut sequence, prompt, boundary, goes_on)? {
            return Ok(None);
        }
        let state = sequence.clone();
        if !self.scorer.read(&mut sequence, prompt, tail, goes_on)? {
            return Ok(None);
        }
        let scores = self.scorer.relevance(&sequence, prompt, settled)?;
        kept.extend(select(settled..prompt.len(), &scores, droppable, share));
        let kept = joined(kept);
        self.remember(long, &kept, Some(state));
        Ok(Some(Shortened { kept, settled, scored: prompt.len() - known }))
    }

    /// How much of a prompt was decided about before, and what is kept of that.
    fn settled(&mut self, prompt: &[u32], share: f32) -> (usize, Vec<Range<usize>>) {
        let known = self
            .remembered
            .iter_mut()
            .filter(|known| known.share == share && prompt.starts_with(&known.tokens));
        let Some(known) = known.max_by_key(|known| known.tokens.len()) else {
            return (0, Vec::new());
        };
        known.used = self.clock;
        (known.tokens.len(), known.kept.clone())
    }

    /// The scorer's state after as much as it knows of these tokens.
    fn read_before(&self, tokens: &[u32]) -> Sequence {
        let state = |known: &Remembered| {
            let state = known.state.as_ref()?;
            let read = known.tokens.get(..state.committed())?;
            tokens.starts_with(read).then(|| state.clone())
        };
        let states = self.remembered.iter().filter_map(state);
        let longest = states.max_by_key(Sequence::committed);
        longest.unwrap_or_else(|| self.scorer.sequence())
    }

    /// Remembers what is kept before the boundary.
    fn remember(&mut self, long: Long<'_>, kept: &[Range<usize>], state: Option<Sequence>) {
        let Long { prompt, boundary, share, .. } = long;
        let (tokens, used) = (&prompt[..boundary], self.clock);
        let same = |known: &Remembered| known.share == share && *known.tokens == *tokens;
        if boundary == 0 || self.remembered.iter().any(same) {
            return;
        }
        let before = kept.iter().map(|part| part.start..part.end.min(boundary));
        let kept = before.filter(|part| !part.is_empty()).collect();
        self.remembered.push(Remembered { tokens: tokens.into(), share, kept, state, used });
        if self.remembered.len() > REMEMBERED
            && let Some(oldest) =
                (0..self.remembered.len()).min_by_key(|i| self.remembered[*i].used)
        {
            self.remembered.swap_remove(oldest);
        }
        self.let_states_go();
    }

    /// Keeps the states that were used most recently, as far as each has room beside those before.
    fn let_states_go(&mut self) {
        let mut newest: Vec<&mut Remembered> =
            self.remembered.iter_mut().filter(|known| known.state.is_some()).collect();
        newest.sort_by_key(|known| std::cmp::Reverse(known.used));
        let mut kept = HashMap::new();
        for known in newest {
            let (mut with, state) = (kept.clone(), known.state.iter().flat_map(Sequence::blocks));
            with.extend(state.map(|block| (block.id, block.bytes)));
            match with.values().sum::<usize>() <= self.state_bytes {
                true => kept = with,
                false => known.state = None,
            }
        }
    }
}

/// The same with parts that follow each other made one.
fn joined(parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}
