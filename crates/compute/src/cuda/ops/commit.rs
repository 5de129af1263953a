//! Rows of a pass become part of a sequence: keys and values to pages, recurrent rows to the tape,
//! new anchors.

use crate::{
    Error,
    arena::Arena,
    backend::{CommitPath, KvCommit, RecurrentCommit, RowsKept},
    cuda::{
        Cuda,
        args::{
            Address, CommitKvArgs, CommitRecurrentArgs, KeepRowsArgs, KeptRow, KvText,
            RecurrentRows, RecurrentText, kernel,
        },
        block::DeviceMemory,
        captured::Captured,
        driver::{Driver, Shape},
    },
    kv::PAGE_TOKENS,
    memory::Memory,
    plan::Buf,
    recurrent::TAPE_TOKENS,
};
use bytemuck::Pod;
use std::sync::Arc;

/// Bytes of `FoldShared` in `kernels/fold.cuh`, rounded up.
const FOLD_SHARED: u32 = 20624;
/// Columns of a state that a block of `commit_anchors` takes.
const SLICE: usize = 32;
/// Columns that a block of `keep_rows` takes.
const KEPT_COLUMNS: usize = 4096;

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

/// What a launch reads beside its arguments, put together here and sent in one copy.
struct Message<'a> {
    cuda: &'a Cuda,
    bytes: Vec<u8>,
}

impl<'a> Message<'a> {
    fn new(cuda: &'a Cuda) -> Self {
        Self { cuda, bytes: Vec::new() }
    }

    /// Adds a list, padded to whole addresses; gives where it will lie.
    fn add<T: Pod>(&mut self, list: &[T]) -> Address {
        let at = self.cuda.inbox.address() + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytemuck::cast_slice(list));
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        at
    }

    /// Adds a path as kernels read it: [count, position, rows...].
    fn add_path(&mut self, path: CommitPath<'_>) -> Address {
        let words = [path.rows.len() as u32, path.position as u32];
        self.add(&[&words, path.rows].concat())
    }

    fn send(&self) -> Result<(), Error> {
        self.cuda.send(&self.bytes).map(drop)
    }
}

/// Copies the encoded rows of paths to their places in the pages.
pub(crate) fn kv(
    cuda: &Cuda,
    arena: &Arena,
    cache: usize,
    commits: &[KvCommit<'_>],
) -> Result<(), Error> {
    let (mut message, mut texts, mut most_rows) = (Message::new(cuda), Vec::new(), 0);
    for KvCommit { path, first_page, pages } in commits.iter().filter(|c| !c.path.rows.is_empty()) {
        let reached = path.position / PAGE_TOKENS - first_page;
        let last = (path.position + path.rows.len() - 1) / PAGE_TOKENS - first_page;
        assert!(last < pages.len(), "{} pages for a path that reaches page {last}", pages.len());
        let pages: Vec<Address> = pages[reached..=last].iter().map(|page| address(page)).collect();
        texts.push(KvText { pages: message.add(&pages), path: message.add_path(*path) });
        most_rows = most_rows.max(path.rows.len());
    }
    if texts.is_empty() {
        return Ok(());
    }
    let layout = &arena.plan.caches[cache].layout;
    let args = CommitKvArgs {
        rows: Captured::of(arena).commit.caches[cache],
        texts: message.add(&texts),
        layout: layout.into(),
        pad: 0,
    };
    message.send()?;
    let shape = Shape::new([most_rows as u32, layout.layers as u32, texts.len() as u32], 128);
    cuda.kernels.launch(&cuda.driver, kernel::COMMIT_KV, shape, &args)
}

/// Folds the anchors that paths make due, then writes their rows to the tapes. Anchors are folded
/// from the tapes as they were, so what fails before the last launch may be done again.
pub(crate) fn recurrent(
    cuda: &Cuda,
    arena: &Arena,
    commits: &[RecurrentCommit<'_>],
) -> Result<(), Error> {
    let (mut message, mut texts, mut most_rows) = (Message::new(cuda), Vec::new(), 0);
    for commit in commits.iter().filter(|c| !c.path.rows.is_empty()) {
        assert!(commit.anchors.len() <= 2, "{} anchors of one path", commit.anchors.len());
        let mut text = RecurrentText {
            base: commit.base.map_or(0, address),
            tape: address(commit.tape),
            path: message.add_path(commit.path),
            out: [0; 2],
            at: [0; 2],
            anchors: commit.anchors.len() as i32,
            pad: 0,
        };
        for (i, (position, anchor)) in commit.anchors.iter().enumerate() {
            text.at[i] = *position as i32;
            text.out[i] = address(anchor);
        }
        texts.push(text);
        most_rows = most_rows.max(commit.path.rows.len());
    }
    if texts.is_empty() {
        return Ok(());
    }
    // Those with anchors come first: the others have no blocks in that launch.
    texts.sort_by_key(|text| text.anchors == 0);
    let due = texts.iter().filter(|text| text.anchors > 0).count();
    let layout = arena.plan.recurrent_layer(0).0;
    let (layers, heads) = (layout.layers as u32, layout.value_heads as u32);
    let args = CommitRecurrentArgs {
        rows: Captured::of(arena).commit.recurrent,
        texts: message.add(&texts),
        layout: (&layout).into(),
    };
    message.send()?;
    if due > 0 {
        let shape = Shape::new([(due * (layout.dim / SLICE)) as u32, heads, layers], 256);
        let shape = Shape { shared: FOLD_SHARED, ..shape };
        cuda.kernels.launch(&cuda.driver, kernel::COMMIT_ANCHORS, shape, &args)?;
    }
    let rows = most_rows.min(TAPE_TOKENS) as u32;
    let shape = Shape::new([rows, layers, texts.len() as u32], 256);
    cuda.kernels.launch(&cuda.driver, kernel::COMMIT_TAPE, shape, &args)
}

/// Copies rows of a buffer to where they are kept.
pub(crate) fn keep_rows(
    cuda: &Cuda,
    arena: &Arena,
    buf: Buf,
    kept: &[RowsKept<'_>],
) -> Result<(), Error> {
    let cols = arena.plan.cols(buf);
    let mut list: Vec<KeptRow> = Vec::new();
    for RowsKept { rows, to, at } in kept {
        let row_bytes = 4 * cols;
        assert!((at + rows.len()) * row_bytes <= to.len(), "{} rows from {at} on", rows.len());
        let place = |i: usize| address(to) + ((at + i) * row_bytes) as u64;
        let row = |(i, row): (usize, &u32)| KeptRow { to: place(i), row: u64::from(*row) };
        list.extend(rows.iter().enumerate().map(row));
    }
    if list.is_empty() {
        return Ok(());
    }
    let mut message = Message::new(cuda);
    let args = KeepRowsArgs {
        from: address(&arena.data[buf.0 as usize]),
        rows: message.add(&list),
        cols: cols as i32,
    };
    message.send()?;
    let grid = [list.len() as u32, cols.div_ceil(KEPT_COLUMNS) as u32, 1];
    cuda.kernels.launch(&cuda.driver, kernel::KEEP_ROWS, Shape::new(grid, 256), &args)
}
