//! What a drafter computes: `context` and the block, as ops on buffers.

use super::parts::{Conv, Follow, Parts};
use crate::model::Borrowed;
use checkpoint::DrafterConfig;
use compute::{
    AttentionShape, BlockConv, Buf, Candidates, ConvNorm, Extent, Kind, KvLayout, KvType, MatrixId,
    Op, Pairs, Plan, Product, Rotary, Rows, VectorId,
};

/// The shape of each cache, and the window of its layers.
pub(super) type Caches = Vec<(KvLayout, Option<usize>)>;

/// Where a layer keeps its keys and values: which cache, and which layer of it.
pub(super) type Places = Vec<(usize, usize)>;

/// Deals the layers out to caches: one for each window there is, one for the full layers.
pub(super) fn deal(config: &DrafterConfig) -> (Caches, Places) {
    let mut caches: Caches = Vec::new();
    let mut places = Vec::new();
    for layer in &config.layers {
        let cache =
            caches.iter().position(|(_, window)| *window == layer.window).unwrap_or_else(|| {
                let (heads, head_dim) = (config.kv_heads, config.head_dim);
                caches.push((
                    KvLayout { kind: KvType::F16, layers: 0, heads, head_dim },
                    layer.window,
                ));
                caches.len() - 1
            });
        places.push((cache, caches[cache].0.layers));
        caches[cache].0.layers += 1;
    }
    (caches, places)
}

fn product(x: Buf, weight: MatrixId, out: Buf) -> Product {
    Product { x, weight, out, rows: Rows::All }
}

/// Declares the caches and the rotary angles that both plans share.
fn begin(name: &str, config: &DrafterConfig, caches: &[(KvLayout, Option<usize>)]) -> (Plan, Buf) {
    let mut plan = Plan::new(name);
    for (layout, _) in caches {
        plan.cache(*layout);
    }
    let angles = plan.numbers("angles", config.head_dim);
    let inverse_frequencies = config.rope.inverse_frequencies(config.head_dim);
    let rotary = Rotary { inverse_frequencies, magnitude: config.rope.attention_factor() };
    plan.record(Op::Angles { rotary, out: angles });
    (plan, angles)
}

/// `c = rms(fc . features)`, then keys and values of every layer from the same `c`, without the
/// layer's input norm.
pub(super) fn record_context(
    config: &DrafterConfig,
    parts: &Parts,
    caches: &Caches,
    places: &Places,
) -> (Plan, Buf) {
    let layers = &parts.layers;
    let (hidden, eps) = (config.hidden, config.norm_eps);
    let keys = config.kv_heads * config.head_dim;
    let width = config.taps.len() * hidden;
    let (mut plan, angles) = begin("draft context", config, caches);
    let features = plan.numbers("features", width);
    let joined = plan.activation("joined", width);
    let projected = plan.numbers("projected", hidden);
    let normed = plan.activation("context", hidden);
    plan.record(Op::Load { x: features, out: joined });
    plan.matmul(joined, parts.fc, projected);
    let weight = parts.context_norm;
    plan.record(Op::Norm {
        x: projected,
        add: None,
        weight,
        eps,
        out: normed,
        offset: 0,
        tap: None,
    });
    let rows: Vec<(Buf, Buf)> = (0..layers.len())
        .map(|i| (plan.numbers(&format!("k {i}"), keys), plan.numbers(&format!("v {i}"), keys)))
        .collect();
    let products = layers
        .iter()
        .zip(&rows)
        .flat_map(|(l, (k, v))| [product(normed, l.k, *k), product(normed, l.v, *v)]);
    plan.record(Op::Matmul { products: products.collect() });
    // No queries: only keys are rotated.
    let shape = AttentionShape {
        heads: 0,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        gated: false,
    };
    let q = plan.numbers("no queries", 0);
    for ((layer, (cache, index)), (k, v)) in layers.iter().zip(places).zip(&rows) {
        let (k_norm, cache, layer) = (layer.k_norm, *cache, *index);
        plan.record(Op::Rotate {
            q,
            k: *k,
            v: *v,
            shape,
            q_norm: k_norm,
            k_norm,
            eps,
            angles,
            cache,
            layer,
        });
    }
    (plan, features)
}

/// The block's plan and what is read of it.
pub(super) struct Block {
    pub(super) plan: Plan,
    /// [chosen, vocab].
    pub(super) logits: Buf,
    /// The best tokens of each row and how they follow each other, where the drafter knows.
    pub(super) candidates: Option<Candidates>,
    /// [chosen, 1], where the drafter tells how sure it is.
    pub(super) confidence: Option<Buf>,
}

/// The block pass, down to the logits of the chosen rows and what is chosen from them. Tokens from
/// `vocab` on are never candidates.
pub(super) fn record_block(
    config: &DrafterConfig,
    parts: &Parts,
    caches: &Caches,
    places: &Places,
    borrowed: &Borrowed,
    vocab: usize,
) -> Block {
    let (plan, angles) = begin("draft block", config, caches);
    let mut record = Recorder::new(config, plan);
    record.plan.record(Op::Embed { table: borrowed.embedding, out: record.x });
    let scales = config.extras.scales;
    if scales.embedding != 1.0 {
        record.plan.record(Op::Scale { x: record.x, by: scales.embedding, cap: None });
    }
    let attention = Attention::new(config, &mut record.plan, angles);
    let (gate, up) =
        (record.plan.numbers("gate", config.ffn), record.plan.numbers("up", config.ffn));
    let act = record.plan.activation("act", config.ffn);
    for (i, layer) in parts.layers.iter().enumerate() {
        let convs = layer.convs.filter(|_| config.extras.conv.is_some());
        let input = record.enter(layer.input_norm, convs.map(|[around, _]| around));
        let products = [(layer.q, attention.q), (layer.k, attention.k), (layer.v, attention.v)];
        record.multiply(input, &products);
        attention.record(&mut record.plan, config, i, places[i], [layer.q_norm, layer.k_norm]);
        record.plan.matmul(attention.out, layer.output, record.y);
        let input = record.enter(layer.ffn_norm, convs.map(|[_, around]| around));
        record.multiply(input, &[(layer.gate, gate), (layer.up, up)]);
        record.plan.record(Op::SwiGlu { parts: vec![(gate, up, act)] });
        record.plan.matmul(act, layer.down, record.y);
    }
    record.norm(parts.output_norm);
    record.choose(parts, borrowed.head, (borrowed.vocab, vocab))
}

/// Records the block pass.
struct Recorder<'a> {
    config: &'a DrafterConfig,
    plan: Plan,
    /// [rows, hidden]: the residual stream.
    x: Buf,
    /// [rows, hidden]: what the last sub-layer gave.
    y: Buf,
    normed: Buf,
    /// What becomes of `y`; nothing before the first sub-layer.
    pending: Option<Pending>,
}

/// How a sub-layer's output comes to the residual stream.
enum Pending {
    Plain,
    Through(BlockConv),
}

impl<'a> Recorder<'a> {
    fn new(config: &'a DrafterConfig, mut plan: Plan) -> Self {
        let hidden = config.hidden;
        let (x, y) = (plan.numbers("x", hidden), plan.numbers("y", hidden));
        let normed = plan.activation("normed", hidden);
        Self { config, plan, x, y, normed, pending: None }
    }

    /// Brings the last sub-layer's output to the residual stream, and norms that.
    fn norm(&mut self, weight: VectorId) {
        let (x, out, eps) = (self.x, self.normed, self.config.norm_eps);
        let add = match self.pending.take() {
            Some(Pending::Through(conv)) => {
                return self.plan.record(Op::ConvNorm(ConvNorm { conv, x, weight, eps, out }));
            }
            Some(Pending::Plain) => Some(self.y),
            None => None,
        };
        self.plan.record(Op::Norm { x, add, weight, eps, out, offset: 0, tap: None });
    }

    /// Begins a sub-layer: its norm, and the convolution before it where there is one. Gives what
    /// it reads.
    fn enter(&mut self, weight: VectorId, conv: Option<Conv>) -> Buf {
        self.norm(weight);
        let Some((shape, conv)) = self.config.extras.conv.zip(conv) else {
            self.pending = Some(Pending::Plain);
            return self.normed;
        };
        let (hidden, taps, group) = (self.config.hidden, shape.kernel, shape.group);
        let coefficients = self.buffer("coefficients", Kind::Numbers, shape.coefficients(hidden));
        self.plan.matmul(self.normed, conv.projection, coefficients);
        let mixed = self.buffer("mixed", Kind::Activation, hidden);
        let side = |side: usize, x, out| {
            let (base, first) = (conv.base[side], side * taps * shape.groups(hidden));
            BlockConv { x, base, coefficients, first, taps, group, out }
        };
        self.plan.record(Op::BlockConv(side(0, self.normed, mixed)));
        let convolved = self.buffer("convolved", Kind::Numbers, hidden);
        self.pending = Some(Pending::Through(side(1, self.y, convolved)));
        mixed
    }

    /// The buffer of that name, which all layers share.
    fn buffer(&mut self, name: &str, kind: Kind, cols: usize) -> Buf {
        self.plan.find(name).unwrap_or_else(|| self.plan.buffer(name, kind, cols))
    }

    fn multiply(&mut self, x: Buf, products: &[(MatrixId, Buf)]) {
        let products = products.iter().map(|(weight, out)| product(x, *weight, *out)).collect();
        self.plan.record(Op::Matmul { products });
    }

    /// A product over the chosen rows.
    fn of_chosen(&mut self, name: &str, weight: MatrixId, cols: usize) -> (Buf, Product) {
        let out = self.plan.buffer_of(name, Kind::Numbers, cols, Extent::Chosen);
        (out, Product { x: self.normed, weight, out, rows: Rows::Chosen })
    }

    /// Logits of the chosen rows, and what follows from them.
    fn choose(mut self, parts: &Parts, head: MatrixId, (all, vocab): (usize, usize)) -> Block {
        let extras = &self.config.extras;
        let knows = extras.selector.is_some() || extras.markov.is_some();
        let follow = parts.follow.filter(|_| knows);
        let mut small = Vec::new();
        let mut gates = None;
        if let Some(Follow { gates: Some(weight), rank, .. }) = follow {
            let (out, product) = self.of_chosen("gates", weight, rank);
            gates = Some(out);
            small.push(product);
        }
        let mut confidence = None;
        if let Some(head) = parts.confidence.as_ref().filter(|_| extras.confidence.is_some()) {
            let (out, product) = self.of_chosen("confidence", head.hidden, 1);
            confidence = Some(out);
            small.push(product);
        }
        if !small.is_empty() {
            self.plan.record(Op::Matmul { products: small });
        }
        let (logits, product) = self.of_chosen("logits", head, all);
        self.plan.record(Op::Matmul { products: vec![product] });
        let scales = extras.scales;
        if scales.logits != 1.0 || scales.softcap.is_some() {
            self.plan.record(Op::Scale { x: logits, by: scales.logits, cap: scales.softcap });
        }
        let candidates = follow.map(|Follow { predecessors, successors, rank, count, .. }| {
            let candidates = self.plan.candidates("candidates", count);
            self.plan.record(Op::Top { logits, vocab, out: candidates });
            let pairs = Pairs { candidates, predecessors, successors, gates, rank };
            self.plan.record(Op::Pairs(pairs));
            candidates
        });
        Block { plan: self.plan, logits, candidates, confidence }
    }
}

/// The buffers of attention, which all layers share.
struct Attention {
    shape: AttentionShape,
    angles: Buf,
    q: Buf,
    k: Buf,
    v: Buf,
    out: Buf,
}

impl Attention {
    fn new(config: &DrafterConfig, plan: &mut Plan, angles: Buf) -> Self {
        let (heads, kv_heads, head_dim) = (config.q_heads, config.kv_heads, config.head_dim);
        let shape = AttentionShape { heads, kv_heads, head_dim, gated: false };
        let q = plan.numbers("q", heads * head_dim);
        let (k, v) =
            (plan.numbers("k", kv_heads * head_dim), plan.numbers("v", kv_heads * head_dim));
        Self { shape, angles, q, k, v, out: plan.activation("attended", heads * head_dim) }
    }

    /// Rotation and attention of layer `i`, which keeps its keys and values in layer `layer` of a
    /// cache.
    fn record(
        &self,
        plan: &mut Plan,
        config: &DrafterConfig,
        i: usize,
        (cache, layer): (usize, usize),
        [q_norm, k_norm]: [VectorId; 2],
    ) {
        let &Self { shape, angles, q, k, v, out } = self;
        let eps = config.norm_eps;
        plan.record(Op::Rotate { q, k, v, shape, q_norm, k_norm, eps, angles, cache, layer });
        let (window, causal) = (config.layers[i].window, config.layers[i].causal);
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        plan.record(Op::Attention { q, k, v, shape, scale, window, causal, cache, layer, out });
    }
}
