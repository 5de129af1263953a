//! Speculation: the same tokens in every mode, whatever the drafter is and however its context
//! was read.

mod support;

use compute::{Activations, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Generation, Spec, Tensor, WeightSource};
use formats::BlockType;
use std::borrow::Cow;
use support::{CHAIN, ENDS, answer, begin, ids, pair};

fn sampled(seed: u64) -> Sampling {
    Sampling {
        temperature: if seed.is_multiple_of(2) { 1.0 } else { 0.7 },
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        seed,
        ..Sampling::default()
    }
}

#[test]
fn every_mode_writes_the_same_text() {
    let modes = [
        CHAIN,
        Spec::Chain { block: 8, budget: 5 },
        Spec::Tree { block: 16, budget: 40 },
        Spec::Tree { block: 4, budget: 8 },
        Spec::Mtp { depth: 3 },
        Spec::Lookup { budget: 15 },
        Spec::Auto { block: 16, budget: 63 },
    ];
    let (f16, q8, q4, q4h) = (KvType::F16, KvType::Q8_0, KvType::Q4_0, KvType::Q4_0H);
    for (name, kv) in [("dense", f16), ("dense", q8), ("moe", q4), ("dense", q4h)] {
        let pair = pair(name);
        let mut engine = pair.engine(kv, Activations::Int8, Spec::Auto { block: 16, budget: 63 });
        let prompts = [pair.prompts("math", 1), pair.prompts("complete", 1)].concat();
        for sampling in [Sampling::default(), sampled(1), sampled(2)] {
            for prompt in &prompts {
                engine.set_spec(Spec::Off);
                let (plain, lengths) = answer(&mut engine, prompt, &sampling, 72);
                assert!(lengths.iter().all(|l| *l == 1));
                for mode in modes {
                    if matches!(mode, Spec::Mtp { .. }) && name == "moe" {
                        continue;
                    }
                    engine.set_spec(mode);
                    let (tokens, _) = answer(&mut engine, prompt, &sampling, 72);
                    assert_eq!(tokens, plain, "{name} {kv:?} {mode:?} {sampling:?}");
                }
            }
        }
    }
}

/// What the next-token block and the drafter keep after many rounds is what a fresh reading of the
/// text gives: the rounds that follow are the same.
#[test]
fn drafters_go_on_as_if_the_text_had_just_been_read() {
    let pair = pair("dense");
    for spec in [Spec::Mtp { depth: 3 }, CHAIN, Spec::Tree { block: 16, budget: 22 }] {
        let mut engine = pair.engine(KvType::F16, Activations::Int8, spec);
        let prompt = &pair.prompts("math", 1)[0];
        let (tokens, lengths) = answer(&mut engine, prompt, &Sampling::default(), 64);
        for rounds in [1, lengths.len() / 2, lengths.len() - 1] {
            let read: usize = lengths[..rounds].iter().sum();
            let longer = [prompt, &tokens[..read.min(tokens.len() - 1)]].concat();
            let (_, rest) = answer(&mut engine, &longer, &Sampling::default(), 64 - read.min(63));
            assert_eq!(
                rest,
                lengths[rounds..],
                "{spec:?} after {rounds} of {} rounds",
                lengths.len()
            );
        }
    }
}

/// Texts that are drafted, verified and judged together, more than a drafter's pass holds.
#[test]
fn several_texts_in_one_pass_are_each_their_own() {
    let pair = pair("dense");
    let prompts =
        [pair.prompts("code", 3), pair.prompts("math", 3), pair.prompts("complete", 4)].concat();
    let pinned = [
        Spec::Tree { block: 8, budget: 5 },
        Spec::Chain { block: 16, budget: 5 },
        Spec::Mtp { depth: 3 },
        Spec::Lookup { budget: 5 },
        Spec::Off,
    ];
    for spec in pinned.into_iter().chain([Spec::Auto { block: 16, budget: 22 }]) {
        let mut engine = pair.engine(KvType::F16, Activations::Int8, spec);
        let alone: Vec<_> = prompts
            .iter()
            .zip(0..)
            .map(|(p, seed)| answer(&mut engine, p, &sampled(seed), 40))
            .collect();
        let mut texts: Vec<Generation> = prompts
            .iter()
            .zip(0..)
            .map(|(p, seed)| begin(&mut engine, p, &sampled(seed)))
            .collect();
        let mut together: Vec<_> =
            texts.iter().map(|text| (vec![text.tip()], Vec::new())).collect();
        loop {
            let is_open = |t: &[u32]| t.len() < 40 && !ENDS.contains(&t[t.len() - 1]);
            let (mut turn, mut running) = (Vec::new(), Vec::new());
            for (text, told) in
                texts.iter_mut().zip(&mut together).filter(|(_, told)| is_open(&told.0))
            {
                turn.push((text, 40 - told.0.len()));
                running.push(told);
            }
            if turn.is_empty() {
                break;
            }
            let rounds = engine.step_all(&mut turn).expect("a pass");
            for (round, (tokens, lengths)) in rounds.into_iter().zip(running) {
                let round = round.expect("a round");
                lengths.push(round.accept_length());
                tokens.extend(round.emitted);
            }
        }
        for (i, (alone, together)) in alone.iter().zip(&together).enumerate() {
            assert_eq!(alone.0, together.0, "{spec:?}, text {i}");
            // What is drafted does not depend on company either, where its size does not.
            if pinned.contains(&spec) {
                assert_eq!(alone.1, together.1, "{spec:?}, text {i}");
            }
        }
    }
}

/// What is done to the numbers of a tensor of that name.
type Change = fn(&str, &mut [f32]);

/// A drafter's weights with something done to each tensor's numbers.
struct Altered<'a> {
    weights: &'a checkpoint::Weights,
    change: Change,
}

impl WeightSource for Altered<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let weight = self.weights.get(name)?;
        let mut numbers = self.weights.decode(weight);
        (self.change)(name, &mut numbers);
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Some(Tensor { ty: BlockType::F32, shape: weight.shape.clone(), bytes: Cow::Owned(bytes) })
    }
}

#[test]
fn a_bad_drafter_changes_no_token() {
    let pair = pair("dense");
    let noise = |_: &str, x: &mut [f32]| {
        let mut state = 1u32;
        x.iter_mut().for_each(|x| {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            *x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
        });
    };
    let changes: [(&str, Change); 4] = [
        ("random", noise),
        ("constant", |_, x| x.fill(0.25)),
        // The opposite of what it learnt.
        ("adversarial", |name, x| {
            if name == "output_norm.weight" {
                x.iter_mut().for_each(|x| *x = -*x)
            }
        }),
        ("not a number", |name, x| {
            if name == "fc.weight" {
                x.fill(f32::NAN)
            }
        }),
    ];
    let prompt = &pair.prompts("math", 1)[0];
    let mut engine = pair.engine(KvType::F16, Activations::Int8, Spec::Off);
    let plain: Vec<Vec<u32>> = [Sampling::default(), sampled(3)]
        .iter()
        .map(|s| answer(&mut engine, prompt, s, 40).0)
        .collect();
    for (name, change) in changes {
        let weights = Altered { weights: &pair.drafter.weights, change };
        for spec in
            [CHAIN, Spec::Tree { block: 16, budget: 22 }, Spec::Auto { block: 16, budget: 63 }]
        {
            let mut engine = pair.engine_with(
                &pair.drafter.config,
                &weights,
                KvType::F16,
                Activations::Int8,
                spec,
            );
            for (sampling, plain) in [Sampling::default(), sampled(3)].iter().zip(&plain) {
                let mut text = begin(&mut engine, prompt, sampling);
                let mut tokens = vec![text.tip()];
                while tokens.len() < 40 && !ENDS.contains(&tokens[tokens.len() - 1]) {
                    tokens.extend(
                        engine.step(&mut text, 40 - tokens.len()).expect("a round").emitted,
                    );
                }
                assert_eq!(&tokens, plain, "{name} {spec:?}");
                let fallback =
                    (name == "not a number").then_some("the drafter's logits are not numbers");
                assert_eq!(text.fallback(), fallback, "{name} {spec:?}");
            }
        }
    }
}

/// Drafts after reading a prompt in one go equal those of a context built token by token.
#[test]
fn the_context_does_not_depend_on_how_it_was_read() {
    for name in ["dense", "moe"] {
        let pair = pair(name);
        let prompt = ids(&pair
            .golden
            .iter()
            .find(|g| g["suite"] == "long")
            .expect("a long prompt")["prompt_ids"]);
        let mut engine = pair.engine(KvType::F16, Activations::Int8, CHAIN);
        let mut logits = Vec::new();
        for chunks in [vec![prompt.len()], vec![1, 63, 64, 65, 200], vec![7; 100]] {
            let mut sequence = engine.sequence();
            let mut read = 0;
            for chunk in chunks {
                let end = (read + chunk).min(prompt.len());
                if end > read && end < prompt.len() {
                    let text = engine.begin(
                        sequence,
                        &prompt[read..end],
                        &[],
                        Sampling::default(),
                        vec![],
                        |_| (),
                    );
                    sequence = text.expect("the prompt is read").into_sequence();
                    read = end;
                }
            }
            let text = engine.begin(
                sequence,
                &prompt[read..],
                &prompt,
                Sampling::default(),
                vec![],
                |_| (),
            );
            engine.step(&mut text.expect("the prompt is read"), 16).expect("a round");
            let drafter = engine.drafter("dflash").expect("a drafter");
            logits.push(
                (0..15)
                    .flat_map(|i| {
                        drafter
                            .logits(i)
                            .expect("logits")
                            .iter()
                            .map(|x| x.to_bits())
                            .collect::<Vec<_>>()
                    })
                    .collect::<Vec<u32>>(),
            );
        }
        assert!(
            logits.windows(2).all(|pair| pair[0] == pair[1]),
            "{name}: drafts differ with the chunking"
        );
    }
}

/// A context that grew with the text gives the drafts of one built anew, round for round, at every
/// length: nothing wraps, and nothing happens at 4096. `FORERUN_LONG_CONTEXT=1` goes on to 16K,
/// which takes minutes.
#[test]
fn long_contexts_draft_as_if_read_at_once() {
    let pair = pair("dense");
    let mut engine = pair.engine(KvType::F16, Activations::Int8, CHAIN);
    let some: Vec<u32> = pair.golden.iter().flat_map(|g| ids(&g["prompt_ids"])).collect();
    let text: Vec<u32> = some.iter().copied().cycle().take(16_384).collect();
    let three_rounds = |engine: &mut Engine, mut text: Generation| {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let round = engine.step(&mut text, 64).expect("a round");
            let logits = engine.drafter("dflash").expect("a drafter").logits(4).expect("logits");
            seen.push((
                round.emitted,
                round.accepted,
                logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>(),
            ));
        }
        seen
    };
    let mut grown = engine.sequence();
    let lengths: &[usize] = match std::env::var_os("FORERUN_LONG_CONTEXT") {
        Some(_) => &[1024, 4095, 4096, 4097, 8192, 16_384],
        None => &[1024, 4095, 4097],
    };
    for &length in lengths {
        let unread = &text[grown.committed()..length];
        let generation = engine
            .begin(grown, unread, &[], Sampling::default(), vec![], |_| ())
            .expect("it reads");
        let snapshot = generation.sequence().clone();
        let by_growing = three_rounds(&mut engine, generation);
        let empty = engine.sequence();
        let generation =
            engine.begin(empty, &text[..length], &[], Sampling::default(), vec![], |_| ());
        let at_once = three_rounds(&mut engine, generation.expect("it reads"));
        assert!(by_growing == at_once, "rounds differ at {length} tokens");
        grown = snapshot;
    }
}
