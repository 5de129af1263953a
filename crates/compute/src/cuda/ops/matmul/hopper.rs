//! Products of 17 to 64 rows on Hopper: what `kernels/matmul_hopper.cu` needs beside the cuts that
//! it shares with the other kernels. Nothing here changes a bit.

use super::{Geometry, Group};
use crate::{
    Error,
    cuda::{
        args::{Kernel, MatmulArgs, kernel},
        block::DeviceMemory,
        driver::DeviceInfo,
        pack::TileFormat,
        run::{Run, arranged_bytes},
    },
};

/// Rows of a launch, at most.
pub(super) const ROWS: usize = 64;
/// Row tiles of a unit: one a warp of a warpgroup.
const UNIT_TILES: usize = 4;
/// Warpgroups of a block that multiply, at most; one more asks for what they multiply.
/// Sums of more than 32 rows and tiles of any format leave registers for two.
fn groups_of(rows: usize, format: Option<TileFormat>) -> usize {
    match (rows, format) {
        (..=32, _) | (_, Some(TileFormat::Q4_K | TileFormat::Q6_K | TileFormat::Q8_0)) => 3,
        _ => 2,
    }
}

/// Stages of tiles that help.
const MOST_STAGES: usize = 6;
/// Superblocks of a slice, at most: a bit each.
const MOST_DEPTH: usize = 32;
/// Bytes of a stage's barriers.
const BARRIERS: usize = 16;
/// Groups of fewer bytes of weights are faster 16 rows at a time.
const LEAST_BYTES: usize = 4 << 20;

/// How a group's work is laid out.
#[derive(Debug, PartialEq)]
struct Layout {
    /// `[shares][most_units]`: first row tile and number of row tiles.
    units: Vec<[i32; 2]>,
    most_units: usize,
    /// `[slices][tiles]`: where chains of sums begin.
    chains: Vec<u32>,
}

/// Bytes of the sums of row tiles that blocks park for others of their cluster.
fn parked_bytes(g: &Geometry) -> usize {
    g.slices * g.shares * g.owned * g.slices * ROWS / 8 * 512
}

/// A layout on the device.
pub(super) struct Hopper {
    layout: Layout,
    pub(super) parked_bytes: usize,
    /// `units`, then `chains`.
    memory: DeviceMemory,
}

/// Row tiles `from..to` as units of up to four of one format: first row tile and number.
fn units(group: &Group, from: usize, to: usize) -> Vec<[i32; 2]> {
    let mut units: Vec<[i32; 2]> = Vec::new();
    let (mut first, mut before) = (0, None);
    for &(tiles, format) in &group.matrices {
        for tile in from.max(first)..to.min(first + tiles) {
            match units.last_mut() {
                Some(unit) if before == Some(format) && unit[1] < UNIT_TILES as i32 => unit[1] += 1,
                _ => units.push([tile as i32, 1]),
            }
            before = Some(format);
        }
        first += tiles;
    }
    units
}

fn bytes(group: &Group) -> usize {
    let of_column = |(tiles, format): &(usize, TileFormat)| tiles * format.tile_bytes();
    group.matrices.iter().map(of_column).sum::<usize>() * group.superblocks
}

fn layout(group: &Group, g: &Geometry, limits: &DeviceInfo) -> Option<Layout> {
    let depth = group.superblocks.div_ceil(g.slices);
    if limits.major != 9
        || g.join
        || bytes(group) < LEAST_BYTES
        || depth > MOST_DEPTH
        || room(group, g, limits, usize::MAX, ROWS).is_none()
    {
        return None;
    }
    let of_share = |share| {
        units(group, group.first_tile(share, g.shares), group.first_tile(share + 1, g.shares))
    };
    let of_shares: Vec<_> = (0..g.shares).map(of_share).collect();
    let most_units = of_shares.iter().map(Vec::len).max()?;
    let mut units = vec![[0; 2]; g.shares * most_units];
    for (to, from) in units.chunks_mut(most_units).zip(&of_shares) {
        to[..from.len()].copy_from_slice(from);
    }
    let mut chains = vec![0; g.slices * group.tiles()];
    for block in &group.cuts(g) {
        let [slice, from] = [17, 20].map(|i| block[i] as usize);
        for at in block[1..g.warps].iter().filter(|&&at| at & 255 != 0) {
            chains[slice * group.tiles() + from + (at >> 8) as usize] |= 1 << (at & 255);
        }
    }
    Some(Layout { units, most_units, chains })
}

/// Rows that the kernel for so many works on.
fn padded_rows(rows: usize) -> usize {
    match rows {
        ..=24 => 24,
        25..=32 => 32,
        33..=48 => 48,
        _ => ROWS,
    }
}

/// What a launch for a number of rows has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stages {
    /// Of tiles, one for each warp that multiplies.
    pub(super) tiles: usize,
    /// Of activations, a superblock each.
    pub(super) x: usize,
    /// Warps that multiply.
    pub(super) warps: usize,
    pub(super) shared: usize,
}

/// Threads that a block has beside those that multiply.
pub(super) const ASKING: usize = 128;

/// Stages for a number of rows, where no share has more than `units` units; none if they do not
/// fit.
fn room(
    group: &Group,
    g: &Geometry,
    limits: &DeviceInfo,
    units: usize,
    rows: usize,
) -> Option<Stages> {
    let fits = |(groups, x, least): (usize, usize, usize)| {
        let (warps, rows) = (groups * UNIT_TILES, padded_rows(rows));
        // Activations, and what chains of sums came to.
        let others = x * (rows * 544 + BARRIERS) + warps * rows * 64;
        let each = warps * g.stage_bytes + BARRIERS;
        let tiles = ((limits.shared as usize).checked_sub(others)? / each).min(MOST_STAGES);
        (tiles >= least).then_some(Stages { tiles, x, warps, shared: others + tiles * each })
    };
    let cuts = |groups| [(groups, 3, 3), (groups, 2, 3), (groups, 2, 2)];
    (1..=units.min(groups_of(rows, group.format()))).rev().flat_map(cuts).find_map(fits)
}

/// Bytes of scratch where the kernel is used: sums that wait for other slices, and chosen rows as it
/// reads them.
pub(super) fn scratch_bytes(group: &Group, g: &Geometry, limits: &DeviceInfo) -> Option<usize> {
    let arranged = arranged_bytes(group.superblocks * 256);
    layout(group, g, limits).map(|_| parked_bytes(g) + arranged)
}

pub(super) fn kernel(rows: usize, format: Option<TileFormat>) -> Kernel<MatmulArgs> {
    match (padded_rows(rows), format) {
        (24, Some(TileFormat::Q4_K)) => kernel::MATMUL_HOPPER_24_Q4_K,
        (24, Some(TileFormat::Q6_K)) => kernel::MATMUL_HOPPER_24_Q6_K,
        (24, Some(TileFormat::Q8_0)) => kernel::MATMUL_HOPPER_24_Q8_0,
        (24, _) => kernel::MATMUL_HOPPER_24_MIXED,
        (32, Some(TileFormat::Q4_K)) => kernel::MATMUL_HOPPER_32_Q4_K,
        (32, Some(TileFormat::Q6_K)) => kernel::MATMUL_HOPPER_32_Q6_K,
        (32, Some(TileFormat::Q8_0)) => kernel::MATMUL_HOPPER_32_Q8_0,
        (32, _) => kernel::MATMUL_HOPPER_32_MIXED,
        (48, Some(TileFormat::Q4_K)) => kernel::MATMUL_HOPPER_48_Q4_K,
        (48, Some(TileFormat::Q6_K)) => kernel::MATMUL_HOPPER_48_Q6_K,
        (48, Some(TileFormat::Q8_0)) => kernel::MATMUL_HOPPER_48_Q8_0,
        (48, _) => kernel::MATMUL_HOPPER_48_MIXED,
        (_, Some(TileFormat::Q4_K)) => kernel::MATMUL_HOPPER_64_Q4_K,
        (_, Some(TileFormat::Q6_K)) => kernel::MATMUL_HOPPER_64_Q6_K,
        (_, Some(TileFormat::Q8_0)) => kernel::MATMUL_HOPPER_64_Q8_0,
        _ => kernel::MATMUL_HOPPER_64_MIXED,
    }
}

/// Whether the kernel is there: images that are not for Hopper have none.
pub(super) fn is_here(run: &Run<'_>) -> bool {
    run.limits.major == 9 && run.kernels.have(kernel::MATMUL_HOPPER_64_MIXED)
}

impl Hopper {
    /// What the kernel needs for a group, if it is for this device and these matrices.
    pub(super) fn of(run: &Run<'_>, group: &Group, g: &Geometry) -> Result<Option<Self>, Error> {
        if !is_here(run) {
            return Ok(None);
        }
        let Some(layout) = layout(group, g, run.limits) else { return Ok(None) };
        let (units, chains): (&[u8], &[u8]) = (
            bytemuck::cast_slice(layout.units.as_flattened()),
            bytemuck::cast_slice(&layout.chains),
        );
        let memory =
            run.driver.allocate_as_is(units.len() + chains.len(), "how products are cut")?;
        run.driver.upload(memory.address(), units)?;
        run.driver.upload(memory.address() + units.len() as u64, chains)?;
        Ok(Some(Self { parked_bytes: parked_bytes(g), layout, memory }))
    }

    pub(super) fn stages(
        &self,
        group: &Group,
        g: &Geometry,
        limits: &DeviceInfo,
        rows: usize,
    ) -> Stages {
        room(group, g, limits, self.layout.most_units, rows).expect("launches fit")
    }

    pub(super) fn tell(&self, args: &mut MatmulArgs, stages: &Stages) {
        args.stages = stages.tiles as i32;
        args.held = stages.x as i32;
        args.most_units = self.layout.most_units as i32;
        args.units = self.memory.address();
        args.chains = self.memory.address() + (self.layout.units.len() * 8) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            geometry,
            shapes::{H200, LARGE, group},
        },
        *,
    };
    use TileFormat::{F16, Q4_K, Q6_K, Q8_0};

    #[test]
    fn units_have_one_format() {
        let group = group(&[(40, Q4_K), (80, Q6_K), (16, Q6_K), (30, F16)], 512);
        assert_eq!(units(&group, 0, 11), [[0, 3], [3, 4], [7, 2], [9, 2]]);
        assert_eq!(units(&group, 2, 5), [[2, 1], [3, 2]]);
    }

    #[test]
    fn every_row_tile_is_multiplied_once() {
        for (matrices, cols) in LARGE {
            let group = group(matrices, cols);
            let g = geometry(&group, &H200);
            let layout = layout(&group, &g, &H200).expect("these are for this kernel");
            let mut tiles: Vec<usize> = Vec::new();
            for &[first, count] in &layout.units {
                assert!((0..=UNIT_TILES as i32).contains(&count));
                tiles.extend(first as usize..(first + count) as usize);
            }
            tiles.sort_unstable();
            assert!(tiles.into_iter().eq(0..group.tiles()), "{matrices:?}");
            for rows in 17..=ROWS {
                let room = room(&group, &g, &H200, layout.most_units, rows).expect("fits");
                assert!(room.shared <= H200.shared as usize && room.x > 1 && room.tiles > 1);
            }
        }
    }

    #[test]
    fn others_are_left_to_the_other_kernels() {
        // Slices that are no cluster, small matrices, and other devices.
        for (matrices, cols) in [([(5120, Q8_0)], 25600), ([(512, Q4_K)], 2048)] {
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
        let layout = layout(&group, &g, &H200).expect("for this kernel");
        let of_slice = |slice: usize| &layout.chains[slice * group.tiles()..][..group.tiles()];
        let mut counted = 0;
        for block in group.cuts(&g) {
            let tiles = &of_slice(block[17] as usize)[block[20] as usize..][..block[21] as usize];
            for at in block[1..g.warps].iter().filter(|&&at| at & 255 != 0) {
                assert!(tiles[(at >> 8) as usize] >> (at & 255) & 1 == 1);
                counted += 1;
            }
        }
        let total: u32 = layout.chains.iter().map(|begins| begins.count_ones()).sum();
        assert_eq!(total, counted);
        assert!(layout.chains.iter().all(|begins| begins & 1 == 0));
    }
}
