//! States that were taken apart and put together again: the same to the bit, what is kept is not
//! copied twice, and outlines that do not fit are refused.

mod support;

use compute::{Activations, Memory};
use engine::sampling::Sampling;
use engine::{Archived, BlockName, Engine, Outline, Sequence, Spec};
use std::collections::HashMap;

const SPECS: [Spec; 6] = [
    Spec::Off,
    Spec::Chain { block: 16, budget: 15 },
    Spec::Tree { block: 16, budget: 22 },
    Spec::Mtp { depth: 3 },
    Spec::Lookup { budget: 15 },
    Spec::Auto { block: 16, budget: 15 },
];

fn engine(spec: Spec) -> Engine {
    support::pair("dense").engine_on(support::cpu(1, Activations::Int8), spec)
}

fn text(engine: &mut Engine, sequence: Sequence, prompt: &[u32]) -> Vec<u32> {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let unread = &prompt[sequence.committed()..];
    let mut text =
        engine.begin(sequence, unread, prompt, greedy, Vec::new(), |_| ()).expect("it begins");
    let mut tokens = vec![text.tip()];
    while tokens.len() < 24 {
        tokens.extend(engine.step(&mut text, 24 - tokens.len()).expect("a round").emitted);
    }
    tokens
}

/// Where blocks are kept in these tests: under names that count up.
#[derive(Default)]
struct Shelf {
    blocks: HashMap<BlockName, Vec<u8>>,
    kept: usize,
}

impl Shelf {
    fn keep(&mut self, archived: &Archived) -> Vec<BlockName> {
        let mut names = Vec::new();
        for block in &archived.blocks {
            if let Some(memory) = block.memory() {
                self.kept += 1;
                let mut name = [0; 32];
                name[..8].copy_from_slice(&self.kept.to_le_bytes());
                self.blocks.insert(name, memory.slice::<u8>().to_vec());
                block.keep(name);
            }
            names.push(block.name().expect("it is kept"));
        }
        names
    }

    fn give(&self, names: &[BlockName]) -> Vec<(BlockName, Memory)> {
        let block = |name: &BlockName| {
            let bytes = &self.blocks[name];
            let mut memory = Memory::zeroed(bytes.len());
            memory.slice_mut::<u8>().copy_from_slice(bytes);
            (*name, memory)
        };
        names.iter().map(block).collect()
    }
}

#[test]
fn a_state_goes_on_in_another_process_as_it_would_have_here() {
    let prompt: Vec<u32> = (0..150).map(|i| 40 + i * 7 % 900).collect();
    for spec in SPECS {
        let (mut here, mut there) = (engine(spec), engine(spec));
        // Before and behind an anchor, with one anchor and with two, and at the end of a page.
        for read in [31, 50, 128, 140] {
            let mut sequence = here.sequence();
            here.read(&mut sequence, &prompt[..read]).expect("a prompt is read");
            if read == 140 {
                here.absorb(&mut sequence).expect("drafters take it in");
            }
            let expected = text(&mut here, sequence.clone(), &prompt);
            let mut shelf = Shelf::default();
            let archived = here.archive(&sequence).expect("it is taken apart");
            let names = shelf.keep(&archived);

            let revived = there.revive(&archived.outline, &prompt[..read], shelf.give(&names));
            let revived = revived.unwrap_or_else(|error| panic!("{spec:?}, {read}: {error}"));
            assert_eq!(revived, sequence, "{spec:?}, {read} tokens");
            assert_eq!(text(&mut there, revived, &prompt), expected, "{spec:?}, {read} tokens");
        }
    }
}

#[test]
fn a_turn_keeps_what_it_added() {
    let prompt: Vec<u32> = (0..400).map(|i| 40 + i * 11 % 900).collect();
    let mut engine = engine(Spec::Chain { block: 16, budget: 15 });
    let mut sequence = engine.sequence();
    engine.read(&mut sequence, &prompt[..256]).expect("a prompt is read");
    engine.absorb(&mut sequence).expect("the drafter takes it in");
    let mut shelf = Shelf::default();
    let names = shelf.keep(&engine.archive(&sequence).expect("it is taken apart"));
    let (all, kept) = (names.len(), shelf.kept);
    assert_eq!(all, kept);
    // The same again has nothing new.
    let archived = engine.archive(&sequence).expect("again");
    assert_eq!(shelf.keep(&archived), names);
    assert_eq!(shelf.kept, kept);

    // What comes back from files is known to lie there: of a next turn only what it wrote is new.
    let outline = archived.outline;
    drop((sequence, archived.blocks));
    let mut sequence =
        engine.revive(&outline, &prompt[..256], shelf.give(&names)).expect("it is put together");
    engine.read(&mut sequence, &prompt[256..300]).expect("the next turn is read");
    engine.absorb(&mut sequence).expect("the drafter takes it in");
    let next = engine.archive(&sequence).expect("it is taken apart");
    let fresh = next.blocks.iter().filter(|block| block.memory().is_some()).count();
    let pages = 300usize.div_ceil(64) - 256 / 64;
    // The target's page, the drafter's caches' and the recurrent state.
    assert!(fresh >= pages && fresh < all && shelf.keep(&next)[..4] == names[..4], "{fresh}");

    // One that was lost is copied again.
    next.blocks[0].lose();
    let again = engine.archive(&sequence).expect("it is taken apart");
    assert!(again.blocks[0].memory().is_some() && again.blocks[1].memory().is_none());
}

#[test]
fn outlines_that_do_not_fit_are_refused() {
    let prompt: Vec<u32> = (0..100).map(|i| 40 + i * 7 % 900).collect();
    let mut chain = engine(Spec::Chain { block: 16, budget: 15 });
    let mut sequence = chain.sequence();
    chain.read(&mut sequence, &prompt).expect("a prompt is read");
    let mut shelf = Shelf::default();
    let archived = chain.archive(&sequence).expect("it is taken apart");
    let names = shelf.keep(&archived);
    let sound = serde_json::to_value(&archived.outline).expect("JSON");
    let mut refuses = |outline: &serde_json::Value, tokens: &[u32]| {
        let outline: Outline = serde_json::from_value(outline.clone()).expect("an outline");
        chain.revive(&outline, tokens, shelf.give(&names)).is_err()
    };
    assert!(!refuses(&sound, &prompt));
    assert!(refuses(&sound, &prompt[1..]));
    assert!(refuses(&sound, &[&prompt[1..], &[u32::MAX]].concat()));
    let places = [
        ("/committed", 101),
        ("/committed", u64::MAX),
        ("/kv/first", 1),
        ("/kv/count", u64::MAX),
        ("/drafts/0/committed", 101),
        ("/drafts/0/caches/0/count", 9),
        ("/drafts/0/caches/0/first", 1),
        ("/drafts/0/pending", u64::MAX),
    ];
    for (place, value) in places {
        let mut outline = sound.clone();
        *outline.pointer_mut(place).unwrap_or_else(|| panic!("{place} of {sound}")) = value.into();
        assert!(refuses(&outline, &prompt), "{place} {value}");
    }
    // Another mode has other drafters, and a block too few is none.
    let mut plain = engine(Spec::Off);
    assert!(plain.revive(&archived.outline, &prompt, shelf.give(&names)).is_err());
    let short = shelf.give(&names[1..]);
    assert!(chain.revive(&archived.outline, &prompt, short).is_err());
}
