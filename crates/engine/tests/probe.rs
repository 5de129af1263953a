//! A probe of a drafter sees what a chain of the engine does: the accepted tokens are those it
//! finds right.

mod support;

use compute::{Activations, KvType};
use engine::WeightSource;
use engine::draft::probe::Probe;
use engine::sampling::Sampling;

#[test]
fn guesses_are_right_where_drafts_are_accepted() {
    let pair = support::pair("dense");
    let (target, drafter) = (&pair.target, &pair.drafter);
    let backend = || support::cpu(1, Activations::Int8);
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 90).collect();
    let count = 60;

    let mut engine = pair.engine_on(backend(), support::CHAIN);
    let sequence = engine.sequence();
    let mut text =
        engine.begin(sequence, &prompt, &prompt, Sampling::default(), vec![], |_| ()).unwrap();
    let mut tokens = [&prompt[..], &[text.tip()]].concat();
    let (mut tips, mut accepted) = (Vec::new(), Vec::new());
    while tokens.len() < prompt.len() + count {
        tips.push(tokens.len() - 1);
        let round = engine.step(&mut text, 64).unwrap();
        accepted.push(round.accepted);
        tokens.extend(round.emitted);
    }

    // Listening to more layers than the drafter reads changes nothing.
    let mut probe = Probe::load(backend(), weights, (0..8).collect(), KvType::F16).unwrap();
    let reading =
        probe.read(std::slice::from_ref(&prompt), tokens.len() - prompt.len(), &[]).unwrap();
    assert_eq!(reading.tokens, tokens);
    assert_eq!((reading.answers.len(), &reading.answers[0]), (1, &(prompt.len()..tokens.len())));
    let loaded = probe.drafter(&drafter.config, &drafter.weights).unwrap();
    let mut same = probe.variant(&loaded, &drafter.config).unwrap();
    let contexts = probe.contexts(&mut same, &reading, &tips).unwrap();
    let guesses = probe.guesses(&mut same, &reading, &contexts).unwrap().unwrap();
    let right: Vec<usize> =
        guesses.iter().map(|g| g.iter().take_while(|g| g.right).count()).collect();
    assert_eq!(right, accepted);
    assert!(guesses.iter().flatten().all(|g| g.log_probability <= 1e-4));

    // Another configuration gives other numbers, and the first one is untouched.
    let mut config = drafter.config.clone();
    config.rope.theta = 1e6;
    let mut other = probe.variant(&loaded, &config).unwrap();
    let contexts = probe.contexts(&mut other, &reading, &tips).unwrap();
    assert_ne!(probe.guesses(&mut other, &reading, &contexts).unwrap().unwrap(), guesses);
    let contexts = probe.contexts(&mut same, &reading, &tips).unwrap();
    assert_eq!(probe.guesses(&mut same, &reading, &contexts).unwrap().unwrap(), guesses);
}
