//! Attention: of decode passes in parts of the keys that are joined, of prompts in one go.

use crate::{
    Error,
    cuda::{
        args::{AttentionArgs, DECODE_ROWS, Kernel, RestoreArgs, TEXT_ROWS, kernel},
        driver::{DeviceInfo, Shape},
        run::Run,
    },
    kv::KvType,
    plan::{AttentionShape, Op},
};

/// Rows of a tile of queries, and of one of keys or values.
const TILE: usize = 64;
/// Threads that take a tile of queries.
const THREADS: u32 = 128;
/// Tiles of queries that a block of a decode pass has, and of keys or values: the first that fit.
const CUTS: [(usize, usize); 6] = [(2, 6), (2, 5), (2, 4), (2, 3), (2, 2), (1, 2)];
/// Bytes of shared memory that such a block has beside the tiles.
const DIRECTORY: usize = 2560;
/// Queries of an item of `kernels/attention_texts.cu`, and shared memory that a card must have more
/// of.
const PIECE: usize = 16;
const WARPS_SHARED: u32 = 224 << 10;

/// A kernel whose warps have items of their own.
struct Warps {
    kernel: Kernel<AttentionArgs>,
    /// Of a multiprocessor.
    count: usize,
    /// Pieces of 16 queries, keys or values that a warp has room for.
    pieces: usize,
}

/// For heads of up to 128, and of up to 256.
const TEXTS: [Warps; 2] = [
    Warps { kernel: kernel::ATTENTION_TEXTS_128, count: 12, pieces: 4 },
    Warps { kernel: kernel::ATTENTION_TEXTS_256, count: 8, pieces: 3 },
];

/// Chunks that the keys of a row are read in at most: with all key heads, about one for each
/// multiprocessor of a large card. How a row is summed depends on it, so it follows from the model
/// alone.
fn parts(shape: &AttentionShape) -> usize {
    (128 / shape.kv_heads).clamp(8, 64)
}

/// Bytes of the parts of a decode pass of up to so many rows: of each row and query head its chunks
/// and its last keys, values, the highest score and the sum of weights. A window may touch a chunk
/// more.
pub(crate) fn partial_bytes(shape: &AttentionShape, rows: usize) -> usize {
    let rows = if rows > TEXT_ROWS { DECODE_ROWS } else { TEXT_ROWS };
    rows * shape.heads * (parts(shape) + 2) * (shape.head_dim + 4) * 4
}

/// Whether a card has room for the kernel whose warps have items of their own, the only one for
/// more than `TEXT_ROWS` rows.
pub(crate) fn has_warps(limits: &DeviceInfo) -> bool {
    limits.major >= 9 && limits.shared > WARPS_SHARED
}

/// The kernel whose items are for warps, not for blocks, where there are more of them than blocks
/// take at a time. Both give the same bits; an H200 tells which is faster.
fn warps_of(run: &Run<'_>, shape: &AttentionShape, kv: KvType) -> Option<&'static Warps> {
    let wide = usize::from(shape.head_dim > 128);
    if run.rows() > TEXT_ROWS {
        assert!(shape.heads / shape.kv_heads <= PIECE, "{shape:?}");
        return Some(&TEXTS[wide]);
    }
    let items = run.pass.sequence_count as usize * shape.kv_heads;
    let pieces = (run.most_rows * shape.heads / shape.kv_heads).div_ceil(PIECE);
    let least = if wide == 1 { 32 * pieces } else { 16 };
    (kv == KvType::F16 && has_warps(run.limits) && items >= least).then_some(&TEXTS[wide])
}

pub(crate) fn launch(run: &Run<'_>, op: &Op) -> Result<(), Error> {
    let &Op::Attention { q, shape, scale, window, causal, cache, layer, out, .. } = op else {
        unreachable!()
    };
    let cached = &run.plan().caches[cache];
    let kind = cached.layout.kind;
    assert!(
        shape.head_dim.is_multiple_of(32) && shape.head_dim <= 256,
        "heads of {}",
        shape.head_dim
    );
    assert!(
        shape.heads / shape.kv_heads <= TILE,
        "{} query heads a key head",
        shape.heads / shape.kv_heads
    );
    let wide = shape.head_dim > 128;
    let tile = 2 * TILE * if wide { 256 } else { 128 };
    let bytes = |(queries, slots): (usize, usize)| (queries + slots) * tile;
    let fits = |cut: &(usize, usize)| bytes(*cut) + DIRECTORY <= run.limits.shared as usize;
    let cut = CUTS.into_iter().find(fits).unwrap_or(CUTS[CUTS.len() - 1]);
    assert!(
        run.limits.major != 9 || cut.0 == 2,
        "kernels for Hopper count on two tiles of queries"
    );
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
        // Gates belong to heads as they were: `restore` comes to them.
        gated: (shape.gated && !kind.is_hadamard()).into(),
        causal: causal.into(),
        window: window.unwrap_or(0) as i32,
        parts: parts(&shape) as i32,
        slots: cut.1 as i32,
        scale,
    };
    if run.is_prompt() {
        assert!(causal, "prompts are causal");
        run.brought.bring(run.driver, layer)?;
        let blocks = run.rows() / TILE + 2 * run.pass.sequence_count as usize;
        let kernel = if wide { kernel::PROMPT_ATTENTION_256 } else { kernel::PROMPT_ATTENTION_128 };
        let grid = Shape::new([shape.heads as u32, blocks as u32, 1], THREADS);
        run.launch(kernel, Shape { shared: bytes((1, 2)) as u32, ..grid }, &args)?;
        return restore(run, &args, &shape, kind);
    }
    assert!(
        run.rows() <= DECODE_ROWS && run.most_rows <= TEXT_ROWS,
        "{} rows of a pass, {} of a text",
        run.rows(),
        run.most_rows
    );
    if let Some(warps) = warps_of(run, &shape, kind) {
        let grid = Shape::new([run.limits.multiprocessors, 1, 1], 32 * warps.count as u32);
        let shared = (warps.count * warps.pieces * (tile / 4 + 256)) as u32;
        run.launch(warps.kernel, Shape { shared, ..grid }, &args)?;
    } else {
        let kernel = if wide { kernel::ATTENTION_CHUNKS_256 } else { kernel::ATTENTION_CHUNKS_128 };
        let grid = Shape::new([run.limits.multiprocessors, 1, 1], THREADS * cut.0 as u32);
        run.launch(kernel, Shape { shared: bytes(cut) as u32, ..grid }, &args)?;
    }
    run.launch(
        kernel::ATTENTION_JOIN,
        Shape::new([run.rows() as u32, shape.heads as u32, 1], 256),
        &args,
    )?;
    restore(run, &args, &shape, kind)
}

/// What transformed values were weighed to, as heads were before, and gated.
fn restore(
    run: &Run<'_>,
    args: &AttentionArgs,
    shape: &AttentionShape,
    kind: KvType,
) -> Result<(), Error> {
    if !kind.is_hadamard() {
        return Ok(());
    }
    let heads = run.rows() * shape.heads;
    let args = RestoreArgs {
        q: args.q,
        out: args.out,
        rows: run.rows() as i32,
        heads: args.heads,
        head_dim: args.head_dim,
        query_stride: args.query_stride,
        gated: shape.gated.into(),
    };
    run.launch(kernel::RESTORE, Shape::new([heads.div_ceil(4) as u32, 1, 1], 128), &args)
}
