//! Mixture of experts: routing, grouped products, combination.

use super::{Both, Random, chain};
use crate::{Error, Extent, Kind, Op, Pass, Plan, Product, Rows, SequenceView};
use formats::BlockType;

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for (rows, experts, top_k, hidden, width, prompt) in [
        (1, 16, 4, 256, 256, false),
        (16, 64, 8, 512, 256, false),
        (64, 16, 4, 256, 256, false),
        (200, 32, 4, 512, 256, true),
    ] {
        let mut random = Random(11);
        let gate = both.matrix(&mut random, BlockType::Q4_K, [experts, width, hidden])?;
        let up = both.matrix(&mut random, BlockType::Q6_K, [experts, width, hidden])?;
        let down = both.matrix(&mut random, BlockType::Q5_K, [experts, hidden, width])?;
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
            let from = Product { x: act, weight: pick(down), out: downed, rows: Rows::FromExperts(routing) };
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
        both.compare(&format!("experts {rows} rows, {top_k} of {experts}"), &record, [pass(), pass()], 1e-2)?;
    }
    Ok(())
}
