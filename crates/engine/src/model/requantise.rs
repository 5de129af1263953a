//! Weights that are quantised on their way in: a drafter of 16-bit floats read as Q8_0 takes half
//! the memory.

use super::{Tensor, WeightSource};
use formats::{BlockType, blocks, quantize};
use std::borrow::Cow;

/// Matrices of floats as blocks of another type; everything else as it is.
pub struct Requantised<'a> {
    /// Where they come from.
    pub source: &'a dyn WeightSource,
    /// What they become.
    pub ty: BlockType,
}

impl WeightSource for Requantised<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let tensor = self.source.tensor(name)?;
        let is_float = matches!(tensor.ty, BlockType::F32 | BlockType::F16 | BlockType::BF16);
        // Kernels of convolutions have three dimensions and are small.
        let cols = tensor.shape.last().copied().unwrap_or(0);
        if !is_float || tensor.shape.len() != 2 || !cols.is_multiple_of(self.ty.block_len()) {
            return Some(tensor);
        }
        let len = tensor.shape.iter().product();
        let mut numbers = vec![0.0; len];
        blocks::decode(tensor.ty, &tensor.bytes, &mut numbers);
        let mut bytes = vec![0; self.ty.bytes_for(len)?];
        // What the type cannot hold (a NaN) stays as it is: the drafter is then found out as it
        // would be without this.
        match quantize::encode(self.ty, &numbers, &mut bytes) {
            Ok(()) => Some(Tensor { ty: self.ty, shape: tensor.shape, bytes: Cow::Owned(bytes) }),
            Err(_) => Some(tensor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl WeightSource for One {
        fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
            let shape = if name == "norm" { vec![64] } else { vec![2, 32] };
            let bytes = (0..64).flat_map(|i| (i as f32).to_le_bytes()).collect();
            Some(Tensor { ty: BlockType::F32, shape, bytes: Cow::Owned(bytes) })
        }
    }

    #[test]
    fn matrices_of_floats_change_their_type_and_little_else() {
        let source = Requantised { source: &One, ty: BlockType::Q8_0 };
        assert_eq!(source.tensor("norm").unwrap().ty, BlockType::F32);
        let matrix = source.tensor("matrix").unwrap();
        assert_eq!((matrix.ty, matrix.bytes.len()), (BlockType::Q8_0, 2 * 34));
        let mut numbers = [0.0; 64];
        blocks::decode(matrix.ty, &matrix.bytes, &mut numbers);
        assert!(numbers.iter().enumerate().all(|(i, x)| (x - i as f32).abs() < 0.3));
    }
}
