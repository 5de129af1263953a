//! The DFlash drafter: a few attention layers that read the target's hidden states as keys and
//! values and fill in a block of masked positions in one pass. It borrows the target's embedding
//! and LM head.
//!
//! Two plans: `context` turns features of committed tokens into keys and values of every layer,
//! once; `block` runs the newest token and the masks over them. Only `context` rows are ever kept.

use super::{Ask, Drafted, Drafter, Lattice, MAX_NODES, Reads, Shape, ranks_needed};
use crate::model::{Loader, Model, Shared, WeightSource, append};
use crate::propose::Spec;
use crate::state::{DraftState, commit_pages};
use crate::{Error, Row};
use checkpoint::DrafterConfig;
use compute::{
    Arena, AttentionShape, Backend, Buf, CommitPath, Extent, Kind, KvLayout, KvType, MatrixId, Op,
    PAGE_TOKENS, Pass, Plan, Product, Ranked, Rotary, Rows, VectorId,
};
use std::borrow::Cow;
use std::time::Instant;

/// Rows of features taken in by one pass.
const CONTEXT_ROWS: usize = 256;

/// Rows of a pass over blocks, each with its newest token: those of several texts share one.
const BLOCK_ROWS: usize = MAX_NODES + 1;

/// The shape of each cache, and the window of its layers.
type Caches = Vec<(KvLayout, Option<usize>)>;

/// A drafter on a backend.
pub struct Dflash {
    config: DrafterConfig,
    parts: Parts,
    caches: Caches,
    context: Arena,
    /// [rows, taps * hidden].
    features: Buf,
    block: Arena,
    /// [chosen, vocab].
    logits: Buf,
    vocab: usize,
}

/// The weights, which any configuration of the same dimensions can run.
#[derive(Clone)]
struct Parts {
    fc: MatrixId,
    context_norm: VectorId,
    layers: Vec<Layer>,
    output_norm: VectorId,
}

/// The weights of one layer.
#[derive(Clone)]
struct Layer {
    input_norm: VectorId,
    q: MatrixId,
    k: MatrixId,
    v: MatrixId,
    output: MatrixId,
    q_norm: VectorId,
    k_norm: VectorId,
    ffn_norm: VectorId,
    gate: MatrixId,
    up: MatrixId,
    down: MatrixId,
}

/// Where a layer keeps its keys and values: which cache, and which layer of it.
type Places = Vec<(usize, usize)>;

impl Dflash {
    /// Takes the weights in and records the plans. Features are those of the layers that
    /// `config.taps` names.
    pub fn load(
        backend: &mut dyn Backend,
        config: &DrafterConfig,
        source: &dyn WeightSource,
        target: &Model,
    ) -> Result<Self, Error> {
        assert_eq!(target.config().hidden, config.hidden, "the target is of another width");
        let sizes = [
            ("a drafter's width", config.hidden),
            ("a drafter's head", config.head_dim),
            ("a drafter's FFN", config.ffn),
        ];
        for (what, found) in sizes {
            if !found.is_multiple_of(32) {
                return Err(Error::Unsupported { what, found, expected: "a multiple of 32" });
            }
        }
        let parts = Parts::load(&mut Loader { backend, source }, config)?;
        Self::record(backend, config, parts, target)
    }

    /// The same weights under another configuration: other windows, angles, taps or mask, of the
    /// same dimensions.
    pub(crate) fn variant(
        &self,
        backend: &dyn Backend,
        config: &DrafterConfig,
        target: &Model,
    ) -> Result<Self, Error> {
        let dimensions = |c: &DrafterConfig| {
            (c.hidden, c.layers.len(), c.q_heads, c.kv_heads, c.head_dim, c.ffn, c.taps.len())
        };
        assert_eq!(
            dimensions(config),
            dimensions(&self.config),
            "other dimensions need other weights"
        );
        Self::record(backend, config, self.parts.clone(), target)
    }

    fn record(
        backend: &dyn Backend,
        config: &DrafterConfig,
        parts: Parts,
        target: &Model,
    ) -> Result<Self, Error> {
        let (caches, places) = deal(config);
        let (context, features) = record_context(config, &parts, &caches, &places);
        let vocab = target.config().vocab;
        let (block, logits) = record_block(config, &parts, &caches, &places, target);
        let context = backend.arena(context.into(), CONTEXT_ROWS, 0)?;
        let rows = BLOCK_ROWS.max(config.block);
        let block = backend.arena(block.into(), rows, rows)?;
        Ok(Self { config: config.clone(), parts, caches, context, features, block, logits, vocab })
    }

    /// The drafter's shape.
    pub fn config(&self) -> &DrafterConfig {
        &self.config
    }

    /// A block of `rows` rows (newest token and masks) of each text: for each masked position its `ranks`
    /// best candidates. Nothing for a text where a logit is not a number.
    pub(crate) fn fill_in(
        &mut self,
        backend: &mut dyn Backend,
        texts: &[(&DraftState, u32)],
        rows: usize,
        ranks: usize,
    ) -> Result<Vec<Option<Vec<Ranked>>>, Error> {
        let mut found = Vec::with_capacity(texts.len());
        for texts in texts.chunks((BLOCK_ROWS / rows).max(1)) {
            let mut block: Vec<Row> = Vec::new();
            for ((_, tip), sequence) in texts.iter().zip(0..) {
                let first = append(&mut block, chain_of(self.config.mask_token, rows, sequence));
                block[first as usize].token = *tip;
            }
            let chosen: Vec<u32> =
                (0..block.len() as u32).filter(|row| !row.is_multiple_of(rows as u32)).collect();
            let views = texts.iter().map(|(state, _)| state.view()).collect();
            backend.run(&mut self.block, &Pass::new(&block, &chosen, views))?;
            let ranked =
                backend.rank(&self.block, self.logits, chosen.len(), ranks.min(self.vocab))?;
            let mut ranked = ranked.into_iter();
            found.extend(texts.iter().map(|_| {
                // All of a text's, whether or not one of them is missing.
                let positions: Vec<_> = ranked.by_ref().take(rows - 1).collect();
                positions.into_iter().collect::<Option<Vec<Ranked>>>()
            }));
        }
        Ok(found)
    }
}

impl Drafter for Dflash {
    fn name(&self) -> &'static str {
        "dflash"
    }

    fn title(&self) -> &'static str {
        "the drafter"
    }

    fn reads(&self) -> Reads {
        Reads::Taps
    }

    fn shape(&self, spec: Spec) -> Option<Shape> {
        let (block, budget, is_tree) = match spec {
            Spec::Chain { block, budget } => (block, budget, false),
            Spec::Tree { block, budget } | Spec::Auto { block, budget } => (block, budget, true),
            Spec::Off | Spec::Mtp { .. } | Spec::Lookup { .. } => return None,
        };
        let depth = block - 1;
        let ranks = if is_tree { ranks_needed(depth, budget) } else { 1 };
        Some(Shape { depth, ranks, budget })
    }

    fn block(&self) -> Option<usize> {
        Some(self.config.block)
    }

    fn state(&self) -> DraftState {
        DraftState::new(&self.caches, self.config.taps.len() * self.config.hidden)
    }

    fn state_bytes(&self, tokens: usize) -> usize {
        let bytes = |(layout, window): &(KvLayout, Option<usize>)| {
            let kept = window.map_or(tokens, |window| tokens.min(window + 2 * PAGE_TOKENS));
            kept.div_ceil(PAGE_TOKENS) * layout.page_bytes()
        };
        self.caches.iter().map(bytes).sum()
    }

    /// Takes pending features in, as keys and values of every layer; those of several texts
    /// together.
    fn absorb(
        &mut self,
        backend: &mut dyn Backend,
        states: &mut [&mut DraftState],
    ) -> Result<(), Error> {
        loop {
            let (mut rows, mut parts) = (Vec::new(), Vec::new());
            for state in states.iter_mut() {
                let count = state.pending.len().min(CONTEXT_ROWS - rows.len());
                if count == 0 {
                    continue;
                }
                let first = append(&mut rows, chain_of(0, count, parts.len() as u32));
                state.pending.load(
                    backend,
                    &mut self.context,
                    (self.features, first as usize),
                    0,
                    count,
                )?;
                parts.push((&mut **state, first..first + count as u32));
            }
            if parts.is_empty() {
                return Ok(());
            }
            let views = parts.iter().map(|(state, _)| state.view()).collect();
            backend.run(&mut self.context, &Pass::new(&rows, &[], views))?;
            let paths: Vec<Vec<u32>> =
                parts.iter().map(|(_, rows)| rows.clone().collect()).collect();
            for cache in 0..self.caches.len() {
                let texts = parts.iter_mut().zip(&paths).map(|((state, _), rows)| {
                    let path = CommitPath { rows, position: state.committed };
                    (&mut state.caches[cache].0, path)
                });
                let done = commit_pages(backend, &self.context, cache, texts.collect());
                done.into_iter().collect::<Result<(), _>>()?;
            }
            for ((state, _), path) in parts.into_iter().zip(&paths) {
                state.take_in(path.len());
            }
        }
    }

    fn propose(
        &mut self,
        backend: &mut dyn Backend,
        asks: &mut [Ask<'_>],
    ) -> Result<Drafted, Error> {
        let start = Instant::now();
        let mut states: Vec<&mut DraftState> = asks.iter_mut().map(|ask| &mut *ask.state).collect();
        self.absorb(backend, &mut states)?;
        let (depth, ranks) = asks.first().map_or((0, 0), |ask| (ask.shape.depth, ask.shape.ranks));
        let texts: Vec<_> = asks.iter().map(|ask| (&*ask.state, ask.tip)).collect();
        let found = self.fill_in(backend, &texts, depth + 1, ranks)?;
        let lattice = |positions: Option<Vec<Ranked>>| Some(Lattice::independent(&positions?));
        let lattices = found.into_iter().map(lattice).collect();
        Ok(Drafted { lattices, first_s: start.elapsed().as_secs_f64() })
    }

    fn logits(&self, i: usize) -> Result<Cow<'_, [f32]>, Error> {
        Ok(self.block.row(self.logits, i)?)
    }
}

/// Rows of the same token, each the parent of the next.
fn chain_of(token: u32, count: usize, sequence: u32) -> impl Iterator<Item = Row> {
    (0..count as u32).map(move |i| Row { token, sequence, parent: i.checked_sub(1) })
}

impl Parts {
    fn load(loader: &mut Loader<'_>, config: &DrafterConfig) -> Result<Self, Error> {
        let (hidden, dim, ffn) = (config.hidden, config.head_dim, config.ffn);
        let (queries, keys) = (config.q_heads * dim, config.kv_heads * dim);
        let mut layers = Vec::new();
        for i in 0..config.layers.len() {
            let named = |part: &str| format!("blk.{i}.{part}.weight");
            layers.push(Layer {
                input_norm: loader.vector(&named("attn_norm"), hidden)?,
                q: loader.matrix(&named("attn_q"), queries, hidden)?,
                k: loader.matrix(&named("attn_k"), keys, hidden)?,
                v: loader.matrix(&named("attn_v"), keys, hidden)?,
                output: loader.matrix(&named("attn_output"), hidden, queries)?,
                q_norm: loader.vector(&named("attn_q_norm"), dim)?,
                k_norm: loader.vector(&named("attn_k_norm"), dim)?,
                ffn_norm: loader.vector(&named("ffn_norm"), hidden)?,
                gate: loader.matrix(&named("ffn_gate"), ffn, hidden)?,
                up: loader.matrix(&named("ffn_up"), ffn, hidden)?,
                down: loader.matrix(&named("ffn_down"), hidden, ffn)?,
            });
        }
        Ok(Self {
            fc: loader.matrix("fc.weight", hidden, config.taps.len() * hidden)?,
            context_norm: loader.vector("enc.output_norm.weight", hidden)?,
            layers,
            output_norm: loader.vector("output_norm.weight", hidden)?,
        })
    }
}

/// Deals the layers out to caches: one for each window there is, one for the full layers.
fn deal(config: &DrafterConfig) -> (Caches, Places) {
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
fn record_context(
    config: &DrafterConfig,
    parts: &Parts,
    caches: &[(KvLayout, Option<usize>)],
    places: &[(usize, usize)],
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

/// The block pass, down to the logits of the chosen rows.
fn record_block(
    config: &DrafterConfig,
    parts: &Parts,
    caches: &[(KvLayout, Option<usize>)],
    places: &[(usize, usize)],
    target: &Model,
) -> (Plan, Buf) {
    let (hidden, dim, ffn, eps) = (config.hidden, config.head_dim, config.ffn, config.norm_eps);
    let (queries, keys) = (config.q_heads * dim, config.kv_heads * dim);
    let Shared { embedding, head, .. } = *target.shared();
    let (mut plan, angles) = begin("draft block", config, caches);
    let (x, y) = (plan.numbers("x", hidden), plan.numbers("y", hidden));
    let normed = plan.activation("normed", hidden);
    let (q, k, v) = (plan.numbers("q", queries), plan.numbers("k", keys), plan.numbers("v", keys));
    let attended = plan.activation("attended", queries);
    let (gate, up) = (plan.numbers("gate", ffn), plan.numbers("up", ffn));
    let act = plan.activation("act", ffn);
    let shape = AttentionShape {
        heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: dim,
        gated: false,
    };
    let scale = 1.0 / (dim as f32).sqrt();
    plan.record(Op::Embed { table: embedding, out: x });
    let mut add = None;
    for ((layer, &(cache, index)), seen) in parts.layers.iter().zip(places).zip(&config.layers) {
        let Layer { input_norm, ffn_norm, q_norm, k_norm, .. } = *layer;
        plan.record(Op::Norm {
            x,
            add,
            weight: input_norm,
            eps,
            out: normed,
            offset: 0,
            tap: None,
        });
        let products = vec![
            product(normed, layer.q, q),
            product(normed, layer.k, k),
            product(normed, layer.v, v),
        ];
        plan.record(Op::Matmul { products });
        plan.record(Op::Rotate {
            q,
            k,
            v,
            shape,
            q_norm,
            k_norm,
            eps,
            angles,
            cache,
            layer: index,
        });
        let (window, causal) = (seen.window, seen.causal);
        plan.record(Op::Attention {
            q,
            k,
            v,
            shape,
            scale,
            window,
            causal,
            cache,
            layer: index,
            out: attended,
        });
        plan.matmul(attended, layer.output, y);
        plan.record(Op::Norm {
            x,
            add: Some(y),
            weight: ffn_norm,
            eps,
            out: normed,
            offset: 0,
            tap: None,
        });
        plan.record(Op::Matmul {
            products: vec![product(normed, layer.gate, gate), product(normed, layer.up, up)],
        });
        plan.record(Op::SwiGlu { parts: vec![(gate, up, act)] });
        plan.matmul(act, layer.down, y);
        add = Some(y);
    }
    let weight = parts.output_norm;
    plan.record(Op::Norm { x, add, weight, eps, out: normed, offset: 0, tap: None });
    let logits = plan.buffer_of("logits", Kind::Numbers, target.config().vocab, Extent::Chosen);
    plan.record(Op::Matmul {
        products: vec![Product { x: normed, weight: head, out: logits, rows: Rows::Chosen }],
    });
    (plan, logits)
}
