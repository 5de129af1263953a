//! Products of a row's key and query with the keys since its anchor. Value heads share key heads,
//! so these come first, each once.

use super::MAX_PATH;
use crate::{
    cpu::{
        lanes::{Lanes, at_level},
        view::{RawBuffer, View},
    },
    pass::Tap,
    recurrent::RecurrentLayout,
};

/// The keys since a row's anchor, for one key head.
pub(super) struct KeyJob {
    keys: [*const f32; MAX_PATH],
    n: usize,
    key: *const f32,
    query: *const f32,
    dim: usize,
    /// [(key, query), MAX_PATH].
    out: *mut f32,
}

/// Products of a row's key and query with keys, by eights.
#[inline(always)]
unsafe fn multiply_keys<L: Lanes>(job: &KeyJob) {
    unsafe {
        let together = if L::ROOMY { 8 } else { 2 };
        for i in (0..job.n).step_by(8) {
            let mut dots = [L::zero(); 16];
            for first in (0..8).step_by(together) {
                for d in (0..job.dim).step_by(16) {
                    let (key, query) = (L::load(job.key.add(d)), L::load(job.query.add(d)));
                    for j in first..first + together {
                        let k = L::load(job.keys[i + j].add(d));
                        dots[j] = k.fma(key, dots[j]);
                        dots[8 + j] = k.fma(query, dots[8 + j]);
                    }
                }
            }
            let mut sums = [0f32; 16];
            L::sums(dots).store(sums.as_mut_ptr());
            std::ptr::copy_nonoverlapping(sums.as_ptr(), job.out.add(i), 8);
            std::ptr::copy_nonoverlapping(sums.as_ptr().add(8), job.out.add(MAX_PATH + i), 8);
        }
    }
}

at_level!(pub(super) fn multiply_keys_at = multiply_keys(job: &KeyJob));

/// The keys from a row's anchor to the row itself.
pub(super) unsafe fn path_of_keys(
    view: &View<'_>,
    layout: RecurrentLayout,
    layer: usize,
    row: usize,
    head: usize,
    keys: RawBuffer,
    query: *const f32,
    out: *mut f32,
) -> KeyJob {
    let pass = view.pass;
    let tape = pass.sequences[pass.sequence_of[row] as usize].tape.map(|m| m.slice::<f32>());
    let at = head * layout.dim;
    let key = keys.row(row).wrapping_add(at).cast_const();
    let earlier = pass.since_anchor(row);
    let mut path = [key; MAX_PATH];
    for (to, tap) in path.iter_mut().zip(earlier) {
        *to = match tap {
            Tap::Row(r) => keys.row(*r as usize).wrapping_add(at),
            Tap::Committed(p) => {
                let tape = tape.expect("committed rows have a tape");
                tape[layout.key(layer, *p as usize) + at..].as_ptr()
            }
            Tap::Nothing => unreachable!("rows since an anchor exist"),
        };
    }
    KeyJob { keys: path, n: earlier.len() + 1, key, query, dim: layout.dim, out }
}
