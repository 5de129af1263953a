//! The plan: ops recorded on named buffers by model code, once; a backend runs it for any number of
//! rows up to its capacity. Whatever changes from pass to pass (tokens, positions, lengths, pages)
//! comes from the `Pass`.

mod block;
mod experts;
mod link;

use crate::{
    kv::KvLayout,
    recurrent::{RecurrentLayout, TAPE_TOKENS},
};
pub(crate) use block::Before;
pub use block::{BlockConv, Candidates, ConvNorm, Pairs};
pub use experts::{Experts, FeedForward};
pub use link::Links;

/// A matrix held by a backend, in the form its kernels read; before a plan is linked, one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub(crate) u32);

/// A vector of f32 held by a backend; before a plan is linked, one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub(crate) u32);

/// A buffer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf(pub(crate) u32);

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// f32 numbers.
    Numbers,
    /// f32 numbers that matrices are multiplied with: the backend may keep a rounded copy beside
    /// them.
    Activation,
    /// u32 words.
    Words,
    /// Raw bytes.
    Bytes,
}

impl Kind {
    /// Bytes of one element.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Bytes => 1,
            Self::Numbers | Self::Activation | Self::Words => 4,
        }
    }
}

/// How many rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many for each row of the pass: 1, or the number of experts a row visits.
    Rows(usize),
    /// One for each row whose logits are asked for.
    Chosen,
    /// One in all.
    Once,
}

/// A buffer: [extent, cols].
#[derive(Clone, Debug)]
pub struct BufferSpec {
    /// For people.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Elements in a row.
    pub cols: usize,
    /// Rows.
    pub extent: Extent,
}

impl BufferSpec {
    /// Rows of the buffer in a pass of `rows` rows of which `chosen` have logits.
    pub fn rows(&self, rows: usize, chosen: usize) -> usize {
        match self.extent {
            Extent::Rows(copies) => rows * copies,
            Extent::Chosen => chosen,
            Extent::Once => 1,
        }
    }
}

/// The rows a product runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every row of the pass.
    All,
    /// The rows whose logits are asked for; output row `i` belongs to `pass.chosen[i]`.
    Chosen,
    /// Every row, once for each expert it visits, with that expert's matrix; the input has a row
    /// per row of the pass.
    ToExperts(Routing),
    /// The same, where the input has a row per visit.
    FromExperts(Routing),
}

/// Where the router's choice lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Experts in all.
    pub experts: usize,
    /// Experts a row visits.
    pub top_k: usize,
    /// [rows, top_k] u32: the experts of a row, best first.
    pub ids: Buf,
    /// [rows, top_k]: their weights, which sum to `scale`.
    pub weights: Buf,
    /// [rows * top_k] u32: visits (`row * top_k + rank`) in order of their expert.
    pub order: Buf,
    /// [experts + 1] u32: where each expert's visits begin in `order`.
    pub starts: Buf,
}

/// `out = x . weight^T`.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// [rows, in].
    pub x: Buf,
    /// [out, in], or [experts, out, in].
    pub weight: MatrixId,
    /// [rows, out].
    pub out: Buf,
    /// Which rows.
    pub rows: Rows,
}

/// How rotary angles follow from a position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// One inverse frequency per pair of dimensions; its length is half the rotated dimensions.
    pub inverse_frequencies: Vec<f32>,
    /// Factor on sine and cosine (YaRN), else 1.
    pub magnitude: f32,
}

/// The shape of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether queries come as `[query | gate]` per head and the output is multiplied by
    /// `sigmoid(gate)`.
    pub gated: bool,
}

impl AttentionShape {
    /// Numbers from one query head to the next.
    pub fn query_stride(&self) -> usize {
        self.head_dim * if self.gated { 2 } else { 1 }
    }
}

/// One step of a plan. What a field is, the sentence above its op says.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op {
    /// `out[r] = table[token[r]]`.
    Embed { table: MatrixId, out: Buf },
    /// `x += add; tap = x; out[offset..] = rms(x) * weight`; `add` and `tap` where given, `tap` at
    /// a column.
    Norm {
        x: Buf,
        add: Option<Buf>,
        weight: VectorId,
        eps: f32,
        out: Buf,
        offset: usize,
        tap: Option<(Buf, usize)>,
    },
    /// `out = x`, ready to be multiplied.
    Load { x: Buf, out: Buf },
    /// Products that depend on nothing of each other.
    Matmul { products: Vec<Product> },
    /// `out[r] = [cos; sin](position[r] * inverse_frequency) * magnitude`: [rows, 2 * pairs].
    Angles { rotary: Rotary, out: Buf },
    /// Per-head norm of queries and keys, rotation of both (first dimensions, NeoX pairs), the
    /// [`hadamard`](crate::hadamard()) transform of queries, keys and values where the cache's type
    /// asks for it, and rounding of keys and values to that type: `q`, `k`, `v` change in place,
    /// the encoded rows go to the cache's pass buffer.
    Rotate {
        q: Buf,
        k: Buf,
        v: Buf,
        shape: AttentionShape,
        q_norm: VectorId,
        k_norm: VectorId,
        eps: f32,
        angles: Buf,
        cache: usize,
        layer: usize,
    },
    /// Attention over committed keys and the pass's own. With `causal` a row sees its path, else
    /// every row of its sequence; with a window only positions nearer than it. Where the cache's
    /// type has heads transformed, what they attend to is transformed back before the gate.
    Attention {
        q: Buf,
        k: Buf,
        v: Buf,
        shape: AttentionShape,
        scale: f32,
        window: Option<usize>,
        causal: bool,
        cache: usize,
        layer: usize,
        out: Buf,
    },
    /// Causal depthwise convolution along the path, SiLU, then L2 norm of query and key heads: the
    /// layer's `inputs` buffer to `q`, the layer's `keys` buffer, and `v`. The weight is [kernel,
    /// channels], oldest tap first.
    Convolve { layer: usize, weight: VectorId, q: Buf, v: Buf },
    /// Gated DeltaNet in the tree form, then the gated per-head norm: `out = rms(o) * norm *
    /// silu(z)`.
    DeltaNet {
        layer: usize,
        q: Buf,
        v: Buf,
        z: Buf,
        alpha: Buf,
        beta: Buf,
        dt_bias: VectorId,
        decay: VectorId,
        norm: VectorId,
        eps: f32,
        out: Buf,
    },
    /// `out = silu(gate) * up` for each triple (gate, up, out).
    SwiGlu { parts: Vec<(Buf, Buf, Buf)> },
    /// Softmax over experts, the best `top_k`, divided by their sum, times `scale`.
    Route { logits: Buf, routing: Routing, scale: f32 },
    /// `out = sum of weight * expert output + sigmoid(shared gate) * shared output`.
    Combine { routing: Routing, experts: Buf, shared: Option<(Buf, Buf)>, out: Buf },
    /// Norm, router, experts and their sum in one: what it computes, `Experts::expand` says in the
    /// ops above.
    Experts(Experts),
    /// `x = x * by`, then `cap * tanh(x / cap)` where there is a cap.
    Scale { x: Buf, by: f32, cap: Option<f32> },
    /// Convolution over the rows of each block.
    BlockConv(BlockConv),
    /// The same into the residual stream, and a norm.
    ConvNorm(ConvNorm),
    /// The best tokens of each row of logits, among those with ids below `vocab`, with their
    /// log-probabilities among these; NaN where a logit is not a number.
    Top { logits: Buf, vocab: usize, out: Candidates },
    /// How well candidates follow each other.
    Pairs(Pairs),
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Embed { .. } => "embed",
            Self::Norm { .. } => "norm",
            Self::Load { .. } => "load",
            Self::Matmul { .. } => "matmul",
            Self::Angles { .. } => "angles",
            Self::Rotate { .. } => "rotate",
            Self::Attention { .. } => "attention",
            Self::Convolve { .. } => "convolve",
            Self::DeltaNet { .. } => "deltanet",
            Self::SwiGlu { .. } => "swiglu",
            Self::Route { .. } => "route",
            Self::Combine { .. } => "combine",
            Self::Experts(_) => "experts",
            Self::Scale { .. } => "scale",
            Self::BlockConv(_) => "block_conv",
            Self::ConvNorm(_) => "conv_norm",
            Self::Top { .. } => "top",
            Self::Pairs(_) => "pairs",
        })
    }
}

/// The buffers of one recurrent layer that a commit reads.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentBuffers {
    /// [rows, channels]: what enters the convolution.
    pub inputs: Buf,
    /// [rows, key_heads, dim].
    pub keys: Buf,
    /// [rows, value_heads, dim].
    pub deltas: Buf,
    /// [rows, value_heads]: log decay.
    pub gates: Buf,
}

/// The recurrent state as a plan sees it.
#[derive(Clone, Debug)]
pub struct RecurrentPlan {
    /// Its shape.
    pub layout: RecurrentLayout,
    /// One per layer.
    pub layers: Vec<RecurrentBuffers>,
    /// [rows, key_heads, (key, query), TAPE_TOKENS]: products of a row's key and query with the
    /// keys since its anchor, its own last. All layers share it.
    pub products: Buf,
}

/// A key/value cache as a plan sees it.
#[derive(Clone, Debug)]
pub struct CacheBuffers {
    /// Shape of its pages.
    pub layout: KvLayout,
    /// One per layer, [rows, (key, value), heads, row bytes].
    pub rows: Vec<Buf>,
}

/// Ops on named buffers.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// For people.
    pub name: String,
    /// Every buffer.
    pub buffers: Vec<BufferSpec>,
    /// In order.
    pub ops: Vec<Op>,
    /// Key/value caches the plan reads, and the rows it makes for them.
    pub caches: Vec<CacheBuffers>,
    /// The recurrent state the plan reads, and the rows it makes for it.
    pub recurrent: Option<RecurrentPlan>,
}

impl Plan {
    /// A plan with nothing in it.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Declares a buffer of `cols` elements a row.
    pub fn buffer(&mut self, name: &str, kind: Kind, cols: usize) -> Buf {
        self.buffer_of(name, kind, cols, Extent::Rows(1))
    }

    /// Declares a buffer with a number of rows of its own.
    pub fn buffer_of(&mut self, name: &str, kind: Kind, cols: usize, extent: Extent) -> Buf {
        self.buffers.push(BufferSpec { name: name.into(), kind, cols, extent });
        Buf(self.buffers.len() as u32 - 1)
    }

    /// The buffer of that name.
    pub fn find(&self, name: &str) -> Option<Buf> {
        self.buffers.iter().position(|b| b.name == name).map(|i| Buf(i as u32))
    }

    /// Declares f32 numbers.
    pub fn numbers(&mut self, name: &str, cols: usize) -> Buf {
        self.buffer(name, Kind::Numbers, cols)
    }

    /// Declares numbers that will be multiplied with matrices.
    pub fn activation(&mut self, name: &str, cols: usize) -> Buf {
        self.buffer(name, Kind::Activation, cols)
    }

    /// Declares the buffers of a router.
    pub fn routing(&mut self, experts: usize, top_k: usize) -> Routing {
        Routing {
            experts,
            top_k,
            ids: self.buffer("experts", Kind::Words, top_k),
            weights: self.numbers("expert weights", top_k),
            order: self.buffer("visits", Kind::Words, top_k),
            starts: self.buffer_of("visit starts", Kind::Words, experts + 1, Extent::Once),
        }
    }

    /// Declares a key/value cache and returns its number.
    pub fn cache(&mut self, layout: KvLayout) -> usize {
        let rows = (0..layout.layers)
            .map(|l| self.buffer(&format!("kv {l}"), Kind::Bytes, layout.token_bytes()))
            .collect();
        self.caches.push(CacheBuffers { layout, rows });
        self.caches.len() - 1
    }

    /// Declares the recurrent state; a plan has at most one.
    pub fn recurrent(&mut self, layout: RecurrentLayout) {
        let layers = (0..layout.layers)
            .map(|l| RecurrentBuffers {
                inputs: self.numbers(&format!("conv inputs {l}"), layout.channels()),
                keys: self.numbers(&format!("gdn keys {l}"), layout.key_heads * layout.dim),
                deltas: self.numbers(&format!("gdn deltas {l}"), layout.value_heads * layout.dim),
                gates: self.numbers(&format!("gdn gates {l}"), layout.value_heads),
            })
            .collect();
        let products = self.numbers("gdn products", layout.key_heads * 2 * TAPE_TOKENS);
        self.recurrent = Some(RecurrentPlan { layout, layers, products });
    }

    /// The commit buffers of a recurrent layer.
    pub fn recurrent_layer(&self, layer: usize) -> (RecurrentLayout, RecurrentBuffers) {
        let plan = self.recurrent.as_ref().expect("the plan declares recurrent state");
        (plan.layout, plan.layers[layer])
    }

    /// Records an op.
    pub fn record(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Records one product over all rows.
    pub fn matmul(&mut self, x: Buf, weight: MatrixId, out: Buf) {
        self.record(Op::Matmul { products: vec![Product { x, weight, out, rows: Rows::All }] });
    }

    /// Columns of a buffer.
    pub fn cols(&self, buf: Buf) -> usize {
        self.buffers[buf.0 as usize].cols
    }
}
