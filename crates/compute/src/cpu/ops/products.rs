//! The matmul op: tiles of each matrix are shared among the threads.

use crate::{
    cpu::{
        matmul::{Operand, ROW_CHUNK, multiply, operand},
        view::View,
    },
    plan::{MatrixId, Product, Rows},
};
use std::sync::atomic::Ordering;

pub(super) unsafe fn matmul(view: &View<'_>, products: &[Product]) {
    for (i, product) in products.iter().enumerate() {
        // Matrices of few tiles would else all fall to the same thread.
        let mut worker = view.worker;
        worker.index = (worker.index + i) % worker.count;
        let matrix = &view.matrices[product.weight.0 as usize];
        let tiles = worker.share(matrix.tiles());
        let (x, out) = (view.buffer(product.x), view.buffer(product.out));
        assert!(x.cols == matrix.cols && out.cols == matrix.rows, "shapes of a product");
        let operand = operand(matrix.ty, view.int8);
        let input = |row: usize| match operand {
            Operand::Q8 => x.blocks(row).cast::<u8>().cast_const(),
            Operand::F32 => x.row(row).cast::<u8>().cast_const(),
        };
        // (input row, output row) of each of `n` rows, for one expert.
        let run = |expert: usize, n: usize, rows: &dyn Fn(usize) -> (usize, usize)| {
            let mut xs = [std::ptr::null(); ROW_CHUNK];
            let mut outs = [std::ptr::null_mut(); ROW_CHUNK];
            for first in (0..n).step_by(ROW_CHUNK) {
                let count = ROW_CHUNK.min(n - first);
                for r in 0..count {
                    let (from, to) = rows(first + r);
                    xs[r] = input(from);
                    outs[r] = out.row(to);
                }
                // SAFETY: rows of the buffers, of the matrix's widths; these tiles belong to this
                // thread.
                unsafe {
                    multiply(
                        view.level,
                        operand,
                        matrix,
                        expert,
                        tiles.clone(),
                        &xs[..count],
                        &outs[..count],
                    );
                }
            }
        };
        match product.rows {
            Rows::All => run(0, view.rows(), &|r| (r, r)),
            Rows::Chosen => run(0, view.pass.chosen.len(), &|i| (view.pass.chosen[i] as usize, i)),
            Rows::ToExperts(routing) | Rows::FromExperts(routing) => {
                let per_visit = matches!(product.rows, Rows::FromExperts(_));
                let starts = unsafe {
                    std::slice::from_raw_parts(
                        view.buffer(routing.starts).words(0),
                        routing.experts + 1,
                    )
                };
                if view.worker.index == 0 {
                    let visits = starts.windows(2).map(|s| s[1] - s[0]);
                    for (choices, visits) in matrix.choices.iter().zip(visits) {
                        choices.fetch_add(visits, Ordering::Relaxed);
                    }
                }
                read_ahead(view, &matrix.layer, starts);
                let order = view.buffer(routing.order).words(0);
                for expert in 0..routing.experts {
                    let (begin, end) = (starts[expert] as usize, starts[expert + 1] as usize);
                    run(expert, end - begin, &|i| {
                        // SAFETY: `starts` ends at the number of visits.
                        let visit = unsafe { *order.add(begin + i) } as usize;
                        (if per_visit { visit } else { visit / routing.top_k }, visit)
                    });
                }
            }
        }
    }
}

/// Has the system read the experts that rows are sent to, of all matrices of a layer, before the
/// first is multiplied with: a disk is fast where it knows of much at once, and pages that were
/// missed one after the other would each wait for it. Threads share that, for it costs them time.
fn read_ahead(view: &View<'_>, layer: &[MatrixId], starts: &[u32]) {
    let experts = starts.windows(2).zip(0..).filter(|(visits, _)| visits[0] < visits[1]);
    let own = experts.skip(view.worker.index).step_by(view.worker.count);
    for matrix in layer {
        own.clone().for_each(|(_, e)| view.matrices[matrix.0 as usize].read_ahead(e));
    }
}
