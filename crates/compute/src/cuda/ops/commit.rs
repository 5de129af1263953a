//! Rows of a pass become part of a sequence: keys and values to pages, recurrent rows to the tape,
//! new anchors.

use crate::{
    Error,
    arena::Arena,
    backend::{CommitPath, RecurrentCommit},
    cuda::{
        Cuda,
        args::{Address, CommitAnchorsArgs, CommitKvArgs, CommitTapeArgs, RecurrentRows, kernel},
        block::DeviceMemory,
        driver::{Driver, Shape},
    },
    kv::PAGE_TOKENS,
    memory::Memory,
    plan::Buf,
    recurrent::TAPE_TOKENS,
};
use std::sync::Arc;

/// Bytes of `FoldShared` in `kernels/fold.cuh`, rounded up.
const FOLD_SHARED: u32 = 20624;

/// Where the buffers of each layer lie, in device memory.
pub(crate) struct Tables {
    _memory: DeviceMemory,
    /// [caches]: an address a layer.
    caches: Vec<Address>,
    recurrent: RecurrentRows,
}

impl Tables {
    pub(crate) fn new(driver: &Arc<Driver>, arena: &Arena) -> Result<Self, Error> {
        let plan = &arena.plan;
        let mut lists: Vec<Vec<Buf>> = plan.caches.iter().map(|c| c.rows.clone()).collect();
        if let Some(recurrent) = &plan.recurrent {
            lists.push(recurrent.layers.iter().map(|l| l.inputs).collect());
            lists.push(recurrent.layers.iter().map(|l| l.keys).collect());
            lists.push(recurrent.layers.iter().map(|l| l.deltas).collect());
            lists.push(recurrent.layers.iter().map(|l| l.gates).collect());
        }
        let addresses: Vec<Address> =
            lists.iter().flatten().map(|b| address(&arena.data[b.0 as usize])).collect();
        let memory = driver.allocate(8 * addresses.len(), "tables of a commit")?;
        if !addresses.is_empty() {
            let bytes: Vec<u8> = addresses.iter().flat_map(|a| a.to_ne_bytes()).collect();
            driver.upload(memory.address(), &bytes)?;
        }
        let mut begins = lists.iter().scan(memory.address(), |at, list| {
            let begin = *at;
            *at += 8 * list.len() as u64;
            Some(begin)
        });
        let caches = begins.by_ref().take(plan.caches.len()).collect();
        let recurrent = match begins.collect::<Vec<_>>()[..] {
            [inputs, keys, deltas, gates] => RecurrentRows { inputs, keys, deltas, gates },
            _ => RecurrentRows::default(),
        };
        Ok(Self { _memory: memory, caches, recurrent })
    }
}

fn address(memory: &Memory) -> Address {
    DeviceMemory::of(memory).address()
}

/// A path as kernels read it: [count, position, rows...], padded to whole addresses.
fn path_bytes(path: CommitPath<'_>) -> Vec<u8> {
    let words = [path.rows.len() as u32, path.position as u32];
    let padding = (path.rows.len() % 2 == 1).then_some(0);
    words
        .into_iter()
        .chain(path.rows.iter().copied())
        .chain(padding)
        .flat_map(u32::to_ne_bytes)
        .collect()
}

/// Copies the encoded rows of a path to their places in the pages.
pub(crate) fn kv(
    cuda: &Cuda,
    arena: &Arena,
    tables: &Tables,
    cache: usize,
    path: CommitPath<'_>,
    first_page: usize,
    pages: &mut [&mut Memory],
) -> Result<(), Error> {
    if path.rows.is_empty() {
        return Ok(());
    }
    let layout = &arena.plan.caches[cache].layout;
    let reached = path.position / PAGE_TOKENS - first_page;
    let last = (path.position + path.rows.len() - 1) / PAGE_TOKENS - first_page;
    assert!(last < pages.len(), "{} pages for a path that reaches page {last}", pages.len());
    let mut message = path_bytes(path);
    let pages_at = message.len() as u64;
    message.extend(pages[reached..=last].iter().flat_map(|page| address(page).to_ne_bytes()));
    let sent = cuda.send(&message)?;
    let args = CommitKvArgs {
        rows: tables.caches[cache],
        pages: sent + pages_at,
        path: sent,
        layout: layout.into(),
        pad: 0,
    };
    let shape = Shape::new([path.rows.len() as u32, layout.layers as u32, 1], 128);
    cuda.kernels.launch(&cuda.driver, kernel::COMMIT_KV, shape, &args)
}

/// Folds the anchors that a path makes due, then writes its rows to the tape.
pub(crate) fn recurrent(
    cuda: &Cuda,
    arena: &Arena,
    tables: &Tables,
    path: CommitPath<'_>,
    state: RecurrentCommit<'_>,
) -> Result<(), Error> {
    if path.rows.is_empty() {
        return Ok(());
    }
    let layout = arena.plan.recurrent_layer(0).0;
    let (layers, heads) = (layout.layers as u32, layout.value_heads as u32);
    let (sent, tape) = (cuda.send(&path_bytes(path))?, address(state.tape));
    if !state.anchors.is_empty() {
        assert!(state.anchors.len() <= 2, "{} anchors of one path", state.anchors.len());
        let mut args = CommitAnchorsArgs {
            rows: tables.recurrent,
            base: state.base.map_or(0, address),
            tape,
            path: sent,
            out: [0; 2],
            at: [0; 2],
            anchors: state.anchors.len() as i32,
            pad: 0,
            layout: (&layout).into(),
        };
        for (i, (position, anchor)) in state.anchors.iter().enumerate() {
            args.at[i] = *position as i32;
            args.out[i] = address(anchor);
        }
        let shape = Shape::new([(layout.dim / 32) as u32, heads, layers], 256);
        let shape = Shape { shared: FOLD_SHARED, ..shape };
        cuda.kernels.launch(&cuda.driver, kernel::COMMIT_ANCHORS, shape, &args)?;
    }
    let args =
        CommitTapeArgs { rows: tables.recurrent, tape, path: sent, layout: (&layout).into() };
    let shape = Shape::new([path.rows.len().min(TAPE_TOKENS) as u32, layers, 1], 256);
    cuda.kernels.launch(&cuda.driver, kernel::COMMIT_TAPE, shape, &args)
}
