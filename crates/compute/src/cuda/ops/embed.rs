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
        ty: ty.number() as i32,
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

    /// The bitmaps in a source, in order.
    fn bitmaps(source: &str) -> Vec<String> {
        let digits = |text: &str| text.len() > 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let tokens = source.split(|c: char| !c.is_ascii_alphanumeric());
        tokens.filter(|token| digits(token)).map(str::to_owned).collect()
    }

    #[test]
    fn the_kernels_have_the_codebooks_of_the_formats() {
        let found = HEADERS.iter().find(|(name, _)| *name == "codebooks.cuh");
        let (_, header) = found.expect("a header");
        let source = include_str!("../../../../formats/src/blocks/codebooks.rs");
        assert!(bitmaps(source).len() > 80);
        assert_eq!(bitmaps(header), bitmaps(source));
    }
}
