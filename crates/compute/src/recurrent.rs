//! What a sequence keeps for its Gated-DeltaNet layers: anchors (the state after a multiple of 32
//! tokens) and a tape (keys, deltas and gates of the rows since the older anchor, and the inputs
//! the convolution still reaches).

/// Anchors stand at multiples of this many tokens.
pub const ANCHOR_TOKENS: usize = 32;

/// A row starts from an anchor at least this many tokens before it, so that a drafted block never
/// needs one of its own.
pub const ANCHOR_LAG: usize = 16;

/// Positions the tape remembers: the rows since the older of two anchors, in a ring.
pub const TAPE_TOKENS: usize = 64;

/// The number of tokens behind the state that the row at `position` starts from.
pub const fn anchor_of(position: usize) -> usize {
    position.saturating_sub(ANCHOR_LAG) / ANCHOR_TOKENS * ANCHOR_TOKENS
}

/// The shape of the recurrent state of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayout {
    /// Gated-DeltaNet layers.
    pub layers: usize,
    /// Key heads; value head `h` reads key head `h % key_heads`.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key and of a value.
    pub dim: usize,
    /// Taps of the convolution.
    pub kernel: usize,
}

impl RecurrentLayout {
    /// Width of the convolution: queries, keys, values.
    pub const fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.dim
    }

    /// Numbers in an anchor: [layers, value_heads, dim (key), dim (value)].
    pub const fn anchor_len(&self) -> usize {
        self.layers * self.value_heads * self.dim * self.dim
    }

    /// Where a head's state begins in an anchor: [dim (key), dim (value)].
    pub const fn state(&self, layer: usize, head: usize) -> usize {
        (layer * self.value_heads + head) * self.dim * self.dim
    }

    const fn layer_len(&self) -> usize {
        TAPE_TOKENS * (self.key_heads * self.dim + self.value_heads * self.dim + self.value_heads)
            + self.kernel * self.channels()
    }

    /// Numbers in a tape.
    pub const fn tape_len(&self) -> usize {
        self.layers * self.layer_len()
    }

    /// Where the key of `position` begins: [key_heads, dim].
    pub const fn key(&self, layer: usize, position: usize) -> usize {
        layer * self.layer_len() + position % TAPE_TOKENS * self.key_heads * self.dim
    }

    /// Where the delta of `position` begins: [value_heads, dim].
    pub const fn delta(&self, layer: usize, position: usize) -> usize {
        layer * self.layer_len()
            + TAPE_TOKENS * self.key_heads * self.dim
            + position % TAPE_TOKENS * self.value_heads * self.dim
    }

    /// Where the log decay of `position` begins: `[value_heads]`.
    pub const fn gate(&self, layer: usize, position: usize) -> usize {
        layer * self.layer_len()
            + TAPE_TOKENS * (self.key_heads + self.value_heads) * self.dim
            + position % TAPE_TOKENS * self.value_heads
    }

    /// Where the convolution's input at `position` begins: `[channels]`.
    pub const fn input(&self, layer: usize, position: usize) -> usize {
        layer * self.layer_len()
            + TAPE_TOKENS * ((self.key_heads + self.value_heads) * self.dim + self.value_heads)
            + position % self.kernel * self.channels()
    }
}
