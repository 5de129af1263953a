//! The residual sum and its norm.

use crate::{
    Error,
    cuda::{
        args::{NormArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Op,
};

pub(crate) fn launch(run: &Run<'_>, op: &Op) -> Result<(), Error> {
    let &Op::Norm { x, add, weight, eps, out, offset, tap } = op else { unreachable!() };
    let cols = run.cols(x);
    assert!(
        cols.is_multiple_of(32) && cols <= 8192 && offset.is_multiple_of(32),
        "{cols} columns at {offset}"
    );
    let (tap, tap_stride, tap_offset) = match tap {
        Some((buf, at)) => (run.buffer(buf), run.cols(buf), at),
        None => (0, 0, 0),
    };
    assert!(
        tap_stride.is_multiple_of(4) && tap_offset.is_multiple_of(4),
        "a tap at {tap_offset} of {tap_stride}"
    );
    let args = NormArgs {
        x: run.buffer(x),
        add: add.map_or(0, |add| run.buffer(add)),
        weight: run.vector(weight),
        tap,
        out: run.activation(out),
        rows: run.rows() as i32,
        cols: cols as i32,
        tap_stride: tap_stride as i32,
        tap_offset: tap_offset as i32,
        offset: offset as i32,
        eps,
    };
    // A thread has eight columns, whatever the number of rows.
    run.launch(
        kernel::RMS_NORM,
        Shape::new([run.rows() as u32, 1, 1], cols.div_ceil(256) as u32 * 32),
        &args,
    )
}
