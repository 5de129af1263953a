//! Every other op at every level: against the reference, from NaN, with the same bits at each level
//! and thread count.

mod support;

use compute::{
    selftest::plans::{self, chain, tree_and_chain},
    *,
};
use formats::BlockType;
use std::sync::Arc;
use support::*;

/// Gives numbers to both backends.
type NewVector<'a> = dyn FnMut(&[f32]) -> VectorId + 'a;
/// Gives both a random matrix of [experts, rows, cols].
type NewMatrix<'a> = dyn FnMut(BlockType, [usize; 3]) -> MatrixId + 'a;

/// Runs a plan on the reference and at every level with 1 and 3 threads; `out` must be close to the
/// reference and the same bits everywhere.
fn check(
    name: &str,
    build: &dyn Fn(&mut NewVector<'_>, &mut NewMatrix<'_>) -> Case,
    pass: &Pass<'_>,
    tolerance: f32,
) {
    let mut bits: Option<Vec<Vec<f32>>> = None;
    for (level, threads) in levels().into_iter().flat_map(|l| [(l, 1), (l, 3)]) {
        let pair = std::cell::RefCell::new(Pair::new(level, threads, Activations::F32));
        let mut random = Random(42);
        let case = build(&mut |v| pair.borrow_mut().vector(v), &mut |ty, [experts, rows, cols]| {
            pair.borrow_mut().matrix(&mut random, ty, experts, rows, cols)
        });
        let (expected, got) = pair.into_inner().run(&case.plan, &case.inputs, pass);
        let numbers = |arena: &Arena| -> Vec<Vec<f32>> {
            case.outputs.iter().map(|b| arena.read(*b).expect("a buffer").to_vec()).collect()
        };
        let (expected, got) = (numbers(&expected), numbers(&got));
        for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
            assert_close(&format!("{name} {level:?} output {i}"), e, g, tolerance);
        }
        for (i, (a, b)) in bits.get_or_insert_with(|| got.clone()).iter().zip(&got).enumerate() {
            assert_same_bits(&format!("{name} {level:?} {threads} threads, output {i}"), a, b);
        }
    }
}

struct Case {
    plan: Arc<Plan>,
    inputs: Vec<(Buf, Vec<f32>)>,
    outputs: Vec<Buf>,
}

#[test]
fn norm_and_swiglu() {
    let pass = Pass::new(&chain(5), &[], vec![SequenceView::default()]);
    check(
        "norm",
        &|vector, _| {
            let mut random = Random(1);
            let mut plan = Plan::new("norm");
            let (x, add) = (plan.numbers("x", 96), plan.numbers("add", 96));
            let (tap, out) = (plan.numbers("tap", 192), plan.activation("out", 224));
            let (gate, up, y) =
                (plan.numbers("gate", 96), plan.numbers("up", 96), plan.activation("y", 96));
            let weight = vector(&random.numbers(96));
            let norm =
                |tap, offset| Op::Norm { x, add: Some(add), weight, eps: 1e-6, out, offset, tap };
            plan.record(norm(Some((tap, 0)), 32));
            plan.record(norm(Some((tap, 96)), 128));
            plan.record(Op::SwiGlu { parts: vec![(gate, up, y)] });
            let mut wide = random.numbers(5 * 96);
            wide[7] = 100.0;
            wide[8] = -100.0;
            let inputs = vec![
                (x, random.numbers(5 * 96)),
                (add, random.numbers(5 * 96)),
                (gate, wide),
                (up, random.numbers(5 * 96)),
                (out, vec![0.0; 5 * 224]),
            ];
            Case { plan: plan.into(), inputs, outputs: vec![x, tap, out, y] }
        },
        &pass,
        2e-6,
    );
}

#[test]
fn experts() {
    let pass = Pass::new(&chain(7), &[], vec![SequenceView::default()]);
    check(
        "experts",
        &|_, matrix| {
            let mut random = Random(2);
            let mut plan = Plan::new("experts");
            let (hidden, ff, experts, top_k) = (256, 64, 9, 3);
            let x = plan.activation("x", hidden);
            let (logits, shared, shared_gate) = (
                plan.numbers("logits", experts),
                plan.numbers("shared", hidden),
                plan.numbers("shared gate", 1),
            );
            let routing = plan.routing(experts, top_k);
            let gate = plan.buffer_of("gate", Kind::Numbers, ff, Extent::Rows(top_k));
            let up = plan.buffer_of("up", Kind::Numbers, ff, Extent::Rows(top_k));
            let act = plan.buffer_of("act", Kind::Activation, ff, Extent::Rows(top_k));
            let down = plan.buffer_of("down", Kind::Numbers, hidden, Extent::Rows(top_k));
            let out = plan.numbers("out", hidden);
            plan.record(Op::Route { logits, routing, scale: 1.5 });
            let to = |weight, out| Product { x, weight, out, rows: Rows::ToExperts(routing) };
            let gate_up = vec![
                to(matrix(BlockType::Q4_K, [experts, ff, hidden]), gate),
                to(matrix(BlockType::Q6_K, [experts, ff, hidden]), up),
            ];
            plan.record(Op::Matmul { products: gate_up });
            plan.record(Op::SwiGlu { parts: vec![(gate, up, act)] });
            let weight = matrix(BlockType::Q8_0, [experts, hidden, ff]);
            let rows = Rows::FromExperts(routing);
            plan.record(Op::Matmul { products: vec![Product { x: act, weight, out: down, rows }] });
            plan.record(Op::Combine {
                routing,
                experts: down,
                shared: Some((shared, shared_gate)),
                out,
            });
            let inputs = vec![
                (x, random.numbers(7 * hidden)),
                (logits, random.numbers(7 * experts)),
                (shared, random.numbers(7 * hidden)),
                (shared_gate, random.numbers(7)),
            ];
            Case { plan: plan.into(), inputs, outputs: vec![routing.weights, down, out] }
        },
        &pass,
        1e-4,
    );
}

fn attention_plan(
    vector: &mut NewVector<'_>,
    layout: KvLayout,
    shape: AttentionShape,
    window: Option<usize>,
    causal: bool,
) -> (Plan, [Buf; 3], Buf) {
    let mut random = Random(9);
    let mut norm = || vector(&random.numbers(shape.head_dim));
    plans::attention(plans::Norms { q: norm(), k: norm() }, layout, shape, window, causal)
}

#[test]
fn attention() {
    let shape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 96, gated: true };
    for kind in KvType::ALL {
        let layout = KvLayout { kind, layers: 2, heads: 2, head_dim: 96 };
        // 130 tokens of sequence 0 are committed by the reference first.
        let committed = 130;
        let mut random = Random(3);
        let mut pages: Vec<Memory> = (0..3).map(|_| Memory::zeroed(layout.page_bytes())).collect();
        {
            let mut reference = reference::Reference::default();
            let (plan, inputs, _) = attention_plan(
                &mut |v| reference.vector(v).expect("room"),
                layout,
                shape,
                None,
                true,
            );
            let cols = inputs.map(|b| plan.cols(b));
            let inputs: Vec<_> =
                inputs.iter().zip(cols).map(|(b, n)| (*b, random.numbers(committed * n))).collect();
            let pass = Pass::new(
                &chain(committed),
                &[],
                vec![SequenceView { caches: vec![PageTable::default()], ..Default::default() }],
            );
            let arena = run(&mut reference, &plan.into(), &inputs, &pass);
            let rows: Vec<u32> = (0..committed as u32).collect();
            let path = CommitPath { rows: &rows, position: 0 };
            let commit = KvCommit { path, first_page: 0, pages: pages.iter_mut().collect() };
            reference.commit_kv(&arena, 0, &mut [commit]).expect("a commit");
        }
        let table = PageTable { first_page: 0, pages: pages.iter().collect() };
        let first = SequenceView { committed, caches: vec![table], ..Default::default() };
        let second = SequenceView { caches: vec![PageTable::default()], ..Default::default() };
        let tree = Pass::new(&tree_and_chain(), &[], vec![first.clone(), second]);
        let block = Pass::new(&chain(9), &[], vec![first]);
        for (pass, window, causal) in [
            (&tree, None, true),
            (&tree, Some(70), true),
            (&block, None, false),
            (&block, Some(5), false),
        ] {
            let build = |vector: &mut NewVector<'_>, _: &mut NewMatrix<'_>| {
                let (plan, inputs, out) = attention_plan(vector, layout, shape, window, causal);
                let mut random = Random(5);
                let cols = inputs.map(|b| plan.cols(b));
                let inputs = inputs
                    .iter()
                    .zip(cols)
                    .map(|(b, n)| (*b, random.numbers(pass.rows() * n)))
                    .collect();
                Case { plan: plan.into(), inputs, outputs: vec![out] }
            };
            // A key on the edge between two codes may fall to either side.
            let tolerance = if kind == KvType::F16 { 1e-3 } else { 1e-2 };
            check(&format!("attention {kind:?} {window:?} {causal}"), &build, pass, tolerance);
        }
    }
}

/// What transformed heads attend to is what heads attend to, and where a few columns are large it is
/// nearer to that than what q4_0 alone leaves of it.
#[test]
fn transformed_heads_attend_alike() {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim: 256, gated: true };
    let rows = 60;
    let mut random = Random(12);
    let [q, mut k, mut v] = [4 * 512, 512, 512].map(|cols| random.numbers(rows * cols));
    // In keys these columns are alike at every position, so that no score hangs on them alone.
    k.iter_mut().skip(5).step_by(32).for_each(|x| *x = 8.0 + 0.1 * *x);
    v.iter_mut().skip(5).step_by(32).for_each(|x| *x *= 20.0);
    let attended = KvType::ALL.map(|kind| {
        let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::F32);
        let norm = cpu.vector(&[1.0; 256]).expect("room");
        let layout = KvLayout { kind, layers: 2, heads: 2, head_dim: 256 };
        let (norms, causal) = (plans::Norms { q: norm, k: norm }, true);
        let (plan, bufs, out) = plans::attention(norms, layout, shape, None, causal);
        let inputs = [q.clone(), k.clone(), v.clone()];
        let inputs: Vec<_> = bufs.into_iter().zip(inputs).collect();
        let view = SequenceView { caches: vec![PageTable::default()], ..Default::default() };
        let arena = run(&mut cpu, &plan.into(), &inputs, &Pass::new(&chain(rows), &[], vec![view]));
        arena.read(out).expect("a buffer").to_vec()
    });
    let size = attended[0].iter().map(|x| x * x).sum::<f32>();
    let error = |found: &Vec<f32>| {
        let squares = attended[0].iter().zip(found).map(|(a, b)| (a - b) * (a - b));
        (squares.sum::<f32>() / size).sqrt()
    };
    let [_, eight, four, transformed] = attended.each_ref().map(error);
    eprintln!("q8_0 {eight:.5}, q4_0 {four:.5}, q4_0h {transformed:.5}");
    assert!(eight < transformed && 2.0 * transformed < four, "{eight} {transformed} {four}");
}

fn deltanet_plan(vector: &mut NewVector<'_>, layout: RecurrentLayout) -> (Plan, Vec<Buf>, Buf) {
    let mut random = Random(6);
    let conv = vector(&random.numbers(layout.kernel * layout.channels()));
    let dt_bias = vector(&random.numbers(layout.value_heads));
    let decay: Vec<f32> =
        random.numbers(layout.value_heads).iter().map(|x| -0.2 * x.exp()).collect();
    let (decay, norm) = (vector(&decay), vector(&random.numbers(layout.dim)));
    plans::deltanet(plans::DeltaNet { conv, dt_bias, decay, norm }, layout)
}

#[test]
fn deltanet() {
    let layout = RecurrentLayout { layers: 2, key_heads: 2, value_heads: 6, dim: 96, kernel: 4 };
    // No state; a state within the first anchor; between anchors; long after.
    for committed in [0usize, 30, 44, 149] {
        let mut random = Random(8);
        let [mut anchor, mut older] = [(); 2].map(|()| Memory::zeroed(4 * layout.anchor_len()));
        let mut tape = Memory::zeroed(4 * layout.tape_len());
        if committed > 0 {
            let mut reference = reference::Reference::default();
            let (plan, inputs, _) =
                deltanet_plan(&mut |v| reference.vector(v).expect("room"), layout);
            let inputs: Vec<_> =
                inputs.iter().map(|b| (*b, random.numbers(committed * plan.cols(*b)))).collect();
            let pass = Pass::new(&chain(committed), &[], vec![SequenceView::default()]);
            let arena = run(&mut reference, &plan.into(), &inputs, &pass);
            let rows: Vec<u32> = (0..committed as u32).collect();
            let newest = committed / ANCHOR_TOKENS * ANCHOR_TOKENS;
            let mut anchors = vec![];
            if newest > 0 {
                anchors.push((newest, &mut anchor));
            }
            if newest > ANCHOR_TOKENS {
                anchors.push((newest - ANCHOR_TOKENS, &mut older));
            }
            let path = CommitPath { rows: &rows, position: 0 };
            let commit = RecurrentCommit { path, base: None, anchors, tape: &mut tape };
            reference.commit_recurrent(&arena, &mut [commit]).expect("a commit");
        }
        let newest = committed / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let view = SequenceView {
            committed,
            anchor: (newest > 0).then_some(&anchor),
            older_anchor: (newest > ANCHOR_TOKENS).then_some(&older),
            tape: Some(&tape),
            ..Default::default()
        };
        let tree = Pass::new(&tree_and_chain(), &[], vec![view.clone(), SequenceView::default()]);
        // Long enough to fold anchors of its own, with a branch of 40 rows off the fifth.
        let mut rows = chain(90);
        rows.extend((90..130).map(|i| Row {
            token: 0,
            sequence: 0,
            parent: Some(if i == 90 { 4 } else { i - 1 }),
        }));
        let long = Pass::new(&rows, &[], vec![view]);
        for pass in [&tree, &long] {
            let build = |vector: &mut NewVector<'_>, _: &mut NewMatrix<'_>| {
                let (plan, inputs, out) = deltanet_plan(vector, layout);
                let mut random = Random(5);
                let inputs = inputs
                    .iter()
                    .map(|b| (*b, random.numbers(pass.rows() * plan.cols(*b))))
                    .collect();
                let kept = plan.recurrent_layer(1).1;
                let outputs = vec![out, kept.keys, kept.deltas, kept.gates];
                Case { plan: plan.into(), inputs, outputs }
            };
            check(&format!("deltanet at {committed}"), &build, pass, 2e-4);
        }
    }
}

#[test]
fn convolutions_over_blocks() {
    let committed = SequenceView { committed: 9, ..Default::default() };
    let pass = Pass::new(&tree_and_chain(), &[], vec![committed, SequenceView::default()]);
    for (taps, group) in [(2, 16), (4, 48)] {
        let build = |vector: &mut NewVector<'_>, _: &mut NewMatrix<'_>| {
            let mut random = Random(3);
            let (base, weight) = (vector(&random.numbers(taps * 96)), vector(&random.numbers(96)));
            let (plan, inputs, outputs) = plans::block_conv(base, weight, 96, taps, group);
            let inputs = inputs.map(|buf| (buf, random.numbers(pass.rows() * plan.cols(buf))));
            Case { plan: plan.into(), inputs: inputs.to_vec(), outputs: outputs.to_vec() }
        };
        check("block_conv", &build, &pass, 2e-6);
    }
}

/// The checks that a device's ops for blocks are held to, at every level.
#[test]
fn blocks_of_a_drafter_as_on_a_device() {
    for level in levels() {
        for only in ["block_conv", "scale", "top"] {
            let mut cpu = Cpu::new(level, 2, Activations::F32);
            let checks = selftest::run(&mut cpu, only, |_| ()).expect("it runs");
            assert!(!checks.is_empty());
            let bad: Vec<_> = checks.iter().filter(|check| !check.holds()).collect();
            assert!(bad.is_empty(), "{level:?}: {bad:?}");
        }
    }
}

/// A row of a block sees nothing of later rows, and a convolution that is the identity keeps bits.
#[test]
fn convolutions_look_back_only_and_may_do_nothing() {
    let pass = Pass::new(&chain(8), &[], vec![SequenceView::default()]);
    for level in levels() {
        let mut cpu = Cpu::new(level, 2, Activations::F32);
        let mut random = Random(8);
        let numbers = random.numbers(8 * 64);
        let mut bits = |base: Vec<f32>, numbers: &[f32], coefficients: Vec<f32>| -> Vec<u32> {
            let (base, weight) = (cpu.vector(&base), cpu.vector(&[1.0; 64]));
            let (plan, [rows, c, x], [out, ..]) =
                plans::block_conv(base.expect("room"), weight.expect("room"), 64, 2, 16);
            let inputs = [(rows, numbers.to_vec()), (c, coefficients), (x, vec![0.5; 8 * 64])];
            let arena = run(&mut cpu, &plan.into(), &inputs, &pass);
            arena.read(out).expect("a buffer").iter().map(|x| x.to_bits()).collect()
        };
        let (base, coefficients) = (random.numbers(128), random.numbers(8 * 16));
        let before = bits(base.clone(), &numbers, coefficients.clone());
        let mut later = numbers.clone();
        later[5 * 64..].iter_mut().for_each(|x| *x *= -3.0);
        let after = bits(base, &later, coefficients);
        assert_eq!(before[..5 * 64], after[..5 * 64], "{level:?}");
        assert_ne!(before[5 * 64..6 * 64], after[5 * 64..6 * 64], "{level:?}");
        let identity = [[1.0f32; 64], [0.0; 64]].concat();
        let same = bits(identity, &numbers, vec![0.0; 8 * 16]);
        assert_eq!(same, numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), "{level:?}");
    }
}

#[test]
fn nan_in_any_input_of_attention_reaches_the_output() {
    let shape = AttentionShape { heads: 2, kv_heads: 1, head_dim: 32, gated: true };
    let layout = KvLayout { kind: KvType::F16, layers: 2, heads: 1, head_dim: 32 };
    let view = SequenceView { caches: vec![PageTable::default()], ..Default::default() };
    let pass = Pass::new(&chain(3), &[], vec![view]);
    for level in levels() {
        for bad in 0..4 {
            let mut cpu = Cpu::new(level, 1, Activations::Int8);
            let (plan, inputs, out) =
                attention_plan(&mut |v| cpu.vector(v).expect("room"), layout, shape, None, true);
            let mut random = Random(4);
            let mut numbers: Vec<_> =
                inputs.iter().map(|b| (*b, random.numbers(3 * plan.cols(*b)))).collect();
            // The last row's query and gate, the first row's key and value.
            let (input, at) = [(0, 2 * 128), (0, 2 * 128 + 32), (1, 0), (2, 0)][bad];
            numbers[input].1[at] = f32::NAN;
            let arena = run(&mut cpu, &plan.into(), &numbers, &pass);
            assert!(
                arena.row(out, 2).expect("a row").iter().any(|x| x.is_nan()),
                "{level:?} input {bad}"
            );
        }
    }
}
