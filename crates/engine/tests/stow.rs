//! States that were stowed and fetched: the same to the bit, memory shared as before, and nobody
//! else's text touched.

mod support;

use compute::Activations;
use engine::sampling::Sampling;
use engine::{Engine, Sequence, Spec, StateBlock};
use std::collections::BTreeMap;

fn engine(spec: Spec) -> Engine {
    support::pair("dense").engine_on(support::cpu(1, Activations::Int8), spec)
}

fn text(engine: &mut Engine, sequence: Sequence, prompt: &[u32]) -> Vec<u32> {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let unread = &prompt[sequence.committed()..];
    let mut text =
        engine.begin(sequence, unread, prompt, greedy, Vec::new(), |_| ()).expect("it begins");
    let mut tokens = vec![text.tip()];
    while tokens.len() < 40 {
        tokens.extend(engine.step(&mut text, 40 - tokens.len()).expect("a round").emitted);
    }
    tokens
}

/// Bytes of the blocks, shared ones once.
fn distinct(blocks: impl IntoIterator<Item = StateBlock>) -> usize {
    blocks
        .into_iter()
        .map(|block| (block.id, block.bytes))
        .collect::<BTreeMap<_, _>>()
        .values()
        .sum()
}

#[test]
fn a_stowed_state_comes_back_to_the_bit() {
    let prompt: Vec<u32> = (0..150).map(|i| 40 + i * 7 % 900).collect();
    for spec in [
        Spec::Off,
        Spec::Chain { block: 16, budget: 15 },
        Spec::Tree { block: 16, budget: 22 },
        Spec::Mtp { depth: 3 },
        Spec::Lookup { budget: 15 },
    ] {
        let mut engine = engine(spec);
        let mut sequence = engine.sequence();
        engine.read(&mut sequence, &prompt[..140]).expect("a prompt is read");
        let expected = text(&mut engine, sequence.clone(), &prompt);

        let stowed = engine.stow(&sequence).expect("it is stowed");
        // While the sequence lives, fetching copies nothing.
        let back = engine.fetch(&stowed).expect("it is fetched");
        assert_eq!(back.blocks(), sequence.blocks(), "{spec:?}");
        let kept = sequence.unshared().expect("a copy");
        drop((back, sequence));

        let fetched = engine.fetch(&stowed).expect("it is fetched");
        assert_eq!(fetched, kept, "{spec:?}");
        assert_eq!(
            distinct(fetched.blocks().into_iter().chain(stowed.blocks())),
            2 * fetched.bytes()
        );
        assert_eq!(text(&mut engine, fetched, &prompt), expected, "{spec:?}");
        // What was written since is not in what was stowed.
        assert_eq!(engine.fetch(&stowed).expect("it is fetched again"), kept, "{spec:?}");
    }
}

#[test]
fn snapshots_share_blocks_on_either_side() {
    let prompt: Vec<u32> = (0..230).map(|i| 40 + i * 11 % 900).collect();
    let mut engine = engine(Spec::Chain { block: 16, budget: 15 });
    let mut sequence = engine.sequence();
    engine.read(&mut sequence, &prompt[..200]).expect("a prompt is read");
    let early = sequence.clone();
    engine.read(&mut sequence, &prompt[200..]).expect("the rest is read");
    let here = distinct(early.blocks().into_iter().chain(sequence.blocks()));
    assert!(here < early.bytes() + sequence.bytes());

    let stowed = [&early, &sequence].map(|s| engine.stow(s).expect("it is stowed"));
    assert_eq!(distinct(stowed.iter().flat_map(|s| s.blocks())), here);
    let kept = [&early, &sequence].map(|s| s.unshared().expect("a copy"));
    drop((early, sequence));
    let fetched = [0, 1].map(|i| engine.fetch(&stowed[i]).expect("it is fetched"));
    assert_eq!(distinct(fetched.iter().flat_map(|s| s.blocks())), here);
    assert_eq!(fetched, kept);
}
