//! Proposals: tokens that may follow the newest one, as a chain or a tree, with the drafter's own
//! probabilities.

pub mod dflash;
mod drafter;
mod lattice;
pub(crate) mod lookup;
pub mod mtp;
pub mod probe;

pub use drafter::{Ask, Drafter, Reads, Shape};
pub use lattice::Lattice;
pub(crate) use lattice::ranks_needed;

use crate::Row;
use crate::sampling::Constraint;

/// A proposed token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Its id.
    pub token: u32,
    /// The node before it; none means the newest token.
    pub parent: Option<u32>,
    /// Positions after the newest token, from 1.
    pub depth: u32,
    /// The drafter's probability of this token after its parent.
    pub probability: f32,
}

/// Proposed tokens, parents before children, likelier paths first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// With the newest token they fit a pass of the backend.
    pub nodes: Vec<Node>,
}

impl Draft {
    /// The rows of a verify: the newest token, then the nodes.
    pub fn rows(&self, tip: u32, sequence: u32) -> Vec<Row> {
        let tip = Row { token: tip, sequence, parent: None };
        let row = |n: &Node| Row {
            token: n.token,
            sequence,
            parent: Some(n.parent.map_or(0, |p| p + 1)),
        };
        std::iter::once(tip).chain(self.nodes.iter().map(row)).collect()
    }

    /// Drops the nodes that a constraint refuses, each with what hangs from it: they could never
    /// stand.
    pub fn prune(&mut self, constraint: &mut dyn Constraint) {
        let mut fits = vec![false; self.nodes.len()];
        self.try_children(0, constraint, &mut fits);
        self.keep(&fits);
    }

    /// Drops the nodes that could stand and give nothing, because the text ends before them: those
    /// behind one of `ends`, and those that the last of `room` tokens comes before. One is kept,
    /// for its drafter to be judged by.
    pub(crate) fn cut(&mut self, room: usize, ends: &[u32]) {
        let mut fits: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let behind_end = node
                .parent
                .is_some_and(|p| !fits[p as usize] || ends.contains(&self.nodes[p as usize].token));
            fits.push(!behind_end && (node.depth as usize) < room.max(2));
        }
        self.keep(&fits);
    }

    /// Keeps the nodes that fit, whose parents do.
    fn keep(&mut self, fits: &[bool]) {
        let place = |node: u32| fits[..node as usize].iter().filter(|fits| **fits).count() as u32;
        let nodes = self.nodes.iter().zip(fits).filter(|(_, fits)| **fits);
        let placed = |node: &Node| Node { parent: node.parent.map(place), ..*node };
        self.nodes = nodes.map(|(node, _)| placed(node)).collect();
    }

    fn try_children(&self, row: u32, constraint: &mut dyn Constraint, fits: &mut [bool]) {
        for (child, node) in self.children(row) {
            if constraint.push(node.token) {
                fits[child as usize - 1] = true;
                self.try_children(child, constraint, fits);
                constraint.pop(1);
            }
        }
    }

    /// The children of a row of the verify (0 is the newest token), as (row, node).
    pub fn children(&self, row: u32) -> impl Iterator<Item = (u32, &Node)> {
        let parent = row.checked_sub(1);
        self.nodes.iter().zip(1..).filter(move |(n, _)| n.parent == parent).map(|(n, r)| (r, n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_judged_behind_the_end_of_a_text() {
        let node = |token, parent, depth| Node { token, parent, depth, probability: 0.5 };
        // Two chains: 1 2 9 3 and 4 5, where 9 ends a text.
        let nodes = vec![
            node(1, None, 1),
            node(4, None, 1),
            node(2, Some(0), 2),
            node(5, Some(1), 2),
            node(9, Some(2), 3),
            node(3, Some(4), 4),
        ];
        let cut = |room: usize| {
            let mut draft = Draft { nodes: nodes.clone() };
            draft.cut(room, &[9]);
            draft.nodes
        };
        assert_eq!(cut(100), nodes[..5]);
        assert_eq!(cut(3), nodes[..4]);
        assert_eq!(cut(1), nodes[..2]);
        let mut chains = Draft { nodes: nodes.clone() };
        chains.cut(100, &[1]);
        assert_eq!(chains.nodes, [nodes[0], nodes[1], node(5, Some(1), 2)]);
    }
}
