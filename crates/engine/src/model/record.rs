//! The blocks of a target as ops on buffers, in their order.

use super::weights::Loader;
use crate::Error;
use checkpoint::{
    TargetConfig,
    target::{Ffn, Mixer},
};
use compute::{AttentionShape, Buf, Extent, Kind, Op, Plan, Product, Rotary, Rows, VectorId};

/// Records the blocks of one plan. Buffers are shared by all blocks.
pub(crate) struct Recorder<'a> {
    pub(crate) config: &'a TargetConfig,
    pub(crate) plan: Plan,
    pub(crate) loader: Loader<'a>,
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
}

impl<'a> Recorder<'a> {
    /// Begins a plan whose attention layers use a cache of `layout`.
    pub(crate) fn new(
        name: &str,
        config: &'a TargetConfig,
        loader: Loader<'a>,
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
        Self { config, plan, loader, x, y, pending: false, tap: None, normed, angles, cache }
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
    pub(crate) fn block(&mut self, name: &str, mixer: Mixer, layer: usize) -> Result<(), Error> {
        let hidden = self.config.hidden;
        let weight = self.loader.vector(&format!("{name}.attn_norm.weight"), hidden)?;
        self.norm(weight, self.normed, 0);
        match mixer {
            Mixer::Attention => self.attention(name, layer)?,
            Mixer::Gdn => self.deltanet(name, layer)?,
        }
        self.pending = true;
        let weight = self.loader.vector(&format!("{name}.post_attention_norm.weight"), hidden)?;
        self.norm(weight, self.normed, 0);
        match self.config.ffn {
            Ffn::Dense { width } => self.feed_forward(name, width)?,
            Ffn::Moe { .. } => self.experts(name)?,
        }
        self.pending = true;
        Ok(())
    }

    fn product(x: Buf, weight: compute::MatrixId, out: Buf) -> Product {
        Product { x, weight, out, rows: Rows::All }
    }

    fn attention(&mut self, name: &str, layer: usize) -> Result<(), Error> {
        let a = &self.config.attention;
        let (hidden, eps) = (self.config.hidden, self.config.norm_eps);
        let shape = AttentionShape {
            heads: a.q_heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            gated: true,
        };
        let (queries, keys) = (a.q_heads * a.head_dim, a.kv_heads * a.head_dim);
        let q = self.shared("q", Kind::Numbers, 2 * queries);
        let (k, v) = (self.shared("k", Kind::Numbers, keys), self.shared("v", Kind::Numbers, keys));
        let mixed = self.shared("attended", Kind::Activation, queries);
        let matrix = |l: &mut Loader<'_>, part: &str, rows, cols| {
            l.matrix(&format!("{name}.{part}.weight"), rows, cols)
        };
        let (x, load) = (self.normed, &mut self.loader);
        let products = vec![
            Self::product(x, matrix(load, "attn_q", 2 * queries, hidden)?, q),
            Self::product(x, matrix(load, "attn_k", keys, hidden)?, k),
            Self::product(x, matrix(load, "attn_v", keys, hidden)?, v),
        ];
        let q_norm = load.vector(&format!("{name}.attn_q_norm.weight"), a.head_dim)?;
        let k_norm = load.vector(&format!("{name}.attn_k_norm.weight"), a.head_dim)?;
        let output = matrix(load, "attn_output", hidden, queries)?;
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
        Ok(())
    }

    fn deltanet(&mut self, name: &str, layer: usize) -> Result<(), Error> {
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
        let matrix = |l: &mut Loader<'_>, part: &str, rows, cols| {
            l.matrix(&format!("{name}.{part}.weight"), rows, cols)
        };
        let (x, load) = (self.normed, &mut self.loader);
        let products = vec![
            Self::product(x, matrix(load, "attn_qkv", channels, hidden)?, inputs),
            Self::product(x, matrix(load, "attn_gate", values, hidden)?, z),
            Self::product(x, matrix(load, "ssm_alpha", heads, hidden)?, alpha),
            Self::product(x, matrix(load, "ssm_beta", heads, hidden)?, beta),
        ];
        // [channels, taps] in the file, [taps, channels] for the op.
        let stored =
            load.numbers(&format!("{name}.ssm_conv1d.weight"), &[channels, g.conv_kernel])?;
        let turned: Vec<f32> = (0..g.conv_kernel)
            .flat_map(|t| stored.iter().skip(t).step_by(g.conv_kernel).copied())
            .collect();
        let weight = load.backend.vector(&turned)?;
        let dt_bias = load.vector(&format!("{name}.ssm_dt.bias"), heads)?;
        let decay = load.vector(&format!("{name}.ssm_a"), heads)?;
        let norm = load.vector(&format!("{name}.ssm_norm.weight"), g.head_dim)?;
        let output = matrix(load, "ssm_out", hidden, values)?;
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
        Ok(())
    }

    fn feed_forward(&mut self, name: &str, width: usize) -> Result<(), Error> {
        let hidden = self.config.hidden;
        let (gate, up) =
            (self.shared("gate", Kind::Numbers, width), self.shared("up", Kind::Numbers, width));
        let act = self.shared("act", Kind::Activation, width);
        let load = &mut self.loader;
        let products = vec![
            Self::product(
                self.normed,
                load.matrix(&format!("{name}.ffn_gate.weight"), width, hidden)?,
                gate,
            ),
            Self::product(
                self.normed,
                load.matrix(&format!("{name}.ffn_up.weight"), width, hidden)?,
                up,
            ),
        ];
        let down = load.matrix(&format!("{name}.ffn_down.weight"), hidden, width)?;
        self.plan.record(Op::Matmul { products });
        self.plan.record(Op::SwiGlu { parts: vec![(gate, up, act)] });
        self.plan.matmul(act, down, self.y);
        Ok(())
    }

    fn experts(&mut self, name: &str) -> Result<(), Error> {
        let Ffn::Moe { experts, used, width, shared_width, weights_scale } = self.config.ffn else {
            unreachable!("a dense layer has no experts")
        };
        let (hidden, x) = (self.config.hidden, self.normed);
        let logits = self.shared("router", Kind::Numbers, experts);
        let routing = match self.plan.ops.iter().find_map(|op| match op {
            Op::Route { routing, .. } => Some(*routing),
            _ => None,
        }) {
            Some(routing) => routing,
            None => self.plan.routing(experts, used),
        };
        let visits = Extent::Rows(used);
        let gate = self.shared_of("expert gate", Kind::Numbers, width, visits);
        let up = self.shared_of("expert up", Kind::Numbers, width, visits);
        let act = self.shared_of("expert act", Kind::Activation, width, visits);
        let out = self.shared_of("expert out", Kind::Numbers, hidden, visits);
        let shared_gate = self.shared("shared gate", Kind::Numbers, shared_width);
        let shared_up = self.shared("shared up", Kind::Numbers, shared_width);
        let shared_act = self.shared("shared act", Kind::Activation, shared_width);
        let shared_out = self.shared("shared out", Kind::Numbers, hidden);
        let shared_weight = self.shared("shared weight", Kind::Numbers, 1);
        let load = &mut self.loader;
        let named = |part: &str| format!("{name}.ffn_{part}.weight");
        let router = load.matrix(&named("gate_inp"), experts, hidden)?;
        let shared_router = load.row(&named("gate_inp_shexp"), hidden)?;
        let (to, from) = (Rows::ToExperts(routing), Rows::FromExperts(routing));
        let gates = vec![
            Product {
                x,
                weight: load.experts(&named("gate_exps"), experts, width, hidden)?,
                out: gate,
                rows: to,
            },
            Product {
                x,
                weight: load.experts(&named("up_exps"), experts, width, hidden)?,
                out: up,
                rows: to,
            },
            Self::product(x, load.matrix(&named("gate_shexp"), shared_width, hidden)?, shared_gate),
            Self::product(x, load.matrix(&named("up_shexp"), shared_width, hidden)?, shared_up),
        ];
        let downs = vec![
            Product {
                x: act,
                weight: load.experts(&named("down_exps"), experts, hidden, width)?,
                out,
                rows: from,
            },
            Self::product(
                shared_act,
                load.matrix(&named("down_shexp"), hidden, shared_width)?,
                shared_out,
            ),
        ];
        let routers =
            vec![Self::product(x, router, logits), Self::product(x, shared_router, shared_weight)];
        self.plan.record(Op::Matmul { products: routers });
        self.plan.record(Op::Route { logits, routing, scale: weights_scale });
        self.plan.record(Op::Matmul { products: gates });
        self.plan.record(Op::SwiGlu {
            parts: vec![(gate, up, act), (shared_gate, shared_up, shared_act)],
        });
        self.plan.record(Op::Matmul { products: downs });
        let shared = Some((shared_out, shared_weight));
        self.plan.record(Op::Combine { routing, experts: out, shared, out: self.y });
        Ok(())
    }

    /// A buffer that every block uses under this name.
    fn shared(&mut self, name: &str, kind: Kind, cols: usize) -> Buf {
        self.shared_of(name, kind, cols, Extent::Rows(1))
    }

    fn shared_of(&mut self, name: &str, kind: Kind, cols: usize, extent: Extent) -> Buf {
        self.plan.find(name).unwrap_or_else(|| self.plan.buffer_of(name, kind, cols, extent))
    }
}
