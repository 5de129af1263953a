//! Gated DeltaNet. Decode passes take the convolution and everything after it in one launch, those
//! of many texts with one row each with a kernel of their own;
//! prompts and passes that fold states take products of keys, then deltas and outputs, then norm
//! and gate.

use super::convolve::row_blocks;
use crate::{
    Error, RecurrentLayout,
    cuda::{
        args::{DecodeArgs, DeltaNetArgs, Kernel, TEXT_ROWS, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Op,
};
use std::sync::atomic::Ordering;

/// Value columns of a block.
const SLICE: usize = 32;
/// Bytes of `Shared` in `kernels/deltanet.cu`.
const SHARED: u32 = 78080;
/// Bytes of `PromptShared` in `kernels/deltanet_prompt.cu`.
const PROMPT_SHARED: u32 = 88448;
/// Bytes that `deltanet_decode` takes, and those for each row that a sequence has at most.
const DECODE_SHARED: (u32, u32) = (92352, 656);

/// Bytes of scratch for states folded in a pass.
pub(crate) fn state_bytes(layout: &RecurrentLayout, sequences: usize, slots: usize) -> usize {
    4 * sequences * layout.value_heads * slots * layout.dim * layout.dim
}

fn decode_shared(run: &Run<'_>) -> u32 {
    DECODE_SHARED.0 + DECODE_SHARED.1 * run.most_rows as u32
}

/// Whether a layer is one launch, the convolution included.
pub(super) fn is_fused(run: &Run<'_>) -> bool {
    is_of_texts(run) || is_of_rows(run)
}

/// Whether a block takes a whole head of a text: where texts have few rows each, and there are
/// enough of them to fill a card. An H200 with the heads of 27B tells how many those are.
fn is_of_texts(run: &Run<'_>) -> bool {
    let least = match run.most_rows {
        ..=1 => 1,
        2..=4 => 2,
        5..=8 => 4,
        _ => return false,
    };
    !run.is_prompt() && run.slots == 0 && run.pass.sequence_count >= least
}

/// The kernel for texts of so many rows, and its shared memory.
fn of_texts(rows: usize) -> (Kernel<DecodeArgs>, u32) {
    match rows {
        ..=1 => (kernel::DELTANET_TEXTS_1, 36480),
        2..=4 => (kernel::DELTANET_TEXTS_4, 70784),
        _ => (kernel::DELTANET_TEXTS_8, 83200),
    }
}

/// It needs clusters, which images for older cards do not use, of more than one block: a block that
/// is launched by itself cannot send.
fn is_of_rows(run: &Run<'_>) -> bool {
    !run.is_prompt()
        && run.slots == 0
        && run.plan().recurrent_layer(0).0.dim > SLICE
        && run.rows() <= TEXT_ROWS
        && run.driver.overlap.load(Ordering::Relaxed)
        && decode_shared(run) <= run.limits.shared
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
    let slices = (layout.dim / SLICE) as u32;
    if is_fused(run) {
        let of_layer = |op: &Op| match op {
            Op::Convolve { layer: other, weight, .. } if *other == layer => Some(*weight),
            _ => None,
        };
        let weight = run.plan().ops.iter().find_map(of_layer).expect("the layer's convolution");
        let (inputs, weight) = (run.buffer(kept.inputs), run.vector(weight));
        let args = DecodeArgs { net: args, inputs, weight, most_rows: run.most_rows as i32 };
        if is_of_texts(run) {
            let (kernel, shared) = of_texts(run.most_rows);
            let shape = Shape { shared, ..Shape::new([heads, sequences, 1], 256) };
            return run.launch(kernel, shape, &args);
        }
        let shape = Shape {
            grid: [slices, heads, sequences],
            block: 256,
            shared: decode_shared(run),
            cluster: slices,
        };
        return run.launch(kernel::DELTANET_DECODE, shape, &args);
    }
    let grid = [layout.key_heads as u32, row_blocks(run.rows()), 1];
    run.launch(kernel::DELTANET_PRODUCTS, Shape::new(grid, 128), &args)?;
    let (kernel, shared) = if run.is_prompt() {
        (kernel::DELTANET_PROMPT, PROMPT_SHARED)
    } else {
        (kernel::DELTANET, SHARED)
    };
    let grid = [slices, heads, sequences];
    run.launch(kernel, Shape { shared, ..Shape::new(grid, 256) }, &args)?;
    // Sixteen lanes have a head, so that the last block of 128 threads may have fewer than eight.
    let grid = [heads.div_ceil(8), run.rows() as u32, 1];
    run.launch(kernel::DELTANET_GATE, Shape::new(grid, 128), &args)
}
