//! Weights in the device's memory: matrices as tiles, tables of rows as in the file, vectors.

use super::{
    args::Address,
    block::DeviceMemory,
    driver::Driver,
    pack::{self, TileFormat},
};
use crate::{
    Error,
    backend::Matrix,
    plan::{MatrixId, VectorId},
};
use formats::BlockType;
use std::sync::Arc;

/// A matrix on the device.
pub(crate) struct Stored {
    memory: DeviceMemory,
    pub(crate) form: Form,
    pub(crate) experts: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// How it is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// [experts][rows / 16][cols / 256] tiles.
    Tiles(TileFormat),
    /// Rows of blocks.
    Table(BlockType),
}

impl Stored {
    pub(crate) fn address(&self) -> Address {
        self.memory.address()
    }

    /// The format of its tiles.
    pub(crate) fn tiles(&self) -> TileFormat {
        match self.form {
            Form::Tiles(format) => format,
            Form::Table(_) => panic!("a table is not multiplied with"),
        }
    }
}

/// The tiles that a matrix becomes, and their bytes. What counts a device's memory asks here too.
pub(crate) fn tiles(ty: BlockType, [experts, rows, cols]: [usize; 3]) -> (TileFormat, usize) {
    let format = TileFormat::of(ty);
    (format, pack::packed_bytes(format, experts, rows, cols))
}

/// Everything a backend was given.
#[derive(Default)]
pub(crate) struct Weights {
    matrices: Vec<Stored>,
    vectors: Vec<DeviceMemory>,
}

/// Bytes packed and copied at a time.
const PIECE: usize = 32 << 20;

impl Weights {
    pub(crate) fn matrix(&self, id: MatrixId) -> &Stored {
        &self.matrices[id.0 as usize]
    }

    pub(crate) fn vector(&self, id: VectorId) -> Address {
        self.vectors[id.0 as usize].address()
    }

    /// Bytes of all matrices and vectors.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices.iter().map(|m| m.memory.len()).sum::<usize>()
            + self.vectors.iter().map(DeviceMemory::len).sum::<usize>()
    }

    fn push(&mut self, stored: Stored) -> MatrixId {
        self.matrices.push(stored);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// Packs a matrix into tiles, a piece at a time.
    pub(crate) fn add_matrix(
        &mut self,
        driver: &Arc<Driver>,
        m: Matrix<'_>,
    ) -> Result<MatrixId, Error> {
        let (format, bytes) = tiles(m.ty, [m.experts, m.rows, m.cols]);
        let memory = driver.allocate_as_is(bytes, "weights")?;
        let row = pack::row_tile_bytes(format, m.cols);
        let tiles = m.experts * m.rows.div_ceil(16);
        let step = (PIECE / row).max(1);
        let mut piece = vec![0u8; step.min(tiles) * row];
        for first in (0..tiles).step_by(step) {
            let count = step.min(tiles - first);
            pack::pack(&m, first, &mut piece[..count * row]);
            driver.upload(memory.address() + (first * row) as u64, &piece[..count * row])?;
        }
        let Matrix { experts, rows, cols, .. } = m;
        Ok(self.push(Stored { memory, form: Form::Tiles(format), experts, rows, cols }))
    }

    /// Keeps a matrix as it is.
    pub(crate) fn add_table(
        &mut self,
        driver: &Arc<Driver>,
        m: Matrix<'_>,
    ) -> Result<MatrixId, Error> {
        let memory = driver.allocate_as_is(m.bytes.len(), "the embedding")?;
        driver.upload(memory.address(), m.bytes)?;
        let Matrix { experts, rows, cols, .. } = m;
        Ok(self.push(Stored { memory, form: Form::Table(m.ty), experts, rows, cols }))
    }

    /// Takes tiles that were made on the device.
    pub(crate) fn add_tiles(
        &mut self,
        memory: DeviceMemory,
        format: TileFormat,
        [experts, rows, cols]: [usize; 3],
    ) -> MatrixId {
        self.push(Stored { memory, form: Form::Tiles(format), experts, rows, cols })
    }

    pub(crate) fn add_vector(
        &mut self,
        driver: &Arc<Driver>,
        numbers: &[f32],
    ) -> Result<VectorId, Error> {
        let memory = driver.allocate_as_is(4 * numbers.len(), "weights")?;
        driver.upload(memory.address(), bytemuck::cast_slice(numbers))?;
        self.vectors.push(memory);
        Ok(VectorId(self.vectors.len() as u32 - 1))
    }
}
