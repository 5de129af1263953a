//! Gated DeltaNet: products of keys, then deltas and outputs, then norm and gate.

use super::convolve::row_blocks;
use crate::{
    Error, RecurrentLayout,
    cuda::{args::DeltaNetArgs, driver::Shape, run::Run},
    plan::Op,
};

/// Value columns of a block.
const SLICE: usize = 32;
/// Bytes of `Shared` in `kernels/deltanet.cu`.
const SHARED: u32 = 73984;

/// Bytes of scratch for states folded in a pass.
pub(crate) fn state_bytes(layout: &RecurrentLayout, sequences: usize, slots: usize) -> usize {
    4 * sequences * layout.value_heads * slots * layout.dim * layout.dim
}

pub(crate) fn launch(run: &Run<'_>, op: &Op) -> Result<(), Error> {
    let &Op::DeltaNet { layer, q, v, z, alpha, beta, dt_bias, decay, norm, eps, out } = op else {
        unreachable!()
    };
    let (layout, kept) = run.plan().recurrent_layer(layer);
    assert!(layout.dim.is_multiple_of(32) && layout.dim <= 128, "heads of {}", layout.dim);
    let args = DeltaNetArgs {
        pass: run.pass,
        q: run.buffer(q),
        keys: run.buffer(kept.keys),
        v: run.buffer(v),
        z: run.buffer(z),
        alpha: run.buffer(alpha),
        beta: run.buffer(beta),
        dt_bias: run.vector(dt_bias),
        decay: run.vector(decay),
        norm: run.vector(norm),
        deltas: run.buffer(kept.deltas),
        gates: run.buffer(kept.gates),
        products: run.buffer(run.plan().recurrent.as_ref().expect("recurrent state").products),
        states: run.scratch.states.address(),
        out: run.activation(out),
        layout: (&layout).into(),
        layer: layer as i32,
        slots: run.slots as i32,
        eps,
    };
    let (heads, sequences) = (layout.value_heads as u32, run.pass.sequence_count as u32);
    let grid = [layout.key_heads as u32, row_blocks(run.rows()), 1];
    run.launch("deltanet_products", Shape::new(grid, 128), &args)?;
    let grid = [(layout.dim / SLICE) as u32, heads, sequences];
    run.launch("deltanet", Shape { shared: SHARED, ..Shape::new(grid, 256) }, &args)?;
    // Sixteen lanes have a head, so that the last block of 128 threads may have fewer than eight.
    let grid = [heads.div_ceil(8), run.rows() as u32, 1];
    run.launch("deltanet_gate", Shape::new(grid, 128), &args)
}
