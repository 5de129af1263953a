//! Weights that a file has in several tensors (codes, scales, zeros), put together into blocks when
//! they are read. What is here was checked: shapes fit each other, and rows are whole blocks.

use crate::blocks::{FP4, FP8, INT4, INT4_32, INT8, MXFP4, NVFP4};
use crate::blocks::{Single, fp8, integers::Scale};
use crate::{BlockType, RawTensor, TensorInfo, Tensors, blocks};
use std::thread;

/// How a matrix [rows, cols] is put together.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Assembly {
    /// `FP8` from e4m3 [rows, cols] and scales.
    Fp8 { codes: RawTensor, scales: Grid, shape: [usize; 2] },
    /// `FP4` from e2m1 [rows, cols / 2], two a byte, e4m3 scales [rows, cols / 16] and the
    /// tensor's.
    Fp4 { codes: RawTensor, scales: RawTensor, scale: f32, shape: [usize; 2] },
    /// `MXFP4` from e2m1 [rows, cols / 2], two a byte, and exponents [rows, cols / 32].
    Mxfp4 { codes: RawTensor, exponents: RawTensor, shape: [usize; 2] },
    /// `INT8` from i8 [rows, cols], or with `packed` from words of four bytes that are 128 more.
    Int8 { codes: RawTensor, packed: bool, scales: Grid, shape: [usize; 2] },
    /// `INT4` or `INT4_32`.
    Int4 {
        codes: RawTensor,
        form: Integers,
        scales: TensorInfo,
        zeros: Zeros,
        group: usize,
        shape: [usize; 2],
    },
    /// `FP4` from a GGUF's `NVFP4` and the scales it has beside it, one for every matrix.
    Scaled { blocks: TensorInfo, scales: Vec<f32> },
}

/// Scales of a matrix: one for every `rows` by `cols` elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The scales.
    pub tensor: TensorInfo,
    /// Rows that share a scale.
    pub rows: usize,
    /// Columns that share a scale, a multiple of 128 or all of them.
    pub cols: usize,
}

/// Who packed four bits into words of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// Words [rows, cols / 8] of eight columns; scales [rows, groups].
    CompressedTensors,
    /// Words [cols / 8, rows] of eight columns; scales [groups, rows].
    Gptq,
    /// Words [cols, rows / 8] of eight rows, in the order 0, 2, 4, 6, 1, 3, 5, 7; scales [groups,
    /// rows].
    Awq,
}

/// Which code stands for zero.
#[derive(Clone, Debug, PartialEq)]
pub enum Zeros {
    /// This one everywhere.
    Constant(u8),
    /// That of a group, in words of eight rows as the codes' packer has them, plus `more`.
    Packed {
        /// The words.
        tensor: RawTensor,
        /// What is added to a word: its writer has taken it off the whole word, borrows included.
        more: u32,
    },
}

/// Where AWQ has row `i` of eight in a word.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Assembly {
    /// The type of its blocks.
    pub fn ty(&self) -> BlockType {
        match self {
            Self::Fp8 { .. } => BlockType::FP8,
            Self::Fp4 { .. } | Self::Scaled { .. } => BlockType::FP4,
            Self::Mxfp4 { .. } => BlockType::MXFP4,
            Self::Int8 { .. } => BlockType::INT8,
            Self::Int4 { group, .. } if group.is_multiple_of(128) => BlockType::INT4,
            Self::Int4 { .. } => BlockType::INT4_32,
        }
    }

    /// Its shape, the columns last.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Scaled { blocks, .. } => blocks.shape.clone(),
            Self::Fp8 { shape, .. }
            | Self::Fp4 { shape, .. }
            | Self::Mxfp4 { shape, .. }
            | Self::Int8 { shape, .. }
            | Self::Int4 { shape, .. } => shape.to_vec(),
        }
    }

    /// Its blocks.
    pub(crate) fn bytes(&self, tensors: &Tensors) -> Vec<u8> {
        let shape = self.shape();
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / cols;
        let row_bytes = self.ty().bytes_for(cols).expect("rows of whole blocks");
        let mut out = vec![0; rows * row_bytes];
        match self {
            Self::Fp8 { codes, scales, .. } => {
                let (codes, scales) = (tensors.raw_data(codes), scales.read(tensors, cols));
                each_row(&mut out, row_bytes, |r, row| {
                    fp8_row(&codes[r * cols..][..cols], |c| scales.at(r, c), row);
                });
            }
            Self::Fp4 { codes, scales, scale, .. } => {
                let (codes, scales) = (tensors.raw_data(codes), tensors.raw_data(scales));
                each_row(&mut out, row_bytes, |r, row| {
                    let codes = &codes[r * cols / 2..][..cols / 2];
                    fp4_row(codes, &scales[r * cols / 16..][..cols / 16], *scale, row);
                });
            }
            Self::Scaled { blocks, scales } => {
                let blocks: &[NVFP4] = bytemuck::cast_slice(tensors.data(blocks));
                each_row(&mut out, row_bytes, |r, row| {
                    let blocks = &blocks[r * cols / 64..][..cols / 64];
                    scaled_row(blocks, scales[r * scales.len() / rows], row);
                });
            }
            Self::Mxfp4 { codes, exponents, .. } => {
                let (codes, exponents) = (tensors.raw_data(codes), tensors.raw_data(exponents));
                each_row(&mut out, row_bytes, |r, row| {
                    let codes = &codes[r * cols / 2..][..cols / 2];
                    mxfp4_row(codes, &exponents[r * cols / 32..][..cols / 32], row);
                });
            }
            Self::Int8 { codes, packed, scales, .. } => {
                let (codes, scales) = (tensors.raw_data(codes), scales.read(tensors, cols));
                let flip = if *packed { 0x80 } else { 0 };
                each_row(&mut out, row_bytes, |r, row| {
                    for (i, to) in row.chunks_exact_mut(size_of::<INT8>()).enumerate() {
                        let to: &mut INT8 = bytemuck::from_bytes_mut(to);
                        to.scale = Single::new(scales.at(r, 128 * i));
                        let from = &codes[r * cols + 128 * i..][..128];
                        to.qs = std::array::from_fn(|j| (from[j] ^ flip) as i8);
                    }
                });
            }
            Self::Int4 { codes, form, scales, zeros, group, .. } => {
                let groups = cols / group;
                let words = Words(tensors.raw_data(codes));
                let scales = floats(tensors, scales);
                let code = |r: usize, c: usize| match form {
                    Integers::CompressedTensors => words.nibble(r * cols / 8 + c / 8, c % 8),
                    Integers::Gptq => words.nibble(c / 8 * rows + r, c % 8),
                    Integers::Awq => words.nibble(c * rows / 8 + r / 8, AWQ_PLACES[r % 8]),
                };
                let head = |r: usize, c: usize| {
                    let g = c / group;
                    let scale = match form {
                        Integers::CompressedTensors => scales[r * groups + g],
                        _ => scales[g * rows + r],
                    };
                    Scale::new(scale, zeros.at(tensors, *form, [rows, groups], r, g))
                        .expect("a scale of 16 bits")
                };
                each_row(&mut out, row_bytes, |r, row| match self.ty() {
                    BlockType::INT4 => {
                        for (i, to) in row.chunks_exact_mut(size_of::<INT4>()).enumerate() {
                            let to: &mut INT4 = bytemuck::from_bytes_mut(to);
                            to.head = head(r, 128 * i);
                            to.qs = pairs(|j| code(r, 128 * i + j));
                        }
                    }
                    _ => {
                        for (i, to) in row.chunks_exact_mut(size_of::<INT4_32>()).enumerate() {
                            let to: &mut INT4_32 = bytemuck::from_bytes_mut(to);
                            to.head = head(r, 32 * i);
                            to.qs = pairs(|j| code(r, 32 * i + j));
                        }
                    }
                });
            }
        }
        out
    }
}

/// Fills rows on all processors.
fn each_row(out: &mut [u8], row_bytes: usize, fill: impl Fn(usize, &mut [u8]) + Sync) {
    let rows = out.len() / row_bytes;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    // Eight rows share a word of AWQ's.
    let each = rows.div_ceil(threads).next_multiple_of(8);
    thread::scope(|scope| {
        for (i, out) in out.chunks_mut(each * row_bytes).enumerate() {
            let fill = &fill;
            scope.spawn(move || {
                for (r, row) in out.chunks_exact_mut(row_bytes).enumerate() {
                    fill(i * each + r, row);
                }
            });
        }
    });
}

/// Two codes a byte, the first low.
fn pairs<const LEN: usize>(code: impl Fn(usize) -> u8) -> [u8; LEN] {
    std::array::from_fn(|i| code(2 * i) | code(2 * i + 1) << 4)
}

fn fp8_row(codes: &[u8], scale: impl Fn(usize) -> f32, row: &mut [u8]) {
    for (i, to) in row.chunks_exact_mut(size_of::<FP8>()).enumerate() {
        let to: &mut FP8 = bytemuck::from_bytes_mut(to);
        to.qs.copy_from_slice(&codes[128 * i..][..128]);
        // A NaN makes its block NaN, which no kernel loses.
        let is_nan = to.qs.iter().any(|q| q & 0x7f == 0x7f);
        to.scale = Single::new(if is_nan { f32::NAN } else { scale(128 * i) });
    }
}

fn fp4_row(codes: &[u8], scales: &[u8], scale: f32, row: &mut [u8]) {
    for (i, to) in row.chunks_exact_mut(size_of::<FP4>()).enumerate() {
        let to: &mut FP4 = bytemuck::from_bytes_mut(to);
        to.qs.copy_from_slice(&codes[64 * i..][..64]);
        to.d.copy_from_slice(&scales[8 * i..][..8]);
        let is_nan = to.d.iter().any(|d| fp8::e4m3(*d).is_nan());
        to.scale = Single::new(if is_nan { f32::NAN } else { scale });
    }
}

fn scaled_row(blocks: &[NVFP4], scale: f32, row: &mut [u8]) {
    for (two, to) in blocks.as_chunks::<2>().0.iter().zip(row.chunks_exact_mut(size_of::<FP4>())) {
        let to: &mut FP4 = bytemuck::from_bytes_mut(to);
        let codes = two.map(|block| block.codes());
        to.scale = Single::new(scale);
        // ggml reads the NaN as zero and knows no sign.
        let unsigned = |d: u8| if d == 0x7f { 0 } else { (d & 0x7f).min(0x7e) };
        to.d = std::array::from_fn(|i| unsigned(two[i / 4].d[i % 4]));
        to.qs = pairs(|i| codes[i / 64][i % 64]);
    }
}

fn mxfp4_row(codes: &[u8], exponents: &[u8], row: &mut [u8]) {
    for (i, to) in row.chunks_exact_mut(size_of::<MXFP4>()).enumerate() {
        let to: &mut MXFP4 = bytemuck::from_bytes_mut(to);
        let from = &codes[16 * i..][..16];
        let code = |j: usize| from[j / 2] >> (4 * (j % 2)) & 15;
        // ggml's order: 16 columns apart.
        *to = MXFP4 { e: exponents[i], qs: std::array::from_fn(|j| code(j) | code(j + 16) << 4) };
    }
}

/// Words of 32 bits.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn word(&self, word: usize) -> u32 {
        u32::from_le_bytes(self.0.as_chunks().0[word])
    }

    /// Four bits of a word.
    fn nibble(&self, word: usize, place: usize) -> u8 {
        self.0[4 * word + place / 2] >> (4 * (place % 2)) & 15
    }
}

impl Zeros {
    fn at(
        &self,
        tensors: &Tensors,
        form: Integers,
        [rows, groups]: [usize; 2],
        row: usize,
        group: usize,
    ) -> u8 {
        match self {
            Self::Constant(zero) => *zero,
            Self::Packed { tensor, more } => {
                let (word, place) = match form {
                    Integers::CompressedTensors => (row / 8 * groups + group, row % 8),
                    Integers::Gptq => (group * rows.div_ceil(8) + row / 8, row % 8),
                    Integers::Awq => (group * rows / 8 + row / 8, AWQ_PLACES[row % 8]),
                };
                let word = Words(tensors.raw_data(tensor)).word(word).wrapping_add(*more);
                (word >> (4 * place)) as u8 & 15
            }
        }
    }
}

fn floats(tensors: &Tensors, tensor: &TensorInfo) -> Vec<f32> {
    let mut numbers = vec![0.0; tensor.elements()];
    blocks::decode(tensor.ty, tensors.data(tensor), &mut numbers);
    numbers
}

/// Scales as numbers.
struct Scales {
    numbers: Vec<f32>,
    rows: usize,
    cols: usize,
    width: usize,
}

impl Grid {
    fn read(&self, tensors: &Tensors, cols: usize) -> Scales {
        let width = cols.div_ceil(self.cols);
        Scales { numbers: floats(tensors, &self.tensor), rows: self.rows, cols: self.cols, width }
    }
}

impl Scales {
    fn at(&self, row: usize, col: usize) -> f32 {
        self.numbers[row / self.rows * self.width + col / self.cols]
    }
}
