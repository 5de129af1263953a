//! The tensors of one checkpoint, whatever container and however many files they lie in.

use crate::BlockType;
use crate::storage::Storage;
use std::collections::HashMap;
use std::io;

/// One tensor as its file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// How its numbers are stored.
    pub ty: BlockType,
    /// Row-major, slowest dimension first; the last one is a row.
    pub shape: Vec<usize>,
    /// Size of its data.
    pub bytes: u64,
    /// Which file of the checkpoint holds it, and where.
    pub(crate) shard: usize,
    pub(crate) offset: u64,
}

impl TensorInfo {
    /// Numbers in the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Tensors by name over the files that hold them. Every range was checked against its file at
/// opening.
#[derive(Debug, Default)]
pub struct Tensors {
    shards: Vec<Storage>,
    list: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl Tensors {
    /// Joins the descriptions, whose ranges must lie inside their shard.
    pub(crate) fn new(shards: Vec<Storage>, list: Vec<TensorInfo>) -> Self {
        for tensor in &list {
            assert!(tensor.offset + tensor.bytes <= shards[tensor.shard].bytes().len() as u64);
        }
        let by_name = list.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Self { shards, list, by_name }
    }

    /// All tensors, in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, TensorInfo> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.list[i])
    }

    /// A zero-copy view of a tensor's data.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let start = tensor.offset as usize;
        &self.shards[tensor.shard].bytes()[start..start + tensor.bytes as usize]
    }

    /// Copies part of a tensor's data, starting `from` bytes into it.
    pub fn read_at(&self, tensor: &TensorInfo, from: u64, out: &mut [u8]) -> io::Result<()> {
        assert!(from + out.len() as u64 <= tensor.bytes, "read past the end of `{}`", tensor.name);
        self.shards[tensor.shard].read_at(tensor.offset + from, out)
    }

    pub(crate) fn shard(&self, index: usize) -> &Storage {
        &self.shards[index]
    }

    pub(crate) fn into_parts(self) -> (Vec<Storage>, Vec<TensorInfo>) {
        (self.shards, self.list)
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = &'a TensorInfo;
    type IntoIter = std::slice::Iter<'a, TensorInfo>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
