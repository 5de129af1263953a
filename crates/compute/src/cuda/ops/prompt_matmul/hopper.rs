//! Products of a prompt on Hopper: one format a launch, tiles of outputs chosen so that they fill
//! whole waves.

use super::{blocks, list};
use crate::{
    Error,
    cuda::{
        args::{HopperArgs, HopperExpertsArgs, Kernel, kernel},
        driver::Shape,
        pack::TileFormat,
        run::Run,
    },
    plan::{Product, Routing},
};

/// A kernel that images for this architecture have.
pub(super) const ANY: Kernel<HopperArgs> = kernel::PROMPT_HOPPER_HALF_F16;
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

/// The kernels of a format, by tile as in `TILES`.
fn kernels(format: TileFormat) -> [Option<Kernel<HopperArgs>>; 4] {
    let half = |kernel| [None, None, None, Some(kernel)];
    match format {
        TileFormat::Q4_K => [
            Some(kernel::PROMPT_HOPPER_Q4_K_160),
            Some(kernel::PROMPT_HOPPER_Q4_K_128),
            Some(kernel::PROMPT_HOPPER_Q4_K_96),
            Some(kernel::PROMPT_HOPPER_HALF_Q4_K),
        ],
        TileFormat::Q5_K => [
            Some(kernel::PROMPT_HOPPER_Q5_K_160),
            Some(kernel::PROMPT_HOPPER_Q5_K_128),
            Some(kernel::PROMPT_HOPPER_Q5_K_96),
            Some(kernel::PROMPT_HOPPER_HALF_Q5_K),
        ],
        TileFormat::Q6_K => [
            Some(kernel::PROMPT_HOPPER_Q6_K_160),
            Some(kernel::PROMPT_HOPPER_Q6_K_128),
            Some(kernel::PROMPT_HOPPER_Q6_K_96),
            Some(kernel::PROMPT_HOPPER_HALF_Q6_K),
        ],
        TileFormat::Q8_0 => [
            Some(kernel::PROMPT_HOPPER_Q8_0_160),
            Some(kernel::PROMPT_HOPPER_Q8_0_128),
            Some(kernel::PROMPT_HOPPER_Q8_0_96),
            Some(kernel::PROMPT_HOPPER_HALF_Q8_0),
        ],
        TileFormat::F16 => half(kernel::PROMPT_HOPPER_HALF_F16),
        TileFormat::FP8 => half(kernel::PROMPT_HOPPER_HALF_FP8),
        TileFormat::FP4 => half(kernel::PROMPT_HOPPER_HALF_FP4),
        TileFormat::INT4 => half(kernel::PROMPT_HOPPER_HALF_INT4),
        TileFormat::INT4_32 => half(kernel::PROMPT_HOPPER_HALF_INT4_32),
        TileFormat::IQ4 => half(kernel::PROMPT_HOPPER_HALF_IQ4),
        TileFormat::IQ3_S => half(kernel::PROMPT_HOPPER_HALF_IQ3_S),
        TileFormat::IQ3_XXS => half(kernel::PROMPT_HOPPER_HALF_IQ3_XXS),
        TileFormat::IQ2 => half(kernel::PROMPT_HOPPER_HALF_IQ2),
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
        |((weights, rows, cost), kernel): ((usize, usize, usize), Option<Kernel<HopperArgs>>)| {
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
        products: list(run, products)?,
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
) -> Option<Kernel<HopperExpertsArgs>> {
    let wide = run.rows() * routing.top_k > 48 * routing.experts;
    let [narrow_kernel, wide_kernel] = match format {
        TileFormat::Q4_K => {
            [kernel::PROMPT_HOPPER_EXPERTS_Q4_K_64, kernel::PROMPT_HOPPER_EXPERTS_Q4_K_96]
        }
        TileFormat::Q5_K => {
            [kernel::PROMPT_HOPPER_EXPERTS_Q5_K_64, kernel::PROMPT_HOPPER_EXPERTS_Q5_K_96]
        }
        TileFormat::Q6_K => {
            [kernel::PROMPT_HOPPER_EXPERTS_Q6_K_64, kernel::PROMPT_HOPPER_EXPERTS_Q6_K_96]
        }
        TileFormat::Q8_0 => {
            [kernel::PROMPT_HOPPER_EXPERTS_Q8_0_64, kernel::PROMPT_HOPPER_EXPERTS_Q8_0_96]
        }
        _ => return None,
    };
    (routing.experts <= MAX_EXPERTS).then_some(if wide { wide_kernel } else { narrow_kernel })
}

pub(super) fn launch_experts(
    run: &Run<'_>,
    products: &[Product],
    routing: &Routing,
    divisor: usize,
    format: TileFormat,
    kernel: Kernel<HopperExpertsArgs>,
) -> Result<(), Error> {
    let (slots, shared) = slots(run, format);
    let x = run.activation(products[0].x);
    let args = HopperExpertsArgs {
        x: x.x,
        order: run.buffer(routing.order),
        starts: run.buffer(routing.starts),
        places: run.weights.matrix(products[0].weight).places(),
        columns: x.ld,
        experts: routing.experts as i32,
        divisor: divisor as i32,
        count: products.len() as i32,
        slots: slots as i32,
        products: list(run, products)?,
    };
    let shape = Shape { grid: [run.limits.multiprocessors, 1, 1], block: 384, shared, cluster: 1 };
    run.launch(kernel, shape, &args)
}
