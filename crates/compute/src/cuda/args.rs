//! What kernels are given, as their sources declare it: one struct a kernel, with the fields and
//! the layout of `kernels/*.cu`, and in `kernel` a constant to launch each kernel by. The build
//! makes them (`build/declarations.rs`). Addresses are of the device.

use super::driver::TensorMap;
use crate::KvType;
use std::marker::PhantomData;

include!(concat!(env!("OUT_DIR"), "/args.rs"));

/// An address in the device's memory; 0 is none.
pub(crate) type Address = u64;

/// A kernel that is given an `A`.
#[derive(Clone, Copy)]
pub(crate) struct Kernel<A> {
    pub(crate) name: &'static str,
    /// Where it is declared.
    pub(crate) file: &'static str,
    given: PhantomData<fn(&A)>,
}

impl<A> Kernel<A> {
    const fn new(name: &'static str, file: &'static str) -> Self {
        Self { name, file, given: PhantomData }
    }
}

const _: () = assert!(PAGE_TOKENS == crate::kv::PAGE_TOKENS);
const _: () = assert!(ANCHOR_TOKENS == crate::recurrent::ANCHOR_TOKENS);
const _: () = assert!(TAPE_TOKENS == crate::recurrent::TAPE_TOKENS);

impl From<&crate::KvLayout> for KvLayout {
    fn from(layout: &crate::KvLayout) -> Self {
        // Rows lie alike whatever was done to heads before.
        let kind = match layout.kind {
            KvType::Q4_0H => KvType::Q4_0,
            kind => kind,
        };
        Self {
            kind: kind as i32,
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
