//! Files on disk: what is written is read back, half files do not appear, and opening a large file
//! is cheap.

use formats::gguf::{Entries, Error, Gguf, Header, Overwrite, Value, Writer};
use formats::{BlockType, Storage};
use proptest::prelude::*;
use std::path::Path;

#[test]
fn metadata_and_tensors_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let mut header = Header::new("test");
    let entries = &mut header.entries;
    entries.u32("u", 7);
    entries.f32("f", 1e7);
    entries.bool("b", true);
    entries.i32s("taps", &[2, -1]);
    entries.bools("pattern", &[true, false]);
    entries.strings("tokens", &["a", "", "ż"]);
    header.tensor("x", BlockType::F32, &[3]);
    header.tensor("y", BlockType::Q8_0, &[2, 32]);
    let writer = Writer::create(&path, &header, Overwrite::Refuse).unwrap();
    writer.write_at(1, 34, &[5; 34]).unwrap();
    writer.write_at(0, 4, &1.0f32.to_le_bytes()).unwrap();
    assert!(!path.exists(), "the file must not appear before it is whole");
    writer.finish().unwrap();

    let gguf = Gguf::open(&path).unwrap();
    let keys: Vec<&str> = gguf.metadata().map(|(key, _)| key).collect();
    assert_eq!(keys, ["general.architecture", "u", "f", "b", "taps", "pattern", "tokens"]);
    assert_eq!(gguf.float("f").unwrap(), Some(1e7));
    assert_eq!(gguf.integers("taps").unwrap(), Some(vec![2, -1]));
    assert_eq!(gguf.strings("tokens").unwrap(), Some(vec!["a", "", "ż"]));
    let tensors = gguf.tensors();
    assert_eq!(tensors.data(tensors.get("x").unwrap()), [0, 0, 0, 0, 0, 0, 128, 63, 0, 0, 0, 0]);
    let y = tensors.data(tensors.get("y").unwrap());
    assert_eq!((&y[..34], &y[34..]), (&[0u8; 34][..], &[5u8; 34][..]));
    let mut part = [0; 4];
    tensors.read_at(tensors.get("x").unwrap(), 4, &mut part).unwrap();
    assert_eq!(part, 1.0f32.to_le_bytes());
    let starts = tensors.iter().map(|t| tensors.data(t).as_ptr() as usize % 32).collect::<Vec<_>>();
    assert_eq!(starts, [0, 0], "data is aligned in the file, so in the mapping too");
}

/// Writes part `index` of `count` with tensors of one number, the number being their place.
fn write_part(path: &Path, index: u32, count: u32, tensors: &[(&str, f32)], total: u32) {
    let mut header = Header::new("test");
    header.entries.u32("split.no", index);
    header.entries.u32("split.count", count);
    header.entries.u32("split.tensors.count", total);
    tensors.iter().for_each(|(name, _)| header.tensor(name, BlockType::F32, &[1]));
    let writer = Writer::create(path, &header, Overwrite::Replace).unwrap();
    for (i, (_, number)) in tensors.iter().enumerate() {
        writer.write_at(i, 0, &number.to_le_bytes()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn any_part_of_a_split_model_leads_to_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let part = |i: u32| at(&format!("big-{i:05}-of-00003.gguf"));
    write_part(&part(1), 0, 3, &[], 3);
    write_part(&part(2), 1, 3, &[("x", 1.0), ("y", 2.0)], 3);
    write_part(&part(3), 2, 3, &[("z", 3.0)], 3);
    for i in 1..=3 {
        let gguf = Gguf::open(&part(i)).unwrap();
        let tensors = gguf.tensors();
        let found: Vec<(&str, f32)> = tensors
            .iter()
            .map(|t| (&*t.name, f32::from_le_bytes(tensors.data(t).try_into().unwrap())))
            .collect();
        assert_eq!(found, [("x", 1.0), ("y", 2.0), ("z", 3.0)]);
        let mut number = [0; 4];
        tensors.read_at(tensors.get("z").unwrap(), 0, &mut number).unwrap();
        assert_eq!(f32::from_le_bytes(number), 3.0);
        // The first part's metadata counts, whichever was named.
        assert_eq!(gguf.integer("split.no").unwrap(), Some(0));
    }

    let refusal = || Gguf::open(&part(1)).unwrap_err().to_string();
    write_part(&part(3), 2, 3, &[("x", 3.0)], 3);
    assert_eq!(
        refusal(),
        "`big-00003-of-00003.gguf`, a part of this model: tensor `x` appears twice"
    );
    write_part(&part(3), 2, 3, &[], 3);
    assert_eq!(refusal(), "the parts have 2 tensors, `split.tensors.count` is 3");
    write_part(&part(3), 1, 3, &[("z", 3.0)], 3);
    assert!(
        refusal().ends_with("a part of this model: it does not say that it is part 3 of 3"),
        "{}",
        refusal()
    );
    std::fs::remove_file(part(3)).unwrap();
    assert!(
        refusal().starts_with("`big-00003-of-00003.gguf`, a part of this model: "),
        "{}",
        refusal()
    );
    std::fs::rename(part(1), at("other.gguf")).unwrap();
    let renamed = Gguf::open(&at("other.gguf")).unwrap_err().to_string();
    assert!(
        renamed.starts_with("this is part 1 of 3 of a split model, but its name does not end"),
        "{renamed}"
    );
    write_part(&at("a-00001-of-99999.gguf"), 0, 99_999, &[], 0);
    let many = Gguf::open(&at("a-00001-of-99999.gguf")).unwrap_err().to_string();
    assert_eq!(many, "99999 parts claimed, the cap is 1024");
}

#[test]
fn an_unfinished_or_refused_write_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let header = Header::new("test");
    drop(Writer::create(&path, &header, Overwrite::Refuse).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    std::fs::write(&path, "mine").unwrap();
    let refused = Writer::create(&path, &header, Overwrite::Refuse).unwrap_err();
    assert!(matches!(refused, Error::Io(e) if e.kind() == std::io::ErrorKind::AlreadyExists));
    drop(Writer::create(&path, &header, Overwrite::Replace).unwrap());
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"mine",
        "an unfinished replacement must not touch the file"
    );
    Writer::create(&path, &header, Overwrite::Replace).unwrap().finish().unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 0);

    // A file that appears while the writer works is not overwritten either.
    let other = folder.path().join("b.gguf");
    let writer = Writer::create(&other, &header, Overwrite::Refuse).unwrap();
    std::fs::write(&other, "mine").unwrap();
    assert!(writer.finish().is_err());
    assert_eq!(std::fs::read(&other).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn opening_a_16_gb_file_reads_only_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let mut header = Header::new("test");
    for i in 0..64 {
        header.tensor(&format!("blk.{i}.w"), BlockType::Q8_0, &[1 << 18, 1 << 10]);
    }
    Writer::create(&path, &header, Overwrite::Refuse).unwrap().finish().unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 16 << 30);
    assert_eq!(gguf.tensors().iter().map(|t| t.bytes).sum::<u64>(), 64 * (1 << 28) / 32 * 34);
    // The kernel's own account of how much of the mapping is in memory.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = maps.split("large.gguf").nth(1).expect("the file is mapped");
    let resident = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes <= 2048, "{kilobytes} kB of the file are resident");
}

#[test]
fn an_empty_file_and_a_folder_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty");
    std::fs::write(&path, "").unwrap();
    assert!(matches!(Gguf::open(&path), Err(Error::Magic(m)) if m.is_empty()));
    assert!(matches!(Gguf::open(folder.path()), Err(Error::Io(_))));
    assert!(matches!(Gguf::open(&folder.path().join("absent")), Err(Error::Io(_))));
}

#[test]
fn reads_past_the_end_of_memory_are_errors() {
    let storage = Storage::from(vec![1u8, 2, 3]);
    let mut out = [0; 2];
    storage.read_at(1, &mut out).unwrap();
    assert_eq!(out, [2, 3]);
    assert!(storage.read_at(2, &mut out).is_err());
    assert!(storage.read_at(u64::MAX, &mut out).is_err());
}

/// Any metadata survives a copy from one file to the next, bit for bit.
fn copied(entries: &Entries) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let mut list = Vec::new();
    let mut current = entries.clone();
    for round in 0..2 {
        let path = folder.path().join(round.to_string());
        let mut header = Header::new("test");
        header.entries.append(&current);
        Writer::create(&path, &header, Overwrite::Refuse).unwrap().finish().unwrap();
        let gguf = Gguf::open(&path).unwrap();
        current = Entries::default();
        list = gguf.metadata().map(|(key, value)| (key.to_owned(), bits(value))).collect();
        gguf.metadata().skip(1).for_each(|(key, value)| current.copy(key, value));
    }
    list
}

fn bits(value: Value<'_>) -> String {
    match value {
        Value::F32(v) => format!("f32 {:08x}", v.to_bits()),
        Value::Array(array) => array.iter().map(bits).collect::<Vec<_>>().join("|"),
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn write_then_read_is_identity(
        text in any::<String>(),
        number in any::<u32>(),
        float in any::<u32>().prop_map(f32::from_bits),
        ids in prop::collection::vec(any::<i32>(), 0..9),
        flags in prop::collection::vec(any::<bool>(), 0..9),
        words in prop::collection::vec(any::<String>(), 0..5),
    ) {
        let mut entries = Entries::default();
        entries.string("text", &text);
        entries.u32("number", number);
        entries.f32("float", float);
        entries.i32s("ids", &ids);
        entries.bools("flags", &flags);
        entries.strings("words", &words);
        let list = copied(&entries);
        prop_assert_eq!(list.len(), 7);
        prop_assert_eq!(&list[1].1, &format!("{:?}", Value::String(&text)));
        prop_assert_eq!(&list[2].1, &format!("{:?}", Value::U32(number)));
        prop_assert_eq!(&list[3].1, &format!("f32 {:08x}", float.to_bits()));
        let joined = |items: Vec<Value<'_>>| items.into_iter().map(bits).collect::<Vec<_>>().join("|");
        prop_assert_eq!(&list[4].1, &joined(ids.iter().map(|&v| Value::I32(v)).collect()));
        prop_assert_eq!(&list[5].1, &joined(flags.iter().map(|&v| Value::Bool(v)).collect()));
        prop_assert_eq!(&list[6].1, &joined(words.iter().map(|v| Value::String(v)).collect()));
    }
}
