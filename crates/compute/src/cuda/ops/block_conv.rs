//! Convolution over the rows of a block, alone or with the norm behind it.

use crate::{
    Error,
    cuda::{
        args::{BlockConvArgs, ConvNormArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{BlockConv, ConvNorm, Kind},
};

fn args(run: &Run<'_>, conv: &BlockConv) -> BlockConvArgs {
    let (cols, stride) = (run.cols(conv.x), run.cols(conv.coefficients));
    assert!(cols.is_multiple_of(32) && run.cols(conv.out) == cols, "rows of {cols}");
    assert!(conv.group.is_multiple_of(16) && cols.is_multiple_of(conv.group), "{conv:?}");
    assert!(conv.taps <= BlockConv::MAX_TAPS, "{conv:?}");
    assert!(conv.first + conv.taps * cols / conv.group <= stride, "{conv:?}");
    let mut args = BlockConvArgs {
        pass: run.pass,
        x: run.buffer(conv.x),
        base: run.vector(conv.base),
        coefficients: run.buffer(conv.coefficients),
        cols: cols as i32,
        taps: conv.taps as i32,
        group: conv.group as i32,
        stride: stride as i32,
        first: conv.first as i32,
        ..Default::default()
    };
    match run.plan().buffers[conv.out.0 as usize].kind {
        Kind::Activation => args.out = run.activation(conv.out),
        _ => args.plain = run.buffer(conv.out),
    }
    args
}

pub(crate) fn launch(run: &Run<'_>, conv: &BlockConv) -> Result<(), Error> {
    let args = args(run, conv);
    let grid = [(args.cols as u32).div_ceil(1024), run.rows() as u32, 1];
    run.launch(kernel::BLOCK_CONV, Shape::new(grid, 128), &args)
}

pub(crate) fn launch_with_norm(run: &Run<'_>, both: &ConvNorm) -> Result<(), Error> {
    let cols = run.cols(both.x);
    assert!(cols <= 8192 && cols == run.cols(both.conv.x), "rows of {cols}");
    let args = ConvNormArgs {
        conv: args(run, &both.conv),
        x: run.buffer(both.x),
        weight: run.vector(both.weight),
        out: run.activation(both.out),
        eps: both.eps,
    };
    let shape = Shape::new([run.rows() as u32, 1, 1], cols.div_ceil(256) as u32 * 32);
    run.launch(kernel::CONV_NORM, shape, &args)
}
