//! Keys and values that were put aside: the same tokens in every mode, less of the device's memory,
//! and states that go on wherever they have been.

mod support;

use compute::{Activations, Fault, Faults, Faulty, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Error, Placement, Sequence, Spec};
use support::{CHAIN, answer, begin, copies, cpu, pair};

const TREE: Spec = Spec::Tree { block: 16, budget: 22 };

/// Keys and values of the newest tokens alone lie near.
fn near(tokens: usize) -> Placement {
    Placement { near_tokens: tokens, ..Placement::ON_DEVICE }
}

fn sampled() -> Sampling {
    Sampling { temperature: 0.8, seed: 7, ..Sampling::default() }
}

/// Several prompts as one of so many tokens.
fn long(name: &str, tokens: usize) -> Vec<u32> {
    let prompts = pair(name).prompts("code", 3).concat();
    prompts.into_iter().cycle().take(tokens).collect()
}

#[test]
fn every_mode_writes_the_same_with_older_keys_elsewhere() {
    let modes = [Spec::Off, CHAIN, TREE, Spec::Mtp { depth: 3 }, Spec::Lookup { budget: 15 }];
    for name in ["dense", "moe"] {
        let (pair, prompt) = (pair(name), long(name, 300));
        for kv in KvType::ALL {
            let engine = |placement| {
                let backend = cpu(2, Activations::Int8);
                pair.engine_placed(backend, (kv, placement), Spec::Off)
            };
            let (mut whole, mut some) = (engine(Placement::ON_DEVICE), engine(near(100)));
            let modes = if kv == KvType::F16 { &modes[..] } else { &modes[2..3] };
            for mode in modes {
                if matches!(mode, Spec::Mtp { .. }) && name == "moe" {
                    continue;
                }
                whole.set_spec(*mode);
                some.set_spec(*mode);
                let expected = answer(&mut whole, &prompt, &sampled(), 30);
                let found = answer(&mut some, &prompt, &sampled(), 30);
                assert_eq!(found, expected, "{name} {kv:?} {mode:?}");
            }
        }
    }
}

/// A text in a budget that was planned for the newest keys alone.
#[test]
fn what_is_put_aside_takes_nothing_of_the_budget() {
    let (pair, prompt) = (pair("dense"), long("dense", 900));
    let engine = |placement| {
        let backend = cpu(1, Activations::Int8);
        pair.engine_placed(backend, (KvType::F16, placement), Spec::Off)
    };
    let read = |mut engine: Engine, limit: usize| -> Result<(), Error> {
        engine.backend().budget().set_limit(limit);
        let mut sequence = engine.sequence();
        prompt.chunks(128).try_for_each(|chunk| engine.read(&mut sequence, chunk))
    };
    let planned = engine(near(320)).state_bytes(prompt.len());
    let all = engine(Placement::ON_DEVICE).state_bytes(prompt.len());
    let far = engine(near(320)).model().far_bytes(prompt.len());
    assert_eq!(planned + far, all, "what is not near is far");
    read(engine(near(320)), planned).expect("there is room");
    read(engine(Placement::ON_DEVICE), all).expect("there is room");
    let error = read(engine(Placement::ON_DEVICE), planned).expect_err("no room for all");
    assert!(error.to_string().contains("no room"), "{error}");
}

#[test]
fn states_go_on_wherever_they_have_been() {
    let (pair, prompt) = (pair("dense"), long("dense", 500));
    let (beginning, last) = prompt.split_at(prompt.len() - 1);
    let write = |placement: Placement| -> Vec<Vec<u32>> {
        let backend = cpu(2, Activations::Int8);
        let mut engine = pair.engine_placed(backend, (KvType::F16, placement), TREE);
        let mut read = engine.sequence();
        beginning.chunks(200).for_each(|chunk| engine.read(&mut read, chunk).expect("room"));
        let stowed = engine.stow(&read).expect("room");
        let archived = engine.archive(&read).expect("it is taken apart");
        let blocks = copies(&archived);
        let revived = engine.revive(&archived.outline, beginning, blocks).expect("it fits");
        let forked = read.clone();
        drop(read);
        let fetched = engine.fetch(&stowed).expect("room");
        assert_eq!(fetched, forked);
        assert_eq!(revived, forked);
        let mut texts = Vec::new();
        for sequence in [forked, fetched, revived] {
            let begun = engine.begin(sequence, last, &prompt, sampled(), Vec::new(), |_| ());
            let mut text = begun.expect("the last token is read");
            let mut tokens = vec![text.tip()];
            while tokens.len() < 60 {
                // In the midst of an answer, too.
                if tokens.len() > 30 {
                    let away = engine.put_away(&mut text).expect("room");
                    engine.bring_back(&mut text, &away).expect("room");
                }
                tokens.extend(engine.step(&mut text, 60 - tokens.len()).expect("a round").emitted);
            }
            texts.push(tokens);
        }
        texts
    };
    let expected = write(Placement::ON_DEVICE);
    assert!(expected.iter().all(|text| *text == expected[0]));
    assert_eq!(write(near(64)), expected);
    assert_eq!(write(near(0)), expected, "no more than whole pages are put aside");
}

/// Texts that went on from one state share its pages wherever those lie.
#[test]
fn a_page_that_texts_share_is_put_aside_once() {
    let (pair, prompt) = (pair("dense"), long("dense", 600));
    let backend = cpu(1, Activations::Int8);
    let mut engine = pair.engine_placed(backend, (KvType::F16, near(64)), Spec::Off);
    let mut read = engine.sequence();
    engine.read(&mut read, &prompt[..200]).expect("room");
    let mut go_on = |rest: &[u32]| {
        let mut text = read.clone();
        rest.chunks(100).for_each(|chunk| engine.read(&mut text, chunk).expect("room"));
        text
    };
    let texts = [go_on(&prompt[200..400]), go_on(&prompt[400..])];
    let pages = |text: &Sequence| text.blocks()[..5].iter().map(|page| page.id).collect();
    let [one, two, before]: [Vec<usize>; 3] = [&texts[0], &texts[1], &read].map(pages);
    assert!(one[..3].iter().all(|page| !before.contains(page)), "they were put aside");
    assert_eq!(one[..3], two[..3]);
    assert!(one[3..].iter().all(|page| !two.contains(page)), "what they read apart");
}

/// What is brought back from disk asks for as much room as it takes, and no more.
#[test]
fn a_state_that_comes_back_needs_room_for_what_lies_near() {
    let (pair, prompt) = (pair("dense"), long("dense", 500));
    let backend = cpu(1, Activations::Int8);
    let mut engine = pair.engine_placed(backend, (KvType::F16, near(64)), CHAIN);
    let mut read = engine.sequence();
    prompt.chunks(100).for_each(|chunk| engine.read(&mut read, chunk).expect("room"));
    let archived = engine.archive(&read).expect("it is taken apart");
    let blocks = copies(&archived);
    let all: usize = blocks.iter().map(|(_, block)| block.len()).sum();
    drop(read);
    let before = engine.held();
    let revived = engine.revive(&archived.outline, &prompt, blocks).expect("it fits");
    let taken = engine.held();
    let near = engine.near_blocks(&revived).iter().map(|block| block.bytes).sum::<usize>();
    assert_eq!(near, taken - before, "what takes of the budget, and no more");
    assert!(taken - before < all - engine.model().far_bytes(300), "{taken} of {all}");
    drop(revived);
    for (limit, has_room) in [(taken - 1, false), (taken, true)] {
        engine.backend().budget().set_limit(limit);
        assert_eq!(engine.has_room(&archived.outline, &prompt).expect("it fits"), has_room);
    }
}

/// Beyond what may lie far, pages of a state that comes back lie near.
#[test]
fn a_page_without_room_elsewhere_comes_back_near() {
    let (pair, prompt) = (pair("dense"), long("dense", 500));
    let faults = Faults::default();
    let backend = Box::new(Faulty::new(cpu(1, Activations::Int8), faults.clone()));
    let mut engine = pair.engine_placed(backend, (KvType::F16, near(64)), Spec::Off);
    let mut read = engine.sequence();
    prompt.chunks(100).for_each(|chunk| engine.read(&mut read, chunk).expect("room"));
    let archived = engine.archive(&read).expect("it is taken apart");
    let mut revive = |fault| {
        let before = engine.held();
        faults.arm(fault);
        let revived = engine.revive(&archived.outline, &prompt, copies(&archived));
        let revived = revived.expect("there is room near");
        assert_eq!(revived, read);
        engine.held() - before
    };
    let near = revive(None);
    for page in 0..prompt.len() / 64 {
        let held = revive(Some((Fault::Allocation, page)));
        assert_eq!(held, near + archived.blocks[page].len(), "page {page}");
    }
}

#[test]
fn where_nothing_can_be_put_aside_a_text_waits_or_ends() {
    let (pair, prompt) = (pair("dense"), long("dense", 250));
    let faults = Faults::default();
    let backend = Box::new(Faulty::new(cpu(1, Activations::Int8), faults.clone()));
    let mut engine: Engine = pair.engine_placed(backend, (KvType::F16, near(64)), CHAIN);
    let (right, _) = answer(&mut engine, &prompt, &sampled(), 24);
    let held = engine.held();
    faults.arm(None);
    answer(&mut engine, &prompt, &sampled(), 24);
    let calls = faults.count(Fault::Allocation);
    assert!(calls > 4, "{calls} blocks are asked for");
    for n in 0..calls {
        faults.arm(Some((Fault::Allocation, n)));
        let sequence = engine.sequence();
        let begun = engine.begin(sequence, &prompt, &prompt, sampled(), Vec::new(), |_| ());
        let written = begun.and_then(|mut text| {
            let mut tokens = vec![text.tip()];
            while tokens.len() < right.len() {
                // A round without room is tried again, as the scheduler does.
                let most = right.len() - tokens.len();
                let round = engine.step(&mut text, most).or_else(|_| engine.step(&mut text, most));
                tokens.extend(round?.emitted);
            }
            Ok(tokens)
        });
        faults.arm(None);
        match written {
            Ok(tokens) => assert_eq!(tokens, right, "block {n}"),
            Err(error) => assert!(error.to_string().contains("no room"), "block {n}: {error}"),
        }
        assert_eq!(engine.held(), held, "block {n}: memory stays behind");
    }
    let mut text = begin(&mut engine, &prompt, &sampled());
    let round = engine.step(&mut text, 8).expect("a round");
    assert_eq!(round.emitted[..], right[1..1 + round.emitted.len()]);
}
