//! Products with matrices of every type, alone and several at once, in both roles; rows alone and among others.

use super::{Both, Random, chain, run_plan};
use crate::{Error, Op, Pass, Plan, Product, Rows, SequenceView};
use formats::BlockType;

fn pass(rows: usize, prompt: bool) -> Pass<'static> {
    let pass = Pass::new(&chain(rows), &[], vec![SequenceView::default()]);
    if prompt { pass.as_prompt() } else { pass }
}

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for ty in BlockType::ALL {
        for (outputs, cols) in [(37usize, 512usize), (1100, 2560)] {
            product(both, &[(ty, outputs)], cols, &[1, 11, 32, 70])?;
        }
    }
    let mixed = [(BlockType::Q4_K, 300), (BlockType::Q6_K, 96), (BlockType::BF16, 48), (BlockType::Q5_K, 1)];
    for cols in [1024, 6144, 17408] {
        product(both, &mixed, cols, &[1, 16, 33, 150])?;
    }
    product(both, &[(BlockType::Q4_K, 5120)], 6144, &[1, 7, 16, 64])?;
    product(both, &[(BlockType::Q8_0, 1024), (BlockType::Q8_0, 1024)], 5120, &[1, 16, 257])?;
    product(both, &[(BlockType::F32, 16)], 96, &[1, 3])
}

/// Matrices that share their activations, over several numbers of rows.
fn product(
    both: &mut Both<'_>,
    matrices: &[(BlockType, usize)],
    cols: usize,
    counts: &[usize],
) -> Result<(), Error> {
    let names: Vec<String> = matrices.iter().map(|(ty, rows)| format!("{ty} {rows}")).collect();
    let name = format!("product {} x {cols}", names.join(" + "));
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(7);
    let weights = matrices
        .iter()
        .map(|(ty, rows)| both.matrix(&mut random, *ty, [1, *rows, cols]))
        .collect::<Result<Vec<_>, _>>()?;
    let most = counts.iter().copied().max().unwrap_or(1);
    let x = random.numbers(most * cols);
    for prompt in [false, true] {
        let role = if prompt { "prompt" } else { "decode" };
        let mut bits: Option<Vec<Vec<f32>>> = None;
        for &count in counts {
            let record = |on_device: bool| {
                let mut plan = Plan::new("product");
                let (input, loaded) = (plan.numbers("input", cols), plan.activation("x", cols));
                plan.record(Op::Load { x: input, out: loaded });
                let outputs: Vec<_> =
                    matrices.iter().enumerate().map(|(i, m)| plan.numbers(&format!("y {i}"), m.1)).collect();
                let product = |(weight, out): (&super::Of<_>, &_)| Product {
                    x: loaded,
                    weight: if on_device { weight.device } else { weight.reference },
                    out: *out,
                    rows: Rows::All,
                };
                let products = weights.iter().zip(&outputs).map(product).collect();
                plan.record(Op::Matmul { products });
                (plan, vec![(input, x[..count * cols].to_vec())], outputs)
            };
            // Activations are rounded to f16.
            let passes = [pass(count, prompt), pass(count, prompt)];
            both.compare(&format!("{name}, {count} rows, {role}"), &record, passes, 3e-3)?;
            let (plan, inputs, outputs) = record(true);
            let arena = run_plan(both.device, plan, &inputs, &pass(count, prompt))?;
            let got: Vec<Vec<f32>> = outputs.iter().map(|out| arena.read(*out).into_owned()).collect();
            match &bits {
                None => bits = Some(got),
                Some(first) => {
                    let same = first.iter().zip(&got).all(|(a, b)| {
                        let n = a.len().min(b.len());
                        a[..n].iter().zip(&b[..n]).all(|(a, b)| a.to_bits() == b.to_bits())
                    });
                    let worst = if same { 0.0 } else { f32::INFINITY };
                    both.check(&format!("{name}, bits of {count} rows, {role}"), worst, 0.0);
                }
            }
        }
    }
    Ok(())
}
