//! A configuration of a drafter tried on texts: how likely it finds what the target wrote.

use checkpoint::DrafterConfig;
use engine::draft::dflash::Dflash;
use engine::draft::probe::{Contexts, Guess, Probe, Reading};
use serde::Serialize;

/// Tokens from one anchor to the next.
const STRIDE: usize = 8;
/// No single token counts for more than this.
const LEAST: f64 = -12.0;

/// What a drafter thinks of some texts.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// By answer, anchor and position.
    guesses: Vec<Vec<Vec<Guess>>>,
}

/// A trial in numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Acceptance {
    /// Mean over all positions of the natural logarithm of the right token's probability.
    pub(crate) log_likelihood: f64,
    /// The same of the first position alone.
    pub(crate) first_log_likelihood: f64,
    /// Tokens a round of a chain would emit.
    pub(crate) accept_length: f64,
    /// How often the token proposed for a position is right, from the first mask on.
    pub(crate) right_by_position: Vec<f64>,
    /// How often it is right and all before it are.
    pub(crate) accepted_by_position: Vec<f64>,
}

/// How much better one trial is than another on the same texts.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Gain {
    /// Of log-likelihood, mean over answers.
    pub(crate) mean: f64,
    /// Its standard error.
    pub(crate) error: f64,
}

impl Gain {
    /// Too much to be chance, and enough to matter.
    pub(crate) fn is_real(self) -> bool {
        self.mean > 0.005 && self.mean > 3.5 * self.error
    }
}

/// Where a drafter is asked, answer by answer: at the target's own tokens, some steps apart, as
/// long as one follows.
fn anchors(reading: &Reading) -> impl Iterator<Item = Vec<usize>> + '_ {
    let answers = reading.answers.iter().filter(|a| a.len() > 1);
    answers.map(|a| (a.start..a.end - 1).step_by(STRIDE).collect())
}

/// What a drafter keeps of some readings.
pub(crate) fn contexts(
    probe: &mut Probe,
    drafter: &Dflash,
    config: &DrafterConfig,
    readings: &[&Reading],
) -> Result<Vec<Contexts>, engine::Error> {
    let mut variant = probe.variant(drafter, config)?;
    let one =
        |r: &&Reading| probe.contexts(&mut variant, r, &anchors(r).flatten().collect::<Vec<_>>());
    readings.iter().map(one).collect()
}

/// Tries a configuration of a loaded drafter over contexts that it shares. Nothing where its logits
/// are not numbers.
pub(crate) fn trial(
    probe: &mut Probe,
    drafter: &Dflash,
    config: &DrafterConfig,
    readings: &[&Reading],
    contexts: &[Contexts],
) -> Result<Option<Trial>, engine::Error> {
    let mut variant = probe.variant(drafter, config)?;
    let mut guesses = Vec::new();
    for (reading, contexts) in readings.iter().zip(contexts) {
        let Some(all) = probe.guesses(&mut variant, reading, contexts)? else { return Ok(None) };
        let mut all = all.into_iter();
        guesses.extend(anchors(reading).map(|anchors| all.by_ref().take(anchors.len()).collect()));
    }
    Ok(Some(Trial { guesses }))
}

fn mean(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.into_iter().fold((0.0, 0usize), |(s, n), x| (s + x, n + 1));
    if count == 0 { f64::NAN } else { sum / count as f64 }
}

fn log(guess: &Guess) -> f64 {
    f64::from(guess.log_probability).max(LEAST)
}

impl Trial {
    /// Mean log-likelihood of each answer.
    fn by_answer(&self) -> Vec<f64> {
        self.guesses.iter().map(|text| mean(text.iter().flatten().map(log))).collect()
    }

    pub(crate) fn log_likelihood(&self) -> f64 {
        mean(self.by_answer())
    }

    /// Over another trial of the same texts, or of these and more.
    pub(crate) fn gain(&self, over: &Self) -> Gain {
        let differences: Vec<f64> =
            self.by_answer().iter().zip(over.by_answer()).map(|(a, b)| a - b).collect();
        let deviation = bench::deviation(&differences);
        Gain {
            mean: mean(differences.iter().copied()),
            error: deviation / (differences.len() as f64).sqrt(),
        }
    }

    pub(crate) fn acceptance(&self) -> Acceptance {
        let blocks = || self.guesses.iter().flatten();
        let positions = blocks().map(Vec::len).max().unwrap_or(0);
        let stood = |block: &[Guess]| block.iter().take_while(|g| g.right).count();
        let at = |k: usize| blocks().filter(move |b| b.len() > k);
        let share = |part: &dyn Fn(&[Guess], usize) -> bool| {
            (0..positions).map(|k| mean(at(k).map(|b| f64::from(u8::from(part(b, k)))))).collect()
        };
        Acceptance {
            log_likelihood: self.log_likelihood(),
            first_log_likelihood: mean(at(0).map(|b| log(&b[0]))),
            // A text that ends inside a block would make it look shorter.
            accept_length: mean(at(positions.saturating_sub(1)).map(|b| 1.0 + stood(b) as f64)),
            right_by_position: share(&|block, k| block[k].right),
            accepted_by_position: share(&|block, k| stood(block) > k),
        }
    }
}

/// How likely the first token after each anchor is to someone who only counts what came before, out
/// of `vocab` tokens: what anybody achieves who knows nothing of the target.
pub(crate) fn by_counting(readings: &[&Reading], vocab: usize) -> f64 {
    mean(readings.iter().flat_map(|reading| {
        let likelihood = |anchor: usize| {
            let (seen, next) = (&reading.tokens[..=anchor], reading.tokens[anchor + 1]);
            let count = seen.iter().filter(|t| **t == next).count();
            ((count + 1) as f64 / (seen.len() + vocab) as f64).ln()
        };
        anchors(reading).flatten().map(likelihood).collect::<Vec<_>>()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(blocks: &[&[(f32, bool)]]) -> Trial {
        let guess = |&(log_probability, right): &(f32, bool)| Guess { log_probability, right };
        let texts = blocks.iter().map(|block| vec![block.iter().map(guess).collect()]);
        Trial { guesses: texts.collect() }
    }

    #[test]
    fn what_stands_ends_at_the_first_wrong_token() {
        let found = trial(&[
            &[(-0.1, true), (-2.0, false), (-0.1, true)],
            &[(-0.1, true), (-0.2, true), (-3.0, false)],
        ])
        .acceptance();
        assert_eq!(found.accept_length, 2.5);
        assert_eq!(found.right_by_position, [1.0, 0.5, 0.5]);
        assert_eq!(found.accepted_by_position, [1.0, 0.5, 0.0]);
    }

    #[test]
    fn a_gain_is_real_if_all_answers_agree() {
        let base = trial(&[&[(-1.0, true)], &[(-2.0, true)], &[(-3.0, true)], &[(-4.0, true)]]);
        let better = trial(&[&[(-0.9, true)], &[(-1.9, true)], &[(-2.9, true)], &[(-3.9, true)]]);
        let mixed = trial(&[&[(-0.2, true)], &[(-2.6, true)], &[(-2.2, true)], &[(-4.4, true)]]);
        assert!(better.gain(&base).is_real() && !base.gain(&better).is_real());
        assert!(!mixed.gain(&base).is_real());
    }
}
