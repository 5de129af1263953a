//! Models in several files, `NAME-00001-of-00003.gguf` and so on, as llama.cpp splits them: the
//! first has the metadata, each has tensors of its own, and all say which part they are.

use super::{Error, Gguf, caps};
use crate::storage::Storage;
use crate::{RawTensor, TensorInfo, Tensors};
use std::collections::HashSet;
use std::path::Path;

/// Which part of how many a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// From 0.
    index: u64,
    count: u64,
}

impl Part {
    fn refusal(self) -> Error {
        Error::Split { index: self.index, count: self.count }
    }

    /// How the names of parts end.
    fn ending(self) -> String {
        format!("-{:05}-of-{:05}.gguf", self.index + 1, self.count)
    }
}

impl Gguf {
    /// Maps a file and reads its header. Any part of a split model leads to all of them.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = Self::read(Storage::open(path)?)?;
        match file.part()? {
            Some(part) => Self::join(path, part),
            None => Ok(file),
        }
    }

    /// Reads the header of a file that is in memory already, and whole.
    pub fn parse(storage: impl Into<Storage>) -> Result<Self, Error> {
        let file = Self::read(storage.into())?;
        match file.part()? {
            Some(part) => Err(part.refusal()),
            None => Ok(file),
        }
    }

    fn part(&self) -> Result<Option<Part>, Error> {
        let Some(count) = self.integer("split.count")?.filter(|count| *count > 1) else {
            return Ok(None);
        };
        let index = self.integer("split.no")?.unwrap_or(0);
        Ok(Some(Part { index: index as u64, count: count as u64 }))
    }

    /// All parts of the model that the file at `path` is `part` of.
    fn join(path: &Path, part: Part) -> Result<Self, Error> {
        let Part { count, .. } = part;
        if count > caps::PARTS {
            return Err(Error::TooMany { what: "parts", count, cap: caps::PARTS });
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stem = name.strip_suffix(&part.ending()).ok_or_else(|| part.refusal())?;
        let mut whole: Option<Self> = None;
        let (mut shards, mut list, mut raw, mut names) =
            (Vec::new(), Vec::<TensorInfo>::new(), Vec::<RawTensor>::new(), HashSet::new());
        for index in 0..count {
            let wanted = Part { index, count };
            let name = format!("{stem}{}", wanted.ending());
            let about = |cause: Error| Error::Part { name: name.clone(), cause: Box::new(cause) };
            let storage =
                Storage::open(&path.with_file_name(&name)).map_err(|e| about(e.into()))?;
            let mut file = Self::read(storage).map_err(about)?;
            if file.part().map_err(about)? != Some(wanted) {
                return Err(about(Error::OtherPart { number: index + 1, count }));
            }
            let (storage, mut tensors, mut others) = std::mem::take(&mut file.tensors).into_parts();
            tensors.iter_mut().for_each(|tensor| tensor.shard = index as usize);
            others.iter_mut().for_each(|tensor| tensor.shard = index as usize);
            let here = tensors.iter().map(|t| &t.name).chain(others.iter().map(|t| &t.name));
            for name in here {
                if !names.insert(name.clone()) {
                    return Err(about(Error::DuplicateTensor(name.clone())));
                }
            }
            shards.extend(storage);
            list.extend(tensors);
            raw.extend(others);
            whole.get_or_insert(file);
        }
        let mut whole = whole.expect("there are at least two parts");
        let found = (list.len() + raw.len()) as u64;
        whole.tensors = Tensors::new(shards, list).with_raw(raw);
        match whole.integer("split.tensors.count")? {
            Some(claimed) if claimed as u64 != found => {
                Err(Error::PartTensors { claimed: claimed as u64, found })
            }
            _ => Ok(whole),
        }
    }
}
