//! Products of a decoding pass: matrices that share their activations go in one launch. How a
//! launch is cut into slices of columns, shares of rows and warps follows from the matrices and the
//! device alone, so that a row's sums have one order in any company; rows decide only what does not
//! change a bit.

mod geometry;
mod hopper;
#[cfg(test)]
mod shapes;
#[cfg(test)]
mod tests;

use crate::{
    Error,
    cuda::{
        args::{ArrangeArgs, DECODE_ROWS, Kernel, MatmulArgs, MatmulProduct, kernel},
        block::DeviceMemory,
        driver::{DeviceInfo, Shape},
        pack::{TILE_ROWS, TileFormat},
        run::{Run, padded},
        weights::Weights,
    },
    plan::{Product, Rows},
};
use geometry::{geometry, room};
use std::{cell::RefCell, collections::HashMap, sync::Arc};

const MAX_PRODUCTS: usize = 8;
/// Added to a format whose tiles are read from memory directly.
const DIRECT: i32 = 16;
/// Words of a block in `cuts` of `kernels/matmul.cuh`.
const CUTS: usize = 24;
/// The rows whose activations must fit in shared memory beside the rings. With 32 one launch always
/// takes 32 rows, but with more slices or half the warps; with 16, launches of up to 16 rows are
/// fastest.
const FULL_ROWS: usize = 16;
/// Rows of a launch, at most. More than `FULL_ROWS` are multiplied in phases, see
/// `kernels/matmul.cuh`.
const MOST_ROWS: usize = 32;
/// Superblocks of a phase, at least: with fewer, 16 rows a launch are faster.
const LEAST_HELD: usize = 3;
/// Blocks of a cluster, at most.
const MAX_CLUSTER: usize = 8;

/// Matrices that share their activations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    /// Row tiles of each, and their format.
    matrices: Vec<(usize, TileFormat)>,
    /// Columns / 256.
    superblocks: usize,
}

/// How a group is cut.
#[derive(Clone, Debug, PartialEq)]
struct Geometry {
    /// Of the columns.
    slices: usize,
    /// Of the row tiles.
    shares: usize,
    warps: usize,
    /// The slices are no cluster: `matmul_join` adds them.
    join: bool,
    /// Bytes of a ring's stage; matrices of larger tiles are read directly.
    stage_bytes: usize,
    /// Row tiles of a share that one slice's block adds up, at most.
    owned: usize,
    /// Rows of a launch, at most.
    launch_rows: usize,
}

/// What the number of rows decides.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    stages: usize,
    /// Partial sums go through memory.
    workspace: bool,
    /// Superblocks of activations in shared memory: all of a slice, or those of a phase.
    held: usize,
    shared: usize,
}

/// What a tile costs beside others: its bytes.
fn cost(format: TileFormat) -> usize {
    format.tile_bytes().div_ceil(256)
}

impl Group {
    fn tiles(&self) -> usize {
        self.matrices.iter().map(|(tiles, _)| tiles).sum()
    }

    fn cost(&self) -> usize {
        self.matrices.iter().map(|&(tiles, format)| tiles * cost(format)).sum()
    }

    /// The largest tile that passes through a ring. A matrix that is less than a sixteenth of the
    /// group does not decide it, if the kernel can read its format directly.
    fn stage_bytes(&self) -> usize {
        let counts = |&&(tiles, format): &&(usize, TileFormat)| {
            let can_be_direct = matches!(format, TileFormat::Q8_0 | TileFormat::F16);
            !can_be_direct || tiles * cost(format) * 16 >= self.cost()
        };
        let largest =
            self.matrices.iter().filter(counts).map(|(_, format)| format.tile_bytes()).max();
        largest.expect("one matrix is an eighth of the group")
    }

    /// Of the row tiles `from..to`, `depth` steps each: how many steps begin before the cost
    /// `limit` is spent, and the cost of those steps.
    fn cut(&self, from: usize, to: usize, depth: usize, limit: usize) -> (usize, usize) {
        let (mut steps, mut spent, mut first) = (0, 0, 0);
        for &(tiles, format) in &self.matrices {
            let here = to.min(first + tiles).saturating_sub(from.max(first)) * depth;
            let begun = here.min(limit.saturating_sub(spent).div_ceil(cost(format)));
            steps += begun;
            spent += begun * cost(format);
            first += tiles;
            if begun < here {
                break;
            }
        }
        (steps, spent)
    }

    /// The format of all matrices, if they have the same.
    fn format(&self) -> Option<TileFormat> {
        let (_, first) = self.matrices[0];
        self.matrices.iter().all(|&(_, format)| format == first).then_some(first)
    }

    /// Whether a matrix has a format that only kernels of up to 16 rows read.
    fn has_others(&self) -> bool {
        self.matrices.iter().any(|(_, format)| format.is_other())
    }

    /// Bytes of shared memory that a codebook takes, where a kernel of one format keeps it there.
    fn book_bytes(&self) -> usize {
        match self.format() {
            Some(TileFormat::IQ3_S) => 512 * 32,
            Some(TileFormat::IQ3_XXS) => 256 * 32,
            _ => 0,
        }
    }

    /// The first row tile of a share. Tiles of one format are dealt out evenly, the first shares
    /// have the larger numbers: so `kernels/matmul.cuh` works it out.
    fn first_tile(&self, share: usize, shares: usize) -> usize {
        let tiles = self.tiles();
        match self.format() {
            Some(_) => share * (tiles / shares) + share.min(tiles % shares),
            None => self.cut(0, tiles, 1, self.cost() * share / shares).0,
        }
    }

    /// Where every block's warps begin: see `cuts` in `kernels/matmul.cuh`, which finds the same
    /// where there is one format.
    fn cuts(&self, g: &Geometry) -> Vec<[i32; CUTS]> {
        let first_superblock = |slice| self.superblocks * slice / g.slices;
        let mut blocks = Vec::with_capacity(g.shares * g.slices);
        for (share, slice) in
            (0..g.shares).flat_map(|share| (0..g.slices).map(move |slice| (share, slice)))
        {
            let (from, to) =
                (self.first_tile(share, g.shares), self.first_tile(share + 1, g.shares));
            let depth = first_superblock(slice + 1) - first_superblock(slice);
            let (steps, cost) = self.cut(from, to, depth, usize::MAX);
            let mut block = [0; CUTS];
            for (warp, at) in block[..=g.warps].iter_mut().enumerate() {
                let step = match self.format() {
                    Some(_) => steps * warp / g.warps,
                    None => self.cut(from, to, depth, cost * warp / g.warps).0,
                };
                *at = (((step / depth) << 8) | (step % depth)) as i32;
            }
            block[17] = slice as i32;
            block[20] = from as i32;
            block[21] = (to - from) as i32;
            block[22] = first_superblock(slice) as i32;
            block[23] = depth as i32;
            blocks.push(block);
        }
        blocks
    }
}

/// How groups are cut, found out once for each.
#[derive(Default)]
pub(crate) struct Cuts(RefCell<HashMap<Group, Arc<Cut>>>);

struct Cut {
    geometry: Geometry,
    /// `Group::cuts`.
    memory: DeviceMemory,
    /// Row tiles that a warp works on, at most.
    most_parked: usize,
    /// For more than 16 rows, where there is such a kernel.
    hopper: Option<hopper::Hopper>,
    /// Rows of a launch of the other kernels, at most.
    launch_rows: usize,
}

impl Cuts {
    fn of(&self, run: &Run<'_>, group: &Group) -> Result<Arc<Cut>, Error> {
        if let Some(cut) = self.0.borrow().get(group) {
            return Ok(cut.clone());
        }
        let g = geometry(group, run.limits);
        let blocks = group.cuts(&g);
        let bytes: &[u8] = bytemuck::cast_slice(blocks.as_flattened());
        let memory = run.driver.allocate_as_is(bytes.len(), "how products are cut")?;
        run.driver.upload(memory.address(), bytes)?;
        let has_others = group.has_others();
        let hopper = if has_others { None } else { hopper::Hopper::of(run, group, &g)? };
        // What Hopper's kernel is not for is faster without phases, too.
        let is_narrow = has_others || hopper::is_here(run);
        let launch_rows = g.launch_rows.min(if is_narrow { FULL_ROWS } else { usize::MAX });
        let most_parked = most_parked(&g, &blocks);
        let cut = Arc::new(Cut { geometry: g, memory, most_parked, hopper, launch_rows });
        self.0.borrow_mut().insert(group.clone(), cut.clone());
        Ok(cut)
    }
}

/// The products over rows of the pass, those that share activations together.
fn groups(products: &[Product]) -> Vec<Vec<Product>> {
    let mut groups: Vec<Vec<Product>> = Vec::new();
    for p in products.iter().filter(|p| matches!(p.rows, Rows::All | Rows::Chosen)) {
        let same =
            |g: &&mut Vec<Product>| g[0].x == p.x && g[0].rows == p.rows && g.len() < MAX_PRODUCTS;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(*p),
            None => groups.push(vec![*p]),
        }
    }
    groups
}

fn describe(weights: &Weights, products: &[Product]) -> Group {
    let matrices = products.iter().map(|p| weights.matrix(p.weight));
    Group {
        superblocks: padded(weights.matrix(products[0].weight).cols) / 256,
        matrices: matrices.map(|m| (m.rows.div_ceil(TILE_ROWS), m.tiles())).collect(),
    }
}

fn partial_bytes(group: &Group, g: &Geometry, rows: usize) -> usize {
    (g.slices - 1) * rows * group.tiles() * TILE_ROWS * 4
}

/// Row tiles that a warp works on, at most.
fn most_parked(g: &Geometry, cuts: &[[i32; CUTS]]) -> usize {
    let tiles = |w: &[i32]| ((w[1] + 255) >> 8) - (w[0] >> 8);
    let of_block = |block: &[i32; CUTS]| block[..=g.warps].windows(2).map(tiles).max();
    cuts.iter().filter_map(of_block).max().expect("a block") as usize
}

/// Bytes of the sums that wait for their next phase.
fn parked_bytes(g: &Geometry, most_parked: usize, rows: usize) -> usize {
    match rows {
        ..=FULL_ROWS => 0,
        _ => g.slices * g.shares * g.warps * most_parked * rows.div_ceil(8) * 512,
    }
}

/// Bytes of `scratch.products` that these products may use. Not for every pass: it works out how
/// each is cut.
pub(crate) fn workspace_bytes(
    weights: &Weights,
    limits: &DeviceInfo,
    products: &[Product],
) -> usize {
    let bytes = |products: &Vec<Product>| {
        let group = describe(weights, products);
        let g = geometry(&group, limits);
        let parked = parked_bytes(&g, most_parked(&g, &group.cuts(&g)), g.launch_rows);
        let plain = partial_bytes(&group, &g, g.launch_rows) + parked;
        hopper::scratch_bytes(&group, &g, limits).map_or(plain, |hopper| plain.max(hopper))
    };
    groups(products).iter().map(bytes).max().unwrap_or(0)
}

/// Whether activations of a pass are arranged for the kernel that takes more than 16 rows.
pub(crate) fn arranges(run: &Run<'_>) -> bool {
    run.rows() > FULL_ROWS && run.rows() <= DECODE_ROWS && hopper::is_here(run)
}

/// Launches the products of a decoding pass that run over all or over the chosen rows.
pub(crate) fn launch(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    groups(products).iter().try_for_each(|products| launch_group(run, products))
}

/// The kernel for a number of rows of matrices that have a format of `FOR_OTHER_FORMATS`.
fn kernel_of_others(rows: usize, format: Option<TileFormat>) -> Kernel<MatmulArgs> {
    match (rows, format) {
        (..=8, Some(TileFormat::IQ3_S)) => kernel::MATMUL_8_IQ3_S,
        (..=8, Some(TileFormat::IQ3_XXS)) => kernel::MATMUL_8_IQ3_XXS,
        (..=8, _) => kernel::MATMUL_8_OTHERS,
        (_, Some(TileFormat::IQ3_S)) => kernel::MATMUL_16_IQ3_S,
        (_, Some(TileFormat::IQ3_XXS)) => kernel::MATMUL_16_IQ3_XXS,
        _ => kernel::MATMUL_16_OTHERS,
    }
}

/// The kernel for a number of rows and a format, if all matrices have the same.
fn kernel(rows: usize, format: Option<TileFormat>) -> Kernel<MatmulArgs> {
    match (rows, format) {
        (..=8, Some(TileFormat::Q4_K)) => kernel::MATMUL_8_Q4_K,
        (..=8, Some(TileFormat::Q6_K)) => kernel::MATMUL_8_Q6_K,
        (..=8, Some(TileFormat::Q8_0)) => kernel::MATMUL_8_Q8_0,
        (..=8, _) => kernel::MATMUL_8_MIXED,
        (9..=16, Some(TileFormat::Q4_K)) => kernel::MATMUL_16_Q4_K,
        (9..=16, Some(TileFormat::Q6_K)) => kernel::MATMUL_16_Q6_K,
        (9..=16, Some(TileFormat::Q8_0)) => kernel::MATMUL_16_Q8_0,
        (9..=16, _) => kernel::MATMUL_16_MIXED,
        (17..=24, Some(TileFormat::Q4_K)) => kernel::MATMUL_24_Q4_K,
        (17..=24, Some(TileFormat::Q6_K)) => kernel::MATMUL_24_Q6_K,
        (17..=24, _) => kernel::MATMUL_24_MIXED,
        (_, Some(TileFormat::Q4_K)) => kernel::MATMUL_32_Q4_K,
        (_, Some(TileFormat::Q6_K)) => kernel::MATMUL_32_Q6_K,
        _ => kernel::MATMUL_32_MIXED,
    }
}

fn launch_group(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let group = describe(run.weights, products);
    let cut = run.cuts.of(run, &group)?;
    let g = &cut.geometry;
    let (rows, chosen) = match products[0].rows {
        Rows::Chosen => (run.pass.chosen_rows as usize, run.pass.chosen),
        _ => (run.rows(), 0),
    };
    if rows == 0 {
        return Ok(()); // nobody asks for logits
    }
    let mut list = [MatmulProduct::default(); MAX_PRODUCTS];
    let mut first_tile = 0;
    for ((to, p), &(tiles, format)) in list.iter_mut().zip(products).zip(&group.matrices) {
        let matrix = run.weights.matrix(p.weight);
        let direct = format.tile_bytes() > g.stage_bytes;
        assert!(matrix.experts == 1 && run.cols(p.out) == matrix.rows, "{p:?}");
        assert!(padded(matrix.cols) == padded(run.cols(p.x)), "{p:?}");
        *to = MatmulProduct {
            weight: matrix.address(),
            out: run.buffer(p.out),
            rows: matrix.rows as i32,
            out_stride: matrix.rows as i32,
            format: format as i32 + if direct { DIRECT } else { 0 },
            first_tile: first_tile as i32,
        };
        first_tile += tiles;
    }
    let mut x = run.activation(products[0].x);
    let has_mins =
        |&(_, format): &(usize, TileFormat)| matches!(format, TileFormat::Q4_K | TileFormat::Q5_K);
    let is_arranged = x.arranged != 0 || products[0].rows == Rows::Chosen;
    let hopper = cut.hopper.as_ref().filter(|_| rows > FULL_ROWS && is_arranged);
    let scratch = &run.scratch.products;
    if let (Some(hopper), Rows::Chosen) = (hopper, products[0].rows) {
        let out = scratch.address() + hopper.parked_bytes as u64;
        let args = ArrangeArgs { x, chosen, out, rows: rows as i32 };
        let grid = [group.superblocks as u32, rows.div_ceil(8) as u32, 1];
        run.launch(kernel::ARRANGE, Shape::new(grid, 256), &args)?;
        x.arranged = out;
    }
    let most = if hopper.is_some() { hopper::ROWS } else { cut.launch_rows };
    let each = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(8).min(most);
    for first in (0..rows).step_by(each) {
        let count = each.min(rows - first);
        let mut args = MatmulArgs {
            cuts: cut.memory.address(),
            product_count: products.len() as i32,
            tiles: group.tiles() as i32,
            share_tiles: (group.tiles() / g.shares) as i32,
            larger: (group.tiles() % g.shares) as i32,
            slices: g.slices as i32,
            stage_bytes: g.stage_bytes as i32,
            rows: count as i32,
            owned: g.owned as i32,
            with_sums: i32::from(group.matrices.iter().any(has_mins)),
            join: i32::from(g.join),
            first_row: first as i32,
            products: list,
            x,
            chosen,
            parked: scratch.address(),
            ..Default::default()
        };
        let grid = [(g.slices * g.shares) as u32, 1, 1];
        let cluster = if g.join { 1 } else { g.slices as u32 };
        if let Some(hopper) = hopper.filter(|_| count > FULL_ROWS) {
            let stages = hopper.stages(&group, g, run.limits, count);
            hopper.tell(&mut args, &stages);
            let block = (32 * stages.warps + hopper::ASKING) as u32;
            let shape = Shape { grid, block, shared: stages.shared as u32, cluster };
            run.launch(hopper::kernel(count, group.format()), shape, &args)?;
            continue;
        }
        let room = room(&group, g, run.limits, count).expect("launches fit");
        let partial = if room.workspace { partial_bytes(&group, g, count) } else { 0 };
        let parked = parked_bytes(g, cut.most_parked, count);
        assert!(
            partial + parked <= scratch.len(),
            "{partial} bytes of partial sums, {parked} between phases"
        );
        args.stages = room.stages as i32;
        args.x_stride = (room.held * 512 + 64) as i32;
        args.held = room.held as i32;
        args.workspace = if room.workspace { scratch.address() } else { 0 };
        args.parked += partial as u64;
        args.most_parked = cut.most_parked as i32;
        let kernel = match group.has_others() {
            true => kernel_of_others(count, group.format()),
            false => kernel(count, group.format()),
        };
        let (block, shared) = (32 * g.warps as u32, room.shared as u32);
        let shape = Shape { grid, block, shared, cluster };
        run.launch(kernel, shape, &args)?;
        if g.join {
            let blocks = (group.tiles() * 4 * count).div_ceil(256) as u32;
            run.launch(kernel::MATMUL_JOIN, Shape::new([blocks, 1, 1], 256), &args)?;
        }
    }
    Ok(())
}
