//! Drafters of the second generation in whole rounds: one that adds nothing to a first-generation
//! drafter is that drafter, and none changes a token.

mod support;

use checkpoint::drafter::{BlockConv, Confidence, Extras, Markov, Selector};
use checkpoint::{Drafter, DrafterConfig, Overrides};
use compute::{Activations, KvType};
use engine::sampling::Sampling;
use engine::synthetic::{Mix, Weights};
use engine::{Engine, Spec, Tensor, WeightSource};
use formats::BlockType;
use std::borrow::Cow;
use support::{CHAIN, Pair, answer, begin, ids, pair};

const TREE: Spec = Spec::Tree { block: 16, budget: 8 };

fn selector() -> Extras {
    Extras {
        conv: Some(BlockConv { kernel: 2, group: 16 }),
        selector: Some(Selector { rank: 32, top_k: 16, vocab: 4096 }),
        ..Extras::default()
    }
}

fn markov(sample_from_anchor: bool) -> Extras {
    Extras {
        markov: Some(Markov { rank: 32, vocab: 4096 }),
        confidence: Some(Confidence { with_markov: true, bias: false }),
        sample_from_anchor,
        ..Extras::default()
    }
}

/// A drafter of the first generation with parts of later ones that add nothing: convolutions that
/// are the identity, a term that is zero.
struct Neutral<'a> {
    weights: &'a checkpoint::Weights,
    /// Shapes of what is added, and noise where it must not matter.
    added: Weights,
}

impl WeightSource for Neutral<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        if let Some(weight) = self.weights.get(name) {
            let (ty, shape) = (weight.ty, weight.shape.clone());
            return Some(Tensor { ty, shape, bytes: self.weights.bytes(weight) });
        }
        let added = self.added.tensor(name)?;
        let mut numbers = vec![0f32; added.shape.iter().product()];
        if name.ends_with("conv_base") {
            let (taps, cols) = (added.shape[1], added.shape[2]);
            let own =
                numbers.iter_mut().enumerate().filter(|(i, _)| (i / cols).is_multiple_of(taps));
            own.for_each(|(_, x)| *x = 1.0);
        } else if !name.contains("conv_proj") && !name.contains("successor") && !name.contains("w2")
        {
            return Some(added);
        }
        let bytes = Cow::Owned(numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
        Some(Tensor { ty: BlockType::F32, shape: added.shape, bytes })
    }
}

/// What the first generation's drafter of a pair would be with all that.
fn config_with(pair: &Pair, extras: Extras) -> DrafterConfig {
    DrafterConfig { extras, ..pair.drafter.config.clone() }
}

/// Tokens and acceptance lengths of a few answers, and the bits of the last draft's logits.
fn seen(engine: &mut Engine, pair: &Pair) -> Vec<(Vec<u32>, Vec<usize>, Vec<u32>)> {
    let mut all = Vec::new();
    for prompt in [pair.prompts("math", 1), pair.prompts("complete", 1)].concat() {
        for spec in [CHAIN, TREE] {
            engine.set_spec(spec);
            let (tokens, lengths) = answer(engine, &prompt, &Sampling::default(), 48);
            let drafter = engine.drafter("dflash").expect("a drafter");
            let logits = (0..15).flat_map(|i| drafter.logits(i).expect("logits").into_owned());
            all.push((tokens, lengths, logits.map(f32::to_bits).collect()));
        }
    }
    all
}

#[test]
fn what_adds_nothing_to_the_first_generation_is_the_first_generation() {
    let pair = pair("dense");
    let mut first = pair.engine(KvType::F16, Activations::Int8, CHAIN);
    let expected = seen(&mut first, &pair);
    assert!(expected.iter().any(|(_, lengths, _)| lengths.iter().any(|l| *l > 2)));
    let no_doubt = Extras { confidence: None, ..markov(false) };
    for extras in [selector(), no_doubt] {
        let config = config_with(&pair, extras);
        let added = Weights::of_drafter(&config, Mix::Q8_0, 5);
        let weights = Neutral { weights: &pair.drafter.weights, added };
        let mut second = pair.engine_with(&config, &weights, KvType::F16, Activations::Int8, CHAIN);
        assert!(seen(&mut second, &pair) == expected, "{:?}", config.extras);
    }
}

/// Drafters of noise propose and are refused; all modes write the target's own text, at every
/// temperature, also with blocks wider than was trained.
#[test]
fn drafters_of_later_generations_change_no_token() {
    let pair = pair("dense");
    let prompt = &pair.prompts("code", 1)[0];
    let sampled = |temperature: f32, seed: u64| Sampling {
        temperature,
        top_p: 0.95,
        seed,
        ..Sampling::default()
    };
    let samplings = [Sampling::default(), sampled(0.7, 3), sampled(1.0, 4)];
    let mut plain = pair.engine(KvType::F16, Activations::Int8, Spec::Off);
    let expected: Vec<Vec<u32>> =
        samplings.iter().map(|s| answer(&mut plain, prompt, s, 40).0).collect();
    let mut drafted = 0;
    for extras in [selector(), markov(true), markov(false)] {
        let config = DrafterConfig { block: 8, ..config_with(&pair, extras) };
        let weights = Weights::of_drafter(&config, Mix::Q8_0, 7);
        let modes = [
            Spec::Chain { block: 8, budget: 7 },
            Spec::Tree { block: 16, budget: 20 },
            Spec::Auto { block: 16, budget: 63 },
        ];
        for spec in modes {
            let mut engine =
                pair.engine_with(&config, &weights, KvType::F16, Activations::Int8, spec);
            for (sampling, expected) in samplings.iter().zip(&expected) {
                let (tokens, lengths) = answer(&mut engine, prompt, sampling, 40);
                assert_eq!(&tokens, expected, "{spec:?} {:?}", config.extras);
                drafted += lengths.len();
            }
        }
    }
    assert!(drafted > 0);
}

/// The dense target with its trained drafter of the second generation.
fn trained() -> Pair {
    let mut pair = pair("dense");
    let file = testing::Pair::dense().target.with_file_name("draft2-Q8_0.gguf");
    let drafter = Drafter::open(&file, &Overrides::default(), Some(&pair.target.config));
    pair.drafter = drafter.expect("the drafter opens");
    pair
}

/// Mean acceptance length over the greedy answers of all suites but the long texts.
fn acceptance(engine: &mut Engine, pair: &Pair, spec: Spec) -> f64 {
    engine.set_spec(spec);
    let mut lengths = Vec::new();
    for golden in pair.golden.iter().filter(|golden| golden["suite"] != "long") {
        let (prompt, expected) = (ids(&golden["prompt_ids"]), ids(&golden["greedy_ids"]));
        lengths.extend(answer(engine, &prompt, &Sampling::default(), expected.len()).1);
    }
    lengths.iter().sum::<usize>() as f64 / lengths.len() as f64
}

#[test]
fn the_selector_and_trees_are_worth_having() {
    let pair = trained();
    let chain = Spec::Chain { block: 8, budget: 7 };
    let mut with = pair.engine(KvType::F16, Activations::F32, chain);
    let mut config = pair.drafter.config.clone();
    config.extras.selector = None;
    let weights = &pair.drafter.weights;
    let mut without = pair.engine_with(&config, weights, KvType::F16, Activations::F32, chain);
    let (with_selector, by_logits) =
        (acceptance(&mut with, &pair, chain), acceptance(&mut without, &pair, chain));
    let tree = acceptance(&mut with, &pair, Spec::Tree { block: 8, budget: 22 });
    println!("chain {with_selector:.3}, by logits {by_logits:.3}, tree {tree:.3}");
    assert!(with_selector > by_logits, "{with_selector} with the selector, {by_logits} without");
    assert!(tree >= with_selector, "{tree} of a tree, {with_selector} of its chain");
}

/// All modes of the trained drafter write the target's own text, in company too.
#[test]
fn the_trained_drafter_changes_no_token() {
    let pair = trained();
    let prompts = [pair.prompts("code", 2), pair.prompts("complete", 2)].concat();
    let sampling =
        |seed: u64| Sampling { temperature: seed as f32 * 0.35, seed, ..Sampling::default() };
    let mut engine =
        pair.engine(KvType::F16, Activations::Int8, Spec::Auto { block: 16, budget: 63 });
    let mut told = |spec: Spec| -> Vec<Vec<u32>> {
        engine.set_spec(spec);
        let ask =
            |(prompt, seed): (&Vec<u32>, u64)| answer(&mut engine, prompt, &sampling(seed), 56).0;
        prompts.iter().zip(0..).map(ask).collect()
    };
    let plain = told(Spec::Off);
    for spec in [
        Spec::Chain { block: 8, budget: 7 },
        Spec::Chain { block: 16, budget: 15 },
        Spec::Tree { block: 8, budget: 22 },
        Spec::Tree { block: 16, budget: 40 },
        Spec::Auto { block: 16, budget: 63 },
    ] {
        assert_eq!(told(spec), plain, "{spec:?}");
    }
    let chain = Spec::Chain { block: 8, budget: 7 };
    engine.set_spec(chain);
    let alone: Vec<_> = prompts
        .iter()
        .zip(0..)
        .map(|(prompt, seed)| answer(&mut engine, prompt, &sampling(seed), 40))
        .collect();
    let mut texts: Vec<_> = prompts
        .iter()
        .zip(0..)
        .map(|(prompt, seed)| begin(&mut engine, prompt, &sampling(seed)))
        .collect();
    // As many rounds as the shortest answer has, all texts in one pass.
    let rounds = alone.iter().map(|(_, lengths)| lengths.len()).min().expect("answers") - 1;
    for round in 0..rounds {
        let mut turn: Vec<_> = texts.iter_mut().map(|text| (text, 40)).collect();
        let together = engine.step_all(&mut turn).expect("a pass");
        for (i, together) in together.into_iter().enumerate() {
            let length = together.expect("a round").accept_length();
            assert_eq!(length, alone[i].1[round], "text {i}, round {round}");
        }
    }
    assert!(rounds > 0);
}
