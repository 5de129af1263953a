//! Writing: the header is collected first, so every tensor's place is known and data can come in
//! any order from several threads. The file appears under its name only when it is whole.

use super::value::{KIND_ARRAY, KIND_BOOL, KIND_STRING};
use super::{DEFAULT_ALIGNMENT, Error, MAGIC, Value};
use crate::BlockType;
use crate::storage::write_all_at;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Metadata to be written, in order.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    count: u64,
    bytes: Vec<u8>,
}

/// Metadata and tensor table of a file to be written.
#[derive(Debug, Default)]
pub struct Header {
    /// The metadata.
    pub entries: Entries,
    tensors: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    ty: BlockType,
    shape: Vec<usize>,
}

impl Entries {
    /// Adds a string.
    pub fn string(&mut self, key: &str, value: &str) {
        self.entry(key, KIND_STRING);
        self.text(value);
    }

    /// Adds a 32-bit unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.entry(key, Value::U32(value).kind());
        self.bytes.extend(value.to_le_bytes());
    }

    /// Adds a float.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, Value::F32(value).kind());
        self.bytes.extend(value.to_le_bytes());
    }

    /// Adds a bool.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.entry(key, KIND_BOOL);
        self.bytes.push(value.into());
    }

    /// Adds an array of 32-bit signed integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, Value::I32(0).kind(), values.len());
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// Adds an array of bools.
    pub fn bools(&mut self, key: &str, values: &[bool]) {
        self.array(key, KIND_BOOL, values.len());
        self.bytes.extend(values.iter().map(|&v| u8::from(v)));
    }

    /// Adds an array of strings.
    pub fn strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) {
        self.array(key, KIND_STRING, values.len());
        for value in values {
            self.text(value.as_ref());
        }
    }

    /// Adds a value as another file has it.
    pub fn copy(&mut self, key: &str, value: Value<'_>) {
        match value {
            Value::String(v) => return self.string(key, v),
            Value::Array(v) => {
                self.array(key, v.kind, v.len);
                return self.bytes.extend_from_slice(v.bytes);
            }
            _ => self.entry(key, value.kind()),
        }
        match value {
            Value::U8(v) => self.bytes.push(v),
            Value::I8(v) => self.bytes.extend(v.to_le_bytes()),
            Value::U16(v) => self.bytes.extend(v.to_le_bytes()),
            Value::I16(v) => self.bytes.extend(v.to_le_bytes()),
            Value::U32(v) => self.bytes.extend(v.to_le_bytes()),
            Value::I32(v) => self.bytes.extend(v.to_le_bytes()),
            Value::F32(v) => self.bytes.extend(v.to_le_bytes()),
            Value::Bool(v) => self.bytes.push(v.into()),
            Value::U64(v) => self.bytes.extend(v.to_le_bytes()),
            Value::I64(v) => self.bytes.extend(v.to_le_bytes()),
            Value::F64(v) => self.bytes.extend(v.to_le_bytes()),
            Value::String(_) | Value::Array(_) => unreachable!("returned above"),
        }
    }

    /// Appends other metadata.
    pub fn append(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// How many entries there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn entry(&mut self, key: &str, kind: u32) {
        self.count += 1;
        self.text(key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn array(&mut self, key: &str, element: u32, len: usize) {
        self.entry(key, KIND_ARRAY);
        self.bytes.extend(element.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }
}

impl Header {
    /// A header for this architecture.
    pub fn new(architecture: &str) -> Self {
        let mut header = Self::default();
        header.entries.string("general.architecture", architecture);
        header
    }

    /// Declares the next tensor; its index counts from 0. The shape is row-major.
    pub fn tensor(&mut self, name: &str, ty: BlockType, shape: &[usize]) {
        assert!(
            shape.last().is_some_and(|row| row.is_multiple_of(ty.block_len())),
            "`{name}`: partial block"
        );
        self.tensors.push(Declared { name: name.to_owned(), ty, shape: shape.to_vec() });
    }

    /// The header's bytes up to the data section, and each tensor's range in the file.
    fn layout(&self) -> (Vec<u8>, Vec<Range<u64>>) {
        let alignment = u64::from(DEFAULT_ALIGNMENT);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend(self.entries.count.to_le_bytes());
        bytes.extend_from_slice(&self.entries.bytes);
        let mut ranges = Vec::new();
        let mut offset = 0u64;
        for tensor in &self.tensors {
            bytes.extend((tensor.name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(tensor.name.as_bytes());
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            bytes.extend(tensor.shape.iter().rev().flat_map(|&d| (d as u64).to_le_bytes()));
            let id = tensor.ty.ggml_id().expect("a type of ggml's, as `tensor` asks for");
            bytes.extend(id.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            let blocks = tensor.shape.iter().product::<usize>() / tensor.ty.block_len();
            let size = (blocks * tensor.ty.block_bytes()) as u64;
            ranges.push(offset..offset + size);
            offset = (offset + size).next_multiple_of(alignment);
        }
        bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
        let data_start = bytes.len() as u64;
        (bytes, ranges.into_iter().map(|r| data_start + r.start..data_start + r.end).collect())
    }
}

/// Whether a file that is already there may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// It is an error if the file exists.
    Refuse,
    /// An existing file is replaced when the new one is whole.
    Replace,
}

/// A file being written. Dropped before [`Writer::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    sibling: NamedTempFile,
    path: PathBuf,
    overwrite: Overwrite,
    ranges: Vec<Range<u64>>,
}

impl Writer {
    /// Writes the header to a sibling of `path`. Tensor data not written later is zero.
    pub fn create(path: &Path, header: &Header, overwrite: Overwrite) -> Result<Self, Error> {
        if overwrite == Overwrite::Refuse && path.symlink_metadata().is_ok() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".forerun-").suffix(".partial");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let sibling = builder.tempfile_in(folder)?;
        let (bytes, ranges) = header.layout();
        let len = ranges.last().map_or(bytes.len() as u64, |r| r.end);
        sibling.as_file().set_len(len.next_multiple_of(u64::from(DEFAULT_ALIGNMENT)))?;
        write_all_at(sibling.as_file(), &bytes, 0)?;
        Ok(Self { sibling, path: path.to_owned(), overwrite, ranges })
    }

    /// Writes part of a tensor's data, starting `from` bytes into it.
    pub fn write_at(&self, tensor: usize, from: u64, bytes: &[u8]) -> Result<(), Error> {
        let range = &self.ranges[tensor];
        assert!(
            range.start + from + bytes.len() as u64 <= range.end,
            "write past the end of tensor {tensor}"
        );
        Ok(write_all_at(self.sibling.as_file(), bytes, range.start + from)?)
    }

    /// Puts the whole file in its place.
    pub fn finish(self) -> Result<(), Error> {
        self.sibling.as_file().sync_all()?;
        match self.overwrite {
            Overwrite::Refuse => self.sibling.persist_noclobber(&self.path),
            Overwrite::Replace => self.sibling.persist(&self.path),
        }
        .map(drop)
        .map_err(|e| e.error.into())
    }
}
