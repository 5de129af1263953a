//! Draws of tokens from rows of logits.

use crate::{
    Error,
    arena::Arena,
    backend::{Draw, Drawn},
    cuda::{
        Cuda, DeviceMemory,
        args::{self, DrawArgs, kernel},
        driver::Shape,
    },
    plan::Buf,
};

/// Blocks that share a row where the device has clusters.
const SPLIT: u32 = 8;
const THREADS: u32 = 512;
const MAX_VOCAB: usize = 1 << 18;

/// Draws a token from each of the first rows.
pub(crate) fn draw(
    cuda: &Cuda,
    arena: &Arena,
    logits: Buf,
    draws: &[Draw],
) -> Result<Vec<Drawn>, Error> {
    if draws.is_empty() {
        return Ok(Vec::new());
    }
    let (rows, vocab) = (draws.len(), arena.plan.cols(logits));
    assert!(vocab <= MAX_VOCAB, "{vocab} tokens");
    let settings: Vec<args::Draw> = draws
        .iter()
        .map(|d| args::Draw {
            temperature: d.temperature,
            top_k: d.top_k.min(vocab) as i32,
            top_p: d.top_p,
            min_p: d.min_p,
            seed: d.seed,
            choice: d.choice,
            position: d.position as u32,
        })
        .collect();
    let split = if cuda.limits.major >= 9 { SPLIT } else { 1 };
    let tokens = cuda.outbox.address();
    let args = DrawArgs {
        logits: DeviceMemory::of(&arena.data[logits.0 as usize]).address(),
        draws: cuda.send(bytemuck::cast_slice(&settings))?,
        tokens,
        bad: tokens + 4 * rows as u64,
        rows: rows as i32,
        vocab: vocab as i32,
        split: split as i32,
    };
    let shape =
        Shape { grid: [rows as u32 * split, 1, 1], block: THREADS, shared: 0, cluster: split };
    cuda.kernels.launch(&cuda.driver, kernel::DRAW, shape, &args)?;
    let mut words = vec![0u32; 2 * rows];
    cuda.driver.download(tokens, bytemuck::cast_slice_mut(&mut words))?;
    let (tokens, bad) = words.split_at(rows);
    let drawn = |(token, bad): (&u32, &u32)| match *bad as i32 {
        -1 => Drawn::Token(*token),
        index => Drawn::NotFinite(index as usize),
    };
    Ok(tokens.iter().zip(bad).map(drawn).collect())
}
