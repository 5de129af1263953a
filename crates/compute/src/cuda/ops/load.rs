//! Numbers made ready to be multiplied.

use crate::{
    Error,
    cuda::{
        args::{LoadArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Buf,
};

pub(crate) fn launch(run: &Run<'_>, x: Buf, out: Buf) -> Result<(), Error> {
    let cols = run.cols(out);
    assert!(cols.is_multiple_of(32) && run.cols(x) == cols, "{cols} columns");
    let args = LoadArgs { x: run.buffer(x), out: run.activation(out), rows: run.rows() as i32 };
    run.launch(
        kernel::LOAD,
        Shape::new([cols.div_ceil(1024) as u32, run.rows() as u32, 1], 128),
        &args,
    )
}
