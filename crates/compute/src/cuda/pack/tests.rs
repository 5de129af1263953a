//! Tiles read back by the layouts that the kernels' headers document.

use super::*;
use crate::selftest::{Random, random_blocks};
use formats::blocks::codebooks;

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
            let word =
                turned(word_at(tile, 2048 + chunk / 2 * 512 + lane * 16 + chunk % 2 * 8 + 4 * s));
            let q = nibble() | (word >> (16 * h + 2 * r + 4 + 4 * second) & 3) << 4;
            let scale = i32::from(tile[3072 + row * 16 + col / 16]) - 128;
            half_at(tile, 3328 + 2 * row) * scale as f32 * (q as i32 - 32) as f32
        }
        TileFormat::Q8_0 => {
            let q = tile[group * 512 + lane * 16 + 4 * (2 * s + r) + 2 * upper + h];
            half_at(tile, 4096 + row * 16 + group * 2) * (i32::from(q) - 128) as f32
        }
        TileFormat::F16 => half_at(tile, group * 1024 + upper * 512 + lane * 16 + 2 * (col % 8)),
        _ => grouped_weight(format, tile, row, col),
    }
}

/// The same for the layouts of `tiles_grouped.cuh`.
fn grouped_weight(format: TileFormat, tile: &[u8], row: usize, col: usize) -> f32 {
    let (g, e) = (row % 8, row / 8);
    let (group, t, at) = (col / 32, col % 32 / 8, col % 8);
    let (lane, chunk, k) = (4 * g + t, group / 2, group % 2);
    let (s, i, h) = (at / 4, at / 2, at % 2);
    let single = |at: usize| f32::from_bits(word_at(tile, at));
    let eight = || word_at(tile, chunk * 512 + lane * 16 + 4 * (2 * k + e));
    let negative = || {
        let signs = word_at(tile, chunk * 128 + lane * 4);
        if signs >> (16 * h + 4 * (2 * k + e) + i) & 1 == 1 { -1.0 } else { 1.0 }
    };
    let nibble = |at: usize, n: usize| u32::from(tile[at + n / 2]) >> (4 * (n % 2)) & 15;
    match format {
        TileFormat::FP8 => {
            let q = tile[group * 512 + lane * 16 + 4 * i + 2 * e + h];
            single(4096 + row * 8 + group / 4 * 4) * blocks::fp8::e4m3(q)
        }
        TileFormat::FP4 => {
            let byte = eight() >> (8 * (at % 4));
            let code = match s {
                0 => (byte >> 4 & 8) | (byte >> 2 & 7),
                _ => (byte >> 2 & 8) | (byte >> 4 & 4) | (byte & 3),
            };
            let value = f32::from(blocks::fp4::FP4_DOUBLED[code as usize]) / 2.0;
            let scale = blocks::fp8::e4m3(tile[2048 + row * 16 + col / 16]);
            single(2304 + row * 8 + group / 4 * 4) * (scale * value)
        }
        TileFormat::INT4 | TileFormat::INT4_32 => {
            let word = word_at(tile, chunk * 512 + lane * 16 + 4 * i);
            let q = word >> (16 * h + 8 * e + 4 * k) & 15;
            let header = match format {
                TileFormat::INT4 => word_at(tile, 2048 + row * 8 + group / 4 * 4),
                _ => word_at(tile, 2048 + row * 32 + group * 4),
            };
            f32::from_bits(header & !8191) * (q as f32 - (header & 31) as f32)
        }
        TileFormat::IQ4 => {
            let value = blocks::iq4::IQ4_VALUES[(eight() >> (4 * at) & 15) as usize];
            let scale = f32::from(tile[2048 + row * 8 + group] as i8);
            half_at(tile, 2176 + 2 * row) * scale * f32::from(value)
        }
        TileFormat::IQ3_S | TileFormat::IQ3_XXS => {
            let byte = tile[512 + chunk * 256 + lane * 8 + 4 * e + 2 * k + s];
            let (magnitude, scales, unit) = if format == TileFormat::IQ3_S {
                let ninth = tile[1536 + lane * 4 + chunk] >> (4 * e + 2 * k + s) & 1;
                let index = usize::from(byte) | usize::from(ninth) << 8;
                (2.0 * f32::from(codebooks::IQ3_S[index][at % 4]) + 1.0, 1664, 1.0)
            } else {
                let digit = codebooks::IQ3_XXS[usize::from(byte)][at % 4];
                (f32::from(blocks::iq3::IQ3_XXS_MAGNITUDES[usize::from(digit)]), 1536, 0.25)
            };
            let scale = 2 * nibble(scales + 4 * row, group) + 1;
            half_at(tile, scales + 64 + 2 * row) * unit * scale as f32 * magnitude * negative()
        }
        _ => {
            let n = 2 * k + e;
            let low = tile[512 + chunk * 128 + lane * 4 + n];
            let above = tile[1024 + lane * 4 + chunk] >> (2 * n) & 3;
            let digit = codebooks::IQ2_S[usize::from(low) | usize::from(above) << 8][at];
            let magnitude = f32::from(blocks::iq2::IQ2_MAGNITUDES[usize::from(digit)]);
            let scale = 2 * nibble(1152 + 8 * row, col / 16) + 1;
            half_at(tile, 1280 + 2 * row) * 0.125 * scale as f32 * magnitude * negative()
        }
    }
}

#[test]
fn tiles_hold_the_weights_of_the_file() {
    for (ty, experts) in BlockType::ALL.into_iter().flat_map(|ty| [(ty, 1), (ty, 3)]) {
        let (format, rows) = (TileFormat::of(ty), 21);
        let cols = 352usize.next_multiple_of(ty.block_len());
        let bytes = random_blocks(&mut Random(7), ty, experts * rows * cols);
        let m = Matrix { ty, experts, rows, cols, bytes: &bytes };
        let mut numbers = vec![0f32; experts * rows * cols];
        blocks::decode(ty, &bytes, &mut numbers);

        let mut out = vec![0xaau8; packed_bytes(format, experts, rows, cols)];
        let row_tile = row_tile_bytes(format, cols);
        let (start, rest) = out.split_at_mut((2 * experts - 1) * row_tile);
        pack(&m, 0, start);
        pack(&m, 2 * experts - 1, rest);

        // Where the scale is rounded, or the product is, f16 has 11 bits.
        let rounded = match ty {
            BlockType::IQ2_XXS
            | BlockType::IQ1_S
            | BlockType::IQ1_M
            | BlockType::INT8
            | BlockType::F32 => 1.0 / 2048.0,
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
                    let allowed =
                        expected.abs() * rounded + 6e-8 * if rounded > 1e-5 { 128.0 } else { 1.0 };
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
