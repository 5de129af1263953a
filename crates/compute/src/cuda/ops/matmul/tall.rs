//! Products of 33 to 64 rows on Hopper: `kernels/matmul_tall.cu` reads the weights once and gives the bits of
//! `kernels/matmul.cu`, whose cuts it keeps; `kernels/arrange.cu` brings the activations into its order. How its own work
//! is laid out changes no bit.

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
use std::ops::RangeInclusive;

/// The numbers of rows there are kernels for.
const ROWS: [usize; 2] = [48, 64];
/// The numbers of rows they are launched for.
pub(super) const FOR: RangeInclusive<usize> = 33..=64;
/// Warpgroups of a block, and warps.
const WARPGROUPS: usize = 3;
const WARPS: usize = 4 * WARPGROUPS;
/// Units of a round, at most.
const MAX_UNITS: usize = 32;
/// Smaller groups are not worth it: bytes of their weights.
const LEAST_BYTES: usize = 8 << 20;
/// Tiles a warp keeps ahead, and superblocks of activations, at most.
const MAX_SLOTS: usize = 4;
const MAX_X_STAGES: usize = 8;
/// Superblocks of a block, at most: bits of a tile in `Layout::cuts`.
const MAX_DEPTH: usize = 32;
/// An F16 tile passes through the ring in four parts.
const QUARTER_F16: usize = 2048;
/// Bytes of 8 rows of a superblock, arranged, and how many such blocks a superblock has in memory.
const X_BYTES: usize = 4352;
const X_BLOCKS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct TallArgs {
    products: [ProductArgs; MAX_PRODUCTS],
    x: Address,
    cuts: Address,
    work: Address,
    kept: Address,
    product_count: i32,
    tiles: i32,
    superblocks: i32,
    rows: i32,
    slices: i32,
    rounds: i32,
    units: i32,
    x_stages: i32,
    slots: i32,
    slot_bytes: i32,
    parked: i32,
    pieces: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ArrangeArgs {
    x: Activation,
    chosen: Address,
    out: Address,
    rows: i32,
    pad: i32,
}

// As `kernels/matmul_tall.cu` and `kernels/arrange.cu` assert them.
const _: () = assert!(size_of::<TallArgs>() == 336 && size_of::<ArrangeArgs>() == 56);

/// How a group's work is laid out for one of `ROWS`.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    rows: usize,
    /// Of the columns: the blocks of a cluster.
    slices: usize,
    shares: usize,
    rounds: usize,
    /// Of a round, at most.
    units: usize,
    /// Bytes of the largest piece that passes through a ring.
    slot_bytes: usize,
    /// Row tiles of a round, at most.
    parked: usize,
    /// Pieces of sums that a block keeps, and whether they are in shared memory.
    pieces: usize,
    inside: bool,
    x_stages: usize,
    slots: usize,
    /// `[shares][rounds][units]`: first row tile, number of row tiles, where the first is parked, product.
    work: Vec<[i32; 4]>,
    /// `[slices][tiles]`: bits of the superblocks that begin a chain of sums; where the first piece is kept.
    cuts: Vec<[i32; 2]>,
}

/// Layouts on the device, with the addresses of their `work` and `cuts`.
pub(super) struct Tall {
    layouts: Vec<(Layout, Address, Address)>,
    _memory: DeviceMemory,
}

/// Row tile and superblock of every place where a warp of the decoding kernel begins within a slice of a row tile, in
/// order.
fn chains(group: &Group, g: &Geometry) -> Vec<(usize, usize)> {
    let mut chains: Vec<_> = group
        .cuts(g)
        .iter()
        .flat_map(|block| {
            let [from, first_superblock] = [20, 22].map(|i| block[i] as usize);
            let cuts = block[1..g.warps].iter().filter(|&&at| at & 255 != 0);
            cuts.map(move |&at| (from + (at >> 8) as usize, first_superblock + (at & 255) as usize))
                .collect::<Vec<_>>()
        })
        .collect();
    chains.sort_unstable();
    chains.dedup();
    chains
}

fn piece_bytes(format: TileFormat) -> usize {
    match format {
        TileFormat::F16 => QUARTER_F16,
        format => format.tile_bytes(),
    }
}

/// Bytes of a parked tile.
fn park_bytes(rows: usize) -> usize {
    rows * 64
}

/// Bytes of shared memory of a block, as the head of `kernels/matmul_tall.cu` states them.
fn shared_bytes(l: &Layout) -> usize {
    let parks = l.parked + if l.inside { l.pieces } else { 0 };
    let barriers = 2 * l.x_stages + WARPS * l.slots + 4 * l.units + 4;
    l.x_stages * l.rows * 544 + WARPS * l.slots * l.slot_bytes + parks * park_bytes(l.rows) + barriers * 8
}

/// As many slots and stages as there is room for; none where it is too little.
fn with_room(layout: &Layout, limits: &DeviceInfo) -> Option<Layout> {
    let with = |x_stages, slots, inside| {
        let layout = Layout { x_stages, slots, inside, ..layout.clone() };
        (shared_bytes(&layout) <= limits.shared as usize).then_some(layout)
    };
    // A superblock of activations should come while three steps are done.
    let wanted = (1 + (3 * WARPGROUPS).div_ceil(layout.units)).min(MAX_X_STAGES);
    let inside = (wanted.min(3)..=wanted).rev().find_map(|x_stages| with(x_stages, 2, true));
    let found = inside.or_else(|| (2..=wanted).rev().find_map(|x_stages| with(x_stages, 2, false)))?;
    let found = (2..=MAX_SLOTS).rev().find_map(|slots| with(found.x_stages, slots, found.inside))?;
    (found.x_stages..=MAX_X_STAGES).rev().find_map(|x_stages| with(x_stages, found.slots, found.inside))
}

/// Whether the tall kernel is for a group: bytes of its weights, how its columns are cut, and the device decide.
fn is_for(group: &Group, g: &Geometry, limits: &DeviceInfo) -> bool {
    let bytes = group.matrices.iter().map(|(tiles, format)| tiles * format.tile_bytes()).sum::<usize>();
    let small = bytes * group.superblocks < LEAST_BYTES;
    limits.major == 9 && !g.join && !small && group.superblocks.div_ceil(g.slices) <= MAX_DEPTH
}

/// The layout for a number of rows, with as few rounds as there is room for; none where there is too little.
fn layout(group: &Group, g: &Geometry, limits: &DeviceInfo, rows: usize) -> Option<Layout> {
    let slices = g.slices;
    let shares = clusters(limits, slices).min(group.tiles());
    let first_tile = |share| group.first_tile(share, shares);
    let of_shares: Vec<Vec<[i32; 2]>> =
        (0..shares).map(|share| group.units(first_tile(share), first_tile(share + 1))).collect();
    let (most, fewest) = (of_shares.iter().map(Vec::len).max()?, of_shares.iter().map(Vec::len).min()?);
    let chains = chains(group, g);
    (most.div_ceil(MAX_UNITS)..=fewest).find_map(|rounds| {
        let units = most.div_ceil(rounds);
        let mut layout = Layout {
            rows,
            slices,
            shares,
            rounds,
            units,
            slot_bytes: group.matrices.iter().map(|&(_, format)| piece_bytes(format)).max()?,
            parked: 0,
            pieces: 0,
            inside: false,
            x_stages: 0,
            slots: 0,
            work: vec![[0; 4]; shares * rounds * units],
            cuts: vec![[0; 2]; slices * group.tiles()],
        };
        for (share, of_share) in of_shares.iter().enumerate() {
            let mut rest = of_share.as_slice();
            for round in 0..rounds {
                let (here, after) = rest.split_at(rest.len().div_ceil(rounds - round));
                rest = after;
                let mut parked = 0;
                for (i, &[first, count]) in here.iter().enumerate() {
                    let product = group.product_of(first as usize) as i32;
                    layout.work[(share * rounds + round) * units + i] = [first, count, parked, product];
                    parked += count;
                }
                layout.parked = layout.parked.max(parked as usize);
            }
        }
        for (share, slice) in (0..shares).flat_map(|share| (0..slices).map(move |slice| (share, slice))) {
            let (from, to) = (group.superblocks * slice / slices, group.superblocks * (slice + 1) / slices);
            let mut piece = 0;
            for tile in first_tile(share)..first_tile(share + 1) {
                let cut = &mut layout.cuts[slice * group.tiles() + tile];
                cut[1] = piece as i32;
                let begin = chains.partition_point(|&at| at < (tile, from));
                for &(_, k) in chains[begin..].iter().take_while(|&&at| at < (tile, to)) {
                    cut[0] |= 1 << (k - from);
                    piece += 1;
                }
            }
            layout.pieces = layout.pieces.max(piece);
        }
        with_room(&layout, limits)
    })
}

/// Bytes of a group's activations, arranged.
fn arranged_bytes(group: &Group) -> usize {
    group.superblocks * X_BLOCKS * X_BYTES
}

/// Bytes of the pieces of sums that are kept outside shared memory.
fn kept_bytes(l: &Layout) -> usize {
    if l.inside { 0 } else { l.slices * l.shares * l.pieces * park_bytes(l.rows) }
}

/// Bytes of `scratch.products` that a group may need.
pub(super) fn workspace_bytes(group: &Group, g: &Geometry, limits: &DeviceInfo) -> usize {
    if !is_for(group, g, limits) {
        return 0;
    }
    let layouts = ROWS.iter().filter_map(|&rows| layout(group, g, limits, rows));
    arranged_bytes(group) + layouts.map(|l| kept_bytes(&l)).max().unwrap_or(0)
}

fn kernel(rows: usize, format: Option<TileFormat>) -> &'static str {
    match (rows, format) {
        (48, Some(TileFormat::Q4_K)) => "matmul_tall_48_q4_k",
        (48, Some(TileFormat::Q6_K)) => "matmul_tall_48_q6_k",
        (48, _) => "matmul_tall_48_mixed",
        (_, Some(TileFormat::Q4_K)) => "matmul_tall_64_q4_k",
        (_, Some(TileFormat::Q6_K)) => "matmul_tall_64_q6_k",
        _ => "matmul_tall_64_mixed",
    }
}

impl Tall {
    /// What the tall kernel needs for a group, if it is for this device and these matrices.
    pub(super) fn of(run: &Run<'_>, group: &Group, g: &Geometry) -> Result<Option<Self>, Error> {
        // Images that are not for this architecture have no such kernel.
        if !is_for(group, g, run.limits) || run.kernels.get("matmul_tall_64_mixed").is_err() {
            return Ok(None);
        }
        let layouts: Option<Vec<Layout>> =
            ROWS.iter().map(|&rows| layout(group, g, run.limits, rows)).collect();
        let Some(layouts) = layouts else { return Ok(None) };
        let bytes = layouts.iter().map(|l| l.work.len() * 16 + l.cuts.len() * 8).sum::<usize>();
        let memory = run.driver.allocate_as_is(bytes, "how products are cut")?;
        let mut at = memory.address();
        let mut upload = |entries: &[i32]| -> Result<Address, Error> {
            let bytes: &[u8] = bytemuck::cast_slice(entries);
            run.driver.upload(at, bytes)?;
            at += bytes.len() as u64;
            Ok(at - bytes.len() as u64)
        };
        // Entries of 16 bytes come first.
        let work: Vec<Address> =
            layouts.iter().map(|l| upload(l.work.as_flattened())).collect::<Result<_, Error>>()?;
        let cuts: Vec<Address> =
            layouts.iter().map(|l| upload(l.cuts.as_flattened())).collect::<Result<_, Error>>()?;
        let layouts =
            layouts.into_iter().zip(work).zip(cuts).map(|((l, work), cuts)| (l, work, cuts)).collect();
        Ok(Some(Self { layouts, _memory: memory }))
    }

    /// Launches the products of a pass of 33 to 64 rows.
    pub(super) fn launch(
        &self,
        run: &Run<'_>,
        group: &Group,
        products: &[ProductArgs; MAX_PRODUCTS],
        (x, chosen, rows): (Activation, Address, usize),
    ) -> Result<(), Error> {
        let arranged = run.scratch.products.address();
        let (layout, work, cuts) =
            self.layouts.iter().find(|(l, ..)| rows <= l.rows).expect("at most 64 rows");
        let needed = arranged_bytes(group) + kept_bytes(layout);
        assert!(needed <= run.scratch.products.len(), "{needed} bytes of activations and pieces");
        let args = ArrangeArgs { x, chosen, out: arranged, rows: rows as i32, pad: 0 };
        let grid = [group.superblocks as u32, rows.div_ceil(8) as u32, 1];
        run.launch("arrange", Shape { grid, block: 256, shared: 0, cluster: 1 }, &args)?;
        let args = TallArgs {
            products: products.map(|p| ProductArgs { format: p.format % DIRECT, ..p }),
            x: arranged,
            cuts: *cuts,
            work: *work,
            kept: if layout.inside { 0 } else { arranged + arranged_bytes(group) as u64 },
            product_count: group.matrices.len() as i32,
            tiles: group.tiles() as i32,
            superblocks: group.superblocks as i32,
            rows: rows as i32,
            slices: layout.slices as i32,
            rounds: layout.rounds as i32,
            units: layout.units as i32,
            x_stages: layout.x_stages as i32,
            slots: layout.slots as i32,
            slot_bytes: layout.slot_bytes as i32,
            parked: layout.parked as i32,
            pieces: layout.pieces as i32,
        };
        let shape = Shape {
            grid: [(layout.slices * layout.shares) as u32, 1, 1],
            block: 32 * WARPS as u32,
            shared: shared_bytes(layout) as u32,
            cluster: layout.slices as u32,
        };
        run.launch(kernel(layout.rows, group.format()), shape, &args)
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
    use TileFormat::{Q4_K, Q8_0};

    #[test]
    fn every_row_tile_is_multiplied_once() {
        for (matrices, cols) in LARGE {
            let group = group(matrices, cols);
            let g = geometry(&group, &H200);
            assert!(is_for(&group, &g, &H200), "{matrices:?}");
            for rows in ROWS {
                let layout = layout(&group, &g, &H200, rows).expect("these are for the tall kernel");
                let mut tiles: Vec<usize> = Vec::new();
                for (i, round) in layout.work.chunks(layout.units).enumerate() {
                    let units = |round: &[[i32; 4]]| round.iter().filter(|u| u[1] > 0).count();
                    assert!(round.is_sorted_by_key(|u| u[1] == 0) && units(round) > 0 && layout.units <= 32);
                    let before = if i % layout.rounds == 0 {
                        MAX_UNITS
                    } else {
                        units(&layout.work[(i - 1) * layout.units..i * layout.units])
                    };
                    assert!(units(round) <= before);
                    let mut places: Vec<i32> = Vec::new();
                    for &[first, count, parked, product] in &round[..units(round)] {
                        assert!((1..=UNIT_TILES as i32).contains(&count));
                        assert!(first - parked == round[0][0], "row tiles of a round follow each other");
                        assert_eq!(product, group.product_of(first as usize) as i32);
                        tiles.extend(first as usize..(first + count) as usize);
                        places.extend(parked..parked + count);
                    }
                    assert!(places.len() <= layout.parked);
                    assert!(places.iter().enumerate().all(|(i, &place)| i as i32 == place));
                }
                tiles.sort_unstable();
                assert!(tiles.into_iter().eq(0..group.tiles()), "{matrices:?}");
                assert_eq!(layout.slices, g.slices);
                assert!(layout.slices * layout.shares <= 132);
                assert!(shared_bytes(&layout) <= H200.shared as usize);
            }
        }
    }

    #[test]
    fn others_are_left_to_the_decoding_kernel() {
        // Slices that are no cluster, small matrices, and other devices.
        for (matrices, cols) in [(vec![(5120, Q8_0)], 25600), (vec![(512, Q4_K)], 2048)] {
            let group = group(&matrices, cols);
            assert!(!is_for(&group, &geometry(&group, &H200), &H200), "{matrices:?}");
        }
        let group = group(&[(17408, Q4_K)], 5120);
        let other = DeviceInfo { major: 10, ..H200 };
        assert!(!is_for(&group, &geometry(&group, &other), &other));
    }

    #[test]
    fn chains_begin_where_warps_begin() {
        let group = group(&[(5120, Q4_K)], 17408);
        let g = geometry(&group, &H200);
        let slices = g.slices;
        let layout = layout(&group, &g, &H200, 48).expect("room");
        let begins = |tile: usize, k: usize| {
            let slice = (0..slices).rfind(|s| group.superblocks * s / slices <= k).expect("a slice");
            let cut = layout.cuts[slice * group.tiles() + tile];
            let at = k - group.superblocks * slice / slices;
            cut[0] >> at & 1 != 0
        };
        let mut counted = 0;
        for block in group.cuts(&g) {
            for at in block[1..g.warps].iter().filter(|&&at| at & 255 != 0) {
                assert!(begins((block[20] + (at >> 8)) as usize, (block[22] + (at & 255)) as usize));
                counted += 1;
            }
        }
        let total: u32 = layout.cuts.iter().map(|c| c[0].count_ones()).sum();
        assert_eq!(total, counted);
        assert!(layout.cuts.iter().all(|c| c[0] & 1 == 0), "slices begin no chain");
        // No two pieces of a block have the same place.
        assert!(layout.pieces <= 15);
    }
}
