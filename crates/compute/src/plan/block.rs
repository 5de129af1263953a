//! What blocks of a drafter are made of besides layers: convolutions over the rows of a block, and
//! the choice among the best tokens of each row by what comes before them.

use super::{Buf, Kind, MatrixId, Op, Plan, VectorId};
use crate::{
    pass::{CONV_REACH, Pass, Tap},
    plan::Extent,
};

/// Convolution over the rows of a pass, along each row's path, with coefficients of the row that
/// reads: `out[r][c] = sum over t of (base[t][c] + dynamic[r][t][c / group]) * x[r - t][c]`, where
/// `r - t` is the row `t` before `r` on its path. What is committed, or of another sequence, counts
/// as nothing: a block begins with zeros.
#[derive(Clone, Copy, Debug)]
pub struct BlockConv {
    /// [rows, cols].
    pub x: Buf,
    /// [taps, cols], this row's first.
    pub base: VectorId,
    /// [rows, at least first + taps * groups]: `dynamic` from column `first` on.
    pub coefficients: Buf,
    /// Column of `coefficients` that those of this convolution begin at.
    pub first: usize,
    /// Rows that are read, at most [`BlockConv::MAX_TAPS`].
    pub taps: usize,
    /// Columns that share their coefficients: a multiple of 16.
    pub group: usize,
    /// [rows, cols], numbers or an activation.
    pub out: Buf,
}

impl BlockConv {
    /// As many rows as a pass knows before each.
    pub const MAX_TAPS: usize = CONV_REACH + 1;

    /// The rows that `row` reads, its own first.
    pub(crate) fn rows(&self, pass: &Pass<'_>, row: usize) -> [Option<usize>; Self::MAX_TAPS] {
        std::array::from_fn(|t| match t {
            0 => Some(row),
            _ if t >= self.taps => None,
            _ => match pass.taps[row][CONV_REACH - t] {
                Tap::Row(before) => Some(before as usize),
                Tap::Nothing | Tap::Committed(_) => None,
            },
        })
    }
}

/// A convolution whose output is added to the residual stream, and the norm behind it:
/// `x += conv; out = rms(x) * weight`.
#[derive(Clone, Copy, Debug)]
pub struct ConvNorm {
    /// The convolution; its output is for who has no kernel for both.
    pub conv: BlockConv,
    /// [rows, cols]: the residual stream.
    pub x: Buf,
    /// Of the norm.
    pub weight: VectorId,
    /// Of the norm.
    pub eps: f32,
    /// [rows, cols].
    pub out: Buf,
}

impl ConvNorm {
    /// What it computes, in plain ops.
    pub fn expand(&self) -> [Op; 2] {
        let Self { conv, x, weight, eps, out } = *self;
        let norm = Op::Norm { x, add: Some(conv.out), weight, eps, out, offset: 0, tap: None };
        [Op::BlockConv(conv), norm]
    }
}

/// The best tokens of each row with logits. A row of `buf` is `count` ids (as numbers, so that one
/// read brings all; exact below 2^24), `count` log-probabilities, best first and of equals the
/// lowest id, and `count` scores of every candidate after each candidate of the row before.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    /// [chosen, count * (2 + count)].
    pub buf: Buf,
    /// Of a row.
    pub count: usize,
}

/// How well candidates follow each other: for candidate `a` of the row before (or the token before,
/// for all `a`, where that is known) and candidate `b`,
/// `score[a][b] = sum over r of predecessors[a][r] * gates[r] * successors[b][r]`.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// Their ids are read, their scores are written.
    pub candidates: Candidates,
    /// [tokens, rank]: a table.
    pub predecessors: MatrixId,
    /// [tokens, rank]: a table.
    pub successors: MatrixId,
    /// [chosen, rank]; 1 where there are none.
    pub gates: Option<Buf>,
    /// Columns of both tables.
    pub rank: usize,
}

/// What the candidates of a row follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The candidates of this chosen row.
    Candidates(usize),
    /// A token that is known.
    Token(u32),
}

impl Pass<'_> {
    /// What the candidates of the `i`th chosen row follow: those of the chosen row before it, where
    /// that is the row before on its path; else that row's token; in the first row of a block its
    /// own, since there the row stands for what comes after it.
    pub(crate) fn before(&self, i: usize) -> Before {
        let row = self.chosen[i] as usize;
        match self.taps[row][CONV_REACH - 1] {
            Tap::Row(before) if i > 0 && self.chosen[i - 1] == before => Before::Candidates(i - 1),
            Tap::Row(before) => Before::Token(self.tokens[before as usize]),
            Tap::Nothing | Tap::Committed(_) => Before::Token(self.tokens[row]),
        }
    }
}

impl Plan {
    /// Declares room for the best `count` tokens of each row with logits.
    pub fn candidates(&mut self, name: &str, count: usize) -> Candidates {
        let buf = self.buffer_of(name, Kind::Numbers, count * (2 + count), Extent::Chosen);
        Candidates { buf, count }
    }
}
