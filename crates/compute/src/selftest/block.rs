//! Convolution over rows of blocks, the best tokens of rows, and how well they follow each other:
//! on trees and several texts, with ties, padding and tables of every type.

use super::{Both, Random, difference, plans, run_plan, tree_and_chain};
use crate::{Backend, Buf, Error, Pass, Row, SequenceView};
use formats::BlockType;

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for (cols, taps, group) in [(96, 2, 16), (256, 1, 32), (5120, 2, 16), (2048, 4, 64)] {
        convolution(both, cols, taps, group)?;
    }
    for (cap, name) in [(None, "scale"), (Some(20.0), "scale and cap")] {
        if both.wants(name) {
            let numbers = Random(5).numbers(3 * 333).iter().map(|x| 30.0 * x).collect::<Vec<_>>();
            let record = |_: bool| {
                let (plan, x) = plans::scale(333, 0.7, cap);
                (plan, vec![(x, numbers.clone())], vec![x])
            };
            both.compare(name, &record, [blocks(&[3]), blocks(&[3])], 2e-6)?;
        }
    }
    for ty in BlockType::ALL {
        candidates(both, ty, Shape { columns: 520, vocab: 500, count: 16, rank: 256 })?;
    }
    let half = BlockType::BF16;
    candidates(both, half, Shape { columns: 40, vocab: 37, count: 5, rank: 32 })?;
    candidates(both, half, Shape { columns: 20_003, vocab: 20_001, count: 64, rank: 96 })?;
    candidates(both, half, Shape { columns: 248_320, vocab: 248_077, count: 16, rank: 256 })
}

/// Blocks of so many rows, one text each; all rows but the first of each have logits.
fn blocks(rows: &[usize]) -> Pass<'static> {
    let (mut all, mut chosen) = (Vec::new(), Vec::new());
    for (&count, sequence) in rows.iter().zip(0..) {
        for i in 0..count as u32 {
            let at = all.len() as u32;
            let token = 3 * at + 1;
            all.push(Row { token, sequence, parent: (i > 0).then(|| at - 1) });
            chosen.extend((i > 0).then_some(at));
        }
    }
    Pass::new(&all, &chosen, vec![SequenceView::default(); rows.len()])
}

fn convolution(both: &mut Both<'_>, cols: usize, taps: usize, group: usize) -> Result<(), Error> {
    let name = format!("block_conv, conv_norm {cols}, {taps} taps, groups of {group}");
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(7);
    let base = both.vector(&random.numbers(taps * cols))?;
    let weight = both.vector(&random.numbers(cols))?;
    let numbers: Vec<f32> = random.numbers(64 * cols);
    let tree = || {
        let view = SequenceView { committed: 40, ..Default::default() };
        Pass::new(&tree_and_chain(), &[], vec![view, SequenceView::default()])
    };
    let shapes: [(&str, &dyn Fn() -> Pass<'static>); 2] =
        [("blocks", &|| blocks(&[8, 1, 16, 3])), ("a tree and a chain", &tree)];
    for (of, pass) in shapes {
        let rows = pass().rows();
        let record = |on_device: bool| {
            let (base, weight) = match on_device {
                true => (base.device, weight.device),
                false => (base.reference, weight.reference),
            };
            let (plan, inputs, outputs) = plans::block_conv(base, weight, cols, taps, group);
            let inputs = inputs.map(|buf| (buf, numbers[..rows * plan.cols(buf)].to_vec()));
            (plan, inputs.to_vec(), outputs.to_vec())
        };
        both.compare(&format!("{name}, {of}"), &record, [pass(), pass()], 2e-5)?;
    }
    // Of a block among others, and alone.
    let mut bits = |pass: Pass<'static>, first: usize| -> Result<Vec<u32>, Error> {
        let (plan, inputs, [out, ..]) =
            plans::block_conv(base.device, weight.device, cols, taps, group);
        let rows = pass.rows();
        let inputs: Vec<(Buf, Vec<f32>)> = inputs
            .iter()
            .map(|buf| {
                (*buf, numbers[first * plan.cols(*buf)..][..rows * plan.cols(*buf)].to_vec())
            })
            .collect();
        let arena = run_plan(both.device, plan, &inputs, &pass)?;
        Ok(arena.read(out)?.iter().map(|x| x.to_bits()).collect())
    };
    let (alone, among) = (bits(blocks(&[5]), 8)?, bits(blocks(&[8, 5, 7]), 0)?);
    both.check_same(&format!("{name}, a block among others"), alone == among[8 * cols..13 * cols]);
    Ok(())
}

/// Logits of `columns` columns, candidates below `vocab`, codebooks of `rank` columns.
#[derive(Clone, Copy)]
struct Shape {
    columns: usize,
    vocab: usize,
    count: usize,
    rank: usize,
}

fn candidates(both: &mut Both<'_>, ty: BlockType, shape: Shape) -> Result<(), Error> {
    let Shape { columns, vocab, count, rank } = shape;
    let name = format!("top {count} of {vocab}, pairs {ty} x {rank}");
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(11);
    let tables = [
        both.table(&mut random, ty, vocab.min(1000), rank)?,
        both.table(&mut random, ty, vocab.min(1000), rank)?,
    ];
    let pass = || blocks(&[8, 2, 5]);
    let chosen = pass().chosen.len();
    // Few values, so that equals lie at the edge of the candidates; the best beyond the vocabulary.
    // Candidates are among the first 1000, since the codebooks have no more rows here.
    let mut logits: Vec<f32> =
        (0..chosen * columns).map(|_| (8.0 * random.number()).round() / 4.0).collect();
    for row in logits.chunks_mut(columns) {
        row[vocab.min(1000)..].iter_mut().for_each(|x| *x -= 20.0);
        row[vocab..].fill(100.0);
    }
    let gates = random.numbers(chosen * rank);
    for gated in [true, false] {
        let run = |backend: &mut dyn Backend, tables: [crate::MatrixId; 2]| {
            let (plan, [l, g], out) =
                plans::candidates(tables, [columns, vocab, count, rank], gated);
            let inputs = [(l, logits.clone()), (g, gates.clone())];
            let arena = run_plan(backend, plan, &inputs, &pass())?;
            Ok::<_, Error>(arena.read(out)?.into_owned())
        };
        let expected = run(&mut both.reference, tables.map(|t| t.reference))?;
        let got = run(both.device, tables.map(|t| t.device))?;
        let part = |numbers: &[f32], from: usize, to: usize| -> Vec<f32> {
            let rows = numbers.chunks_exact(count * (2 + count));
            rows.flat_map(|row| &row[from..to]).copied().collect()
        };
        let same = part(&expected, 0, count) == part(&got, 0, count);
        let kind = if gated { "gated" } else { "plain" };
        both.check_same(&format!("{name}, ids, {kind}"), same);
        for (what, from, to) in
            [("logs", count, 2 * count), ("scores", 2 * count, count * (2 + count))]
        {
            let worst = difference(&part(&expected, from, to), &part(&got, from, to));
            both.check(&format!("{name}, {what}, {kind}"), worst, 2e-5);
        }
    }
    Ok(())
}
