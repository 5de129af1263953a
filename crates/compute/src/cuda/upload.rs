//! A pass in the device's memory. Where its arrays lie follows from its number of rows alone, so
//! that captured graphs stay valid while what they hold changes; one copy brings all of it, and
//! nothing of rows that a pass does not have.

use super::{
    args::{self, Address, DECODE_ROWS, MAX_CACHES, TEXT_ROWS},
    block::DeviceMemory,
    driver::Driver,
    far::Brought,
};
use crate::{
    Error,
    pass::{AnchorSource, Pass, Role, Tap},
    recurrent::TAPE_TOKENS,
};
use std::sync::Arc;

// Rows of a path are bytes.
const _: () = assert!(DECODE_ROWS <= 1 << 8);

/// Room for passes of up to so many rows.
pub(crate) struct PassBuffer {
    memory: DeviceMemory,
    host: Vec<u8>,
    rows: usize,
    pages: usize,
}

/// Offsets of the arrays.
struct Places {
    tokens: usize,
    positions: usize,
    sequence_of: usize,
    chosen: usize,
    taps: usize,
    path: usize,
    recent: usize,
    recent_count: usize,
    steps: usize,
    step_rows: usize,
    sequences: usize,
    pages: usize,
}

impl Places {
    /// Those of a pass of so many rows, with paths where rows of trees attend.
    fn of(rows: usize, has_paths: bool) -> Self {
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end = (end + bytes).next_multiple_of(16);
            at
        };
        Self {
            tokens: place(4 * rows),
            positions: place(4 * rows),
            sequence_of: place(4 * rows),
            chosen: place(4 * rows),
            taps: place(12 * rows),
            path: place(if has_paths { rows * TEXT_ROWS } else { 0 }),
            recent: place(4 * rows * TAPE_TOKENS),
            recent_count: place(4 * rows),
            // A sequence has a step for its oldest anchor beside those its rows begin.
            steps: place(size_of::<args::Step>() * 2 * rows),
            step_rows: place(4 * rows),
            sequences: place(size_of::<args::Sequence>() * rows),
            pages: end,
        }
    }
}

impl PassBuffer {
    /// A buffer for `rows` rows, with room for `pages` pages of all sequences and caches.
    pub(crate) fn new(driver: &Arc<Driver>, rows: usize, pages: usize) -> Result<Self, Error> {
        let len = Places::of(rows, rows <= DECODE_ROWS).pages + 8 * pages;
        Ok(Self { memory: driver.allocate(len, "a pass")?, host: vec![0; len], rows, pages })
    }

    /// Where the arrays of a pass lie.
    fn places(&self, pass: &Pass<'_>) -> Places {
        Places::of(pass.rows(), self.rows <= DECODE_ROWS)
    }

    /// Rows it has room for.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether it has room for the pages of a pass.
    pub(crate) fn fits(&self, pass: &Pass<'_>) -> bool {
        pages_of(pass) <= self.pages && pass.rows() <= self.rows
    }

    /// Copies a pass to the device. Far pages of the target that are brought there are found where
    /// they will be.
    pub(crate) fn upload(
        &mut self,
        driver: &Driver,
        pass: &Pass<'_>,
        brought: &Brought,
    ) -> Result<(), Error> {
        let at = self.places(pass);
        assert!(pass.steps.len() <= 2 * pass.rows(), "{} steps", pass.steps.len());
        let ints = |values: &mut dyn Iterator<Item = i32>, place: usize, host: &mut Vec<u8>| {
            for (i, value) in values.enumerate() {
                host[place + 4 * i..][..4].copy_from_slice(&value.to_ne_bytes());
            }
        };
        let host = &mut self.host;
        let rows = pass.rows();
        ints(&mut pass.tokens.iter().map(|t| *t as i32), at.tokens, host);
        ints(&mut pass.positions.iter().map(|p| *p as i32), at.positions, host);
        ints(&mut pass.sequence_of.iter().map(|s| *s as i32), at.sequence_of, host);
        ints(&mut pass.chosen.iter().map(|r| *r as i32), at.chosen, host);
        ints(&mut pass.taps.iter().flatten().map(|t| code(*t)), at.taps, host);
        for row in 0..rows {
            let recent = pass.since_anchor(row);
            ints(&mut recent.iter().map(|t| code(*t)), at.recent + 4 * TAPE_TOKENS * row, host);
            ints(&mut std::iter::once(recent.len() as i32), at.recent_count + 4 * row, host);
            // Those who attend have no more rows than these.
            if pass.role == Role::Decode && self.rows <= DECODE_ROWS {
                let path = pass.path(row).iter().flat_map(|run| run.first..run.first + run.len);
                for (j, ancestor) in path.take(TEXT_ROWS).enumerate() {
                    host[at.path + row * TEXT_ROWS + j] = ancestor as u8;
                }
            }
        }
        let mut first = 0;
        for (i, step) in pass.steps.iter().enumerate() {
            let (source, from, last, slot) = match step.source {
                AnchorSource::Zero => (0, 0, 0, 0),
                AnchorSource::Older => (1, 0, 0, 0),
                AnchorSource::Newest => (2, 0, 0, 0),
                AnchorSource::Folded { from, last, slot } => {
                    (3, from as i32, last as i32, slot as i32)
                }
            };
            let step_args = args::Step {
                sequence: step.sequence as i32,
                position: step.position as i32,
                source,
                from,
                last,
                slot,
                first_row: first as i32,
                rows: step.rows.len() as i32,
            };
            put(host, at.steps + i * size_of::<args::Step>(), &step_args);
            ints(&mut step.rows.iter().map(|r| *r as i32), at.step_rows + 4 * first, host);
            first += step.rows.len();
        }
        let base = self.memory.address();
        let (mut page_at, mut far) = (at.pages, 0..);
        let address = |m: Option<&crate::Memory>| m.map_or(0, |m| DeviceMemory::of(m).address());
        for (s, view) in pass.sequences.iter().enumerate() {
            let mut sequence = args::Sequence {
                committed: view.committed as i32,
                first_row: pass.sequence_of.iter().position(|q| *q as usize == s).unwrap_or(0)
                    as i32,
                rows: pass.sequence_of.iter().filter(|q| **q as usize == s).count() as i32,
                first_step: pass.steps_of[s].0 as i32,
                steps: (pass.steps_of[s].1 - pass.steps_of[s].0) as i32,
                anchor: address(view.anchor),
                older: address(view.older_anchor),
                tape: address(view.tape),
                ..Default::default()
            };
            assert!(view.caches.len() <= MAX_CACHES, "{} caches", view.caches.len());
            for (c, table) in view.caches.iter().enumerate() {
                sequence.first_page[c] = table.first_page as i32;
                sequence.pages[c] = base + page_at as u64;
                for page in &table.pages {
                    let is_brought = c == 0 && page.is_far();
                    let there = is_brought.then(|| far.next().and_then(|i| brought.address(i)));
                    let page = there.flatten().unwrap_or_else(|| address(Some(page)));
                    host[page_at..][..8].copy_from_slice(&page.to_ne_bytes());
                    page_at += 8;
                }
            }
            put(host, at.sequences + s * size_of::<args::Sequence>(), &sequence);
        }
        driver.upload(base, &self.host[..page_at])
    }

    /// The pass as kernels are given it.
    pub(crate) fn args(&self, pass: &Pass<'_>) -> args::Pass {
        let places = self.places(pass);
        let at = |place: usize| -> Address { self.memory.address() + place as u64 };
        args::Pass {
            tokens: at(places.tokens),
            positions: at(places.positions),
            sequence_of: at(places.sequence_of),
            chosen: at(places.chosen),
            taps: at(places.taps),
            path: at(places.path),
            recent: at(places.recent),
            recent_count: at(places.recent_count),
            steps: at(places.steps),
            step_rows: at(places.step_rows),
            sequences: at(places.sequences),
            rows: pass.rows() as i32,
            chosen_rows: pass.chosen.len() as i32,
            sequence_count: pass.sequences.len() as i32,
            prompt: (pass.role == Role::Prompt) as i32,
        }
    }
}

/// Pages of all sequences and caches.
pub(crate) fn pages_of(pass: &Pass<'_>) -> usize {
    pass.sequences.iter().flat_map(|s| &s.caches).map(|t| t.pages.len()).sum()
}

fn code(tap: Tap) -> i32 {
    match tap {
        Tap::Nothing => -1,
        Tap::Row(row) => row as i32,
        Tap::Committed(position) => -2 - position as i32,
    }
}

fn put<T: bytemuck::Pod>(host: &mut [u8], at: usize, value: &T) {
    host[at..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(value));
}
