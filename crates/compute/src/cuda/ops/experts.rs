//! Experts. The second half of a block of a mixture, from its norm to the sum of the experts'
//! outputs, is seven ops in a plan and three launches in a decoding pass; what an op says about its
//! buffers holds for those that are read afterwards (`x`, the routing's ids and weights, the sum).
//! Products with experts' matrices that come alone, and those of a prompt, are launches of their
//! own. No launch knows which experts are visited, or how often: blocks find their work on the
//! device.

use super::prompt_matmul;
use crate::{
    Error,
    cuda::{
        args::{ExpertsDownArgs, ExpertsMatrix, ExpertsRouteArgs, ExpertsUpArgs, kernel},
        driver::Shape,
        pack::TILE_COLS,
        run::Run,
    },
    plan::{Buf, MatrixId, Op, Product, Routing, Rows, VectorId},
};

/// Ops that `launch_block` takes at once.
pub(crate) const BLOCK_OPS: usize = 7;
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

/// The second half of a block of a mixture.
struct Block {
    x: Buf,
    add: Option<Buf>,
    norm: VectorId,
    eps: f32,
    normed: Buf,
    router: MatrixId,
    shared_router: MatrixId,
    logits: Buf,
    shared_logits: Buf,
    routing: Routing,
    scale: f32,
    /// Gate, up and down.
    experts: [MatrixId; 3],
    shared: [MatrixId; 3],
    act: Buf,
    shared_act: Buf,
    out: Buf,
}

/// The block that `ops` begins with, if its ops belong together and the kernels take its shape.
fn block(run: &Run<'_>, ops: &[Op]) -> Option<Block> {
    let [
        Op::Norm { x, add, weight, eps, out: normed, offset: 0, tap: None },
        Op::Matmul { products: routers },
        Op::Route { logits, routing, scale },
        Op::Matmul { products: ups },
        Op::SwiGlu { parts },
        Op::Matmul { products: downs },
        Op::Combine {
            routing: combined,
            experts: results,
            shared: Some((shared_result, shared_logits)),
            out,
        },
        ..,
    ] = ops
    else {
        return None;
    };
    let (
        [router, shared_router],
        [gate, up, shared_gate, shared_up],
        [down, shared_down],
        [own, of_all],
    ) = (&routers[..], &ups[..], &downs[..], &parts[..])
    else {
        return None;
    };
    let all = |p: &Product, x: Buf, out: Buf| p.x == x && p.out == out && p.rows == Rows::All;
    let (to, from) = (Rows::ToExperts(*routing), Rows::FromExperts(*routing));
    let belong = all(router, *normed, *logits)
        && all(shared_router, *normed, *shared_logits)
        && [gate, up].iter().all(|p| p.x == *normed && p.rows == to)
        && (gate.out, up.out) == (own.0, own.1)
        && all(shared_gate, *normed, of_all.0)
        && all(shared_up, *normed, of_all.1)
        && (down.x, down.out, down.rows) == (own.2, *results, from)
        && all(shared_down, of_all.2, *shared_result)
        && combined == routing;
    let (cols, width, shared_width) = (run.cols(*x), run.cols(own.2), run.cols(of_all.2));
    let whole = [cols, width, shared_width].iter().all(|cols| cols.is_multiple_of(TILE_COLS));
    let (tiles, room) = (|p: &Product| tile_bytes(run, &[p.weight]), run.limits.shared as usize);
    let stage = (tiles(gate) + tiles(up)).max(tiles(shared_gate) + tiles(shared_up));
    let fits = cols <= 4096
        && routing.experts <= 512
        && routing.top_k <= 16
        && route_shared(run, &[router.weight, shared_router.weight], cols) + 128 <= room
        && UP_FIXED + cols / TILE_COLS * stage <= room
        && down_fixed(64, routing.top_k) + 8 * (tiles(down).max(tiles(shared_down)) + 8) <= room;
    (belong && whole && fits).then_some(Block {
        x: *x,
        add: *add,
        norm: *weight,
        eps: *eps,
        normed: *normed,
        router: router.weight,
        shared_router: shared_router.weight,
        logits: *logits,
        shared_logits: *shared_logits,
        routing: *routing,
        scale: *scale,
        experts: [gate.weight, up.weight, down.weight],
        shared: [shared_gate.weight, shared_up.weight, shared_down.weight],
        act: own.2,
        shared_act: of_all.2,
        out: *out,
    })
}

fn tile_bytes(run: &Run<'_>, matrices: &[MatrixId]) -> usize {
    let bytes = |m: &MatrixId| run.weights.matrix(*m).tiles().tile_bytes();
    matrices.iter().map(bytes).max().expect("a matrix")
}

/// Bytes of shared memory of `experts_down` beside its rings.
fn down_fixed(rows: usize, top_k: usize) -> usize {
    VISIT_LIST + rows * (top_k + 1) * (RESULT + 4)
}

fn route_shared(run: &Run<'_>, matrices: &[MatrixId], cols: usize) -> usize {
    cols / TILE_COLS * (tile_bytes(run, matrices) + ROUTE_WARP)
}

/// Launches a block of a decoding pass if `ops` begins with one; says whether it did.
pub(crate) fn launch_block(run: &Run<'_>, ops: &[Op]) -> Result<bool, Error> {
    if run.is_prompt() {
        return Ok(false);
    }
    let Some(block) = block(run, ops) else { return Ok(false) };
    launch_route(run, &block)?;
    launch_up(run, &block)?;
    launch_down(run, &block)?;
    Ok(true)
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
    ExpertsMatrix { weight: m.address(), rows: rows as i32, format: m.tiles() as i32 }
}

fn launch_route(run: &Run<'_>, b: &Block) -> Result<(), Error> {
    let (cols, experts, rows) = (run.cols(b.x), b.routing.experts, run.rows());
    // Every block of some rows makes their norm again, so few rows a block, but two blocks a
    // multiprocessor at most.
    let tiles = experts.div_ceil(16) + 1;
    let block_rows = (rows * tiles).div_ceil(2 * run.limits.multiprocessors as usize).min(GROUP);
    let args = ExpertsRouteArgs {
        x: run.buffer(b.x),
        add: b.add.map_or(0, |add| run.buffer(add)),
        norm: run.vector(b.norm),
        out: run.activation(b.normed),
        router: matrix(run, b.router, 1, [experts, cols]),
        shared: matrix(run, b.shared_router, 1, [1, cols]),
        logits: run.buffer(b.logits),
        shared_logits: run.buffer(b.shared_logits),
        rows: rows as i32,
        block_rows: block_rows as i32,
        eps: b.eps,
        pad: 0,
    };
    let shape = Shape {
        grid: [tiles as u32, rows.div_ceil(block_rows) as u32, 1],
        block: cols as u32 / 8,
        shared: route_shared(run, &[b.router, b.shared_router], cols) as u32,
        cluster: 1,
    };
    run.launch(kernel::EXPERTS_ROUTE, shape, &args)
}

fn launch_up(run: &Run<'_>, b: &Block) -> Result<(), Error> {
    let (cols, width, shared_width) = (run.cols(b.x), run.cols(b.act), run.cols(b.shared_act));
    let Routing { experts, top_k, ids, weights, .. } = b.routing;
    let tiles = |m: &[MatrixId; 3]| tile_bytes(run, &m[..1]) + tile_bytes(run, &m[1..2]);
    let stage = cols / TILE_COLS * tiles(&b.experts).max(tiles(&b.shared));
    // Two blocks a multiprocessor where they have room. One row is little work, and one block
    // leaves room for the next launch beside it.
    let half = run.limits.shared as usize / 2 - 1024;
    let pair = run.rows() > 1 && half >= UP_FIXED + stage;
    let shared = if pair { half } else { run.limits.shared as usize };
    let stages = (shared.saturating_sub(UP_FIXED) / stage).min(UP_STAGES);
    // Where blocks do not come in pairs `experts_down` has room beside this kernel and asks by
    // itself.
    let down = cols / 16 * (width / TILE_COLS) * tile_bytes(run, &b.experts[2..]);
    let ahead = if pair { AHEAD / down } else { 0 };
    let args = ExpertsUpArgs {
        x: run.activation(b.normed),
        logits: run.buffer(b.logits),
        ids: run.buffer(ids),
        weights: run.buffer(weights),
        list: run.scratch.visits.address(),
        gate: matrix(run, b.experts[0], experts, [width, cols]),
        up: matrix(run, b.experts[1], experts, [width, cols]),
        shared_gate: matrix(run, b.shared[0], 1, [shared_width, cols]),
        shared_up: matrix(run, b.shared[1], 1, [shared_width, cols]),
        down: matrix(run, b.experts[2], experts, [cols, width]),
        act: run.activation(b.act),
        shared_act: run.activation(b.shared_act),
        rows: run.rows() as i32,
        experts: experts as i32,
        top_k: top_k as i32,
        stages: stages as i32,
        stage_bytes: stage as i32,
        scale: b.scale,
        ahead: ahead as i32,
        pad: 0,
    };
    let shape = Shape {
        grid: [run.limits.multiprocessors * if pair { 2 } else { 1 }, 1, 1],
        block: 32 * UP_WARPS as u32,
        shared: (stages * stage + UP_FIXED) as u32,
        cluster: 1,
    };
    run.launch(kernel::EXPERTS_UP, shape, &args)
}

fn launch_down(run: &Run<'_>, b: &Block) -> Result<(), Error> {
    let (cols, width, shared_width) = (run.cols(b.x), run.cols(b.act), run.cols(b.shared_act));
    let Routing { experts, top_k, weights, .. } = b.routing;
    let (rows, room) = (run.rows(), run.limits.shared as usize);
    let slot_bytes = tile_bytes(run, &[b.experts[2], b.shared[2]]);
    let fixed = down_fixed(rows, top_k);
    let slots = |warps: usize| (room - fixed) / (warps * (slot_bytes + 8));
    // One row has a tile or two for each of 8 warps; more would have no room beside `experts_up`,
    // where this kernel begins.
    let warps = if rows > 1 && slots(16) >= 2 { 16 } else { 8 };
    let slots = slots(warps).min(DOWN_SLOTS);
    let args = ExpertsDownArgs {
        act: run.activation(b.act),
        shared_act: run.activation(b.shared_act),
        list: run.scratch.visits.address(),
        weights: run.buffer(weights),
        shared_logits: run.buffer(b.shared_logits),
        down: matrix(run, b.experts[2], experts, [cols, width]),
        shared_down: matrix(run, b.shared[2], 1, [cols, shared_width]),
        x: run.buffer(b.x),
        add: b.add.map_or(0, |add| run.buffer(add)),
        out: run.buffer(b.out),
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
    run.launch(kernel::EXPERTS_DOWN, shape, &args)
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
