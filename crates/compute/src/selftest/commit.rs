//! Commits of several texts in one call: the bits of one text at a time.

use super::{Both, Random, chain, plans, run_plan};
use crate::{
    ANCHOR_TOKENS, Arena, AttentionShape, Backend, CommitPath, Error, KvCommit, KvLayout, KvType,
    Memory, PAGE_TOKENS, PageTable, Pass, Plan, RecurrentCommit, RecurrentLayout, RowsKept,
    SequenceView,
};

/// Rows of the pass that texts commit.
const ROWS: usize = 100;

/// Texts: tokens committed before, and the rows that follow. They end in a page, reach several,
/// make no anchor due, one and two, and one of them has nothing to commit.
fn texts() -> [(usize, Vec<u32>); 5] {
    [
        (30, (0..5).collect()),
        (61, vec![3, 8, 9, 40, 41, 99]),
        (0, Vec::new()),
        (0, (10..90).collect()),
        (44, (7..27).collect()),
    ]
}

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    for kind in KvType::ALL {
        let name = format!("commit of several texts, pages of {kind:?}");
        if both.wants(&name) {
            let same = pages(both, kind)?;
            both.check_same(&name, same);
        }
    }
    for dim in [32, 128] {
        let name = format!("commit of several texts, states of {dim}");
        if both.wants(&name) {
            let same = states(both, dim)?;
            both.check_same(&name, same);
        }
    }
    for cols in [32, 5120, 25600] {
        let name = format!("rows of several texts kept, {cols} columns");
        if both.wants(&name) {
            let same = kept(both.device, cols)?;
            both.check_same(&name, same);
        }
    }
    Ok(())
}

/// What both ways of committing are given: the paths of all texts, and each alone.
fn together_and_alone<T>(
    backend: &mut dyn Backend,
    mut fresh: impl FnMut(&mut dyn Backend) -> Result<Vec<T>, Error>,
    mut commit: impl FnMut(&mut dyn Backend, &mut [T]) -> Result<(), Error>,
) -> Result<[Vec<T>; 2], Error> {
    let (mut together, mut alone) = (fresh(backend)?, fresh(backend)?);
    commit(backend, &mut together)?;
    alone.iter_mut().try_for_each(|text| commit(backend, std::slice::from_mut(text)))?;
    Ok([together, alone])
}

fn pages(both: &mut Both<'_>, kind: KvType) -> Result<bool, Error> {
    let shape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 96, gated: true };
    let layout = KvLayout { kind, layers: 2, heads: shape.kv_heads, head_dim: shape.head_dim };
    let mut random = Random(21);
    let norm = both.vector(&random.numbers(shape.head_dim))?.device;
    let norms = plans::Norms { q: norm, k: norm };
    let (plan, bufs, _) = plans::attention(norms, layout, shape, None, true);
    let inputs: Vec<_> =
        bufs.iter().map(|buf| (*buf, random.numbers(ROWS * plan.cols(*buf)))).collect();
    let view = SequenceView { caches: vec![PageTable::default()], ..Default::default() };
    let pass = Pass::new(&chain(ROWS), &[], vec![view]).as_prompt();
    let arena = run_plan(both.device, plan, &inputs, &pass)?;
    let fresh = |backend: &mut dyn Backend| {
        let text = |(position, rows): (usize, Vec<u32>)| {
            let first_page = position / PAGE_TOKENS;
            let count = (position + rows.len()).div_ceil(PAGE_TOKENS) - first_page;
            let pages = (0..count).map(|_| backend.memory(layout.page_bytes()));
            Ok((position, rows, pages.collect::<Result<Vec<Memory>, Error>>()?))
        };
        texts().into_iter().map(text).collect()
    };
    let commit = |backend: &mut dyn Backend, texts: &mut [(usize, Vec<u32>, Vec<Memory>)]| {
        let commits = texts.iter_mut().map(|(position, rows, pages)| KvCommit {
            path: CommitPath { rows, position: *position },
            first_page: *position / PAGE_TOKENS,
            pages: pages.iter_mut().collect(),
        });
        backend.commit_kv(&arena, 0, &mut commits.collect::<Vec<_>>())
    };
    let [together, alone] = together_and_alone(both.device, fresh, commit)?;
    Ok(together == alone)
}

/// The recurrent state of a text: what it folds from, the anchors it makes, its tape.
#[derive(PartialEq)]
struct State {
    position: usize,
    rows: Vec<u32>,
    base: Option<Memory>,
    anchors: Vec<(usize, Memory)>,
    tape: Memory,
}

fn states(both: &mut Both<'_>, dim: usize) -> Result<bool, Error> {
    let layout = RecurrentLayout { layers: 2, key_heads: 2, value_heads: 6, dim, kernel: 4 };
    let arena = recurrent_rows(both, layout)?;
    let fresh = |backend: &mut dyn Backend| {
        let mut random = Random(23);
        let mut filled = |len: usize| {
            let mut memory = backend.memory(4 * len)?;
            memory.write(0, &random.numbers(len))?;
            Ok::<Memory, Error>(memory)
        };
        let state = |(position, rows): (usize, Vec<u32>)| {
            let newest = |tokens: usize| tokens / ANCHOR_TOKENS * ANCHOR_TOKENS;
            let (before, after) = (newest(position), newest(position + rows.len()));
            let due = (1..=(after - before) / ANCHOR_TOKENS).map(|i| before + i * ANCHOR_TOKENS);
            let anchors = due.rev().take(2).map(|at| Ok((at, filled(layout.anchor_len())?)));
            Ok(State {
                anchors: anchors.collect::<Result<_, Error>>()?,
                base: if before > 0 { Some(filled(layout.anchor_len())?) } else { None },
                tape: filled(layout.tape_len())?,
                position,
                rows,
            })
        };
        texts().into_iter().map(state).collect()
    };
    let commit = |backend: &mut dyn Backend, states: &mut [State]| {
        let commits = states.iter_mut().map(|state| RecurrentCommit {
            path: CommitPath { rows: &state.rows, position: state.position },
            base: state.base.as_ref(),
            anchors: state.anchors.iter_mut().map(|(at, memory)| (*at, memory)).collect(),
            tape: &mut state.tape,
        });
        backend.commit_recurrent(&arena, &mut commits.collect::<Vec<_>>())
    };
    let [together, alone] = together_and_alone(both.device, fresh, commit)?;
    Ok(together == alone)
}

/// Rows of Gated DeltaNet as a pass leaves them.
fn recurrent_rows(both: &mut Both<'_>, layout: RecurrentLayout) -> Result<Arena, Error> {
    let mut random = Random(22);
    let conv = both.vector(&random.numbers(layout.kernel * layout.channels()))?.device;
    let dt_bias = both.vector(&random.numbers(layout.value_heads))?.device;
    let decay =
        random.numbers(layout.value_heads).iter().map(|x| -0.2 * x.exp()).collect::<Vec<_>>();
    let decay = both.vector(&decay)?.device;
    let norm = both.vector(&random.numbers(layout.dim))?.device;
    let (plan, bufs, _) = plans::deltanet(plans::DeltaNet { conv, dt_bias, decay, norm }, layout);
    let inputs: Vec<_> =
        bufs.iter().map(|buf| (*buf, random.numbers(ROWS * plan.cols(*buf)))).collect();
    let pass = Pass::new(&chain(ROWS), &[], vec![SequenceView::default()]).as_prompt();
    run_plan(both.device, plan, &inputs, &pass)
}

/// Kept rows are those of the buffer, in their places.
fn kept(backend: &mut dyn Backend, cols: usize) -> Result<bool, Error> {
    let mut plan = Plan::new("kept");
    let buf = plan.numbers("rows", cols);
    let mut arena = backend.arena(plan.into(), ROWS, 0)?;
    let numbers = Random(24).numbers(ROWS * cols);
    arena.write(buf, &numbers)?;
    let texts = texts();
    let room = |(at, rows): &(usize, Vec<u32>)| backend.memory(4 * cols * (at + rows.len()).max(1));
    let mut places = texts.iter().map(room).collect::<Result<Vec<Memory>, Error>>()?;
    let kept = texts.iter().zip(&mut places).map(|((at, rows), to)| RowsKept { rows, to, at: *at });
    backend.keep_rows(&arena, buf, &mut kept.collect::<Vec<_>>())?;
    for ((at, rows), place) in texts.iter().zip(&places) {
        let expected = rows.iter().flat_map(|row| &numbers[*row as usize * cols..][..cols]);
        if !place.read::<f32>(at * cols, rows.len() * cols)?.iter().eq(expected) {
            return Ok(false);
        }
    }
    Ok(true)
}
