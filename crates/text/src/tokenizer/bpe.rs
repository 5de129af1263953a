//! Byte-level BPE: GPT-2's spelling of bytes as characters, and the merging of one piece into
//! tokens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

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
    /// Left and right token -> (rank, merged token). The lowest rank goes first.
    merges: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
}

/// Two tokens as one key.
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Spreads pairs, and ranks, by one multiplication. The rules come with the model, so nobody can
/// choose pairs that collide.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
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

/// Pieces longer than this are merged by [`Bpe::merge_long`]: in time that grows as they do, where
/// one queue of all pairs has to be put in order. Words are shorter, and faster with the queue.
const LONG: usize = 1024;

/// Memory that merging reuses from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// (rank, index of the left symbol, left token, right token); stale once either token has
    /// changed.
    queue: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

/// Pairs of a long piece that wait to be merged, by rank.
#[derive(Default)]
struct Waiting {
    pairs: HashMap<u32, Places, BuildHasherDefault<PairHasher>>,
    /// Ranks that have places, the lowest first.
    ranks: BinaryHeap<Reverse<u32>>,
}

/// Where a pair stands: indices of its left symbols, stale once either token has changed.
struct Places {
    left: u32,
    right: u32,
    at: Vec<u32>,
}

impl Bpe {
    /// Resolves the rules `left right` into ids; `id` gives the id of a token that text may become.
    pub(super) fn new(rules: &[String], id: impl Fn(&str) -> Option<u32>) -> Result<Self, Error> {
        let mut byte_ids = [0; 256];
        for (byte, byte_id) in (0..=255).zip(&mut byte_ids) {
            *byte_id =
                id(byte_char(byte).encode_utf8(&mut [0; 4])).ok_or(Error::MissingByte(byte))?;
        }
        let mut merges =
            HashMap::with_capacity_and_hasher(rules.len(), BuildHasherDefault::default());
        for (index, rule) in rules.iter().enumerate() {
            let wrong = |problem| Error::Merge { index, merge: rule.clone(), problem };
            let (left, right) = rule.split_once(' ').ok_or_else(|| wrong("is not two tokens"))?;
            let known = |token: &str| {
                id(token).ok_or_else(|| wrong("names a token that text cannot become"))
            };
            let merged = known(&format!("{left}{right}"))?;
            if merges.insert(pair(known(left)?, known(right)?), (index as u32, merged)).is_some() {
                return Err(wrong("stands twice"));
            }
        }
        Ok(Self { byte_ids, merges })
    }

    /// Appends the tokens of `piece`: of all adjacent pairs the one of lowest rank is merged, the
    /// leftmost first, until none is left.
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
        match piece.len() > LONG {
            true => self.merge_long(symbols),
            false => self.merge_short(symbols, queue),
        }
        ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|id| *id != GONE));
    }

    fn merge_short(
        &self,
        symbols: &mut [Symbol],
        queue: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
    ) {
        for at in 0..symbols.len() as u32 {
            self.enqueue(symbols, queue, at);
        }
        while let Some(Reverse((_, at, left, right))) = queue.pop() {
            if is_pair(symbols, at, left, right) {
                let prev = self.merge(symbols, at, left, right);
                self.enqueue(symbols, queue, at);
                if prev != NONE {
                    self.enqueue(symbols, queue, prev);
                }
            }
        }
    }

    /// The same merges in the same order. Places of a pair are found from left to right, so that
    /// sorting them is a merge of few runs, and each pair is put in order on its own.
    fn merge_long(&self, symbols: &mut [Symbol]) {
        let mut waiting = Waiting::default();
        for at in 0..symbols.len() as u32 {
            self.note(symbols, &mut waiting, at);
        }
        while let Some(Reverse(rank)) = waiting.ranks.pop() {
            let Some(Places { left, right, at: mut places }) = waiting.pairs.remove(&rank) else {
                continue;
            };
            places.sort();
            for (i, at) in places.iter().copied().enumerate() {
                if !is_pair(symbols, at, left, right) {
                    continue;
                }
                let prev = self.merge(symbols, at, left, right);
                let before =
                    if prev == NONE { None } else { self.note(symbols, &mut waiting, prev) };
                let after = self.note(symbols, &mut waiting, at);
                // A new pair may go first, in vocabularies that make one token in two ways; the
                // rest waits.
                if before.into_iter().chain(after).any(|new| new < rank) {
                    places.drain(..=i);
                    let rest =
                        waiting.pairs.entry(rank).or_insert(Places { left, right, at: Vec::new() });
                    rest.at.append(&mut places);
                    waiting.ranks.push(Reverse(rank));
                    break;
                }
            }
        }
    }

    /// Merges the pair at `at`; the symbol before it.
    fn merge(&self, symbols: &mut [Symbol], at: u32, left: u32, right: u32) -> u32 {
        let Symbol { prev, next, .. } = symbols[at as usize];
        let after = symbols[next as usize].next;
        symbols[next as usize].id = GONE;
        symbols[at as usize] = Symbol { id: self.merges[&pair(left, right)].1, prev, next: after };
        if after != NONE {
            symbols[after as usize].prev = at;
        }
        prev
    }

    /// The pair that starts at `at` and its rank, if it merges.
    fn find(&self, symbols: &[Symbol], at: u32) -> Option<(u32, u32, u32)> {
        let Symbol { id: left, next, .. } = symbols[at as usize];
        let right = symbols.get(next as usize)?.id;
        self.merges.get(&pair(left, right)).map(|(rank, _)| (*rank, left, right))
    }

    /// Queues the pair that starts at `at`, if it merges.
    fn enqueue(
        &self,
        symbols: &[Symbol],
        queue: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
        at: u32,
    ) {
        if let Some((rank, left, right)) = self.find(symbols, at) {
            queue.push(Reverse((rank, at, left, right)));
        }
    }

    /// Notes the pair that starts at `at`, if it merges; its rank.
    fn note(&self, symbols: &[Symbol], waiting: &mut Waiting, at: u32) -> Option<u32> {
        let (rank, left, right) = self.find(symbols, at)?;
        let places = waiting.pairs.entry(rank).or_insert_with(|| {
            waiting.ranks.push(Reverse(rank));
            Places { left, right, at: Vec::new() }
        });
        places.at.push(at);
        Some(rank)
    }
}

/// Whether a pair still stands at `at`.
fn is_pair(symbols: &[Symbol], at: u32, left: u32, right: u32) -> bool {
    let Symbol { id, next, .. } = symbols[at as usize];
    id == left && symbols.get(next as usize).is_some_and(|next| next.id == right)
}
