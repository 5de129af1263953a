//! The best tokens of rows of logits, with their log-probabilities.

use crate::{
    Error,
    arena::Arena,
    cuda::{
        BOX, Cuda, DeviceMemory,
        args::{Kernel, RankArgs, kernel},
        driver::Shape,
        run::Run,
    },
    plan::{Buf, Candidates},
    rank::Ranked,
};

/// As in `kernels/rank.cu`.
const CHUNK: usize = 8192;
const MAX_CHUNKS: usize = 32;
const MAX_RANKS: usize = 64;
const THREADS: u32 = 256;

/// The best `ranks` tokens of each of the first `rows` rows among those below `vocab`; nothing of a
/// row where a logit is not a number.
pub(crate) fn rank(
    cuda: &Cuda,
    arena: &Arena,
    logits: Buf,
    [rows, ranks, vocab]: [usize; 3],
) -> Result<Vec<Option<Ranked>>, Error> {
    let stride = arena.plan.cols(logits);
    assert!(vocab <= stride, "{vocab} of {stride} tokens");
    let chunks = vocab.div_ceil(CHUNK);
    assert!(chunks <= MAX_CHUNKS && ranks <= MAX_RANKS, "{ranks} ranks of {vocab} tokens");
    let asked = ranks.clamp(1, vocab);
    // Everything lies in the outbox: first the scratch, whose words are the largest, then what is
    // read back.
    let row_bytes = chunks * (8 * asked + 8) + 8 * asked + 4;
    let step = BOX / row_bytes;
    let address = DeviceMemory::of(&arena.data[logits.0 as usize]).address();
    let mut ranked = Vec::with_capacity(rows);
    for first in (0..rows).step_by(step) {
        let rows = step.min(rows - first);
        let best = cuda.outbox.address();
        let sums = best + (8 * rows * chunks * asked) as u64;
        let ids = sums + (8 * rows * chunks) as u64;
        let logs = ids + (4 * rows * asked) as u64;
        let bad = logs + (4 * rows * asked) as u64;
        let args = RankArgs {
            logits: address + (4 * first * stride) as u64,
            best,
            sums,
            ids,
            logs,
            bad,
            rows: rows as i32,
            vocab: vocab as i32,
            stride: stride as i32,
            ranks: asked as i32,
            chunks: chunks as i32,
            ..Default::default()
        };
        let launch = |kernel: Kernel<RankArgs>, grid| {
            cuda.kernels.launch(&cuda.driver, kernel, Shape::new(grid, THREADS), &args)
        };
        launch(kernel::RANK_CHUNKS, [chunks as u32, rows as u32, 1])?;
        launch(kernel::RANK_MERGE, [rows as u32, 1, 1])?;
        let mut words = vec![0u32; rows * (2 * asked + 1)];
        cuda.driver.download(ids, bytemuck::cast_slice_mut(&mut words))?;
        let (ids, rest) = words.split_at(rows * asked);
        let (logs, bad) = rest.split_at(rows * asked);
        for ((ids, logs), bad) in ids.chunks(asked).zip(logs.chunks(asked)).zip(bad) {
            let pairs =
                ids.iter().zip(logs).take(ranks).map(|(id, log)| (*id, f32::from_bits(*log)));
            ranked.push((*bad == 0).then(|| pairs.collect()));
        }
    }
    Ok(ranked)
}

/// The best tokens among those with ids below `vocab`, as a step of a plan.
pub(crate) fn launch(
    run: &Run<'_>,
    logits: Buf,
    vocab: usize,
    out: &Candidates,
) -> Result<(), Error> {
    let (rows, count, stride) = (run.pass.chosen_rows as usize, out.count, run.cols(logits));
    let chunks = vocab.div_ceil(CHUNK);
    assert!(vocab <= stride && chunks <= MAX_CHUNKS, "{vocab} of {stride} tokens");
    assert!(count <= MAX_RANKS.min(vocab), "{count} candidates of {vocab} tokens");
    let words = 8 * rows * chunks * count;
    assert!(words + 8 * rows * chunks <= BOX, "candidates of {rows} rows");
    let args = RankArgs {
        logits: run.buffer(logits),
        best: run.outbox,
        sums: run.outbox + words as u64,
        list: run.buffer(out.buf),
        rows: rows as i32,
        vocab: vocab as i32,
        stride: stride as i32,
        ranks: count as i32,
        chunks: chunks as i32,
        list_stride: run.cols(out.buf) as i32,
        ..Default::default()
    };
    let grid = [chunks as u32, rows as u32, 1];
    run.launch(kernel::RANK_CHUNKS, Shape::new(grid, THREADS), &args)?;
    run.launch(kernel::RANK_MERGE, Shape::new([rows as u32, 1, 1], THREADS), &args)
}
