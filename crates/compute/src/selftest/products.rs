//! Products with matrices of every type, alone and several at once, in both roles; rows alone and
//! among others.

use super::{Both, Random, chain, run_plan};
use crate::{Error, Op, Pass, Plan, Product, RandomMatrix, Rows, SequenceView};
use formats::BlockType;
use std::ops::Range;

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
    let mixed = [
        (BlockType::Q4_K, 300),
        (BlockType::Q6_K, 96),
        (BlockType::BF16, 48),
        (BlockType::Q5_K, 1),
    ];
    for cols in [1024, 6144, 17408] {
        product(both, &mixed, cols, &[1, 16, 33, 150])?;
    }
    product(both, &[(BlockType::Q4_K, 5120)], 6144, &[1, 7, 16, 64])?;
    product(both, &[(BlockType::Q8_0, 1024), (BlockType::Q8_0, 1024)], 5120, &[1, 16, 257])?;
    product(both, &[(BlockType::F32, 16)], 96, &[1, 3])?;
    // As large as a kernel for many rows wants them.
    let (q4, q5, q6, q8, half) =
        (BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::F16);
    company(both, &[(q4, 17408), (q4, 17408)], 5120)?;
    company(both, &[(q4, 10240), (q4, 6144), (half, 48), (half, 48)], 5120)?;
    company(both, &[(q4, 12288), (q4, 1024), (q6, 1024)], 5120)?;
    company(both, &[(q6, 5120)], 17408)?;
    company(both, &[(q5, 4096), (q8, 4096)], 6144)?;
    company(both, &[(BlockType::FP8, 4096), (BlockType::IQ3_S, 4096)], 5120)?;
    let small = [BlockType::FP4, BlockType::INT4, BlockType::IQ4_XS, BlockType::IQ2_S];
    company(both, &small.map(|ty| (ty, 2048)), 6144)?;
    company(both, &[(q6, 65536)], 5120)
}

/// Weights made on the device: every row of a pass of many has the bits it has in a pass of 16.
fn company(both: &mut Both<'_>, matrices: &[(BlockType, usize)], cols: usize) -> Result<(), Error> {
    let most = both.device.decode_rows();
    let names: Vec<String> = matrices.iter().map(|(ty, rows)| format!("{ty} {rows}")).collect();
    let name = format!("product {} x {cols}", names.join(" + "));
    if !both.wants(&name) {
        return Ok(());
    }
    let mut weights = Vec::new();
    for (seed, &(ty, rows)) in matrices.iter().enumerate() {
        let random = RandomMatrix {
            ty,
            experts: 1,
            rows,
            cols,
            scale: 0.02,
            seed: seed as u64,
            on_host: false,
        };
        match both.device.random(random)? {
            Some(weight) => weights.push(weight),
            None => return Ok(()),
        }
    }
    let x = Random(11).numbers(most * cols);
    let mut outputs_of = |rows: Range<usize>| -> Result<Vec<Vec<f32>>, Error> {
        let mut plan = Plan::new("product");
        let (input, loaded) = (plan.numbers("input", cols), plan.activation("x", cols));
        plan.record(Op::Load { x: input, out: loaded });
        let products = |(i, (weight, m)): (usize, (&_, &(BlockType, usize)))| {
            let out = plan.numbers(&format!("y {i}"), m.1);
            Product { x: loaded, weight: *weight, out, rows: Rows::All }
        };
        let products: Vec<Product> =
            weights.iter().zip(matrices).enumerate().map(products).collect();
        let outputs: Vec<_> = products.iter().map(|p| p.out).collect();
        plan.record(Op::Matmul { products });
        let inputs = [(input, x[rows.start * cols..rows.end * cols].to_vec())];
        let arena = run_plan(both.device, plan, &inputs, &pass(rows.len(), false))?;
        outputs.iter().map(|out| Ok(arena.read(*out)?.into_owned())).collect::<Result<_, Error>>()
    };
    let few: Vec<_> =
        (0..most).step_by(16).map(|i| outputs_of(i..i + 16)).collect::<Result<_, _>>()?;
    let mut found = Vec::new();
    for count in [17, 24, 32, 33, 41, 48, 49, 64, 65, 130, most].into_iter().filter(|n| *n <= most)
    {
        let many = outputs_of(0..count)?;
        let same = many.iter().zip(matrices).enumerate().all(|(i, (many, (_, outputs)))| {
            many.chunks(*outputs).enumerate().all(|(row, numbers)| {
                let alone = &few[row / 16][i][row % 16 * outputs..][..*outputs];
                numbers.iter().zip(alone).all(|(a, b)| a.to_bits() == b.to_bits() && a.is_finite())
            })
        });
        found.push((count, same));
    }
    for (count, same) in found {
        let worst = if same { 0.0 } else { f32::INFINITY };
        both.check(&format!("{name}, each of {count} rows as among 16"), worst, 0.0);
    }
    Ok(())
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
                let outputs: Vec<_> = matrices
                    .iter()
                    .enumerate()
                    .map(|(i, m)| plan.numbers(&format!("y {i}"), m.1))
                    .collect();
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
            let got = outputs.iter().map(|out| Ok(arena.read(*out)?.into_owned()));
            let got: Vec<Vec<f32>> = got.collect::<Result<_, Error>>()?;
            // Counts ascend: what is compared with is always the longest so far.
            if let Some(fewer) = bits.replace(got.clone()) {
                let same = fewer.iter().zip(&got).all(|(a, b)| {
                    let n = a.len().min(b.len());
                    a[..n].iter().zip(&b[..n]).all(|(a, b)| a.to_bits() == b.to_bits())
                });
                let worst = if same { 0.0 } else { f32::INFINITY };
                both.check(&format!("{name}, bits of {count} rows, {role}"), worst, 0.0);
            }
        }
    }
    Ok(())
}
