//! One pass: its rows, and everything that follows from `(token, sequence, parent)`: positions,
//! paths, convolution taps and the anchors a Gated DeltaNet row starts from. Computed here and
//! nowhere else.

use crate::{
    kv::PAGE_TOKENS,
    memory::Memory,
    recurrent::{ANCHOR_TOKENS, anchor_of},
};

/// A row of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id.
    pub token: u32,
    /// Index of its sequence in the pass.
    pub sequence: u32,
    /// The row before it, an earlier row of this pass; none means the sequence's committed tip.
    pub parent: Option<u32>,
}

/// Consecutive rows, each the parent of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First row.
    pub first: u32,
    /// How many.
    pub len: u32,
}

/// The pages of one key/value cache of one sequence.
#[derive(Clone, Debug, Default)]
pub struct PageTable<'a> {
    /// Number of the first page kept (a windowed cache drops old ones).
    pub first_page: usize,
    /// Pages, each `KvLayout::page_bytes` long.
    pub pages: Vec<&'a Memory>,
}

impl<'a> PageTable<'a> {
    /// The page that holds `position`.
    pub fn page(&self, position: usize) -> &'a Memory {
        self.pages[position / PAGE_TOKENS - self.first_page]
    }
}

/// What a pass reads of a sequence.
#[derive(Clone, Debug, Default)]
pub struct SequenceView<'a> {
    /// Tokens committed.
    pub committed: usize,
    /// One per cache of the plan.
    pub caches: Vec<PageTable<'a>>,
    /// State after `committed / 32 * 32` tokens (none when that is 0).
    pub anchor: Option<&'a Memory>,
    /// State 32 tokens before `anchor`.
    pub older_anchor: Option<&'a Memory>,
    /// Keys, deltas, gates and convolution inputs of the newest committed rows.
    pub tape: Option<&'a Memory>,
}

/// Where something of an earlier token lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tap {
    /// Before the text.
    Nothing,
    /// On the tape, at this position.
    Committed(u32),
    /// A row of the pass.
    Row(u32),
}

/// The state a group of rows starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AnchorSource {
    /// No tokens yet: zero.
    Zero,
    /// `SequenceView::older_anchor`.
    Older,
    /// `SequenceView::anchor`.
    Newest,
    /// Folded in this pass from another step, along the 32 tokens that end with `last`; kept in
    /// scratch `slot`.
    Folded { from: usize, last: u32, slot: usize },
}

/// Rows of one sequence that start from the same anchor.
#[derive(Clone, Debug)]
pub struct AnchorStep {
    /// Whose.
    pub sequence: u32,
    /// Tokens behind the anchor.
    pub position: usize,
    /// Where its state comes from.
    pub source: AnchorSource,
    /// Its rows, parents first.
    pub rows: Vec<u32>,
}

/// Rows that start from one anchor, known by its position and, where it lies within the pass, by
/// the last row behind it.
struct AnchorGroup {
    position: usize,
    last: Option<u32>,
    rows: Vec<u32>,
}

impl AnchorGroup {
    fn is(&self, position: usize, last: Option<u32>) -> bool {
        self.position == position && self.last == last
    }
}

/// What a pass is for. A backend may have other kernels for prompts than for decoding; within a
/// role a row's bits do not depend on its company.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// A token, a chain or a tree of each sequence.
    #[default]
    Decode,
    /// Part of a prompt: the rows of each sequence follow each other.
    Prompt,
}

/// The convolution reaches this many tokens back.
pub const CONV_REACH: usize = 3;

/// Everything a backend needs to know about the rows of one pass.
#[derive(Clone, Debug, Default)]
pub struct Pass<'a> {
    /// `[rows]`.
    pub tokens: Vec<u32>,
    /// `[rows]`.
    pub positions: Vec<u32>,
    /// `[rows]`: index into `sequences`.
    pub sequence_of: Vec<u32>,
    /// [rows]: where a row's path lies in `runs`.
    paths: Vec<(u32, u32)>,
    runs: Vec<Run>,
    /// `[rows]`: the three rows before, oldest first.
    pub taps: Vec<[Tap; CONV_REACH]>,
    /// [rows]: where the rows from a row's anchor up to it lie in `recent`.
    since_anchor: Vec<(u32, u32)>,
    recent: Vec<Tap>,
    /// Rows whose logits are wanted.
    pub chosen: Vec<u32>,
    /// Groups of rows by anchor; those of a sequence are consecutive and in order of position.
    pub steps: Vec<AnchorStep>,
    /// `[sequences]`: where a sequence's steps lie.
    pub steps_of: Vec<(usize, usize)>,
    /// Scratch states a sequence needs at once.
    pub slots: usize,
    /// `[sequences]`.
    pub sequences: Vec<SequenceView<'a>>,
    /// What it is for.
    pub role: Role,
}

impl<'a> Pass<'a> {
    /// Works out a pass over `rows`, of which `chosen` will have logits. Parents come before their
    /// children.
    pub fn new(rows: &[Row], chosen: &[u32], sequences: Vec<SequenceView<'a>>) -> Self {
        let mut pass = Self { chosen: chosen.to_vec(), sequences, ..Self::default() };
        for (i, row) in rows.iter().enumerate() {
            pass.place(i as u32, row);
        }
        assert!(
            chosen.iter().all(|r| (*r as usize) < rows.len()),
            "a chosen row is not in the pass"
        );
        pass.group_by_anchor();
        pass
    }

    /// The same rows as part of a prompt.
    pub fn as_prompt(mut self) -> Self {
        let follows = |row: usize| {
            let (sequence, position) = (self.sequence_of[row], self.positions[row]);
            let first = row == 0 || self.sequence_of[row - 1] != sequence;
            if first {
                position as usize == self.sequences[sequence as usize].committed
            } else {
                position == self.positions[row - 1] + 1
            }
        };
        assert!((0..self.rows()).all(follows), "the rows of a prompt follow each other");
        self.role = Role::Prompt;
        self
    }

    /// Rows of the pass.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The path of a row within the pass, itself included, in order of position.
    pub fn path(&self, row: usize) -> &[Run] {
        let (first, count) = self.paths[row];
        &self.runs[first as usize..(first + count) as usize]
    }

    /// The rows from the anchor of `row` up to the one before it, in order of position.
    pub fn since_anchor(&self, row: usize) -> &[Tap] {
        let (first, count) = self.since_anchor[row];
        &self.recent[first as usize..(first + count) as usize]
    }

    /// The pass row at `position` on the path of `row`; none where that position is committed.
    pub fn ancestor(&self, row: usize, position: usize) -> Option<u32> {
        let mut start = self.sequences[self.sequence_of[row] as usize].committed;
        if position < start {
            return None;
        }
        for run in self.path(row) {
            if position < start + run.len as usize {
                return Some(run.first + (position - start) as u32);
            }
            start += run.len as usize;
        }
        panic!("position {position} lies beyond row {row}")
    }

    fn place(&mut self, i: u32, row: &Row) {
        let first_run = self.runs.len();
        let position = match row.parent {
            None => self.sequences[row.sequence as usize].committed as u32,
            Some(p) => {
                assert!(p < i, "row {i} comes before its parent {p}");
                assert_eq!(
                    self.sequence_of[p as usize], row.sequence,
                    "row {i} and its parent differ in sequence"
                );
                let (first, count) = self.paths[p as usize];
                self.runs.extend_from_within(first as usize..(first + count) as usize);
                self.positions[p as usize] + 1
            }
        };
        match self.runs[first_run..].last_mut() {
            Some(run) if run.first + run.len == i => run.len += 1,
            _ => self.runs.push(Run { first: i, len: 1 }),
        }
        self.paths.push((first_run as u32, (self.runs.len() - first_run) as u32));
        self.tokens.push(row.token);
        self.positions.push(position);
        self.sequence_of.push(row.sequence);
        let taps = std::array::from_fn(|j| {
            let back = (CONV_REACH - j) as u32;
            if back > position {
                return Tap::Nothing;
            }
            match self.ancestor(i as usize, (position - back) as usize) {
                Some(r) => Tap::Row(r),
                None => Tap::Committed(position - back),
            }
        });
        self.taps.push(taps);
        let first_recent = self.recent.len();
        let anchor = anchor_of(position as usize);
        match row.parent {
            None => self.recent.extend((anchor as u32..position).map(Tap::Committed)),
            Some(p) => {
                let (first, count) = self.since_anchor[p as usize];
                // The parent may start from an anchor before this row's.
                let skip = (anchor - anchor_of(position as usize - 1)) as u32;
                self.recent.extend_from_within(
                    (first + skip.min(count)) as usize..(first + count) as usize,
                );
                self.recent.push(Tap::Row(p));
            }
        }
        self.since_anchor.push((first_recent as u32, (self.recent.len() - first_recent) as u32));
    }

    fn group_by_anchor(&mut self) {
        for sequence in 0..self.sequences.len() {
            let mut groups = self.anchors_needed(sequence);
            groups.sort_by_key(|group| group.position);
            let begin = self.steps.len();
            for i in 0..groups.len() {
                let source = self.anchor_source(sequence, &groups, i, begin);
                let (position, rows) = (groups[i].position, std::mem::take(&mut groups[i].rows));
                self.steps.push(AnchorStep { sequence: sequence as u32, position, source, rows });
            }
            self.steps_of.push((begin, self.steps.len()));
            self.assign_slots(begin);
        }
    }

    /// The newest anchor that a sequence has committed.
    fn newest_anchor(&self, sequence: usize) -> usize {
        self.sequences[sequence].committed / ANCHOR_TOKENS * ANCHOR_TOKENS
    }

    /// The anchors that rows of a sequence start from, and those on the way to them.
    fn anchors_needed(&self, sequence: usize) -> Vec<AnchorGroup> {
        let newest = self.newest_anchor(sequence);
        let mut groups: Vec<AnchorGroup> = Vec::new();
        for row in (0..self.rows()).filter(|row| self.sequence_of[*row] as usize == sequence) {
            let wanted = anchor_of(self.positions[row] as usize);
            let mut position = wanted;
            loop {
                let last = if position <= newest { None } else { self.ancestor(row, position - 1) };
                let known = groups.iter().position(|group| group.is(position, last));
                let group = known.unwrap_or_else(|| {
                    groups.push(AnchorGroup { position, last, rows: Vec::new() });
                    groups.len() - 1
                });
                if position == wanted {
                    groups[group].rows.push(row as u32);
                }
                if known.is_some() || last.is_none() {
                    break;
                }
                position -= ANCHOR_TOKENS;
            }
        }
        groups
    }

    /// Where the state of group `i` comes from; the steps of its sequence begin at `begin`.
    fn anchor_source(
        &self,
        sequence: usize,
        groups: &[AnchorGroup],
        i: usize,
        begin: usize,
    ) -> AnchorSource {
        let newest = self.newest_anchor(sequence);
        let AnchorGroup { position, last, .. } = groups[i];
        let Some(last) = last else {
            return match position {
                0 => AnchorSource::Zero,
                _ if position == newest => AnchorSource::Newest,
                _ => AnchorSource::Older,
            };
        };
        let before = position - ANCHOR_TOKENS;
        let base = match before <= newest {
            true => None,
            false => self.ancestor(last as usize, before - 1),
        };
        let from = groups.iter().position(|group| group.is(before, base));
        AnchorSource::Folded { from: begin + from.expect("the step before"), last, slot: 0 }
    }

    /// Gives each folded state a scratch slot that is free from its fold until its last reader.
    fn assign_slots(&mut self, begin: usize) {
        let end = self.steps.len();
        let reads = |steps: &[AnchorStep], i: usize| {
            (i..end)
                .filter(|j| {
                    *j == i || matches!(steps[*j].source, AnchorSource::Folded { from, .. } if from == i)
                })
                .max()
        };
        let mut busy_until: Vec<usize> = Vec::new();
        for i in begin..end {
            let last_read = reads(&self.steps, i).unwrap_or(i);
            if let AnchorSource::Folded { slot, .. } = &mut self.steps[i].source {
                *slot = busy_until.iter().position(|until| *until < i).unwrap_or_else(|| {
                    busy_until.push(0);
                    busy_until.len() - 1
                });
                busy_until[*slot] = last_read;
            }
        }
        self.slots = self.slots.max(busy_until.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u32) -> Vec<Row> {
        (0..n).map(|i| Row { token: i, sequence: 0, parent: i.checked_sub(1) }).collect()
    }

    #[test]
    fn a_chain_is_one_run_and_folds_every_32_tokens() {
        let pass = Pass::new(&chain(120), &[119], vec![SequenceView::default()]);
        assert_eq!(pass.path(119), [Run { first: 0, len: 120 }]);
        assert_eq!(pass.taps[1], [Tap::Nothing, Tap::Nothing, Tap::Row(0)]);
        assert_eq!(pass.since_anchor(47).len(), 47);
        let recent: Vec<Tap> = (32..48).map(Tap::Row).collect();
        assert_eq!(pass.since_anchor(48), recent);
        let shape: Vec<_> = pass.steps.iter().map(|s| (s.position, s.rows.len())).collect();
        assert_eq!(shape, [(0, 48), (32, 32), (64, 32), (96, 8)]);
        assert_eq!(pass.steps[2].source, AnchorSource::Folded { from: 1, last: 63, slot: 1 });
        assert_eq!(pass.steps[3].source, AnchorSource::Folded { from: 2, last: 95, slot: 0 });
    }

    #[test]
    fn a_tree_takes_its_paths_apart() {
        let committed = SequenceView { committed: 40, ..Default::default() };
        let mut rows = chain(9); // positions 40..48, the last beyond 48: anchor 32
        rows.push(Row { token: 9, sequence: 0, parent: Some(3) });
        let pass = Pass::new(&rows, &[], vec![committed]);
        assert_eq!(pass.positions[9], 44);
        assert_eq!(pass.path(9), [Run { first: 0, len: 4 }, Run { first: 9, len: 1 }]);
        assert_eq!(pass.taps[9], [Tap::Row(1), Tap::Row(2), Tap::Row(3)]);
        assert_eq!(pass.taps[0], [Tap::Committed(37), Tap::Committed(38), Tap::Committed(39)]);
        assert_eq!(pass.since_anchor(9).len(), 44);
        let last = [Tap::Committed(39), Tap::Row(0), Tap::Row(1), Tap::Row(2), Tap::Row(3)];
        assert_eq!(pass.since_anchor(9)[39..], last);
        assert_eq!(pass.steps.len(), 2);
        assert_eq!(pass.steps[0].rows, [0, 1, 2, 3, 4, 5, 6, 7, 9]);
        assert_eq!(
            (pass.steps[1].source, &pass.steps[1].rows[..]),
            (AnchorSource::Newest, &[8][..])
        );
    }
}
