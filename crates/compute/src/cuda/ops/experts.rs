//! Experts. The second half of a block of a mixture, from its norm to the sum of the experts'
//! outputs, is one op of a plan and three launches in a decoding pass. Products with experts'
//! matrices that come alone, and those of a prompt, are launches of their own. No launch knows
//! which experts are visited, or how often: blocks find their work on the device.

use super::prompt_matmul;
use crate::{
    Error,
    cuda::{
        args::{
            ARRANGED_BYTES, Activation, Address, ExpertsDownArgs, ExpertsMatrix, ExpertsRouteArgs,
            ExpertsUpArgs, TEXT_ROWS, kernel,
        },
        driver::Shape,
        pack::TILE_COLS,
        run::Run,
    },
    plan::{Buf, Experts, MatrixId, Product, Routing, Rows},
};

/// Visits multiplied together.
const GROUP: usize = 8;
/// Warps of a block of `experts_up`.
const UP_WARPS: usize = 8;
/// Rows of tiles of gate and up that a block of `experts_up` keeps ahead, and tiles a warp of
/// `experts_down`, at most.
const UP_STAGES: usize = 2;
const DOWN_SLOTS: usize = 3;
/// Bytes of `down` that `experts_up` brings into L2 at its end: what memory has time for until
/// `experts_down` asks.
const AHEAD: usize = 16 << 20;
// Bytes of shared memory, as the kernels name them.
const ROUTE_WARP: usize = GROUP * 264 * 2 + GROUP * 4 + 8;
const RESULT: usize = 20 * 4;
pub(crate) const VISIT_LIST: usize = 6160;
const VISITS: usize = VISIT_LIST + 7200;
const UP_FIXED: usize = 2 * 2 * UP_WARPS * GROUP * RESULT + VISITS + 2 * 16 + 4 * 16;
const _: () = assert!(UP_FIXED == 33936);

/// Whether the kernels take an op in this pass: prompts have others, and shapes must fit.
pub(crate) fn is_fused(run: &Run<'_>, e: &Experts) -> bool {
    let (cols, width, shared_width) =
        (run.cols(e.x), run.cols(e.experts.act), run.cols(e.shared.act));
    let whole = [cols, width, shared_width].iter().all(|cols| cols.is_multiple_of(TILE_COLS));
    let (tiles, room) = (|id: MatrixId| tile_bytes(run, &[id]), run.limits.shared as usize);
    let [[gate, up, down], [shared_gate, shared_up, shared_down]] =
        [e.experts, e.shared].map(|f| f.weights.map(tiles));
    let stage = (gate + up).max(shared_gate + shared_up);
    !run.is_prompt()
        && whole
        // Routers are of usual formats; `experts_route` has no others.
        && !has_others(run, &[e.router, e.shared_router])
        && cols <= 4096
        && e.routing.experts <= 512
        && e.routing.top_k <= 16
        && route_shared(run, &[e.router, e.shared_router], cols) + 128 <= room
        && UP_FIXED + cols / TILE_COLS * stage <= room
        && down_fixed(TEXT_ROWS, e.routing.top_k) + 8 * (down.max(shared_down) + 8) <= room
}

fn tile_bytes(run: &Run<'_>, matrices: &[MatrixId]) -> usize {
    let bytes = |m: &MatrixId| run.weights.matrix(*m).tiles().tile_bytes();
    matrices.iter().map(bytes).max().expect("a matrix")
}

/// Whether a matrix has a format that the usual kernels do not read.
fn has_others(run: &Run<'_>, matrices: &[MatrixId]) -> bool {
    matrices.iter().any(|m| run.weights.matrix(*m).tiles().is_other())
}

/// Bytes of shared memory of `experts_down` beside its rings.
fn down_fixed(rows: usize, top_k: usize) -> usize {
    VISIT_LIST + rows * (top_k + 1) * (RESULT + 4)
}

fn route_shared(run: &Run<'_>, matrices: &[MatrixId], cols: usize) -> usize {
    cols / TILE_COLS * (tile_bytes(run, matrices) + ROUTE_WARP)
}

/// Rows of a pass that a launch takes: lists of visits have room for `TEXT_ROWS` of them.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    rows: usize,
}

impl Part {
    /// Where the rows of a buffer begin, `each` of which belong to one of the pass.
    fn buffer(self, run: &Run<'_>, buf: Buf, each: usize) -> Address {
        run.buffer(buf) + (self.first * each * run.cols(buf) * 4) as u64
    }

    fn activation(self, run: &Run<'_>, buf: Buf, each: usize) -> Activation {
        let all = run.activation(buf);
        let (first, ld) = ((self.first * each) as u64, all.ld as u64);
        let arranged = first / 8 * ARRANGED_BYTES as u64;
        Activation {
            x: all.x + first * ld * 2,
            sums: all.sums + first * ld / 16 * 2,
            numbers: all.numbers + first * all.cols as u64 * 4,
            arranged: if all.arranged == 0 { 0 } else { all.arranged + arranged },
            ..all
        }
    }
}

/// Launches an op that `is_fused`.
pub(crate) fn launch_fused(run: &Run<'_>, experts: &Experts) -> Result<(), Error> {
    for first in (0..run.rows()).step_by(TEXT_ROWS) {
        let part = Part { first, rows: TEXT_ROWS.min(run.rows() - first) };
        launch_route(run, experts, part)?;
        launch_up(run, experts, part)?;
        launch_down(run, experts, part)?;
    }
    Ok(())
}

fn matrix(run: &Run<'_>, id: MatrixId, experts: usize, [rows, cols]: [usize; 2]) -> ExpertsMatrix {
    let m = run.weights.matrix(id);
    assert!(
        (m.experts, m.rows, m.cols) == (experts, rows, cols),
        "{} of {} x {} for {experts} of {rows} x {cols}",
        m.experts,
        m.rows,
        m.cols
    );
    let (weight, copies) = (m.address(), m.copies());
    ExpertsMatrix { weight, copies, rows: rows as i32, format: m.tiles() as i32 }
}

fn launch_route(run: &Run<'_>, e: &Experts, part: Part) -> Result<(), Error> {
    let (cols, experts, rows) = (run.cols(e.x), e.routing.experts, part.rows);
    // Every block of some rows makes their norm again, so few rows a block, but two blocks a
    // multiprocessor at most.
    let tiles = experts.div_ceil(16) + 1;
    let block_rows = (rows * tiles).div_ceil(2 * run.limits.multiprocessors as usize).min(GROUP);
    let args = ExpertsRouteArgs {
        x: part.buffer(run, e.x, 1),
        add: e.add.map_or(0, |add| part.buffer(run, add, 1)),
        norm: run.vector(e.norm),
        out: part.activation(run, e.normed, 1),
        router: matrix(run, e.router, 1, [experts, cols]),
        shared: matrix(run, e.shared_router, 1, [1, cols]),
        logits: part.buffer(run, e.logits, 1),
        shared_logits: part.buffer(run, e.shared_logits, 1),
        rows: rows as i32,
        block_rows: block_rows as i32,
        eps: e.eps,
        pad: 0,
    };
    let shape = Shape {
        grid: [tiles as u32, rows.div_ceil(block_rows) as u32, 1],
        block: cols as u32 / 8,
        shared: route_shared(run, &[e.router, e.shared_router], cols) as u32,
        cluster: 1,
    };
    run.launch(kernel::EXPERTS_ROUTE, shape, &args)
}

fn launch_up(run: &Run<'_>, e: &Experts, part: Part) -> Result<(), Error> {
    let (cols, width, shared_width) =
        (run.cols(e.x), run.cols(e.experts.act), run.cols(e.shared.act));
    let Routing { experts, top_k, ids, weights, .. } = e.routing;
    let tiles = |m: &[MatrixId; 3]| tile_bytes(run, &m[..1]) + tile_bytes(run, &m[1..2]);
    let stage = cols / TILE_COLS * tiles(&e.experts.weights).max(tiles(&e.shared.weights));
    // Two blocks a multiprocessor where they have room. One row is little work, and one block
    // leaves room for the next launch beside it.
    let half = run.limits.shared as usize / 2 - 1024;
    let pair = part.rows > 1 && half >= UP_FIXED + stage;
    let shared = if pair { half } else { run.limits.shared as usize };
    let stages = (shared.saturating_sub(UP_FIXED) / stage).min(UP_STAGES);
    // Where blocks do not come in pairs `experts_down` has room beside this kernel and asks by
    // itself.
    let down = cols / 16 * (width / TILE_COLS) * tile_bytes(run, &e.experts.weights[2..]);
    let ahead = if pair { AHEAD / down } else { 0 };
    let args = ExpertsUpArgs {
        x: part.activation(run, e.normed, 1),
        logits: part.buffer(run, e.logits, 1),
        places: run.weights.matrix(e.experts.weights[0]).places(),
        counts: run.weights.matrix(e.experts.weights[0]).counts(),
        ids: part.buffer(run, ids, 1),
        weights: part.buffer(run, weights, 1),
        list: run.scratch.visits.address(),
        gate: matrix(run, e.experts.weights[0], experts, [width, cols]),
        up: matrix(run, e.experts.weights[1], experts, [width, cols]),
        shared_gate: matrix(run, e.shared.weights[0], 1, [shared_width, cols]),
        shared_up: matrix(run, e.shared.weights[1], 1, [shared_width, cols]),
        down: matrix(run, e.experts.weights[2], experts, [cols, width]),
        act: part.activation(run, e.experts.act, top_k),
        shared_act: part.activation(run, e.shared.act, 1),
        rows: part.rows as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        stages: stages as i32,
        stage_bytes: stage as i32,
        scale: e.scale,
        ahead: ahead as i32,
        pad: 0,
    };
    let shape = Shape {
        grid: [run.limits.multiprocessors * if pair { 2 } else { 1 }, 1, 1],
        block: 32 * UP_WARPS as u32,
        shared: (stages * stage + UP_FIXED) as u32,
        cluster: 1,
    };
    let ([gate, up, _], [shared_gate, shared_up, _]) = (e.experts.weights, e.shared.weights);
    let kernel = match has_others(run, &[gate, up, shared_gate, shared_up]) {
        true => kernel::EXPERTS_UP_OTHERS,
        false => kernel::EXPERTS_UP,
    };
    run.launch(kernel, shape, &args)
}

fn launch_down(run: &Run<'_>, e: &Experts, part: Part) -> Result<(), Error> {
    let (cols, width, shared_width) =
        (run.cols(e.x), run.cols(e.experts.act), run.cols(e.shared.act));
    let Routing { experts, top_k, weights, .. } = e.routing;
    let (rows, room) = (part.rows, run.limits.shared as usize);
    let slot_bytes = tile_bytes(run, &[e.experts.weights[2], e.shared.weights[2]]);
    let fixed = down_fixed(rows, top_k);
    let slots = |warps: usize| (room - fixed) / (warps * (slot_bytes + 8));
    // One row has a tile or two for each of 8 warps; more would have no room beside `experts_up`,
    // where this kernel begins.
    let warps = if rows > 1 && slots(16) >= 2 { 16 } else { 8 };
    let slots = slots(warps).min(DOWN_SLOTS);
    let args = ExpertsDownArgs {
        act: part.activation(run, e.experts.act, top_k),
        shared_act: part.activation(run, e.shared.act, 1),
        list: run.scratch.visits.address(),
        weights: part.buffer(run, weights, 1),
        shared_logits: part.buffer(run, e.shared_logits, 1),
        down: matrix(run, e.experts.weights[2], experts, [cols, width]),
        shared_down: matrix(run, e.shared.weights[2], 1, [cols, shared_width]),
        x: part.buffer(run, e.x, 1),
        add: e.add.map_or(0, |add| part.buffer(run, add, 1)),
        out: part.buffer(run, e.out, 1),
        rows: rows as i32,
        top_k: top_k as i32,
        slots: slots as i32,
        slot_bytes: slot_bytes as i32,
    };
    let shape = Shape {
        grid: [cols as u32 / 16, 1, 1],
        block: 32 * warps as u32,
        shared: (warps * slots * (slot_bytes + 8) + fixed) as u32,
        cluster: 1,
    };
    let kernel = match has_others(run, &[e.experts.weights[2], e.shared.weights[2]]) {
        true => kernel::EXPERTS_DOWN_OTHERS,
        false => kernel::EXPERTS_DOWN,
    };
    run.launch(kernel, shape, &args)
}

/// Launches the products that go to experts or come from them; others are not looked at.
pub(crate) fn launch(run: &Run<'_>, products: &[Product]) -> Result<(), Error> {
    let theirs = |p: &&Product| matches!(p.rows, Rows::ToExperts(_) | Rows::FromExperts(_));
    for group in prompt_matmul::groups(products.iter().filter(theirs).copied()) {
        let (routing, divisor) = match group[0].rows {
            Rows::ToExperts(routing) => (routing, routing.top_k),
            Rows::FromExperts(routing) => (routing, 1),
            Rows::All | Rows::Chosen => unreachable!("filtered"),
        };
        for p in &group {
            assert!(run.weights.matrix(p.weight).experts == routing.experts, "{p:?}");
        }
        prompt_matmul::launch_experts(run, &group, &routing, divisor)?;
    }
    Ok(())
}
