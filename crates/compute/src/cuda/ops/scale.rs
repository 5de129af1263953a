//! Numbers times a factor, and a soft cap.

use crate::{
    Error,
    cuda::{
        args::{ScaleArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{Buf, Kind},
};

pub(crate) fn launch(run: &Run<'_>, x: Buf, by: f32, cap: Option<f32>) -> Result<(), Error> {
    let spec = &run.plan().buffers[x.0 as usize];
    assert!(spec.kind == Kind::Numbers, "only plain numbers are scaled");
    let count = spec.rows(run.rows(), run.pass.chosen_rows as usize) * spec.cols;
    let args =
        ScaleArgs { x: run.buffer(x), count: count as u64, by, cap: cap.unwrap_or_default() };
    run.launch(kernel::SCALE, Shape::new([count.div_ceil(1024) as u32, 1, 1], 256), &args)
}
