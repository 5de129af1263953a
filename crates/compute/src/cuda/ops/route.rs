//! The router's choice of experts, and the visits by expert.

use crate::{
    Error,
    cuda::{
        args::{RouteArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{Buf, Routing},
};

pub(crate) fn launch(
    run: &Run<'_>,
    logits: Buf,
    routing: &Routing,
    scale: f32,
) -> Result<(), Error> {
    let &Routing { experts, top_k, ids, weights, order, starts } = routing;
    assert!(experts <= 512 && top_k <= 32 && top_k <= experts, "{top_k} of {experts} experts");
    let rows = run.rows();
    let args = RouteArgs {
        logits: run.buffer(logits),
        ids: run.buffer(ids),
        weights: run.buffer(weights),
        order: run.buffer(order),
        starts: run.buffer(starts),
        counts: run.counts.get(),
        rows: rows as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        scale,
    };
    run.launch(kernel::ROUTE, Shape::new([rows.div_ceil(8) as u32, 1, 1], 256), &args)?;
    run.launch(kernel::ROUTE_ORDER, Shape::new([experts.div_ceil(8) as u32, 1, 1], 256), &args)
}
