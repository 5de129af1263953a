//! Weights where the device reads them: matrices as tiles in its own memory or in the host's, tables
//! of rows as in the file, vectors.

use super::{
    args::Address,
    block::DeviceMemory,
    driver::Driver,
    mapped::MappedMemory,
    pack::{self, TileFormat},
};
use crate::{
    Error,
    backend::{Matrix, RandomMatrix},
    expert_cache::slots_within,
    plan::{MatrixId, VectorId},
};
use formats::BlockType;
use std::sync::Arc;

/// A matrix that the device reads.
pub(crate) struct Stored {
    home: Home,
    pub(crate) form: Form,
    pub(crate) experts: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    copies: Option<Copies>,
}

/// Copies of some experts of a matrix that lies in the host's memory.
struct Copies {
    memory: DeviceMemory,
    /// Tables of its layer: where each expert is read, and how often it was chosen.
    places: Address,
    counts: Address,
}

/// The memory it lies in.
enum Home {
    Device(DeviceMemory),
    Host(MappedMemory),
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
        match &self.home {
            Home::Device(memory) => memory.address(),
            Home::Host(memory) => memory.address(),
        }
    }

    /// Its bytes where they are read over the bus.
    pub(crate) fn host_bytes(&self) -> usize {
        match &self.home {
            Home::Device(_) => 0,
            Home::Host(memory) => memory.len(),
        }
    }

    fn device_bytes(&self) -> usize {
        let copies = self.copies.as_ref().map_or(0, |copies| copies.memory.len());
        match &self.home {
            Home::Device(memory) => memory.len(),
            Home::Host(_) => copies,
        }
    }

    /// Where copies of experts begin, slot by slot; 0 where there are none.
    pub(crate) fn copies(&self) -> Address {
        self.copies.as_ref().map_or(0, |copies| copies.memory.address())
    }

    /// The table of its experts' places; 0 where all lie one behind the other.
    pub(crate) fn places(&self) -> Address {
        self.copies.as_ref().map_or(0, |copies| copies.places)
    }

    /// Where choices of its experts are counted; 0 where they are not.
    pub(crate) fn counts(&self) -> Address {
        self.copies.as_ref().map_or(0, |copies| copies.counts)
    }

    /// Bytes of an expert in the host's memory.
    fn expert_bytes(&self) -> usize {
        self.host_bytes() / self.experts
    }

    /// From where to where an expert is copied into a slot, and how many bytes that are.
    pub(crate) fn copy_of(&self, expert: usize, slot: usize) -> (Address, Address, usize) {
        let bytes = self.expert_bytes();
        let at = |base: Address, index: usize| base + (index * bytes) as u64;
        (at(self.address(), expert), at(self.copies(), slot), bytes)
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

    /// Bytes of all matrices and vectors on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.matrices.iter().map(Stored::device_bytes).sum::<usize>()
            + self.vectors.iter().map(DeviceMemory::len).sum::<usize>()
    }

    fn push(&mut self, stored: Stored) -> MatrixId {
        self.matrices.push(stored);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// Slots that each layer of experts has of so many bytes.
    pub(crate) fn expert_slots(&self, layers: &[[MatrixId; 3]], bytes: usize) -> usize {
        let each = layers.iter().flatten().map(|id| self.matrix(*id).expert_bytes()).sum();
        let experts = layers.iter().flatten().map(|id| self.matrix(*id).experts).min();
        slots_within(bytes, each, experts.unwrap_or(0))
    }

    /// Gives experts of a matrix in the host's memory slots, and their layer's tables of places and
    /// of choices.
    pub(crate) fn add_copies(
        &mut self,
        driver: &Arc<Driver>,
        id: MatrixId,
        slots: usize,
        [places, counts]: [Address; 2],
    ) -> Result<(), Error> {
        let matrix = &mut self.matrices[id.0 as usize];
        let memory = driver.allocate_as_is(slots * matrix.expert_bytes(), "copies of experts")?;
        matrix.copies = Some(Copies { memory, places, counts });
        Ok(())
    }

    /// Packs a matrix into tiles that stay in the host's memory.
    pub(crate) fn add_host_matrix(
        &mut self,
        driver: &Arc<Driver>,
        m: Matrix<'_>,
    ) -> Result<MatrixId, Error> {
        let (format, bytes) = tiles(m.ty, [m.experts, m.rows, m.cols]);
        let mut memory = MappedMemory::new(driver, bytes)?;
        pack::pack(&m, 0, memory.bytes());
        let Matrix { experts, rows, cols, .. } = m;
        let (home, form) = (Home::Host(memory), Form::Tiles(format));
        Ok(self.push(Stored { home, form, experts, rows, cols, copies: None }))
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
        let (home, form) = (Home::Device(memory), Form::Tiles(format));
        Ok(self.push(Stored { home, form, experts, rows, cols, copies: None }))
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
        let (home, form) = (Home::Device(memory), Form::Table(m.ty));
        Ok(self.push(Stored { home, form, experts, rows, cols, copies: None }))
    }

    /// Has `fill` make tiles by writing to an address, in the host's memory or the device's.
    pub(crate) fn add_made(
        &mut self,
        driver: &Arc<Driver>,
        m: &RandomMatrix,
        fill: impl FnOnce(Address, usize, TileFormat) -> Result<(), Error>,
    ) -> Result<MatrixId, Error> {
        let RandomMatrix { experts, rows, cols, .. } = *m;
        let (format, bytes) = tiles(m.ty, [experts, rows, cols]);
        let home = match m.on_host {
            true => Home::Host(MappedMemory::new(driver, bytes)?),
            false => Home::Device(driver.allocate_as_is(bytes, "weights")?),
        };
        let form = Form::Tiles(format);
        let stored = Stored { home, form, experts, rows, cols, copies: None };
        fill(stored.address(), bytes, format)?;
        Ok(self.push(stored))
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
