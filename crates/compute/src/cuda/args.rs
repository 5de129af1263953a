//! The structs of `kernels/forerun.cuh`, field by field. Addresses are of the device.
#![allow(missing_docs)]

/// An address in the device's memory; 0 is none.
pub(crate) type Address = u64;

pub(crate) const DECODE_ROWS: usize = 64;
pub(crate) const MAX_CACHES: usize = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Sequence {
    pub(crate) committed: i32,
    pub(crate) first_row: i32,
    pub(crate) rows: i32,
    pub(crate) first_step: i32,
    pub(crate) steps: i32,
    pub(crate) first_page: [i32; MAX_CACHES],
    pub(crate) pad: i32,
    pub(crate) pages: [Address; MAX_CACHES],
    pub(crate) anchor: Address,
    pub(crate) older: Address,
    pub(crate) tape: Address,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Step {
    pub(crate) sequence: i32,
    pub(crate) position: i32,
    pub(crate) source: i32,
    pub(crate) from: i32,
    pub(crate) last: i32,
    pub(crate) slot: i32,
    pub(crate) first_row: i32,
    pub(crate) rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Pass {
    pub(crate) tokens: Address,
    pub(crate) positions: Address,
    pub(crate) sequence_of: Address,
    pub(crate) chosen: Address,
    pub(crate) taps: Address,
    pub(crate) path: Address,
    pub(crate) recent: Address,
    pub(crate) recent_count: Address,
    pub(crate) steps: Address,
    pub(crate) step_rows: Address,
    pub(crate) sequences: Address,
    pub(crate) rows: i32,
    pub(crate) chosen_rows: i32,
    pub(crate) sequence_count: i32,
    pub(crate) prompt: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Activation {
    pub(crate) x: Address,
    pub(crate) sums: Address,
    pub(crate) numbers: Address,
    pub(crate) cols: i32,
    pub(crate) ld: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct KvLayout {
    pub(crate) kind: i32,
    pub(crate) layers: i32,
    pub(crate) heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) row_bytes: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RecurrentLayout {
    pub(crate) layers: i32,
    pub(crate) key_heads: i32,
    pub(crate) value_heads: i32,
    pub(crate) dim: i32,
    pub(crate) kernel: i32,
    pub(crate) channels: i32,
    pub(crate) tape_layer: i32,
    pub(crate) tape_deltas: i32,
    pub(crate) tape_gates: i32,
    pub(crate) tape_inputs: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EmbedArgs {
    pub(crate) pass: Pass,
    pub(crate) table: Address,
    pub(crate) ty: i32,
    pub(crate) cols: i32,
    pub(crate) row_bytes: i32,
    pub(crate) out: Address,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NormArgs {
    pub(crate) x: Address,
    pub(crate) add: Address,
    pub(crate) weight: Address,
    pub(crate) tap: Address,
    pub(crate) out: Activation,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) tap_stride: i32,
    pub(crate) tap_offset: i32,
    pub(crate) offset: i32,
    pub(crate) eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoadArgs {
    pub(crate) x: Address,
    pub(crate) out: Activation,
    pub(crate) rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SwiGluArgs {
    pub(crate) gate: Address,
    pub(crate) up: Address,
    pub(crate) out: Activation,
    pub(crate) rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RouteArgs {
    pub(crate) logits: Address,
    pub(crate) ids: Address,
    pub(crate) weights: Address,
    pub(crate) order: Address,
    pub(crate) starts: Address,
    pub(crate) rows: i32,
    pub(crate) experts: i32,
    pub(crate) top_k: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CombineArgs {
    pub(crate) experts: Address,
    pub(crate) weights: Address,
    pub(crate) shared: Address,
    pub(crate) shared_gate: Address,
    pub(crate) out: Address,
    pub(crate) rows: i32,
    pub(crate) cols: i32,
    pub(crate) top_k: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RotateArgs {
    pub(crate) pass: Pass,
    pub(crate) q: Address,
    pub(crate) k: Address,
    pub(crate) v: Address,
    pub(crate) q_norm: Address,
    pub(crate) k_norm: Address,
    pub(crate) angles: Address,
    pub(crate) kv: Address,
    pub(crate) layout: KvLayout,
    pub(crate) heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) query_stride: i32,
    pub(crate) pairs: i32,
    pub(crate) eps: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AttentionArgs {
    pub(crate) pass: Pass,
    pub(crate) q: Address,
    pub(crate) kv: Address,
    pub(crate) partial: Address,
    pub(crate) out: Activation,
    pub(crate) layout: KvLayout,
    pub(crate) cache: i32,
    pub(crate) layer: i32,
    pub(crate) heads: i32,
    pub(crate) head_dim: i32,
    pub(crate) query_stride: i32,
    pub(crate) gated: i32,
    pub(crate) causal: i32,
    pub(crate) window: i32,
    pub(crate) parts: i32,
    pub(crate) slots: i32,
    pub(crate) scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConvolveArgs {
    pub(crate) pass: Pass,
    pub(crate) inputs: Address,
    pub(crate) weight: Address,
    pub(crate) q: Address,
    pub(crate) keys: Address,
    pub(crate) v: Address,
    pub(crate) layout: RecurrentLayout,
    pub(crate) layer: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeltaNetArgs {
    pub(crate) pass: Pass,
    pub(crate) q: Address,
    pub(crate) keys: Address,
    pub(crate) v: Address,
    pub(crate) z: Address,
    pub(crate) alpha: Address,
    pub(crate) beta: Address,
    pub(crate) dt_bias: Address,
    pub(crate) decay: Address,
    pub(crate) norm: Address,
    pub(crate) deltas: Address,
    pub(crate) gates: Address,
    pub(crate) products: Address,
    pub(crate) states: Address,
    pub(crate) out: Activation,
    pub(crate) layout: RecurrentLayout,
    pub(crate) layer: i32,
    pub(crate) slots: i32,
    pub(crate) eps: f32,
}

// As `kernels/forerun.cuh` asserts them.
const _: () =
    assert!(size_of::<Sequence>() == 72 && size_of::<Step>() == 32 && size_of::<Pass>() == 104);
const _: () = assert!(size_of::<Activation>() == 32 && size_of::<KvLayout>() == 20);
const _: () = assert!(size_of::<RecurrentLayout>() == 40 && size_of::<NormArgs>() == 88);
const _: () = assert!(size_of::<AttentionArgs>() == 104 + 24 + 32 + 20 + 40 + 4);
const _: () = assert!(size_of::<DeltaNetArgs>() == 104 + 13 * 8 + 32 + 40 + 12 + 4);

impl From<&crate::KvLayout> for KvLayout {
    fn from(layout: &crate::KvLayout) -> Self {
        Self {
            kind: layout.kind as i32,
            layers: layout.layers as i32,
            heads: layout.heads as i32,
            head_dim: layout.head_dim as i32,
            row_bytes: layout.row_bytes() as i32,
        }
    }
}

impl From<&crate::RecurrentLayout> for RecurrentLayout {
    fn from(layout: &crate::RecurrentLayout) -> Self {
        Self {
            layers: layout.layers as i32,
            key_heads: layout.key_heads as i32,
            value_heads: layout.value_heads as i32,
            dim: layout.dim as i32,
            kernel: layout.kernel as i32,
            channels: layout.channels() as i32,
            tape_layer: (layout.tape_len() / layout.layers) as i32,
            tape_deltas: layout.delta(0, 0) as i32,
            tape_gates: layout.gate(0, 0) as i32,
            tape_inputs: layout.input(0, 0) as i32,
        }
    }
}
