// Deltas and outputs of Gated DeltaNet (deltanet.cuh has the whole) for any rows: deltas, and o
// into out.numbers.
//
// Grid (dim / 32, value_heads, sequences), 256 threads, dynamic shared memory 78080 bytes (sizeof
// Shared). `states` is scratch for folded anchors, [slots][dim][32] a block in order of the grid.
// After deltanet_products; deltanet_gate comes behind.
//
// Floor: a state of a head is 64 KB: 3.1 MB a layer of the 27B, 0.7 us; limited by FFMA (2 dim^2
// rows a head: 0.9 us at 16 rows) and the latency of the phases of a group.
#include "deltanet.cuh"

struct Shared {
  union {
    FoldShared fold;
    float partial[WARPS][VECTORS][SLICE];  // first each warp's keys of the state
  };
  float x[WARPS][VECTORS][X_STRIDE];       // keys and queries of the group
  float earlier[TAPE_TOKENS][SLICE];       // since the anchor of the group's first row
  float4 weights[WARPS][TAPE_TOKENS];
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];
  float2 sums[GROUP][SLICE];
  float deltas[GROUP][SLICE];
  u32 ancestors[GROUP];
  float beta[GROUP], decay[GROUP], own[GROUP];
  __device__ __forceinline__ u32 ancestors_of(int n) const { return ancestors[n]; }
};
static_assert(sizeof(Shared) == 78080, "as launched");

// The block's own scratch: [dim][SLICE].
__device__ __forceinline__ float* scratch_of(const DeltaNetArgs& a, int slot) {
  const size_t block =
      ((size_t)blockIdx.z * a.layout.value_heads + blockIdx.y) * gridDim.x + blockIdx.x;
  return a.states + (block * a.slots + slot) * a.layout.dim * SLICE;
}

__device__ __forceinline__ StateView state_of(const DeltaNetArgs& a, const Block& b,
                                              const Step& step) {
  if (step.source == 3) return {scratch_of(a, step.slot), SLICE};
  return state_of(a, b, step.source);
}

// The 32 tokens that end with row `last`: its anchor stands right before the first of them.
struct FoldRows {
  Earlier earlier;
  const int* recent;
  int last;
  __device__ __forceinline__ int tap(int i) const {
    return i < ANCHOR_TOKENS - 1 ? recent[i] : last;
  }
  __device__ __forceinline__ const float* key(int i) const { return earlier.key(tap(i)); }
  __device__ __forceinline__ const float* delta(int i) const { return earlier.delta(tap(i)); }
  __device__ __forceinline__ float gate(int i) const { return earlier.gate(tap(i)); }
};

// One row of a group, as its warp holds it.
struct GroupRow {
  int row;                                // -1: none
  int count;                              // rows since its anchor
  // Entries lane and lane + 32 of its list; itself after the last.
  int taps[2];
  // Whether the list of the group's first row has the same there.
  bool same[2];
  float gates[2], to_key[2], to_query[2]; // of the entries
  float beta;
  float value;                            // v, a column a lane
  int outside;                            // entries that lie outside the group; they come first
  // Of these, how many are also on the list of the group's first row.
  int staged;
};

// Issues the loads of a row. `first` is the group's first row.
__device__ __forceinline__ void fetch(GroupRow& r, const DeltaNetArgs& a, const Block& b, int row,
                                      int first) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31;
  r.row = row;
  r.count = -1;
  r.beta = r.value = 0.f;
  r.outside = r.staged = 0;
  r.taps[0] = r.taps[1] = -1;
  r.same[0] = r.same[1] = false;
  if (row < 0) return;
  const float* products =
      a.products + ((size_t)row * l.key_heads + b.key_head) * 2 * TAPE_TOKENS + lane;
  r.count = a.pass.recent_count[row];
  const int first_count = a.pass.recent_count[first];
  r.beta = a.beta[row * l.value_heads + b.head];
  r.value = a.v[((size_t)row * l.value_heads + b.head) * l.dim + b.column + lane];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    // What lies behind the list's end is not used.
    const int tap = a.pass.recent[row * TAPE_TOKENS + i],
              other = a.pass.recent[first * TAPE_TOKENS + i];
    r.to_key[k] = products[32 * k];
    r.to_query[k] = products[TAPE_TOKENS + 32 * k];
    r.taps[k] = i < r.count ? tap : row;
    r.same[k] = i < r.count && i < first_count && tap == other;
    r.gates[k] = i <= r.count ? Earlier{a, b}.gate(r.taps[k]) : 0.f;
  }
}

// Weighs the rows on the list of row n of the group. `lane_row` is the group's row of the lane's
// number; `half` is where the weights go.
__device__ __forceinline__ void weigh(GroupRow& r, Shared& shared, int n, int half, int lane_row) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 ancestors = 0;
  float own = 0.f, total = 0.f;
  if (r.row >= 0) {
    float sums[2];
    sum_list(sums, r.gates);
    total = entry(sums, r.count);
    own = entry(r.to_query, r.count);
    int inside[2] = {-1, -1};
    for (int j = 0; j < n; j++) {
      const int other = __shfl_sync(ALL_LANES, lane_row, j);
      if (lane < r.count && r.taps[0] == other) inside[0] = j;
      if (lane + 32 < r.count && r.taps[1] == other) inside[1] = j;
    }
    r.staged = TAPE_TOKENS;
#pragma unroll
    for (int k = 1; k >= 0; k--) {
      const bool outside = lane + 32 * k < r.count && inside[k] < 0;
      const float2 weight = decayed(r.to_key[k], r.to_query[k], sums[k], total);
      if (inside[k] >= 0) {
        shared.key_weights[n][inside[k]] = weight.x;
        shared.query_weights[n][inside[k]] = weight.y;
        ancestors |= 1u << inside[k];
      }
      if (outside) ((float2*)&shared.weights[warp][lane + 32 * k])[half] = weight;
      r.outside += __popc(__ballot_sync(ALL_LANES, outside));
      const u32 apart = __ballot_sync(ALL_LANES, outside && !r.same[k]);
      if (apart) r.staged = 32 * k + __ffs(apart) - 1;
    }
    r.staged = min(r.staged, r.outside);
    ancestors = __reduce_or_sync(ALL_LANES, ancestors);
  }
  shared.sums[n][lane].y = r.value;
  if (lane == 0) {
    shared.ancestors[n] = ancestors;
    shared.beta[n] = sigmoid(r.beta);
    shared.decay[n] = expf(total);
    shared.own[n] = own;
  }
}

// Up to 16 rows of a step, `begin` rows into it.
__device__ __forceinline__ void run_group(const DeltaNetArgs& a, Block b, Shared& shared,
                                          const Step& step, const StateView& state, int begin) {
  b.renew();
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int rows = min(GROUP, step.rows - begin);
  const int lane_row = lane < rows ? a.pass.step_rows[step.first_row + begin + lane] : -1;
  const bool multiplies = state.at && warp * WARP_KEYS < l.dim;

  // Loads first: the warp's keys of the state and columns of the vectors, deltas of the rows since
  // the first row's anchor, and what the warp's two rows are weighed with.
  const int first = __shfl_sync(ALL_LANES, lane_row, 0);
  if (multiplies) {
    copy_state(shared.partial[warp], state);
    copy_vectors(shared.x[warp], a, b, [&](int n) { return __shfl_sync(ALL_LANES, lane_row, n); });
  }
  GroupRow r[2];
  fetch(r[0], a, b, __shfl_sync(ALL_LANES, lane_row, warp), first);
  fetch(r[1], a, b, __shfl_sync(ALL_LANES, lane_row, warp + WARPS), first);
  const int count = a.pass.recent_count[first];
  for (int i = threadIdx.x / 8; i < count; i += FOLD_THREADS / 8) {
    const float* delta = Earlier{a, b}.delta(a.pass.recent[first * TAPE_TOKENS + i]);
    copy16(&shared.earlier[i][tile_column()], delta + tile_column());
  }
  weigh(r[0], shared, warp, 0, lane_row);
  weigh(r[1], shared, warp + WARPS, 1, lane_row);
  wait_for_copies();
  __syncwarp();
  if (multiplies) {
    // Eight rows at a time: sixteen do not fit the registers. The last ones first: the others go
    // where the state lies.
    for (int begin = rows > GROUP / 2 ? GROUP : 0; begin >= 0; begin -= GROUP)
      through_state<4, 2>(shared.partial[warp] + begin, shared.partial[warp],
                          shared.x[warp][begin + lane / 8], 4 * X_STRIDE);
  }
  __syncthreads();

  // What the state and the rows outside the group give, a column a lane: [row][key, query].
  float sums[2][2] = {};
  if (state.at) add_state(sums, shared, rows, l.dim);
  const int both = min(r[0].staged, r[1].staged);
  add_earlier(sums, shared, both);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float2* weights = (const float2*)shared.weights[warp] + k;
#pragma unroll 8
    for (int i = both; i < r[k].staged; i++) {
      const float delta = shared.earlier[i][lane];
      const float2 weight = weights[2 * i];
      sums[k][0] = __fmaf_rn(weight.x, delta, sums[k][0]);
      sums[k][1] = __fmaf_rn(weight.y, delta, sums[k][1]);
    }
    // A branch that the group's first row is not on.
    const Earlier earlier{a, b};
#pragma unroll 4
    for (int i = r[k].staged; i < r[k].outside; i++) {
      const float delta = earlier.delta(a.pass.recent[r[k].row * TAPE_TOKENS + i])[lane];
      const float2 weight = weights[2 * i];
      sums[k][0] = __fmaf_rn(weight.x, delta, sums[k][0]);
      sums[k][1] = __fmaf_rn(weight.y, delta, sums[k][1]);
    }
    shared.sums[warp + k * WARPS][lane].x = sums[k][0];
  }
  __syncthreads();

  if (warp == 0) solve(shared.deltas[0], shared, rows);
  __syncthreads();

#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int n = warp + k * WARPS;
    if (r[k].row < 0) continue;
    const size_t at = ((size_t)r[k].row * l.value_heads + b.head) * l.dim + b.column + lane;
    a.deltas[at] = shared.deltas[n][lane];
    a.out.numbers[at] = output(shared, shared.deltas[0], n, sums[k][1]);
  }
  __syncthreads();
}

KERNEL(deltanet, 128, DeltaNetArgs, FOLD_THREADS, 2) {
  launch_dependents();
  Shared& shared = *(Shared*)shared_bytes;
  const RecurrentLayout& l = a.layout;
  wait_for_inputs();
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  const Block b = this_block(a);
  const int end = sequence.first_step + sequence.steps;
  for (int s = sequence.first_step; s < end; s++) {
    const Step step = a.pass.steps[s];
    const StateView state = state_of(a, b, step);
    if (step.source == 3) {
      float4 tile[4];
      load_tile(tile, state_of(a, b, a.pass.steps[step.from]), l.dim);
      const int* recent = a.pass.recent + step.last * TAPE_TOKENS;
      fold(tile, FoldRows{Earlier{a, b}, recent, step.last}, l.dim, shared.fold);
      store_tile(tile, scratch_of(a, step.slot), SLICE, l.dim);
      __syncthreads();
    }
    for (int begin = 0; begin < step.rows; begin += GROUP)
      run_group(a, b, shared, step, state, begin);
  }
}
