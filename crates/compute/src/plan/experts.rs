//! The second half of a block of a mixture as one op, and the plain ops it stands for.

use super::{Buf, MatrixId, Op, Plan, Product, Routing, Rows, VectorId};
use std::sync::Arc;

/// From the norm to the weighted sum of what experts say. Of its buffers `x`, the routing's ids and
/// weights and `out` are what later ops may read; a backend that does all at once leaves the others
/// as it likes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Experts {
    pub x: Buf,
    pub add: Option<Buf>,
    pub norm: VectorId,
    pub eps: f32,
    pub normed: Buf,
    /// [experts, cols] and [1, cols].
    pub router: MatrixId,
    pub shared_router: MatrixId,
    pub logits: Buf,
    pub shared_logits: Buf,
    pub routing: Routing,
    /// What the weights of a row's experts sum to.
    pub scale: f32,
    /// Those a row is sent to, and the one that all are.
    pub experts: FeedForward,
    pub shared: FeedForward,
    pub out: Buf,
}

/// `out = down . (silu(gate . x) * (up . x))`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct FeedForward {
    /// Gate, up and down.
    pub weights: [MatrixId; 3],
    pub gate: Buf,
    pub up: Buf,
    pub act: Buf,
    pub out: Buf,
}

impl Experts {
    /// The plain ops it stands for, which are its specification.
    pub(crate) fn expand(&self) -> [Op; 7] {
        let Self { x, add, norm: weight, eps, normed, logits, routing, scale, out, .. } = *self;
        let product = |x, weight, out, rows| Product { x, weight, out, rows };
        let (to, from, all) = (Rows::ToExperts(routing), Rows::FromExperts(routing), Rows::All);
        let ups = |f: &FeedForward, rows| {
            [(f.weights[0], f.gate), (f.weights[1], f.up)].map(|(w, y)| product(normed, w, y, rows))
        };
        let down = |f: &FeedForward, rows| product(f.act, f.weights[2], f.out, rows);
        let part = |f: &FeedForward| (f.gate, f.up, f.act);
        let (own, shared) = (&self.experts, &self.shared);
        let routers = vec![
            product(normed, self.router, logits, all),
            product(normed, self.shared_router, self.shared_logits, all),
        ];
        [
            Op::Norm { x, add, weight, eps, out: normed, offset: 0, tap: None },
            Op::Matmul { products: routers },
            Op::Route { logits, routing, scale },
            Op::Matmul { products: [ups(own, to), ups(shared, all)].concat() },
            Op::SwiGlu { parts: vec![part(own), part(shared)] },
            Op::Matmul { products: vec![down(own, from), down(shared, all)] },
            Op::Combine {
                routing,
                experts: own.out,
                shared: Some((shared.out, self.shared_logits)),
                out,
            },
        ]
    }
}

impl Plan {
    /// The same plan in plain ops, for backends and passes that have no kernel for a fused one.
    pub(crate) fn expanded(self: &Arc<Self>) -> Arc<Self> {
        if !self.ops.iter().any(|op| matches!(op, Op::Experts(_) | Op::ConvNorm(_))) {
            return self.clone();
        }
        let plain = |op: &Op| match op {
            Op::Experts(experts) => experts.expand().to_vec(),
            Op::ConvNorm(both) => both.expand().to_vec(),
            op => vec![op.clone()],
        };
        Arc::new(Self { ops: self.ops.iter().flat_map(plain).collect(), ..(**self).clone() })
    }
}
