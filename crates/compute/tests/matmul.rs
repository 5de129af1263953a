//! Products of every block type with any number of rows: against the reference, and bit-identical
//! in any company.

mod support;

use compute::*;
use formats::BlockType;
use support::*;

fn chain(n: usize) -> Pass<'static> {
    let rows: Vec<Row> =
        (0..n as u32).map(|i| Row { token: 0, sequence: 0, parent: i.checked_sub(1) }).collect();
    Pass::new(&rows, &[], vec![SequenceView::default()])
}

/// `y = W x` on `n` rows of `x`, after the rounding that `Load` does.
fn product(
    pair: &mut Pair,
    weight: MatrixId,
    outputs: usize,
    x: &[f32],
    n: usize,
) -> (Vec<f32>, Vec<f32>) {
    let mut plan = Plan::new("product");
    let cols = x.len() / n;
    let (input, loaded, out) =
        (plan.numbers("input", cols), plan.activation("x", cols), plan.numbers("y", outputs));
    plan.record(Op::Load { x: input, out: loaded });
    plan.matmul(loaded, weight, out);
    let (expected, got) = pair.run(&plan.into(), &[(input, x.to_vec())], &chain(n));
    (expected.read(out).expect("a buffer").to_vec(), got.read(out).expect("a buffer").to_vec())
}

#[test]
fn every_type_at_every_level_equals_the_reference() {
    for level in levels() {
        for (activations, tolerance) in [(Activations::F32, 2e-5), (Activations::Int8, 0.04)] {
            for ty in BlockType::ALL {
                let mut random = Random(7);
                let mut pair = Pair::new(level, 2, activations);
                let (outputs, cols, rows) = (37, 2 * 256, 11);
                let weight = pair.matrix(&mut random, ty, 1, outputs, cols);
                let x = random.numbers(rows * cols);
                let (expected, got) = product(&mut pair, weight, outputs, &x, rows);
                assert_close(
                    &format!("{ty} {level:?} {activations:?}"),
                    &expected,
                    &got,
                    tolerance,
                );
            }
        }
    }
}

#[test]
fn int8_products_are_exact_for_activations_that_are_int8() {
    for level in levels() {
        for ty in BlockType::ALL {
            let mut random = Random(11);
            let mut pair = Pair::new(level, 1, Activations::Int8);
            let (outputs, cols, rows) = (16, 512, 3);
            let weight = pair.matrix(&mut random, ty, 1, outputs, cols);
            let mut x: Vec<f32> =
                (0..rows * cols).map(|_| random.below(255) as f32 - 127.0).collect();
            x.iter_mut().step_by(32).for_each(|x| *x = 127.0);
            let (expected, got) = product(&mut pair, weight, outputs, &x, rows);
            assert_close(&format!("{ty} {level:?}"), &expected, &got, 2e-5);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others_with_any_threads_and_level() {
    for activations in [Activations::Int8, Activations::F32] {
        for ty in BlockType::ALL {
            let (outputs, cols, rows) = (50, 256, 71);
            let mut first: Option<Vec<f32>> = None;
            for (level, threads) in levels().into_iter().flat_map(|l| [(l, 1), (l, 3)]) {
                let mut random = Random(5);
                let mut cpu = Cpu::new(level, threads, activations);
                let bytes = random_blocks(&mut random, ty, outputs * cols);
                let weight = cpu
                    .matrix(Matrix { ty, experts: 1, rows: outputs, cols, bytes: &bytes })
                    .expect("room");
                let x = random.numbers(rows * cols);
                let mut plan = Plan::new("product");
                let (input, loaded, out) = (
                    plan.numbers("input", cols),
                    plan.activation("x", cols),
                    plan.numbers("y", outputs),
                );
                plan.record(Op::Load { x: input, out: loaded });
                plan.matmul(loaded, weight, out);
                let plan = plan.into();
                let whole = run(&mut cpu, &plan, &[(input, x.clone())], &chain(rows));
                let whole = whole.read(out).expect("a buffer").to_vec();
                let first = first.get_or_insert_with(|| whole.clone());
                assert_same_bits(&format!("{ty} {level:?} {threads} threads"), first, &whole);
                let mut done = 0;
                for n in [1, 2, 3, 5, 7, 8, 15, 16] {
                    let part = x[done * cols..(done + n) * cols].to_vec();
                    let arena = run(&mut cpu, &plan, &[(input, part)], &chain(n));
                    let expected = &whole[done * outputs..(done + n) * outputs];
                    assert_same_bits(
                        &format!("{ty} {level:?} {n} rows"),
                        expected,
                        &arena.read(out).expect("a buffer"),
                    );
                    done += n;
                }
            }
        }
    }
}

#[test]
fn an_embedding_row_is_the_decoded_row() {
    for level in levels() {
        for ty in BlockType::ALL {
            let mut random = Random(3);
            let mut pair = Pair::new(level, 2, Activations::Int8);
            let table = pair.matrix(&mut random, ty, 1, 40, 256);
            let mut plan = Plan::new("embed");
            let out = plan.numbers("x", 256);
            plan.record(Op::Embed { table, out });
            let rows = [0, 39, 17, 16].map(|token| Row { token, sequence: 0, parent: None });
            let pass = Pass::new(&rows, &[], vec![SequenceView::default()]);
            let (expected, got) = pair.run(&plan.into(), &[], &pass);
            assert_close(
                &format!("{ty} {level:?}"),
                &expected.read(out).expect("a buffer"),
                &got.read(out).expect("a buffer"),
                1e-6,
            );
        }
    }
}

#[test]
fn nan_is_not_lost_in_rounding() {
    let mut random = Random(1);
    let mut pair = Pair::new(CpuLevel::detect(), 1, Activations::Int8);
    let weight = pair.matrix(&mut random, BlockType::Q4_K, 1, 16, 256);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = random.numbers(256);
        x[100] = bad;
        assert!(product(&mut pair, weight, 16, &x, 1).1.iter().all(|y| y.is_nan()));
    }
    assert!(product(&mut pair, weight, 16, &[1e-39; 256], 1).1.iter().all(|y| *y == 0.0));
}
