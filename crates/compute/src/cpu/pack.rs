//! Matrices repacked at load: GGUF blocks (row after row) become tiles of 16 rows that the kernels
//! stream through.

use super::blocks::{Codes, Exploded, Format, GROUP, Scales, TILE, with_format};
use super::disk::OnDisk;
use crate::{Error, backend::Matrix, memory::Memory, plan::MatrixId};
use formats::BlockType;
use formats::blocks::{
    self, IQ3_S, fp4, fp8, iq2::IQ2_MAGNITUDES, iq3::IQ3_XXS_MAGNITUDES, legacy,
};
use std::{path::Path, sync::atomic::AtomicU32};

/// A matrix as the kernels read it: [experts, tiles, tile bytes].
pub(crate) struct Packed {
    pub(crate) ty: BlockType,
    pub(crate) experts: usize,
    /// Rows of one expert's matrix.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) tile_bytes: usize,
    /// How often each expert was chosen; of none where nobody asked for that.
    pub(crate) choices: Vec<AtomicU32>,
    /// All matrices of a layer's experts, for the first of them, where they lie on a disk.
    pub(crate) layer: Vec<MatrixId>,
    data: Data,
}

enum Data {
    InMemory(Memory),
    OnDisk(OnDisk),
}

impl Packed {
    /// Packs a matrix from the file's order: into memory, or to a disk where a folder is given.
    pub(crate) fn new(m: Matrix<'_>, threads: usize, folder: Option<&Path>) -> Result<Self, Error> {
        let Matrix { ty, experts, rows, cols, bytes } = m;
        assert_eq!(cols % ty.block_len(), 0, "a row of {cols} is not whole `{ty}` blocks");
        let row_bytes = cols / ty.block_len() * ty.block_bytes();
        assert_eq!(
            bytes.len(),
            experts * rows * row_bytes,
            "bytes of a [{experts}, {rows}, {cols}] `{ty}` matrix"
        );
        let tiles = rows.div_ceil(TILE);
        let tile_bytes = tile_bytes(ty, cols);
        let pack = |(index, tile): (usize, &mut [u8])| {
            let (expert, first) = (index / tiles, index % tiles * TILE);
            let from =
                &bytes[(expert * rows + first) * row_bytes..][..TILE.min(rows - first) * row_bytes];
            match ty.block_len() {
                1 => pack_floats(from, row_bytes, ty.block_bytes(), tile),
                _ => with_format!(ty, pack_tile => (ty, from, row_bytes, tile)),
            }
        };
        // Tiles in parallel: a large model is packed as fast as it is read.
        let pack_all = |data: &mut [u8]| {
            spread(data.chunks_exact_mut(tile_bytes).enumerate().collect(), threads, pack);
        };
        let len = experts * tiles * tile_bytes;
        let data = match folder {
            Some(folder) => Data::OnDisk(OnDisk::write(folder, len, pack_all)?),
            None => {
                let mut memory = Memory::zeroed(len);
                pack_all(memory.slice_mut());
                Data::InMemory(memory)
            }
        };
        let (choices, layer) = (Vec::new(), Vec::new());
        Ok(Self { ty, experts, rows, cols, tile_bytes, choices, layer, data })
    }

    /// From now on counts how often its experts are chosen.
    pub(crate) fn count_choices(&mut self) {
        self.choices = (0..self.experts).map(|_| AtomicU32::new(0)).collect();
    }

    /// Whether it lies on a disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self.data, Data::OnDisk(_))
    }

    /// Whether it lies on a disk that did not give it back.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(&self.data, Data::OnDisk(disk) if disk.has_failed())
    }

    /// Has the system read an expert's tiles from the disk, where they lie there.
    pub(crate) fn read_ahead(&self, expert: usize) {
        if let Data::OnDisk(disk) = &self.data {
            let bytes = self.tiles() * self.tile_bytes;
            disk.read_ahead(expert * bytes..(expert + 1) * bytes);
        }
    }

    /// Tiles of one expert's matrix.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// The bytes of tile `tile` of `expert` and all that follow.
    pub(crate) fn tiles_from(&self, expert: usize, tile: usize) -> &[u8] {
        let all = match &self.data {
            Data::InMemory(memory) => memory.slice::<u8>(),
            Data::OnDisk(disk) => disk.bytes(),
        };
        &all[(expert * self.tiles() + tile) * self.tile_bytes..]
    }
}

/// Bytes of a matrix as it is held.
pub fn packed_bytes(ty: BlockType, rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * tile_bytes(ty, cols)
}

fn tile_bytes(ty: BlockType, cols: usize) -> usize {
    fn blocks<F: Format>(cols: usize) -> usize {
        cols / (GROUP * F::Scales::GROUPS) * F::BYTES
    }
    match ty.block_len() {
        1 => cols * TILE * ty.block_bytes(),
        _ => with_format!(ty, blocks => (cols)),
    }
}

/// Hands items to threads, a run of neighbours to each.
fn spread<T: Send>(items: Vec<T>, threads: usize, f: impl Fn(T) + Sync) {
    let share = items.len().div_ceil(threads).max(64);
    if items.len() <= share {
        return items.into_iter().for_each(f);
    }
    let mut items = items.into_iter();
    std::thread::scope(|scope| {
        while items.len() > 0 {
            let part: Vec<T> = items.by_ref().take(share).collect();
            scope.spawn(|| part.into_iter().for_each(&f));
        }
    });
}

/// Rows of floats become columns of 16.
fn pack_floats(rows: &[u8], row_bytes: usize, size: usize, tile: &mut [u8]) {
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
        for (k, x) in row.chunks_exact(size).enumerate() {
            tile[(k * TILE + lane) * size..][..size].copy_from_slice(x);
        }
    }
}

/// Up to 16 rows of blocks become a tile.
fn pack_tile<F: Format>(ty: BlockType, rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    let mut codes = [[[0u8; 64]; 8]; 8]; // [groups, vectors, (row, column)]
    // A block of the file may be several of a tile.
    let parts = ty.block_len() / (GROUP * F::Scales::GROUPS);
    for (index, packed) in tile.chunks_exact_mut(parts * F::BYTES).enumerate() {
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = explode(ty, &row[index * ty.block_bytes()..][..ty.block_bytes()]);
            for (i, four) in block.codes[..ty.block_len()].as_chunks::<4>().0.iter().enumerate() {
                codes[i / 8][i % 8][4 * lane..][..4].copy_from_slice(four);
            }
            for (part, packed) in packed.chunks_exact_mut(F::BYTES).enumerate() {
                F::Scales::put(&mut packed[F::SCALES..], lane, &block, part);
            }
        }
        let mut codes = codes.iter();
        for packed in packed.chunks_exact_mut(F::BYTES) {
            for group in packed[..F::SCALES].chunks_exact_mut(F::Codes::BYTES) {
                F::Codes::pack(codes.next().expect("a block has at most 8 groups"), group);
            }
        }
    }
}

/// Takes a block of a file apart.
fn explode(ty: BlockType, b: &[u8]) -> Exploded {
    let mut e = Exploded {
        codes: [0; 256],
        scales: [0; 16],
        minima: [0; 16],
        d: [b[0], b[1]],
        dmin: [0; 2],
        singles: [0.0; 8],
        zero: 0,
    };
    // Two columns 16 apart share a byte.
    let nibbles = |qs: &[u8], codes: &mut [u8]| {
        for i in 0..16 {
            codes[i] = qs[i] & 15;
            codes[i + 16] = qs[i] >> 4;
        }
    };
    let fifth_bits = |qh: &[u8], codes: &mut [u8]| {
        for i in 0..32 {
            codes[i] |= (qh[i / 8] >> (i % 8) & 1) << 4;
        }
    };
    match ty {
        BlockType::Q4_0 | BlockType::IQ4_NL => nibbles(&b[2..], &mut e.codes),
        BlockType::Q4_1 => {
            e.dmin = [b[2], b[3]];
            nibbles(&b[4..], &mut e.codes);
        }
        BlockType::Q5_0 => {
            nibbles(&b[6..], &mut e.codes);
            fifth_bits(&b[2..6], &mut e.codes);
        }
        BlockType::Q5_1 => {
            e.dmin = [b[2], b[3]];
            nibbles(&b[8..], &mut e.codes);
            fifth_bits(&b[4..8], &mut e.codes);
        }
        BlockType::Q8_0 => {
            for i in 0..32 {
                e.codes[i] = b[2 + i] ^ 0x80;
            }
        }
        BlockType::Q4_K | BlockType::Q5_K => {
            e.dmin = [b[2], b[3]];
            let s = &b[4..16];
            for i in 0..4 {
                e.scales[i] = (s[i] & 63) as i8;
                e.minima[i] = (s[i + 4] & 63) as i8;
                e.scales[i + 4] = (s[i + 8] & 15 | s[i] >> 6 << 4) as i8;
                e.minima[i + 4] = (s[i + 8] >> 4 | s[i + 4] >> 6 << 4) as i8;
            }
            let (qh, qs) =
                if ty == BlockType::Q5_K { (&b[16..48], &b[48..]) } else { (&b[0..0], &b[16..]) };
            for i in 0..256 {
                let (chunk, upper, at) = (i / 64, i / 32 % 2, i % 32);
                e.codes[i] = qs[32 * chunk + at] >> (4 * upper) & 15;
                if ty == BlockType::Q5_K {
                    e.codes[i] |= (qh[at] >> (i / 32) & 1) << 4;
                }
            }
        }
        BlockType::Q6_K => {
            e.d = [b[208], b[209]];
            for i in 0..16 {
                e.scales[i] = b[192 + i] as i8;
            }
            for i in 0..256 {
                let (half, quarter, at) = (i / 128, i / 32 % 4, i % 32);
                let low = b[64 * half + 32 * (quarter % 2) + at] >> (4 * (quarter / 2)) & 15;
                let high = b[128 + 32 * half + at] >> (2 * quarter) & 3;
                e.codes[i] = low | high << 4;
            }
        }
        BlockType::Q2_K => {
            e.d = [b[80], b[81]];
            e.dmin = [b[82], b[83]];
            for i in 0..16 {
                e.scales[i] = (b[i] & 15) as i8;
                e.minima[i] = (b[i] >> 4) as i8;
            }
            for i in 0..256 {
                e.codes[i] = b[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
            }
        }
        BlockType::Q3_K => {
            e.d = [b[108], b[109]];
            let s = &b[96..108];
            for i in 0..16 {
                let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
                let high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
                e.scales[i] = (low | high << 4) as i8 - 32;
            }
            for i in 0..256 {
                let low = b[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
                e.codes[i] = low | (b[i % 32] >> (i / 32) & 1) << 2;
            }
        }
        BlockType::IQ3_S => {
            let block: &IQ3_S = bytemuck::from_bytes(b);
            e.codes = block.quants().map(|q| (q + 16) as u8);
            e.scales[..8].copy_from_slice(&block.scales());
        }
        BlockType::IQ4_XS => {
            let high = u16::from_le_bytes([b[2], b[3]]);
            for i in 0..8 {
                let low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
                e.scales[i] = (low | ((high >> (2 * i) & 3) << 4) as u8) as i8 - 32;
                nibbles(&b[8 + 16 * i..], &mut e.codes[32 * i..]);
            }
        }
        _ => explode_others(ty, b, &mut e),
    }
    e
}

/// Scales of 16 columns from those of 32.
fn twice(scales: [i8; 8]) -> [i8; 16] {
    std::array::from_fn(|i| scales[i / 2])
}

/// The index of a signed magnitude in a table that has magnitudes first, negative ones `negative`
/// further on.
fn find(magnitudes: &[i8], negative: u8, q: i8) -> u8 {
    let at = magnitudes.iter().position(|m| *m == q.abs()).expect("a magnitude of the table");
    at as u8 + if q < 0 { negative } else { 0 }
}

/// The types whose blocks unpack themselves.
fn explode_others(ty: BlockType, b: &[u8], e: &mut Exploded) {
    let iq2 = |quants: [i8; 256]| quants.map(|q| find(&IQ2_MAGNITUDES, 4, q));
    let fives = |quants: [i8; 256]| quants.map(|q| (q + 16) as u8);
    match ty {
        BlockType::IQ3_XXS => {
            let block: &blocks::IQ3_XXS = bytemuck::from_bytes(b);
            e.codes = block.quants().map(|q| find(&IQ3_XXS_MAGNITUDES, 8, q));
            e.scales[..8].copy_from_slice(&block.scales());
        }
        BlockType::IQ2_XXS => {
            let block: &blocks::IQ2_XXS = bytemuck::from_bytes(b);
            (e.codes, e.scales) = (iq2(block.quants()), twice(block.scales()));
        }
        BlockType::IQ2_XS => {
            let block: &blocks::IQ2_XS = bytemuck::from_bytes(b);
            (e.codes, e.scales) = (iq2(block.quants()), block.scales());
        }
        BlockType::IQ2_S => {
            let block: &blocks::IQ2_S = bytemuck::from_bytes(b);
            (e.codes, e.scales) = (iq2(block.quants()), block.scales());
        }
        BlockType::IQ1_S => {
            let block: &blocks::IQ1_S = bytemuck::from_bytes(b);
            (e.codes, e.scales) = (fives(block.quants()), twice(block.scales()));
        }
        BlockType::IQ1_M => {
            let block: &blocks::IQ1_M = bytemuck::from_bytes(b);
            (e.codes, e.scales, e.d) = (fives(block.quants()), block.scales(), block.d().0);
        }
        BlockType::TQ1_0 => {
            let block: &blocks::TQ1_0 = bytemuck::from_bytes(b);
            (e.codes, e.d) = (block.quants().map(|q| (q + 1) as u8), block.d.0);
            e.scales.fill(1);
        }
        BlockType::TQ2_0 => {
            let block: &blocks::TQ2_0 = bytemuck::from_bytes(b);
            (e.codes, e.d) = (block.quants().map(|q| (q + 1) as u8), block.d.0);
            e.scales.fill(1);
        }
        BlockType::MXFP4 => {
            let block: &blocks::MXFP4 = bytemuck::from_bytes(b);
            e.codes[..32].copy_from_slice(&legacy::nibbles(&block.qs));
            e.singles.fill(fp4::half_of_power(block.e));
        }
        BlockType::NVFP4 => {
            let block: &blocks::NVFP4 = bytemuck::from_bytes(b);
            e.codes[..64].copy_from_slice(&block.codes());
            for (single, d) in e.singles.iter_mut().zip(block.d) {
                *single = fp4::unsigned_e4m3(d) * 0.5;
            }
        }
        BlockType::FP4 => {
            let block: &blocks::FP4 = bytemuck::from_bytes(b);
            e.codes[..128].copy_from_slice(&block.codes());
            e.singles = block.d.map(|d| block.scale.get() * (fp8::e4m3(d) * 0.5));
        }
        BlockType::INT4 => {
            let block: &blocks::INT4 = bytemuck::from_bytes(b);
            e.codes[..128].copy_from_slice(&block.codes());
            e.singles.fill(block.head.scale());
            e.zero = block.head.zero() as i8;
        }
        BlockType::INT4_32 => {
            let block: &blocks::INT4_32 = bytemuck::from_bytes(b);
            e.codes[..32].copy_from_slice(&block.codes());
            e.singles.fill(block.head.scale());
            e.zero = block.head.zero() as i8;
        }
        BlockType::INT8 => {
            let block: &blocks::INT8 = bytemuck::from_bytes(b);
            e.codes[..128].copy_from_slice(&block.qs.map(|q| (q as u8) ^ 0x80));
            e.singles.fill(block.scale.get());
        }
        BlockType::FP8 => {
            let block: &blocks::FP8 = bytemuck::from_bytes(b);
            e.codes[..128].copy_from_slice(&block.qs);
            e.singles.fill(block.scale.get());
        }
        other => unreachable!("`{other}` has no blocks, or is taken apart elsewhere"),
    }
}
