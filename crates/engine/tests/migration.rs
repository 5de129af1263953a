//! An answer that broke off goes on elsewhere with the same tokens: whatever was written of it is
//! read as the end of a prompt, with the same seed, for every place it may have broken off at.

mod support;

use compute::{Activations, KvType};
use engine::Engine;
use engine::sampling::{Constraint, Sampling};
use support::{CHAIN, pair};

/// Tokens of an answer.
const TOKENS: usize = 32;

/// Never two even tokens in a row: depends on what was written before.
#[derive(Debug, Default)]
struct Odd(Vec<u32>);

impl Constraint for Odd {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.0.last().is_some_and(|last| last % 2 == 0) {
            logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        }
        Ok(())
    }

    fn push(&mut self, token: u32) -> bool {
        let fits = token % 2 == 1 || self.0.last().is_none_or(|last| last % 2 == 1);
        if fits {
            self.0.push(token);
        }
        fits
    }

    fn pop(&mut self, count: usize) {
        self.0.truncate(self.0.len() - count);
    }
}

/// Writes `TOKENS` of which `written` are there already, as another engine left them.
fn write(
    engine: &mut Engine,
    prompt: &[u32],
    written: &[u32],
    sampling: &Sampling,
    constraint: Option<Odd>,
) -> Vec<u32> {
    let mut sequence = engine.sequence();
    engine.read(&mut sequence, prompt).expect("the prompt is read");
    engine.read_written(&mut sequence, written).expect("what was written is read");
    let (all, sampling) = ([prompt, written].concat(), sampling.clone());
    let constraint = constraint.map(|constraint| Box::new(constraint) as Box<dyn Constraint>);
    let text =
        engine.begin_read(0, constraint, sequence, &all, written.len(), sampling, Vec::new());
    let mut text = text.expect("it goes on");
    let mut tokens = [written, &[text.tip()]].concat();
    while tokens.len() < TOKENS {
        tokens.extend(engine.step(&mut text, TOKENS - tokens.len()).expect("a round").emitted);
    }
    tokens
}

#[test]
fn an_answer_goes_on_with_the_same_tokens_wherever_it_broke_off() {
    let dense = pair("dense");
    let mut one = dense.engine(KvType::F16, Activations::Int8, CHAIN);
    let mut other = dense.engine(KvType::F16, Activations::Int8, CHAIN);
    let prompt = &dense.prompts("code", 1)[0];
    let drawn = Sampling { temperature: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling {
        presence_penalty: 0.8,
        frequency_penalty: 0.4,
        repetition_penalty: 1.2,
        ..drawn.clone()
    };
    for (sampling, constrained) in [(&drawn, false), (&penalised, false), (&drawn, true)] {
        let held = || constrained.then(Odd::default);
        let whole = write(&mut one, prompt, &[], sampling, held());
        assert_eq!(whole.len(), TOKENS);
        for k in 1..TOKENS {
            let again = write(&mut other, prompt, &whole[..k], sampling, held());
            assert_eq!(again, whole, "{sampling:?}, constrained {constrained}, after {k}");
        }
    }
    // What does not fit was not written under it.
    let mut sequence = other.sequence();
    other.read(&mut sequence, &[2, 2, 2]).unwrap();
    let held = Some(Box::new(Odd::default()) as Box<dyn Constraint>);
    assert!(other.begin_read(0, held, sequence, &[2, 2, 2], 2, drawn, Vec::new()).is_err());
}
