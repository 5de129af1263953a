//! The launch of every op: its arguments and the shape of its grid. What a kernel computes, its
//! file in `kernels` says.

pub(crate) mod angles;
pub(crate) mod attention;
pub(crate) mod block_conv;
pub(crate) mod combine;
pub(crate) mod commit;
pub(crate) mod convolve;
pub(crate) mod deltanet;
pub(crate) mod draw;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod fill;
pub(crate) mod load;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod pairs;
pub(crate) mod prompt_matmul;
pub(crate) mod rank;
pub(crate) mod rotate;
pub(crate) mod route;
pub(crate) mod scale;
pub(crate) mod swiglu;

use super::run::Run;
use crate::{
    Error,
    plan::{Product, Rows},
};

/// Products that depend on nothing of each other: over all rows, over the chosen ones, over visits
/// of experts.
pub(crate) fn products(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let visits = |p: &&Product| matches!(p.rows, Rows::ToExperts(_) | Rows::FromExperts(_));
    let of_experts: Vec<Product> = products.iter().filter(visits).copied().collect();
    let all = |p: &&Product| p.rows == Rows::All;
    let of_rows: Vec<Product> = products.iter().filter(|p| !visits(p)).copied().collect();
    experts::launch(run, &of_experts)?;
    if !run.is_prompt() {
        return matmul::launch(run, &of_rows);
    }
    // Few rows of a prompt have logits.
    let chosen: Vec<Product> = of_rows.iter().filter(|p| !all(p)).copied().collect();
    let whole: Vec<Product> = of_rows.iter().filter(all).copied().collect();
    prompt_matmul::launch(run, &whole)?;
    matmul::launch(run, &chosen)
}
