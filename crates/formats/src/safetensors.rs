//! safetensors: one file, or shards under an index, over the `safetensors` crate.

use crate::storage::Storage;
use crate::{BlockType, RawTensor, TensorInfo, Tensors};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// The single file and the index of a Hugging Face folder.
pub const FILE: &str = "model.safetensors";
/// See [`FILE`].
pub const INDEX: &str = "model.safetensors.index.json";

/// Caps on what an index may claim.
pub mod caps {
    /// Bytes of an index; Qwen3.5-397B's has about 100 KB.
    pub const INDEX: u64 = 16 << 20;
    /// Bytes of a file's header; 30,000 tensors, one per expert, take 4 MB.
    pub const HEADER: u64 = 16 << 20;
    /// Files of a checkpoint.
    pub const SHARDS: usize = 1 << 10;
    /// Dimensions of a tensor.
    pub const DIMENSIONS: usize = 8;
}

/// Why a safetensors checkpoint was refused.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{}: {cause}", .path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("header: {0}")]
    Header(SafeTensorError),
    #[error("header claims {len} bytes, the cap is {cap}", cap = caps::HEADER)]
    HeaderTooLong { len: u64 },
    #[error(
        "tensor `{tensor}` has {count} dimensions, at most {max} expected",
        max = caps::DIMENSIONS
    )]
    Dimensions { tensor: String, count: usize },
    #[error("index: {0}")]
    Json(serde_json::Error),
    #[error("index is {len} bytes, the cap is {cap}", cap = caps::INDEX)]
    IndexTooLong { len: u64 },
    #[error("index has no `weight_map` object")]
    NoWeightMap,
    #[error("index lists no tensors")]
    EmptyIndex,
    #[error("index names {count} files, the cap is {cap}", cap = caps::SHARDS)]
    TooManyShards { count: usize },
    #[error("index gives `{tensor}` the file `{file}`, which is not a plain file name")]
    ShardName { tensor: String, file: String },
    #[error("index gives `{tensor}` no file name")]
    ShardType { tensor: String },
    #[error("tensor `{tensor}` is not in `{file}`, where the index has it")]
    MissingTensor { tensor: String, file: String },
    #[error("tensor `{tensor}` of `{file}` is not in the index")]
    Unlisted { tensor: String, file: String },
    #[error("shard `{file}`: {cause}")]
    Shard { file: String, cause: Box<Error> },
    #[error("no `{FILE}` and no `{INDEX}` in {}", .0.display())]
    NoWeights(PathBuf),
}

/// Opens one file.
pub fn open(path: &Path) -> Result<Tensors, Error> {
    parse(Storage::open(path).map_err(|cause| Error::Io { path: path.to_owned(), cause })?)
}

/// Reads the header of a file that is in memory already.
pub fn parse(storage: impl Into<Storage>) -> Result<Tensors, Error> {
    let storage = storage.into();
    if let Some(len) =
        storage.bytes().first_chunk().map(|b| u64::from_le_bytes(*b)).filter(|n| *n > caps::HEADER)
    {
        return Err(Error::HeaderTooLong { len });
    }
    let (header_len, metadata) =
        SafeTensors::read_metadata(storage.bytes()).map_err(Error::Header)?;
    let data_start = header_len as u64 + 8;
    let (mut list, mut raw) = (Vec::new(), Vec::new());
    for (name, info) in metadata.tensors() {
        if info.shape.len() > caps::DIMENSIONS {
            return Err(Error::Dimensions { tensor: name, count: info.shape.len() });
        }
        let (start, end) = info.data_offsets;
        let (shape, bytes) = (info.shape.clone(), (end - start) as u64);
        let (shard, offset) = (0, data_start + start as u64);
        let ty = match info.dtype {
            Dtype::F32 => BlockType::F32,
            Dtype::F16 => BlockType::F16,
            Dtype::BF16 => BlockType::BF16,
            // No weight by itself; whether it is part of one, the configuration says.
            other => {
                let dtype = format!("{other:?}");
                raw.push(RawTensor { name, dtype, shape, bytes, shard, offset });
                continue;
            }
        };
        list.push(TensorInfo { name, ty, shape, bytes, shard, offset, assembly: None });
    }
    list.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    raw.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    Ok(Tensors::new(vec![storage], list).with_raw(raw))
}

/// Opens the weights of a Hugging Face folder: `model.safetensors`, or the shards its index names.
pub fn open_folder(folder: &Path) -> Result<Tensors, Error> {
    let single = folder.join(FILE);
    if single.exists() {
        return open(&single);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        return Err(Error::NoWeights(folder.to_owned()));
    }
    open_index(&index)
}

/// Opens the shards that an index names; they lie beside it.
pub fn open_index(path: &Path) -> Result<Tensors, Error> {
    let io = |cause| Error::Io { path: path.to_owned(), cause };
    let len = std::fs::metadata(path).map_err(io)?.len();
    if len > caps::INDEX {
        return Err(Error::IndexTooLong { len });
    }
    let index = Index::parse(&std::fs::read(path).map_err(io)?)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut storages = Vec::new();
    let (mut list, mut raw) = (Vec::new(), Vec::new());
    for (file, tensors) in index.files {
        let shard = open(&folder.join(&file)).map_err(|e| match e {
            e @ Error::Io { .. } => e,
            e => Error::Shard { file: file.clone(), cause: Box::new(e) },
        })?;
        let others: HashSet<&str> = shard.raw().iter().map(|t| t.name.as_str()).collect();
        let is_here = |name: &str| shard.get(name).is_some() || others.contains(name);
        if let Some(tensor) = tensors.iter().find(|name| !is_here(name)) {
            return Err(Error::MissingTensor { tensor: tensor.clone(), file });
        }
        let mut here = shard.iter().map(|t| &t.name).chain(shard.raw().iter().map(|t| &t.name));
        if let Some(extra) = here.find(|name| tensors.binary_search(name).is_err()) {
            return Err(Error::Unlisted { tensor: extra.clone(), file });
        }
        let (mut storage, infos, others) = shard.into_parts();
        let number = storages.len();
        raw.extend(others.into_iter().map(|t| RawTensor { shard: number, ..t }));
        list.extend(infos.into_iter().map(|t| TensorInfo { shard: number, ..t }));
        storages.append(&mut storage);
    }
    Ok(Tensors::new(storages, list).with_raw(raw))
}

/// A sharded checkpoint's index: which file holds which tensors.
#[derive(Debug, Default)]
pub struct Index {
    /// File name to its tensors' names, sorted.
    pub files: BTreeMap<String, Vec<String>>,
}

impl Index {
    /// Reads `model.safetensors.index.json`.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let mut root: HashMap<String, serde_json::Value> =
            serde_json::from_slice(json).map_err(Error::Json)?;
        let Some(serde_json::Value::Object(map)) = root.remove("weight_map") else {
            return Err(Error::NoWeightMap);
        };
        let mut files = BTreeMap::<String, Vec<String>>::new();
        for (tensor, file) in map {
            let serde_json::Value::String(file) = file else {
                return Err(Error::ShardType { tensor });
            };
            // A shard lies beside its index; a path that leads elsewhere is no shard.
            let mut parts = Path::new(&file).components();
            let is_name = match (parts.next(), parts.next()) {
                (Some(Component::Normal(name)), None) => *name == *file,
                _ => false,
            };
            if !is_name || file.contains(['\\', '\0']) {
                return Err(Error::ShardName { tensor, file });
            }
            files.entry(file).or_default().push(tensor);
        }
        if files.is_empty() {
            return Err(Error::EmptyIndex);
        }
        if files.len() > caps::SHARDS {
            return Err(Error::TooManyShards { count: files.len() });
        }
        files.values_mut().for_each(|names| names.sort());
        Ok(Self { files })
    }
}
