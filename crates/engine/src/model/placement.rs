//! Where weights and older keys lie. Model code names weights while it records plans, and nothing is
//! read by that; then this file decides which memory each of them goes to and hands it over. What a
//! device needs is counted by handing the same weights to a backend that only counts (`compute::cuda::Ledger`).

use super::source::{Random, WeightSource, find, numbers};
use crate::Error;
use checkpoint::{TargetConfig, target::Ffn};
use compute::{Backend, Links, Matrix, MatrixId, RandomMatrix, VectorId};
use formats::BlockType;

/// The memory that a weight lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The backend's own, which for the CPU is the host's.
    Device,
    /// The host's, which a device reads over the bus. Only matrices that are multiplied with can
    /// lie there.
    Host,
    /// A disk's, of which the host's memory holds what was used of late. Only experts can lie
    /// there, and only of a backend whose memory is the host's.
    Disk,
}

/// What of a target has left the device's memory for the host's or a disk's: experts, or the last
/// layers. What a pass reads of every layer, and drafters, stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where all experts lie.
    pub experts: Place,
    /// Bytes of the device's memory for copies of those experts that are chosen often.
    pub copies: usize,
    /// The first layer all of whose matrices lie in the host's memory.
    pub layers_from: usize,
    /// Tokens of a text whose keys and values lie near; those of older ones lie in the host's
    /// memory.
    pub near_tokens: usize,
}

impl Placement {
    /// Everything where the backend computes.
    pub const ON_DEVICE: Self = Self {
        experts: Place::Device,
        copies: 0,
        layers_from: usize::MAX,
        near_tokens: usize::MAX,
    };

    /// How many placements there are for a target, from everything on the device to as little as
    /// can be.
    pub fn steps(config: &TargetConfig) -> usize {
        config.layers.len() + usize::from(has_experts(config))
    }

    /// The placement after so many steps. Experts leave first, all of them: a pass reads a few of
    /// a layer's, and those that passes read often are copied into what they leave.
    pub fn step(config: &TargetConfig, step: usize) -> Self {
        let (layers, experts) = (config.layers.len(), has_experts(config));
        let gone = step.saturating_sub(usize::from(experts)).min(layers);
        let layers_from = if gone == 0 { usize::MAX } else { layers - gone };
        let experts = if experts && step > 0 { Place::Host } else { Place::Device };
        Self { experts, layers_from, ..Self::ON_DEVICE }
    }

    /// Whether anything lies in the host's memory.
    pub fn reaches_host(self) -> bool {
        self.experts == Place::Host || self.layers_from.min(self.near_tokens) != usize::MAX
    }

    /// Where a weight of the target lies, but for its next-token block, all of which stays.
    pub fn of(self, name: &str, shape: &[usize]) -> Place {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
        let Some(layer) = layer.and_then(|number| number.parse::<usize>().ok()) else {
            return Place::Device;
        };
        let is_expert = shape.len() == 3;
        match (is_expert, self.experts) {
            (true, Place::Host | Place::Disk) => self.experts,
            _ if layer >= self.layers_from => Place::Host,
            _ => Place::Device,
        }
    }
}

fn has_experts(config: &TargetConfig) -> bool {
    matches!(config.ffn, Ffn::Moe { .. })
}

/// A weight that plans name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedWeight {
    /// Its canonical name.
    pub name: String,
    /// Its shape in the file, row-major: [rows, cols], [experts, rows, cols] or `[cols]`.
    pub shape: Vec<usize>,
    /// What becomes of it.
    pub form: Form,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A matrix to multiply with, or one of each expert.
    Matrix,
    /// A matrix whose rows are looked up.
    Table,
    /// This table, to multiply with.
    Tied(MatrixId),
    /// Numbers.
    Vector,
    /// Numbers column by column.
    Columns,
    /// Some of its numbers.
    Part {
        /// Those before them.
        first: usize,
        /// How many there are.
        len: usize,
    },
    /// Its first numbers as a matrix of one row.
    Head(usize),
}

/// The weights that plans name, by numbers of their own, and what a backend calls those that were
/// handed to it. Drafters go on with the target's list, so they can name what is the target's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights {
    /// Named, but not handed over.
    waiting: Vec<NamedWeight>,
    /// How many were named.
    matrices: usize,
    vectors: usize,
    links: Links,
}

impl Weights {
    /// A matrix of shape [rows, cols].
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> MatrixId {
        self.name_matrix(name, vec![rows, cols], Form::Matrix)
    }

    /// Matrices of shape [experts, rows, cols].
    pub(crate) fn experts(&mut self, name: &str, shape: [usize; 3]) -> MatrixId {
        self.name_matrix(name, shape.to_vec(), Form::Matrix)
    }

    /// A vector that serves as a matrix of one row.
    pub(crate) fn row(&mut self, name: &str, cols: usize) -> MatrixId {
        self.name_matrix(name, vec![cols], Form::Matrix)
    }

    /// A matrix of shape [rows, cols] whose rows are looked up.
    pub(crate) fn table(&mut self, name: &str, rows: usize, cols: usize) -> MatrixId {
        self.name_matrix(name, vec![rows, cols], Form::Table)
    }

    /// A table that is also multiplied with.
    pub(crate) fn tied(
        &mut self,
        table: MatrixId,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> MatrixId {
        self.name_matrix(name, vec![rows, cols], Form::Tied(table))
    }

    /// A vector of `len` numbers.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> VectorId {
        self.name_vector(name, vec![len], Form::Vector)
    }

    /// The numbers of a matrix of shape [rows, cols], column by column.
    pub(crate) fn columns(&mut self, name: &str, rows: usize, cols: usize) -> VectorId {
        self.name_vector(name, vec![rows, cols], Form::Columns)
    }

    /// Some numbers of a tensor of any shape.
    pub(crate) fn part(
        &mut self,
        name: &str,
        shape: &[usize],
        first: usize,
        len: usize,
    ) -> VectorId {
        self.name_vector(name, shape.to_vec(), Form::Part { first, len })
    }

    /// The first `len` numbers of a row of `cols` as a matrix.
    pub(crate) fn head_of_row(&mut self, name: &str, cols: usize, len: usize) -> MatrixId {
        self.name_matrix(name, vec![1, cols], Form::Head(len))
    }

    fn name_matrix(&mut self, name: &str, shape: Vec<usize>, form: Form) -> MatrixId {
        self.waiting.push(NamedWeight { name: name.into(), shape, form });
        self.matrices += 1;
        MatrixId::named(self.matrices - 1)
    }

    fn name_vector(&mut self, name: &str, shape: Vec<usize>, form: Form) -> VectorId {
        self.waiting.push(NamedWeight { name: name.into(), shape, form });
        self.vectors += 1;
        VectorId::named(self.vectors - 1)
    }

    /// Hands what was named since the last time to a backend, each to the memory it is to lie in.
    pub(crate) fn place(
        &mut self,
        placement: Placement,
        source: &dyn WeightSource,
        backend: &mut dyn Backend,
    ) -> Result<(), Error> {
        for weight in self.waiting.drain(..) {
            match weight.form {
                Form::Vector | Form::Columns | Form::Part { .. } => {
                    self.links.vectors.push(place_vector(&weight, source, backend)?);
                }
                _ => {
                    let place = placement.of(&weight.name, &weight.shape);
                    let matrix = place_matrix(&weight, place, &self.links, source, backend)?;
                    self.links.matrices.push(matrix);
                }
            }
        }
        Ok(())
    }

    /// What the backend calls them, once they are placed.
    pub(crate) fn links(&self) -> &Links {
        assert!(self.waiting.is_empty(), "weights are placed before plans are linked");
        &self.links
    }
}

fn place_matrix(
    weight: &NamedWeight,
    place: Place,
    links: &Links,
    source: &dyn WeightSource,
    backend: &mut dyn Backend,
) -> Result<MatrixId, Error> {
    let NamedWeight { name, shape, form } = weight;
    if let Form::Head(cols) = *form {
        let mut numbers = numbers(source, name, shape)?;
        numbers.truncate(cols);
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let matrix = Matrix { ty: BlockType::F32, experts: 1, rows: 1, cols, bytes: &bytes };
        return Ok(backend.matrix(matrix)?);
    }
    let [experts, rows, cols] = match shape[..] {
        [cols] => [1, 1, cols],
        [rows, cols] => [1, rows, cols],
        [experts, rows, cols] => [experts, rows, cols],
        _ => unreachable!("`{name}` has {} dimensions", shape.len()),
    };
    let on_host = place == Place::Host;
    if *form == Form::Matrix
        && place != Place::Disk
        && let Some(Random { ty, shape: found, scale, seed }) = source.random(name)
        && found == *shape
        && let made = (RandomMatrix { ty, experts, rows, cols, scale, seed, on_host })
        && let Some(id) = backend.random(made)?
    {
        return Ok(id);
    }
    let tensor = find(source, name, shape)?;
    let matrix = Matrix { ty: tensor.ty, experts, rows, cols, bytes: &tensor.bytes };
    Ok(match (*form, place) {
        (Form::Table, _) => backend.table(matrix)?,
        (Form::Tied(table), _) => backend.tied(links.matrix(table), matrix)?,
        (_, Place::Device) => backend.matrix(matrix)?,
        (_, Place::Host) => backend.host_matrix(matrix)?,
        (_, Place::Disk) => backend.disk_matrix(matrix)?,
    })
}

fn place_vector(
    weight: &NamedWeight,
    source: &dyn WeightSource,
    backend: &mut dyn Backend,
) -> Result<VectorId, Error> {
    let mut numbers = numbers(source, &weight.name, &weight.shape)?;
    match (weight.form, &weight.shape[..]) {
        (Form::Columns, &[_, cols]) => {
            let column = |c: usize| numbers.iter().skip(c).step_by(cols).copied();
            numbers = (0..cols).flat_map(column).collect();
        }
        (Form::Part { first, len }, _) => numbers = numbers[first..][..len].to_vec(),
        _ => {}
    }
    Ok(backend.vector(&numbers)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Options, Row};
    use crate::synthetic::{self, Mix};
    use compute::{
        Activations, Cpu, CpuLevel,
        cuda::{Bill, Ledger},
    };

    fn load(backend: &mut dyn Backend, placement: Placement) -> Model {
        let config = synthetic::tiny_moe();
        let weights = synthetic::Weights::new(&config, Mix::Q8_0, 7);
        let options = Options { placement, ..Options::new(backend) };
        Model::load(backend, &config, &weights, options).expect("the model loads")
    }

    fn bill(placement: Placement) -> Bill {
        let mut ledger = Ledger::new(256);
        load(&mut ledger, placement);
        ledger.bill()
    }

    #[test]
    fn what_is_counted_is_what_is_placed() {
        let config = synthetic::tiny_moe();
        let all = bill(Placement::ON_DEVICE);
        assert_eq!(Placement::step(&config, 0), Placement::ON_DEVICE);
        assert_eq!((all.host_weights, all.host_experts), (0, 0));
        let mut last = all.weights + 1;
        for step in 0..=Placement::steps(&config) {
            let some = bill(Placement::step(&config, step));
            assert_eq!(some.weights + some.host_weights, all.weights, "nothing is lost");
            assert_eq!(some.buffers, all.buffers);
            assert!(some.weights < last, "every step lets something go");
            let only_experts = some.host_experts == some.host_weights;
            assert_eq!(only_experts, step <= 1, "experts go first");
            // A prompt brings over what is no expert's.
            assert_eq!(some.scratch() > all.scratch(), step > 1);
            last = some.weights;
        }
    }

    #[test]
    fn copies_of_experts_take_what_they_may_and_no_more() {
        let config = synthetic::tiny_moe();
        let on_host = Placement::step(&config, 1);
        let experts = bill(on_host).host_experts;
        for share in [0, experts / 100, experts / 3, experts, 2 * experts] {
            let some = bill(Placement { copies: share, ..on_host });
            assert!(some.copies <= share && some.copies <= experts, "{} of {share}", some.copies);
            // Whole experts of every layer.
            assert!(share.min(experts) - some.copies < experts / 16, "{} of {share}", some.copies);
            assert_eq!(some.host_experts, experts, "copies are no others");
        }
    }

    #[test]
    fn to_the_processor_all_places_are_one() {
        let logits = |placement| {
            let mut cpu = Cpu::new(CpuLevel::detect(), 1, Activations::Int8);
            let mut model = load(&mut cpu, placement);
            let (rows, sequence) =
                ([Row { token: 5, sequence: 0, parent: None }], model.sequence());
            model.forward(&mut cpu, &rows, &[0], &[&sequence]).expect("a pass");
            model.logits(&cpu, 0).expect("logits").into_owned()
        };
        let found = logits(Placement::ON_DEVICE);
        assert!(found.iter().all(|logit| logit.is_finite()));
        let config = synthetic::tiny_moe();
        assert_eq!(found, logits(Placement::step(&config, Placement::steps(&config))));
    }
}
