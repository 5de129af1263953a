//! The ops of a plan on the CPU. Each takes a thread's share of the rows, heads or tiles; what is
//! computed for a row does not depend on how they are shared.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod attention;
mod block;
mod convolve;
mod deltanet;
mod elementwise;
mod experts;
mod fold;
mod products;
mod rank;
mod rotate;

use super::view::View;
use crate::{
    pass::Pass,
    plan::{Op, Plan},
};
pub(crate) use fold::{FoldRow, fold};
pub(crate) use rank::rank;

/// Runs a thread's share of one op.
///
/// # Safety
/// The view's buffers belong to its plan and have room for its pass; every thread of the region
/// runs the same op.
pub(crate) unsafe fn execute(view: &View<'_>, op: &Op) {
    unsafe {
        match op {
            Op::Embed { table, out } => elementwise::embed(view, *table, *out),
            Op::Norm { x, add, weight, eps, out, offset, tap } => {
                elementwise::norm(view, *x, *add, *weight, *eps, (*out, *offset), *tap)
            }
            Op::Load { x, out } => elementwise::load(view, *x, *out),
            Op::SwiGlu { parts } => elementwise::swiglu(view, parts),
            Op::Matmul { products } => products::matmul(view, products),
            Op::Angles { rotary, out } => rotate::angles(view, rotary, *out),
            Op::Rotate { .. } => rotate::rotate(view, op),
            Op::Attention { .. } => attention::attention(view, op),
            Op::Convolve { layer, weight, q, v } => {
                convolve::convolve(view, *layer, *weight, *q, *v)
            }
            Op::DeltaNet { .. } => deltanet::deltanet(view, op),
            Op::Route { logits, routing, scale } => experts::route(view, *logits, routing, *scale),
            Op::Combine { routing, experts, shared, out } => {
                experts::combine(view, routing, *experts, *shared, *out)
            }
            Op::Scale { x, by, cap } => block::scale(view, *x, *by, *cap),
            Op::BlockConv(conv) => block::block_conv(view, conv),
            Op::Top { logits, vocab, out } => block::top(view, *logits, *vocab, out),
            Op::Pairs(pairs) => block::pairs(view, pairs),
            Op::Experts(_) | Op::ConvNorm(_) => {
                unreachable!("the plans of this backend's arenas are expanded")
            }
        }
    }
}

/// Numbers of scratch a thread needs for a pass.
pub(crate) fn scratch_len(plan: &Plan, pass: &Pass<'_>) -> usize {
    let ops = plan.ops.iter().map(|op| match op {
        Op::Attention { shape, .. } => attention::scratch_len(shape),
        Op::DeltaNet { .. } => deltanet::scratch_len(plan, pass),
        Op::Pairs(pairs) => block::scratch_len(pairs),
        _ => 0,
    });
    ops.max().unwrap_or(0)
}
