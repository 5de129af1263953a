#!/usr/bin/env python3
"""Makes the codebooks of ggml's IQ types: blocks/codebooks.rs of formats, kernels/codebooks.cuh.

usage: make-codebooks.py

The numbers are facts of the formats, taken from the `gguf` package (`pip install gguf`), which has
them as tables. In every table entries ascend when their digits are read as a number, the first
element's digit the lowest; so a table is a set, and a bitmap with a bit for every number says all
of it. Both files have the bitmaps, in hexadecimal, and make tables of them.
"""
import pathlib

import numpy as np
from gguf import quants

CODEBOOKS = "IQ3_XXS IQ3_S IQ2_XXS IQ2_XS IQ2_S IQ1_S".split()
ROOT = pathlib.Path(__file__).parent.parent / "crates"
WIDTH = 92


def bitmap(name):
    """Entries, digits of an entry, base, and the bitmap as lines of hexadecimal."""
    kind = getattr(quants, name)
    kind.init_grid()
    digits = np.searchsorted(kind.grid_map, kind.grid.reshape(kind.grid_shape))
    base, length = len(kind.grid_map), digits.shape[1]
    numbers = (digits * base ** np.arange(length)).sum(axis=1)
    assert (np.diff(numbers) > 0).all(), name
    bits = np.zeros(-(-base**length // 8) * 8, np.uint8)
    bits[numbers] = 1
    text = np.packbits(bits, bitorder="little").tobytes().hex()
    return len(numbers), length, base, [text[i:i + WIDTH] for i in range(0, len(text), WIDTH)]


def main():
    rust = """//! The codebooks of ggml's IQ types: which runs of 4 or 8 digits a block can choose from. Written
//! by `scripts/make-codebooks.py`, which says where the numbers come from.

/// The entries of a bitmap in hexadecimal: the digits in base `base` of every number whose bit is
/// set, the lowest digit first.
const fn expand<const LEN: usize, const COUNT: usize>(
    base: usize,
    hex: &str,
) -> [[u8; LEN]; COUNT] {
    let (hex, mut entries) = (hex.as_bytes(), [[0; LEN]; COUNT]);
    let (mut count, mut number) = (0, 0);
    while number / 8 < hex.len() / 2 {
        // The digit of a byte's low four bits comes second.
        let digit = hex[number / 8 * 2 + 1 - number % 8 / 4];
        let nibble = if digit >= b'a' { digit - b'a' + 10 } else { digit - b'0' };
        if nibble >> (number % 4) & 1 == 1 {
            let (mut rest, mut i) = (number, 0);
            while i < LEN {
                entries[count][i] = (rest % base) as u8;
                rest /= base;
                i += 1;
            }
            count += 1;
        }
        number += 1;
    }
    assert!(count == COUNT);
    entries
}
"""
    cuda = """// The codebooks of ggml's IQ types as bitmaps: bit n is set where the number n, written in base 3
// or 8 with the first element's digit the lowest, is an entry. Written by
// scripts/make-codebooks.py, as crates/formats/src/blocks/codebooks.rs is; a test of
// src/cuda/ops/embed.rs compares the two.
#pragma once

// Entries with a digit every four bits, the first element's the lowest.
template <class Word, int COUNT> struct Book {
  Word entries[COUNT];
};
template <class Word, int COUNT>
constexpr Book<Word, COUNT> expand(int base, int length, const char* hex) {
  Book<Word, COUNT> book = {};
  int count = 0;
  for (int number = 0; hex[number / 8 * 2]; number++) {
    const char digit = hex[number / 8 * 2 + 1 - number % 8 / 4];
    const int nibble = digit >= 'a' ? digit - 'a' + 10 : digit - '0';
    if (!(nibble >> (number % 4) & 1)) continue;
    int rest = number;
    for (int i = 0; i < length; i++) {
      book.entries[count] |= (Word)(rest % base) << (4 * i);
      rest /= base;
    }
    count++;
  }
  return book;
}
"""
    for name in CODEBOOKS:
        count, length, base, lines = bitmap(name)
        text = "\\\n     ".join(lines)
        rust += f"""
/// Of `{name}`, digits 0 to {base - 1}.
pub static {name}: [[u8; {length}]; {count}] = expand(
    {base},
    "{text}",
);
"""
        word = "unsigned short" if length == 4 else "unsigned"
        quoted = "\n".join(f'    "{line}"' for line in lines)
        cuda += f"""
__device__ constexpr Book<{word}, {count}> {name}_BOOK =
    expand<{word}, {count}>({base}, {length},
{quoted});
"""
    (ROOT / "formats/src/blocks/codebooks.rs").write_text(rust)
    (ROOT / "compute/kernels/codebooks.cuh").write_text(cuda)


main()
