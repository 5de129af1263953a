//! The sum of the experts' outputs.

use crate::{
    Error,
    cuda::{
        args::{CombineArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{Buf, Routing},
};

pub(crate) fn launch(
    run: &Run<'_>,
    routing: &Routing,
    experts: Buf,
    shared: Option<(Buf, Buf)>,
    out: Buf,
) -> Result<(), Error> {
    let (rows, cols) = (run.rows(), run.cols(out));
    assert!(cols.is_multiple_of(4) && run.cols(experts) == cols, "{cols} columns");
    let (part, gate) = shared.map_or((0, 0), |(part, gate)| (run.buffer(part), run.buffer(gate)));
    let args = CombineArgs {
        experts: run.buffer(experts),
        weights: run.buffer(routing.weights),
        shared: part,
        shared_gate: gate,
        out: run.buffer(out),
        rows: rows as i32,
        cols: cols as i32,
        top_k: routing.top_k as i32,
    };
    run.launch(kernel::COMBINE, Shape::new([cols.div_ceil(512) as u32, rows as u32, 1], 128), &args)
}
