//! Where tensors come from.

use crate::Error;
use formats::BlockType;
use std::borrow::Cow;

/// A tensor of a model.
pub struct Tensor<'a> {
    /// Element type.
    pub ty: BlockType,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Its blocks.
    pub bytes: Cow<'a, [u8]>,
}

/// Where tensors come from, by canonical name.
pub trait WeightSource {
    /// The tensor of that name.
    fn tensor(&self, name: &str) -> Option<Tensor<'_>>;

    /// Its type, shape, standard deviation and seed, where its weights are random and a backend may
    /// make them itself.
    fn random(&self, _name: &str) -> Option<Random> {
        None
    }
}

/// A tensor of random weights.
pub struct Random {
    /// Element type.
    pub ty: BlockType,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Standard deviation.
    pub scale: f32,
    /// Which ones.
    pub seed: u64,
}

impl WeightSource for checkpoint::Weights {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let weight = self.get(name)?;
        Some(Tensor { ty: weight.ty, shape: weight.shape.clone(), bytes: self.bytes(weight) })
    }
}

/// A tensor, which has to be there in that shape.
pub(super) fn find<'s>(
    source: &'s dyn WeightSource,
    name: &str,
    expected: &[usize],
) -> Result<Tensor<'s>, Error> {
    let tensor = source.tensor(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
    if tensor.shape != expected {
        return Err(Error::Shape {
            name: name.into(),
            found: tensor.shape,
            expected: expected.to_vec(),
        });
    }
    Ok(tensor)
}

/// A tensor's numbers.
pub(crate) fn numbers(
    source: &dyn WeightSource,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, Error> {
    let tensor = find(source, name, shape)?;
    let mut numbers = vec![0.0; shape.iter().product()];
    formats::blocks::decode(tensor.ty, &tensor.bytes, &mut numbers);
    Ok(numbers)
}

/// What `of` makes of each row of a tensor of shape [rows, cols], decoded one at a time.
pub(crate) fn each_row(
    source: &dyn WeightSource,
    name: &str,
    [rows, cols]: [usize; 2],
    of: impl Fn(&[f32]) -> f32,
) -> Result<Vec<f32>, Error> {
    let tensor = find(source, name, &[rows, cols])?;
    let mut row = vec![0.0; cols];
    let decoded = tensor.bytes.chunks_exact(tensor.bytes.len() / rows).map(|bytes| {
        formats::blocks::decode(tensor.ty, bytes, &mut row);
        of(&row)
    });
    Ok(decoded.collect())
}
