//! The gate of a feed-forward layer.

use crate::{
    Error,
    cuda::{args::SwiGluArgs, driver::Shape, run::Run},
    plan::Buf,
};

pub(crate) fn launch(run: &Run<'_>, gate: Buf, up: Buf, out: Buf) -> Result<(), Error> {
    let args = args(run, gate, up, out);
    let (rows, cols) = (args.rows as u32, args.out.cols as u32);
    run.launch("swiglu", Shape::new([cols.div_ceil(1024), rows, 1], 128), &args)
}

/// The arguments of one triple.
pub(crate) fn args(run: &Run<'_>, gate: Buf, up: Buf, out: Buf) -> SwiGluArgs {
    let spec = &run.plan().buffers[out.0 as usize];
    let (rows, cols) = (spec.rows(run.rows(), run.pass.chosen_rows as usize), spec.cols);
    assert!(cols.is_multiple_of(32) && rows <= 65535, "{rows} rows of {cols}");
    SwiGluArgs { gate: run.buffer(gate), up: run.buffer(up), out: run.activation(out), rows: rows as i32 }
}
