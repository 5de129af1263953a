//! What later drafters add to the first generation's: the convolutions and the candidate selector
//! of DFlash 2, the Markov and confidence heads of DSpark, and factors on embeddings and logits.

use serde::Serialize;

/// Everything a drafter may have beyond DFlash's first generation. The default adds nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Extras {
    /// Convolutions around every sub-layer, over rows of the block only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conv: Option<BlockConv>,
    /// Scores of a position's best tokens that know the token chosen before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// A term on all logits that knows the token chosen before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markov: Option<Markov>,
    /// How likely a position's token is to stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// Whether the anchor's row proposes too: row `j` then stands for the token after its own
    /// position, and a block of `n` rows gives `n` drafts. Otherwise the anchor's row is dropped,
    /// and row `j` stands for the token at its own position.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sample_from_anchor: bool,
    /// Factors on embeddings and logits.
    #[serde(flatten)]
    pub scales: Scales,
    /// Ids from here on are padding of the target's embedding and head: they may stand in a block
    /// (a mask token does), and are never proposed. Drafters do not say how many are real; whoever
    /// has the tokenizer fills it in.
    #[serde(skip)]
    pub real_vocab: Option<usize>,
}

/// A convolution before and after every attention and feed-forward part. Row `j` becomes the sum
/// over taps `t <= j` of `(base[t] + dynamic[j][t]) * row[j - t]`, where `dynamic` is a projection
/// of the sub-layer's normed input and has one number for each group of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockConv {
    /// Taps: this row, the row before, and so on.
    pub kernel: usize,
    /// Neighbouring channels that share a dynamic coefficient.
    pub group: usize,
}

impl BlockConv {
    /// Dynamic coefficients of a tap, for a residual stream of that width.
    pub fn groups(&self, hidden: usize) -> usize {
        hidden / self.group
    }

    /// Rows of a projection: both sides, all taps, all groups, side outermost.
    pub fn coefficients(&self, hidden: usize) -> usize {
        2 * self.kernel * self.groups(hidden)
    }
}

/// Candidate `b` after token `a` scores `logit(b) + sum(predecessor[a] * (hidden * z) *
/// successor[b])`, for the best `top_k` tokens of each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Selector {
    /// Columns of the codebooks.
    pub rank: usize,
    /// Candidates of a position.
    pub top_k: usize,
    /// Rows of the codebooks, the padded vocabulary.
    pub vocab: usize,
}

/// `logits += w2 * w1[token before]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Markov {
    /// Columns of both matrices.
    pub rank: usize,
    /// Rows of both matrices, the padded vocabulary.
    pub vocab: usize,
}

/// `sigmoid(weight * features + bias)`, where features are a position's final hidden state and, if
/// `with_markov`, the Markov head's row of the token before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Confidence {
    /// Whether the Markov head's row is among the features.
    pub with_markov: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

/// Factors on what a drafter borrows from the target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scales {
    /// Multiplies the embeddings of all rows of the block.
    #[serde(skip_serializing_if = "is_one")]
    pub embedding: f32,
    /// Multiplies logits, before the cap.
    #[serde(skip_serializing_if = "is_one")]
    pub logits: f32,
    /// `cap * tanh(logit / cap)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
}

impl Default for Scales {
    fn default() -> Self {
        Self { embedding: 1.0, logits: 1.0, softcap: None }
    }
}

fn is_one(scale: &f32) -> bool {
    *scale == 1.0
}

/// The family a drafter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// The first generation.
    #[serde(rename = "DFlash")]
    Dflash,
    /// Convolutions, a selector, or both.
    #[serde(rename = "DFlash 2")]
    Dflash2,
    /// A Markov or confidence head.
    #[serde(rename = "DSpark")]
    Dspark,
}

impl Extras {
    /// The family that has these.
    pub fn kind(&self) -> Kind {
        match self {
            Self { conv: Some(_), .. } | Self { selector: Some(_), .. } => Kind::Dflash2,
            Self { markov: Some(_), .. } | Self { confidence: Some(_), .. } => Kind::Dspark,
            _ => Kind::Dflash,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dflash => "DFlash",
            Self::Dflash2 => "DFlash 2",
            Self::Dspark => "DSpark",
        })
    }
}
