//! What a plan needs of scratch memory.

use super::{driver::DeviceInfo, ops, scratch::Scratch, weights::Weights};
use crate::{
    Error,
    pass::{Pass, Role},
    plan::{AttentionShape, Op, Plan, Product},
    recurrent::RecurrentLayout,
};
use std::sync::Arc;

/// What a plan needs of scratch memory.
pub(crate) struct Needs {
    /// Bytes for partial sums of products.
    products: usize,
    /// Bytes of weights that a prompt's products bring from the host's memory.
    staged: usize,
    attention: Vec<AttentionShape>,
    recurrent: Option<RecurrentLayout>,
    /// Whether it chooses among experts.
    pub(super) experts: bool,
}

impl Needs {
    pub(crate) fn new(plan: &Arc<Plan>, weights: &Weights, limits: &DeviceInfo) -> Self {
        let mut needs = Self {
            products: 0,
            staged: 0,
            attention: Vec::new(),
            recurrent: None,
            experts: plan.ops.iter().any(|op| matches!(op, Op::Experts(_))),
        };
        for op in &plan.expanded().ops {
            match op {
                Op::Attention { shape, .. } if !needs.attention.contains(shape) => {
                    needs.attention.push(*shape);
                }
                Op::DeltaNet { .. } => needs.recurrent = Some(plan.recurrent_layer(0).0),
                Op::Matmul { products } => {
                    let bytes = ops::matmul::workspace_bytes(weights, limits, products);
                    needs.products = needs.products.max(bytes);
                    let host = |p: &Product| weights.matrix(p.weight).host_bytes();
                    needs.staged = needs.staged.max(ops::prompt_matmul::staged(products, host));
                }
                _ => {}
            }
        }
        needs
    }

    /// Grows scratch memory to what the plan needs over a pass.
    pub(crate) fn reserve(&self, scratch: &mut Scratch, pass: &Pass<'_>) -> Result<(), Error> {
        if pass.role == Role::Decode {
            for shape in &self.attention {
                let bytes = ops::attention::partial_bytes(shape, pass.rows());
                scratch.reserve_attention(bytes)?;
            }
        }
        if let Some(layout) = &self.recurrent {
            let bytes = ops::deltanet::state_bytes(layout, pass.sequences.len(), pass.slots);
            scratch.reserve_states(bytes)?;
        }
        if pass.role == Role::Prompt {
            scratch.reserve_staged(self.staged)?;
        }
        scratch.reserve_products(self.products)
    }
}
