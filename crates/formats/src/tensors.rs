//! The tensors of one checkpoint, whatever container and however many files they lie in.

use crate::storage::Storage;
use crate::{Assembly, BlockType};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

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
    /// How it is made, where no file has it as it is.
    pub(crate) assembly: Option<Arc<Assembly>>,
}

/// A tensor of a type that is no weight by itself: integers, bytes, small floats.
#[derive(Clone, Debug, PartialEq)]
pub struct RawTensor {
    /// Its name in the file.
    pub name: String,
    /// Its type as safetensors calls it.
    pub dtype: String,
    /// Row-major.
    pub shape: Vec<usize>,
    pub(crate) bytes: u64,
    pub(crate) shard: usize,
    pub(crate) offset: u64,
}

impl TensorInfo {
    /// Whether it is put together from several of a file when it is read.
    pub fn is_assembled(&self) -> bool {
        self.assembly.is_some()
    }

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
    raw: Vec<RawTensor>,
}

impl Tensors {
    /// Joins the descriptions, whose ranges must lie inside their shard.
    pub(crate) fn new(shards: Vec<Storage>, list: Vec<TensorInfo>) -> Self {
        for tensor in &list {
            assert!(tensor.offset + tensor.bytes <= shards[tensor.shard].bytes().len() as u64);
        }
        let by_name = list.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Self { shards, list, by_name, raw: Vec::new() }
    }

    pub(crate) fn with_raw(mut self, raw: Vec<RawTensor>) -> Self {
        for tensor in &raw {
            assert!(tensor.offset + tensor.bytes <= self.shards[tensor.shard].bytes().len() as u64);
        }
        self.raw = raw;
        self
    }

    /// The tensors of types that are no weights by themselves.
    pub fn raw(&self) -> &[RawTensor] {
        &self.raw
    }

    /// A view of such a tensor's data.
    pub fn raw_data(&self, tensor: &RawTensor) -> &[u8] {
        let start = tensor.offset as usize;
        &self.shards[tensor.shard].bytes()[start..start + tensor.bytes as usize]
    }

    /// With tensors of these shapes that are put together from others, which are then no longer
    /// listed.
    pub fn assembled(
        self,
        made: Vec<(String, Vec<usize>, Assembly)>,
        spent: &HashSet<String>,
    ) -> Self {
        let Self { shards, mut list, mut raw, .. } = self;
        list.retain(|tensor| !spent.contains(&tensor.name));
        raw.retain(|tensor| !spent.contains(&tensor.name));
        list.extend(made.into_iter().map(|(name, shape, assembly)| {
            let ty = assembly.ty();
            let elements = shape.iter().product();
            let bytes = ty.bytes_for(elements).expect("rows of whole blocks") as u64;
            let assembly = Some(Arc::new(assembly));
            TensorInfo { name, ty, shape, bytes, shard: 0, offset: 0, assembly }
        }));
        let by_name = list.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Self { shards, list, by_name, raw }
    }

    /// A tensor's data: a view of the file, or what is put together.
    pub fn bytes(&self, tensor: &TensorInfo) -> Cow<'_, [u8]> {
        match &tensor.assembly {
            Some(assembly) => Cow::Owned(assembly.bytes(self)),
            None => Cow::Borrowed(self.data(tensor)),
        }
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
    ///
    /// # Panics
    /// Where it is assembled.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        assert!(!tensor.is_assembled(), "`{}` is not in a file as it is", tensor.name);
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

    pub(crate) fn into_parts(self) -> (Vec<Storage>, Vec<TensorInfo>, Vec<RawTensor>) {
        (self.shards, self.list, self.raw)
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = &'a TensorInfo;
    type IntoIter = std::slice::Iter<'a, TensorInfo>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
