//! Norm, SwiGLU, load, embedding.

use super::{Both, Random, chain};
use crate::{Error, Op, Pass, Plan, Row, SequenceView};
use formats::BlockType;

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for (rows, cols) in [(5usize, 96usize), (1, 256), (17, 5120), (70, 2048)] {
        let name = format!("norm, swiglu, load {rows} x {cols}");
        if !both.wants(&name) {
            continue;
        }
        let mut random = Random(1);
        let weight = both.vector(&random.numbers(cols))?;
        let numbers: Vec<Vec<f32>> = (0..5).map(|_| random.numbers(rows * cols)).collect();
        let record = |on_device: bool| {
            let weight = if on_device { weight.device } else { weight.reference };
            let mut plan = Plan::new("norm");
            let (x, add) = (plan.numbers("x", cols), plan.numbers("add", cols));
            let (tap, out) = (plan.numbers("tap", 2 * cols), plan.activation("out", 2 * cols));
            let (gate, up, y) =
                (plan.numbers("gate", cols), plan.numbers("up", cols), plan.activation("y", cols));
            let (z, loaded) = (plan.numbers("z", cols), plan.activation("loaded", cols));
            let norm =
                |tap, offset| Op::Norm { x, add: Some(add), weight, eps: 1e-6, out, offset, tap };
            plan.record(norm(Some((tap, 0)), 0));
            plan.record(norm(Some((tap, cols)), cols));
            plan.record(Op::SwiGlu { parts: vec![(gate, up, y)] });
            plan.record(Op::Load { x: z, out: loaded });
            let inputs = [x, add, gate, up, z].into_iter().zip(numbers.clone()).collect();
            (plan, inputs, vec![x, tap, out, y, loaded])
        };
        let pass = || Pass::new(&chain(rows), &[], vec![SequenceView::default()]);
        both.compare(&name, &record, [pass(), pass()], 2e-5)?;
    }
    for ty in BlockType::ALL {
        let name = format!("embed {ty}");
        if !both.wants(&name) {
            continue;
        }
        let table = both.table(&mut Random(3), ty, 40, 512)?;
        let record = |on_device: bool| {
            let table = if on_device { table.device } else { table.reference };
            let mut plan = Plan::new("embed");
            let out = plan.numbers("x", 512);
            plan.record(Op::Embed { table, out });
            (plan, Vec::new(), vec![out])
        };
        let rows = [0, 39, 17, 16].map(|token| Row { token, sequence: 0, parent: None });
        let pass = || Pass::new(&rows, &[], vec![SequenceView::default()]);
        both.compare(&name, &record, [pass(), pass()], 1e-6)?;
    }
    Ok(())
}
