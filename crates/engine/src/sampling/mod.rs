//! The draw of a token from the target's logits: a function of the logits, the tokens before, the
//! settings and (seed, choice, position), and of nothing else, so that speculation cannot change
//! the text.

mod constraint;
mod likelihood;
mod philox;

use crate::Error;
use compute::Draw;
pub use constraint::Constraint;
pub use likelihood::Likelihood;
pub use philox::{philox, uniform};
use std::collections::HashMap;

/// Settings of a draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Only the so many most probable tokens; 0 for all.
    pub top_k: usize,
    /// Only the most probable tokens that make up this much; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this probable relative to the best; 0 for all.
    pub min_p: f32,
    /// Divides positive logits of tokens seen, multiplies negative ones; 1 for none. Counts prompt
    /// and answer.
    pub repetition_penalty: f32,
    /// Taken from the logits of tokens in the answer.
    pub presence_penalty: f32,
    /// Taken from them once for each time they occur.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Which of several answers this is.
    pub choice: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

impl Sampling {
    /// These settings, if a distribution follows from them.
    pub fn checked(self) -> Result<Self, Error> {
        let checks = [
            ("temperature", self.temperature, self.temperature >= 0.0),
            ("top-p", self.top_p, (0.0..=1.0).contains(&self.top_p)),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p)),
            ("repetition penalty", self.repetition_penalty, self.repetition_penalty > 0.0),
            ("presence penalty", self.presence_penalty, true),
            ("frequency penalty", self.frequency_penalty, true),
        ];
        match checks.into_iter().find(|(_, value, fits)| !fits || !value.is_finite()) {
            Some((what, value, _)) => Err(Error::Sampling { what, value }),
            None => Ok(self),
        }
    }

    /// The draw at `position`, where it depends on nothing but the logits.
    pub(crate) fn plain(&self, position: usize) -> Option<Draw> {
        let Self { temperature, top_k, top_p, min_p, seed, choice, .. } = *self;
        let is_plain = self.repetition_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0
            && self.logit_bias.is_empty();
        is_plain.then_some(Draw { temperature, top_k, top_p, min_p, seed, choice, position })
    }
}

/// The tokens before a draw, counted. A drafted path is followed by `push` and left by `pop`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    prompt: HashMap<u32, u32>,
    answer: HashMap<u32, u32>,
}

impl History {
    /// A history that begins with a prompt.
    pub fn new(prompt: &[u32]) -> Self {
        let mut history = Self::default();
        prompt.iter().for_each(|t| *history.prompt.entry(*t).or_default() += 1);
        history
    }

    /// A token of the answer.
    pub fn push(&mut self, token: u32) {
        *self.answer.entry(token).or_default() += 1;
    }

    /// Takes back a token that was pushed.
    pub fn pop(&mut self, token: u32) {
        if let Some(count) = self.answer.get_mut(&token) {
            *count -= 1;
            if *count == 0 {
                self.answer.remove(&token);
            }
        }
    }
}

/// Draws tokens; keeps memory from draw to draw, but nothing that a draw depends on.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    order: Vec<u32>,
}

/// The most probable token; of equals the lowest.
pub fn greedy(logits: &[f32]) -> Result<u32, Error> {
    finite(logits, 0)?;
    Ok(highest(logits))
}

/// Numbers that are compared side by side.
const LANES: usize = 16;

fn highest(logits: &[f32]) -> u32 {
    let mut best = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (best, logit) in best.iter_mut().zip(chunk) {
            *best = if *logit > *best { *logit } else { *best };
        }
    }
    let best = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == best).unwrap_or(0) as u32
}

pub(crate) fn finite(logits: &[f32], position: usize) -> Result<(), Error> {
    // All of a chunk are looked at, which takes a fraction of the time that stopping at each would.
    let sound = |chunk: &[f32]| chunk.iter().fold(true, |sound, logit| sound & logit.is_finite());
    if logits.chunks(16 * LANES).all(sound) {
        return Ok(());
    }
    let index = logits.iter().position(|l| !l.is_finite()).unwrap_or(0);
    Err(Error::NotFinite { index, position, value: logits[index] })
}

impl Sampler {
    /// The logits of the last draw after penalties, bias and constraint.
    pub fn adjusted(&self) -> &[f32] {
        &self.logits
    }

    /// Draws the token at `position` (the number of tokens before it).
    pub fn draw(
        &mut self,
        sampling: &Sampling,
        history: &History,
        logits: &[f32],
        position: usize,
    ) -> Result<u32, Error> {
        self.draw_within(None, sampling, history, logits, position)
    }

    /// Draws a token that `constraint` allows. Top-k, top-p and min-p choose among those it allows.
    pub fn draw_within(
        &mut self,
        constraint: Option<&mut (dyn Constraint + 'static)>,
        sampling: &Sampling,
        history: &History,
        logits: &[f32],
        position: usize,
    ) -> Result<u32, Error> {
        finite(logits, position)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        adjust(sampling, history, &mut self.logits);
        if let Some(constraint) = constraint {
            let refused = |reason| Error::Constraint { position, reason };
            constraint.mask(&mut self.logits).map_err(refused)?;
            if self.logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
                return Err(refused("no token may come next".to_owned()));
            }
        }
        if sampling.temperature <= 0.0 {
            return Ok(highest(&self.logits));
        }
        self.narrow(sampling);
        let number = uniform(sampling.seed, sampling.choice, position);
        Ok(self.pick(sampling.temperature, number))
    }

    /// Leaves in `order` the tokens that top-k, top-p and min-p allow, in order of their ids.
    fn narrow(&mut self, sampling: &Sampling) {
        let logits = &self.logits;
        let order = &mut self.order;
        order.clear();
        // A bias of minus infinity forbids a token.
        order.extend((0..logits.len() as u32).filter(|t| logits[*t as usize] > f32::NEG_INFINITY));
        if order.is_empty() {
            order.push(0);
        }
        let by_logit =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if sampling.top_k > 0 && sampling.top_k < order.len() {
            order.select_nth_unstable_by(sampling.top_k - 1, by_logit);
            order.truncate(sampling.top_k);
        }
        if sampling.top_p < 1.0 || sampling.min_p > 0.0 {
            order.sort_unstable_by(by_logit);
            let best = logits[order[0] as usize];
            let weight =
                |t: u32| f64::from((logits[t as usize] - best) / sampling.temperature).exp();
            let total: f64 = order.iter().map(|t| weight(*t)).sum();
            let mut sum = 0.0;
            let mut kept = 0;
            for token in order.iter() {
                let w = weight(*token);
                let enough = kept > 0
                    && (sum >= f64::from(sampling.top_p) * total || w < f64::from(sampling.min_p));
                if enough {
                    break;
                }
                sum += w;
                kept += 1;
            }
            order.truncate(kept);
        }
        order.sort_unstable();
    }

    /// Inverts the distribution over `order`, which is in order of ids: there near-equal neighbours
    /// cannot swap.
    fn pick(&self, temperature: f32, number: f64) -> u32 {
        let best =
            self.order.iter().map(|t| self.logits[*t as usize]).fold(f32::NEG_INFINITY, f32::max);
        let weight = |t: &u32| f64::from((self.logits[*t as usize] - best) / temperature).exp();
        let total: f64 = self.order.iter().map(weight).sum();
        let mut left = number * total;
        for token in &self.order {
            left -= weight(token);
            if left < 0.0 {
                return *token;
            }
        }
        // Rounding may leave a trace: the last token that has any weight.
        self.order.iter().rev().copied().find(|t| weight(t) > 0.0).unwrap_or(0)
    }
}

/// Penalties, then bias.
fn adjust(sampling: &Sampling, history: &History, logits: &mut [f32]) {
    if sampling.repetition_penalty != 1.0 {
        let seen = history
            .prompt
            .keys()
            .chain(history.answer.keys().filter(|t| !history.prompt.contains_key(t)));
        for token in seen {
            if let Some(logit) = logits.get_mut(*token as usize) {
                let penalty = sampling.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
    if sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
        for (token, count) in &history.answer {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= sampling.presence_penalty + sampling.frequency_penalty * *count as f32;
            }
        }
    }
    for (token, bias) in &sampling.logit_bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
}
