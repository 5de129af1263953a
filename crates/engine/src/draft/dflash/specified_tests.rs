//! What the specification of DFlash 2 asks to be tested, one by one: random weights, but for the
//! last. `tests.rs` has whole passes against a plain forward pass besides.

use super::tests::{Fixture, best, dflash2, plain, untouched};
use super::*;
use crate::sampling::Sampling;
use crate::{Engine, Spec};
use checkpoint::{Drafter as File, Overrides, Target};
use compute::{Activations, Cpu, CpuLevel, KvType};

/// Ids of a position's candidates, best first.
fn candidates(fixture: &Fixture, positions: usize) -> Vec<Vec<u32>> {
    let Candidates { buf, count } = fixture.drafter.candidates.expect("it selects");
    let numbers = fixture.drafter.block.first_rows(buf, positions).expect("a buffer");
    let ids = |row: &[f32]| row[..count].iter().map(|id| *id as u32).collect();
    numbers.chunks_exact(count * (2 + count)).map(ids).collect()
}

#[test]
fn first_a_base_kernel_of_one_and_no_projection_is_the_first_generation() {
    let identity = |name: &str, x: &mut [f32]| {
        if name.ends_with("conv_base") {
            // [2 sides, 2 taps, hidden]: the row itself, nothing of the one before.
            let hidden = x.len() / 4;
            x.chunks_exact_mut(hidden).enumerate().for_each(|(i, x)| x.fill((i % 2 == 0).into()));
        } else if name.contains("conv_proj") || name.contains("successor") {
            x.fill(0.0);
        }
    };
    let mut second = Fixture::new(&dflash2(), identity);
    let mut first = Fixture::new(&plain(), untouched);
    let [one, two] = [&mut first, &mut second].map(|fixture| {
        let (state, _) = fixture.read(3);
        fixture.fill_in(&state, 77, 8, 1);
        fixture.logits(7)
    });
    assert!(one == two, "logits differ in a bit");
}

#[test]
fn second_a_successor_codebook_of_zeros_chooses_by_logits_alone() {
    let zeros = |name: &str, x: &mut [f32]| {
        if name == "selector_successor.weight" {
            x.fill(0.0);
        }
    };
    let mut fixture = Fixture::new(&dflash2(), zeros);
    let (state, _) = fixture.read(3);
    let chain = fixture.fill_in(&state, 8, 8, 1).best_first(64);
    assert_eq!(chain.nodes.len(), 7);
    for (node, logits) in chain.nodes.iter().zip(fixture.logits(7)) {
        assert_eq!(node.token, best(&logits, 4000, 1)[0]);
    }
}

/// Attention inside a block sees later rows; where it does not, nothing does.
#[test]
fn third_no_convolution_sees_a_later_row() {
    let mut config = dflash2();
    let logits_of = |config: &DrafterConfig, rows: usize| {
        let mut fixture = Fixture::new(config, untouched);
        let (state, _) = fixture.read(3);
        fixture.fill_in(&state, 77, rows, 1);
        fixture.logits(rows - 1)
    };
    let short = logits_of(&config, 5);
    assert!(logits_of(&config, 8)[..4] != short, "they look both ways");
    config.layers.iter_mut().for_each(|layer| layer.causal = true);
    let short = logits_of(&config, 5);
    assert!(logits_of(&config, 8)[..4] == short);
    assert!(logits_of(&config, 16)[..4] == short);
}

/// Ten texts by passes over several of them, and each alone.
pub(super) fn check_company(config: &DrafterConfig) {
    let mut fixture = Fixture::new(config, untouched);
    let states: Vec<DraftState> = (0..10).map(|seed| fixture.read(seed).0).collect();
    for rows in [5, 8, 13] {
        let texts: Vec<_> = states.iter().zip(40..).collect();
        let together = fixture.drafter.fill_in(&mut fixture.cpu, &texts, rows, 16).expect("a pass");
        for ((state, tip), together) in texts.into_iter().zip(together) {
            assert_eq!(Some(fixture.fill_in(state, tip, rows, 16)), together, "{rows} rows");
        }
    }
}

#[test]
fn fourth_blocks_in_company_are_as_if_alone() {
    check_company(&dflash2());
}

#[test]
fn fifth_before_the_first_slot_there_is_the_anchor_alone() {
    let mut fixture = Fixture::new(&dflash2(), untouched);
    let (state, _) = fixture.read(3);
    fixture.fill_in(&state, 77, 8, 16);
    let Candidates { buf, count } = fixture.drafter.candidates.expect("it selects");
    let width = count * (2 + count);
    let numbers = fixture.drafter.block.first_rows(buf, 2).expect("a buffer");
    let same = |slot: usize| {
        let mut rows = numbers[slot * width..][..width][2 * count..].chunks_exact(count);
        let first = rows.next().expect("a row").to_vec();
        rows.all(|row| row == first)
    };
    assert!(same(0), "the anchor is before all");
    assert!(!same(1), "there are several before the second");
}

/// Tokens have equal logits by fives, so at the edge of the best 16 there are some.
#[test]
fn sixth_of_equal_logits_the_lower_ids_are_candidates() {
    let by_fives = |name: &str, x: &mut [f32]| {
        if name == "output.weight" {
            let hidden = x.len() / 4096;
            for rows in x.chunks_exact_mut(5 * hidden) {
                (1..5).for_each(|i| rows.copy_within(..hidden, i * hidden));
            }
        }
    };
    let mut fixture = Fixture::beside(by_fives, &dflash2(), untouched);
    let (state, _) = fixture.read(3);
    fixture.fill_in(&state, 77, 8, 16);
    for (ids, logits) in candidates(&fixture, 7).iter().zip(fixture.logits(7)) {
        assert_eq!(ids, &best(&logits, 4000, 16));
        // Sixteen are three groups of five and the first of a fourth.
        let edge = ids[15];
        assert_eq!(edge % 5, 0);
        assert_eq!(logits[edge as usize].to_bits(), logits[edge as usize + 1].to_bits());
    }
}

/// Padding rows of the head that would win are never proposed.
#[test]
fn seventh_padding_is_never_proposed() {
    let loud = |name: &str, x: &mut [f32]| {
        if name == "output.weight" {
            let hidden = x.len() / 4096;
            x[4000 * hidden..].iter_mut().for_each(|x| *x *= 50.0);
        }
    };
    let mut fixture = Fixture::beside(loud, &dflash2(), untouched);
    let (state, _) = fixture.read(3);
    fixture.fill_in(&state, 77, 16, 16);
    assert!(fixture.logits(15).iter().all(|logits| best(logits, 4096, 1)[0] >= 4000));
    assert!(candidates(&fixture, 15).concat().iter().all(|id| *id < 4000));
}

/// On the tiny pair, by the greedy answers to a prompt of each suite.
#[test]
fn eighth_the_selector_accepts_no_less_than_logits_alone() {
    let files = testing::Pair::dense();
    let target = Target::open(&files.target).expect("the target opens");
    let file = files.target.with_file_name("draft2-Q8_0.gguf");
    let file = File::open(&file, &Overrides::default(), Some(&target.config)).expect("it opens");
    let mut without = file.config.clone();
    without.extras.selector = None;
    let chain = Spec::Chain { block: 8, budget: 7 };
    let [with, without] = [&file.config, &without].map(|config| {
        let cpu = Box::new(Cpu::new(CpuLevel::detect(), 2, Activations::F32));
        let weights = (&target.config, &target.weights as &dyn WeightSource);
        let drafter = (config, &file.weights as &dyn WeightSource);
        let mut engine =
            Engine::load(cpu, weights, Some(drafter), KvType::F16, chain).expect("it loads");
        let (mut tokens, mut rounds) = (0, 0);
        for golden in testing::prompts(&testing::goldens(), "dense-q4") {
            let prompt = testing::ids(&golden["prompt_ids"]);
            if golden["suite"] != "complete" || prompt.len() > 300 {
                continue;
            }
            let sequence = engine.sequence();
            let begun =
                engine.begin(sequence, &prompt, &prompt, Sampling::default(), vec![], |_| ());
            let (mut text, mut written) = (begun.expect("the prompt is read"), 1);
            while written < 48 {
                let round = engine.step(&mut text, 48 - written).expect("a round");
                written += round.emitted.len();
                (tokens, rounds) = (tokens + round.accept_length(), rounds + 1);
            }
        }
        f64::from(tokens as u32) / f64::from(rounds)
    });
    assert!(with > 1.5 && with >= without, "{with} with the selector, {without} without");
}
