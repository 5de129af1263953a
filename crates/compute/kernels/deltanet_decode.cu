// Gated DeltaNet in one launch (deltanet.cuh has the whole): convolution, products, deltas,
// outputs, norm and gate of passes of up to TEXT_ROWS rows that fold no states. What a block
// holds: deltanet_block.cuh; what it does with a group of rows: deltanet_gather.cuh, then
// deltanet_solve.cuh.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, clusters of dim / 32: the slices of a head.
// Dynamic shared memory 656 most_rows + 92352: keys [most_rows][KEY_STRIDE] and deltas
// [most_rows][SLICE] of the sequence's rows, then DecodeShared; keys are read beyond the last row,
// so something must follow. The blocks of a cluster share, row by row, the convolution of query and
// key (of few rows each takes all) and the products of keys, and each other's sums of squares. What
// they send counts down a signal of the block it goes to, so that nobody waits for more than that:
// a barrier of the cluster that orders memory would wait for the block's stores to reach the
// device's. Numbers and orders are those of the other forms.
//
// Without folded states a sequence has at most two steps: rows that start from an anchor, and rows
// that start from the next one, 32 tokens on. A group may have rows of both; the tape is numbered
// from the first anchor on.
//
// Floor: states, 0.7 us a layer of the 27B, and 0.5 us of FFMA a block of sixteen rows. Limited by
// latency, one after the other: the launch; the pass, then what was committed (both before the wait
// for the inputs); the inputs; heads; products and states; sums; the rows of a group, which need
// each other's deltas; outputs; the norm, which needs all of the cluster. So nothing in between may
// load, wait for a store, or branch from one load to the next. Two blocks share a multiprocessor,
// with 128 registers a thread; on cards with 100 KB of shared memory there is one.
#include "deltanet_gather.cuh"
#include "deltanet_solve.cuh"

// Blocks a multiprocessor has room for: one where it has 100 KB of shared memory.
#if __CUDA_ARCH__ >= 1200
constexpr int RESIDENT = 1;
#else
constexpr int RESIDENT = 2;
#endif

// What a block knows of its sequence before the first group.
struct Start {
  bool alone;  // a sequence that is alone has everything from the beginning on: no load waits then
  int rows, first_row, position, source, split, committed;
  const float *older, *anchor;

  __device__ __forceinline__ explicit Start(const Pass& pass) {
    const Sequence& sequence = pass.sequences[blockIdx.z];
    alone = pass.sequence_count == 1;
    const Step& step = pass.steps[alone ? 0 : sequence.first_step];
    rows = alone ? pass.rows : sequence.rows;
    first_row = alone || rows == 0 ? 0 : step.first_row;
    position = rows ? step.position : 0, source = rows ? step.source : 0;
    split = rows && sequence.steps > 1 ? step.rows : rows, committed = sequence.committed;
    older = sequence.older, anchor = sequence.anchor;
  }
};

// Brings the lists of the pass and the addresses of states into shared memory.
__device__ __forceinline__ void gather_lists(const DecodeArgs& args, DecodeShared& shared,
                                             const Block& b, const Start& start) {
  const DeltaNetArgs& a = args.net;
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if ((int)threadIdx.x < start.rows) {
    const int row = a.pass.step_rows[start.first_row + threadIdx.x];
    shared.rows[threadIdx.x] = row;
    shared.number[row] = threadIdx.x;
  }
  if ((int)threadIdx.x < a.pass.rows) shared.counts[threadIdx.x] = a.pass.recent_count[threadIdx.x];
  if ((int)threadIdx.x / TAPS < a.pass.rows) {
    const int row = threadIdx.x / TAPS, j = threadIdx.x % TAPS;
    const int tap = j < TAPS - 1 ? a.pass.taps[row * (TAPS - 1) + j] : row;
    shared.inputs[row][j] = input_of(args, b.tape, tap);
  }
#pragma unroll 2
  for (int n = warp; n < start.rows; n += WARPS) {
    const int row = start.alone ? n : a.pass.step_rows[start.first_row + n];
#pragma unroll
    for (int j = lane; j < RECENT; j += 32) {
      shared.recent[row][j] = a.pass.recent[row * TAPE_TOKENS + j];
    }
  }
  if (threadIdx.x == 0) {
    const size_t at = ((size_t)a.layer * l.value_heads + b.head) * l.dim * l.dim + b.column;
    const float* first =
        start.source == 2 ? start.anchor : start.source == 1 ? start.older : nullptr;
    shared.position = start.position;
    shared.states[0] = first ? first + at : nullptr;
    shared.states[1] = start.anchor ? start.anchor + at : nullptr;
  }
  // The convolution's inputs on the tape are only brought nearer.
  if (threadIdx.x < 12 * (TAPS - 1)) {
    const int kind = threadIdx.x / (4 * (TAPS - 1)), piece = threadIdx.x % 4 * SLICE;
    const int at = start.committed - 1 - (int)threadIdx.x / 4 % (TAPS - 1);
    const int channel = kind < 2 ? (kind * l.key_heads + b.key_head) * l.dim
                                 : (2 * l.key_heads + b.head) * l.dim;
    if (at >= 0 && piece < l.dim) {
      prefetch_line(input_of(args, b.tape, -2 - at) + channel + piece);
    }
  }
}

// The convolution's weights: of a key or query head, four columns a lane, and of the values, one.
struct ConvolutionWeights {
  float4 head[TAPS];
  float value[TAPS];

  __device__ __forceinline__ void load(const DecodeArgs& args, const Block& b, int value_channel) {
    const RecurrentLayout& l = args.net.layout;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
      const float* weight = args.weight + (size_t)j * l.channels;
      const int channel = ((warp & 1) * l.key_heads + b.key_head) * l.dim + 4 * lane;
      head[j] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (4 * lane < l.dim) head[j] = *(const float4*)(weight + channel);
      value[j] = weight[value_channel];
    }
  }
};

// Says how many bytes of a group will come from the cluster.
__device__ __forceinline__ void expect_group(DecodeShared& shared, const Group& g, int group,
                                             bool shares) {
  const int lane = threadIdx.x & 31, slices = gridDim.x;
  const u32 bytes =
      lane < g.count ? (shared.counts[shared.rows[g.local + lane]] + 1) * sizeof(float2) : 0;
  const u32 total = __reduce_add_sync(ALL_LANES, bytes);
  if (lane == 0) {
    if (shares) expect(&shared.signals[HEADS], g.count * 2 * MAX_DIM * sizeof(float));
    expect(&shared.signals[PRODUCTS], total);
    expect(&shared.signals[SQUARES + group % 2], g.count * slices * 4 * sizeof(float));
  }
}

// What a warp has of a group: two rows, a column a lane; and, the last warp, the gates of all, a
// row a lane.
struct OwnRows {
  float value[2][TAPS], gate[2];
  float alpha, beta, dt_bias, gate_factor;
  int gated;  // where a lane's alpha and beta lie, or -1

  __device__ __forceinline__ void load(const DeltaNetArgs& a, const DecodeShared& shared,
                                       const Block& b, const Group& g, int value_channel) {
    const RecurrentLayout& l = a.layout;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    alpha = 0.f, beta = 0.f;
    gated = warp == WARPS - 1 && lane < g.count
                ? shared.rows[g.local + lane] * l.value_heads + b.head : -1;
    if (gated >= 0) {
      alpha = a.alpha[gated];
      beta = a.beta[gated];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      gate[r] = 0.f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) value[r][j] = 0.f;
      if (n < g.count) {
        const int row = shared.rows[g.local + n];
        gate[r] = a.z[(row * l.value_heads + b.head) * l.dim + b.column + lane];
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
          const float* from = shared.inputs[row][j];
          if (from) value[r][j] = from[value_channel];
        }
      }
    }
  }

  // Values and gates, as the group needs them.
  __device__ __forceinline__ void convolve(const DeltaNetArgs& a, DecodeShared& shared,
                                           const Group& g, const float (&weight)[TAPS]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = warp + r * WARPS;
      if (n >= g.count) continue;
      float y = 0.f;
#pragma unroll
      for (int j = 0; j < TAPS; j++) y = __fmaf_rn(value[r][j], weight[j], y);
      shared.sums[n][lane].y = silu(y);
      gate[r] = gate[r] * sigmoid(gate[r]);
    }
    if (gated >= 0) {
      const float log_decay = gate_of(alpha, dt_bias, gate_factor);
      shared.gates[g.local + lane] = log_decay;
      shared.beta[lane] = sigmoid(beta);
      if (blockIdx.x == 0) a.gates[gated] = log_decay;
    }
  }
};

// What the state and the rows outside the group give, a column a lane: [row][key, query].
__device__ __forceinline__ void add_outside(float (&sums)[2][2], DecodeShared& shared,
                                            const float* deltas, Weigher& weigher, const Group& g,
                                            int dim) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  // Only the first anchor may be before the text, where the state is zero.
  const bool has_state = shared.states[g.split == 0] != nullptr;
  if (has_state || g.split < g.count) add_states(sums, shared, g, dim, has_state ? 0 : g.split);
  if (warp + WARPS >= g.count) {
    add_tape<true, false>(sums, shared, warp < g.count ? g.on_tape(warp) : 0, g.before(warp));
  } else if (g.before(warp) == g.before(warp + WARPS)) {
    add_tape<true, true>(sums, shared, g.on_tape(warp), g.before(warp));
  } else {
    add_tape<true, false>(sums, shared, g.on_tape(warp), g.before(warp));
    add_tape<false, true>(sums, shared, g.on_tape(warp + WARPS), g.before(warp + WARPS));
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n >= g.count) continue;
    add_groups(sums[r], shared, deltas, weigher, n, r, g.on_tape(n));
    shared.sums[n][lane].x = sums[r][0];
  }
}

// Outputs before the norm; their squares go to all blocks of the cluster, deltas to memory.
__device__ __forceinline__ void send_outputs(float (&out)[2], const DeltaNetArgs& a,
                                             DecodeShared& shared, const float* group_deltas,
                                             const Block& b, const Group& g, int group,
                                             const float (&sums)[2][2]) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slices = gridDim.x;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n >= g.count) continue;
    out[r] = r == 0 ? output_of<HALF>(shared, group_deltas, n, sums[r][1])
                    : output_of<GROUP>(shared, group_deltas, n, sums[r][1]);
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float x = __shfl_sync(ALL_LANES, out[r], (lane & 24) + j);
      squares = __fmaf_rn(x, x, squares);
    }
    float* const to = &shared.squares[group % 2][n][4 * blockIdx.x + lane / 8];
    if ((lane & 7) < slices) send(to, lane & 7, squares, &shared.signals[SQUARES + group % 2]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n >= g.count) continue;
    const int row = shared.rows[g.local + n] * l.value_heads + b.head;
    const size_t at = row * l.dim + b.column + lane;
    a.deltas[at] = group_deltas[n * SLICE + lane];
  }
}

// Norm and gate, when the squares of all blocks are there; four lanes write a row, eight columns
// each.
__device__ __forceinline__ void write_outputs(const float (&out)[2], const DeltaNetArgs& a,
                                              DecodeShared& shared, const Block& b, const Group& g,
                                              int group, float norm, const float (&gate)[2]) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slices = gridDim.x;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n >= g.count) continue;
    float squares = lane % PARTS < 4 * slices ? shared.squares[group % 2][n][lane % PARTS] : 0.f;
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
    }
    const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
    ((float*)shared.sums[n])[lane] = out[r] * factor * norm * gate[r];
  }
  __syncwarp();
  const int n = warp + lane / 4 * WARPS;
  if (lane < 8 && n < g.count) {
    float y[8];
    *(float4*)y = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3));
    *(float4*)(y + 4) = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3) + 4);
    store8(a.out, shared.rows[g.local + n], b.head * l.dim + b.column + 8 * (lane & 3), y);
  }
  __syncwarp();
}

KERNEL(deltanet_decode, 234, DecodeArgs, FOLD_THREADS, RESIDENT) {
  launch_dependents();
  const DeltaNetArgs& net = a.net;
  const RecurrentLayout& l = net.layout;
  float* const keys = (float*)shared_bytes;
  float* const deltas = keys + a.most_rows * KEY_STRIDE;
  DecodeShared& shared = *(DecodeShared*)(deltas + a.most_rows * SLICE);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, slices = gridDim.x;
  Block b = this_block(net);
  const Start start(net.pass);
  if (threadIdx.x == 0) make_signals(shared.signals, SIGNALS);
  cluster_arrive();

  // The pass, what was committed, and weights were there before the first kernel began: a copy, for
  // which a kernel waits however it is launched, lies between the last commit and the pass.
  Group g;
  g.tape = start.rows ? max(0, start.committed - start.position) : 0;
  g.local = 0;
  gather_lists(a, shared, b, start);
  __syncthreads();
  cluster_wait();

  for (int group = 0; g.local < start.rows; group++, g.local += GROUP) {
    const int count = g.count = min(GROUP, start.rows - g.local);
    g.split = min(max(start.split - g.local, 0), count);
    const bool shares = count > ALONE && slices > 1;
    b.renew();

    // Loads first.
    load_committed(shared, l, b, g);
    const int value_channel = (2 * l.key_heads + b.head) * l.dim + b.column + lane;
    ConvolutionWeights weights;
    weights.load(a, b, value_channel);
    OwnRows own;
    own.dt_bias = net.dt_bias[b.head], own.gate_factor = net.decay[b.head];
    if (warp == 0) expect_group(shared, g, group, shares);
    if (group == 0) wait_for_inputs();
    own.load(net, shared, b, g, value_channel);
    convolve_heads(a, shared, keys, b, g, weights.head);
    own.convolve(net, shared, g, weights.value);
    wait_for_copies();
    __syncthreads();
    if (shares) wait_for(&shared.signals[HEADS], group);  // groups before had more rows

    share_products(net, shared, keys, g);
    through_states(shared, keys, g, l.dim);
    Weigher weigher;
    weigher.decays(shared, g);
    wait_for(&shared.signals[PRODUCTS], group);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (warp + r * WARPS < count) weigher.weigh(shared, g, warp + r * WARPS, r);
    __syncthreads();

    float sums[2][2] = {};
    add_outside(sums, shared, deltas, weigher, g, l.dim);
    __syncthreads();

    float* const group_deltas = deltas + g.local * SLICE;
    if (warp == 0) solve_group(group_deltas, shared, count);
    __syncthreads();

    float out[2] = {};
    send_outputs(out, net, shared, group_deltas, b, g, group, sums);
    const float norm = net.norm[b.column + lane];
    wait_for(&shared.signals[SQUARES + group % 2], group / 2);
    write_outputs(out, net, shared, b, g, group, norm, own.gate);
  }
}
