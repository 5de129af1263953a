//! The way of features to a drafter on a backend of its own. What a round leaves for it, of all
//! texts together, is gathered beside the target, copied once, and dealt out on the other side.

use crate::Error;
use crate::backends::Backends;
use crate::draft::Reads;
use crate::model::Model;
use crate::state::KeptRows;
use compute::Memory;

/// Rows that cross together: as many as a round keeps at most. A prompt's go in several times.
const ROWS: usize = 256;

/// Room for rows on both sides.
pub(crate) struct Crossing {
    width: usize,
    /// In the target's memory.
    gathered: Memory,
    /// In the drafter's, where that is not the host's.
    landed: Option<Memory>,
}

impl Crossing {
    /// For rows of `width` numbers.
    pub(crate) fn new(backends: &Backends, width: usize) -> Result<Self, Error> {
        let bytes = ROWS * width * size_of::<f32>();
        let own = backends.own.as_ref().filter(|own| own.has_own_memory());
        let landed = own.map(|own| own.memory(bytes)).transpose()?;
        Ok(Self { width, gathered: backends.target.memory(bytes)?, landed })
    }

    /// Bytes of it on the drafter's backend.
    pub(crate) fn landed_bytes(&self) -> usize {
        self.landed.as_ref().map_or(0, Memory::len)
    }

    /// Adds rows of the target's last pass to what texts keep, each its own; room was made for
    /// them. Where it fails nobody can tell which texts have theirs.
    pub(crate) fn carry(
        &mut self,
        backends: &mut Backends,
        model: &Model,
        what: Reads,
        texts: Vec<(&mut KeptRows, &[u32])>,
    ) -> Result<(), Error> {
        let all: Vec<u32> = texts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        let mut waiting = texts.into_iter().map(|(kept, rows)| (kept, rows.len()));
        let mut next = waiting.next();
        for rows in all.chunks(ROWS) {
            model.gather(&mut *backends.target, what, rows, &mut self.gathered)?;
            let numbers = backends.target.numbers(&self.gathered, 0, rows.len() * self.width)?;
            let own = backends.own.as_mut().expect("there are two sides");
            if let Some(landed) = &mut self.landed {
                own.put(landed, 0, &numbers)?;
            }
            let mut at = 0;
            while let Some((kept, left)) = next.as_mut().filter(|_| at < rows.len()) {
                let count = (*left).min(rows.len() - at);
                match &self.landed {
                    Some(landed) => kept.push_rows(&**own, landed, at, count)?,
                    None => kept.push_numbers(
                        &mut **own,
                        &numbers[at * self.width..][..count * self.width],
                    )?,
                }
                (at, *left) = (at + count, *left - count);
                if *left == 0 {
                    next = waiting.next();
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Options, append, chain};
    use crate::{Row, synthetic};
    use compute::{Activations, Backend, Cpu, CpuLevel};

    /// More rows than cross together, of texts of which one has none, to a side that has memory of
    /// its own and to one that has not.
    #[test]
    fn rows_arrive_as_they_are_kept_beside_the_target() {
        let mut config = synthetic::tiny();
        config.layers.truncate(4);
        config.mtp = None;
        let weights = synthetic::Weights::new(&config, synthetic::Mix::Q4_K_M, 3);
        let cpu =
            || -> Box<dyn Backend> { Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8)) };
        let mut backends = Backends::apart(cpu(), cpu(), "elsewhere");
        let taps = vec![1, 3];
        let options = Options { max_rows: 400, taps, ..Options::new(&*backends.target) };
        let mut model = Model::load(&mut *backends.target, &config, &weights, options).unwrap();
        let tokens: Vec<u32> = (0..390).map(|i| i % 200).collect();
        let mut rows: Vec<Row> = Vec::new();
        append(&mut rows, chain(&tokens[..100], 0));
        append(&mut rows, chain(&tokens[100..], 1));
        let sequences = [model.sequence(), model.sequence()];
        let seen = sequences.iter().collect::<Vec<_>>();
        model.forward_prompt(&mut *backends.target, &rows, &[], &seen).unwrap();
        // The last of them jump, as those of a tree do.
        let paths: [Vec<u32>; 3] =
            [(0..90).collect(), Vec::new(), (100..389).chain([99, 40]).collect()];
        let (width, what) = (2 * config.hidden, Reads::Taps);
        let mut expected = [(); 3].map(|()| KeptRows::new(width));
        let beside = expected.iter_mut().zip(&paths).map(|(kept, path)| (kept, &path[..]));
        for kept in model.keep(&mut *backends.target, what, beside.collect()) {
            kept.unwrap();
        }
        let room = || Memory::zeroed(ROWS * width * 4);
        for landed in [None, Some(room())] {
            let mut crossing = Crossing { width, gathered: room(), landed };
            let mut found = [(); 3].map(|()| KeptRows::new(width));
            let texts = found.iter_mut().zip(&paths).map(|(kept, path)| (kept, &path[..]));
            crossing.carry(&mut backends, &model, what, texts.collect()).unwrap();
            assert_eq!(found[2].len(), 291);
            assert_eq!(found, expected);
        }
    }
}
