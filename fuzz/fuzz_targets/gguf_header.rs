//! Any bytes as a GGUF file: refused, or every view on it holds.
#![no_main]

use formats::gguf::Gguf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::parse(bytes.to_vec()) else { return };
    for (key, value) in gguf.metadata() {
        assert!(gguf.get(key).is_some());
        let _ = value.describe();
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensors().data(tensor).len() as u64, tensor.bytes);
    }
});
