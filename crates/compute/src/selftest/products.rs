//! Products with matrices of every type, alone and several at once, in both roles; rows alone and among others.

use super::{Both, Random, chain, random_blocks, run_plan};
use crate::{
    Backend, Buf, Error, Matrix, MatrixId, Op, Pass, Plan, Product, RandomMatrix, Rows, SequenceView,
    VectorId,
};
use formats::BlockType;
use std::sync::Arc;

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
    product(both, &[(BlockType::F32, 16)], 96, &[1, 3])?;
    for (outputs, cols) in [(256usize, 256usize), (96, 512), (2048, 4096), (5120, 6144), (5120, 17408)] {
        followed(both, outputs, cols, false)?;
    }
    for (outputs, cols) in [(256, 256), (96, 512), (17408, 5120)] {
        followed(both, outputs, cols, true)?;
    }
    Ok(())
}

/// A matrix of the device alone, made there if it can.
fn of_device(device: &mut dyn Backend, rows: usize, cols: usize, seed: u64) -> Result<MatrixId, Error> {
    let (ty, experts, scale) = (BlockType::Q4_K, 1, 0.02);
    if let Some(id) = device.random(RandomMatrix { ty, experts, rows, cols, scale, seed })? {
        return Ok(id);
    }
    let bytes = random_blocks(&mut Random(seed), ty, rows * cols);
    device.matrix(Matrix { ty, experts, rows, cols, bytes: &bytes })
}

/// A device may do a norm or swiglu right after its products in one launch with them; when another op stands between,
/// it cannot. The bits must be the same, the first time and when the pass is repeated.
fn followed(both: &mut Both<'_>, outputs: usize, cols: usize, swiglu: bool) -> Result<(), Error> {
    let mut random = Random(11);
    let matrices = [of_device(both.device, outputs, cols, 1)?, of_device(both.device, outputs, cols, 2)?];
    let last = of_device(both.device, 64, outputs, 3)?;
    let weight = both.device.vector(&random.numbers(outputs))?;
    let name = if swiglu { "swiglu" } else { "norm" };
    for rows in [1usize, 16, 33, 64] {
        let (x, residual) = (random.numbers(rows * cols), random.numbers(rows * outputs));
        let mut run = |is_apart: bool| {
            let (plan, inputs, results) = chained(&matrices, last, weight, [outputs, cols], swiglu, is_apart);
            let pass = pass(rows, false);
            let mut arena = both.device.arena(Arc::new(plan), rows, 0)?;
            let mut runs: Vec<Vec<f32>> = Vec::new();
            for _ in 0..4 {
                arena.poison();
                for (buf, numbers) in inputs.iter().zip([&x, &residual, &residual]) {
                    arena.write(*buf, numbers);
                }
                both.device.run(&mut arena, &pass)?;
                both.device.finish()?;
                runs.push(results.iter().flat_map(|buf| arena.read(*buf).into_owned()).collect());
            }
            Ok::<_, Error>(runs)
        };
        let (apart, together) = (run(true)?, run(false)?);
        for (i, numbers) in together.iter().enumerate() {
            let name = format!("{name} after {outputs} x {cols}, bits of {rows} rows, run {i}");
            both.check_bits(&name, &apart[0], numbers);
        }
        // All but the half of the tap that nothing writes, which comes last, must be numbers.
        let written = apart[0].len() - if swiglu { 0 } else { 2 * rows * outputs };
        let worst = if apart[0][..written].iter().all(|x| x.is_finite()) { 0.0 } else { f32::INFINITY };
        both.check(&format!("{name} after {outputs} x {cols}, {rows} rows are numbers"), worst, 0.0);
    }
    Ok(())
}

/// Products, a norm or swiglu of them, and a product with that; with an op between the first two or not. Gives the
/// inputs (x, the residual, what the op between reads) and what to compare.
fn chained(
    matrices: &[MatrixId; 2],
    last: MatrixId,
    weight: VectorId,
    [outputs, cols]: [usize; 2],
    swiglu: bool,
    is_apart: bool,
) -> (Plan, [Buf; 3], Vec<Buf>) {
    let mut plan = Plan::new("products and what follows");
    let (input, loaded) = (plan.numbers("input", cols), plan.activation("x", cols));
    let (residual, other) = (plan.numbers("residual", outputs), plan.numbers("other", outputs));
    let other_loaded = plan.activation("other loaded", outputs);
    let (a, b) = (plan.numbers("a", outputs), plan.numbers("b", outputs));
    let (out, z) = (plan.activation("out", outputs), plan.numbers("z", 64));
    let tap = plan.numbers("tap", 2 * outputs);
    plan.record(Op::Load { x: input, out: loaded });
    let product = |weight, out| Product { x: loaded, weight, out, rows: Rows::All };
    let mut products = vec![product(matrices[0], a)];
    if swiglu {
        products.push(product(matrices[1], b));
    }
    plan.record(Op::Matmul { products });
    if is_apart {
        plan.record(Op::Load { x: other, out: other_loaded });
    }
    plan.record(match swiglu {
        true => Op::SwiGlu { parts: vec![(a, b, out)] },
        false => {
            let tap = Some((tap, outputs));
            Op::Norm { x: residual, add: Some(a), weight, eps: 1e-6, out, offset: 0, tap }
        }
    });
    plan.matmul(out, last, z);
    let results = if swiglu { vec![a, b, out, z] } else { vec![a, residual, out, z, tap] };
    (plan, [input, residual, other], results)
}

/// Matrices that share their activations, over several numbers of rows.
fn product(
    both: &mut Both<'_>,
    matrices: &[(BlockType, usize)],
    cols: usize,
    counts: &[usize],
) -> Result<(), Error> {
    let mut random = Random(7);
    let weights = matrices
        .iter()
        .map(|(ty, rows)| both.matrix(&mut random, *ty, [1, *rows, cols]))
        .collect::<Result<Vec<_>, _>>()?;
    let most = counts.iter().copied().max().unwrap_or(1);
    let x = random.numbers(most * cols);
    let names: Vec<String> = matrices.iter().map(|(ty, rows)| format!("{ty} {rows}")).collect();
    let name = format!("product {} x {cols}", names.join(" + "));
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
