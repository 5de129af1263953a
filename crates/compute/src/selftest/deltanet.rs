//! Convolution, Gated DeltaNet and its commit: trees and chains from states at any distance from an
//! anchor.

use super::{Both, Random, chain, plans, run_plan, tree_and_chain};
use crate::{
    ANCHOR_TOKENS, Arena, Backend, Buf, CommitPath, Error, Memory, Pass, RecurrentCommit,
    RecurrentLayout, Row, SequenceView, VectorId,
};

/// A backend with a sequence on it.
struct Side<'a> {
    backend: &'a mut dyn Backend,
    layer: plans::DeltaNet,
    layout: RecurrentLayout,
    text: Text,
}

/// What a sequence has.
struct Text {
    committed: usize,
    anchor: Option<Memory>,
    older: Option<Memory>,
    tape: Memory,
}

impl Text {
    fn new(backend: &dyn Backend, layout: &RecurrentLayout) -> Result<Self, Error> {
        let tape = backend.memory(4 * layout.tape_len())?;
        Ok(Self { committed: 0, anchor: None, older: None, tape })
    }

    fn view(&self) -> SequenceView<'_> {
        SequenceView {
            committed: self.committed,
            anchor: self.anchor.as_ref(),
            older_anchor: self.older.as_ref(),
            tape: Some(&self.tape),
            ..Default::default()
        }
    }
}

/// Runs a layer over a pass: the arena, and what it wrote.
fn run_layer(
    backend: &mut dyn Backend,
    layer: plans::DeltaNet,
    layout: RecurrentLayout,
    numbers: &[Vec<f32>],
    pass: &Pass<'_>,
) -> Result<(Arena, Vec<Vec<f32>>), Error> {
    let (plan, inputs, out) = plans::deltanet(layer, layout);
    let inputs: Vec<_> = inputs.into_iter().zip(numbers.iter().cloned()).collect();
    let kept = plan.recurrent_layer(layout.layers - 1).1;
    let arena = run_plan(backend, plan, &inputs, pass)?;
    let outputs = [out, kept.keys, kept.deltas, kept.gates];
    let read = |buf: &Buf| Ok(arena.read(*buf)?.into_owned());
    let outputs = outputs.iter().map(read).collect::<Result<_, Error>>()?;
    Ok((arena, outputs))
}

impl<'a> Side<'a> {
    fn new(
        backend: &'a mut dyn Backend,
        layer: plans::DeltaNet,
        layout: RecurrentLayout,
    ) -> Result<Self, Error> {
        let text = Text::new(backend, &layout)?;
        Ok(Self { backend, layer, layout, text })
    }

    /// Runs rows from the tip, whose inputs are given, and commits the first `keep`.
    fn pass(
        &mut self,
        rows: &[Row],
        numbers: &[Vec<f32>],
        prompt: bool,
        keep: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let first = self.text.view();
        let sequences = if rows.iter().any(|r| r.sequence == 1) {
            vec![first, SequenceView::default()]
        } else {
            vec![first]
        };
        let mut pass = Pass::new(rows, &[], sequences);
        if prompt {
            pass = pass.as_prompt();
        }
        let (arena, outputs) = run_layer(self.backend, self.layer, self.layout, numbers, &pass)?;
        drop(pass);
        if keep > 0 {
            self.commit(&arena, keep)?;
        }
        Ok(outputs)
    }

    /// Texts of so many tokens each, whose next rows are run alone and then all of them together:
    /// whether they have the same bits.
    fn same_in_company(&mut self, committed: &[usize], rows: usize) -> Result<bool, Error> {
        let (mut texts, mut all, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &tokens) in committed.iter().enumerate() {
            self.text = Text::new(self.backend, &self.layout)?;
            let random = &mut Random(20 + i as u64);
            if tokens > 0 {
                let before = numbers(random, &self.layout, tokens);
                self.pass(&chain(tokens), &before, true, tokens)?;
            }
            let next = numbers(random, &self.layout, rows);
            append(&mut alone, self.pass(&chain(rows), &next, false, 0)?);
            append(&mut all, next);
            let fresh = Text::new(self.backend, &self.layout)?;
            texts.push(std::mem::replace(&mut self.text, fresh));
        }
        let of_text = |i: usize| {
            let place = move |r: Row| Row {
                sequence: i as u32,
                parent: r.parent.map(|p| p + (i * rows) as u32),
                ..r
            };
            chain(rows).into_iter().map(place)
        };
        let rows: Vec<Row> = (0..texts.len()).flat_map(of_text).collect();
        let pass = Pass::new(&rows, &[], texts.iter().map(Text::view).collect());
        let (_, together) = run_layer(self.backend, self.layer, self.layout, &all, &pass)?;
        Ok(alone.iter().zip(&together).all(|(a, b)| same_bits(a, b)))
    }

    /// What the engine does at a commit.
    fn commit(&mut self, arena: &Arena, keep: usize) -> Result<(), Error> {
        let path: Vec<u32> = (0..keep as u32).collect();
        let newest = |tokens: usize| tokens / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let (before, after) = (newest(self.text.committed), newest(self.text.committed + keep));
        let path = CommitPath { rows: &path, position: self.text.committed };
        let len = 4 * self.layout.anchor_len();
        if after > before {
            let mut anchor = self.backend.memory(len)?;
            let mut older = self.backend.memory(len)?;
            let base = self.text.anchor.take();
            let mut anchors = vec![(after, &mut anchor)];
            let older_at = after - ANCHOR_TOKENS;
            if older_at > before {
                anchors.push((older_at, &mut older));
            }
            let tape = &mut self.text.tape;
            let commit = RecurrentCommit { path, base: base.as_ref(), anchors, tape };
            self.backend.commit_recurrent(arena, &mut [commit])?;
            self.text.older = if older_at > before { Some(older) } else { base };
            self.text.anchor = Some(anchor);
        } else {
            let tape = &mut self.text.tape;
            let commit = RecurrentCommit { path, base: None, anchors: Vec::new(), tape };
            self.backend.commit_recurrent(arena, &mut [commit])?;
        }
        self.text.committed += keep;
        Ok(())
    }
}

/// The rows of one more text behind those there are, buffer by buffer.
fn append(all: &mut Vec<Vec<f32>>, more: Vec<Vec<f32>>) {
    all.resize(more.len(), Vec::new());
    all.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn numbers(random: &mut Random, layout: &RecurrentLayout, rows: usize) -> Vec<Vec<f32>> {
    let values = layout.value_heads * layout.dim;
    let widths = std::iter::repeat_n(layout.channels(), layout.layers).chain([
        values,
        layout.value_heads,
        layout.value_heads,
    ]);
    widths.map(|width| random.numbers(rows * width)).collect()
}

fn part(numbers: &[Vec<f32>], rows: usize, first: usize, count: usize) -> Vec<Vec<f32>> {
    let cut = |n: &Vec<f32>| {
        let width = n.len() / rows;
        n[first * width..(first + count) * width].to_vec()
    };
    numbers.iter().map(cut).collect()
}

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for dim in [32, 96, 128] {
        for committed in [0, 30, 44, 149] {
            check(
                both,
                RecurrentLayout { layers: 2, key_heads: 2, value_heads: 6, dim, kernel: 4 },
                committed,
            )?;
        }
    }
    check(
        both,
        RecurrentLayout { layers: 1, key_heads: 16, value_heads: 48, dim: 128, kernel: 4 },
        600,
    )
}

fn check(both: &mut Both<'_>, layout: RecurrentLayout, committed: usize) -> Result<(), Error> {
    let name =
        format!("deltanet {} heads of {}, {committed} before", layout.value_heads, layout.dim);
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(8);
    let conv = both.vector(&random.numbers(layout.kernel * layout.channels()))?;
    let dt_bias = both.vector(&random.numbers(layout.value_heads))?;
    let decay: Vec<f32> =
        random.numbers(layout.value_heads).iter().map(|x| -0.2 * x.exp()).collect();
    let decay = both.vector(&decay)?;
    let norm = both.vector(&random.numbers(layout.dim))?;
    let on = |device: bool| {
        let pick = |of: super::Of<VectorId>| if device { of.device } else { of.reference };
        plans::DeltaNet {
            conv: pick(conv),
            dt_bias: pick(dt_bias),
            decay: pick(decay),
            norm: pick(norm),
        }
    };
    let mut found: Vec<(String, f32, f32)> = Vec::new();
    {
        let mut reference = Side::new(&mut both.reference, on(false), layout)?;
        let mut device = Side::new(&mut *both.device, on(true), layout)?;
        let mut compare = |what: &str, expected: &[Vec<f32>], got: &[Vec<f32>]| {
            let worst = expected
                .iter()
                .zip(got)
                .map(|(e, g)| super::difference(e, g))
                .fold(0.0, super::largest);
            found.push((format!("{name}, {what}"), worst, 1e-3));
        };
        if committed > 0 {
            let text = numbers(&mut random, &layout, committed);
            let expected = reference.pass(&chain(committed), &text, true, committed)?;
            let got = device.pass(&chain(committed), &text, true, committed)?;
            compare("prompt", &expected, &got);
        }
        for (rows, what) in [
            (tree_and_chain(), "tree"),
            (chain(1), "token"),
            (chain(16), "chain"),
            (chain(device.backend.text_rows()), "deep"),
        ] {
            let numbers = numbers(&mut Random(5), &layout, rows.len());
            let expected = reference.pass(&rows, &numbers, false, 0)?;
            let got = device.pass(&rows, &numbers, false, 0)?;
            compare(what, &expected, &got);
        }
        // A chain in one pass and in parts: the same bits.
        let rows = 64;
        let numbers = numbers(&mut Random(6), &layout, rows);
        let whole = device.pass(&chain(rows), &numbers, false, 0)?;
        let mut parts: Vec<Vec<f32>> = vec![Vec::new(); whole.len()];
        let mut first = 0;
        for count in [1, 5, 1, 16, 3, 14, 16, 8] {
            let got =
                device.pass(&chain(count), &part(&numbers, rows, first, count), false, count)?;
            parts.iter_mut().zip(got).for_each(|(all, got)| all.extend(got));
            first += count;
        }
        let all = whole.iter().zip(&parts).all(|(a, b)| same_bits(a, b));
        found.push((
            format!("{name}, bits of a chain in parts"),
            if all { 0.0 } else { f32::INFINITY },
            0.0,
        ));
        let around = [committed, 0, 45, 77, 16, 31, 47, 32, 5, 15, 48, 49, 63, 64, 79, 149];
        for rows in [1, 3, 4, 8] {
            let texts = around.len().min(device.backend.decode_rows() / rows);
            let same = device.same_in_company(&around[..texts], rows)?;
            found.push((
                format!("{name}, bits of {rows} rows among those of other texts"),
                if same { 0.0 } else { f32::INFINITY },
                0.0,
            ));
        }
    }
    for (name, worst, tolerance) in found {
        both.check(&name, worst, tolerance);
    }
    Ok(())
}
