//! From named tensors to weights on a backend.

use crate::Error;
use compute::{Backend, Matrix, MatrixId, VectorId};
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
}

impl WeightSource for checkpoint::Weights {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let weight = self.get(name)?;
        Some(Tensor { ty: weight.ty, shape: weight.shape.clone(), bytes: self.bytes(weight) })
    }
}

/// Hands tensors to a backend, checking their shapes.
pub(crate) struct Loader<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) source: &'a dyn WeightSource,
}

impl Loader<'_> {
    fn find(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, Error> {
        let tensor = self.source.tensor(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if tensor.shape != expected {
            return Err(Error::Shape { name: name.into(), found: tensor.shape, expected: expected.to_vec() });
        }
        Ok(tensor)
    }

    /// A matrix of shape [rows, cols].
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId, Error> {
        self.load(name, &[rows, cols], 1, rows, cols)
    }

    /// Matrices of shape [experts, rows, cols].
    pub(crate) fn experts(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixId, Error> {
        self.load(name, &[experts, rows, cols], experts, rows, cols)
    }

    /// A vector that serves as a matrix of one row.
    pub(crate) fn row(&mut self, name: &str, cols: usize) -> Result<MatrixId, Error> {
        self.load(name, &[cols], 1, 1, cols)
    }

    fn load(
        &mut self,
        name: &str,
        shape: &[usize],
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixId, Error> {
        let source = self.source;
        let tensor = source.tensor(name).ok_or_else(|| Error::MissingTensor(name.into()))?;
        if tensor.shape != shape {
            return Err(Error::Shape { name: name.into(), found: tensor.shape, expected: shape.to_vec() });
        }
        Ok(self.backend.matrix(Matrix { ty: tensor.ty, experts, rows, cols, bytes: &tensor.bytes }))
    }

    /// A tensor's numbers.
    pub(crate) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let tensor = self.find(name, shape)?;
        let mut numbers = vec![0.0; shape.iter().product()];
        formats::blocks::decode(tensor.ty, &tensor.bytes, &mut numbers);
        Ok(numbers)
    }

    /// A vector of `len` numbers.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<VectorId, Error> {
        let numbers = self.numbers(name, &[len])?;
        Ok(self.backend.vector(&numbers))
    }
}
