//! Products with the matrices of experts. The launch knows neither which experts are visited nor how often: blocks find
//! their work on the device.

use super::prompt_matmul::{self, MAX_PRODUCTS, ProductArgs};
use crate::{
    Error,
    cuda::{
        args::{Activation, Address},
        driver::Shape,
        run::Run,
    },
    plan::{Product, Routing, Rows},
};

const WARPS: usize = 12;
/// Tiles a warp keeps ahead, at most.
const MAX_SLOTS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct ExpertsArgs {
    products: [ProductArgs; MAX_PRODUCTS],
    x: Activation,
    order: Address,
    starts: Address,
    experts: i32,
    divisor: i32,
    count: i32,
    slots: i32,
    slot_bytes: i32,
    pad: i32,
}

// As `kernels/experts.cu` asserts it.
const _: () = assert!(size_of::<ExpertsArgs>() == 264);

/// Launches the products that go to experts or come from them; others are not looked at.
pub(crate) fn launch(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let theirs = |p: &&Product| matches!(p.rows, Rows::ToExperts(_) | Rows::FromExperts(_));
    for group in prompt_matmul::groups(products.iter().filter(theirs).copied()) {
        let (routing, divisor) = match group[0].rows {
            Rows::ToExperts(routing) => (routing, routing.top_k),
            Rows::FromExperts(routing) => (routing, 1),
            Rows::All | Rows::Chosen => unreachable!("filtered"),
        };
        for p in &group {
            assert!(run.weights.matrix(p.weight).experts == routing.experts, "{p:?}");
        }
        if run.is_prompt() {
            prompt_matmul::launch_experts(run, &group, &routing, divisor)?;
        } else {
            launch_group(run, &group, &routing, divisor)?;
        }
    }
    Ok(())
}

fn launch_group(run: &Run<'_>, products: &[Product], routing: &Routing, divisor: usize) -> Result<(), Error> {
    let tile = |p: &Product| run.weights.matrix(p.weight).tiles().tile_bytes();
    let slot_bytes = products.iter().map(tile).max().expect("a product");
    let starts = 4 * (routing.experts + 1);
    let slots = (run.limits.shared as usize - starts) / (WARPS * (slot_bytes + 8));
    assert!(slots > 0, "{slot_bytes}-byte tiles in {} bytes of shared memory", run.limits.shared);
    let slots = slots.min(MAX_SLOTS);
    let args = ExpertsArgs {
        products: prompt_matmul::list(run, products),
        x: run.activation(products[0].x),
        order: run.buffer(routing.order),
        starts: run.buffer(routing.starts),
        experts: routing.experts as i32,
        divisor: divisor as i32,
        count: products.len() as i32,
        slots: slots as i32,
        slot_bytes: slot_bytes as i32,
        pad: 0,
    };
    let shape = Shape {
        grid: [run.limits.multiprocessors, 1, 1],
        block: 32 * WARPS as u32,
        shared: (WARPS * slots * (slot_bytes + 8) + starts) as u32,
        cluster: 1,
    };
    run.launch("experts", shape, &args)
}
