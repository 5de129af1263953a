//! Norm and rotation of queries and keys, and rounding of keys and values.

use crate::{
    Error,
    cuda::{
        args::{RotateArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::Op,
};

/// Warps of a block; each takes a head of a row.
const WARPS: usize = 4;

pub(crate) fn launch(run: &Run<'_>, op: &Op) -> Result<(), Error> {
    let &Op::Rotate { q, k, v, shape, q_norm, k_norm, eps, angles, cache, layer } = op else {
        unreachable!()
    };
    let cache = &run.plan().caches[cache];
    assert!(
        shape.head_dim.is_multiple_of(32) && shape.head_dim <= 256,
        "heads of {}",
        shape.head_dim
    );
    let args = RotateArgs {
        pass: run.pass,
        q: run.buffer(q),
        k: run.buffer(k),
        v: run.buffer(v),
        q_norm: run.vector(q_norm),
        k_norm: run.vector(k_norm),
        angles: run.buffer(angles),
        kv: run.buffer(cache.rows[layer]),
        layout: (&cache.layout).into(),
        heads: shape.heads as i32,
        head_dim: shape.head_dim as i32,
        query_stride: shape.query_stride() as i32,
        pairs: run.cols(angles) as i32 / 2,
        eps,
    };
    let heads = run.rows() * (shape.heads + 2 * shape.kv_heads);
    run.launch(
        kernel::ROTATE,
        Shape::new([heads.div_ceil(WARPS) as u32, 1, 1], 32 * WARPS as u32),
        &args,
    )
}
