//! Products of a prompt: many rows. Tiles of the output follow from the rows too, but no sum does:
//! each output is one chain over the columns.

use crate::{
    Error,
    cuda::{
        args::{PromptArgs, PromptExpertsArgs, PromptProduct, kernel},
        driver::Shape,
        pack::TileFormat,
        run::{Run, padded},
    },
    plan::{Product, Routing, Rows},
};

mod hopper;

pub(super) const MAX_PRODUCTS: usize = 8;
/// Products that share activations and rows, in the order of their first.
pub(super) fn groups(products: impl Iterator<Item = Product>) -> Vec<Vec<Product>> {
    let mut groups: Vec<Vec<Product>> = Vec::new();
    for p in products {
        let same =
            |g: &&mut Vec<Product>| g[0].x == p.x && g[0].rows == p.rows && g.len() < MAX_PRODUCTS;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(p),
            None => groups.push(vec![p]),
        }
    }
    groups
}

/// Bytes of room for the weights of an op that lie in the host's memory, by the bytes each has
/// there: twice what they take, so that going round never meets them.
pub(crate) fn staged(products: &[Product], host_bytes: impl Fn(&Product) -> usize) -> usize {
    let brought = products.iter().filter(|p| p.rows == Rows::All);
    2 * brought.map(host_bytes).sum::<usize>()
}

pub(super) fn list(
    run: &Run<'_>,
    products: &[Product],
) -> Result<[PromptProduct; MAX_PRODUCTS], Error> {
    let mut list = [PromptProduct::default(); MAX_PRODUCTS];
    for (to, p) in list.iter_mut().zip(products) {
        let matrix = run.weights.matrix(p.weight);
        assert!(run.cols(p.out) == matrix.rows, "{p:?}");
        assert!(padded(matrix.cols) == padded(run.cols(p.x)), "{p:?}");
        *to = PromptProduct {
            weight: run.weight_of_prompt(p.weight)?,
            copies: matrix.copies(),
            out: run.buffer(p.out),
            rows: matrix.rows as i32,
            format: matrix.tiles() as i32,
        };
    }
    Ok(list)
}

/// Whether there are kernels for this device's own matrix instructions: images for other
/// architectures have none.
fn has_hopper(run: &Run<'_>) -> bool {
    run.limits.major == 9 && run.kernels.have(hopper::ANY)
}

/// Launches the products of a prompt that run over all rows of the pass; others are not looked at.
pub(crate) fn launch(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let all = || products.iter().filter(|p| p.rows == Rows::All).copied();
    if has_hopper(run) {
        return by_format(run, all(), |group, format| hopper::launch(run, group, format));
    }
    groups(all()).iter().try_for_each(|group| launch_group(run, group))
}

/// Groups whose matrices have one format each.
fn by_format(
    run: &Run<'_>,
    products: impl Iterator<Item = Product> + Clone,
    launch: impl Fn(&[Product], TileFormat) -> Result<(), Error>,
) -> Result<(), Error> {
    for format in TileFormat::ALL {
        for group in
            groups(products.clone().filter(|p| run.weights.matrix(p.weight).tiles() == format))
        {
            launch(&group, format)?;
        }
    }
    Ok(())
}

/// Blocks along the rows of all matrices.
fn blocks(run: &Run<'_>, products: &[Product], rows: usize) -> usize {
    products.iter().map(|p| run.weights.matrix(p.weight).rows.div_ceil(rows)).sum()
}

fn launch_group(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let warps_n = if run.rows() <= 64 { 1 } else { 2 };
    let shape = Shape {
        grid: [
            run.rows().div_ceil(64 * warps_n) as u32,
            blocks(run, products, 256 / warps_n) as u32,
            1,
        ],
        block: 256,
        shared: (4 * 64 * warps_n * 128) as u32,
        cluster: 1,
    };
    let x = run.activation(products[0].x);
    let args = PromptArgs {
        x: x.x,
        ld: x.ld,
        rows: run.rows() as i32,
        count: products.len() as i32,
        warps_n: warps_n as i32,
        products: list(run, products)?,
    };
    run.launch(kernel::PROMPT_MATMUL, shape, &args)
}

/// Launches products of rows with their experts, all with the same activations and rows.
pub(super) fn launch_experts(
    run: &Run<'_>,
    products: &[Product],
    routing: &Routing,
    divisor: usize,
) -> Result<(), Error> {
    if run.is_prompt() && has_hopper(run) {
        return by_format(
            run,
            products.iter().copied(),
            |group, format| match hopper::experts_kernel(run, routing, format) {
                Some(kernel) => {
                    hopper::launch_experts(run, group, routing, divisor, format, kernel)
                }
                None => launch_expert_group(run, group, routing, divisor),
            },
        );
    }
    launch_expert_group(run, products, routing, divisor)
}

fn launch_expert_group(
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
        places: run.weights.matrix(products[0].weight).places(),
        ld: x.ld,
        experts: routing.experts as i32,
        divisor: divisor as i32,
        count: products.len() as i32,
        products: list(run, products)?,
    };
    let shape = Shape {
        grid: [run.limits.multiprocessors, 1, 1],
        block: 256,
        shared: (4 * 64 * 128 + 4 * (routing.experts + 1)) as u32,
        cluster: 1,
    };
    let is_other = |p: &Product| run.weights.matrix(p.weight).tiles().is_other();
    let kernel = match products.iter().any(is_other) {
        true => kernel::PROMPT_EXPERTS_OTHERS,
        false => kernel::PROMPT_EXPERTS,
    };
    run.launch(kernel, shape, &args)
}
