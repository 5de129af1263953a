//! From named tensors to weights on a backend.

use crate::Error;
use compute::{Backend, Matrix, MatrixId, RandomMatrix, VectorId};
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

fn find<'s>(
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

/// Hands tensors to a backend, checking their shapes.
pub(crate) struct Loader<'a> {
    pub(crate) backend: &'a mut dyn Backend,
    pub(crate) source: &'a dyn WeightSource,
}

impl Loader<'_> {
    /// A matrix of shape [rows, cols].
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixId, Error> {
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
        if let Some(Random { ty, shape: found, scale, seed }) = source.random(name)
            && found == shape
            && let Some(id) =
                self.backend.random(RandomMatrix { ty, experts, rows, cols, scale, seed })?
        {
            return Ok(id);
        }
        let tensor = find(source, name, shape)?;
        Ok(self.backend.matrix(Matrix {
            ty: tensor.ty,
            experts,
            rows,
            cols,
            bytes: &tensor.bytes,
        })?)
    }

    /// A matrix of shape [rows, cols] whose rows are looked up.
    pub(crate) fn table(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixId, Error> {
        let tensor = find(self.source, name, &[rows, cols])?;
        Ok(self.backend.table(Matrix {
            ty: tensor.ty,
            experts: 1,
            rows,
            cols,
            bytes: &tensor.bytes,
        })?)
    }

    /// A table that is also multiplied with.
    pub(crate) fn tied(
        &mut self,
        table: MatrixId,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixId, Error> {
        let tensor = find(self.source, name, &[rows, cols])?;
        let matrix = Matrix { ty: tensor.ty, experts: 1, rows, cols, bytes: &tensor.bytes };
        Ok(self.backend.tied(table, matrix)?)
    }

    /// A tensor's numbers.
    pub(crate) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let tensor = find(self.source, name, shape)?;
        let mut numbers = vec![0.0; shape.iter().product()];
        formats::blocks::decode(tensor.ty, &tensor.bytes, &mut numbers);
        Ok(numbers)
    }

    /// What `of` makes of each row of a tensor of shape [rows, cols], decoded one at a time.
    pub(crate) fn each_row(
        &self,
        name: &str,
        rows: usize,
        cols: usize,
        of: impl Fn(&[f32]) -> f32,
    ) -> Result<Vec<f32>, Error> {
        let tensor = find(self.source, name, &[rows, cols])?;
        let mut row = vec![0.0; cols];
        let decoded = tensor.bytes.chunks_exact(tensor.bytes.len() / rows).map(|bytes| {
            formats::blocks::decode(tensor.ty, bytes, &mut row);
            of(&row)
        });
        Ok(decoded.collect())
    }

    /// A vector of `len` numbers.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<VectorId, Error> {
        let numbers = self.numbers(name, &[len])?;
        Ok(self.backend.vector(&numbers)?)
    }
}
