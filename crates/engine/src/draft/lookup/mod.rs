//! Lookup: what followed the text's last tokens where they occurred before may follow again. Code
//! that is edited, files that are quoted, the keys of JSON. It reads tokens alone and no pass is
//! run, so it costs next to nothing.

mod index;
mod trust;

use super::{Ask, Drafter, Lattice, Reads, Shape};
use crate::Error;
use crate::propose::Spec;
use crate::state::DraftState;
use compute::Backend;
use index::{Context, Index, Match};
use std::borrow::Cow;
use std::sync::Arc;
use trust::Trust;

/// A match of so many tokens is followed as long as it holds; a shorter one is searched for anew
/// with every token, because a longer one may have become possible.
const FOLLOWED: usize = 16;

/// The tokens of a sequence, and where they occurred before. Snapshots share the tokens and all of
/// the index but its newest part, which is made again where one goes on.
#[derive(Debug, Default)]
pub(crate) struct Written {
    tokens: Arc<Vec<u32>>,
    index: Index,
    /// The match at the end of what is indexed.
    at: Option<Match>,
    trust: Trust,
}

impl Clone for Written {
    fn clone(&self) -> Self {
        let (tokens, trust) = (Arc::clone(&self.tokens), self.trust.clone());
        Self { tokens, index: self.index.shared(), at: None, trust }
    }
}

impl PartialEq for Written {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl Written {
    /// Tokens that were committed.
    pub(crate) fn extend(&mut self, tokens: impl IntoIterator<Item = u32>) {
        Arc::make_mut(&mut self.tokens).extend(tokens);
    }

    /// Indexes what was not yet. Only what was `drawn` teaches how far matches are to be trusted:
    /// whoever wrote the prompt is somebody else.
    fn catch_up(&mut self, drawn: bool) {
        let tokens = Arc::clone(&self.tokens);
        for &token in &tokens[self.index.len()..] {
            if let Some(Match { place, length }) = self.at.filter(|_| drawn) {
                self.trust.add(length, self.index.token(place) == Some(token));
            }
            self.at = if drawn { self.advance(token) } else { None };
            self.index.push(token);
        }
    }

    /// The match at the end of what is indexed and one more token.
    fn advance(&self, token: u32) -> Option<Match> {
        match self.at.filter(|at| self.index.token(at.place) == Some(token)) {
            Some(Match { place, length }) if length >= FOLLOWED => {
                Some(Match { place: place + 1, length: length + 1 })
            }
            _ => self.index.longest(self.context(token)),
        }
    }

    fn context(&self, tip: u32) -> Context<'_> {
        Context { tokens: &self.tokens[..self.index.len()], tip: Some(tip) }
    }
}

/// Looks up what followed before, in the text itself and in what was written before it.
#[derive(Default)]
pub(crate) struct Lookup {
    /// Answers, each with a [`GAP`] behind it.
    library: Index,
}

/// No token: what lies on either side of it did not follow.
const GAP: u32 = u32::MAX;

impl Lookup {
    /// What may follow a text, as long as that is likely.
    fn look(&self, ask: &mut Ask<'_>) -> Lattice {
        let Ask { state: DraftState { written, .. }, tip, shape, room, least, .. } = ask;
        written.catch_up(true);
        let own = written.advance(*tip);
        let longer = |found: &Match| own.is_none_or(|own| found.length > own.length);
        let other = self.library.longest(written.context(*tip)).filter(longer);
        let count = shape.depth.min(*room);
        let (length, tokens) = match (other, own) {
            (Some(Match { place, length }), _) => {
                (length, self.library.following(place, None, count))
            }
            (None, Some(Match { place, length })) => {
                (length, written.index.following(place, Some(*tip), count))
            }
            (None, None) => return Lattice::default(),
        };
        let (mut lattice, mut path) = (Lattice::default(), 1.0);
        for (token, length) in tokens.into_iter().zip(length..) {
            let holds = written.trust.holds(length);
            path *= holds;
            if path < *least || token == GAP {
                break;
            }
            lattice.push(&vec![(token, holds.ln() as f32)]);
        }
        lattice
    }
}

impl Drafter for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn title(&self) -> &'static str {
        "lookup"
    }

    fn reads(&self) -> Reads {
        Reads::Tokens
    }

    fn shape(&self, spec: Spec) -> Option<Shape> {
        match spec {
            Spec::Lookup { budget } | Spec::Auto { budget, .. } => {
                Some(Shape { depth: budget, ranks: 1, budget })
            }
            Spec::Off | Spec::Chain { .. } | Spec::Tree { .. } | Spec::Mtp { .. } => None,
        }
    }

    fn state(&self) -> DraftState {
        DraftState::new(&[], 0)
    }

    /// Ids and their index are the host's, and nothing beside keys and values.
    fn state_bytes(&self, _: usize) -> usize {
        0
    }

    fn absorb(&mut self, _: &mut dyn Backend, states: &mut [&mut DraftState]) -> Result<(), Error> {
        states.iter_mut().for_each(|state| state.written.catch_up(false));
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Vec<Option<Lattice>>, Error> {
        Ok(asks.iter_mut().map(|ask| Some(self.look(ask))).collect())
    }

    /// There are none.
    fn logits(&self, _: usize) -> Result<Cow<'_, [f32]>, Error> {
        Err(Error::NoDrafter)
    }

    fn remember(&mut self, written: &[u32], most: usize) {
        written.iter().chain([&GAP]).for_each(|token| self.library.push(*token));
        while self.library.bytes() > most && self.library.len() > 0 {
            self.library.halve();
        }
    }
}
