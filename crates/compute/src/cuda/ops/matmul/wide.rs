//! Products of more than 16 rows on Hopper: `kernels/matmul_wide.cu` reads the weights once for up to 32 rows and gives
//! the bits of `kernels/matmul.cu`, whose cuts it keeps. How its own work is laid out changes no bit.

use super::{DIRECT, Geometry, Group, MAX_PRODUCTS, ProductArgs, clusters};
use crate::{
    Error,
    cuda::{
        args::{Activation, Address},
        driver::{DeviceInfo, DeviceMemory, Shape},
        pack::TileFormat,
        run::Run,
    },
};

/// Rows of a launch, at most.
const ROWS: usize = 32;
/// Warpgroups of a block that multiply, units each works on side by side.
const GROUPS: usize = 3;
const UNITS: usize = 3;
/// Pieces of a row tile's sum within a slice, at most.
const PIECES: usize = 4;
/// Superblocks of activations in shared memory, arranged and as they come.
const X_STAGES: usize = 3;
const RAW_STAGES: usize = 2;
/// Smaller groups are not worth it: bytes of their weights.
const LEAST_BYTES: usize = 8 << 20;
/// Tiles a warp keeps ahead, at most.
const MAX_SLOTS: usize = 8;
/// An F16 tile passes through the ring in two halves.
const HALF_F16: usize = 4096;
/// Words of a row tile in `Layout::chains`.
const CHAIN_WORDS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct WideArgs {
    products: [ProductArgs; MAX_PRODUCTS],
    x: Activation,
    chosen: Address,
    chains: Address,
    work: Address,
    product_count: i32,
    tiles: i32,
    first_row: i32,
    rows: i32,
    slices: i32,
    spread: i32,
    rounds: i32,
    slots: i32,
    slot_bytes: i32,
    owned: i32,
}

// As `kernels/matmul_wide.cu` asserts it.
const _: () = assert!(size_of::<WideArgs>() == 352);

/// How a group's work is laid out, whatever the rows.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    /// Blocks that share the slices of a share's columns, as a cluster: all slices, or 1.
    spread: usize,
    shares: usize,
    rounds: usize,
    /// Bytes of the largest piece that passes through a ring.
    slot_bytes: usize,
    /// Row tiles that one block of a cluster adds up, at most.
    owned: usize,
    /// `[shares][rounds][GROUPS][UNITS]`: first row tile, number of row tiles.
    work: Vec<[i32; 2]>,
    /// Of each row tile, bit k: a chain of sums begins with superblock k, in the middle of a slice.
    chains: Vec<[u32; CHAIN_WORDS]>,
}

/// A layout on the device.
pub(super) struct Wide {
    layout: Layout,
    /// `work`, then `chains`.
    memory: DeviceMemory,
}

/// Where the decoding kernel's warps cut row tiles; none where a tile has more pieces than the wide kernel keeps.
fn chains(group: &Group, g: &Geometry) -> Option<Vec<[u32; CHAIN_WORDS]>> {
    let mut chains = vec![[0; CHAIN_WORDS]; group.tiles()];
    for block in group.cuts(g) {
        let [from, tiles, first_superblock] = [20, 21, 22].map(|i| block[i] as usize);
        let mut pieces = vec![1; tiles];
        for at in block[1..g.warps].iter().filter(|&&at| at & 255 != 0) {
            let (tile, superblock) = ((at >> 8) as usize, first_superblock + (at & 255) as usize);
            let word = &mut chains[from + tile][superblock / 32];
            pieces[tile] += i32::from(*word >> (superblock % 32) & 1 == 0);
            *word |= 1 << (superblock % 32);
        }
        if pieces.iter().any(|&pieces| pieces > PIECES as i32) {
            return None;
        }
    }
    Some(chains)
}

/// Rows that the kernel for so many works on.
fn padded_rows(rows: usize) -> usize {
    if rows <= 24 { 24 } else { ROWS }
}

fn piece_bytes(format: TileFormat) -> usize {
    match format {
        TileFormat::F16 => HALF_F16,
        format => format.tile_bytes(),
    }
}

/// Bytes of shared memory of a block, as the head of `kernels/matmul_wide.cu` states them.
fn shared_bytes(layout: &Layout, rows: usize, slots: usize) -> usize {
    let rows = padded_rows(rows);
    let activations = rows * (X_STAGES * 544 + RAW_STAGES * 576);
    let rings = GROUPS * 4 * slots * layout.slot_bytes;
    let parts = (layout.spread - 1) * layout.owned * rows * 64;
    activations + rings + parts + 2 * (X_STAGES + GROUPS * 4 * slots) * 8
}

fn slots(layout: &Layout, rows: usize, limits: &DeviceInfo) -> Option<usize> {
    (2..=MAX_SLOTS).rev().find(|&slots| shared_bytes(layout, rows, slots) <= limits.shared as usize)
}

/// The layout for a number of blocks that share the slices; none where it has no room.
fn spread_over(group: &Group, g: &Geometry, limits: &DeviceInfo, spread: usize) -> Option<Layout> {
    let shares = clusters(limits, spread).min(group.tiles());
    let first_tile = |share| group.first_tile(share, shares);
    let of_shares: Vec<Vec<[i32; 2]>> =
        (0..shares).map(|share| group.units(first_tile(share), first_tile(share + 1))).collect();
    let most_units = of_shares.iter().map(Vec::len).max()?;
    let rounds = most_units.div_ceil(GROUPS * UNITS);
    let side_by_side = most_units.div_ceil(GROUPS).min(UNITS);
    let mut work = vec![[0; 2]; shares * rounds * GROUPS * UNITS];
    for (share, units) in of_shares.iter().enumerate() {
        let mut rest = units.as_slice();
        for round in 0..rounds {
            let (here, after) = rest.split_at(rest.len().div_ceil(rounds - round));
            rest = after;
            for (i, unit) in here.iter().enumerate() {
                work[((share * rounds + round) * GROUPS + i % GROUPS) * UNITS + i / GROUPS] = *unit;
            }
        }
    }
    let layout = Layout {
        spread,
        shares,
        rounds,
        slot_bytes: group.matrices.iter().map(|&(_, format)| piece_bytes(format)).max()?,
        owned: (GROUPS * 4 * side_by_side).div_ceil(spread),
        work,
        chains: chains(group, g)?,
    };
    let fits = slots(&layout, ROWS, limits).is_some() && (spread == 1 || rounds == 1);
    fits.then_some(layout)
}

/// Where the wide kernel is worth it.
fn layout(group: &Group, g: &Geometry, limits: &DeviceInfo) -> Option<Layout> {
    let bytes = group.matrices.iter().map(|(tiles, format)| tiles * format.tile_bytes()).sum::<usize>();
    let small = bytes * group.superblocks < LEAST_BYTES;
    if limits.major != 9 || g.join || small || group.superblocks > 32 * CHAIN_WORDS {
        return None;
    }
    // Few row tiles make few chains: blocks that take a slice each have shorter ones.
    let few = group.tiles() < 6 * limits.multiprocessors as usize;
    let spread = if few { g.slices } else { 1 };
    spread_over(group, g, limits, spread).or_else(|| spread_over(group, g, limits, 1))
}

fn kernel(rows: usize, format: Option<TileFormat>) -> &'static str {
    match (rows, format) {
        (..=24, Some(TileFormat::Q4_K)) => "matmul_wide_24_q4_k",
        (..=24, Some(TileFormat::Q6_K)) => "matmul_wide_24_q6_k",
        (..=24, _) => "matmul_wide_24_mixed",
        (_, Some(TileFormat::Q4_K)) => "matmul_wide_32_q4_k",
        (_, Some(TileFormat::Q6_K)) => "matmul_wide_32_q6_k",
        _ => "matmul_wide_32_mixed",
    }
}

impl Wide {
    /// What the wide kernel needs for a group, if it is for this device and these matrices.
    pub(super) fn of(run: &Run<'_>, group: &Group, g: &Geometry) -> Result<Option<Self>, Error> {
        // Images that are not for this architecture have no such kernel.
        if run.limits.major != 9 || run.kernels.get("matmul_wide_32_mixed").is_err() {
            return Ok(None);
        }
        let Some(layout) = layout(group, g, run.limits) else { return Ok(None) };
        let (work, chains): (&[u8], &[u8]) = (
            bytemuck::cast_slice(layout.work.as_flattened()),
            bytemuck::cast_slice(layout.chains.as_flattened()),
        );
        let memory = run.driver.allocate_as_is(work.len() + chains.len(), "how products are cut")?;
        run.driver.upload(memory.address(), work)?;
        run.driver.upload(memory.address() + work.len() as u64, chains)?;
        Ok(Some(Self { layout, memory }))
    }

    /// Launches the products of a pass of more than 16 rows.
    pub(super) fn launch(
        &self,
        run: &Run<'_>,
        group: &Group,
        slices: usize,
        products: &[ProductArgs; MAX_PRODUCTS],
        (x, chosen, rows): (Activation, Address, usize),
    ) -> Result<(), Error> {
        let layout = &self.layout;
        let uniform = group.matrices.iter().all(|&(_, format)| format == group.matrices[0].1);
        let launches = rows.div_ceil(ROWS);
        let each = rows.div_ceil(launches).next_multiple_of(8);
        for first in (0..rows).step_by(each) {
            let count = each.min(rows - first);
            let slots = slots(layout, count, run.limits).expect("fewer rows take less");
            let args = WideArgs {
                products: products.map(|p| ProductArgs { format: p.format % DIRECT, ..p }),
                x,
                chosen,
                chains: self.memory.address() + (layout.work.len() * 8) as u64,
                work: self.memory.address(),
                product_count: group.matrices.len() as i32,
                tiles: group.tiles() as i32,
                first_row: first as i32,
                rows: count as i32,
                slices: slices as i32,
                spread: layout.spread as i32,
                rounds: layout.rounds as i32,
                slots: slots as i32,
                slot_bytes: layout.slot_bytes as i32,
                owned: layout.owned as i32,
            };
            let shape = Shape {
                grid: [(layout.spread * layout.shares) as u32, 1, 1],
                block: (GROUPS + 1) as u32 * 128,
                shared: shared_bytes(layout, count, slots) as u32,
                cluster: layout.spread as u32,
            };
            run.launch(kernel(count, uniform.then_some(group.matrices[0].1)), shape, &args)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            UNIT_TILES, geometry,
            shapes::{H200, LARGE, group},
        },
        *,
    };
    use TileFormat::{F16, Q4_K, Q8_0};

    #[test]
    fn every_row_tile_is_multiplied_once() {
        for (matrices, cols) in LARGE {
            let group = group(matrices, cols);
            let g = geometry(&group, &H200);
            let layout = layout(&group, &g, &H200).expect("these are for the wide kernel");
            let mut tiles: Vec<usize> = Vec::new();
            for &[first, count] in &layout.work {
                assert!((0..=UNIT_TILES as i32).contains(&count));
                tiles.extend(first as usize..(first + count) as usize);
            }
            tiles.sort_unstable();
            assert!(tiles.into_iter().eq(0..group.tiles()), "{matrices:?}");
            assert!(layout.spread == 1 || (layout.spread == g.slices && layout.rounds == 1));
            assert!(layout.spread * layout.shares <= 132 && layout.owned * layout.spread >= GROUPS * 4);
            for rows in 1..=ROWS {
                let slots = slots(&layout, rows, &H200).expect("fits");
                assert!(shared_bytes(&layout, rows, slots) <= H200.shared as usize);
            }
        }
    }

    #[test]
    fn others_are_left_to_the_decoding_kernel() {
        // Slices that are no cluster, tiles in more pieces than are kept, small matrices, and other devices.
        for (matrices, cols) in
            [(vec![(5120, Q8_0)], 25600), (vec![(4096, F16)], 2048), (vec![(512, Q4_K)], 2048)]
        {
            let group = group(&matrices, cols);
            assert_eq!(layout(&group, &geometry(&group, &H200), &H200), None, "{matrices:?}");
        }
        let group = group(&[(17408, Q4_K)], 5120);
        let other = DeviceInfo { major: 10, ..H200 };
        assert_eq!(layout(&group, &geometry(&group, &other), &other), None);
    }

    #[test]
    fn chains_begin_where_warps_begin() {
        let group = group(&[(5120, Q4_K)], 17408);
        let g = geometry(&group, &H200);
        let chains = chains(&group, &g).expect("few pieces");
        let begins =
            |tile: usize, superblock: usize| chains[tile][superblock / 32] >> (superblock % 32) & 1 != 0;
        let mut counted = 0;
        for block in group.cuts(&g) {
            for at in block[1..g.warps].iter().filter(|&&at| at & 255 != 0) {
                assert!(begins((block[20] + (at >> 8)) as usize, (block[22] + (at & 255)) as usize));
                counted += 1;
            }
        }
        let total: u32 = chains.iter().flatten().map(|word| word.count_ones()).sum();
        assert_eq!(total, counted);
        assert!(
            (0..group.tiles())
                .all(|tile| (0..g.slices).all(|s| !begins(tile, group.superblocks * s / g.slices)))
        );
    }
}
