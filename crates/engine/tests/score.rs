//! Scores of a prompt's tokens: the same numbers however it is cut, a state that is left as if
//! nobody had asked, and how near they are to those of the plain float32 ops.

mod support;

use compute::{Activations, Backend, reference::Reference};
use engine::sampling::{Likelihood, Sampling};
use engine::{Engine, Error, Spec};
use support::{CHAIN, ids, pair};

fn cpu(activations: Activations) -> Box<dyn Backend> {
    support::cpu(1, activations)
}

/// Reads all of a text but its last token in chunks of these sizes, again and again.
fn score(
    engine: &mut Engine,
    text: &[u32],
    sizes: &[usize],
) -> (engine::Sequence, Vec<Likelihood>) {
    let mut sequence = engine.sequence();
    let mut scores = Vec::new();
    for size in sizes.iter().cycle() {
        let from = sequence.committed();
        let to = (from + size).min(text.len() - 1);
        if from == to {
            break;
        }
        let (tokens, following) = (&text[from..to], &text[from + 1..=to]);
        scores.extend(engine.read_scored(&mut sequence, tokens, following, 3).expect("it is read"));
    }
    (sequence, scores)
}

#[test]
fn scores_do_not_depend_on_how_a_prompt_is_cut() {
    let text: Vec<u32> = (0..201).map(|i| 260 + i * 7919 % 3500).collect();
    for name in ["dense", "moe"] {
        let pair = pair(name);
        let mut first: Option<Vec<Likelihood>> = None;
        // Only the dense target has an MTP block.
        let third = if name == "dense" { Spec::Mtp { depth: 3 } } else { CHAIN };
        for spec in [Spec::Off, CHAIN, third] {
            let mut engine = pair.engine_on(cpu(Activations::Int8), spec);
            let mut plain = engine.sequence();
            text[..200]
                .chunks(100)
                .for_each(|chunk| engine.read(&mut plain, chunk).expect("it is read"));
            for sizes in [&[64][..], &[1], &[7, 64, 30]] {
                let (sequence, scores) = score(&mut engine, &text, sizes);
                assert_eq!(scores.len(), 200);
                assert!(scores.iter().zip(&text[1..]).all(|(score, token)| score.token == *token));
                assert!(
                    *first.get_or_insert_with(|| scores.clone()) == scores,
                    "{name} {spec:?} {sizes:?}"
                );
                let next = |engine: &mut Engine, sequence| {
                    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
                    let begun =
                        engine.begin(sequence, &text[200..], &text, sampling, vec![], |_| ());
                    let mut begun = begun.expect("the last token is read");
                    engine.step(&mut begun, 8).expect("a round").emitted
                };
                assert_eq!(next(&mut engine, sequence), next(&mut engine, plain.clone()));
            }
        }
    }
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let mut engine = pair("dense").engine_on(cpu(Activations::Int8), Spec::Off);
    let mut sequence = engine.sequence();
    let too_many = vec![300; engine.scored_rows() + 1];
    let refused = engine.read_scored(&mut sequence, &too_many, &too_many, 0);
    assert!(matches!(refused, Err(Error::PassTooLarge { .. })), "{refused:?}");
    let refused = engine.read_scored(&mut sequence, &[300], &[1 << 20], 0);
    assert!(matches!(refused, Err(Error::Token { .. })), "{refused:?}");
    assert_eq!(sequence.committed(), 0);
}

/// The texts that the target itself wrote to the prompts that are kept.
fn golden_texts() -> Vec<Vec<u32>> {
    let golden = pair("dense").golden;
    golden
        .iter()
        .map(|prompt| [ids(&prompt["prompt_ids"]), ids(&prompt["greedy_ids"])].concat())
        .collect()
}

#[test]
fn scores_are_near_those_of_float32() {
    let mut reference = pair("dense").engine_on(Box::new(Reference::default()), Spec::Off);
    let mut whole = pair("dense").engine_on(cpu(Activations::F32), Spec::Off);
    let mut rounded = pair("dense").engine_on(cpu(Activations::Int8), Spec::Off);
    let texts: Vec<Vec<u32>> = golden_texts().into_iter().step_by(4).collect();
    let mut worst = [(0.0f64, 0.0f64); 2];
    for text in &texts {
        let expected = score(&mut reference, text, &[64]).1;
        for (engine, worst) in [&mut whole, &mut rounded].into_iter().zip(&mut worst) {
            let off = score(engine, text, &[64]).1.into_iter().zip(&expected);
            let off: Vec<f64> =
                off.map(|(got, e)| f64::from(got.logprob) - f64::from(e.logprob)).collect();
            worst.0 = off.iter().fold(worst.0, |worst, off| worst.max(off.abs()));
            worst.1 = worst.1.max(off.iter().sum::<f64>().abs());
        }
    }
    let tokens: usize = texts.iter().map(|text| text.len() - 1).sum();
    println!("{} texts, {tokens} tokens", texts.len());
    for (name, (token, text)) in ["f32", "int8"].iter().zip(worst) {
        println!("{name} activations: worst token off by {token:.2e}, worst text by {text:.2e}");
    }
    assert!(worst[0].1 < 1e-2, "{worst:?}");
    assert!(worst[1].0 < 0.5, "{worst:?}");
}
