//! The trained tiny DFlash 2 drafter against float32 results of a reference that knows nothing of
//! this engine: logits, candidates, their scores after each candidate before, and the walk.

use super::*;
use crate::model::{Options, chain};
use checkpoint::{Drafter as File, Overrides, Target};
use compute::{Activations, Cpu, CpuLevel, KvType};
use testing::{Pair, Tensors};

/// What the reference says of one block.
struct Golden {
    anchor: u32,
    logits: Option<Vec<Vec<f32>>>,
    /// [slots][candidates].
    candidates: Vec<Vec<u32>>,
    /// [slots * candidates][candidates]: score of a candidate after one of the slot before.
    lattice: Vec<Vec<f32>>,
    walk: Vec<u32>,
}

impl Golden {
    fn read(tensors: &Tensors, name: &str) -> Self {
        let part = |part: &str| format!("{name}.{part}");
        let (ids, count) = tensors.words(&part("candidates")).expect("candidates");
        Self {
            anchor: tensors.ids(&part("anchor")).expect("an anchor")[0],
            logits: tensors.rows(&part("draft_logits")),
            candidates: ids.chunks_exact(count).map(<[u32]>::to_vec).collect(),
            lattice: tensors.rows(&part("lattice")).expect("a lattice"),
            walk: tensors.ids(&part("walk")).expect("a walk"),
        }
    }
}

/// The drafter's state after a prompt that the target has read.
fn read(cpu: &mut Cpu, model: &mut Model, drafter: &mut Dflash, prompt: &[u32]) -> DraftState {
    let mut sequence = model.sequence();
    let mut state = drafter.state();
    for tokens in prompt.chunks(model.options().max_rows) {
        let rows: Vec<Row> = chain(tokens, 0).collect();
        let path: Vec<u32> = (0..tokens.len() as u32).collect();
        model.forward(cpu, &rows, &[], &[&sequence]).expect("a pass");
        for row in 0..tokens.len() {
            let taps = model.taps(row).expect("a row").into_owned();
            state.pending.push_numbers(&*cpu, &taps).expect("room");
        }
        model.commit(cpu, 0, &mut sequence, &path).expect("a commit");
    }
    drafter.absorb(cpu, &mut [&mut state]).expect("a pass");
    state
}

#[track_caller]
fn assert_near(what: &str, found: f32, expected: f32) {
    assert!((found - expected).abs() < 1e-3, "{what} is {found}, not {expected}");
}

fn check_block(drafter: &Dflash, golden: &Golden, lattice: &Lattice) {
    let Candidates { buf, count } = drafter.candidates.expect("it selects");
    let slots = golden.candidates.len();
    let numbers = drafter.block.first_rows(buf, slots).expect("a buffer");
    for (slot, row) in numbers.chunks_exact(count * (2 + count)).enumerate() {
        if let Some(logits) = &golden.logits {
            let found = drafter.logits(slot).expect("logits");
            found.iter().zip(&logits[slot]).for_each(|(f, e)| assert_near("a logit", *f, *e));
        }
        let ids: Vec<u32> = row[..count].iter().map(|id| *id as u32).collect();
        assert_eq!(ids, golden.candidates[slot], "candidates of slot {slot}");
        // Ours are log-probabilities: the same up to a number that all of a slot share.
        let score = |a: usize, b: usize| row[count + b] + row[(2 + a) * count + b];
        let expected = |a: usize, b: usize| golden.lattice[slot * count + a][b];
        for a in 0..count {
            for b in 0..count {
                let (own, theirs) = (score(a, b) - score(0, 0), expected(a, b) - expected(0, 0));
                assert_near("a score", own, theirs);
            }
        }
    }
    let chain: Vec<u32> = lattice.best_first(64).nodes.iter().map(|node| node.token).collect();
    assert_eq!(chain, golden.walk);
}

#[test]
fn the_trained_drafter_is_the_reference() {
    let files = Pair::dense();
    let target = Target::open(&files.target).expect("the target opens");
    let file = files.target.with_file_name("draft2-Q8_0.gguf");
    let file = File::open(&file, &Overrides::default(), Some(&target.config)).expect("it opens");
    let mut cpu = Cpu::new(CpuLevel::detect(), 2, Activations::F32);
    // Chunks match neither pages nor anchors.
    let taps = file.config.taps.clone();
    let options = Options { kv: KvType::F16, max_rows: 100, max_chosen: 1, taps };
    let mut model =
        Model::load(&mut cpu, &target.config, &target.weights, options).expect("it loads");
    let mut drafter =
        Dflash::load(&mut cpu, &file.config, &file.weights, &model).expect("it loads");
    let prompts = testing::prompts(&testing::goldens(), "dense-q4");
    let tensors = Tensors::open(&testing::goldens(), "dense-dflash2");
    let mut checked = 0;
    for (place, prompt) in prompts.iter().enumerate() {
        let prompt = testing::ids(&prompt["prompt_ids"]);
        let name = match prompt.len() {
            301.. => format!("plong{}", prompt.len()),
            _ => format!("p{place}"),
        };
        for name in [name.clone(), format!("{name}.wide")] {
            if tensors.ids(&format!("{name}.walk")).is_none() {
                continue;
            }
            let golden = Golden::read(&tensors, &name);
            let state = read(&mut cpu, &mut model, &mut drafter, &prompt);
            let (text, rows) = ([(&state, golden.anchor)], golden.walk.len() + 1);
            let found = drafter.fill_in(&mut cpu, &text, rows, 1).expect("a pass");
            check_block(&drafter, &golden, found[0].as_ref().expect("numbers"));
            checked += 1;
        }
    }
    assert!(checked >= 4, "{checked} blocks were checked");
}
