//! Rows of the embedding.

use crate::{
    Error,
    cuda::{
        args::{EmbedArgs, kernel},
        driver::Shape,
        run::Run,
        weights::Form,
    },
    plan::{Buf, MatrixId},
};

pub(crate) fn launch(run: &Run<'_>, table: MatrixId, out: Buf) -> Result<(), Error> {
    let table = run.weights.matrix(table);
    let Form::Table(ty) = table.form else { panic!("rows are looked up in a table") };
    let row_bytes = ty.bytes_for(table.cols).expect("rows are whole blocks");
    assert!(table.cols.is_multiple_of(4) && run.cols(out) == table.cols, "rows of {}", table.cols);
    let args = EmbedArgs {
        pass: run.pass,
        table: table.address(),
        // The kernel knows types by their number in a GGUF file.
        ty: ty.ggml_id() as i32,
        cols: table.cols as i32,
        row_bytes: row_bytes as i32,
        out: run.buffer(out),
    };
    let grid = [run.rows() as u32, table.cols.div_ceil(1024) as u32, 1];
    run.launch(kernel::EMBED, Shape::new(grid, 256), &args)
}

#[cfg(test)]
mod tests {
    use crate::cuda::kernels::HEADERS;
    use formats::blocks::iq3::IQ3_GRID;

    #[test]
    fn the_kernel_has_the_table_of_the_format() {
        let (_, source) = HEADERS.iter().find(|(name, _)| *name == "iq3.cuh").expect("a header");
        let (_, numbers) = source.split_once("= {").expect("a table");
        let (numbers, _) = numbers.split_once("};").expect("its end");
        let numbers = numbers.split(',').map(str::trim).filter(|n| !n.is_empty());
        let grid: Vec<u16> = numbers.map(|n| u16::from_str_radix(n, 8).expect("octal")).collect();
        assert_eq!(grid, IQ3_GRID);
    }
}
