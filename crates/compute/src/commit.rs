//! The parts of a commit that only move rows, for backends whose arena lies in host memory.

use crate::{
    arena::Arena,
    backend::{KvCommit, RecurrentCommit},
    kv::PAGE_TOKENS,
    recurrent::TAPE_TOKENS,
};

/// Copies the encoded rows of a path to their places in the pages.
pub(crate) fn write_pages(arena: &Arena, cache: usize, commit: &mut KvCommit<'_>) {
    let KvCommit { path, first_page, pages } = commit;
    let cache = &arena.plan.caches[cache];
    let layout = &cache.layout;
    let (row_bytes, token_bytes) = (layout.row_bytes(), layout.token_bytes());
    for (layer, rows) in cache.rows.iter().enumerate() {
        let rows = arena.bytes_of(*rows);
        for (i, row) in path.rows.iter().enumerate() {
            let position = path.position + i;
            let page = pages[position / PAGE_TOKENS - *first_page].slice_mut::<u8>();
            let from = &rows[*row as usize * token_bytes..][..token_bytes];
            for (j, bytes) in from.chunks_exact(row_bytes).enumerate() {
                let at = layout.offset(layer, j / layout.heads, j % layout.heads);
                page[at + position % PAGE_TOKENS * row_bytes..][..row_bytes].copy_from_slice(bytes);
            }
        }
    }
}

/// Copies the rows of a path that the tape remembers.
pub(crate) fn write_tape(arena: &Arena, commit: &mut RecurrentCommit<'_>) {
    let (path, tape) = (commit.path, commit.tape.slice_mut::<f32>());
    for layer in 0..arena.plan.recurrent_layer(0).0.layers {
        let (layout, kept) = arena.plan.recurrent_layer(layer);
        let mut put =
            |at: usize, numbers: &[f32]| tape[at..at + numbers.len()].copy_from_slice(numbers);
        for i in path.rows.len().saturating_sub(TAPE_TOKENS)..path.rows.len() {
            let (row, position) = (path.rows[i] as usize, path.position + i);
            put(layout.key(layer, position), arena.host_row(kept.keys, row));
            put(layout.delta(layer, position), arena.host_row(kept.deltas, row));
            put(layout.gate(layer, position), arena.host_row(kept.gates, row));
            if path.rows.len() - i <= layout.kernel {
                put(layout.input(layer, position), arena.host_row(kept.inputs, row));
            }
        }
    }
}
