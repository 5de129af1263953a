//! Constraints: what they refuse is never written, speculation changes nothing under them, and a
//! text whose constraint fails costs the others nothing.

mod support;

use compute::{Activations, KvType};
use engine::sampling::{Constraint, Sampling};
use engine::{Engine, Generation, Spec};
use support::{CHAIN, ENDS};

/// The dense pair, and prompts of its goldens.
fn engine_and_prompts(spec: Spec) -> (Engine, Vec<Vec<u32>>) {
    let pair = support::pair("dense");
    let engine = pair.engine(KvType::F16, Activations::Int8, spec);
    (engine, [pair.prompts("code", 2), pair.prompts("complete", 1)].concat())
}

fn begin(
    engine: &mut Engine,
    constraint: Option<Box<dyn Constraint>>,
    prompt: &[u32],
    sampling: Sampling,
) -> Generation {
    let sequence = engine.sequence();
    engine
        .begin_within(constraint, sequence, prompt, prompt, sampling, ENDS.to_vec(), |_| ())
        .expect("the prompt is read")
}

/// Allows two tokens of three, which ones depends on all the tokens before; counts what it follows.
#[derive(Clone, Debug, Default)]
struct Picky(Vec<u32>);

impl Picky {
    fn allows(&self, token: u32) -> bool {
        let path =
            self.0.iter().fold(7u64, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x100_0000_01b3));
        !((path >> 20) ^ u64::from(token)).is_multiple_of(3)
    }
}

impl Constraint for Picky {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let refused = (0..).zip(logits).filter(|(token, _)| !self.allows(*token));
        refused.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn push(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        self.0.extend(allowed.then_some(token));
        allowed
    }

    fn pop(&mut self, count: usize) {
        self.0.truncate(self.0.len() - count);
    }
}

#[test]
fn a_constraint_holds_and_every_mode_writes_the_same_text_under_it() {
    let (mut engine, prompts) = engine_and_prompts(Spec::Auto { block: 16, budget: 22 });
    let mut plain: Vec<Vec<u32>> = Vec::new();
    let (mut drafted, mut accepted) = (0, 0);
    for spec in [Spec::Off, CHAIN, Spec::Tree { block: 16, budget: 40 }, Spec::Mtp { depth: 3 }] {
        engine.set_spec(spec);
        for (i, (prompt, seed)) in prompts.iter().zip(0..).enumerate() {
            let temperature = if i == 0 { 0.0 } else { 1.0 };
            let sampling = Sampling {
                temperature,
                top_k: 40,
                repetition_penalty: 1.1,
                seed,
                ..Sampling::default()
            };
            let picky = Some(Box::new(Picky::default()) as Box<dyn Constraint>);
            let mut text = begin(&mut engine, picky, prompt, sampling);
            let mut tokens = vec![text.tip()];
            while tokens.len() < 64 && !ENDS.contains(&tokens[tokens.len() - 1]) {
                let round = engine.step(&mut text, 64 - tokens.len()).expect("a round");
                (drafted, accepted) = (drafted + round.drafted, accepted + round.accepted);
                tokens.extend(round.emitted);
            }
            let mut path = Picky::default();
            assert!(
                tokens.iter().all(|token| path.push(*token)),
                "{spec:?} wrote what is not allowed"
            );
            match plain.get(i) {
                Some(plain) => assert_eq!(tokens, *plain, "{spec:?}"),
                None => plain.push(tokens),
            }
        }
    }
    assert!(accepted > 0 && drafted > accepted, "{accepted} of {drafted}");
}

#[test]
fn a_text_that_fails_costs_the_others_nothing() {
    /// Fails after a few tokens.
    #[derive(Debug)]
    struct Failing(usize);
    impl Constraint for Failing {
        fn mask(&mut self, _: &mut [f32]) -> Result<(), String> {
            if self.0 < 5 { Ok(()) } else { Err("enough".to_owned()) }
        }
        fn push(&mut self, _: u32) -> bool {
            self.0 += 1;
            true
        }
        fn pop(&mut self, count: usize) {
            self.0 -= count;
        }
    }
    let (mut engine, prompts) = engine_and_prompts(Spec::Chain { block: 4, budget: 3 });
    let prompt = &prompts[0];
    let mut text = begin(&mut engine, None, prompt, Sampling::default());
    let mut alone = vec![text.tip()];
    while alone.len() < 24 {
        alone.extend(engine.step(&mut text, 24 - alone.len()).expect("a round").emitted);
    }
    let failing = Some(Box::new(Failing(0)) as Box<dyn Constraint>);
    let mut bad = begin(&mut engine, failing, prompt, Sampling::default());
    let mut good = begin(&mut engine, None, prompt, Sampling::default());
    let mut tokens = vec![good.tip()];
    let mut failed = false;
    while tokens.len() < alone.len() {
        let room = alone.len() - tokens.len();
        let round = if failed {
            engine.step(&mut good, room).expect("a round")
        } else {
            let mut rounds =
                engine.step_all(&mut [(&mut bad, 24), (&mut good, room)]).expect("a pass");
            failed = rounds[0].is_err();
            rounds.pop().expect("two rounds").expect("the good one goes on")
        };
        tokens.extend(round.emitted);
    }
    assert!(failed);
    assert_eq!(tokens, alone);
}
