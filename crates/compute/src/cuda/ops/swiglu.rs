//! The gate of a feed-forward layer.

use crate::{
    Error,
    cuda::{
        args::{SwiGluArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Buf,
};

pub(crate) fn launch(run: &Run<'_>, gate: Buf, up: Buf, out: Buf) -> Result<(), Error> {
    let spec = &run.plan().buffers[out.0 as usize];
    let (rows, cols) = (spec.rows(run.rows(), run.pass.chosen_rows as usize), spec.cols);
    assert!(cols.is_multiple_of(32) && rows <= 65535, "{rows} rows of {cols}");
    let args = SwiGluArgs {
        gate: run.buffer(gate),
        up: run.buffer(up),
        out: run.activation(out),
        rows: rows as i32,
    };
    run.launch(kernel::SWIGLU, Shape::new([cols.div_ceil(1024) as u32, rows as u32, 1], 128), &args)
}
