//! The weights of a model under one naming, one value-head order and plain norms, whatever file
//! they come from.
//!
//! Names and order are those of llama.cpp's GGUF files, because quantised columns cannot be
//! reordered; float tensors of Hugging Face checkpoints are rearranged when they are read. A
//! [`Slot`] says what a model needs and where each container keeps it; a [`Weight`] is a slot that
//! was found.

use crate::Error;
use formats::{BlockType, RawTensor, TensorInfo, Tensors, blocks};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

/// A tensor a model needs.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Canonical name.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// The places to look in, in order; the first that exists is taken.
    pub(crate) places: Vec<Place>,
    pub(crate) order: Order,
    pub(crate) map: Map,
}

impl Slot {
    pub(crate) fn new(name: impl Into<String>, shape: &[usize], places: Vec<Place>) -> Self {
        let shape = shape.to_vec();
        Self { name: name.into(), shape, places, order: Order::AsStored, map: Map::AsStored }
    }
}

/// Where a slot's numbers lie: whole tensors joined along a new first axis, one half of each matrix
/// in a tensor, or some rows of one.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) tensors: Vec<String>,
    pub(crate) half: Option<Half>,
    pub(crate) rows: Option<Rows>,
}

/// Some rows of a matrix that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) first: usize,
    /// Rows of the whole.
    pub(crate) of: usize,
}

impl Place {
    pub(crate) fn whole(name: impl Into<String>) -> Self {
        Self { tensors: vec![name.into()], half: None, rows: None }
    }

    pub(crate) fn half(name: impl Into<String>, half: Half) -> Self {
        Self { tensors: vec![name.into()], half: Some(half), rows: None }
    }

    pub(crate) fn rows(name: impl Into<String>, first: usize, of: usize) -> Self {
        Self { tensors: vec![name.into()], half: None, rows: Some(Rows { first, of }) }
    }

    pub(crate) fn stack(names: impl Iterator<Item = String>) -> Self {
        Self { tensors: names.collect(), half: None, rows: None }
    }
}

/// Gate and up projections stored as one tensor: gate rows first, then up rows, per expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    First,
    Second,
}

/// How value heads lie in a tensor. Canonical head `j` belongs to key head `j % key_heads`; Hugging
/// Face groups value heads by key head, so canonical head `j` is its head `(j % key_heads) *
/// per_key + j / key_heads`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    AsStored,
    /// Rows from `first` on are value heads of `rows` rows each.
    GroupedRows {
        first: usize,
        rows: usize,
        key_heads: usize,
        per_key: usize,
    },
    /// Columns are value heads of `columns` each.
    GroupedColumns {
        columns: usize,
        key_heads: usize,
        per_key: usize,
    },
}

/// What is done to each number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Map {
    AsStored,
    /// Norms that a file stores as the difference from 1.
    PlusOne,
    /// `A_log` to the decay itself.
    MinusExp,
}

/// A tensor of the model, found and checked.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Canonical name.
    pub name: String,
    /// How [`Weights::bytes`] gives its numbers.
    pub ty: BlockType,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Names in the file, one unless experts are stored one by one.
    pub sources: Vec<String>,
    half: Option<Half>,
    rows: Option<Rows>,
    order: Order,
    map: Map,
    /// Which of the files it lies in.
    file: usize,
}

impl Weight {
    /// Numbers in the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size of its data.
    pub fn byte_len(&self) -> usize {
        self.elements() / self.ty.block_len() * self.ty.block_bytes()
    }

    /// The file's tensor this weight equals byte for byte, where it does.
    pub(crate) fn stored<'a>(&self, tensors: &'a Tensors) -> Option<&'a TensorInfo> {
        let plain = self.half.is_none()
            && self.rows.is_none()
            && self.order == Order::AsStored
            && self.map == Map::AsStored;
        let tensor = (plain && self.sources.len() == 1).then(|| tensors.get(&self.sources[0]));
        tensor.flatten().filter(|tensor| !tensor.is_assembled())
    }
}

/// The weights of a model.
#[derive(Debug)]
pub struct Weights {
    /// The model's own file, and those that were joined to it.
    files: Vec<Tensors>,
    list: Vec<Weight>,
    by_name: HashMap<String, usize>,
}

impl Weights {
    /// Finds every slot in the file. Tensors that no slot asks for and `skip` does not claim are an
    /// error; the skipped ones are returned.
    pub(crate) fn find(
        tensors: Tensors,
        slots: Vec<Slot>,
        skip: impl Fn(&str) -> bool,
    ) -> Result<(Self, Vec<String>), Error> {
        let mut used = BTreeSet::new();
        let mut list = Vec::new();
        for slot in slots {
            let found = slot
                .places
                .iter()
                .find(|p| p.tensors.iter().any(|name| tensors.get(name).is_some()));
            let missing = || Error::MissingTensor(slot.places[0].tensors[0].clone());
            let place = found.ok_or_else(missing)?;
            used.extend(place.tensors.iter().cloned());
            list.push(fit(&tensors, &slot, place)?);
        }
        // Whole numbers and truth values are no weights: tables and counters that training left.
        let is_aside = |dtype: &str| matches!(dtype, "I64" | "BOOL");
        let is_odd = |raw: &&RawTensor| !is_aside(&raw.dtype) && !skip(&raw.name);
        // Other integers and small floats that no configuration made part of a weight.
        if let Some(raw) = tensors.raw().iter().find(is_odd) {
            return Err(Error::Dtype { tensor: raw.name.clone(), dtype: raw.dtype.clone() });
        }
        let aside = tensors.raw().iter().filter(|raw| is_aside(&raw.dtype));
        let aside: Vec<String> = aside.map(|raw| raw.name.clone()).collect();
        let (mut skipped, unknown): (Vec<_>, Vec<_>) = tensors
            .iter()
            .map(|t| t.name.clone())
            .filter(|n| !used.contains(n))
            .partition(|n| skip(n));
        if !unknown.is_empty() {
            return Err(Error::unknown_tensors(unknown));
        }
        skipped.extend(aside);
        let by_name = list.iter().enumerate().map(|(i, w)| (w.name.clone(), i)).collect();
        Ok((Self { files: vec![tensors], list, by_name }, skipped))
    }

    /// Adds the weights of another file. They are names that this one lacks.
    pub(crate) fn join(&mut self, other: Self) {
        let first = self.files.len();
        self.files.extend(other.files);
        for mut weight in other.list {
            weight.file += first;
            let before = self.by_name.insert(weight.name.clone(), self.list.len());
            assert!(before.is_none(), "`{}` lies in two files", weight.name);
            self.list.push(weight);
        }
    }

    /// All weights, in the model's order.
    pub fn iter(&self) -> std::slice::Iter<'_, Weight> {
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

    /// The weight of that canonical name.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.by_name.get(name).map(|&i| &self.list[i])
    }

    /// The tensors of the model's own file.
    pub fn tensors(&self) -> &Tensors {
        &self.files[0]
    }

    /// A weight's numbers in its type: a view of the file, or a rearranged copy.
    pub fn bytes(&self, weight: &Weight) -> Cow<'_, [u8]> {
        let tensors = &self.files[weight.file];
        if let Some(tensor) = weight.stored(tensors) {
            return Cow::Borrowed(tensors.data(tensor));
        }
        let parts: Vec<&TensorInfo> = weight
            .sources
            .iter()
            .map(|name| tensors.get(name).expect("found at opening"))
            .collect();
        if let Some(Rows { first, of }) = weight.rows {
            let data = tensors.bytes(parts[0]);
            let row = data.len() / of;
            let rows = first * row..(first + weight.shape[0]) * row;
            return match data {
                Cow::Borrowed(data) => Cow::Borrowed(&data[rows]),
                Cow::Owned(data) => Cow::Owned(data[rows].to_vec()),
            };
        }
        let stored = parts[0].ty;
        let mut bytes = Vec::with_capacity(weight.byte_len());
        for part in parts {
            let data = tensors.bytes(part);
            match weight.half {
                None => bytes.extend_from_slice(&data),
                Some(half) => {
                    // [experts, gate rows then up rows, columns]
                    let matrix = data.len() / weight.shape[0];
                    for expert in data.chunks_exact(matrix) {
                        let (first, second) = expert.split_at(matrix / 2);
                        bytes.extend_from_slice(if half == Half::First { first } else { second });
                    }
                }
            }
        }
        let bytes = ungroup(bytes, weight);
        let apply: fn(f32) -> f32 = match weight.map {
            Map::AsStored => return Cow::Owned(bytes),
            Map::PlusOne => |x| 1.0 + x,
            Map::MinusExp => |x| -x.exp(),
        };
        let mut numbers = vec![0.0; weight.elements()];
        blocks::decode(stored, &bytes, &mut numbers);
        Cow::Owned(numbers.into_iter().flat_map(|x| apply(x).to_le_bytes()).collect())
    }

    /// A weight's numbers as `f32`.
    pub fn decode(&self, weight: &Weight) -> Vec<f32> {
        let mut numbers = vec![0.0; weight.elements()];
        blocks::decode(weight.ty, &self.bytes(weight), &mut numbers);
        numbers
    }
}

/// Checks a place's tensors against the slot's shape and types.
fn fit(tensors: &Tensors, slot: &Slot, place: &Place) -> Result<Weight, Error> {
    let mut expected = slot.shape.clone();
    if place.tensors.len() > 1 {
        expected.remove(0);
    }
    if place.half.is_some() {
        expected[1] *= 2;
    }
    if let Some(rows) = place.rows {
        expected[0] = rows.of;
    }
    // Axes of length 1 are how a container spells a vector or a depthwise kernel; they carry no
    // layout.
    let squeeze = |shape: &[usize]| shape.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
    let mut first: Option<&TensorInfo> = None;
    for name in &place.tensors {
        let tensor = tensors.get(name).ok_or_else(|| Error::MissingTensor(name.clone()))?;
        if squeeze(&tensor.shape) != squeeze(&expected) {
            return Err(Error::Shape {
                tensor: name.clone(),
                found: tensor.shape.clone(),
                expected,
            });
        }
        let first = *first.get_or_insert(tensor);
        if first.ty != tensor.ty {
            return Err(Error::MixedTypes {
                first: first.name.clone(),
                first_type: first.ty.to_string(),
                second: name.clone(),
                second_type: tensor.ty.to_string(),
            });
        }
    }
    let stored = first.expect("a place names at least one tensor").ty;
    if let Order::GroupedColumns { columns, .. } = slot.order
        && stored.bytes_for(columns).is_none()
    {
        return Err(Error::Invalid {
            what: "columns of a value head",
            value: columns.to_string(),
            from: format!("`{}`, which is {stored}", place.tensors[0]),
            expected: format!("whole blocks of {}", stored.block_len()),
        });
    }
    Ok(Weight {
        name: slot.name.clone(),
        ty: if slot.map == Map::AsStored { stored } else { BlockType::F32 },
        shape: slot.shape.clone(),
        sources: place.tensors.clone(),
        half: place.half,
        rows: place.rows,
        order: slot.order,
        map: slot.map,
        file: 0,
    })
}

/// Brings value heads from Hugging Face's order into the canonical one.
fn ungroup(bytes: Vec<u8>, weight: &Weight) -> Vec<u8> {
    let (unit, first, key_heads, per_key) = match weight.order {
        Order::AsStored => return bytes,
        Order::GroupedRows { first, rows, key_heads, per_key } => {
            let row = bytes.len() / weight.shape[0];
            (rows * row, first * row, key_heads, per_key)
        }
        Order::GroupedColumns { columns, key_heads, per_key } => {
            let unit = weight.ty.bytes_for(columns).expect("heads of whole blocks");
            (unit, 0, key_heads, per_key)
        }
    };
    let mut out = bytes[..first].to_vec();
    for group in bytes[first..].chunks_exact(unit * key_heads * per_key) {
        for head in 0..key_heads * per_key {
            let stored = (head % key_heads) * per_key + head / key_heads;
            out.extend_from_slice(&group[stored * unit..(stored + 1) * unit]);
        }
    }
    out
}
