//! Rotation and attention: trees, chains, windows and blocks over committed pages, in both roles.

use super::{
    Both, Random, chain,
    plans::{self, Norms},
    run_plan, tree_and_chain,
};
use crate::{
    AttentionShape, Backend, CommitPath, Error, KvCommit, KvLayout, KvType, Memory, PAGE_TOKENS,
    PageTable, Pass, Row, SequenceView,
};

/// Runs rows from the tip of a state and gives the attended rows; `keep` of them are committed.
struct Side<'a> {
    backend: &'a mut dyn Backend,
    norms: Norms,
    layout: KvLayout,
    shape: AttentionShape,
    pages: Vec<Memory>,
    committed: usize,
}

impl Side<'_> {
    fn pass(
        &mut self,
        rows: &[Row],
        inputs: &[Vec<f32>; 3],
        (window, causal, prompt): (Option<usize>, bool, bool),
        keep: usize,
    ) -> Result<Vec<f32>, Error> {
        let (plan, bufs, out) =
            plans::attention(self.norms, self.layout, self.shape, window, causal);
        let inputs: Vec<_> = bufs.into_iter().zip(inputs.iter().cloned()).collect();
        let end = self.committed + keep;
        while self.pages.len() * PAGE_TOKENS < end {
            self.pages.push(self.backend.memory(self.layout.page_bytes())?);
        }
        let table = PageTable { first_page: 0, pages: self.pages.iter().collect() };
        let first =
            SequenceView { committed: self.committed, caches: vec![table], ..Default::default() };
        let second = SequenceView { caches: vec![PageTable::default()], ..Default::default() };
        let sequences =
            if rows.iter().any(|r| r.sequence == 1) { vec![first, second] } else { vec![first] };
        let mut pass = Pass::new(rows, &[], sequences);
        if prompt {
            pass = pass.as_prompt();
        }
        let arena = run_plan(self.backend, plan, &inputs, &pass)?;
        if keep > 0 {
            let path: Vec<u32> = (0..keep as u32).collect();
            let first_page = self.committed / PAGE_TOKENS;
            let pages = self.pages.iter_mut().skip(first_page).collect();
            let path = CommitPath { rows: &path, position: self.committed };
            let commit = KvCommit { path, first_page, pages };
            self.backend.commit_kv(&arena, 0, &mut [commit])?;
            self.committed = end;
        }
        Ok(arena.read(out)?.into_owned())
    }
}

fn view((committed, pages): &(usize, Vec<Memory>)) -> SequenceView<'_> {
    let table = PageTable { first_page: 0, pages: pages.iter().collect() };
    SequenceView { committed: *committed, caches: vec![table], ..Default::default() }
}

/// As many texts as a pass has room for, of `rows` rows each: every row has the bits it has alone.
fn company(
    both: &mut Both<'_>,
    shape: AttentionShape,
    kind: KvType,
    rows: usize,
) -> Result<(), Error> {
    let texts = both.device.decode_rows() / rows;
    let name = format!("attention {kind:?} {} x {}, {rows} rows", shape.heads, shape.head_dim);
    if !both.wants(&name) {
        return Ok(());
    }
    let mut random = Random(8);
    let layout = KvLayout { kind, layers: 2, heads: shape.kv_heads, head_dim: shape.head_dim };
    let (q, k) = (
        both.vector(&random.numbers(shape.head_dim))?,
        both.vector(&random.numbers(shape.head_dim))?,
    );
    let settings = [(None, true), (Some(100), true), (None, false)];
    let mut side = Side {
        backend: &mut *both.device,
        norms: Norms { q: q.device, k: k.device },
        layout,
        shape,
        pages: Vec::new(),
        committed: 0,
    };
    let (mut pages, mut alone) = (Vec::new(), [const { Vec::new() }; 3]);
    let mut all: [Vec<f32>; 3] = Default::default();
    for i in 0..texts {
        (side.pages, side.committed) = (Vec::new(), 0);
        let tokens = [0, 1, 40, 64, 130, 200, 330][i % 7];
        if tokens > 0 {
            let text = inputs(&mut random, &shape, tokens);
            // Keys and values do not depend on the window.
            side.pass(&chain(tokens), &text, (Some(1), true, true), tokens)?;
        }
        let next = inputs(&mut random, &shape, rows);
        for (alone, (window, causal)) in alone.iter_mut().zip(settings) {
            alone.extend(side.pass(&chain(rows), &next, (window, causal, false), 0)?);
        }
        all.iter_mut().zip(next).for_each(|(all, next)| all.extend(next));
        pages.push((tokens, std::mem::take(&mut side.pages)));
    }
    let of_text = |i: usize| {
        let place = move |r: Row| Row {
            sequence: i as u32,
            parent: r.parent.map(|p| p + (i * rows) as u32),
            ..r
        };
        chain(rows).into_iter().map(place)
    };
    let all_rows: Vec<Row> = (0..texts).flat_map(of_text).collect();
    let mut found = Vec::new();
    for (alone, (window, causal)) in alone.iter().zip(settings) {
        let pass = Pass::new(&all_rows, &[], pages.iter().map(view).collect());
        let (plan, bufs, out) = plans::attention(side.norms, layout, shape, window, causal);
        let inputs: Vec<_> = bufs.into_iter().zip(all.iter().cloned()).collect();
        let arena = run_plan(side.backend, plan, &inputs, &pass)?;
        let together = arena.read(out)?;
        let same = alone.len() == together.len()
            && alone.iter().zip(&*together).all(|(a, b): (&f32, &f32)| a.to_bits() == b.to_bits());
        found.push((
            format!("{name} of {texts} texts, {window:?}, causal {causal}: as alone"),
            same,
        ));
    }
    for (name, same) in found {
        both.check(&name, if same { 0.0 } else { f32::INFINITY }, 0.0);
    }
    Ok(())
}

fn inputs(random: &mut Random, shape: &AttentionShape, rows: usize) -> [Vec<f32>; 3] {
    let widths = [
        shape.heads * shape.query_stride(),
        shape.kv_heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    ];
    widths.map(|width| random.numbers(rows * width))
}

/// The same rows of other inputs, from `first` on.
fn part(inputs: &[Vec<f32>; 3], rows: usize, first: usize, count: usize) -> [Vec<f32>; 3] {
    std::array::from_fn(|i| {
        let width = inputs[i].len() / rows;
        inputs[i][first * width..(first + count) * width].to_vec()
    })
}

pub(super) fn run(both: &mut Both<'_>) -> Result<(), Error> {
    let shapes = [
        AttentionShape { heads: 6, kv_heads: 2, head_dim: 96, gated: true },
        AttentionShape { heads: 8, kv_heads: 2, head_dim: 128, gated: false },
        AttentionShape { heads: 12, kv_heads: 2, head_dim: 256, gated: true },
    ];
    for (shape, kind) in shapes.into_iter().flat_map(|s| KvType::ALL.map(|k| (s, k))) {
        for committed in [0, 30, 130, 700] {
            check(both, shape, kind, committed)?;
        }
    }
    // Chunks of several tiles: with many key heads a row's keys are cut into few chunks.
    for (head_dim, kind) in [128, 256].into_iter().flat_map(|d| KvType::ALL.map(|k| (d, k))) {
        check(
            both,
            AttentionShape { heads: 16, kv_heads: 16, head_dim, gated: false },
            kind,
            2000,
        )?;
    }
    check(both, shapes[2], KvType::F16, 9000)?;
    [1, 5].into_iter().try_for_each(|rows| company(both, shapes[2], KvType::F16, rows))?;
    KvType::ALL.into_iter().try_for_each(|kind| company(both, shapes[2], kind, 16))?;
    let narrow = AttentionShape { heads: 8, kv_heads: 2, head_dim: 96, gated: false };
    company(both, narrow, KvType::F16, 16)
}

fn check(
    both: &mut Both<'_>,
    shape: AttentionShape,
    kind: KvType,
    committed: usize,
) -> Result<(), Error> {
    let name =
        format!("attention {kind:?} {} x {}, {committed} before", shape.heads, shape.head_dim);
    if !both.wants(&name) {
        return Ok(());
    }
    let layout = KvLayout { kind, layers: 2, heads: shape.kv_heads, head_dim: shape.head_dim };
    let mut random = Random(3);
    let (q, k) = (
        both.vector(&random.numbers(shape.head_dim))?,
        both.vector(&random.numbers(shape.head_dim))?,
    );
    let [mut reference, mut device] = [
        Side {
            backend: &mut both.reference,
            norms: Norms { q: q.reference, k: k.reference },
            layout,
            shape,
            pages: Vec::new(),
            committed: 0,
        },
        Side {
            backend: &mut *both.device,
            norms: Norms { q: q.device, k: k.device },
            layout,
            shape,
            pages: Vec::new(),
            committed: 0,
        },
    ];
    let mut found: Vec<(String, f32, f32)> = Vec::new();
    // A key on the edge between two codes may fall to either side.
    let tolerance = if kind == KvType::F16 { 4e-3 } else { 2e-2 };
    // A long text is read through a window of one token, which leaves the same keys and values: the
    // reference decodes what a row sees anew for every row.
    let is_short = committed < 1000;
    let prompt = (if is_short { None } else { Some(1) }, true, true);
    let text = inputs(&mut random, &shape, committed.max(1));
    let mut at = 0;
    while at < committed {
        let count = 200.min(committed - at);
        let rows = part(&text, committed, at, count);
        let expected = reference.pass(&chain(count), &rows, prompt, count)?;
        let got = device.pass(&chain(count), &rows, prompt, count)?;
        found.push((
            format!("{name}, prompt from {at}"),
            super::difference(&expected, &got),
            tolerance,
        ));
        at += count;
    }
    let passes = if is_short {
        vec![
            (tree_and_chain(), (None, true, false), "tree"),
            (tree_and_chain(), (Some(70), true, false), "tree, window"),
            (chain(9), (None, false, false), "block"),
            (chain(16), (Some(5), false, false), "block, window"),
            (chain(40), (None, true, false), "chain"),
        ]
    } else {
        vec![
            (chain(3), (None, true, false), "chain"),
            (chain(3), (Some(1111), true, false), "chain, window"),
        ]
    };
    for (rows, settings, what) in passes {
        let numbers = inputs(&mut Random(5), &shape, rows.len());
        let expected = reference.pass(&rows, &numbers, settings, 0)?;
        let got = device.pass(&rows, &numbers, settings, 0)?;
        found.push((format!("{name}, {what}"), super::difference(&expected, &got), tolerance));
    }
    // A chain in one pass, token by token, and in parts: the same bits.
    let rows = 40;
    let numbers = inputs(&mut Random(6), &shape, rows);
    let settings = (None, true, false);
    let whole = device.pass(&chain(rows), &numbers, settings, 0)?;
    let mut parts = Vec::new();
    for (i, count) in [1, 5, 1, 16, 3, 14].into_iter().enumerate() {
        let first = [0, 1, 6, 7, 23, 26][i];
        parts.extend(device.pass(
            &chain(count),
            &part(&numbers, rows, first, count),
            settings,
            count,
        )?);
    }
    let same = whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits())
        && whole.len() == parts.len();
    found.push((
        format!("{name}, bits of a chain in parts"),
        if same { 0.0 } else { f32::INFINITY },
        0.0,
    ));
    for (name, worst, tolerance) in found {
        both.check(&name, worst, tolerance);
    }
    Ok(())
}
