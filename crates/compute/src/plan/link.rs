//! From the numbers that plans give weights to those of a backend. Model code records plans before
//! a byte of a weight is read, so a plan counts the weights it names; where they lie is decided
//! afterwards, and then the plan is linked.

use super::{ConvNorm, Experts, MatrixId, Op, Pairs, Plan, VectorId};

/// What a backend calls the weights that plans name, by the number they name them with.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// Matrices and tables.
    pub matrices: Vec<MatrixId>,
    /// Vectors.
    pub vectors: Vec<VectorId>,
}

impl MatrixId {
    /// The `n`th matrix that plans name.
    pub const fn named(n: usize) -> Self {
        Self(n as u32)
    }
}

impl VectorId {
    /// The `n`th vector that plans name.
    pub const fn named(n: usize) -> Self {
        Self(n as u32)
    }
}

impl Links {
    /// The backend's matrix.
    pub fn matrix(&self, named: MatrixId) -> MatrixId {
        self.matrices[named.0 as usize]
    }

    /// The backend's vector.
    pub fn vector(&self, named: VectorId) -> VectorId {
        self.vectors[named.0 as usize]
    }
}

impl Plan {
    /// The same plan over the weights of a backend.
    pub fn linked(mut self, links: &Links) -> Self {
        self.ops.iter_mut().for_each(|op| op.link(links));
        self
    }
}

impl Op {
    fn link(&mut self, links: &Links) {
        let matrix = |id: &mut MatrixId| *id = links.matrix(*id);
        let vector = |id: &mut VectorId| *id = links.vector(*id);
        match self {
            Self::Embed { table, .. } => matrix(table),
            Self::Norm { weight, .. } | Self::Convolve { weight, .. } => vector(weight),
            Self::Matmul { products } => products.iter_mut().for_each(|p| matrix(&mut p.weight)),
            Self::Rotate { q_norm, k_norm, .. } => [q_norm, k_norm].into_iter().for_each(vector),
            Self::DeltaNet { dt_bias, decay, norm, .. } => {
                [dt_bias, decay, norm].into_iter().for_each(vector);
            }
            Self::Experts(Experts { norm, router, shared_router, experts, shared, .. }) => {
                vector(norm);
                [router, shared_router].into_iter().for_each(matrix);
                experts.weights.iter_mut().chain(&mut shared.weights).for_each(matrix);
            }
            Self::BlockConv(conv) => vector(&mut conv.base),
            Self::ConvNorm(ConvNorm { conv, weight, .. }) => {
                [&mut conv.base, weight].into_iter().for_each(vector);
            }
            Self::Pairs(Pairs { predecessors, successors, .. }) => {
                [predecessors, successors].into_iter().for_each(matrix);
            }
            Self::Load { .. }
            | Self::Angles { .. }
            | Self::Attention { .. }
            | Self::SwiGlu { .. }
            | Self::Route { .. }
            | Self::Combine { .. }
            | Self::Scale { .. }
            | Self::Top { .. } => {}
        }
    }
}
