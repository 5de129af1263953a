//! safetensors: single files, shards, and the sentences for what is wrong with them.

use formats::safetensors::{self as st, Index};
use formats::{BlockType, blocks};
use std::path::Path;

/// A file with this header and this many zero bytes of data.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn refusal(header: &str, data: usize) -> String {
    match st::parse(raw(header, data)) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_three_float_types_are_read() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b":{"dtype":"F16","shape":[2,1],"data_offsets":[8,12]},
        "c":{"dtype":"BF16","shape":[1],"data_offsets":[12,14]}}"#;
    let mut bytes = raw(header, 0);
    bytes.extend(1.5f32.to_le_bytes());
    bytes.extend((-2f32).to_le_bytes());
    bytes.extend([0x00, 0x3c, 0x00, 0xc0]);
    bytes.extend([0x40, 0x40]);
    let tensors = st::parse(bytes).unwrap();
    let values = |name: &str| {
        let tensor = tensors.get(name).unwrap();
        let mut values = vec![f32::NAN; tensor.elements()];
        blocks::decode(tensor.ty, tensors.data(tensor), &mut values);
        (tensor.ty, tensor.shape.clone(), values)
    };
    assert_eq!(values("a"), (BlockType::F32, vec![2], vec![1.5, -2.0]));
    assert_eq!(values("b"), (BlockType::F16, vec![2, 1], vec![1.0, -2.0]));
    assert_eq!(values("c"), (BlockType::BF16, vec![1], vec![3.0]));
}

#[test]
fn each_fault_has_its_sentence() {
    let one = |dtype: &str, shape: &str, end: usize| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let deep = refusal(&one("F32", "[1,1,1,1,1,1,1,1,1]", 4), 4);
    assert_eq!(deep, "tensor `a` has 9 dimensions, at most 8 expected");
    // The wording of these is the crate's; that they are refused, and as what, is ours.
    let cases = [
        ("data cut off", one("F32", "[2]", 8), 4),
        ("data left over", one("F32", "[2]", 8), 12),
        ("shape and size differ", one("F32", "[3]", 8), 8),
        ("shape overflows", one("F32", "[4294967296,4294967296,4294967296]", 8), 8),
        ("not JSON", "{".to_owned(), 0),
        ("an unknown type", one("F99", "[1]", 4), 4),
        ("not UTF-8", "\u{fffd}{".to_owned(), 0),
    ];
    for (name, header, data) in cases {
        let sentence = refusal(&header, data);
        assert!(sentence.starts_with("header: "), "{name}: {sentence}");
    }
    for len in 0..9 {
        let sentence = st::parse(vec![0xff; len]).unwrap_err().to_string();
        let expected = if len < 8 {
            "header: "
        } else {
            "header claims 18446744073709551615 bytes, the cap is 16777216"
        };
        assert!(sentence.starts_with(expected), "{len} bytes: {sentence}");
    }
}

#[test]
fn an_index_is_checked() {
    let cases: [(&str, &str); 11] = [
        ("", "index: EOF while parsing a value at line 1 column 0"),
        ("[]", "index: invalid type: sequence, expected a map at line 1 column 0"),
        ("{}", "index has no `weight_map` object"),
        (r#"{"weight_map":[]}"#, "index has no `weight_map` object"),
        (r#"{"weight_map":{}}"#, "index lists no tensors"),
        (r#"{"weight_map":{"a":1}}"#, "index gives `a` no file name"),
        (
            r#"{"weight_map":{"a":""}}"#,
            "index gives `a` the file ``, which is not a plain file name",
        ),
        (
            r#"{"weight_map":{"a":".."}}"#,
            "index gives `a` the file `..`, which is not a plain file name",
        ),
        (
            r#"{"weight_map":{"a":"../b"}}"#,
            "index gives `a` the file `../b`, which is not a plain file name",
        ),
        (
            r#"{"weight_map":{"a":"/etc/b"}}"#,
            "index gives `a` the file `/etc/b`, which is not a plain file name",
        ),
        (
            r#"{"weight_map":{"a":"b/"}}"#,
            "index gives `a` the file `b/`, which is not a plain file name",
        ),
    ];
    for (json, sentence) in cases {
        assert_eq!(Index::parse(json.as_bytes()).unwrap_err().to_string(), sentence, "{json}");
    }
    let names: Vec<String> = (0..1025).map(|i| format!(r#""t{i}":"{i}.safetensors""#)).collect();
    let many = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
    assert_eq!(
        Index::parse(many.as_bytes()).unwrap_err().to_string(),
        "index names 1025 files, the cap is 1024"
    );
}

#[test]
fn shards_are_joined_and_checked_against_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let shard = |file: &str, name: &str, value: u8| {
        let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
        let mut bytes = raw(&header, 3);
        bytes.push(value);
        std::fs::write(folder.path().join(file), bytes).unwrap();
    };
    let index = |json: &str| std::fs::write(folder.path().join(st::INDEX), json).unwrap();
    let refusal = || st::open_folder(folder.path()).unwrap_err().to_string();
    assert!(
        refusal().starts_with("no `model.safetensors` and no `model.safetensors.index.json` in ")
    );

    index(r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#);
    assert!(
        refusal().ends_with("1.safetensors: No such file or directory (os error 2)"),
        "{}",
        refusal()
    );
    shard("1.safetensors", "a", 0x40);
    shard("2.safetensors", "b", 0xc0);
    let tensors = st::open_folder(folder.path()).unwrap();
    assert_eq!(tensors.data(tensors.get("a").unwrap()), [0, 0, 0, 0x40]);
    assert_eq!(tensors.data(tensors.get("b").unwrap()), [0, 0, 0, 0xc0]);
    let mut copy = [0; 2];
    tensors.read_at(tensors.get("b").unwrap(), 2, &mut copy).unwrap();
    assert_eq!(copy, [0, 0xc0]);

    index(r#"{"weight_map":{"a":"1.safetensors","c":"2.safetensors"}}"#);
    assert_eq!(refusal(), "tensor `c` is not in `2.safetensors`, where the index has it");
    index(r#"{"weight_map":{"a":"1.safetensors"}}"#);
    shard("1.safetensors", "z", 0);
    assert_eq!(refusal(), "tensor `a` is not in `1.safetensors`, where the index has it");
    std::fs::write(folder.path().join("1.safetensors"), "no").unwrap();
    assert!(refusal().starts_with("shard `1.safetensors`: header: "), "{}", refusal());
    std::fs::write(folder.path().join(st::FILE), raw("{}", 0)).unwrap();
    assert!(
        st::open_folder(folder.path()).unwrap().is_empty(),
        "the single file comes first, as in Transformers"
    );
}

#[test]
fn a_tensor_the_index_forgot_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    std::fs::write(folder.path().join("1.safetensors"), raw(header, 8)).unwrap();
    std::fs::write(folder.path().join(st::INDEX), r#"{"weight_map":{"a":"1.safetensors"}}"#)
        .unwrap();
    let sentence = st::open_folder(folder.path()).unwrap_err().to_string();
    assert_eq!(sentence, "tensor `b` of `1.safetensors` is not in the index");
}

#[test]
fn a_missing_file_is_named() {
    let sentence = st::open(Path::new("absent.safetensors")).unwrap_err().to_string();
    assert_eq!(sentence, "absent.safetensors: No such file or directory (os error 2)");
}
