//! Products of a prompt: many rows. Tiles of the output follow from the rows too, but no sum does: each output is one
//! chain over the columns.

use crate::{
    Error,
    cuda::{
        args::Address,
        driver::Shape,
        pack::TileFormat,
        run::{Run, padded},
    },
    plan::{Product, Routing, Rows},
};

pub(super) const MAX_PRODUCTS: usize = 8;
/// Of the kernels for Hopper: barriers, and four stages of 64 columns of 128 rows.
const HOPPER_SHARED: usize = 1024 + 4 * 16384;
/// Tiles a warp of theirs keeps ahead, at most.
const MAX_SLOTS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProductArgs {
    weight: Address,
    out: Address,
    rows: i32,
    format: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PromptArgs {
    x: Address,
    ld: i32,
    rows: i32,
    count: i32,
    warps_n: i32,
    ring: i32,
    pad: i32,
    products: [ProductArgs; MAX_PRODUCTS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PromptExpertsArgs {
    x: Address,
    order: Address,
    starts: Address,
    ld: i32,
    experts: i32,
    divisor: i32,
    count: i32,
    products: [ProductArgs; MAX_PRODUCTS],
}

// As `kernels/prompt_matmul.cu` asserts them.
const _: () = assert!(size_of::<ProductArgs>() == 24);
const _: () = assert!(size_of::<PromptArgs>() == 224 && size_of::<PromptExpertsArgs>() == 232);

/// Products that share activations and rows, in the order of their first.
pub(super) fn groups(products: impl Iterator<Item = Product>) -> Vec<Vec<Product>> {
    let mut groups: Vec<Vec<Product>> = Vec::new();
    for p in products {
        let same = |g: &&mut Vec<Product>| g[0].x == p.x && g[0].rows == p.rows && g.len() < MAX_PRODUCTS;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(p),
            None => groups.push(vec![p]),
        }
    }
    groups
}

pub(super) fn list(run: &Run<'_>, products: &[Product]) -> [ProductArgs; MAX_PRODUCTS] {
    let mut list = [ProductArgs::default(); MAX_PRODUCTS];
    for (to, p) in list.iter_mut().zip(products) {
        let matrix = run.weights.matrix(p.weight);
        assert!(run.cols(p.out) == matrix.rows, "{p:?}");
        assert!(padded(matrix.cols) == padded(run.cols(p.x)), "{p:?}");
        *to = ProductArgs {
            weight: matrix.address(),
            out: run.buffer(p.out),
            rows: matrix.rows as i32,
            format: matrix.tiles() as i32,
        };
    }
    list
}

/// Launches the products of a prompt that run over all rows of the pass; others are not looked at.
pub(crate) fn launch(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let all = || products.iter().filter(|p| p.rows == Rows::All).copied();
    if run.limits.major != 9 {
        return groups(all()).iter().try_for_each(|group| launch_group(run, group));
    }
    // The kernels for Hopper take one format each.
    for format in [TileFormat::Q4_K, TileFormat::Q5_K, TileFormat::Q6_K, TileFormat::Q8_0, TileFormat::F16] {
        for group in groups(all().filter(|p| run.weights.matrix(p.weight).tiles() == format)) {
            launch_hopper(run, &group, format)?;
        }
    }
    Ok(())
}

/// Blocks along the rows of all matrices.
fn blocks(run: &Run<'_>, products: &[Product], rows: usize) -> usize {
    products.iter().map(|p| run.weights.matrix(p.weight).rows.div_ceil(rows)).sum()
}

fn arguments(run: &Run<'_>, products: &[Product], warps_n: usize, ring: usize) -> PromptArgs {
    let x = run.activation(products[0].x);
    PromptArgs {
        x: x.x,
        ld: x.ld,
        rows: run.rows() as i32,
        count: products.len() as i32,
        warps_n: warps_n as i32,
        ring: ring as i32,
        pad: 0,
        products: list(run, products),
    }
}

fn launch_group(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let warps_n = if run.rows() <= 64 { 1 } else { 2 };
    let shape = Shape {
        grid: [run.rows().div_ceil(64 * warps_n) as u32, blocks(run, products, 256 / warps_n) as u32, 1],
        block: 256,
        shared: (4 * 64 * warps_n * 128) as u32,
        cluster: 1,
    };
    run.launch("prompt_matmul", shape, &arguments(run, products, warps_n, 0))
}

fn launch_hopper(run: &Run<'_>, products: &[Product], format: TileFormat) -> Result<(), Error> {
    let (whole, half) = match format {
        TileFormat::Q4_K => (Some("prompt_hopper_q4_k"), "prompt_hopper_half_q4_k"),
        TileFormat::Q5_K => (Some("prompt_hopper_q5_k"), "prompt_hopper_half_q5_k"),
        TileFormat::Q6_K => (Some("prompt_hopper_q6_k"), "prompt_hopper_half_q6_k"),
        TileFormat::Q8_0 => (Some("prompt_hopper_q8_0"), "prompt_hopper_half_q8_0"),
        TileFormat::F16 => (None, "prompt_hopper_half_f16"),
    };
    if run.kernels.get(half).is_err() {
        return launch_group(run, products); // Images that are not for this architecture have no such kernel.
    }
    // A wave of half tiles takes a little more than half the time; often it leaves less of the device idle at the end.
    let tiles = run.rows().div_ceil(128);
    let waves = |rows| (tiles * blocks(run, products, rows)).div_ceil(run.limits.multiprocessors as usize);
    let (kernel, rows) = match whole {
        Some(whole) if waves(256) * 18 <= waves(128) * 10 => (whole, 256),
        _ => (half, 128),
    };
    let slot = 8 * format.tile_bytes();
    let slots = ((run.limits.shared as usize - HOPPER_SHARED) / slot).min(MAX_SLOTS);
    let shape = Shape {
        grid: [tiles as u32, blocks(run, products, rows) as u32, 1],
        block: 384,
        shared: (HOPPER_SHARED + slots * slot) as u32,
        cluster: 1,
    };
    run.launch(kernel, shape, &arguments(run, products, 1, slots * slot))
}

/// Launches products of a prompt's rows with their experts, all with the same activations and rows.
pub(super) fn launch_experts(
    run: &Run<'_>,
    products: &[Product],
    routing: &Routing,
    divisor: usize,
) -> Result<(), Error> {
    let x = run.activation(products[0].x);
    let args = PromptExpertsArgs {
        x: x.x,
        order: run.buffer(routing.order),
        starts: run.buffer(routing.starts),
        ld: x.ld,
        experts: routing.experts as i32,
        divisor: divisor as i32,
        count: products.len() as i32,
        products: list(run, products),
    };
    let shape = Shape {
        grid: [run.limits.multiprocessors, 1, 1],
        block: 256,
        shared: (4 * 64 * 128 + 4 * (routing.experts + 1)) as u32,
        cluster: 1,
    };
    run.launch("prompt_experts", shape, &args)
}
