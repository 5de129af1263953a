//! How well candidates follow each other.

use crate::{
    Error,
    cuda::{
        args::{Codebook, PairsArgs, kernel},
        driver::Shape,
        run::Run,
        weights::Form,
    },
    plan::{MatrixId, Pairs},
};

/// As in `kernels/pairs.cu`.
const MAX_COUNT: usize = 64;
const THREADS: u32 = 1024;

fn codebook(run: &Run<'_>, id: MatrixId, rank: usize) -> Codebook {
    let table = run.weights.matrix(id);
    let Form::Table(ty) = table.form else { panic!("rows are looked up in a table") };
    assert!(table.cols == rank, "a codebook of {} columns", table.cols);
    let row_bytes = ty.bytes_for(rank).expect("rows are whole blocks") as i32;
    Codebook { rows: table.address(), ty: ty.number() as i32, row_bytes }
}

pub(crate) fn launch(run: &Run<'_>, pairs: &Pairs) -> Result<(), Error> {
    let (count, rank) = (pairs.candidates.count, pairs.rank);
    assert!(count <= MAX_COUNT && rank.is_multiple_of(32), "{count} candidates of rank {rank}");
    let args = PairsArgs {
        pass: run.pass,
        candidates: run.buffer(pairs.candidates.buf),
        gates: pairs.gates.map_or(0, |gates| run.buffer(gates)),
        before: codebook(run, pairs.predecessors, rank),
        after: codebook(run, pairs.successors, rank),
        count: count as i32,
        stride: run.cols(pairs.candidates.buf) as i32,
        rank: rank as i32,
    };
    let grid = [run.pass.chosen_rows as u32, (count * count).div_ceil(256) as u32, 1];
    run.launch(kernel::PAIRS, Shape::new(grid, THREADS), &args)
}
