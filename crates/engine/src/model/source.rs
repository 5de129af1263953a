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
