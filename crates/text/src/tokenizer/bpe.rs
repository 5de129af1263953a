//! Byte-level BPE: GPT-2's spelling of bytes as characters, and the merging of one piece into tokens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::vocabulary::TokenizerError as Error;

/// The character that spells a byte in a vocabulary: itself if printable, else one from U+0100 on.
pub(super) fn byte_char(byte: u8) -> char {
    let unprintable = |b: u8| matches!(b, 0..=32 | 127..=160 | 173);
    if unprintable(byte) {
        let rank = (0..byte).filter(|b| unprintable(*b)).count() as u32;
        char::from_u32(256 + rank).expect("U+0100 to U+0143 are characters")
    } else {
        byte as char
    }
}

/// The bytes a token spells; a token that is not spelt in bytes stands for its own text.
pub(super) fn spelt_bytes(token: &str, bytes: &HashMap<char, u8>) -> Vec<u8> {
    let spelt: Option<Vec<u8>> = token.chars().map(|c| bytes.get(&c).copied()).collect();
    spelt.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The merge rules of a vocabulary.
pub(super) struct Bpe {
    /// Byte -> its token.
    byte_ids: [u32; 256],
    /// (left, right) -> (rank, merged token). The lowest rank goes first.
    merges: HashMap<(u32, u32), (u32, u32)>,
}

/// A token of the piece being merged, in a list linked by index.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32, // GONE once merged into its left neighbour
    prev: u32,
    next: u32,
}

const GONE: u32 = u32::MAX;
const NONE: u32 = u32::MAX;

/// Memory that merging reuses from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// (rank, index of the left symbol, left token, right token); stale once either token has changed.
    queue: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

impl Bpe {
    /// Resolves the rules `left right` into ids; `id` gives the id of a token that text may become.
    pub(super) fn new(rules: &[String], id: impl Fn(&str) -> Option<u32>) -> Result<Self, Error> {
        let mut byte_ids = [0; 256];
        for (byte, byte_id) in (0..=255).zip(&mut byte_ids) {
            *byte_id = id(byte_char(byte).encode_utf8(&mut [0; 4])).ok_or(Error::MissingByte(byte))?;
        }
        let mut merges = HashMap::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let wrong = |problem| Error::Merge { index, merge: rule.clone(), problem };
            let (left, right) = rule.split_once(' ').ok_or_else(|| wrong("is not two tokens"))?;
            let known = |token: &str| id(token).ok_or_else(|| wrong("names a token that text cannot become"));
            let merged = known(&format!("{left}{right}"))?;
            if merges.insert((known(left)?, known(right)?), (index as u32, merged)).is_some() {
                return Err(wrong("stands twice"));
            }
        }
        Ok(Self { byte_ids, merges })
    }

    /// Appends the tokens of `piece`: of all adjacent pairs the one of lowest rank is merged, the leftmost first,
    /// until none is left.
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        let Scratch { symbols, queue } = scratch;
        symbols.clear();
        queue.clear();
        let last = piece.len().saturating_sub(1) as u32;
        symbols.extend(piece.iter().zip(0u32..).map(|(byte, at)| Symbol {
            id: self.byte_ids[usize::from(*byte)],
            prev: at.wrapping_sub(1), // NONE for the first
            next: if at == last { NONE } else { at + 1 },
        }));
        for at in 0..last {
            self.enqueue(symbols, queue, at);
        }
        while let Some(Reverse((_, at, left, right))) = queue.pop() {
            let Symbol { id, prev, next } = symbols[at as usize];
            if id != left || next == NONE || symbols[next as usize].id != right {
                continue;
            }
            let after = symbols[next as usize].next;
            symbols[next as usize].id = GONE;
            symbols[at as usize] = Symbol { id: self.merges[&(left, right)].1, prev, next: after };
            if after != NONE {
                symbols[after as usize].prev = at;
                self.enqueue(symbols, queue, at);
            }
            if prev != NONE {
                self.enqueue(symbols, queue, prev);
            }
        }
        ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|id| *id != GONE));
    }

    /// Queues the pair that starts at `at`, if it merges.
    fn enqueue(&self, symbols: &[Symbol], queue: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>, at: u32) {
        let Symbol { id: left, next, .. } = symbols[at as usize];
        let right = symbols[next as usize].id;
        if let Some((rank, _)) = self.merges.get(&(left, right)) {
            queue.push(Reverse((*rank, at, left, right)));
        }
    }
}
