//! How a group is cut into slices, shares and warps, and what a launch of it has in shared memory.

use super::{FULL_ROWS, Geometry, Group, LEAST_HELD, MAX_CLUSTER, MOST_ROWS, Room};
use crate::cuda::driver::DeviceInfo;

/// Clusters of so many blocks that run at once, one block a multiprocessor. They lie within groups
/// of multiprocessors whose sizes the device does not tell; for 132 multiprocessors the numbers are
/// measured.
fn clusters(limits: &DeviceInfo, blocks: usize) -> usize {
    let all = limits.multiprocessors as usize;
    match (all, blocks) {
        (_, 1 | 2) => all / blocks,
        (132, 3) => 39,
        (132, 4) => 30,
        (132, 5) => 22,
        (132, 6) => 17,
        (132, 7 | 8) => 15,
        _ => all * 7 / 8 / blocks,
    }
}

/// Rows that a launch of so many makes room for in shared memory.
fn padded_rows(rows: usize) -> usize {
    if rows <= 8 { rows } else { rows.next_multiple_of(8) }
}

/// Bytes of shared memory of a block, as the head of `kernels/matmul.cuh` states them.
fn shared_bytes(g: &Geometry, rows: usize, room: &Room) -> usize {
    let result = rows * 80;
    let parts = if g.slices > 1 && !room.workspace { g.slices * g.owned * result } else { 0 };
    let activations = padded_rows(rows) * (room.held * (512 + 32) + 64 + 16);
    let barriers = (g.warps + 1) * 8;
    g.warps * room.stages * g.stage_bytes + activations + g.warps * result + parts + barriers
}

/// Stages, phases and the place of partial sums for a number of rows; none if they do not fit.
pub(super) fn room(group: &Group, g: &Geometry, limits: &DeviceInfo, rows: usize) -> Option<Room> {
    let depth = group.superblocks.div_ceil(g.slices);
    let limit = limits.shared as usize - group.book_bytes();
    let fitting = |stages, workspace, held| {
        let room = Room { stages, workspace, held, shared: 0 };
        let shared = shared_bytes(g, rows, &room);
        (shared <= limit).then_some(Room { shared, ..room })
    };
    if rows > FULL_ROWS {
        // As few phases as there is room for, of the same length.
        let held = |phases| depth.div_ceil(phases);
        let phases = (1..=depth).take_while(|&phases| held(phases) >= LEAST_HELD.min(depth));
        return phases.flat_map(|phases| [false, true].map(|w| (w, phases))).find_map(
            |(workspace, phases)| fitting(2, workspace && g.slices > 1 || g.join, held(phases)),
        );
    }
    // More stages than these do not help, and leave no room for the next kernel's block beside this
    // one: with 16 warps a third cost 0.2 ms of a 27B pass on an H200. The kernel waits for at most
    // 4.
    let most = if g.warps > 8 { 2 } else { 4 };
    let with =
        |workspace: bool| (2..=most).rev().find_map(|stages| fitting(stages, workspace, depth));
    match g.slices {
        1 => with(false),
        _ if g.join => with(true),
        _ => with(false).or_else(|| with(true)),
    }
}

/// What a block takes, in hundredths of a tile's step: its steps, a little more where few warps
/// work on many or many on few, the activations of its `depth` superblocks, and what adding the
/// slices costs. Measured on an H200 with matrices of 0.5 to 100 MB at 1, 8 and 16 rows.
fn estimate(steps: usize, depth: usize, slices: usize, warps: usize, join: bool) -> usize {
    let percent = match (steps, warps) {
        (128.., 16) | (32..128, 12) | (..32, 8) => 100,
        (..32, 12) => 101,
        (32..128, 8) => 102,
        (128.., 12) | (32..128, 16) => 103,
        (..32, 16) => 104,
        (128.., 8) => 110,
        _ => 140,
    };
    let adding = match (slices, join) {
        (1, _) => 0,
        (_, false) => 500 + 50 * slices,
        (_, true) => 4500 + 50 * slices,
    };
    steps * percent + depth * 80 + adding
}

/// The cut that is estimated to take the least time.
pub(super) fn geometry(group: &Group, limits: &DeviceInfo) -> Geometry {
    let (tiles, stage_bytes) = (group.tiles(), group.stage_bytes());
    let limit = limits.shared as usize - group.book_bytes();
    let has_clusters = limits.major >= 9;
    // Devices with 99 KB a block run 8 warps, see THREADS in `kernels/matmul.cuh`.
    let max_warps = if limits.shared > 128 << 10 { 16 } else { 8 };
    for full in [FULL_ROWS, 8, 4, 1] {
        let mut best: Option<(usize, Geometry)> = None;
        for slices in 1..=group.superblocks.min(64) {
            let join = slices > 1 && (!has_clusters || slices > MAX_CLUSTER);
            let at_once = if join {
                limits.multiprocessors as usize / slices
            } else {
                clusters(limits, slices)
            };
            let shares = at_once.clamp(1, tiles);
            let steps = tiles.div_ceil(shares) * group.superblocks.div_ceil(slices);
            for warps in [16, 12, 8, 4].into_iter().filter(|&warps| warps <= max_warps) {
                let g = Geometry {
                    slices,
                    shares,
                    warps,
                    join,
                    stage_bytes,
                    owned: 0,
                    launch_rows: full,
                };
                let held = group.superblocks.div_ceil(slices);
                let room = Room { stages: 2, workspace: true, held, shared: 0 };
                let fits = shared_bytes(&g, full, &room) <= limit;
                let time = estimate(steps, held, slices, warps, join);
                if fits && best.as_ref().is_none_or(|(least, _)| time < *least) {
                    best = Some((time, g));
                }
            }
        }
        if let Some((_, mut g)) = best {
            let share =
                |i: usize| group.first_tile(i + 1, g.shares) - group.first_tile(i, g.shares);
            let largest = (0..g.shares).map(share).max().expect("a share");
            g.owned = largest.div_ceil(g.slices);
            // The accumulators of 32 rows leave registers for 8 warps.
            let most = if max_warps > 8 { 24 } else { MOST_ROWS };
            if room(group, &g, limits, most).is_some() {
                g.launch_rows = most;
            }
            return g;
        }
    }
    panic!(
        "{} superblocks of {stage_bytes}-byte tiles in {} bytes of shared memory",
        group.superblocks, limits.shared
    )
}
