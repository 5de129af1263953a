//! Mixture of experts: routing, grouped products, combination.

use super::{Both, Random, chain, random_blocks};
use crate::{
    Arena, Backend, Error, Experts, Extent, FeedForward, Kind, Matrix, MatrixId, Op, Pass, Plan,
    Product, Rows, SequenceView,
};
use formats::BlockType;

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    let usual = [BlockType::Q4_K, BlockType::Q6_K, BlockType::Q5_K];
    let folders = [BlockType::FP8, BlockType::FP4, BlockType::INT4];
    let small = [BlockType::IQ3_XXS, BlockType::IQ2_S, BlockType::IQ4_XS];
    for (rows, experts, top_k, hidden, width, prompt, types) in [
        (1, 16, 4, 256, 256, false, usual),
        (16, 64, 8, 512, 256, false, usual),
        (64, 16, 4, 256, 256, false, usual),
        (200, 32, 4, 512, 256, true, usual),
        (3, 16, 4, 256, 256, false, folders),
        (100, 16, 4, 256, 256, true, folders),
        (5, 16, 4, 256, 256, false, small),
        (90, 16, 4, 256, 256, true, small),
    ] {
        let name = format!("experts {rows} rows, {top_k} of {experts}");
        if !both.wants(&name) {
            continue;
        }
        let mut random = Random(11);
        let gate = both.matrix(&mut random, types[0], [experts, width, hidden])?;
        let up = both.matrix(&mut random, types[1], [experts, width, hidden])?;
        let down = both.matrix(&mut random, types[2], [experts, hidden, width])?;
        // Small enough for products of products to stay within f16.
        let small = |x: Vec<f32>| x.into_iter().map(|x| 0.01 * x).collect::<Vec<f32>>();
        let numbers = (
            small(random.numbers(rows * hidden)),
            random.numbers(rows * experts),
            random.numbers(rows * hidden),
            random.numbers(rows),
        );
        let record = |on_device: bool| {
            let pick = |of: super::Of<_>| if on_device { of.device } else { of.reference };
            let mut plan = Plan::new("experts");
            let (input, x) = (plan.numbers("input", hidden), plan.activation("x", hidden));
            let logits = plan.numbers("router", experts);
            let routing = plan.routing(experts, top_k);
            let visits = Extent::Rows(top_k);
            let gated = plan.buffer_of("gate", Kind::Numbers, width, visits);
            let upped = plan.buffer_of("up", Kind::Numbers, width, visits);
            let act = plan.buffer_of("act", Kind::Activation, width, visits);
            let downed = plan.buffer_of("down", Kind::Numbers, hidden, visits);
            let (shared, weight) = (plan.numbers("shared", hidden), plan.numbers("shared gate", 1));
            let out = plan.numbers("out", hidden);
            plan.record(Op::Load { x: input, out: x });
            plan.record(Op::Route { logits, routing, scale: 1.5 });
            let to = |weight, out| Product { x, weight, out, rows: Rows::ToExperts(routing) };
            plan.record(Op::Matmul { products: vec![to(pick(gate), gated), to(pick(up), upped)] });
            plan.record(Op::SwiGlu { parts: vec![(gated, upped, act)] });
            let from = Product {
                x: act,
                weight: pick(down),
                out: downed,
                rows: Rows::FromExperts(routing),
            };
            plan.record(Op::Matmul { products: vec![from] });
            let shared_part = Some((shared, weight));
            plan.record(Op::Combine { routing, experts: downed, shared: shared_part, out });
            let (a, b, c, d) = numbers.clone();
            let inputs = vec![(input, a), (logits, b), (shared, c), (weight, d)];
            (plan, inputs, vec![routing.weights, gated, upped, downed, out])
        };
        let pass = || {
            let pass = Pass::new(&chain(rows), &[], vec![SequenceView::default()]);
            if prompt { pass.as_prompt() } else { pass }
        };
        both.compare(&name, &record, [pass(), pass()], 1e-2)?;
    }
    use BlockType::{FP4, FP8, INT4, INT4_32, IQ2_S, IQ3_S, IQ3_XXS, IQ4_XS};
    let usual = [usual[0], usual[0], usual[1], BlockType::Q8_0, usual[2], usual[0]];
    for (rows, experts, top_k, hidden, width, shared_width, types) in [
        (1, 16, 4, 256, 256, 256, usual),
        (3, 40, 8, 2048, 256, 512, usual),
        (16, 64, 8, 512, 256, 512, usual),
        (33, 300, 10, 512, 256, 256, usual),
        (64, 16, 4, 2304, 256, 256, usual),
        (130, 64, 8, 512, 256, 512, usual),
        (1, 16, 4, 512, 256, 256, [FP8; 6]),
        (7, 32, 8, 512, 256, 256, [FP4, FP4, FP4, FP8, INT4, IQ3_S]),
        (16, 16, 4, 256, 256, 256, [INT4, INT4_32, INT4, FP4, FP4, FP8]),
        (9, 40, 8, 512, 256, 256, [IQ3_S, IQ3_XXS, IQ4_XS, IQ4_XS, IQ3_S, IQ2_S]),
        // The usual ones, but for the expert that all rows visit.
        (2, 16, 4, 256, 256, 256, [usual[0], usual[0], usual[1], IQ4_XS, IQ4_XS, IQ4_XS]),
        (20, 16, 4, 256, 256, 256, [IQ2_S, IQ4_XS, IQ2_S, usual[0], usual[0], usual[0]]),
    ] {
        if rows > both.device.decode_rows() {
            continue;
        }
        block(both, rows, &Shape { experts, top_k, hidden, width, shared_width, types })?;
    }
    Ok(())
}

struct Shape {
    experts: usize,
    top_k: usize,
    hidden: usize,
    width: usize,
    shared_width: usize,
    /// Of gate, up and down of the experts, then of the one that all rows visit.
    types: [BlockType; 6],
}

/// The second half of a block as models record it, which a device may run as one. All rows against
/// the reference, then every row alone against itself in company, to the bit.
fn block(both: &mut Both<'_>, rows: usize, s: &Shape) -> Result<(), Error> {
    let [ty, .., shared_ty] = s.types;
    let name = format!(
        "experts of a block, {rows} rows, {} of {}, {ty} and {shared_ty}",
        s.top_k, s.experts
    );
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(12);
    let mut matrix = |both: &mut Both<'_>, ty, shape| both.matrix(&mut random, ty, shape);
    let shared_router = matrix(both, BlockType::F16, [1, 1, s.hidden])?;
    let gate = matrix(both, s.types[0], [s.experts, s.width, s.hidden])?;
    let up = matrix(both, s.types[1], [s.experts, s.width, s.hidden])?;
    let down = matrix(both, s.types[2], [s.experts, s.hidden, s.width])?;
    let shared_gate = matrix(both, s.types[3], [1, s.shared_width, s.hidden])?;
    let shared_up = matrix(both, s.types[4], [1, s.shared_width, s.hidden])?;
    let shared_down = matrix(both, s.types[5], [1, s.hidden, s.shared_width])?;
    // Rows are made of the router's rows for the experts they are to visit, so that rounding
    // changes no choice.
    let directions = random.numbers(s.experts * s.hidden);
    let scale = 1400.0 / s.hidden as f32;
    let halves: Vec<u8> =
        directions.iter().flat_map(|x| half::f16::from_f32(scale * x).to_le_bytes()).collect();
    let m =
        Matrix { ty: BlockType::F16, experts: 1, rows: s.experts, cols: s.hidden, bytes: &halves };
    let router = super::Of { reference: both.reference.matrix(m)?, device: both.device.matrix(m)? };
    let norm: Vec<f32> = random.numbers(s.hidden).into_iter().map(|x| 0.01 + 0.001 * x).collect();
    let norm = both.vector(&norm)?;
    let (mut residual, added) = (random.numbers(rows * s.hidden), random.numbers(rows * s.hidden));
    for (row, x) in residual.chunks_exact_mut(s.hidden).enumerate() {
        for rank in 0..s.top_k {
            let expert = (row * row * 3 + rank * (s.experts / s.top_k)) % s.experts;
            let direction = &directions[expert * s.hidden..][..s.hidden];
            x.iter_mut().zip(direction).for_each(|(x, d)| *x += (12.0 - 0.6 * rank as f32) * d);
        }
    }
    let record_with = |on_device: bool, weights: [MatrixId; 3], first: usize, count: usize| {
        let pick = |of: super::Of<_>| if on_device { of.device } else { of.reference };
        let mut plan = Plan::new("experts of a block");
        let (x, y) = (plan.numbers("x", s.hidden), plan.numbers("y", s.hidden));
        let normed = plan.activation("normed", s.hidden);
        let (logits, shared_logit) =
            (plan.numbers("router", s.experts), plan.numbers("shared router", 1));
        let routing = plan.routing(s.experts, s.top_k);
        let mut visits = |name, kind, cols| plan.buffer_of(name, kind, cols, Extent::Rows(s.top_k));
        let (gated, upped) =
            (visits("gate", Kind::Numbers, s.width), visits("up", Kind::Numbers, s.width));
        let act = visits("act", Kind::Activation, s.width);
        let downed = visits("down", Kind::Numbers, s.hidden);
        let shared_gated = plan.numbers("shared gate", s.shared_width);
        let shared_upped = plan.numbers("shared up", s.shared_width);
        let shared_act = plan.activation("shared act", s.shared_width);
        let shared_downed = plan.numbers("shared down", s.hidden);
        plan.record(Op::Experts(Experts {
            x,
            add: Some(y),
            norm: if on_device { norm.device } else { norm.reference },
            eps: 1e-6,
            normed,
            router: pick(router),
            shared_router: pick(shared_router),
            logits,
            shared_logits: shared_logit,
            routing,
            scale: 1.5,
            experts: FeedForward { weights, gate: gated, up: upped, act, out: downed },
            shared: FeedForward {
                weights: [shared_gate, shared_up, shared_down].map(pick),
                gate: shared_gated,
                up: shared_upped,
                act: shared_act,
                out: shared_downed,
            },
            out: y,
        }));
        let part = |numbers: &[f32]| numbers[first * s.hidden..(first + count) * s.hidden].to_vec();
        (plan, vec![(x, part(&residual)), (y, part(&added))], vec![x, routing.weights, y])
    };
    let record = |on_device: bool, first: usize, count: usize| {
        let pick = |of: super::Of<_>| if on_device { of.device } else { of.reference };
        record_with(on_device, [gate, up, down].map(pick), first, count)
    };
    let pass = |rows| Pass::new(&chain(rows), &[], vec![SequenceView::default()]);
    both.compare(&name, &|on_device| record(on_device, 0, rows), [pass(rows), pass(rows)], 1e-2)?;
    let (plan, inputs, outputs) = record(true, 0, rows);
    let together = super::run_plan(both.device, plan, &inputs, &pass(rows))?;
    let mut differing = 0;
    for row in 0..rows {
        let (plan, inputs, _) = record(true, row, 1);
        let alone = super::run_plan(both.device, plan, &inputs, &pass(1))?;
        for out in &outputs {
            let cols = alone.plan().cols(*out);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            let (one, all) = (
                bits(&alone.read(*out)?[..cols]),
                bits(&together.read(*out)?[row * cols..][..cols]),
            );
            differing += usize::from(one != all);
        }
    }
    both.check(&format!("{name}, each alone"), differing as f32, 0.0);
    // The same experts in the host's memory, half of which have copies that come and go.
    let mut random = Random(12);
    random_blocks(&mut random, BlockType::F16, s.hidden);
    let mut on_host = |ty, [experts, rows, cols]: [usize; 3]| {
        let bytes = random_blocks(&mut random, ty, experts * rows * cols);
        both.device.host_matrix(Matrix { ty, experts, rows, cols, bytes: &bytes })
    };
    let far = [
        on_host(s.types[0], [s.experts, s.width, s.hidden])?,
        on_host(s.types[1], [s.experts, s.width, s.hidden])?,
        on_host(s.types[2], [s.experts, s.hidden, s.width])?,
    ];
    let room = s.experts * s.width * s.hidden; // of formats of a byte a third of all
    both.device.cache_experts(&[far], room)?;
    let mut differing = 0;
    for (times, as_prompt) in [(1, true), (6, false), (2, true)] {
        let pass = if as_prompt { pass(rows).as_prompt() } else { pass(rows) };
        let (plan, inputs, outputs) = record(true, 0, rows);
        let near = super::run_plan(both.device, plan, &inputs, &pass)?;
        for _ in 0..times {
            let (plan, inputs, _) = record_with(true, far, 0, rows);
            let found = super::run_plan(both.device, plan, &inputs, &pass)?;
            for out in &outputs {
                let bits = |arena: &Arena| -> Result<Vec<u32>, Error> {
                    Ok(arena.read(*out)?.iter().map(|x| x.to_bits()).collect())
                };
                differing += usize::from(bits(&near)? != bits(&found)?);
            }
        }
    }
    both.check(&format!("{name}, hot and cold"), differing as f32, 0.0);
    Ok(())
}
