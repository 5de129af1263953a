//! Speculative prefill: what is kept follows from the prompt alone, whatever was read before; what
//! may not be dropped never is; and a scorer that fails or is stopped leaves nothing behind.

mod support;

use compute::{Activations, Faults, Faulty, KvType};
use engine::{Long, Scorer, Shortened, Shortener, Spec, WeightSource};
use std::ops::Range;
use support::{cpu, pair};

fn scorer(threads: usize, faults: Option<Faults>) -> Scorer {
    let pair = pair("dense");
    let cpu = cpu(threads, Activations::Int8);
    let backend = match faults {
        Some(faults) => Box::new(Faulty::new(cpu, faults)),
        None => cpu,
    };
    let weights = (&pair.target.config, &pair.target.weights as &dyn WeightSource);
    Scorer::load(backend, weights).expect("it loads")
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|i| 260 + i * i % 3499 * 79 % 3500).collect()
}

const DROPPABLE: [Range<usize>; 2] = [40..700, 720..1100];

fn long(prompt: &[u32], share: f32) -> Long<'_> {
    Long { prompt, droppable: &DROPPABLE, boundary: prompt.len() - 5, share }
}

fn shorten(shortener: &mut Shortener, long: Long<'_>) -> Shortened {
    shortener.shorten(long, || true).expect("it is scored").expect("nobody stops it")
}

#[test]
fn what_may_not_be_dropped_is_kept_and_of_the_rest_the_share() {
    let prompt = prompt(1200);
    let mut shortener = Shortener::new(scorer(1, None));
    for share in [0.1f32, 0.3, 1.0] {
        let found = shorten(&mut shortener, long(&prompt, share));
        let is_kept = |i: &usize| found.kept.iter().any(|part| part.contains(i));
        let may_go = |i: &usize| DROPPABLE.iter().any(|part| part.contains(i));
        assert!((0..1200).filter(|i| !may_go(i)).all(|i| is_kept(&i)));
        let (may_go, kept) = (1040, (0..1200).filter(|i| may_go(i) && is_kept(i)).count());
        let most = (share * may_go as f32).ceil() as usize;
        assert!(kept >= most.min(may_go) && kept < most + 64, "{kept} at {share}");
        assert!(found.kept.windows(2).all(|pair| pair[0].end < pair[1].start), "in order");
        assert_eq!(found.tokens(&prompt).len(), found.kept.iter().map(|p| p.len()).sum::<usize>());
    }
}

#[test]
fn it_does_not_matter_what_was_read_before_nor_by_how_many_threads() {
    let prompt = prompt(1200);
    let cold = shorten(&mut Shortener::new(scorer(1, None)), long(&prompt, 0.2));
    assert_eq!(cold.scored, 1200);
    assert_eq!(shorten(&mut Shortener::new(scorer(2, None)), long(&prompt, 0.2)), cold);
    // Another share has decided about nothing here, and what was read is known.
    let mut warm = Shortener::new(scorer(1, None));
    let shorter = Long { prompt: &prompt[..900], ..long(&prompt, 0.5) };
    shorten(&mut warm, Long { boundary: 890, ..shorter });
    let found = shorten(&mut warm, long(&prompt, 0.2));
    assert_eq!(found.kept, cold.kept);
    assert!(found.settled == 0 && found.scored < 400, "{found:?}");
    // No room for states: all is read again, and decided the same.
    let mut forgetful = Shortener::new(scorer(1, None));
    forgetful.set_state_bytes(0);
    shorten(&mut forgetful, Long { boundary: 890, ..shorter });
    assert_eq!(shorten(&mut forgetful, long(&prompt, 0.2)), cold);
}

/// A state that alone is more than there is room for takes nobody's.
#[test]
fn a_state_too_large_to_be_kept_leaves_those_that_fit() {
    let (prompt, other) = (prompt(1200), prompt(1300).split_off(100));
    let mut engine = pair("dense").engine(KvType::F16, Activations::Int8, Spec::Off);
    let mut sequence = engine.sequence();
    prompt[..852].chunks(256).for_each(|c| engine.read(&mut sequence, c).expect("it is read"));
    let mut shortener = Shortener::new(scorer(1, None));
    shortener.set_state_bytes(sequence.bytes());
    shorten(&mut shortener, Long { prompt: &prompt[..900], boundary: 890, ..long(&prompt, 0.5) });
    assert_eq!(shorten(&mut shortener, long(&other, 0.5)).scored, 1200);
    let found = shorten(&mut shortener, long(&prompt, 0.2));
    assert!(found.settled == 0 && found.scored < 400, "{found:?}");
}

#[test]
fn a_next_turn_keeps_what_was_kept() {
    let prompt = prompt(1200);
    let mut shortener = Shortener::new(scorer(1, None));
    let first = Long { prompt: &prompt[..800], boundary: 790, ..long(&prompt, 0.2) };
    let before = shorten(&mut shortener, first);
    let after = shorten(&mut shortener, long(&prompt, 0.2));
    let kept = |found: &Shortened| -> Vec<usize> {
        found.kept.iter().flat_map(Clone::clone).take_while(|i| *i < 790).collect()
    };
    assert_eq!(after.settled, 790);
    assert_eq!(kept(&after), kept(&before));
    assert!(after.kept.iter().map(|part| part.len()).sum::<usize>() < 1000);
    // The same prompt again needs no scorer; one that parts before the boundary is a new one.
    let again = shorten(&mut shortener, long(&prompt, 0.2));
    assert_eq!((again.settled, again.scored), (1195, 0));
    assert_eq!(again.kept, after.kept);
    let mut other = prompt.clone();
    other[10] += 1;
    assert_eq!(shorten(&mut shortener, long(&other, 0.2)).settled, 0);
}

#[test]
fn who_is_stopped_or_fails_leaves_nothing_behind() {
    let prompt = prompt(1200);
    let expected = shorten(&mut Shortener::new(scorer(1, None)), long(&prompt, 0.2));
    let faults = Faults::default();
    let mut shortener = Shortener::new(scorer(1, Some(faults.clone())));
    let mut left = 2;
    let goes_on = || {
        left -= 1;
        left > 0
    };
    assert!(shortener.shorten(long(&prompt, 0.2), goes_on).expect("no fault").is_none());
    faults.lose_after(2);
    assert!(shortener.shorten(long(&prompt, 0.2), || true).is_err());
    let mut anew = Shortener::new(scorer(1, None));
    assert_eq!(shorten(&mut anew, long(&prompt, 0.2)), expected);
}
