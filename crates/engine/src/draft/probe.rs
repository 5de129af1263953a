//! How well a drafter guesses tokens that are known: its probabilities of what the target itself
//! went on with, under any configuration that its weights fit. Nothing is judged and nothing is
//! emitted.

use super::{Drafter, dflash::Dflash};
use crate::model::{Borrowed, Model, Options, WeightSource, chain};
use crate::sampling::greedy;
use crate::state::DraftState;
use crate::{Error, Row};
use checkpoint::{DrafterConfig, TargetConfig};
use compute::{Backend, KvType, rank};
use std::ops::Range;

/// A target whose layers are listened to, for drafters to be tried on.
pub struct Probe {
    backend: Box<dyn Backend>,
    model: Model,
}

/// A conversation that the target has read and answered.
pub struct Reading {
    /// Prompts and the target's own tokens in turn.
    pub tokens: Vec<u32>,
    /// Which of them are the target's own.
    pub answers: Vec<Range<usize>>,
    /// What the layers left, of all tokens but the last: [tokens, layers, hidden].
    features: Vec<f32>,
}

/// What a drafter keeps of a reading at each of some tips. It follows from taps, windows and
/// angles alone.
pub struct Contexts(Vec<(usize, DraftState)>);

/// What a drafter thinks of one token it was to guess.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// Of the right token.
    pub log_probability: f32,
    /// Whether that is the token it would have proposed.
    pub right: bool,
}

impl Probe {
    /// Loads a target, without its next-token block, and listens to `layers`.
    pub fn load(
        mut backend: Box<dyn Backend>,
        target: (&TargetConfig, &dyn WeightSource),
        layers: Vec<usize>,
        kv: KvType,
    ) -> Result<Self, Error> {
        let config = TargetConfig { mtp: None, ..target.0.clone() };
        let options = Options { kv, taps: layers, ..Options::new(&*backend) };
        let model = Model::load(&mut *backend, &config, target.1, options)?;
        Ok(Self { backend, model })
    }

    /// Loads a drafter.
    pub fn drafter(
        &mut self,
        config: &DrafterConfig,
        source: &dyn WeightSource,
    ) -> Result<Dflash, Error> {
        Dflash::load(&mut *self.backend, config, source, Borrowed::of(&self.model))
    }

    /// The same drafter under another configuration of the same dimensions.
    pub fn variant(&self, drafter: &Dflash, config: &DrafterConfig) -> Result<Dflash, Error> {
        drafter.variant(&*self.backend, config)
    }

    /// Reads prompts, and after each goes on greedily for `count` tokens or up to one of `ends`.
    pub fn read(
        &mut self,
        prompts: &[Vec<u32>],
        count: usize,
        ends: &[u32],
    ) -> Result<Reading, Error> {
        let mut sequence = self.model.sequence();
        let (mut tokens, mut answers, mut features) = (Vec::new(), Vec::new(), Vec::new());
        for prompt in prompts {
            if prompt.is_empty() {
                return Err(Error::NothingToRead);
            }
            tokens.extend(prompt);
            let start = tokens.len();
            while tokens.len() < start + count {
                for chunk in tokens[sequence.committed()..].chunks(self.model.options().max_rows) {
                    let rows: Vec<Row> = chain(chunk, 0).collect();
                    let path: Vec<u32> = (0..chunk.len() as u32).collect();
                    let last = &path[path.len() - 1..];
                    self.model.forward_prompt(&mut *self.backend, &rows, last, &[&sequence])?;
                    for row in 0..chunk.len() {
                        features.extend_from_slice(&self.model.taps(row)?);
                    }
                    self.model.commit(&mut *self.backend, 0, &mut sequence, &path)?;
                }
                let next = greedy(&self.model.logits(&*self.backend, 0)?)?;
                tokens.push(next);
                if ends.contains(&next) {
                    break;
                }
            }
            answers.push(start..tokens.len());
        }
        Ok(Reading { tokens, answers, features })
    }

    /// Takes a reading in, up to each of `tips` (places of tokens in it, in ascending order).
    pub fn contexts(
        &mut self,
        drafter: &mut Dflash,
        reading: &Reading,
        tips: &[usize],
    ) -> Result<Contexts, Error> {
        let listened = &self.model.options().taps;
        let column =
            |tap: &usize| listened.iter().position(|l| l == tap).expect("a layer listened to");
        let columns: Vec<usize> = drafter.config().taps.iter().map(column).collect();
        let (hidden, width) =
            (self.model.config().hidden, self.model.config().hidden * listened.len());
        let mut context = drafter.state();
        let mut read = 0;
        let mut contexts = Vec::with_capacity(tips.len());
        for &tip in tips {
            assert!(read <= tip, "tips ascend");
            let rows = reading.features[read * width..tip * width].chunks_exact(width);
            let tapped: Vec<f32> = rows
                .flat_map(|row| columns.iter().flat_map(|c| &row[c * hidden..][..hidden]))
                .copied()
                .collect();
            context.pending.push_numbers(&mut *self.backend, &tapped)?;
            read = tip;
            drafter.absorb(&mut *self.backend, &mut [&mut context])?;
            contexts.push((tip, context.clone()));
        }
        Ok(Contexts(contexts))
    }

    /// For each tip, what the drafter thinks of the tokens after it, as many as a block has
    /// masks and the answer goes on. Nothing where its logits are not numbers.
    pub fn guesses(
        &mut self,
        drafter: &mut Dflash,
        reading: &Reading,
        contexts: &Contexts,
    ) -> Result<Option<Vec<Vec<Guess>>>, Error> {
        let block = drafter.config().block;
        let mut found = Vec::with_capacity(contexts.0.len());
        for (place, context) in &contexts.0 {
            let (tip, ranks) = (reading.tokens[*place], drafter.vocab());
            // Of a selector all that it says is asked for; of others their logits are.
            let ranks = if drafter.selects() { ranks } else { 1 };
            let lattices = drafter.fill_in(&mut *self.backend, &[(context, tip)], block, ranks)?;
            let Some(lattice) = lattices.into_iter().next().flatten() else { return Ok(None) };
            let end = reading
                .answers
                .iter()
                .find(|a| a.contains(place))
                .map_or(reading.tokens.len(), |a| a.end);
            let right = reading.tokens[place + 1..end].iter().take(drafter.positions(block));
            let mut guesses = Vec::with_capacity(block);
            // Which candidate of the position before was right; nothing where none was.
            let mut before = Some(0);
            for (i, &token) in right.enumerate() {
                let logits = drafter.logits(i)?;
                let Some(ranked) = rank(&logits[..drafter.vocab()], 1) else { return Ok(None) };
                let (mut best, log) = ranked[0];
                let below = logits[best as usize] - logits[token as usize];
                let mut log_probability = log - below;
                if let Some(before) = before.filter(|_| drafter.selects()) {
                    let mut after = lattice.after(i + 1, before).peekable();
                    best = after.peek().map_or(best, |(token, _)| *token);
                    let told = after.find(|(t, _)| *t == token);
                    log_probability = told.map_or(log_probability, |(_, log)| log);
                }
                before = lattice.find(i + 1, token);
                guesses.push(Guess { log_probability, right: best == token });
            }
            found.push(guesses);
        }
        Ok(Some(found))
    }
}
