//! The blocks of a target as ops on buffers, in their order.

use super::placement::Weights;
use checkpoint::{
    TargetConfig,
    target::{Ffn, Mixer},
};
use compute::{
    AttentionShape, Buf, Experts, Extent, FeedForward, Kind, MatrixId, Op, Plan, Product, Rotary,
    Rows, VectorId,
};

/// Records the blocks of one plan. Buffers are shared by all blocks.
pub(crate) struct Recorder<'a> {
    pub(crate) config: &'a TargetConfig,
    pub(crate) plan: Plan,
    pub(crate) weights: Weights,
    /// [rows, hidden]: the residual stream.
    pub(crate) x: Buf,
    /// [rows, hidden]: what the last mixer or feed-forward part adds to it, once `pending`.
    y: Buf,
    pending: bool,
    /// A tap to take of the residual stream as soon as it is complete.
    tap: Option<(Buf, usize)>,
    /// [rows, hidden]: input of a mixer or feed-forward part.
    normed: Buf,
    angles: Buf,
    pub(crate) cache: usize,
    /// Whether every attention layer has a buffer of queries of its own, which outlives the pass.
    pub(crate) keeps_queries: bool,
    /// These, by layer.
    pub(crate) queries: Vec<Buf>,
}

impl<'a> Recorder<'a> {
    /// Begins a plan whose attention layers use a cache of `layout`.
    pub(crate) fn new(
        name: &str,
        config: &'a TargetConfig,
        weights: Weights,
        layout: compute::KvLayout,
    ) -> Self {
        let mut plan = Plan::new(name);
        let (x, y) = (plan.numbers("x", config.hidden), plan.numbers("y", config.hidden));
        let normed = plan.activation("normed", config.hidden);
        let angles = plan.numbers("angles", config.attention.rotary_dims);
        let cache = plan.cache(layout);
        let rope = &config.attention.rope;
        let inverse_frequencies = rope.inverse_frequencies(config.attention.rotary_dims);
        let rotary = Rotary { inverse_frequencies, magnitude: rope.attention_factor() };
        plan.record(Op::Angles { rotary, out: angles });
        Self {
            config,
            plan,
            weights,
            x,
            y,
            pending: false,
            tap: None,
            normed,
            angles,
            cache,
            keeps_queries: false,
            queries: Vec::new(),
        }
    }

    /// `out[offset..] = rms(x)`, after what is pending was added to `x`.
    pub(crate) fn norm(&mut self, weight: VectorId, out: Buf, offset: usize) {
        let (x, eps) = (self.x, self.config.norm_eps);
        let add = self.pending.then_some(self.y);
        let tap = self.tap.take();
        self.plan.record(Op::Norm { x, add, weight, eps, out, offset, tap });
        self.pending = false;
    }

    /// The residual stream after the block just recorded goes to columns of `buf`.
    pub(crate) fn tap(&mut self, buf: Buf, column: usize) {
        self.tap = Some((buf, column));
    }

    /// One block: norm, mixer, norm, feed-forward part. `layer` counts layers of the same mixer.
    pub(crate) fn block(&mut self, name: &str, mixer: Mixer, layer: usize) {
        let hidden = self.config.hidden;
        let weight = self.weights.vector(&format!("{name}.attn_norm.weight"), hidden);
        self.norm(weight, self.normed, 0);
        match mixer {
            Mixer::Attention => self.attention(name, layer),
            Mixer::Gdn => self.deltanet(name, layer),
        }
        self.pending = true;
        let norm = self.weights.vector(&format!("{name}.post_attention_norm.weight"), hidden);
        match self.config.ffn {
            Ffn::Dense { width } => self.feed_forward(name, norm, width),
            Ffn::Moe { .. } => self.experts(name, norm),
        }
        self.pending = true;
    }

    fn product(x: Buf, weight: compute::MatrixId, out: Buf) -> Product {
        Product { x, weight, out, rows: Rows::All }
    }

    fn attention(&mut self, name: &str, layer: usize) {
        let a = &self.config.attention;
        let (hidden, eps) = (self.config.hidden, self.config.norm_eps);
        let shape = AttentionShape {
            heads: a.q_heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            gated: true,
        };
        let (queries, keys) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
        let q = match self.keeps_queries {
            true => self.shared(&format!("q {layer}"), Kind::Numbers, 2 * queries),
            false => self.shared("q", Kind::Numbers, 2 * queries),
        };
        self.queries.extend(self.keeps_queries.then_some(q));
        let (k, v) = (self.shared("k", Kind::Numbers, keys), self.shared("v", Kind::Numbers, keys));
        let mixed = self.shared("attended", Kind::Activation, queries);
        let matrix = |w: &mut Weights, part: &str, rows, cols| {
            w.matrix(&format!("{name}.{part}.weight"), rows, cols)
        };
        let (x, list) = (self.normed, &mut self.weights);
        let products = vec![
            Self::product(x, matrix(list, "attn_q", 2 * queries, hidden), q),
            Self::product(x, matrix(list, "attn_k", keys, hidden), k),
            Self::product(x, matrix(list, "attn_v", keys, hidden), v),
        ];
        let q_norm = list.vector(&format!("{name}.attn_q_norm.weight"), a.head_dim);
        let k_norm = list.vector(&format!("{name}.attn_k_norm.weight"), a.head_dim);
        let output = matrix(list, "attn_output", hidden, queries);
        let (angles, cache) = (self.angles, self.cache);
        let scale = 1.0 / (a.head_dim as f32).sqrt();
        self.plan.record(Op::Matmul { products });
        self.plan.record(Op::Rotate { q, k, v, shape, q_norm, k_norm, eps, angles, cache, layer });
        let (window, causal) = (None, true);
        self.plan.record(Op::Attention {
            q,
            k,
            v,
            shape,
            scale,
            window,
            causal,
            cache,
            layer,
            out: mixed,
        });
        self.plan.matmul(mixed, output, self.y);
    }

    fn deltanet(&mut self, name: &str, layer: usize) {
        let g = &self.config.gdn;
        let (hidden, eps) = (self.config.hidden, self.config.norm_eps);
        let (heads, values, channels) = (g.value_heads, g.value_width(), g.conv_channels());
        let inputs = self.plan.recurrent_layer(layer).1.inputs;
        let q = self.shared("gdn q", Kind::Numbers, g.key_heads * g.head_dim);
        let (v, z) = (
            self.shared("gdn v", Kind::Numbers, values),
            self.shared("gdn z", Kind::Numbers, values),
        );
        let (alpha, beta) =
            (self.shared("alpha", Kind::Numbers, heads), self.shared("beta", Kind::Numbers, heads));
        let mixed = self.shared("gdn mixed", Kind::Activation, values);
        let matrix = |w: &mut Weights, part: &str, rows, cols| {
            w.matrix(&format!("{name}.{part}.weight"), rows, cols)
        };
        let (x, list) = (self.normed, &mut self.weights);
        let products = vec![
            Self::product(x, matrix(list, "attn_qkv", channels, hidden), inputs),
            Self::product(x, matrix(list, "attn_gate", values, hidden), z),
            Self::product(x, matrix(list, "ssm_alpha", heads, hidden), alpha),
            Self::product(x, matrix(list, "ssm_beta", heads, hidden), beta),
        ];
        // [channels, taps] in the file, [taps, channels] for the op.
        let weight = list.columns(&format!("{name}.ssm_conv1d.weight"), channels, g.conv_kernel);
        let dt_bias = list.vector(&format!("{name}.ssm_dt.bias"), heads);
        let decay = list.vector(&format!("{name}.ssm_a"), heads);
        let norm = list.vector(&format!("{name}.ssm_norm.weight"), g.head_dim);
        let output = matrix(list, "ssm_out", hidden, values);
        self.plan.record(Op::Matmul { products });
        self.plan.record(Op::Convolve { layer, weight, q, v });
        self.plan.record(Op::DeltaNet {
            layer,
            q,
            v,
            z,
            alpha,
            beta,
            dt_bias,
            decay,
            norm,
            eps,
            out: mixed,
        });
        self.plan.matmul(mixed, output, self.y);
    }

    fn feed_forward(&mut self, name: &str, norm: VectorId, width: usize) {
        self.norm(norm, self.normed, 0);
        let hidden = self.config.hidden;
        let (gate, up) =
            (self.shared("gate", Kind::Numbers, width), self.shared("up", Kind::Numbers, width));
        let act = self.shared("act", Kind::Activation, width);
        let list = &mut self.weights;
        let products = vec![
            Self::product(
                self.normed,
                list.matrix(&format!("{name}.ffn_gate.weight"), width, hidden),
                gate,
            ),
            Self::product(
                self.normed,
                list.matrix(&format!("{name}.ffn_up.weight"), width, hidden),
                up,
            ),
        ];
        let down = list.matrix(&format!("{name}.ffn_down.weight"), hidden, width);
        self.plan.record(Op::Matmul { products });
        self.plan.record(Op::SwiGlu { parts: vec![(gate, up, act)] });
        self.plan.matmul(act, down, self.y);
    }

    fn experts(&mut self, name: &str, norm: VectorId) {
        let Ffn::Moe { experts, used, width, shared_width, weights_scale } = self.config.ffn else {
            unreachable!("a dense layer has no experts")
        };
        assert!(self.tap.is_none(), "a tap is taken by the norm before the mixer");
        let hidden = self.config.hidden;
        let known = self.plan.ops.iter().find_map(|op| match op {
            Op::Experts(before) => Some(before.routing),
            _ => None,
        });
        let routing = known.unwrap_or_else(|| self.plan.routing(experts, used));
        let logits = self.shared("router", Kind::Numbers, experts);
        let shared_logits = self.shared("shared weight", Kind::Numbers, 1);
        let list = &mut self.weights;
        let named = |part: &str| format!("{name}.ffn_{part}.weight");
        let router = list.matrix(&named("gate_inp"), experts, hidden);
        let shared_router = list.row(&named("gate_inp_shexp"), hidden);
        let weights = [
            list.experts(&named("gate_exps"), [experts, width, hidden]),
            list.experts(&named("up_exps"), [experts, width, hidden]),
            list.experts(&named("down_exps"), [experts, hidden, width]),
        ];
        let shared_weights = [
            list.matrix(&named("gate_shexp"), shared_width, hidden),
            list.matrix(&named("up_shexp"), shared_width, hidden),
            list.matrix(&named("down_shexp"), hidden, shared_width),
        ];
        let visits = Extent::Rows(used);
        let op = Experts {
            x: self.x,
            add: self.pending.then_some(self.y),
            norm,
            eps: self.config.norm_eps,
            normed: self.normed,
            router,
            shared_router,
            logits,
            shared_logits,
            routing,
            scale: weights_scale,
            experts: self.feed_forward_of("expert", weights, width, visits),
            shared: self.feed_forward_of("shared", shared_weights, shared_width, Extent::Rows(1)),
            out: self.y,
        };
        self.plan.record(Op::Experts(op));
    }

    /// A feed-forward part with the buffers that every block uses for it.
    fn feed_forward_of(
        &mut self,
        who: &str,
        weights: [MatrixId; 3],
        width: usize,
        rows: Extent,
    ) -> FeedForward {
        let hidden = self.config.hidden;
        let mut buffer =
            |part, kind, cols| self.shared_of(&format!("{who} {part}"), kind, cols, rows);
        FeedForward {
            weights,
            gate: buffer("gate", Kind::Numbers, width),
            up: buffer("up", Kind::Numbers, width),
            act: buffer("act", Kind::Activation, width),
            out: buffer("out", Kind::Numbers, hidden),
        }
    }

    /// A buffer that every block uses under this name.
    fn shared(&mut self, name: &str, kind: Kind, cols: usize) -> Buf {
        self.shared_of(name, kind, cols, Extent::Rows(1))
    }

    fn shared_of(&mut self, name: &str, kind: Kind, cols: usize, extent: Extent) -> Buf {
        self.plan.find(name).unwrap_or_else(|| self.plan.buffer_of(name, kind, cols, extent))
    }
}
