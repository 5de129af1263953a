//! Products of packed matrices with rows of activations. A kernel takes tiles of 16 outputs and 1,
//! 2, 4 or 8 rows; what is computed for a row, and in which order, is the same in each, so a row's
//! bits do not depend on its company.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

#[cfg(x86_lanes)]
use super::lanes::{Avx2, Avx512};
use super::{
    CpuLevel,
    blocks::{Codes, Format, GROUP, Scales, TILE, with_format},
    lanes::{Lanes, Scalar},
    pack::Packed,
    q8::Q8Block,
};
use formats::BlockType;

/// Rows that are handled before the next tile is read.
pub(crate) const ROW_CHUNK: usize = 64;

/// Tiles of one matrix against `R` rows.
pub(crate) struct TileJob {
    /// First tile.
    tile: *const u8,
    tile_bytes: usize,
    tiles: usize,
    /// Columns of the matrix.
    cols: usize,
    /// `R` pointers to rows of activations, `Q8Block` or f32.
    x: *const *const u8,
    /// `R` pointers to the first tile's outputs.
    out: *const *mut f32,
    /// Outputs from the first tile to the end of the matrix; the last tile may be partly outside.
    outputs: usize,
    /// How many bytes ahead weights are fetched while many rows are multiplied: to where nothing
    /// else fetches them in time.
    ahead: usize,
}

/// Bytes of tiles that every group of rows goes through before the next ones: half of a first-level
/// cache.
const CACHED_TILES: usize = 16 << 10;

/// Bytes that a kernel fetches ahead in the stream of tiles.
const STREAM_AHEAD: usize = 4096;

type Kernel = unsafe fn(&TileJob);

/// Rows of activations as a product takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Q8,
    F32,
}

/// How a matrix of this type is multiplied, when int8 activations are asked for or not.
pub(crate) fn operand(ty: BlockType, int8: bool) -> Operand {
    if int8 && ty.block_len() > 1 && ty != BlockType::FP8 { Operand::Q8 } else { Operand::F32 }
}

/// Multiplies tiles `tiles` of `matrix` (of one expert) with up to `ROW_CHUNK` rows.
///
/// # Safety
/// Each `x` points at a row of `matrix.cols` activations of the right operand type, each `out` at
/// `matrix.rows` numbers that no other thread writes for these tiles.
pub(crate) unsafe fn multiply(
    level: CpuLevel,
    operand: Operand,
    matrix: &Packed,
    expert: usize,
    tiles: std::ops::Range<usize>,
    x: &[*const u8],
    out: &[*mut f32],
) {
    if tiles.is_empty() || x.is_empty() {
        return;
    }
    debug_assert!(x.len() == out.len() && x.len() <= ROW_CHUNK && expert < matrix.experts);
    let data = matrix.tiles_from(expert, tiles.start);
    assert!(data.len() >= tiles.len() * matrix.tile_bytes);
    let widest = if operand == Operand::Q8 { 8 } else { 4 };
    let mut kernels: [(usize, Option<Kernel>); 4] = [(8, None), (4, None), (2, None), (1, None)];
    let outs: &mut [*mut f32; ROW_CHUNK] = &mut [std::ptr::null_mut(); ROW_CHUNK];
    // With one group of rows a single call goes through all tiles; else tiles stay in cache for
    // every group.
    let groups = x.len() / widest + (x.len() % widest).count_ones() as usize;
    let step = if groups == 1 {
        tiles.len()
    } else {
        (CACHED_TILES / matrix.tile_bytes).clamp(1, tiles.len())
    };
    for first in (0..tiles.len()).step_by(step) {
        let at = (tiles.start + first) * TILE;
        for (o, base) in outs.iter_mut().zip(out) {
            // SAFETY: `at` is below `matrix.rows`.
            *o = unsafe { base.add(at) };
        }
        let mut row = 0;
        while row < x.len() {
            let left = (x.len() - row).min(widest);
            let (rows, kernel) =
                kernels.iter_mut().find(|(r, _)| *r <= left).expect("one row always fits");
            let kernel = *kernel.get_or_insert_with(|| choose(level, operand, matrix.ty, *rows));
            let job = TileJob {
                tile: data[first * matrix.tile_bytes..].as_ptr(),
                tile_bytes: matrix.tile_bytes,
                tiles: step.min(tiles.len() - first),
                cols: matrix.cols,
                x: x[row..].as_ptr(),
                out: outs[row..].as_ptr(),
                outputs: matrix.rows - at,
                // Tiles are in cache after the first group of rows; the last group can fetch those
                // that follow.
                ahead: match groups {
                    1 => STREAM_AHEAD,
                    _ if row + *rows == x.len() => step * matrix.tile_bytes,
                    _ => 0,
                },
            };
            // SAFETY: the caller's promise, and `rows` pointers are left in `x` and `outs`.
            unsafe { kernel(&job) };
            row += *rows;
        }
    }
}

/// Writes row `row` of `matrix` as numbers.
pub(crate) fn decode_row(level: CpuLevel, matrix: &Packed, row: usize, out: &mut [f32]) {
    assert!(row < matrix.rows && out.len() == matrix.cols);
    let tile = matrix.tiles_from(0, row / TILE).as_ptr();
    // SAFETY: the tile has `cols` columns.
    unsafe {
        match matrix.ty {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => {
                decode_floats(level, matrix.ty, tile, row % TILE, out);
            }
            ty => with_format!(ty, decode_blocks => (level, tile, row % TILE, out)),
        }
    }
}

fn choose(level: CpuLevel, operand: Operand, ty: BlockType, rows: usize) -> Kernel {
    match (ty, operand) {
        (BlockType::F32 | BlockType::F16 | BlockType::BF16, _) => match rows {
            1 => floats::<1>(level, ty),
            2 => floats::<2>(level, ty),
            _ => floats::<4>(level, ty),
        },
        (_, Operand::F32) => match rows {
            1 => with_format!(ty, blocks_f32, 1 => (level)),
            2 => with_format!(ty, blocks_f32, 2 => (level)),
            _ => with_format!(ty, blocks_f32, 4 => (level)),
        },
        (_, Operand::Q8) => match rows {
            1 => with_format!(ty, blocks_q8, 1 => (level)),
            2 => with_format!(ty, blocks_q8, 2 => (level)),
            4 => with_format!(ty, blocks_q8, 4 => (level)),
            _ => with_format!(ty, blocks_q8, 8 => (level)),
        },
    }
}

/// Names the kernel of each level: the level's instructions are switched on where the generic body
/// is inlined.
macro_rules! leveled {
    ($name:ident, $body:ident, $($param:ident $(: $bound:path)?),*) => {
        fn $name<$($param $(: $bound)?,)* const R: usize>(level: CpuLevel) -> Kernel {
            unsafe fn scalar<$($param $(: $bound)?,)* const R: usize>(job: &TileJob) {
                unsafe { $body::<Scalar, $($param,)* R>(job) }
            }
            #[cfg(x86_lanes)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$($param $(: $bound)?,)* const R: usize>(job: &TileJob) {
                unsafe { $body::<Avx2, $($param,)* R>(job) }
            }
            #[cfg(x86_lanes)]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512<$($param $(: $bound)?,)* const R: usize>(job: &TileJob) {
                unsafe { $body::<Avx512, $($param,)* R>(job) }
            }
            match level {
                #[cfg(x86_lanes)]
                CpuLevel::Avx2 => avx2::<$($param,)* R>,
                #[cfg(x86_lanes)]
                CpuLevel::Avx512 => avx512::<$($param,)* R>,
                _ => scalar::<$($param,)* R>,
            }
        }
    };
}

leveled!(blocks_q8, run_q8, F: Format);
leveled!(blocks_f32, run_f32, F: Format);
leveled!(float_kernel, run_floats, T: Float);

fn floats<const R: usize>(level: CpuLevel, ty: BlockType) -> Kernel {
    match ty {
        BlockType::F16 => float_kernel::<Half, R>(level),
        BlockType::BF16 => float_kernel::<Brain, R>(level),
        _ => float_kernel::<Single, R>(level),
    }
}

#[inline(always)]
unsafe fn store<L: Lanes>(sums: L, out: *mut f32, lanes: usize) {
    unsafe {
        if lanes >= TILE {
            sums.store(out);
        } else {
            let mut all = [0f32; TILE];
            sums.store(all.as_mut_ptr());
            std::ptr::copy_nonoverlapping(all.as_ptr(), out, lanes);
        }
    }
}

/// int8: exact sums of 32 (or 16) products, then one fused multiply-add for each, in order of the
/// columns.
#[inline(always)]
unsafe fn run_q8<L: Lanes, F: Format, const R: usize>(job: &TileJob) {
    unsafe {
        let x = job.x.cast::<[*const Q8Block; R]>().read();
        let blocks = job.cols / (GROUP * F::Scales::GROUPS);
        for t in 0..job.tiles {
            let mut sums = [L::zero(); R];
            let mut block = job.tile.add(t * job.tile_bytes);
            for b in 0..blocks {
                let scales = block.add(F::SCALES);
                let shared = F::shared::<L>(scales);
                for g in 0..F::Scales::GROUPS {
                    let codes = F::Codes::unpack::<L>(block.add(g * F::Codes::BYTES));
                    if R >= 4 && job.ahead > 0 {
                        // A hint only: the address may lie beyond the matrix.
                        let next =
                            block.wrapping_add(job.ahead + g * (F::BYTES / F::Scales::GROUPS));
                        for line in 0..(F::BYTES / F::Scales::GROUPS).div_ceil(64) {
                            L::fetch(next.wrapping_add(64 * line));
                        }
                    }
                    let at = b * F::Scales::GROUPS + g;
                    if F::Scales::HALVES {
                        let low = F::Scales::group::<L>(scales, shared, 2 * g);
                        let high = F::Scales::group::<L>(scales, shared, 2 * g + 1);
                        for r in 0..R {
                            let x = x[r].add(at);
                            let dots = [
                                dots::<L, F, 4, 1>(&codes, [x], 0)[0],
                                dots::<L, F, 4, 1>(&codes, [x], 1)[0],
                            ];
                            let scale = L::splat((*x).scale);
                            sums[r] = L::from_ints(dots[0]).fma(low.0.mul(scale), sums[r]);
                            sums[r] = L::from_ints(dots[1]).fma(high.0.mul(scale), sums[r]);
                            if F::Scales::MINIMA {
                                sums[r] = low.1.fnma(L::splat((*x).scaled_half_sums[0]), sums[r]);
                                sums[r] = high.1.fnma(L::splat((*x).scaled_half_sums[1]), sums[r]);
                            }
                        }
                    } else {
                        let (scale, minimum) = F::Scales::group::<L>(scales, shared, g);
                        let mut x = x;
                        for r in 0..R {
                            x[r] = x[r].add(at);
                        }
                        let dots = dots::<L, F, 8, R>(&codes, x, 0);
                        for r in 0..R {
                            let x = x[r];
                            sums[r] =
                                L::from_ints(dots[r]).fma(scale.mul(L::splat((*x).scale)), sums[r]);
                            if F::Scales::MINIMA {
                                sums[r] = minimum.fnma(L::splat((*x).scaled_sum), sums[r]);
                            }
                        }
                    }
                }
                block = block.add(F::BYTES);
            }
            for r in 0..R {
                store(sums[r], (*job.out.add(r)).add(t * TILE), job.outputs - t * TILE);
            }
        }
    }
}

#[inline(always)]
unsafe fn start<L: Lanes, F: Format>(minus_sum: i32) -> L::Ints {
    unsafe {
        match F::OFFSET {
            0 => L::int_splat(0),
            1 => L::int_splat(minus_sum),
            4 => L::int_shl::<2>(L::int_splat(minus_sum)),
            8 => L::int_shl::<3>(L::int_splat(minus_sum)),
            16 => L::int_shl::<4>(L::int_splat(minus_sum)),
            32 => L::int_shl::<5>(L::int_splat(minus_sum)),
            _ => L::int_shl::<7>(L::int_splat(minus_sum)),
        }
    }
}

/// The dot products of a group's codes with `R` rows, or with `N` of 4 of half a group's, the first
/// or the second.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Format, const N: usize, const R: usize>(
    codes: &[L::Ints; 8],
    x: [*const Q8Block; R],
    part: usize,
) -> [L::Ints; R] {
    unsafe {
        debug_assert!(N * (part + 1) <= codes.len());
        let codes = &*codes[N * part..].as_ptr().cast::<[L::Ints; N]>();
        let mut dots = [L::int_splat(0); R];
        let mut bytes = [std::ptr::null(); R];
        for r in 0..R {
            let x = x[r];
            dots[r] =
                start::<L, F>(if N == 8 { (*x).minus_sum } else { (*x).minus_half_sums[part] });
            bytes[r] = (&raw const (*x).q).cast::<i8>().add(4 * N * part);
        }
        // The largest codes of the formats are constants of types, which cannot be passed on as
        // one.
        match F::Codes::MOST {
            ..=15 => L::dots::<15, N, R>(dots, codes, &bytes),
            16..=31 => L::dots::<31, N, R>(dots, codes, &bytes),
            32..=63 => L::dots::<63, N, R>(dots, codes, &bytes),
            _ => L::dots::<255, N, R>(dots, codes, &bytes),
        }
    }
}

/// The four columns of a vector of codes as weights.
#[inline(always)]
unsafe fn weights<L: Lanes, F: Format>(codes: L::Ints, (scale, minimum): (L, L)) -> [L; 4] {
    unsafe {
        let mask = L::int_splat(255);
        let bytes = [
            L::int_and(codes, mask),
            L::int_and(L::int_shr::<8>(codes), mask),
            L::int_and(L::int_shr::<16>(codes), mask),
            L::int_shr::<24>(codes),
        ];
        let mut weights = [L::zero(); 4];
        for i in 0..4 {
            weights[i] = F::number::<L>(bytes[i]).mul(scale);
            if F::Scales::MINIMA {
                weights[i] = weights[i].sub(minimum);
            }
        }
        weights
    }
}

/// The 32 columns of group `g` of a block as weights.
#[inline(always)]
unsafe fn group_weights<L: Lanes, F: Format>(block: *const u8, g: usize) -> [[L; 4]; 8] {
    unsafe {
        let scales = block.add(F::SCALES);
        let shared = F::shared::<L>(scales);
        let codes = F::Codes::unpack::<L>(block.add(g * F::Codes::BYTES));
        let mut columns = [[L::zero(); 4]; 8];
        for j in 0..8 {
            let scale = if F::Scales::HALVES { 2 * g + j / 4 } else { g };
            columns[j] = weights::<L, F>(codes[j], F::Scales::group::<L>(scales, shared, scale));
        }
        columns
    }
}

/// f32: four sums by column modulo four, added at the end.
#[inline(always)]
unsafe fn run_f32<L: Lanes, F: Format, const R: usize>(job: &TileJob) {
    unsafe {
        let x = job.x.cast::<[*const f32; R]>().read();
        for t in 0..job.tiles {
            let tile = job.tile.add(t * job.tile_bytes);
            let mut sums = [[L::zero(); 4]; R];
            for group in 0..job.cols / GROUP {
                let block = tile.add(group / F::Scales::GROUPS * F::BYTES);
                let columns = group_weights::<L, F>(block, group % F::Scales::GROUPS);
                for j in 0..8 {
                    for r in 0..R {
                        for i in 0..4 {
                            let x = L::splat(*x[r].add(group * GROUP + 4 * j + i));
                            sums[r][i] = columns[j][i].fma(x, sums[r][i]);
                        }
                    }
                }
            }
            for r in 0..R {
                store(join(sums[r]), (*job.out.add(r)).add(t * TILE), job.outputs - t * TILE);
            }
        }
    }
}

#[inline(always)]
unsafe fn join<L: Lanes>(sums: [L; 4]) -> L {
    unsafe { sums[0].add(sums[1]).add(sums[2].add(sums[3])) }
}

/// An element type of float matrices.
trait Float {
    const BYTES: usize;
    unsafe fn load<L: Lanes>(from: *const u8) -> L;
}

struct Single;
struct Half;
struct Brain;

impl Float for Single {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        unsafe { L::load(from.cast()) }
    }
}

impl Float for Half {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        unsafe { L::load_f16(from.cast()) }
    }
}

impl Float for Brain {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L {
        unsafe { L::load_bf16(from.cast()) }
    }
}

#[inline(always)]
unsafe fn run_floats<L: Lanes, T: Float, const R: usize>(job: &TileJob) {
    unsafe {
        let x = job.x.cast::<[*const f32; R]>().read();
        for t in 0..job.tiles {
            let tile = job.tile.add(t * job.tile_bytes);
            let mut sums = [[L::zero(); 4]; R];
            for k in (0..job.cols).step_by(4) {
                for i in 0..4 {
                    if k + i < job.cols {
                        let w = T::load::<L>(tile.add((k + i) * TILE * T::BYTES));
                        for r in 0..R {
                            sums[r][i] = w.fma(L::splat(*x[r].add(k + i)), sums[r][i]);
                        }
                    }
                }
            }
            for r in 0..R {
                store(join(sums[r]), (*job.out.add(r)).add(t * TILE), job.outputs - t * TILE);
            }
        }
    }
}

/// A row of a tile of blocks as numbers.
unsafe fn decode_blocks<F: Format>(level: CpuLevel, tile: *const u8, lane: usize, out: &mut [f32]) {
    #[inline(always)]
    unsafe fn body<L: Lanes, F: Format>(tile: *const u8, lane: usize, out: &mut [f32]) {
        unsafe {
            for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
                let block = tile.add(group / F::Scales::GROUPS * F::BYTES);
                let columns = group_weights::<L, F>(block, group % F::Scales::GROUPS);
                let mut all = [0f32; GROUP * TILE];
                for j in 0..GROUP {
                    columns[j / 4][j % 4].store(all.as_mut_ptr().add(j * TILE));
                }
                for j in 0..GROUP {
                    out[j] = all[j * TILE + lane];
                }
            }
        }
    }
    #[cfg(x86_lanes)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<F: Format>(tile: *const u8, lane: usize, out: &mut [f32]) {
        unsafe { body::<Avx2, F>(tile, lane, out) }
    }
    unsafe {
        match level {
            #[cfg(x86_lanes)]
            CpuLevel::Avx2 | CpuLevel::Avx512 => avx2::<F>(tile, lane, out),
            _ => body::<Scalar, F>(tile, lane, out),
        }
    }
}

unsafe fn decode_floats(_: CpuLevel, ty: BlockType, tile: *const u8, lane: usize, out: &mut [f32]) {
    unsafe {
        for (k, o) in out.iter_mut().enumerate() {
            let at = k * TILE + lane;
            *o = match ty {
                BlockType::F16 => half::f16::from_bits(*tile.cast::<u16>().add(at)).to_f32(),
                BlockType::BF16 => half::bf16::from_bits(*tile.cast::<u16>().add(at)).to_f32(),
                _ => *tile.cast::<f32>().add(at),
            };
        }
    }
}
