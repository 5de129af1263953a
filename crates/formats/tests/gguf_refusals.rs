//! Malformed GGUF files, each with the exact sentence its owner reads. Nothing panics, nothing
//! large is allocated.

use formats::gguf::{Gguf, caps};

/// A GGUF written byte by byte, so that it can be wrong.
#[derive(Default)]
struct Raw {
    entries: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

impl Raw {
    fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries.push([&text(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    fn tensor(mut self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Self {
        let mut line = text(name);
        line.extend((shape.len() as u32).to_le_bytes());
        line.extend(shape.iter().rev().flat_map(|d| d.to_le_bytes()));
        line.extend(ty.to_le_bytes());
        line.extend(offset.to_le_bytes());
        self.tensors.push(line);
        self
    }

    fn data(mut self, bytes: usize) -> Self {
        self.data = bytes;
        self
    }

    fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.entries.concat());
        bytes.extend(self.tensors.concat());
        bytes
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        bytes.resize(bytes.len().next_multiple_of(32) + self.data, 0);
        bytes
    }
}

fn refusal(bytes: Vec<u8>) -> String {
    match Gguf::parse(bytes) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn patched(mut bytes: Vec<u8>, at: usize, with: &[u8]) -> Vec<u8> {
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

#[test]
fn a_sound_file_is_read() {
    let raw = Raw::default()
        .entry("general.architecture", 8, &text("x"))
        .entry("n", 4, &7u32.to_le_bytes())
        .tensor("a", &[2, 32], 8, 0)
        .tensor("b", &[3], 0, 96)
        .data(108);
    let gguf = Gguf::parse(raw.bytes()).unwrap();
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.string("general.architecture").unwrap(), Some("x"));
    assert_eq!(gguf.integer("n").unwrap(), Some(7));
    assert_eq!(gguf.integer("absent").unwrap(), None);
    let shapes: Vec<_> =
        gguf.tensors().iter().map(|t| (t.name.as_str(), t.shape.clone(), t.bytes)).collect();
    assert_eq!(shapes, [("a", vec![2, 32], 68), ("b", vec![3], 12)]);
    let version_two = patched(raw.bytes(), 4, &2u32.to_le_bytes());
    assert_eq!(Gguf::parse(version_two).unwrap().version(), 2);
}

#[test]
fn each_fault_has_its_sentence() {
    let sound = || Raw::default().entry("k", 4, &[1, 0, 0, 0]).tensor("a", &[32], 8, 0).data(34);
    let one = |kind: u32, value: &[u8]| Raw::default().entry("k", kind, value).bytes();
    let tensor = |shape: &[u64], ty: u32, offset: u64| {
        Raw::default().tensor("a", shape, ty, offset).data(64).bytes()
    };
    let array = |kind: u32, count: u64, rest: &[u8]| {
        [&kind.to_le_bytes()[..], &count.to_le_bytes(), rest].concat()
    };
    let cut = |raw: Raw, at: usize| raw.header()[..at].to_vec();

    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "not a GGUF file: it starts with ``"),
        ("short magic", b"GG".to_vec(), "not a GGUF file: it starts with `GG`"),
        ("wrong magic", b"GGML\0\0\0\0".to_vec(), "not a GGUF file: it starts with `GGML`"),
        (
            "ends in the version",
            b"GGUF\x03".to_vec(),
            "file ends inside the version: 4 bytes wanted at offset 4, the file has 5",
        ),
        (
            "version 1",
            patched(sound().bytes(), 4, &[1]),
            "GGUF version 1 is not read; versions 2 and 3 are",
        ),
        (
            "version 4",
            patched(sound().bytes(), 4, &[4]),
            "GGUF version 4 is not read; versions 2 and 3 are",
        ),
        (
            "big-endian",
            patched(sound().bytes(), 4, &[0, 0, 0, 3]),
            "big-endian GGUF is not read (version field 0x03000000)",
        ),
        (
            "tensor count",
            patched(sound().bytes(), 8, &[255; 8]),
            "18446744073709551615 tensors claimed, the cap is 65536",
        ),
        (
            "entry count",
            patched(sound().bytes(), 16, &[0, 0, 0, 0, 1]),
            "4294967296 metadata entries claimed, the cap is 65536",
        ),
        (
            "ends in the counts",
            cut(sound(), 20),
            "file ends inside metadata entries: 8 bytes wanted at offset 16, the file has 20",
        ),
        (
            "ends in a key",
            cut(sound(), 32),
            "file ends inside a metadata key: 1 bytes wanted at offset 32, the file has 32",
        ),
        (
            "ends in a value",
            cut(sound(), 39),
            "file ends inside a metadata value: 4 bytes wanted at offset 37, the file has 39",
        ),
        (
            "ends in the tensor table",
            cut(sound(), 60),
            "file ends inside a tensor's shape: 8 bytes wanted at offset 54, the file has 60",
        ),
        (
            "key too long",
            patched(sound().bytes(), 24, &[0, 0, 1]),
            "a metadata key at offset 24 claims 65536 bytes, the cap is 1024",
        ),
        (
            "key not UTF-8",
            patched(sound().bytes(), 32, &[0xff]),
            "a metadata key at offset 24 is not UTF-8",
        ),
        (
            "key empty",
            Raw::default().entry("", 4, &[0; 4]).bytes(),
            "metadata key at offset 24 is empty",
        ),
        (
            "value type",
            one(13, &[0; 8]),
            "metadata key `k` has value type 13, which GGUF does not define",
        ),
        ("bool", one(7, &[2]), "metadata key `k` has the bool byte 2; 0 and 1 are bools"),
        (
            "string too long",
            one(8, &[255; 8]),
            "a metadata string at offset 37 claims 18446744073709551615 bytes, the cap is 16777216",
        ),
        (
            "string not UTF-8",
            one(8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xc3]),
            "a metadata string at offset 37 is not UTF-8",
        ),
        (
            "array too long",
            one(9, &array(4, 1 << 40, &[])),
            "1099511627776 array elements claimed, the cap is 16777216",
        ),
        (
            "array past the end",
            one(9, &array(4, 1 << 20, &[0; 19])),
            "file ends inside a metadata value: 4194304 bytes wanted at offset 49, the file has 96",
        ),
        (
            "array element type",
            one(9, &array(77, 1, &[0; 8])),
            "metadata key `k` has value type 77, which GGUF does not define",
        ),
        (
            "array bool",
            one(9, &array(7, 3, &[0, 1, 9])),
            "metadata key `k` has the bool byte 9; 0 and 1 are bools",
        ),
        (
            "array of arrays",
            one(9, &array(9, 1, &[0; 12])),
            "metadata key `k` is an array of arrays, which is not read",
        ),
        (
            "key twice",
            Raw::default().entry("k", 7, &[1]).entry("k", 7, &[0]).bytes(),
            "metadata key `k` appears twice",
        ),
        (
            "alignment",
            Raw::default().entry("general.alignment", 4, &[12, 0, 0, 0]).bytes(),
            "`general.alignment` is 12; a power of two from 8 to 1048576 expected",
        ),
        (
            "alignment of the wrong type",
            Raw::default().entry("general.alignment", 7, &[1]).bytes(),
            "metadata key `general.alignment` is bool true, a non-negative integer expected",
        ),
        (
            "split model",
            Raw::default().entry("split.no", 2, &[1, 0]).entry("split.count", 2, &[3, 0]).bytes(),
            "this is part 2 of 3 of a split model, but its name does not end in \
             `-00002-of-00003.gguf`, by which the others would be found",
        ),
        (
            "tensor name empty",
            Raw::default().tensor("", &[32], 0, 0).bytes(),
            "tensor name at offset 24 is empty",
        ),
        (
            "tensor twice",
            Raw::default().tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32).data(64).bytes(),
            "tensor `a` appears twice",
        ),
        ("no dimensions", tensor(&[], 0, 0), "tensor `a` has 0 dimensions, 1 to 4 expected"),
        (
            "five dimensions",
            tensor(&[1, 1, 1, 1, 1], 0, 0),
            "tensor `a` has 5 dimensions, 1 to 4 expected",
        ),
        ("empty tensor", tensor(&[0, 32], 8, 0), "tensor `a` has a dimension of 0 in [0, 32]"),
        (
            "shape overflow",
            tensor(&[1 << 40, 1 << 40], 0, 0),
            "tensor `a` with shape [1099511627776, 1099511627776] is too large to address",
        ),
        (
            "size overflow",
            tensor(&[1 << 62, 1], 0, 0),
            "tensor `a` with shape [4611686018427387904, 1] is too large to address",
        ),
        (
            "partial block",
            tensor(&[2, 48], 8, 0),
            "tensor `a` has rows of 48, which is no multiple of Q8_0's block of 32",
        ),
        (
            "partial superblock",
            tensor(&[128], 12, 0),
            "tensor `a` has rows of 128, which is no multiple of Q4_K's block of 256",
        ),
        (
            "misaligned",
            tensor(&[4], 0, 8),
            "tensor `a` starts at 8, which is no multiple of the alignment 32",
        ),
        (
            "data cut off",
            tensor(&[32], 0, 0),
            "tensor `a` ends at offset 192, the file has 128 bytes",
        ),
        (
            "data beyond the file",
            tensor(&[4], 0, 1 << 63),
            "tensor `a` ends at offset 9223372036854775888, the file has 128 bytes",
        ),
        (
            "overlap",
            Raw::default().tensor("a", &[16], 0, 0).tensor("b", &[16], 0, 32).data(96).bytes(),
            "tensors `a` and `b` overlap",
        ),
    ];
    for (name, bytes, sentence) in cases {
        assert_eq!(refusal(bytes), sentence, "{name}");
    }
}

#[test]
fn types_we_do_not_read_are_named() {
    let refuse = |id: u32| refusal(Raw::default().tensor("a", &[256], id, 0).data(1 << 12).bytes());
    for (id, name) in [(9, "Q8_1"), (24, "I8"), (26, "I32"), (28, "F64")] {
        let sentence = refuse(id);
        assert!(
            sentence.starts_with("tensor `a`: ") && sentence.contains(name),
            "{id}: {sentence}"
        );
    }
    assert!(refuse(999).contains("999"));
}

#[test]
fn tables_of_whole_numbers_are_listed_apart() {
    let raw = Raw::default().tensor("a", &[16], 0, 0).tensor("d2t", &[4], 27, 64).data(96);
    let gguf = Gguf::parse(raw.bytes()).unwrap();
    let tables: Vec<_> = gguf.tensors().raw().iter().map(|t| (&*t.name, &*t.dtype)).collect();
    assert_eq!((gguf.tensors().len(), tables), (1, vec![("d2t", "I64")]));
    assert_eq!(gguf.tensors().raw_data(&gguf.tensors().raw()[0]).len(), 32);
    let cut = Raw::default().tensor("d2t", &[4], 27, 0).data(24);
    assert!(refusal(cut.bytes()).contains("`d2t`"));
}

#[test]
fn a_key_of_another_type_is_named_with_both() {
    let raw = Raw::default()
        .entry("s", 8, &text("hello"))
        .entry("i", 5, &(-3i32).to_le_bytes())
        .entry("b", 9, &[&7u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[1, 0]].concat());
    let gguf = Gguf::parse(raw.bytes()).unwrap();
    let sentence = |e: formats::gguf::Error| e.to_string();
    let wrong = gguf.integer("s").map_err(sentence).unwrap_err();
    assert_eq!(wrong, "metadata key `s` is string `hello`, a non-negative integer expected");
    let wrong = gguf.integer("i").map_err(sentence).unwrap_err();
    assert_eq!(wrong, "metadata key `i` is i32 -3, a non-negative integer expected");
    let wrong = gguf.integers("b").map_err(sentence).unwrap_err();
    assert_eq!(wrong, "metadata key `b` is array of 2 bool, an array of integers expected");
    assert_eq!(gguf.bools("b").unwrap(), Some(vec![true, false]));
}

#[test]
fn every_truncation_of_a_real_file_is_an_error() {
    let bytes =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dense/draft-Q8_0.gguf"))
            .unwrap();
    let whole = Gguf::parse(bytes.clone()).unwrap();
    assert_eq!(whole.tensors().len(), 47);
    // Every length in the first part of the header, then a spread over the rest.
    for len in (0..2000).chain((2000..bytes.len()).step_by(9973)) {
        assert!(
            Gguf::parse(bytes[..len].to_vec()).is_err(),
            "{len} of {} bytes accepted",
            bytes.len()
        );
    }
}

#[test]
fn flipped_bits_never_panic() {
    let raw = Raw::default()
        .entry("general.architecture", 8, &text("dflash"))
        .entry(
            "taps",
            9,
            &[&5u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[1, 0, 0, 0, 2, 0, 0, 0]].concat(),
        )
        .tensor("a", &[2, 32], 8, 0)
        .tensor("b", &[3], 0, 96)
        .data(128);
    let bytes = raw.bytes();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(gguf) = Gguf::parse(flipped) {
            // Whatever was accepted can be looked at.
            for (_, value) in gguf.metadata() {
                let _ = value.describe();
            }
            for tensor in gguf.tensors() {
                assert_eq!(gguf.tensors().data(tensor).len() as u64, tensor.bytes);
            }
        }
    }
}

#[test]
fn caps_hold_what_real_files_need() {
    const { assert!(caps::ARRAY > 248_320 && caps::TENSORS > 2_000 && caps::STRING > 1 << 20) };
}
