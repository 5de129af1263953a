//! The weights of a drafter as its plans name them; any configuration of the same dimensions can
//! run them.

use crate::Error;
use crate::model::{WeightSource, Weights, each_row, numbers};
use checkpoint::DrafterConfig;
use checkpoint::drafter::BlockConv;
use compute::{MatrixId, VectorId};
use std::sync::Arc;

/// Candidates of a position where a drafter does not say how many: DSpark's term on all logits is
/// worked out for so many of the best.
const MARKOV_CANDIDATES: usize = 16;

#[derive(Clone)]
pub(super) struct Parts {
    pub(super) fc: MatrixId,
    pub(super) context_norm: VectorId,
    pub(super) layers: Vec<Layer>,
    pub(super) output_norm: VectorId,
    pub(super) follow: Option<Follow>,
    pub(super) confidence: Option<Confidence>,
}

/// The weights of one layer.
#[derive(Clone)]
pub(super) struct Layer {
    pub(super) input_norm: VectorId,
    pub(super) q: MatrixId,
    pub(super) k: MatrixId,
    pub(super) v: MatrixId,
    pub(super) output: MatrixId,
    pub(super) q_norm: VectorId,
    pub(super) k_norm: VectorId,
    pub(super) ffn_norm: VectorId,
    pub(super) gate: MatrixId,
    pub(super) up: MatrixId,
    pub(super) down: MatrixId,
    /// Around attention and around the feed-forward part.
    pub(super) convs: Option<[Conv; 2]>,
}

/// The convolutions before and after a sub-layer.
#[derive(Clone, Copy)]
pub(super) struct Conv {
    /// [taps, hidden]: before, after.
    pub(super) base: [VectorId; 2],
    /// [2 sides, taps, groups] from the sub-layer's normed input.
    pub(super) projection: MatrixId,
}

/// What knows how well candidates follow each other: DFlash 2's selector, or DSpark's Markov head,
/// which is one without gates.
#[derive(Clone, Copy)]
pub(super) struct Follow {
    pub(super) predecessors: MatrixId,
    pub(super) successors: MatrixId,
    /// From a position's hidden state to its gates.
    pub(super) gates: Option<MatrixId>,
    pub(super) rank: usize,
    /// Rows of both tables.
    pub(super) vocab: usize,
    /// Candidates of a position.
    pub(super) count: usize,
}

/// How likely a position's token is to stand: the sigmoid of what its hidden state and the token
/// before it amount to.
#[derive(Clone)]
pub(super) struct Confidence {
    /// [1, hidden].
    pub(super) hidden: MatrixId,
    /// [vocab]: what each token before adds, the bias included; of one number where it is the same
    /// for all.
    pub(super) of_token: Arc<[f32]>,
}

impl Parts {
    /// Names them, and reads of `source` what the host itself reckons with.
    pub(super) fn new(
        weights: &mut Weights,
        source: &dyn WeightSource,
        config: &DrafterConfig,
    ) -> Result<Self, Error> {
        let (hidden, dim, ffn) = (config.hidden, config.head_dim, config.ffn);
        let (queries, keys) = (config.q_heads * dim, config.kv_heads * dim);
        let mut layers = Vec::new();
        for i in 0..config.layers.len() {
            let named = |part: &str| format!("blk.{i}.{part}.weight");
            let convs = config.extras.conv.map(|conv| {
                ["attn", "ffn"]
                    .map(|part| Conv::new(weights, &format!("blk.{i}.{part}"), conv, hidden))
            });
            layers.push(Layer {
                input_norm: weights.vector(&named("attn_norm"), hidden),
                q: weights.matrix(&named("attn_q"), queries, hidden),
                k: weights.matrix(&named("attn_k"), keys, hidden),
                v: weights.matrix(&named("attn_v"), keys, hidden),
                output: weights.matrix(&named("attn_output"), hidden, queries),
                q_norm: weights.vector(&named("attn_q_norm"), dim),
                k_norm: weights.vector(&named("attn_k_norm"), dim),
                ffn_norm: weights.vector(&named("ffn_norm"), hidden),
                gate: weights.matrix(&named("ffn_gate"), ffn, hidden),
                up: weights.matrix(&named("ffn_up"), ffn, hidden),
                down: weights.matrix(&named("ffn_down"), hidden, ffn),
                convs,
            });
        }
        Ok(Self {
            fc: weights.matrix("fc.weight", hidden, config.taps.len() * hidden),
            context_norm: weights.vector("enc.output_norm.weight", hidden),
            layers,
            output_norm: weights.vector("output_norm.weight", hidden),
            follow: Follow::new(weights, config),
            confidence: Confidence::new(weights, source, config)?,
        })
    }
}

impl Conv {
    fn new(weights: &mut Weights, name: &str, conv: BlockConv, hidden: usize) -> Self {
        let (shape, len) = ([2, conv.kernel, hidden], conv.kernel * hidden);
        let named = format!("{name}_conv_base");
        let base = [0, len].map(|first| weights.part(&named, &shape, first, len));
        let rows = conv.coefficients(hidden);
        let projection = weights.matrix(&format!("{name}_conv_proj.weight"), rows, hidden);
        Self { base, projection }
    }
}

impl Follow {
    fn new(weights: &mut Weights, config: &DrafterConfig) -> Option<Self> {
        let (hidden, extras) = (config.hidden, &config.extras);
        if let Some(selector) = extras.selector {
            let (vocab, rank) = (selector.vocab, selector.rank);
            return Some(Self {
                predecessors: weights.table("selector_predecessor.weight", vocab, rank),
                successors: weights.table("selector_successor.weight", vocab, rank),
                gates: Some(weights.matrix("selector_hidden.weight", rank, hidden)),
                rank,
                vocab,
                count: selector.top_k,
            });
        }
        let markov = extras.markov?;
        let (vocab, rank) = (markov.vocab, markov.rank);
        Some(Self {
            predecessors: weights.table("markov_w1.weight", vocab, rank),
            successors: weights.table("markov_w2.weight", vocab, rank),
            gates: None,
            rank,
            vocab,
            count: MARKOV_CANDIDATES,
        })
    }
}

impl Confidence {
    fn new(
        weights: &mut Weights,
        source: &dyn WeightSource,
        config: &DrafterConfig,
    ) -> Result<Option<Self>, Error> {
        let (hidden, extras) = (config.hidden, &config.extras);
        let Some(confidence) = extras.confidence else { return Ok(None) };
        let markov = extras.markov.filter(|_| confidence.with_markov);
        let rank = markov.map_or(0, |markov| markov.rank);
        let bias = match confidence.bias {
            true => numbers(source, "conf_proj.bias", &[1])?[0],
            false => 0.0,
        };
        let of_token = match markov {
            Some(markov) => {
                let weight = numbers(source, "conf_proj.weight", &[1, hidden + rank])?;
                each_row(source, "markov_w1.weight", [markov.vocab, rank], |row| {
                    bias + compute::reference::dot(row, &weight[hidden..])
                })?
            }
            None => vec![bias],
        };
        let hidden = weights.head_of_row("conf_proj.weight", hidden + rank, hidden);
        Ok(Some(Self { hidden, of_token: of_token.into() }))
    }

    /// What a token before a position adds.
    pub(super) fn of_token(&self, token: u32) -> f32 {
        self.of_token[(token as usize).min(self.of_token.len() - 1)]
    }
}
