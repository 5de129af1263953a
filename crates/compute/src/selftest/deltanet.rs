//! Convolution, Gated DeltaNet and its commit: trees and chains from states at any distance from an
//! anchor.

use super::{Both, Random, chain, plans, run_plan, tree_and_chain};
use crate::{
    ANCHOR_TOKENS, Backend, CommitPath, Error, Memory, Pass, RecurrentCommit, RecurrentLayout, Row,
    SequenceView, VectorId,
};

/// A backend with a sequence on it.
struct Side<'a> {
    backend: &'a mut dyn Backend,
    layer: plans::DeltaNet,
    layout: RecurrentLayout,
    committed: usize,
    anchor: Option<Memory>,
    older: Option<Memory>,
    tape: Memory,
}

impl<'a> Side<'a> {
    fn new(
        backend: &'a mut dyn Backend,
        layer: plans::DeltaNet,
        layout: RecurrentLayout,
    ) -> Result<Self, Error> {
        let tape = backend.memory(4 * layout.tape_len())?;
        Ok(Self { backend, layer, layout, committed: 0, anchor: None, older: None, tape })
    }

    /// Runs rows from the tip, whose inputs are given, and commits the first `keep`.
    fn pass(
        &mut self,
        rows: &[Row],
        numbers: &[Vec<f32>],
        prompt: bool,
        keep: usize,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let (plan, inputs, out) = plans::deltanet(self.layer, self.layout);
        let inputs: Vec<_> = inputs.into_iter().zip(numbers.iter().cloned()).collect();
        let kept = plan.recurrent_layer(self.layout.layers - 1).1;
        let first = SequenceView {
            committed: self.committed,
            anchor: self.anchor.as_ref(),
            older_anchor: self.older.as_ref(),
            tape: Some(&self.tape),
            ..Default::default()
        };
        let sequences = if rows.iter().any(|r| r.sequence == 1) {
            vec![first, SequenceView::default()]
        } else {
            vec![first]
        };
        let mut pass = Pass::new(rows, &[], sequences);
        if prompt {
            pass = pass.as_prompt();
        }
        let arena = run_plan(self.backend, plan, &inputs, &pass)?;
        drop(pass);
        let outputs = [out, kept.keys, kept.deltas, kept.gates];
        let outputs = outputs
            .iter()
            .map(|b| Ok(arena.read(*b)?.into_owned()))
            .collect::<Result<_, Error>>()?;
        if keep > 0 {
            self.commit(&arena, keep)?;
        }
        Ok(outputs)
    }

    /// What the engine does at a commit.
    fn commit(&mut self, arena: &crate::Arena, keep: usize) -> Result<(), Error> {
        let path: Vec<u32> = (0..keep as u32).collect();
        let newest = |tokens: usize| tokens / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let (before, after) = (newest(self.committed), newest(self.committed + keep));
        let path = CommitPath { rows: &path, position: self.committed };
        let len = 4 * self.layout.anchor_len();
        if after > before {
            let mut anchor = self.backend.memory(len)?;
            let mut older = self.backend.memory(len)?;
            let base = self.anchor.take();
            let mut anchors = vec![(after, &mut anchor)];
            let older_at = after - ANCHOR_TOKENS;
            if older_at > before {
                anchors.push((older_at, &mut older));
            }
            let tape = &mut self.tape;
            let commit = RecurrentCommit { path, base: base.as_ref(), anchors, tape };
            self.backend.commit_recurrent(arena, &mut [commit])?;
            self.older = if older_at > before { Some(older) } else { base };
            self.anchor = Some(anchor);
        } else {
            let tape = &mut self.tape;
            let commit = RecurrentCommit { path, base: None, anchors: Vec::new(), tape };
            self.backend.commit_recurrent(arena, &mut [commit])?;
        }
        self.committed += keep;
        Ok(())
    }
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
            (chain(device.backend.decode_rows()), "deep"),
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
        let same = |a: &Vec<f32>, b: &Vec<f32>| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        let all = whole.iter().zip(&parts).all(|(a, b)| same(a, b));
        found.push((
            format!("{name}, bits of a chain in parts"),
            if all { 0.0 } else { f32::INFINITY },
            0.0,
        ));
    }
    for (name, worst, tolerance) in found {
        both.check(&name, worst, tolerance);
    }
    Ok(())
}
