//! How keys and values of attention layers are kept: pages of 64 tokens, rows of f16, q8_0 or q4_0,
//! the last also of heads that were transformed before.

use half::{f16, slice::HalfFloatSliceExt};

/// Tokens in one page. Attention is also split at these positions, so that its rounding follows
/// position alone.
pub const PAGE_TOKENS: usize = 64;

/// The element type of a key/value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum KvType {
    F16,
    Q8_0,
    Q4_0,
    /// Q4_0 of the [`hadamard`](crate::hadamard()) transform of each head: queries are transformed
    /// too, so scores are what they were, and what is attended is transformed back.
    Q4_0H,
}

impl KvType {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::F16, Self::Q8_0, Self::Q4_0, Self::Q4_0H];

    /// Whether heads are transformed before they are rounded to this type.
    pub const fn is_hadamard(self) -> bool {
        matches!(self, Self::Q4_0H)
    }

    /// Bytes of one head's key or value.
    pub const fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F16 => 2 * head_dim,
            Self::Q8_0 => head_dim / 32 * 34,
            Self::Q4_0 | Self::Q4_0H => head_dim / 32 * 18,
        }
    }

    /// Rounds one head's key or value, transformed where the type asks for that, to this type.
    pub fn encode(self, row: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes(row.len()));
        match self {
            Self::F16 => {
                // Sixteen at a time, for which `half` has an instruction where the processor does.
                let mut halves = [f16::ZERO; 16];
                for (x, o) in row.chunks(16).zip(out.chunks_mut(32)) {
                    halves[..x.len()].convert_from_f32_slice(x);
                    o.copy_from_slice(&bytemuck::cast_slice(&halves)[..o.len()]);
                }
            }
            Self::Q8_0 => {
                for (x, o) in row.chunks_exact(32).zip(out.chunks_exact_mut(34)) {
                    let d = x.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0;
                    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                    o[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                    for (v, q) in x.iter().zip(&mut o[2..]) {
                        *q = (v * inverse).round_ties_even() as i8 as u8;
                    }
                }
            }
            Self::Q4_0 | Self::Q4_0H => {
                for (x, o) in row.chunks_exact(32).zip(out.chunks_exact_mut(18)) {
                    let extreme =
                        x.iter().fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
                    let d = extreme / -8.0;
                    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
                    o[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                    let code = |v: f32| ((v * inverse + 8.5) as u8).min(15);
                    for i in 0..16 {
                        o[2 + i] = code(x[i]) | code(x[i + 16]) << 4;
                    }
                }
            }
        }
    }

    /// The numbers a stored row stands for.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), self.row_bytes(out.len()));
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        match self {
            Self::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = half(b);
                }
            }
            Self::Q8_0 => {
                for (o, b) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(34)) {
                    let d = half(b);
                    for (o, q) in o.iter_mut().zip(&b[2..]) {
                        *o = d * (*q as i8 as f32);
                    }
                }
            }
            Self::Q4_0 | Self::Q4_0H => {
                for (o, b) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(18)) {
                    let d = half(b);
                    for i in 0..16 {
                        o[i] = d * ((b[2 + i] & 15) as f32 - 8.0);
                        o[i + 16] = d * ((b[2 + i] >> 4) as f32 - 8.0);
                    }
                }
            }
        }
    }
}

/// The shape of one key/value cache; a page holds `PAGE_TOKENS` tokens of all its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Element type.
    pub kind: KvType,
    /// Attention layers.
    pub layers: usize,
    /// Key/value heads of a layer.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl KvLayout {
    /// Bytes of one head's key or value.
    pub const fn row_bytes(&self) -> usize {
        self.kind.row_bytes(self.head_dim)
    }

    /// Bytes of a page: [layers, (key, value), heads, PAGE_TOKENS, row].
    pub const fn page_bytes(&self) -> usize {
        self.layers * 2 * self.heads * PAGE_TOKENS * self.row_bytes()
    }

    /// Where in a page the keys (`part` 0) or values (`part` 1) of a head begin: [PAGE_TOKENS,
    /// row].
    pub const fn offset(&self, layer: usize, part: usize, head: usize) -> usize {
        ((layer * 2 + part) * self.heads + head) * PAGE_TOKENS * self.row_bytes()
    }

    /// Bytes of one token of one layer in a pass: [(key, value), heads, row].
    pub const fn token_bytes(&self) -> usize {
        2 * self.heads * self.row_bytes()
    }
}
