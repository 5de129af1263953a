//! Weights of a file as tiles of 16 rows and 256 columns, in the order the matrix instructions read
//! them. The layout of each format stands in `kernels/tiles.cuh`; nothing here but the order of
//! bits differs from the file, except for types that have no tiles of their own. A matrix is tiles
//! [experts][rows / 16][cols / 256]; what is outside of it is zero.

use crate::backend::Matrix;
use formats::BlockType;
use formats::blocks::{self, Half, IQ3_S, IQ4_NL, IQ4_XS, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0};
use half::f16;
use std::{array, thread};

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of a tile.
pub(crate) const TILE_COLS: usize = 256;

/// What a tile holds. The numbers are those of `TileFormat` in `kernels/tiles.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub(crate) enum TileFormat {
    Q4_K = 0,
    Q5_K = 1,
    Q6_K = 2,
    Q8_0 = 3,
    F16 = 4,
}

impl TileFormat {
    /// The tiles a type is packed into: its own; `Q8_0` for other types of small integers and one
    /// scale per 32 (exact but for the scales of
    /// `IQ3_S` and `IQ4_XS`, which are rounded to f16); `F16` for the
    /// rest.
    pub(crate) const fn of(ty: BlockType) -> Self {
        match ty {
            BlockType::Q4_K => Self::Q4_K,
            BlockType::Q5_K => Self::Q5_K,
            BlockType::Q6_K => Self::Q6_K,
            BlockType::Q8_0
            | BlockType::Q4_0
            | BlockType::Q5_0
            | BlockType::IQ3_S
            | BlockType::IQ4_NL
            | BlockType::IQ4_XS => Self::Q8_0,
            BlockType::F32
            | BlockType::F16
            | BlockType::BF16
            | BlockType::Q4_1
            | BlockType::Q5_1
            | BlockType::Q2_K
            | BlockType::Q3_K => Self::F16,
        }
    }

    /// Bytes of a tile.
    pub(crate) const fn tile_bytes(self) -> usize {
        match self {
            Self::Q4_K => 2304,
            Self::Q5_K => 2816,
            Self::Q6_K => 3360,
            Self::Q8_0 => 4352,
            Self::F16 => 8192,
        }
    }
}

/// Bytes of the tiles of 16 rows.
pub(crate) const fn row_tile_bytes(format: TileFormat, cols: usize) -> usize {
    cols.div_ceil(TILE_COLS) * format.tile_bytes()
}

/// Bytes of a packed matrix.
pub(crate) const fn packed_bytes(
    format: TileFormat,
    experts: usize,
    rows: usize,
    cols: usize,
) -> usize {
    experts * rows.div_ceil(TILE_ROWS) * row_tile_bytes(format, cols)
}

/// Packs the row tiles from number `first` on, counted through all experts, into `out`, which is
/// whole row tiles. On all processors.
pub(crate) fn pack(m: &Matrix<'_>, first: usize, out: &mut [u8]) {
    let bytes = row_tile_bytes(TileFormat::of(m.ty), m.cols);
    let count = out.len() / bytes;
    let tiles = m.experts * m.rows.div_ceil(TILE_ROWS);
    assert!(
        out.len().is_multiple_of(bytes) && first + count <= tiles,
        "{count} row tiles from {first} of {tiles}"
    );
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = count.div_ceil(threads).max(1);
    let pack_from = |first: usize, out: &mut [u8]| {
        for (i, out) in out.chunks_exact_mut(bytes).enumerate() {
            pack_row_tile(m, first + i, out);
        }
    };
    if each == count {
        return pack_from(first, out);
    }
    thread::scope(|scope| {
        for (i, out) in out.chunks_mut(each * bytes).enumerate() {
            scope.spawn(move || pack_from(first + i * each, out));
        }
    });
}

/// Packs 16 rows.
fn pack_row_tile(m: &Matrix<'_>, index: usize, out: &mut [u8]) {
    let format = TileFormat::of(m.ty);
    let tiles = m.rows.div_ceil(TILE_ROWS);
    let (expert, first) = (index / tiles, index % tiles * TILE_ROWS);
    let row_bytes = m.ty.bytes_for(m.cols).expect("rows of whole blocks");
    for (tile, out) in out.chunks_exact_mut(format.tile_bytes()).enumerate() {
        let cols = (m.cols - tile * TILE_COLS).min(TILE_COLS);
        let begin = m.ty.bytes_for(tile * TILE_COLS).expect("tiles of whole blocks");
        let len = m.ty.bytes_for(cols).expect("tiles of whole blocks");
        // Rows that do not exist are empty.
        let rows: [&[u8]; TILE_ROWS] = array::from_fn(|r| match first + r < m.rows {
            true => &m.bytes[(expert * m.rows + first + r) * row_bytes + begin..][..len],
            false => &[],
        });
        match format {
            TileFormat::Q4_K => pack_q4_k(&rows, out),
            TileFormat::Q5_K => pack_q5_k(&rows, out),
            TileFormat::Q6_K => pack_q6_k(&rows, out),
            TileFormat::Q8_0 => pack_q8_0(m.ty, &rows, out),
            TileFormat::F16 => pack_f16(m.ty, &rows, cols, out),
        }
    }
}

/// A number for every weight of a tile: [row][column].
type Quants<T> = [[T; TILE_COLS]; TILE_ROWS];

/// The one block of a row in a tile, if the row exists.
fn block<B: bytemuck::Pod>(row: &[u8]) -> Option<&B> {
    bytemuck::cast_slice(row).first()
}

fn pack_q4_k(rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    let quants = rows.map(|row| block::<Q4_K>(row).map_or([0; 256], Q4_K::quants));
    pack_nibbles(&quants, out);
    pack_headers(rows, &mut out[2048..2304]);
}

fn pack_q5_k(rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    let quants = rows.map(|row| block::<Q5_K>(row).map_or([0; 256], Q5_K::quants));
    pack_nibbles(&quants, out);
    pack_headers(rows, &mut out[2048..2304]);
    for lane in 0..32 {
        for chunk in 0..4 {
            let mut word = 0;
            for i in 0..4 {
                for (h, bit) in [(0, 0), (1, 16)] {
                    let [low, low8, high, high8] =
                        pick(&quants, chunk, lane, i, h).map(|q| u32::from(q >> 4));
                    // Row g + 8 stands 8 bits further, around the end of the word.
                    word |= low << (bit + 4 + i) | high << (bit + 8 + i);
                    word |= low8 << (bit + 12 + i) | high8 << ((bit + 16 + i) % 32);
                }
            }
            put(&mut out[2304..], lane * 4 + chunk, word);
        }
    }
}

fn pack_q6_k(rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    let quants =
        rows.map(|row| block::<Q6_K>(row).map_or([0; 256], |b| b.quants().map(|q| (q + 32) as u8)));
    pack_nibbles(&quants, out);
    for chunk in 0..4 {
        for lane in 0..32 {
            for s in 0..2 {
                let mut word = 0;
                for r in 0..2 {
                    for (h, bit) in [(0, 0), (1, 16)] {
                        let picked = pick(&quants, chunk, lane, 2 * s + r, h);
                        let [low, low8, high, high8] = picked.map(|q| u32::from(q >> 4));
                        word |= low << (bit + 4 + 2 * r) | high << (bit + 8 + 2 * r);
                        word |= low8 << (bit + 12 + 2 * r) | high8 << ((bit + 16 + 2 * r) % 32);
                    }
                }
                put(&mut out[2048 + chunk / 2 * 512..], lane * 4 + chunk % 2 * 2 + s, word);
            }
        }
    }
    for (r, row) in rows.iter().enumerate() {
        let (scales, d) = block::<Q6_K>(row).map_or(([0; 16], Half([0; 2])), |b| (b.scales, b.d));
        out[3072 + r * 16..][..16].copy_from_slice(&scales.map(|s| (s as u8).wrapping_add(128)));
        out[3328 + r * 2..][..2].copy_from_slice(&d.0);
    }
}

fn pack_q8_0(ty: BlockType, rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    let mut quants: Quants<i8> = [[0; TILE_COLS]; TILE_ROWS];
    out[4096..].fill(0);
    for (r, row) in rows.iter().enumerate() {
        let mut group = |i: usize, q: &[i8], d: Half| {
            quants[r][i * 32..][..32].copy_from_slice(q);
            out[4096 + r * 16 + i * 2..][..2].copy_from_slice(&d.0);
        };
        let mut groups = |d: Half, scales: [i8; 8], q: [i8; 256]| {
            for i in 0..8 {
                let d = d.get() * f32::from(scales[i]);
                group(i, &q[i * 32..][..32], Half::new(d.clamp(-65504.0, 65504.0)));
            }
        };
        match ty {
            BlockType::Q8_0 => blocks_of::<Q8_0>(row).for_each(|(i, b)| group(i, &b.qs, b.d)),
            BlockType::Q4_0 => blocks_of::<Q4_0>(row).for_each(|(i, b)| group(i, &b.quants(), b.d)),
            BlockType::Q5_0 => blocks_of::<Q5_0>(row).for_each(|(i, b)| group(i, &b.quants(), b.d)),
            BlockType::IQ4_NL => {
                blocks_of::<IQ4_NL>(row).for_each(|(i, b)| group(i, &b.quants(), b.d))
            }
            BlockType::IQ3_S => {
                blocks_of::<IQ3_S>(row).for_each(|(_, b)| groups(b.d, b.scales(), b.quants()))
            }
            BlockType::IQ4_XS => {
                blocks_of::<IQ4_XS>(row).for_each(|(_, b)| groups(b.d, b.scales(), b.quants()))
            }
            _ => unreachable!("{ty} has no integers and scales per 32"),
        }
    }
    for group in 0..8 {
        for lane in 0..32 {
            let (row, col) = (lane / 4, group * 32 + lane % 4 * 8);
            let to = &mut out[group * 512 + lane * 16..][..16];
            for (i, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let at = col + 2 * i;
                *to = [
                    quants[row][at],
                    quants[row][at + 1],
                    quants[row + 8][at],
                    quants[row + 8][at + 1],
                ]
                .map(|q| (q as u8).wrapping_add(128));
            }
        }
    }
}

fn blocks_of<B: bytemuck::Pod>(row: &[u8]) -> impl Iterator<Item = (usize, &B)> {
    bytemuck::cast_slice(row).iter().enumerate()
}

fn pack_f16(ty: BlockType, rows: &[&[u8]; TILE_ROWS], cols: usize, out: &mut [u8]) {
    let mut numbers = [0f32; TILE_COLS];
    for (r, row) in rows.iter().enumerate() {
        numbers.fill(0.0);
        if !row.is_empty() {
            blocks::decode(ty, row, &mut numbers[..cols]);
        }
        for (i, eight) in numbers.as_chunks::<8>().0.iter().enumerate() {
            let lane = r % 8 * 4 + i % 4;
            let to = &mut out[i / 4 * 1024 + r / 8 * 512 + lane * 16..][..16];
            for (to, v) in to.as_chunks_mut::<2>().0.iter_mut().zip(eight) {
                // A number beyond f16 becomes its largest; clamp keeps a NaN.
                *to = f16::from_f32(v.clamp(-65504.0, 65504.0)).to_le_bytes();
            }
        }
    }
}

/// The four weights that share word `i` (2 s + r) and half `h` of a lane's chunk: rows g and g + 8
/// of the chunk's first 32 columns, then of the others.
fn pick(quants: &Quants<u8>, chunk: usize, lane: usize, i: usize, h: usize) -> [u8; 4] {
    let (g, col) = (lane / 4, chunk * 64 + lane % 4 * 8 + 2 * i + h);
    [quants[g][col], quants[g + 8][col], quants[g][col + 32], quants[g + 8][col + 32]]
}

/// The low four bits of every weight, as `Q4_K`, `Q5_K` and `Q6_K` have them in a tile's first 2048
/// bytes.
fn pack_nibbles(quants: &Quants<u8>, out: &mut [u8]) {
    for chunk in 0..4 {
        for lane in 0..32 {
            for i in 0..4 {
                let [[low, low8, high, high8], [low_b, low8_b, high_b, high8_b]] =
                    [0, 1].map(|h| pick(quants, chunk, lane, i, h).map(|q| u32::from(q & 15)));
                let first = low | high << 4 | low8 << 8 | high8 << 12;
                let second = low_b | high_b << 4 | low8_b << 8 | high8_b << 12;
                put(&mut out[chunk * 512..], lane * 4 + i, first | second << 16);
            }
        }
    }
}

/// d, dmin and the packed scales and mins of each row.
fn pack_headers(rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<16>().0) {
        *out = row.first_chunk().copied().unwrap_or_default();
    }
}

/// Writes word number `index`.
fn put(out: &mut [u8], index: usize, word: u32) {
    out[index * 4..][..4].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::{Random, random_blocks};

    fn half_at(bytes: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
    }

    fn word_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// One weight of a tile, read by the layout that `tiles.cuh` documents.
    fn weight(format: TileFormat, tile: &[u8], row: usize, col: usize) -> f32 {
        let (g, upper) = (row % 8, row / 8);
        let (group, t, s, r, h) = (col / 32, col % 32 / 8, col % 8 / 4, col % 4 / 2, col % 2);
        let (lane, chunk, second) = (4 * g + t, group / 2, group % 2);
        let nibble = || {
            let word = word_at(tile, chunk * 512 + lane * 16 + 4 * (2 * s + r));
            word >> (16 * h + 8 * upper + 4 * second) & 15
        };
        // Where a bit of row g stands, row g + 8 stands after turning the word right by 8.
        let turned = |word: u32| word.rotate_right(8 * upper as u32);
        match format {
            TileFormat::Q4_K | TileFormat::Q5_K => {
                let mut q = nibble();
                if format == TileFormat::Q5_K {
                    let word = turned(word_at(tile, 2304 + lane * 16 + 4 * chunk));
                    q |= (word >> (16 * h + 2 * s + r + 4 + 4 * second) & 1) << 4;
                }
                let header = &tile[2048 + row * 16..][..16];
                let (scales, mins) = blocks::k::unpack_scales(header[4..].try_into().unwrap());
                half_at(header, 0) * f32::from(scales[group]) * q as f32
                    - half_at(header, 2) * f32::from(mins[group])
            }
            TileFormat::Q6_K => {
                let word = turned(word_at(
                    tile,
                    2048 + chunk / 2 * 512 + lane * 16 + chunk % 2 * 8 + 4 * s,
                ));
                let q = nibble() | (word >> (16 * h + 2 * r + 4 + 4 * second) & 3) << 4;
                let scale = i32::from(tile[3072 + row * 16 + col / 16]) - 128;
                half_at(tile, 3328 + 2 * row) * scale as f32 * (q as i32 - 32) as f32
            }
            TileFormat::Q8_0 => {
                let q = tile[group * 512 + lane * 16 + 4 * (2 * s + r) + 2 * upper + h];
                half_at(tile, 4096 + row * 16 + group * 2) * (i32::from(q) - 128) as f32
            }
            TileFormat::F16 => {
                half_at(tile, group * 1024 + upper * 512 + lane * 16 + 2 * (col % 8))
            }
        }
    }

    #[test]
    fn tiles_hold_the_weights_of_the_file() {
        for ty in BlockType::ALL {
            let format = TileFormat::of(ty);
            let (experts, rows) = (3, 21);
            let cols = if ty.block_len() == 256 { 512 } else { 352 };
            let bytes = random_blocks(&mut Random(7), ty, experts * rows * cols);
            let m = Matrix { ty, experts, rows, cols, bytes: &bytes };
            let mut numbers = vec![0f32; experts * rows * cols];
            blocks::decode(ty, &bytes, &mut numbers);

            let mut out = vec![0xaau8; packed_bytes(format, experts, rows, cols)];
            let row_tile = row_tile_bytes(format, cols);
            let (start, rest) = out.split_at_mut(4 * row_tile);
            pack(&m, 0, start);
            pack(&m, 4, rest);

            // Where the scale is rounded, or the product is, f16 has 11 bits.
            let rounded = match ty {
                BlockType::IQ3_S | BlockType::IQ4_XS | BlockType::F32 => 1.0 / 2048.0,
                _ if format == TileFormat::F16 => 1.0 / 2048.0,
                _ => 1e-6,
            };
            for (i, tile) in out.chunks_exact(format.tile_bytes()).enumerate() {
                let (row_tile, col_tile) = (i / cols.div_ceil(256), i % cols.div_ceil(256));
                let (expert, first) = (row_tile / 2, row_tile % 2 * 16);
                for row in 0..16 {
                    for col in 0..256 {
                        let (r, c) = (first + row, col_tile * 256 + col);
                        let inside = r < rows && c < cols;
                        let expected =
                            if inside { numbers[(expert * rows + r) * cols + c] } else { 0.0 };
                        let got = weight(format, tile, row, col);
                        let allowed = expected.abs() * rounded
                            + 6e-8 * if rounded > 1e-5 { 128.0 } else { 1.0 };
                        assert!(
                            (got - expected).abs() <= allowed,
                            "{ty} {r} {c}: {got} for {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_beyond_f16_are_its_largest_and_nan_stays() {
        let numbers = [1e9f32, -1e9, f32::NAN, f32::INFINITY];
        let m = Matrix {
            ty: BlockType::F32,
            experts: 1,
            rows: 1,
            cols: 4,
            bytes: bytemuck::bytes_of(&numbers),
        };
        let mut out = vec![0; packed_bytes(TileFormat::F16, 1, 1, 4)];
        pack(&m, 0, &mut out);
        let got = [0, 1, 2, 3].map(|col| weight(TileFormat::F16, &out, 0, col));
        assert_eq!([got[0], got[1], got[3]], [65504.0, -65504.0, 65504.0]);
        assert!(got[2].is_nan());
    }
}
