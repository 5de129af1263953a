//! The DFlash drafter: a few attention layers that read the target's hidden states as keys and
//! values and fill in a block of masked positions in one pass. It borrows the target's embedding
//! and LM head.
//!
//! Two plans: `context` turns features of committed tokens into keys and values of every layer,
//! once; `block` runs the newest token and the masks over them. Only `context` rows are ever kept.
//!
//! DFlash 2 puts convolutions over the block's rows around every sub-layer, and has a selector: the
//! best tokens of each position are scored by the token before them. DSpark has a Markov head in
//! its place, which is a selector without gates, and tells how sure it is. All of them are the same
//! plan with or without these parts.

mod choices;
#[cfg(test)]
mod golden_tests;
mod parts;
mod plans;
#[cfg(test)]
mod specified_tests;
#[cfg(test)]
mod tests;

use super::{Ask, Drafter, Lattice, Reads, Shape, ranks_needed};
use crate::model::{Borrowed, Placement, WeightSource, append};
use crate::propose::Spec;
use crate::state::{DraftState, commit_pages};
use crate::{Error, Row};
use checkpoint::DrafterConfig;
use choices::Choices;
use compute::{
    Arena, Backend, BlockConv, Buf, Candidates, CommitPath, KvLayout, PAGE_TOKENS, Pass, Ranked,
};
use parts::Parts;
use plans::{Block, Caches};
use std::borrow::Cow;

/// Rows of features taken in by one pass.
const CONTEXT_ROWS: usize = 256;

/// Candidates of a position at most: as many as backends rank.
const MAX_CANDIDATES: usize = 64;

/// A drafter on a backend.
pub struct Dflash {
    config: DrafterConfig,
    parts: Parts,
    /// What is the target's, and the list of all weights.
    borrowed: Borrowed,
    caches: Caches,
    context: Arena,
    /// [rows, taps * hidden].
    features: Buf,
    block: Arena,
    /// [chosen, vocab].
    logits: Buf,
    candidates: Option<Candidates>,
    confidence: Option<Buf>,
    /// Tokens from here on are padding, and never proposed.
    vocab: usize,
}

impl Dflash {
    /// Names the weights, takes them in and records the plans. Features are those of the layers
    /// that `config.taps` names.
    pub(crate) fn load(
        backend: &mut dyn Backend,
        config: &DrafterConfig,
        source: &dyn WeightSource,
        mut borrowed: Borrowed,
    ) -> Result<Self, Error> {
        assert_eq!(borrowed.hidden, config.hidden, "the target is of another width");
        check(config, borrowed.vocab)?;
        let parts = Parts::new(&mut borrowed.weights, source, config)?;
        borrowed.weights.place(Placement::ON_DEVICE, source, backend)?;
        Self::record(backend, config, parts, borrowed)
    }

    /// The same weights under another configuration: other windows, angles, taps or mask, of the
    /// same dimensions, or without a part that only adds.
    pub(crate) fn variant(
        &self,
        backend: &dyn Backend,
        config: &DrafterConfig,
    ) -> Result<Self, Error> {
        let dimensions = |c: &DrafterConfig| {
            (c.hidden, c.layers.len(), c.q_heads, c.kv_heads, c.head_dim, c.ffn, c.taps.len())
        };
        assert_eq!(
            dimensions(config),
            dimensions(&self.config),
            "other dimensions need other weights"
        );
        Self::record(backend, config, self.parts.clone(), self.borrowed.clone())
    }

    fn record(
        backend: &dyn Backend,
        config: &DrafterConfig,
        parts: Parts,
        borrowed: Borrowed,
    ) -> Result<Self, Error> {
        let (caches, places) = plans::deal(config);
        let (context, features) = plans::record_context(config, &parts, &caches, &places);
        let known = parts.follow.map_or(usize::MAX, |follow| follow.vocab);
        let real = config.extras.real_vocab.unwrap_or(usize::MAX);
        let vocab = borrowed.vocab.min(known).min(real);
        let Block { plan, logits, candidates, confidence } =
            plans::record_block(config, &parts, &caches, &places, &borrowed, vocab);
        let links = borrowed.weights.links();
        let context = backend.arena(context.linked(links).into(), CONTEXT_ROWS, 0)?;
        // Blocks of several texts share a pass.
        let rows = backend.decode_rows();
        if config.block > backend.text_rows() {
            let (what, expected) = ("a drafter's block", "no more rows than a text has in a pass");
            return Err(Error::Unsupported { what, found: config.block, expected });
        }
        let block = backend.arena(plan.linked(links).into(), rows, rows)?;
        let config = config.clone();
        Ok(Self {
            config,
            parts,
            borrowed,
            caches,
            context,
            features,
            block,
            logits,
            candidates,
            confidence,
            vocab,
        })
    }

    /// The drafter's shape.
    pub fn config(&self) -> &DrafterConfig {
        &self.config
    }

    /// Tokens that can be proposed: those with lower ids.
    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether what it proposes depends on the token before.
    pub(crate) fn selects(&self) -> bool {
        self.candidates.is_some()
    }

    /// Positions that a block of so many rows proposes for.
    pub(crate) fn positions(&self, rows: usize) -> usize {
        rows - usize::from(!self.config.extras.sample_from_anchor)
    }

    /// A block of `rows` rows (newest token and masks) of each text: for each position that it
    /// proposes for its `ranks` best candidates. Nothing for a text where a logit is not a number.
    pub(crate) fn fill_in(
        &mut self,
        backend: &mut dyn Backend,
        texts: &[(&DraftState, u32)],
        rows: usize,
        ranks: usize,
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let mut found = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.block.capacity() / rows) {
            let mut block: Vec<Row> = Vec::new();
            for ((_, tip), sequence) in texts.iter().zip(0..) {
                let first = append(&mut block, chain_of(self.config.mask_token, rows, sequence));
                block[first as usize].token = *tip;
            }
            let skipped = (rows - self.positions(rows)) as u32;
            let chosen: Vec<u32> =
                (0..block.len() as u32).filter(|row| row % rows as u32 >= skipped).collect();
            let views = texts.iter().map(|(state, _)| state.view()).collect();
            backend.run(&mut self.block, &Pass::new(&block, &chosen, views))?;
            let tips = texts.iter().map(|(_, tip)| *tip);
            found.extend(match self.candidates {
                Some(from) => self.select(backend, from, tips, chosen.len(), ranks)?,
                None => self.rank(backend, tips.len(), chosen.len(), ranks)?,
            });
        }
        Ok(found)
    }

    /// The best tokens of each position, whatever comes before them.
    fn rank(
        &self,
        backend: &mut dyn Backend,
        texts: usize,
        rows: usize,
        ranks: usize,
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let ranks = ranks.min(self.vocab);
        let ranked = backend.rank(&self.block, self.logits, rows, ranks, self.vocab)?;
        let of_text = |positions: &[Option<Ranked>]| {
            let mut lattice = Lattice::default();
            positions.iter().try_for_each(|ranked| ranked.as_ref().map(|r| lattice.push(r)))?;
            Some(lattice)
        };
        Ok(ranked.chunks(rows / texts.max(1)).map(of_text).collect())
    }

    /// The best tokens of each position, by what comes before them.
    fn select(
        &self,
        backend: &mut dyn Backend,
        Candidates { buf, count }: Candidates,
        tips: impl ExactSizeIterator<Item = u32>,
        rows: usize,
        ranks: usize,
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let numbers = backend.first_rows(&self.block, buf, rows)?;
        let sureness = match self.confidence {
            Some(buf) => backend.first_rows(&self.block, buf, rows)?,
            None => Cow::Borrowed(&[] as &[f32]),
        };
        let (positions, width) = (rows / tips.len().max(1), count * (2 + count));
        let mut lattices = Vec::with_capacity(tips.len());
        for (text, tip) in tips.enumerate() {
            let confidence = |position: usize, before: u32| {
                let of_token = self.parts.confidence.as_ref().map_or(0.0, |c| c.of_token(before));
                1.0 / (1.0 + (-sureness[text * positions + position] - of_token).exp())
            };
            let confidence =
                (!sureness.is_empty()).then_some(&confidence as &dyn Fn(usize, u32) -> f32);
            let rows = &numbers[text * positions * width..][..positions * width];
            lattices.push(Choices { rows, count, confidence, tip }.lattice(ranks));
        }
        Ok(lattices)
    }
}

/// Refuses sizes that the kernels do not have.
fn check(config: &DrafterConfig, vocab: usize) -> Result<(), Error> {
    const THIRTY_TWO: &str = "a multiple of 32";
    let extras = &config.extras;
    let multiple = |what, found: usize, of: usize, expected| match found.is_multiple_of(of) {
        true => Ok(()),
        false => Err(Error::Unsupported { what, found, expected }),
    };
    multiple("a drafter's width", config.hidden, 32, THIRTY_TWO)?;
    multiple("a drafter's head", config.head_dim, 32, THIRTY_TWO)?;
    multiple("a drafter's FFN", config.ffn, 32, THIRTY_TWO)?;
    if let Some(conv) = extras.conv {
        multiple("a group of a drafter's convolution", conv.group, 16, "a multiple of 16")?;
        if conv.kernel > BlockConv::MAX_TAPS {
            let what = "a drafter's convolution";
            return Err(Error::Unsupported {
                what,
                found: conv.kernel,
                expected: "at most 4 taps",
            });
        }
    }
    let tables =
        [extras.selector.map(|s| (s.rank, s.vocab)), extras.markov.map(|m| (m.rank, m.vocab))];
    for (rank, rows) in tables.into_iter().flatten() {
        multiple("the rank of a drafter's codebooks", rank, 32, THIRTY_TWO)?;
        if rows < vocab {
            let (what, expected) = ("a drafter's codebook", "as long as the target's vocabulary");
            return Err(Error::Unsupported { what, found: rows, expected });
        }
    }
    match extras.selector {
        Some(selector) if selector.top_k > MAX_CANDIDATES => Err(Error::Unsupported {
            what: "a drafter's number of candidates",
            found: selector.top_k,
            expected: "at most 64",
        }),
        _ => Ok(()),
    }
}

impl Drafter for Dflash {
    fn name(&self) -> &'static str {
        "dflash"
    }

    fn title(&self) -> &'static str {
        "the drafter"
    }

    fn reads(&self) -> Reads {
        Reads::Taps
    }

    fn shape(&self, spec: Spec) -> Option<Shape> {
        let (block, budget, is_tree) = match spec {
            Spec::Chain { block, budget } => (block, budget, false),
            Spec::Tree { block, budget } => (block, budget, true),
            // Twice the block's rows never paid for one text, on any machine that was measured.
            Spec::Auto { block, budget } => (block, budget.min(2 * block), true),
            Spec::Off | Spec::Mtp { .. } | Spec::Lookup { .. } => return None,
        };
        let depth = self.positions(block);
        let ranks = if is_tree { ranks_needed(depth, budget) } else { 1 };
        Some(Shape { depth, ranks, budget })
    }

    fn block(&self) -> Option<usize> {
        Some(self.config.trained_block.unwrap_or(self.config.block))
    }

    fn state(&self) -> DraftState {
        DraftState::new(&self.caches, self.config.taps.len() * self.config.hidden)
    }

    fn state_bytes(&self, tokens: usize) -> usize {
        let bytes = |(layout, window): &(KvLayout, Option<usize>)| {
            let kept = window.map_or(tokens, |window| tokens.min(window + 2 * PAGE_TOKENS));
            kept.div_ceil(PAGE_TOKENS) * layout.page_bytes()
        };
        self.caches.iter().map(bytes).sum()
    }

    /// Takes pending features in, as keys and values of every layer; those of several texts
    /// together.
    fn absorb(
        &mut self,
        backend: &mut dyn Backend,
        states: &mut [&mut DraftState],
    ) -> Result<(), Error> {
        loop {
            let (mut rows, mut parts) = (Vec::new(), Vec::new());
            for state in states.iter_mut() {
                let count = state.pending.len().min(CONTEXT_ROWS - rows.len());
                if count == 0 {
                    continue;
                }
                let first = append(&mut rows, chain_of(0, count, parts.len() as u32));
                state.pending.load(
                    backend,
                    &mut self.context,
                    (self.features, first as usize),
                    0,
                    count,
                )?;
                parts.push((&mut **state, first..first + count as u32));
            }
            if parts.is_empty() {
                return Ok(());
            }
            let views = parts.iter().map(|(state, _)| state.view()).collect();
            backend.run(&mut self.context, &Pass::new(&rows, &[], views))?;
            let paths: Vec<Vec<u32>> =
                parts.iter().map(|(_, rows)| rows.clone().collect()).collect();
            for cache in 0..self.caches.len() {
                let texts = parts.iter_mut().zip(&paths).map(|((state, _), rows)| {
                    let path = CommitPath { rows, position: state.committed };
                    (&mut state.caches[cache].0, path)
                });
                let done = commit_pages(backend, &self.context, cache, texts.collect());
                done.into_iter().collect::<Result<(), _>>()?;
            }
            for ((state, _), path) in parts.into_iter().zip(&paths) {
                state.take_in(path.len());
            }
        }
    }

    fn propose(
        &mut self,
        backend: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Vec<Option<Lattice>>, Error> {
        let mut states: Vec<&mut DraftState> = asks.iter_mut().map(|ask| &mut *ask.state).collect();
        self.absorb(backend, &mut states)?;
        let mut lattices = vec![None; asks.len()];
        let mut shapes: Vec<Shape> = asks.iter().map(|ask| ask.shape).collect();
        shapes.sort_by_key(|shape| (shape.depth, shape.ranks));
        shapes.dedup_by_key(|shape| (shape.depth, shape.ranks));
        for Shape { depth, ranks, .. } in shapes {
            let like = |ask: &Ask<'_>| (ask.shape.depth, ask.shape.ranks) == (depth, ranks);
            let (places, texts): (Vec<usize>, Vec<_>) = asks
                .iter()
                .enumerate()
                .filter(|(_, ask)| like(ask))
                .map(|(i, ask)| (i, (&*ask.state, ask.tip)))
                .unzip();
            let rows = depth + 1 - self.positions(1);
            let found = self.fill_in(backend, &texts, rows, ranks)?;
            places.into_iter().zip(found).for_each(|(i, found)| lattices[i] = found);
        }
        Ok(lattices)
    }

    fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(self.block.row(self.logits, i)?)
    }
}

/// Rows of the same token, each the parent of the next.
fn chain_of(token: u32, count: usize, sequence: u32) -> impl Iterator<Item = Row> {
    (0..count as u32).map(move |i| Row { token, sequence, parent: i.checked_sub(1) })
}
