//! Weights of a file as tiles of 16 rows and 256 columns, in the order the matrix instructions read
//! them. The layout of each format stands in `kernels/tiles.cuh`; nothing here but the order of
//! bits differs from the file, except for types that have no tiles of their own. A matrix is tiles
//! [experts][rows / 16][cols / 256]; what is outside of it is zero.

mod grouped;

use crate::backend::Matrix;
use formats::BlockType;
use formats::blocks::{
    self, Half, INT8, IQ1_M, IQ1_S, IQ2_XXS, IQ4_NL, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0, TQ1_0,
    TQ2_0,
};
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
    FP8 = 5,
    FP4 = 6,
    INT4 = 7,
    INT4_32 = 8,
    IQ4 = 9,
    IQ3_S = 10,
    IQ3_XXS = 11,
    IQ2 = 12,
}

impl TileFormat {
    /// Every format.
    pub(crate) const ALL: [Self; 13] = [
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::Q8_0,
        Self::F16,
        Self::FP8,
        Self::FP4,
        Self::INT4,
        Self::INT4_32,
        Self::IQ4,
        Self::IQ3_S,
        Self::IQ3_XXS,
        Self::IQ2,
    ];

    /// The tiles a type is packed into: its own; those of another type that hold the same numbers
    /// (exact but for scales that become f16: those of `IQ2_XXS`, `INT8`, `IQ1_S` and `IQ1_M`
    /// below what f16 has, and for `MXFP4` where neighbours are 17 powers of two apart); `F16` for
    /// the rest.
    pub(crate) const fn of(ty: BlockType) -> Self {
        match ty {
            BlockType::Q4_K => Self::Q4_K,
            BlockType::Q5_K => Self::Q5_K,
            BlockType::Q6_K | BlockType::IQ1_S | BlockType::IQ1_M => Self::Q6_K,
            BlockType::Q8_0
            | BlockType::Q4_0
            | BlockType::Q5_0
            | BlockType::IQ2_XXS
            | BlockType::IQ4_NL
            | BlockType::TQ1_0
            | BlockType::TQ2_0
            | BlockType::INT8 => Self::Q8_0,
            BlockType::FP8 => Self::FP8,
            BlockType::FP4 | BlockType::NVFP4 | BlockType::MXFP4 => Self::FP4,
            BlockType::INT4 => Self::INT4,
            BlockType::INT4_32 => Self::INT4_32,
            BlockType::IQ4_XS => Self::IQ4,
            BlockType::IQ3_S => Self::IQ3_S,
            BlockType::IQ3_XXS => Self::IQ3_XXS,
            BlockType::IQ2_S => Self::IQ2,
            BlockType::F32
            | BlockType::F16
            | BlockType::BF16
            | BlockType::Q4_1
            | BlockType::Q5_1
            | BlockType::Q2_K
            | BlockType::Q3_K
            | BlockType::IQ2_XS => Self::F16,
        }
    }

    /// Whether `FOR_OTHER_FORMATS` of `kernels/tiles.cuh` has it.
    pub(crate) const fn is_other(self) -> bool {
        self as usize > Self::F16 as usize
    }

    /// Bytes of a tile.
    pub(crate) const fn tile_bytes(self) -> usize {
        match self {
            Self::Q4_K => 2304,
            Self::Q5_K => 2816,
            Self::Q6_K => 3360,
            Self::Q8_0 => 4352,
            Self::F16 => 8192,
            Self::FP8 => 4224,
            Self::FP4 => 2432,
            Self::INT4 => 2176,
            Self::INT4_32 => 2560,
            Self::IQ4 => 2208,
            Self::IQ3_S => 1760,
            Self::IQ3_XXS => 1632,
            Self::IQ2 => 1312,
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
            TileFormat::Q6_K => pack_q6_k(m.ty, &rows, out),
            TileFormat::Q8_0 => pack_q8_0(m.ty, &rows, out),
            TileFormat::F16 => pack_f16(m.ty, &rows, cols, out),
            TileFormat::FP8 => grouped::pack_fp8(&rows, out),
            TileFormat::FP4 => grouped::pack_fp4(m.ty, &rows, out),
            TileFormat::INT4 => grouped::pack_int4_128(&rows, out),
            TileFormat::INT4_32 => grouped::pack_int4_32(&rows, out),
            TileFormat::IQ4 => grouped::pack_iq4(&rows, out),
            TileFormat::IQ3_S | TileFormat::IQ3_XXS => grouped::pack_iq3(m.ty, &rows, out),
            TileFormat::IQ2 => grouped::pack_iq2(&rows, out),
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

/// Integers from -32 to 31, scales of 16 and the scale of the scales.
fn sixes(ty: BlockType, row: &[u8]) -> ([i8; 256], [i8; 16], Half) {
    let twice = |scales: [i8; 8]| array::from_fn(|i| scales[i / 2]);
    let eighth = |d: Half| Half::new(d.get() / 8.0);
    let found = match ty {
        BlockType::IQ1_S => {
            block::<IQ1_S>(row).map(|b| (b.quants(), twice(b.scales()), eighth(b.d)))
        }
        BlockType::IQ1_M => block::<IQ1_M>(row).map(|b| (b.quants(), b.scales(), eighth(b.d()))),
        _ => block::<Q6_K>(row).map(|b| (b.quants(), b.scales, b.d)),
    };
    found.unwrap_or(([-32; 256], [0; 16], Half([0; 2])))
}

fn pack_q6_k(ty: BlockType, rows: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
    let rows = rows.map(|row| sixes(ty, row));
    let quants = rows.map(|row| row.0.map(|q| (q + 32) as u8));
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
    for (r, (_, scales, d)) in rows.iter().enumerate() {
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
        let half = |d: f32| Half::new(d.clamp(-65504.0, 65504.0));
        let mut groups = |d: Half, q: [i8; 256]| {
            for i in 0..8 {
                group(i, &q[i * 32..][..32], d);
            }
        };
        match ty {
            BlockType::Q8_0 => blocks_of::<Q8_0>(row).for_each(|(i, b)| group(i, &b.qs, b.d)),
            BlockType::Q4_0 => blocks_of::<Q4_0>(row).for_each(|(i, b)| group(i, &b.quants(), b.d)),
            BlockType::Q5_0 => blocks_of::<Q5_0>(row).for_each(|(i, b)| group(i, &b.quants(), b.d)),
            BlockType::IQ4_NL => {
                blocks_of::<IQ4_NL>(row).for_each(|(i, b)| group(i, &b.quants(), b.d))
            }
            BlockType::TQ1_0 => blocks_of::<TQ1_0>(row).for_each(|(_, b)| groups(b.d, b.quants())),
            BlockType::TQ2_0 => blocks_of::<TQ2_0>(row).for_each(|(_, b)| groups(b.d, b.quants())),
            BlockType::IQ2_XXS => blocks_of::<IQ2_XXS>(row).for_each(|(_, b)| {
                let quants = b.quants();
                for (i, scale) in b.scales().into_iter().enumerate() {
                    let d = half(b.d.get() * 0.125 * f32::from(scale));
                    group(i, &quants[i * 32..][..32], d);
                }
            }),
            BlockType::INT8 => blocks_of::<INT8>(row).for_each(|(i, b)| {
                for (j, q) in b.qs.as_chunks::<32>().0.iter().enumerate() {
                    group(4 * i + j, q, half(b.scale.get()));
                }
            }),
            _ => unreachable!("{ty} has no integers and scales per 32"),
        }
    }
    grouped::pack_bytes(&quants.map(|row| row.map(|q| (q as u8).wrapping_add(128))), out);
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
mod tests;
