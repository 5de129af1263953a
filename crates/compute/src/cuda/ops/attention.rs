//! Attention: of decode passes in chunks of keys that are joined, of prompts in one go.

use crate::{
    Error,
    cuda::{
        args::{AttentionArgs, DECODE_ROWS},
        driver::Shape,
        run::Run,
    },
    plan::{AttentionShape, Op},
};

/// Chunks of keys below `NEAR` and beyond it; as in `kernels/attention.cu`.
const NEAR: usize = 8192;
const SHORT_CHUNK: usize = 128;
const LONG_CHUNK: usize = 1024;
/// Rows of a tile of queries, and of one of keys or values.
const TILE: usize = 64;
/// Threads of a block, except of the join.
const THREADS: u32 = 128;

/// Parts that attention over so many tokens is computed in: the chunks, and a row's last keys.
pub(crate) fn chunks(context: usize) -> usize {
    let near = context.min(NEAR).div_ceil(SHORT_CHUNK);
    1 + near + context.saturating_sub(NEAR).div_ceil(LONG_CHUNK)
}

/// Bytes of the parts of `rows` rows: values, the highest score and the sum of weights of each query head.
pub(crate) fn partial_bytes(rows: usize, shape: &AttentionShape, chunks: usize) -> usize {
    rows * shape.heads * chunks * (shape.head_dim + 4) * 4
}

pub(crate) fn launch(run: &Run<'_>, op: &Op) -> Result<(), Error> {
    let &Op::Attention { q, shape, scale, window, causal, cache, layer, out, .. } = op else {
        unreachable!()
    };
    let cached = &run.plan().caches[cache];
    assert!(shape.head_dim.is_multiple_of(32) && shape.head_dim <= 256, "heads of {}", shape.head_dim);
    assert!(shape.heads / shape.kv_heads <= TILE, "{} query heads a key head", shape.heads / shape.kv_heads);
    // Scratch has room for the chunks of this pass; how many fit says where a row's parts lie.
    let room = run.scratch.attention.len() / partial_bytes(DECODE_ROWS, &shape, 1);
    let max_chunks = room.min(run.scratch.max_chunks);
    let args = AttentionArgs {
        pass: run.pass,
        q: run.buffer(q),
        kv: run.buffer(cached.rows[layer]),
        partial: run.scratch.attention.address(),
        out: run.activation(out),
        layout: (&cached.layout).into(),
        cache: cache as i32,
        layer: layer as i32,
        heads: shape.heads as i32,
        head_dim: shape.head_dim as i32,
        query_stride: shape.query_stride() as i32,
        gated: shape.gated.into(),
        causal: causal.into(),
        window: window.unwrap_or(0) as i32,
        max_chunks: max_chunks as i32,
        scale,
    };
    let wide = shape.head_dim > 128;
    let shared = 3 * (TILE * if wide { 256 } else { 128 } * 2) as u32;
    let tiles = |grid| Shape { shared, ..Shape::new(grid, THREADS) };
    if run.is_prompt() {
        assert!(causal, "prompts are causal");
        let blocks = run.rows() / TILE + 2 * run.pass.sequence_count as usize;
        let kernel = if wide { "prompt_attention_256" } else { "prompt_attention_128" };
        return run.launch(kernel, tiles([shape.heads as u32, blocks as u32, 1]), &args);
    }
    assert!(run.rows() <= DECODE_ROWS && run.pass.sequence_count as usize <= DECODE_ROWS, "a pass too large");
    let kernel = if wide { "attention_chunks_256" } else { "attention_chunks_128" };
    run.launch(kernel, tiles([2 * run.limits.multiprocessors, 1, 1]), &args)?;
    let join = Shape::new([run.rows() as u32, shape.heads as u32, 1], 256);
    run.launch("attention_join", Shape { shared: 8 * max_chunks as u32, ..join }, &args)
}
