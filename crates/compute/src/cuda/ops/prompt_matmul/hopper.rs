//! Products of a prompt on Hopper: one format a launch, tiles of outputs chosen so that they fill
//! whole waves.

use super::{MAX_PRODUCTS, ProductArgs, blocks, list};
use crate::{
    Error,
    cuda::{
        args::Address,
        driver::{Shape, TensorMap},
        pack::TileFormat,
        run::Run,
    },
    plan::{Product, Routing},
};

/// A kernel that images for this architecture have.
pub(super) const ANY: &str = "prompt_hopper_half_f16";
/// Shared memory beside weights: barriers, and stages of x.
const SHARED: usize = 4096 + 81920;
/// Tiles of weights a warp keeps ahead, at most.
const MAX_SLOTS: usize = 8;
/// Experts there is room for.
const MAX_EXPERTS: usize = 512;
/// Tiles of output: rows of weights and rows of x, and what one costs as measured on an H200 (K
/// 5120 and 17408).
const TILES: [(usize, usize, usize); 4] =
    [(256, 160, 100), (256, 128, 88), (256, 96, 75), (128, 128, 55)];

#[repr(C)]
#[derive(Clone, Copy)]
struct HopperArgs {
    x: TensorMap,
    columns: i32,
    rows: i32,
    count: i32,
    slots: i32,
    products: [ProductArgs; MAX_PRODUCTS],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct HopperExpertsArgs {
    x: Address,
    order: Address,
    starts: Address,
    columns: i32,
    experts: i32,
    divisor: i32,
    count: i32,
    slots: i32,
    pad: i32,
    products: [ProductArgs; MAX_PRODUCTS],
}

// As `kernels/prompt_hopper*.cu` assert them.
const _: () = assert!(size_of::<HopperArgs>() == 384 && size_of::<HopperExpertsArgs>() == 240);

/// The kernels of a format, by tile as in `TILES`.
fn kernels(format: TileFormat) -> [Option<&'static str>; 4] {
    match format {
        TileFormat::Q4_K => [
            Some("prompt_hopper_q4_k_160"),
            Some("prompt_hopper_q4_k_128"),
            Some("prompt_hopper_q4_k_96"),
            Some("prompt_hopper_half_q4_k"),
        ],
        TileFormat::Q5_K => [
            Some("prompt_hopper_q5_k_160"),
            Some("prompt_hopper_q5_k_128"),
            Some("prompt_hopper_q5_k_96"),
            Some("prompt_hopper_half_q5_k"),
        ],
        TileFormat::Q6_K => [
            Some("prompt_hopper_q6_k_160"),
            Some("prompt_hopper_q6_k_128"),
            Some("prompt_hopper_q6_k_96"),
            Some("prompt_hopper_half_q6_k"),
        ],
        TileFormat::Q8_0 => [
            Some("prompt_hopper_q8_0_160"),
            Some("prompt_hopper_q8_0_128"),
            Some("prompt_hopper_q8_0_96"),
            Some("prompt_hopper_half_q8_0"),
        ],
        TileFormat::F16 => [None, None, None, Some("prompt_hopper_half_f16")],
    }
}

/// Weight tiles that each of eight warps keeps, and the shared memory of a block.
fn slots(run: &Run<'_>, format: TileFormat) -> (usize, u32) {
    let slot = 8 * format.tile_bytes().next_multiple_of(64);
    let slots = ((run.limits.shared as usize - SHARED) / slot).min(MAX_SLOTS);
    (slots, (SHARED + slots * slot) as u32)
}

pub(super) fn launch(run: &Run<'_>, products: &[Product], format: TileFormat) -> Result<(), Error> {
    let multiprocessors = run.limits.multiprocessors as usize;
    // Whole waves of tiles: the last leaves the device idle where its tiles end.
    let choice =
        |((weights, rows, cost), kernel): ((usize, usize, usize), Option<&'static str>)| {
            let tiles = run.rows().div_ceil(rows) * blocks(run, products, weights);
            Some((tiles.div_ceil(multiprocessors) * cost, tiles, rows, kernel?))
        };
    let choices = TILES.into_iter().zip(kernels(format)).filter_map(choice);
    let (_, tiles, rows, kernel) = choices.min_by_key(|c| c.0).expect("every format has a kernel");
    let (slots, shared) = slots(run, format);
    let x = run.activation(products[0].x);
    let args = HopperArgs {
        x: run.driver.tensor_map(x.x, run.rows(), x.ld as usize, rows)?,
        columns: x.ld,
        rows: run.rows() as i32,
        count: products.len() as i32,
        slots: slots as i32,
        products: list(run, products),
    };
    let shape =
        Shape { grid: [tiles.min(multiprocessors) as u32, 1, 1], block: 384, shared, cluster: 1 };
    run.launch(kernel, shape, &args)
}

/// The kernel for experts of a format, by the visits an expert has on average; none where there is
/// none.
pub(super) fn experts_kernel(
    run: &Run<'_>,
    routing: &Routing,
    format: TileFormat,
) -> Option<&'static str> {
    let wide = run.rows() * routing.top_k > 48 * routing.experts;
    let [narrow_kernel, wide_kernel] = match format {
        TileFormat::Q4_K => ["prompt_hopper_experts_q4_k_64", "prompt_hopper_experts_q4_k_96"],
        TileFormat::Q5_K => ["prompt_hopper_experts_q5_k_64", "prompt_hopper_experts_q5_k_96"],
        TileFormat::Q6_K => ["prompt_hopper_experts_q6_k_64", "prompt_hopper_experts_q6_k_96"],
        TileFormat::Q8_0 => ["prompt_hopper_experts_q8_0_64", "prompt_hopper_experts_q8_0_96"],
        TileFormat::F16 => return None,
    };
    (routing.experts <= MAX_EXPERTS).then_some(if wide { wide_kernel } else { narrow_kernel })
}

pub(super) fn launch_experts(
    run: &Run<'_>,
    products: &[Product],
    routing: &Routing,
    divisor: usize,
    format: TileFormat,
    kernel: &'static str,
) -> Result<(), Error> {
    let (slots, shared) = slots(run, format);
    let x = run.activation(products[0].x);
    let args = HopperExpertsArgs {
        x: x.x,
        order: run.buffer(routing.order),
        starts: run.buffer(routing.starts),
        columns: x.ld,
        experts: routing.experts as i32,
        divisor: divisor as i32,
        count: products.len() as i32,
        slots: slots as i32,
        pad: 0,
        products: list(run, products),
    };
    let shape = Shape { grid: [run.limits.multiprocessors, 1, 1], block: 384, shared, cluster: 1 };
    run.launch(kernel, shape, &args)
}
