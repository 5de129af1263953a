//! Any bytes as a shard index and as a safetensors header.
#![no_main]

use formats::safetensors::{self, Index};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(index) = Index::parse(bytes) {
        for (file, tensors) in &index.files {
            assert!(!file.is_empty() && !file.contains('/') && file != ".." && !tensors.is_empty());
        }
    }
    if let Ok(tensors) = safetensors::parse(bytes.to_vec()) {
        for tensor in &tensors {
            assert_eq!(tensors.data(tensor).len() as u64, tensor.bytes);
        }
    }
});
