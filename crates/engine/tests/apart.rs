//! A drafter on a backend of its own proposes what it would beside the target: the same tokens, and
//! as many of them stand. What fails there costs texts their drafts and nothing else.

mod support;

use compute::cuda::Ledger;
use compute::{Activations, Backend, Fault, Faults, Faulty, KvType};
use engine::sampling::Sampling;
use engine::{Backends, Engine, Error, Generation};
use engine::{Placement, Spec, WeightSource};
use support::{CHAIN, ENDS, answer, begin, copies, cpu, pair};

/// Tokens of a text, and how many of them each round gave.
type Told = (Vec<u32>, Vec<usize>);

const TREE: Spec = Spec::Tree { block: 16, budget: 22 };

fn sampled() -> Sampling {
    Sampling { temperature: 0.8, seed: 5, repetition_penalty: 1.1, ..Sampling::default() }
}

/// A pair on two processors, of which the second is the drafter's.
fn apart(name: &str, spec: Spec) -> Engine {
    let int8 = Activations::Int8;
    pair(name).engine_apart(cpu(2, int8), cpu(1, int8), spec)
}

fn together(name: &str, spec: Spec) -> Engine {
    pair(name).engine(KvType::F16, Activations::Int8, spec)
}

#[test]
fn every_mode_drafts_the_same_from_elsewhere() {
    let modes = [
        CHAIN,
        TREE,
        Spec::Mtp { depth: 3 },
        Spec::Lookup { budget: 15 },
        Spec::Off,
        Spec::Auto { block: 16, budget: 63 },
    ];
    for name in ["dense", "moe"] {
        let (mut here, mut there) = (together(name, Spec::Off), apart(name, Spec::Off));
        let pair = pair(name);
        let prompts = [pair.prompts("math", 1), pair.prompts("complete", 1)].concat();
        for mode in modes {
            if matches!(mode, Spec::Mtp { .. }) && name == "moe" {
                continue;
            }
            for sampling in [Sampling::default(), sampled()] {
                for prompt in &prompts {
                    here.set_spec(mode);
                    there.set_spec(mode);
                    let (ids, lengths) = answer(&mut here, prompt, &sampling, 48);
                    let (same, stood) = answer(&mut there, prompt, &sampling, 48);
                    assert_eq!(same, ids, "{name} {mode:?}");
                    // What `auto` asks for follows from times.
                    if !matches!(mode, Spec::Auto { .. }) {
                        assert_eq!(stood, lengths, "{name} {mode:?}");
                    }
                }
            }
        }
        assert_eq!(there.drafter_device(), Some("elsewhere"));
    }
}

/// Writes texts in the same rounds.
fn write(engine: &mut Engine, texts: &mut [Generation], most: usize) -> Result<Vec<Told>, Error> {
    let mut told: Vec<_> = texts.iter().map(|text| (vec![text.tip()], Vec::new())).collect();
    loop {
        let (mut turn, mut running) = (Vec::new(), Vec::new());
        for (text, told) in texts.iter_mut().zip(&mut told) {
            let (tokens, _) = &*told;
            if tokens.len() < most && !ENDS.contains(&tokens[tokens.len() - 1]) {
                turn.push((text, most - tokens.len()));
                running.push(told);
            }
        }
        if turn.is_empty() {
            return Ok(told);
        }
        for (round, (tokens, lengths)) in engine.step_all(&mut turn)?.into_iter().zip(running) {
            let round = round?;
            lengths.push(round.accept_length());
            tokens.extend(round.emitted);
        }
    }
}

/// Texts that share rounds, one that goes on from a copy of another, and one whose state has been
/// in the host's memory, or was put together again from its blocks.
#[test]
fn states_go_on_wherever_they_have_been() {
    let prompts = [pair("dense").prompts("code", 2), pair("dense").prompts("math", 2)].concat();
    let write_all = |engine: &mut Engine| {
        let mut texts: Vec<Generation> =
            prompts.iter().map(|prompt| begin(engine, prompt, &sampled())).collect();
        let mut told = write(engine, &mut texts, 20).expect("rounds");
        let stowed = engine.put_away(&mut texts[0]).expect("room");
        engine.bring_back(&mut texts[0], &stowed).expect("room");
        // A prompt that was read, kept apart, and is gone on with.
        let mut read = engine.sequence();
        engine.read(&mut read, &prompts[3][..prompts[3].len() - 1]).expect("it is read");
        let forked = read.clone();
        let (near, is_apart) = (engine.near_blocks(&read), engine.drafter_device().is_some());
        assert_eq!(near.len() < read.blocks().len(), is_apart, "what lies elsewhere");
        let archived = engine.archive(&read).expect("it is taken apart");
        let tokens = &prompts[3][..prompts[3].len() - 1];
        let revived = engine.revive(&archived.outline, tokens, copies(&archived));
        let revived = revived.expect("it fits");
        for sequence in [read, forked, revived] {
            let (last, all) = (&prompts[3][prompts[3].len() - 1..], &prompts[3]);
            let ends = ENDS.to_vec();
            let begun = engine.begin(sequence, last, all, sampled(), ends, |_| ());
            texts.push(begun.expect("the last token is read"));
        }
        told.extend(write(engine, &mut texts, 24).expect("rounds"));
        told
    };
    for spec in [TREE, CHAIN] {
        let here = write_all(&mut together("dense", spec));
        let there = write_all(&mut apart("dense", spec));
        assert_eq!(there, here, "{spec:?}");
        let drafted = here.iter().flat_map(|(_, lengths)| lengths).any(|length| *length > 1);
        assert!(drafted, "nothing was drafted");
        assert_eq!(here[4 + 4..].iter().filter(|told| **told == here[8]).count(), 3);
    }
}

/// Backends that count, and fail when they are told to.
fn counted(spec: Spec) -> (Engine, Faults, Faults) {
    let (target, own) = (Faults::default(), Faults::default());
    let faulty = |faults: &Faults| -> Box<dyn Backend> {
        Box::new(Faulty::new(cpu(1, Activations::Int8), faults.clone()))
    };
    let engine = pair("dense").engine_apart(faulty(&target), faulty(&own), spec);
    (engine, target, own)
}

#[test]
fn features_of_a_round_cross_in_one_copy() {
    let prompts = pair("dense").prompts("code", 3);
    let (mut apart, target, own) = counted(CHAIN);
    let all = Faults::default();
    let both = Box::new(Faulty::new(cpu(1, Activations::Int8), all.clone()));
    let mut together = pair("dense").engine_on(both, CHAIN);
    let begun = |engine: &mut Engine| -> Vec<Generation> {
        prompts.iter().map(|prompt| begin(engine, prompt, &sampled())).collect()
    };
    let (mut here, mut there) = (begun(&mut together), begun(&mut apart));
    for round in 0..4 {
        [&target, &own, &all].iter().for_each(|faults| faults.arm(None));
        let mut texts: Vec<_> = here.iter_mut().map(|text| (text, 64)).collect();
        together.step_all(&mut texts).expect("a round");
        let mut texts: Vec<_> = there.iter_mut().map(|text| (text, 64)).collect();
        apart.step_all(&mut texts).expect("a round");
        // What the drafter reads of its own is the same; what is read besides crosses.
        let reads = target.count(Fault::Read) + own.count(Fault::Read);
        assert_eq!(reads, all.count(Fault::Read) + 1, "round {round}");
        // Rows are kept for the drafter and for the next-token block.
        assert!(target.count(Fault::Write) <= 2, "round {round}");
        assert!(own.count(Fault::Launch) > 0 && target.count(Fault::Launch) == 1);
    }
}

/// Texts of a few tokens; a round, or a beginning, without room is tried again.
fn few(engine: &mut Engine, prompts: &[Vec<u32>]) -> Vec<Result<Vec<u32>, Error>> {
    let mut found = Vec::new();
    let begun = |engine: &mut Engine, prompt: &Vec<u32>| {
        let sequence = engine.sequence();
        engine.begin(sequence, prompt, prompt, sampled(), ENDS.to_vec(), |_| ())
    };
    let texts: Vec<_> = prompts
        .iter()
        .map(|prompt| begun(engine, prompt).or_else(|_| begun(engine, prompt)))
        .collect();
    let mut texts: Vec<Generation> =
        texts.into_iter().collect::<Result<_, _>>().expect("they begin the second time");
    let mut told: Vec<Result<Vec<u32>, Error>> =
        texts.iter().map(|text| Ok(vec![text.tip()])).collect();
    for _ in 0..64 {
        let going = texts.iter_mut().zip(&mut told).filter(|(_, told)| {
            told.as_ref().is_ok_and(|t| t.len() < 14 && !ENDS.contains(&t[t.len() - 1]))
        });
        let (mut turn, running): (Vec<_>, Vec<_>) = going
            .map(|(text, told)| ((text, 14 - told.as_ref().map_or(0, Vec::len)), told))
            .unzip();
        if turn.is_empty() {
            break;
        }
        let Ok(rounds) = engine.step_all(&mut turn) else { continue };
        for (round, told) in rounds.into_iter().zip(running) {
            match (round, told) {
                (Ok(round), Ok(tokens)) => tokens.extend(round.emitted),
                (Err(error), told) => *told = Err(error),
                _ => unreachable!("only those that go on have a turn"),
            }
        }
    }
    found.extend(told);
    found
}

#[test]
fn what_fails_on_either_side_harms_nobody_else() {
    let prompts: Vec<Vec<u32>> =
        pair("dense").prompts("code", 2).iter().map(|p| p[..p.len().min(40)].to_vec()).collect();
    let (mut engine, target, own) = counted(TREE);
    let right: Vec<Vec<u32>> =
        few(&mut engine, &prompts).into_iter().collect::<Result<_, _>>().expect("nothing fails");
    let held = engine.held();
    for (side, faults) in [("the drafter's", &own), ("the target's", &target)] {
        for fault in Fault::ALL {
            faults.arm(None);
            few(&mut engine, &prompts);
            let calls = faults.count(fault);
            // Every third is enough of those that there are many of.
            let step = if calls > 40 { 3 } else { 1 };
            for n in (0..calls).step_by(step) {
                faults.arm(Some((fault, n)));
                let found = few(&mut engine, &prompts);
                faults.arm(None);
                let at = format!("{side} {} {n}", fault.name());
                let ended = found.iter().filter(|text| text.is_err()).count();
                // A draft's failure is no text's.
                assert!(ended <= usize::from(side == "the target's"), "{at}: {ended} ended");
                for (text, right) in found.iter().zip(&right) {
                    assert!(text.as_ref().is_ok_and(|t| t == right) || text.is_err(), "{at}");
                }
                let next = few(&mut engine, &prompts[..1]);
                assert_eq!(next[0].as_ref().expect("the next text"), &right[0], "{at}");
                assert_eq!(engine.held(), held, "{at}: memory stays behind");
            }
        }
    }
}

#[test]
fn a_lost_device_of_the_drafter_ends_drafts_alone() {
    let prompt = &pair("dense").prompts("code", 1)[0];
    let (mut engine, _, own) = counted(TREE);
    let (right, _) = answer(&mut engine, prompt, &sampled(), 40);
    let mut text = begin(&mut engine, prompt, &sampled());
    own.lose_after(2);
    let mut tokens = vec![text.tip()];
    while tokens.len() < right.len() {
        let round = engine.step(&mut text, right.len() - tokens.len()).expect("a round");
        tokens.extend(round.emitted);
    }
    assert_eq!(tokens, right);
    assert_eq!(text.fallback(), Some("a pass of the drafter failed"));
    // A text that begins then is written plainly.
    let (tokens, lengths) = answer(&mut engine, prompt, &sampled(), 40);
    assert_eq!(tokens, right);
    assert!(lengths.iter().all(|length| *length == 1));
}

#[test]
fn a_text_that_was_away_goes_on_where_the_drafter_s_device_was_lost_meanwhile() {
    let prompt = &pair("dense").prompts("code", 1)[0];
    let (mut engine, _, own) = counted(TREE);
    let (right, _) = answer(&mut engine, prompt, &sampled(), 40);
    let mut text = begin(&mut engine, prompt, &sampled());
    let mut tokens = vec![text.tip()];
    tokens.extend(engine.step(&mut text, right.len() - 1).expect("a round").emitted);
    let away = engine.put_away(&mut text).expect("room");
    own.lose_after(0);
    // Somebody else finds out.
    answer(&mut engine, prompt, &sampled(), 4);
    engine.bring_back(&mut text, &away).expect("the target is there");
    while tokens.len() < right.len() {
        let round = engine.step(&mut text, right.len() - tokens.len()).expect("a round");
        tokens.extend(round.emitted);
    }
    assert_eq!(tokens, right);
    assert_eq!(text.fallback(), Some("a pass of the drafter failed"));
}

#[test]
fn a_kept_state_comes_back_where_the_drafter_s_device_is_lost() {
    let prompt = &pair("dense").prompts("code", 1)[0];
    let (tokens, last) = prompt.split_at(prompt.len() - 1);
    let (mut engine, _, own) = counted(TREE);
    let (right, _) = answer(&mut engine, prompt, &sampled(), 24);
    let mut read = engine.sequence();
    engine.read(&mut read, tokens).expect("it is read");
    let archived = engine.archive(&read).expect("it is taken apart");
    own.lose_after(0);
    // Somebody else finds out.
    answer(&mut engine, prompt, &sampled(), 4);
    let revived = engine.revive(&archived.outline, tokens, copies(&archived));
    let revived = revived.expect("the target is there");
    let begun = engine.begin(revived, last, prompt, sampled(), ENDS.to_vec(), |_| ());
    let mut texts = [begun.expect("the last token is read")];
    assert_eq!(write(&mut engine, &mut texts, 24).expect("rounds")[0].0, right);
}

/// What a drafter has lost its part of would leave every text undrafted that went on from it.
#[test]
fn a_state_without_the_drafter_s_part_is_not_kept() {
    let prompt = &pair("dense").prompts("code", 1)[0];
    let (mut engine, _, own) = counted(TREE);
    let mut read = |fault| {
        own.arm(fault);
        let mut read = engine.sequence();
        engine.read(&mut read, prompt).expect("it is read");
        engine.archive(&read).map(|archived| archived.blocks.len())
    };
    assert!(read(Some((Fault::Write, 0))).is_err());
    assert!(read(None).expect("it is whole") > 0);
}

/// Room that nobody could make for a text on the drafter's side costs it its drafts alone.
#[test]
fn a_text_that_outgrows_the_drafter_s_memory_goes_on_without_it() {
    let prompt = &pair("dense").prompts("code", 1)[0];
    let mut engine = apart("dense", TREE);
    let budget = engine.drafter_backend().expect("it has its own").budget().clone();
    let text = begin(&mut engine, prompt, &sampled());
    let begun = budget.held();
    drop(text);
    let (right, _) = answer(&mut engine, prompt, &sampled(), 80);
    for eighths in 0..16 {
        budget.set_limit(begun / 8 * eighths);
        assert_eq!(answer(&mut engine, prompt, &sampled(), 80).0, right, "{eighths}");
    }
    assert_eq!(budget.held(), 0);
    // What others hold they can let go of.
    let long = prompt.repeat(3);
    budget.set_limit(usize::MAX);
    let other = begin(&mut engine, &long, &sampled());
    budget.set_limit(budget.held());
    let sequence = engine.sequence();
    let begun = engine.begin(sequence, prompt, prompt, sampled(), ENDS.to_vec(), |_| ());
    assert!(begun.is_err_and(|error| error.is_out_of_memory()));
    drop(other);
    let (tokens, lengths) = answer(&mut engine, prompt, &sampled(), 80);
    assert_eq!(tokens, right);
    assert!(lengths.iter().any(|length| *length > 1), "it is drafted");
}

#[test]
fn each_side_is_counted_what_lies_there() {
    let pair = pair("dense");
    let count = |backends: Backends, with_drafter: bool| {
        let target = (&pair.target.config, &pair.target.weights as &dyn WeightSource);
        let drafter = (&pair.drafter.config, &pair.drafter.weights as &dyn WeightSource);
        let memory = (KvType::F16, Placement::ON_DEVICE);
        let drafter = with_drafter.then_some(drafter);
        Engine::load_placed(backends, target, drafter, memory, Spec::Off).expect("it loads")
    };
    let ledger = || Ledger::new(256);
    let boxed = |ledger: &Ledger| -> Box<dyn Backend> { Box::new(ledger.clone()) };
    let (alone, both, target, own) = (ledger(), ledger(), ledger(), ledger());
    count(boxed(&alone).into(), false);
    let whole = count(boxed(&both).into(), true);
    let engine = count(Backends::apart(boxed(&target), boxed(&own), "elsewhere"), true);
    assert_eq!(target.bill().weights, alone.bill().weights, "the target's own");
    let drafter = both.bill().weights - alone.bill().weights;
    assert!(own.bill().weights > drafter, "copies of the table and the head");
    assert!(own.bill().tables > 0 && own.bill().weights < alone.bill().weights + drafter);
    assert_eq!(
        engine.state_bytes(1000) + engine.own_state_bytes(1000),
        whole.state_bytes(1000),
        "state lies on one of the two"
    );
    assert!(engine.own_state_bytes(1000) > 0 && whole.own_state_bytes(1000) == 0);
}
