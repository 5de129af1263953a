//! Rows and plans that checks of backends have in common.

use crate::{
    AttentionShape, BlockConv, Buf, ConvNorm, Extent, Kind, KvLayout, MatrixId, Op, Pairs, Plan,
    RecurrentLayout, Rotary, Row, VectorId,
};

/// Rows that follow each other.
pub fn chain(n: usize) -> Vec<Row> {
    (0..n as u32).map(|i| Row { token: i, sequence: 0, parent: i.checked_sub(1) }).collect()
}

/// A tree of rows on sequence 0, a chain on sequence 1, interleaved.
pub fn tree_and_chain() -> Vec<Row> {
    let rows =
        [(0, -1), (1, -1), (0, 0), (0, 0), (1, 1), (0, 3), (0, 2), (1, 4), (0, 5), (0, -1), (0, 8)];
    rows.map(|(sequence, parent): (u32, i32)| Row {
        token: 0,
        sequence,
        parent: u32::try_from(parent).ok(),
    })
    .to_vec()
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct Norms {
    /// Of queries.
    pub q: VectorId,
    /// Of keys.
    pub k: VectorId,
}

/// Rotation and attention in layer 1 of a cache. Gives the plan, queries, keys and values, and the
/// output.
pub fn attention(
    norms: Norms,
    layout: KvLayout,
    shape: AttentionShape,
    window: Option<usize>,
    causal: bool,
) -> (Plan, [Buf; 3], Buf) {
    let mut plan = Plan::new("attention");
    let cache = plan.cache(layout);
    let q = plan.numbers("q", shape.heads * shape.query_stride());
    let k = plan.numbers("k", shape.kv_heads * shape.head_dim);
    let v = plan.numbers("v", shape.kv_heads * shape.head_dim);
    let inverse_frequencies = (0..16).map(|i| 1e4f32.powf(-(i as f32) / 16.0)).collect();
    let rotary = Rotary { inverse_frequencies, magnitude: 1.2 };
    let angles = plan.numbers("angles", 32);
    let out = plan.activation("out", shape.heads * shape.head_dim);
    let (q_norm, k_norm) = (norms.q, norms.k);
    plan.record(Op::Angles { rotary, out: angles });
    plan.record(Op::Rotate { q, k, v, shape, q_norm, k_norm, eps: 1e-6, angles, cache, layer: 1 });
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    plan.record(Op::Attention { q, k, v, shape, scale, window, causal, cache, layer: 1, out });
    (plan, [q, k, v], out)
}

/// Weights of Gated DeltaNet.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// Of the convolution.
    pub conv: VectorId,
    /// Added to alpha.
    pub dt_bias: VectorId,
    /// The decay of each head, negative.
    pub decay: VectorId,
    /// Of the output.
    pub norm: VectorId,
}

/// Convolution and Gated DeltaNet, the same weights in every layer. Gives the plan, the inputs of
/// each layer's convolution with z, alpha and beta behind, and the output.
pub fn deltanet(weights: DeltaNet, layout: RecurrentLayout) -> (Plan, Vec<Buf>, Buf) {
    let mut plan = Plan::new("deltanet");
    plan.recurrent(layout);
    let q = plan.numbers("q", layout.key_heads * layout.dim);
    let values = layout.value_heads * layout.dim;
    let (v, z) = (plan.numbers("v", values), plan.numbers("z", values));
    let (alpha, beta) =
        (plan.numbers("alpha", layout.value_heads), plan.numbers("beta", layout.value_heads));
    let out = plan.activation("out", values);
    let DeltaNet { conv, dt_bias, decay, norm } = weights;
    for layer in 0..layout.layers {
        plan.record(Op::Convolve { layer, weight: conv, q, v });
        plan.record(Op::DeltaNet {
            layer,
            q,
            v,
            z,
            alpha,
            beta,
            dt_bias,
            decay,
            norm,
            eps: 1e-6,
            out,
        });
    }
    let inputs = (0..layout.layers)
        .map(|l| plan.recurrent_layer(l).1.inputs)
        .chain([z, alpha, beta])
        .collect();
    (plan, inputs, out)
}

/// Both convolutions of a sub-layer: one to an activation, one into the residual stream with a norm
/// behind it. Gives the plan, what it reads (rows, coefficients, residual stream) and what it
/// writes (the activation, the residual stream, the norm's output).
pub fn block_conv(
    base: VectorId,
    weight: VectorId,
    cols: usize,
    taps: usize,
    group: usize,
) -> (Plan, [Buf; 3], [Buf; 3]) {
    let mut plan = Plan::new("block convolution");
    let coefficients = plan.numbers("coefficients", 2 * taps * cols / group);
    let (rows, x) = (plan.numbers("rows", cols), plan.numbers("x", cols));
    let (mixed, normed) = (plan.activation("mixed", cols), plan.activation("normed", cols));
    let out = plan.numbers("convolved", cols);
    let conv = |first, out| BlockConv { x: rows, base, coefficients, first, taps, group, out };
    plan.record(Op::BlockConv(conv(0, mixed)));
    let conv = conv(taps * cols / group, out);
    plan.record(Op::ConvNorm(ConvNorm { conv, x, weight, eps: 1e-6, out: normed }));
    (plan, [rows, coefficients, x], [mixed, x, normed])
}

/// Numbers scaled in place.
pub fn scale(cols: usize, by: f32, cap: Option<f32>) -> (Plan, Buf) {
    let mut plan = Plan::new("scale");
    let x = plan.numbers("x", cols);
    plan.record(Op::Scale { x, by, cap });
    (plan, x)
}

/// The best `count` tokens below `vocab` of rows of `columns` logits, and how well they follow each
/// other by codebooks of `rank` columns. Gives the plan, logits and gates, and the candidates.
pub fn candidates(
    [predecessors, successors]: [MatrixId; 2],
    [columns, vocab, count, rank]: [usize; 4],
    gated: bool,
) -> (Plan, [Buf; 2], Buf) {
    let mut plan = Plan::new("candidates");
    let logits = plan.buffer_of("logits", Kind::Numbers, columns, Extent::Chosen);
    let gates = plan.buffer_of("gates", Kind::Numbers, rank, Extent::Chosen);
    let candidates = plan.candidates("candidates", count);
    plan.record(Op::Top { logits, vocab, out: candidates });
    let gated = gated.then_some(gates);
    plan.record(Op::Pairs(Pairs { candidates, predecessors, successors, gates: gated, rank }));
    (plan, [logits, gates], candidates.buf)
}
