//! Rotary angles.

use crate::{
    Error,
    cuda::{
        args::{RotaryArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{Buf, Rotary},
};

/// As in `kernels/angles.cu`.
const MAX_PAIRS: usize = 128;

/// `RotaryArgs` of `kernels/angles.cu`: the frequencies travel with the launch.
pub(crate) fn launch(run: &Run<'_>, rotary: &Rotary, out: Buf) -> Result<(), Error> {
    let pairs = rotary.inverse_frequencies.len();
    assert!(pairs <= MAX_PAIRS && run.cols(out) == 2 * pairs, "{pairs} pairs");
    let mut frequencies = [0.0; MAX_PAIRS];
    frequencies[..pairs].copy_from_slice(&rotary.inverse_frequencies);
    let args = RotaryArgs {
        positions: run.pass.positions,
        out: run.buffer(out),
        pairs: pairs as i32,
        magnitude: rotary.magnitude,
        frequencies,
    };
    run.launch(
        kernel::ANGLES,
        Shape::new([run.rows() as u32, 1, 1], pairs.div_ceil(32) as u32 * 32),
        &args,
    )
}
