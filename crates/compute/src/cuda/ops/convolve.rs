//! The convolution of Gated DeltaNet layers, where `deltanet` does not take it along.

use super::deltanet;
use crate::{
    Error,
    cuda::{
        args::{ConvolveArgs, TEXT_ROWS, kernel},
        driver::Shape,
        run::Run,
    },
    pass::CONV_REACH,
    plan::{Buf, VectorId},
};

/// Heads of a block; one more warp brings the state nearer.
const HEADS: u32 = 8;

/// Blocks of rows: prompts take eight rows a block, which then share what they read.
pub(super) fn row_blocks(rows: usize) -> u32 {
    rows.div_ceil(if rows > TEXT_ROWS { 8 } else { 1 }) as u32
}

pub(crate) fn launch(
    run: &Run<'_>,
    layer: usize,
    weight: VectorId,
    q: Buf,
    v: Buf,
) -> Result<(), Error> {
    let (layout, kept) = run.plan().recurrent_layer(layer);
    assert!(layout.kernel == CONV_REACH + 1, "a convolution of {} taps", layout.kernel);
    if deltanet::is_fused(run) {
        return Ok(());
    }
    assert!(layout.dim.is_multiple_of(32) && layout.dim <= 128, "heads of {}", layout.dim);
    let args = ConvolveArgs {
        pass: run.pass,
        inputs: run.buffer(kept.inputs),
        weight: run.vector(weight),
        q: run.buffer(q),
        keys: run.buffer(kept.keys),
        v: run.buffer(v),
        layout: (&layout).into(),
        layer: layer as i32,
    };
    let heads = (2 * layout.key_heads + layout.value_heads) as u32;
    let grid = [heads.div_ceil(HEADS), row_blocks(run.rows()), 1];
    run.launch(kernel::CONVOLVE, Shape::new(grid, 32 * (HEADS + 1)), &args)
}
