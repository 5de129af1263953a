//! Rows of numbers that wait in the backend's memory: hidden states on their way to a drafter.

use super::{MapBlock, together};
use crate::Error;
use compute::{Arena, Backend, Buf, Memory, RowsKept};
use std::sync::Arc;

/// Rows there is room for at first.
const FIRST_ROOM: usize = 64;

/// Rows of `width` numbers, added at the end and taken from the front.
#[derive(Clone, Debug)]
pub struct KeptRows {
    width: usize,
    first: usize,
    len: usize,
    memory: Option<Arc<Memory>>,
}

impl KeptRows {
    /// None yet.
    pub fn new(width: usize) -> Self {
        Self { width, first: 0, len: 0, memory: None }
    }

    /// Rows that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * self.width * self.len
    }

    /// The rows that wait in a block of the host's, without the room around them; none where there
    /// are no numbers.
    pub(crate) fn alone(&self) -> Result<Option<Memory>, Error> {
        let numbers = self.numbers()?;
        if numbers.is_empty() {
            return Ok(None);
        }
        let mut memory = Memory::zeroed(4 * numbers.len());
        memory.slice_mut::<f32>().copy_from_slice(&numbers);
        Ok(Some(memory))
    }

    /// Bytes that so many rows take.
    pub(crate) fn bytes_of(&self, rows: usize) -> Option<usize> {
        rows.checked_mul(4 * self.width)
    }

    /// Rows of the same width: so many in this block.
    pub(crate) fn with(&self, len: usize, memory: Option<Arc<Memory>>) -> Self {
        Self { width: self.width, first: 0, len, memory }
    }

    /// The same in another block: what `map` makes of it.
    pub(crate) fn map_blocks(&self, map: &mut MapBlock<'_>) -> Result<Self, Error> {
        let memory = self.memory.as_ref().map(map).transpose()?;
        Ok(Self { width: self.width, first: self.first, len: self.len, memory })
    }

    /// Where rows go that are added to the end.
    fn for_rows<'a>(
        &'a mut self,
        backend: &dyn Backend,
        rows: &'a [u32],
    ) -> Result<RowsKept<'a>, Error> {
        self.reserve(backend, rows.len())?;
        let at = self.first + self.len;
        let to = self.memory.as_mut().and_then(Arc::get_mut).expect("room was made");
        Ok(RowsKept { rows, to, at })
    }

    /// Adds rows of the host's numbers.
    pub(crate) fn push_numbers(
        &mut self,
        backend: &mut dyn Backend,
        numbers: &[f32],
    ) -> Result<(), Error> {
        let rows = numbers.len() / self.width;
        self.reserve(backend, rows)?;
        let at = (self.first + self.len) * self.width;
        let memory = self.memory.as_mut().and_then(Arc::get_mut).expect("room was made");
        backend.put(memory, at, numbers)?;
        self.len += rows;
        Ok(())
    }

    /// Adds rows of a block of the same backend, from row `first` on.
    pub(crate) fn push_rows(
        &mut self,
        backend: &dyn Backend,
        from: &Memory,
        first: usize,
        count: usize,
    ) -> Result<(), Error> {
        self.reserve(backend, count)?;
        let (row, at) = (4 * self.width, self.first + self.len);
        let memory = self.memory.as_mut().and_then(Arc::get_mut).expect("room was made");
        memory.copy_from(at * row, from, first * row, count * row)?;
        self.len += count;
        Ok(())
    }

    /// Copies waiting rows from number `first` on to a buffer, from its row `at` on.
    pub(crate) fn load(
        &self,
        backend: &mut dyn Backend,
        arena: &mut Arena,
        (buf, at): (Buf, usize),
        first: usize,
        count: usize,
    ) -> Result<(), Error> {
        assert!(first + count <= self.len, "rows {first} to {} of {}", first + count, self.len);
        match &self.memory {
            Some(memory) if count > 0 => {
                Ok(backend.load_rows(arena, buf, at, memory, self.first + first, count)?)
            }
            _ => Ok(()),
        }
    }

    /// Lets go of the first rows.
    pub(crate) fn take(&mut self, count: usize) {
        assert!(count <= self.len);
        self.first += count;
        self.len -= count;
        if self.len == 0 {
            self.first = 0;
        }
    }

    /// Memory of its own with room for `more` rows after those there are.
    pub(crate) fn reserve(&mut self, backend: &dyn Backend, more: usize) -> Result<(), Error> {
        let row = 4 * self.width;
        if row == 0 {
            return Ok(());
        }
        if let Some(memory) = &mut self.memory
            && (self.first + self.len + more) * row <= memory.len()
            && Arc::get_mut(memory).is_some()
        {
            return Ok(());
        }
        let room = (self.len + more).next_power_of_two().max(FIRST_ROOM);
        let mut fresh = backend.memory(room * row)?;
        if let Some(old) = &self.memory {
            fresh.copy_from(0, old, self.first * row, self.len * row)?;
        }
        self.memory = Some(Arc::new(fresh));
        self.first = 0;
        Ok(())
    }

    /// The numbers of all rows.
    fn numbers(&self) -> Result<Vec<f32>, Error> {
        let (first, count) = (self.first * self.width, self.len * self.width);
        match &self.memory {
            Some(memory) => Ok(memory.read(first, count)?.into_owned()),
            None => Ok(Vec::new()),
        }
    }
}

/// Copies rows of a buffer to the ends of what several texts keep.
pub(crate) fn keep_rows(
    backend: &mut dyn Backend,
    arena: &Arena,
    buf: Buf,
    mut texts: Vec<(&mut KeptRows, &[u32])>,
) -> Vec<Result<(), Error>> {
    let prepared = texts.iter_mut().map(|(kept, rows)| kept.for_rows(backend, rows)).collect();
    let done = together(prepared, |kept| backend.keep_rows(arena, buf, kept));
    for ((kept, rows), done) in texts.into_iter().zip(&done) {
        if done.is_ok() {
            kept.len += rows.len();
        }
    }
    done
}

impl PartialEq for KeptRows {
    fn eq(&self, other: &Self) -> bool {
        self.width == other.width
            && self
                .numbers()
                .is_ok_and(|numbers| other.numbers().is_ok_and(|others| numbers == others))
    }
}
