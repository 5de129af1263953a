//! The trained tiny DFlash 2 drafter against float32 results of a reference that knows nothing of
//! this engine: logits, candidates, their scores after each candidate before, and the walk.

use super::*;
use crate::model::{Borrowed, Model, Options, chain};
use checkpoint::{Drafter as File, Overrides, Target};
use compute::{Activations, Cpu, CpuLevel, cuda::Cuda, cuda::Images};
use std::cell::Cell;
use std::io::Write;
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
fn read(
    backend: &mut dyn Backend,
    model: &mut Model,
    drafter: &mut Dflash,
    prompt: &[u32],
) -> DraftState {
    let mut sequence = model.sequence();
    let mut state = drafter.state();
    for tokens in prompt.chunks(model.options().max_rows) {
        let rows: Vec<Row> = chain(tokens, 0).collect();
        let path: Vec<u32> = (0..tokens.len() as u32).collect();
        model.forward_prompt(backend, &rows, &[], &[&sequence]).expect("a pass");
        for row in 0..tokens.len() {
            let taps = model.taps(row).expect("a row").to_vec();
            state.pending.push_numbers(&mut *backend, &taps).expect("room");
        }
        model.commit(backend, 0, &mut sequence, &path).expect("a commit");
    }
    drafter.absorb(backend, &mut [&mut state]).expect("a pass");
    state
}

/// How far a number may be from the reference's, and how far one was.
struct Near {
    bound: f32,
    worst: Cell<f32>,
}

impl Near {
    fn within(bound: f32) -> Self {
        Self { bound, worst: Cell::new(0.0) }
    }

    #[track_caller]
    fn check(&self, what: &str, found: f32, expected: f32) {
        let distance = (found - expected).abs();
        assert!(distance < self.bound, "{what} is {found}, not {expected}");
        self.worst.set(self.worst.get().max(distance));
    }
}

/// Candidates, their own scores and those after each candidate before, of one slot. What both have
/// among their candidates is compared: at the edge, neighbours may have changed places.
fn check_slot(row: &[f32], before: &[u32], slot: usize, golden: &Golden, near: &Near) {
    let count = golden.candidates[slot].len();
    let ids: Vec<u32> = row[..count].iter().map(|id| *id as u32).collect();
    let place = |list: &[u32], id: u32| list.iter().position(|other| *other == id);
    let common: Vec<(usize, usize)> = ids
        .iter()
        .enumerate()
        .filter_map(|(b, id)| Some((b, place(&golden.candidates[slot], *id)?)))
        .collect();
    assert!(common.len() + 2 >= count, "slot {slot}: {ids:?}, {:?}", golden.candidates[slot]);
    if let Some(logits) = &golden.logits {
        for (id, expected) in ids.iter().zip(&golden.candidates[slot]) {
            let of = |id: u32| logits[slot][id as usize];
            near.check("the logit of a rank", of(*id), of(*expected));
        }
    }
    // Ours are log-probabilities: the same up to a number that all of a slot share.
    let (first, (b0, g0)) = (golden.candidates.get(slot.wrapping_sub(1)), common[0]);
    for (a, id) in before.iter().enumerate() {
        let Some(theirs) = first.map_or(Some(0), |list| place(list, *id)) else { continue };
        let own = |b: usize| row[count + b] + row[(2 + a) * count + b];
        let expected = |b: usize| golden.lattice[slot * count + theirs][b];
        for (b, g) in &common {
            near.check("a score", own(*b) - own(b0), expected(*g) - expected(g0));
        }
    }
}

fn check_block(drafter: &Dflash, golden: &Golden, lattice: &Lattice, near: &Near) {
    let Candidates { buf, count } = drafter.candidates.expect("it selects");
    let slots = golden.candidates.len();
    let numbers = drafter.block.first_rows(buf, slots).expect("a buffer");
    let mut before = vec![golden.anchor];
    for (slot, row) in numbers.chunks_exact(count * (2 + count)).enumerate() {
        if let Some(logits) = &golden.logits {
            let found = drafter.logits(slot).expect("logits");
            found.iter().zip(&logits[slot]).for_each(|(f, e)| near.check("a logit", *f, *e));
        }
        check_slot(row, &before, slot, golden, near);
        before = row[..count].iter().map(|id| *id as u32).collect();
    }
    // The walk, as far as no choice of it was a matter of rounding.
    let chain = lattice.best_first(64);
    let mut at = 0;
    for (slot, node) in chain.nodes.iter().enumerate() {
        let scores = &golden.lattice[slot * count + at];
        let ids = &golden.candidates[slot];
        at = ids.iter().position(|id| *id == golden.walk[slot]).expect("a candidate");
        let second = (0..count).filter(|b| *b != at).map(|b| scores[b]);
        if scores[at] - second.fold(f32::NEG_INFINITY, f32::max) < 2.0 * near.bound {
            return;
        }
        assert_eq!(node.token, golden.walk[slot], "the walk at slot {slot}");
    }
    assert_eq!(chain.nodes.len(), slots);
}

#[test]
fn the_trained_drafter_is_the_reference() {
    // Keys and values are rounded to f16 here and there, the target's too; all else is f32.
    let mut cpu = Cpu::new(CpuLevel::detect(), 2, Activations::F32);
    check_all_blocks(&mut cpu, &Near::within(1e-3));
}

/// A device rounds every activation to f16, in which a logit of 20 has steps of 0.016.
#[test]
fn the_trained_drafter_is_the_reference_on_a_device() {
    let name = "the_trained_drafter_is_the_reference_on_a_device";
    match Cuda::new(0, Images::Best) {
        Ok(mut device) => {
            let near = Near::within(0.1);
            check_all_blocks(&mut device, &near);
            let _ = writeln!(std::io::stderr(), "{name}: all within {}", near.worst.get());
        }
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
        }
    }
}

fn check_all_blocks(backend: &mut dyn Backend, near: &Near) {
    let files = Pair::dense();
    let target = Target::open(&files.target).expect("the target opens");
    let file = files.target.with_file_name("draft2-Q8_0.gguf");
    let file = File::open(&file, &Overrides::default(), Some(&target.config)).expect("it opens");
    // Chunks match neither pages nor anchors.
    let taps = file.config.taps.clone();
    let options = Options { max_rows: 100, max_chosen: 64, taps, ..Options::new(backend) };
    let mut model =
        Model::load(backend, &target.config, &target.weights, options).expect("it loads");
    let mut drafter =
        Dflash::load(backend, &file.config, &file.weights, Borrowed::of(&model)).expect("it loads");
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
            let state = read(backend, &mut model, &mut drafter, &prompt);
            let (text, rows) = ([(&state, golden.anchor)], golden.walk.len() + 1);
            let found = drafter.fill_in(backend, &text, rows, 1).expect("a pass");
            check_block(&drafter, &golden, found[0].as_ref().expect("numbers"), near);
            checked += 1;
        }
    }
    assert!(checked >= 4, "{checked} blocks were checked");
}
