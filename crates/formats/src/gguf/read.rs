//! Reading: one pass over the header checks everything it claims; afterwards views cannot fail.

use super::value::{KIND_ARRAY, KIND_BOOL, KIND_STRING, scalar_size, take};
use super::{DEFAULT_ALIGNMENT, Error, MAGIC, Value, caps};
use crate::storage::Storage;
use crate::{BlockType, RawTensor, TensorInfo, Tensors};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
    pub(super) tensors: Tensors,
}

/// Where a metadata value lies in the header.
#[derive(Debug)]
struct Entry {
    key: String,
    kind: u32,
    value: Range<usize>,
}

/// A line of the tensor table.
struct Row {
    name: String,
    /// None of a table of whole numbers (`I64`), which is no weight.
    ty: Option<BlockType>,
    shape: Vec<usize>,
    bytes: u64,
    offset: u64,
}

/// ggml's number of the type of tables that some drafters have beside their weights.
const I64: u32 = 27;

impl Gguf {
    /// Reads the header of one file, which may be a part of a model.
    pub(super) fn read(storage: Storage) -> Result<Self, Error> {
        let mut cursor = Cursor { bytes: storage.bytes(), at: 0 };
        let magic = &cursor.bytes[..cursor.bytes.len().min(4)];
        if magic != MAGIC {
            return Err(Error::Magic(magic.to_vec()));
        }
        cursor.at = 4;
        let version = cursor.u32("the version")?;
        match version {
            2 | 3 => {}
            v if matches!(v.swap_bytes(), 1..=3) => return Err(Error::BigEndian(v)),
            v => return Err(Error::Version(v)),
        }
        let tensor_count = cursor.count("tensors", caps::TENSORS)?;
        let entry_count = cursor.count("metadata entries", caps::ENTRIES)?;

        let mut entries = Vec::new();
        let mut by_key = HashMap::new();
        for index in 0..entry_count {
            let entry = cursor.entry()?;
            if by_key.insert(entry.key.clone(), index as usize).is_some() {
                return Err(Error::DuplicateKey(entry.key));
            }
            entries.push(entry);
        }
        let integer = |key: &str| {
            let Some(&index) = by_key.get(key) else { return Ok(None) };
            let entry: &Entry = &entries[index];
            typed_integer(key, take(entry.kind, &mut &cursor.bytes[entry.value.clone()])).map(Some)
        };
        let alignment = integer("general.alignment")?.unwrap_or(u64::from(DEFAULT_ALIGNMENT));
        if !alignment.is_power_of_two() || !(8..=u64::from(caps::ALIGNMENT)).contains(&alignment) {
            return Err(Error::Alignment(alignment));
        }

        let mut rows = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..tensor_count {
            let row = cursor.tensor(alignment)?;
            if !names.insert(row.name.clone()) {
                return Err(Error::DuplicateTensor(row.name));
            }
            rows.push(row);
        }
        place(&mut rows, cursor.at as u64, alignment, cursor.bytes.len() as u64)?;
        let (mut list, mut raw) = (Vec::new(), Vec::new());
        for Row { name, ty, shape, bytes, offset } in rows {
            let (shard, assembly) = (0, None);
            match ty {
                Some(ty) => {
                    list.push(TensorInfo { name, ty, shape, bytes, shard, offset, assembly });
                }
                None => {
                    let dtype = "I64".to_owned();
                    raw.push(RawTensor { name, dtype, shape, bytes, shard, offset });
                }
            }
        }
        let tensors = Tensors::new(vec![storage], list).with_raw(raw);
        Ok(Self { version, entries, by_key, tensors })
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The tensor table.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Gives up the metadata and keeps the tensors.
    pub fn into_tensors(self) -> Tensors {
        self.tensors
    }

    /// The metadata in file order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.value(entry)))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.by_key.get(key).map(|&index| self.value(&self.entries[index]))
    }

    fn value(&self, entry: &Entry) -> Value<'_> {
        take(entry.kind, &mut &self.tensors.shard(0).bytes()[entry.value.clone()])
    }

    /// A non-negative integer of any width, or nothing where the key is absent.
    pub fn integer(&self, key: &str) -> Result<Option<usize>, Error> {
        self.get(key).map(|value| Ok(typed_integer(key, value)? as usize)).transpose()
    }

    /// A float, or nothing where the key is absent.
    pub fn float(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a float", Value::as_f32)
    }

    /// A bool, or nothing where the key is absent.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// A string, or nothing where the key is absent.
    pub fn string(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array of integers, or nothing where the key is absent.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, Error> {
        self.typed(key, "an array of integers", |v| {
            v.as_array()?.iter().map(Value::as_i64).collect()
        })
    }

    /// An array of bools, or nothing where the key is absent.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        self.typed(key, "an array of bools", |v| v.as_array()?.iter().map(Value::as_bool).collect())
    }

    /// An array of strings, or nothing where the key is absent.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, Error> {
        self.typed(key, "an array of strings", |v| {
            v.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || Error::KeyType { key: key.to_owned(), wanted, found: value.describe() };
        read(value).map(Some).ok_or_else(wrong)
    }
}

fn typed_integer(key: &str, value: Value<'_>) -> Result<u64, Error> {
    let wanted = "a non-negative integer";
    value.as_u64().ok_or_else(|| Error::KeyType {
        key: key.to_owned(),
        wanted,
        found: value.describe(),
    })
}

/// Turns offsets within the data section into offsets within the file, and checks that the data is
/// there.
fn place(tensors: &mut [Row], header_end: u64, alignment: u64, file_len: u64) -> Result<(), Error> {
    let data_start = header_end.next_multiple_of(alignment);
    // The last one is named, so that a file that was cut short says how long it should be.
    let end = |t: &Row| u128::from(data_start) + u128::from(t.offset) + u128::from(t.bytes);
    if let Some(last) = tensors.iter().max_by_key(|tensor| end(tensor))
        && end(last) > u128::from(file_len)
    {
        let tensor = last.name.clone();
        return Err(Error::OutsideFile { tensor, end: end(last), len: file_len });
    }
    tensors.iter_mut().for_each(|tensor| tensor.offset += data_start);
    let mut order: Vec<&Row> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(Error::Overlap {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}

/// A position in the header; every step is checked against the file's end.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, needed: u64, what: &'static str) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.at..];
        if needed > rest.len() as u64 {
            let (at, len) = (self.at as u64, self.bytes.len() as u64);
            return Err(Error::Truncated { what, at, needed, len });
        }
        self.at += needed as usize;
        Ok(&rest[..needed as usize])
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    fn count(&mut self, what: &'static str, cap: u64) -> Result<u64, Error> {
        let count = self.u64(what)?;
        if count > cap { Err(Error::TooMany { what, count, cap }) } else { Ok(count) }
    }

    fn string(&mut self, what: &'static str, cap: u64) -> Result<&'a str, Error> {
        let at = self.at as u64;
        let len = self.u64(what)?;
        if len > cap {
            return Err(Error::TooLong { what, at, len, cap });
        }
        std::str::from_utf8(self.take(len, what)?).map_err(|_| Error::NotUtf8 { what, at })
    }

    fn entry(&mut self) -> Result<Entry, Error> {
        let at = self.at as u64;
        let key = self.string("a metadata key", caps::NAME)?.to_owned();
        if key.is_empty() {
            return Err(Error::EmptyKey { at });
        }
        let kind = self.u32("a metadata type")?;
        let start = self.at;
        self.check_value(&key, kind)?;
        Ok(Entry { key, kind, value: start..self.at })
    }

    /// Walks over one value and checks it, so that views on it need no checks.
    fn check_value(&mut self, key: &str, kind: u32) -> Result<(), Error> {
        if kind != KIND_ARRAY {
            return self.check_elements(key, kind, 1);
        }
        let element = self.u32("an array type")?;
        let count = self.count("array elements", caps::ARRAY)?;
        if element == KIND_ARRAY {
            return Err(Error::NestedArray(key.to_owned()));
        }
        self.check_elements(key, element, count)
    }

    fn check_elements(&mut self, key: &str, kind: u32, count: u64) -> Result<(), Error> {
        if kind == KIND_STRING {
            for _ in 0..count {
                self.string("a metadata string", caps::STRING)?;
            }
            return Ok(());
        }
        let size =
            scalar_size(kind).ok_or_else(|| Error::ValueType { key: key.to_owned(), id: kind })?;
        let bytes = self.take(size as u64 * count, "a metadata value")?;
        match bytes.iter().find(|&&byte| kind == KIND_BOOL && byte > 1) {
            Some(&byte) => Err(Error::Bool { key: key.to_owned(), byte }),
            None => Ok(()),
        }
    }

    /// One line of the tensor table. Its offset is still within the data section.
    fn tensor(&mut self, alignment: u64) -> Result<Row, Error> {
        let at = self.at as u64;
        let name = self.string("a tensor name", caps::NAME)?.to_owned();
        if name.is_empty() {
            return Err(Error::EmptyName { at });
        }
        let dimensions = self.u32("a tensor's dimensions")?;
        if !(1..=caps::DIMENSIONS).contains(&dimensions) {
            return Err(Error::Dimensions { tensor: name, count: dimensions });
        }
        // GGUF lists the fastest dimension first.
        let mut shape = (0..dimensions)
            .map(|_| self.u64("a tensor's shape"))
            .collect::<Result<Vec<u64>, _>>()?;
        shape.reverse();
        let type_id = self.u32("a tensor's type")?;
        let offset = self.u64("a tensor's offset")?;
        if shape.contains(&0) {
            return Err(Error::EmptyTensor { tensor: name, shape });
        }
        let ty = match BlockType::from_ggml(type_id) {
            Ok(ty) => Some(ty),
            Err(_) if type_id == I64 => None,
            Err(cause) => return Err(Error::Type { tensor: name, cause }),
        };
        let (block_len, block_bytes) =
            ty.map_or((1, size_of::<i64>()), |ty| (ty.block_len(), ty.block_bytes()));
        let row = shape[shape.len() - 1];
        if let Some(ty) = ty.filter(|_| !row.is_multiple_of(block_len as u64)) {
            return Err(Error::PartialBlock { tensor: name, ty, row });
        }
        let blocks =
            shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).map(|n| n / block_len as u64);
        let bytes = blocks.and_then(|n| n.checked_mul(block_bytes as u64));
        // The slice type's own limit: no file is larger, and sums with it cannot overflow 64 bits.
        let Some(bytes) = bytes.filter(|&n| n <= i64::MAX as u64) else {
            return Err(Error::TooLarge { tensor: name, shape });
        };
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Misaligned { tensor: name, offset, alignment });
        }
        let shape = shape.into_iter().map(|d| d as usize).collect();
        Ok(Row { name, ty, shape, bytes, offset })
    }
}
