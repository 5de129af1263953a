//! Tiles of the formats in `kernels/tiles_grouped.cuh`, which has their layouts.

use super::{TILE_COLS, TILE_ROWS, block, blocks_of, pack_nibbles, put};
use formats::BlockType;
use formats::blocks::{FP4, FP8, INT4, INT4_32, IQ2_S, IQ3_S, IQ3_XXS, IQ4_XS, MXFP4, NVFP4};
use formats::blocks::{Half, integers::Scale};

type Rows<'a> = [&'a [u8]; TILE_ROWS];

/// A lane's rows, g and g + 8, and its columns of a group.
fn place(lane: usize, upper: usize, group: usize) -> (usize, usize) {
    (lane / 4 + 8 * upper, group * 32 + lane % 4 * 8)
}

/// One byte of every weight of the tile, as `Q8_0` has them.
pub(super) fn pack_bytes(bytes: &[[u8; TILE_COLS]; TILE_ROWS], out: &mut [u8]) {
    for group in 0..8 {
        for lane in 0..32 {
            let (row, col) = place(lane, 0, group);
            let to = &mut out[group * 512 + lane * 16..][..16];
            for (i, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let at = col + 2 * i;
                *to = [
                    bytes[row][at],
                    bytes[row][at + 1],
                    bytes[row + 8][at],
                    bytes[row + 8][at + 1],
                ];
            }
        }
    }
}

pub(super) fn pack_fp8(rows: &Rows<'_>, out: &mut [u8]) {
    let mut bytes = [[0; TILE_COLS]; TILE_ROWS];
    out[4096..].fill(0);
    for (r, row) in rows.iter().enumerate() {
        for (i, block) in blocks_of::<FP8>(row) {
            bytes[r][i * 128..][..128].copy_from_slice(&block.qs);
            out[4096 + r * 8 + i * 4..][..4].copy_from_slice(&block.scale.0);
        }
    }
    pack_bytes(&bytes, out);
}

/// Words of eight columns: `word` makes one of eight codes.
fn pack_words(
    codes: &[[u8; TILE_COLS]; TILE_ROWS],
    out: &mut [u8],
    word: impl Fn([u32; 8]) -> u32,
) {
    for chunk in 0..4 {
        for lane in 0..32 {
            for n in 0..4 {
                let (row, col) = place(lane, n % 2, 2 * chunk + n / 2);
                let eight = std::array::from_fn(|i| u32::from(codes[row][col + i]));
                put(&mut out[chunk * 512..], lane * 4 + n, word(eight));
            }
        }
    }
}

/// Two codes of a byte: the first where an 8-bit float has its sign, two bits of exponent and one
/// of mantissa, the second between.
fn fp4_byte(first: u32, second: u32) -> u32 {
    (first & 8) << 4 | (first & 7) << 2 | (second & 8) << 2 | (second & 4) << 4 | second & 3
}

/// Codes, scales of 16 columns, and scales of 128.
type Fp4Row = ([u8; TILE_COLS], [u8; 16], [f32; 2]);

pub(super) fn pack_fp4(ty: BlockType, rows: &Rows<'_>, out: &mut [u8]) {
    let rows: [Fp4Row; TILE_ROWS] = rows.map(|row| fp4_row(ty, row));
    pack_words(&rows.map(|row| row.0), out, |c| {
        (0..4).fold(0, |word, i| word | fp4_byte(c[i], c[i + 4]) << (8 * i))
    });
    for (r, (_, scales, singles)) in rows.iter().enumerate() {
        out[2048 + r * 16..][..16].copy_from_slice(scales);
        for (i, single) in singles.iter().enumerate() {
            out[2304 + r * 8 + i * 4..][..4].copy_from_slice(&single.to_le_bytes());
        }
    }
}

fn fp4_row(ty: BlockType, row: &[u8]) -> Fp4Row {
    let (mut codes, mut scales, mut singles) = ([0; TILE_COLS], [0; 16], [0.0; 2]);
    match ty {
        BlockType::FP4 => {
            for (i, block) in blocks_of::<FP4>(row) {
                codes[i * 128..][..128].copy_from_slice(&block.codes());
                scales[i * 8..][..8].copy_from_slice(&block.d);
                singles[i] = block.scale.get();
            }
        }
        BlockType::NVFP4 => {
            singles = [1.0; 2];
            for (i, block) in blocks_of::<NVFP4>(row) {
                codes[i * 64..][..64].copy_from_slice(&block.codes());
                // ggml reads the NaN as zero and knows no sign.
                let unsigned = block.d.map(|d| if d == 0x7f { 0 } else { (d & 0x7f).min(0x7e) });
                scales[i * 4..][..4].copy_from_slice(&unsigned);
            }
        }
        _ => {
            // Powers of two as 8-bit floats below the largest of 128 columns.
            let exponents: Vec<i32> =
                blocks_of::<MXFP4>(row).map(|(_, block)| i32::from(block.e)).collect();
            let largest = |half: &[i32]| half.iter().copied().max().unwrap_or(0);
            for (i, block) in blocks_of::<MXFP4>(row) {
                let nibbles = formats::blocks::legacy::nibbles(&block.qs);
                codes[i * 32..][..32].copy_from_slice(&nibbles);
                let half = &exponents[i / 4 * 4..exponents.len().min(i / 4 * 4 + 4)];
                // 2^8 is the largest power; a subnormal 2^-9 the smallest.
                let power = i32::from(block.e) - largest(half) + 8;
                let scale = match power {
                    -6.. => ((power + 7) << 3) as u8,
                    -9..=-7 => 1 << (power + 9),
                    _ => 0,
                };
                scales[i * 2..][..2].fill(scale);
                singles[i / 4] = f64::from(largest(half) - 127 - 8).exp2() as f32;
            }
        }
    }
    (codes, scales, singles)
}

/// `words`: headers of a row.
fn pack_int4<const WORDS: usize>(
    rows: [([u8; TILE_COLS], [Scale; WORDS]); TILE_ROWS],
    out: &mut [u8],
) {
    pack_nibbles(&rows.map(|row| row.0), out);
    for (r, (_, heads)) in rows.iter().enumerate() {
        for (i, head) in heads.iter().enumerate() {
            // What stands beside scale and zero is nobody's.
            let head = Scale::new(head.scale(), head.zero()).expect("a scale of a header");
            out[2048 + (r * WORDS + i) * 4..][..4].copy_from_slice(&head.0);
        }
    }
}

pub(super) fn pack_int4_128(rows: &Rows<'_>, out: &mut [u8]) {
    let row = |row: &[u8]| {
        let (mut codes, mut heads) = ([0; TILE_COLS], [Scale([0; 4]); 2]);
        for (i, block) in blocks_of::<INT4>(row) {
            codes[i * 128..][..128].copy_from_slice(&block.codes());
            heads[i] = block.head;
        }
        (codes, heads)
    };
    pack_int4(rows.map(row), out);
}

pub(super) fn pack_int4_32(rows: &Rows<'_>, out: &mut [u8]) {
    let row = |row: &[u8]| {
        let (mut codes, mut heads) = ([0; TILE_COLS], [Scale([0; 4]); 8]);
        for (i, block) in blocks_of::<INT4_32>(row) {
            codes[i * 32..][..32].copy_from_slice(&block.codes());
            heads[i] = block.head;
        }
        (codes, heads)
    };
    pack_int4(rows.map(row), out);
}

pub(super) fn pack_iq4(rows: &Rows<'_>, out: &mut [u8]) {
    let nibbles = |row: &[u8]| {
        let mut codes = [0; TILE_COLS];
        if let Some(b) = block::<IQ4_XS>(row) {
            for (codes, qs) in codes.as_chunks_mut::<32>().0.iter_mut().zip(b.qs.as_chunks().0) {
                *codes = formats::blocks::legacy::nibbles(qs);
            }
        }
        codes
    };
    pack_words(&rows.map(nibbles), out, |c| (0..8).fold(0, |word, i| word | c[i] << (4 * i)));
    for (r, row) in rows.iter().enumerate() {
        let (scales, d) =
            block::<IQ4_XS>(row).map_or(([0; 8], Half([0; 2])), |b| (b.scales(), b.d));
        out[2048 + r * 8..][..8].copy_from_slice(&scales.map(|s| s as u8));
        out[2176 + r * 2..][..2].copy_from_slice(&d.0);
    }
}

/// Signs of every eight columns of a row: [row][32].
fn pack_signs(signs: &[[u8; 32]; TILE_ROWS], out: &mut [u8]) {
    for lane in 0..32 {
        for chunk in 0..4 {
            let mut word = 0;
            for n in 0..4 {
                let (row, col) = place(lane, n % 2, 2 * chunk + n / 2);
                for bit in 0..8 {
                    let sign = u32::from(signs[row][col / 8] >> bit & 1);
                    word |= sign << (16 * (bit % 2) + 4 * n + bit / 2);
                }
            }
            put(&mut out[chunk * 128..], lane, word);
        }
    }
}

/// Index, signs, nibbles of scales and scale of a row, of a type that takes four at a time.
type Iq3Row = ([u16; 64], [u8; 32], [u8; 4], Half);

fn iq3_row(ty: BlockType, row: &[u8]) -> Iq3Row {
    let nibbles = |scales: [i8; 8]| -> [u8; 4] {
        std::array::from_fn(|i| (scales[2 * i] / 2) as u8 | ((scales[2 * i + 1] / 2) as u8) << 4)
    };
    let none = ([0; 64], [0; 32], [0; 4], Half([0; 2]));
    if ty == BlockType::IQ3_S {
        block::<IQ3_S>(row).map_or(none, |b| (b.indices(), b.signs, b.scales, b.d))
    } else {
        let found = block::<IQ3_XXS>(row);
        found.map_or(none, |b| (b.qs.map(u16::from), b.signs(), nibbles(b.scales()), b.d))
    }
}

pub(super) fn pack_iq3(ty: BlockType, rows: &Rows<'_>, out: &mut [u8]) {
    let rows = rows.map(|row| iq3_row(ty, row));
    pack_signs(&rows.map(|row| row.1), out);
    let (ninths, scales) = if ty == BlockType::IQ3_S { (128, 1664) } else { (0, 1536) };
    out[1536..][..ninths].fill(0);
    for lane in 0..32 {
        for (chunk, n) in (0..4).flat_map(|chunk| (0..4).map(move |n| (chunk, n))) {
            let (k, upper) = (n / 2, n % 2);
            let (row, col) = place(lane, upper, 2 * chunk + k);
            for s in 0..2 {
                let index = rows[row].0[col / 4 + s];
                out[512 + chunk * 256 + lane * 8 + upper * 4 + 2 * k + s] = index as u8;
                if ninths > 0 {
                    let bit = 4 * upper + 2 * k + s;
                    out[1536 + lane * 4 + chunk] |= ((index >> 8) as u8) << bit;
                }
            }
        }
    }
    for (r, (_, _, nibbles, d)) in rows.iter().enumerate() {
        out[scales + r * 4..][..4].copy_from_slice(nibbles);
        out[scales + 64 + r * 2..][..2].copy_from_slice(&d.0);
    }
}

pub(super) fn pack_iq2(rows: &Rows<'_>, out: &mut [u8]) {
    let blocks = rows.map(block::<IQ2_S>);
    pack_signs(&blocks.map(|b| b.map_or([0; 32], |b| b.signs)), out);
    out[1024..1152].fill(0);
    let indices = blocks.map(|b| b.map_or([0; 32], IQ2_S::indices));
    for lane in 0..32 {
        for (chunk, n) in (0..4).flat_map(|chunk| (0..4).map(move |n| (chunk, n))) {
            let (row, col) = place(lane, n % 2, 2 * chunk + n / 2);
            let index = indices[row][col / 8];
            out[512 + chunk * 128 + lane * 4 + n] = index as u8;
            out[1024 + lane * 4 + chunk] |= ((index >> 8) as u8) << (2 * n);
        }
    }
    for (r, b) in blocks.iter().enumerate() {
        let (scales, d) = b.map_or(([0; 8], Half([0; 2])), |b| (b.scales, b.d));
        out[1152 + r * 8..][..8].copy_from_slice(&scales);
        out[1280 + r * 2..][..2].copy_from_slice(&d.0);
    }
}
