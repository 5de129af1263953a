//! Norm and rotation of queries and keys, and rounding of keys and values.

use crate::{
    Error,
    cuda::{
        args::{RotateArgs, RotatedLayer, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Op,
};

/// Warps of a block; each takes a head of a row.
const WARPS: usize = 4;

/// Layers of a launch, as in `kernels/forerun.cuh`.
const LAYERS: usize = 8;

/// Whether an op and the one before it may share a launch: rotations without queries, of one shape.
pub(crate) fn go_together(run: &Run<'_>, before: &Op, op: &Op) -> bool {
    let of = |op: &Op| match *op {
        Op::Rotate { shape, eps, angles, cache, .. } if shape.heads == 0 => {
            let layout = &run.plan().caches[cache].layout;
            Some((shape, eps.to_bits(), angles, layout.kind))
        }
        _ => None,
    };
    of(before).is_some() && of(before) == of(op)
}

/// One rotation, or several that go together.
pub(crate) fn launch(run: &Run<'_>, ops: &[Op]) -> Result<(), Error> {
    ops.chunks(LAYERS).try_for_each(|ops| launch_layers(run, ops))
}

fn launch_layers(run: &Run<'_>, ops: &[Op]) -> Result<(), Error> {
    let &Op::Rotate { q, shape, q_norm, eps, angles, cache, .. } = &ops[0] else { unreachable!() };
    assert!(
        shape.head_dim.is_multiple_of(32) && shape.head_dim <= 256,
        "heads of {}",
        shape.head_dim
    );
    let mut args = RotateArgs {
        pass: run.pass,
        q: run.buffer(q),
        q_norm: run.vector(q_norm),
        angles: run.buffer(angles),
        layout: (&run.plan().caches[cache].layout).into(),
        heads: shape.heads as i32,
        head_dim: shape.head_dim as i32,
        query_stride: shape.query_stride() as i32,
        pairs: run.cols(angles) as i32 / 2,
        hadamard: run.plan().caches[cache].layout.kind.is_hadamard().into(),
        eps,
        ..Default::default()
    };
    for (to, op) in args.layers.iter_mut().zip(ops) {
        let &Op::Rotate { k, v, k_norm, cache, layer, .. } = op else { unreachable!() };
        *to = RotatedLayer {
            k: run.buffer(k),
            v: run.buffer(v),
            k_norm: run.vector(k_norm),
            kv: run.buffer(run.plan().caches[cache].rows[layer]),
        };
    }
    let heads = run.rows() * (shape.heads + 2 * shape.kv_heads);
    let grid = [heads.div_ceil(WARPS) as u32, ops.len() as u32, 1];
    run.launch(kernel::ROTATE, Shape::new(grid, 32 * WARPS as u32), &args)
}
