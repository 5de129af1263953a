//! Folding new anchors at a commit, each head by one thread.

use super::{
    CpuLevel,
    ops::{FoldRow, fold},
    pool::Worker,
};
use crate::{arena::Arena, backend::CommitPath, memory::Memory, recurrent::ANCHOR_TOKENS};

/// Pointers to the anchors being written; each (layer, head) of them belongs to one thread.
pub(crate) struct NewAnchors(Vec<(usize, *mut f32)>);

// SAFETY: threads write different heads.
unsafe impl Sync for NewAnchors {}

impl NewAnchors {
    pub(crate) fn new(anchors: &mut [(usize, &mut Memory)]) -> Self {
        Self(
            anchors
                .iter_mut()
                .map(|(at, memory)| (*at, memory.slice_mut::<f32>().as_mut_ptr()))
                .collect(),
        )
    }
}

/// Folds the anchors that a path makes due, a thread's share of the heads. Reads the tape as it was
/// before.
pub(crate) fn fold_anchors(
    level: CpuLevel,
    worker: Worker<'_>,
    arena: &Arena,
    path: CommitPath<'_>,
    base: Option<&Memory>,
    tape: &Memory,
    anchors: &NewAnchors,
) {
    let Some((newest, _)) = anchors.0.iter().max_by_key(|(at, _)| *at) else { return };
    let layout = arena.plan.recurrent_layer(0).0;
    let dim = layout.dim;
    let tape = tape.slice::<f32>();
    let mut scaled_keys = vec![0f32; ANCHOR_TOKENS * dim];
    let mut state = vec![0f32; dim * dim];
    for task in worker.share(layout.layers * layout.value_heads) {
        let (layer, head) = (task / layout.value_heads, task % layout.value_heads);
        let kept = arena.plan.recurrent_layer(layer).1;
        let key_head = head % layout.key_heads;
        let row_at = |position: usize| {
            if position < path.position {
                return FoldRow {
                    key: tape[layout.key(layer, position) + key_head * dim..].as_ptr(),
                    delta: tape[layout.delta(layer, position) + head * dim..].as_ptr(),
                    gate: tape[layout.gate(layer, position) + head],
                };
            }
            let row = path.rows[position - path.position] as usize;
            FoldRow {
                key: arena.host_row(kept.keys, row)[key_head * dim..].as_ptr(),
                delta: arena.host_row(kept.deltas, row)[head * dim..].as_ptr(),
                gate: arena.host_row(kept.gates, row)[head],
            }
        };
        let at = layout.state(layer, head);
        let mut position = path.position / ANCHOR_TOKENS * ANCHOR_TOKENS;
        let mut from = base.map_or(std::ptr::null(), |m| m.slice::<f32>()[at..].as_ptr());
        while position < *newest {
            let rows: [FoldRow; ANCHOR_TOKENS] = std::array::from_fn(|i| row_at(position + i));
            position += ANCHOR_TOKENS;
            let anchor = anchors.0.iter().find(|(p, _)| *p == position);
            let out = anchor.map_or(state.as_mut_ptr(), |(_, anchor)| anchor.wrapping_add(at));
            // SAFETY: keys and deltas are `dim` long, states `dim * dim`; this head is this
            // thread's alone.
            unsafe { fold(level, from, &rows, dim, scaled_keys.as_mut_ptr(), out) };
            from = out;
        }
    }
}
