// Gated DeltaNet in the tree form. From the anchor's state S [dim key][dim value] and the rows i since then on the path
// of row n, in order of position, with G the log decay summed from the anchor:
//
//   d_n = sigmoid(beta_n) (v_n - e^{G_n} S^T k_n - sum_i e^{G_n - G_i} (k_i . k_n) d_i)
//   o_n =                        e^{G_n} S^T q_n + sum_i e^{G_n - G_i} (k_i . q_n) d_i + (k_n . q_n) d_n
//   out = rms(o) * norm * silu(z), per head
//
// No state is written; keys, d and the gates stay for the commit. Value head h uses key head h % key_heads. Three
// kernels, launched in this order:
//
// deltanet_products  gates [rows][value_heads], and products [rows][key_heads][key, query][TAPE_TOKENS] of each row's
//                    key and query with the keys since its anchor, its own last.
//                    Grid (key_heads, blocks of rows), 128 threads, no shared memory; block y takes rows / gridDim.y
//                    (rounded up) rows. Floor: a row's keys, 16 KB a head; limited by three dependent loads.
// deltanet           deltas, and o into out.numbers. Grid (dim / 32, value_heads, sequences), 256 threads, dynamic
//                    shared memory 73984 bytes (sizeof Shared). A block owns 32 value columns, which depend on no
//                    others. `states` is scratch for folded anchors, [slots][dim][32] a block in order of the grid.
//                    Floor: a state of a head is 64 KB: 3.1 MB a layer of the 27B, 0.7 us; limited by FFMA
//                    (2 dim^2 rows a head: 0.9 us at 16 rows) and the latency of the phases below.
// deltanet_gate      norm and gate of out. Grid (value_heads / 8 rounded up, rows), 128 threads.
//
// dim is a multiple of 32 up to 128. Sums over keys go by warps of 16 keys, sums over rows by list index: neither knows
// of the company.
// budget: deltanet_products 128
// budget: deltanet 128
// budget: deltanet_gate 64
#include "fold.cuh"

constexpr int GROUP = 16;           // rows whose products with the state are taken together
constexpr int WARPS = FOLD_THREADS / 32;
constexpr int VECTORS = 2 * GROUP;  // vector 2 n is the key of row n of the group, 2 n + 1 its query

struct Shared {
  union {
    FoldShared fold;
    float partial[WARPS][VECTORS][SLICE];  // products with the state, over the keys of each warp
  };
  float x[WARPS][WARP_KEYS][VECTORS];        // keys and queries of the group
  float earlier[TAPE_TOKENS][SLICE];         // deltas of the rows since the anchor of the group's first row
  float4 weights[WARPS][TAPE_TOKENS];        // of rows outside the group, for the key and the query of rows w, w + 8
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];  // of rows inside the group
  float2 sums[GROUP][SLICE];                 // what is known of the sum for d, and v
  float deltas[GROUP][SLICE];
  u32 ancestors[GROUP];                      // rows inside the group that precede a row, a bit each
  float beta[GROUP];
  float decay[GROUP];                        // e^{G_n}
  float own[GROUP];                          // k_n . q_n
};
static_assert(sizeof(Shared) == 73984, "as launched");

extern __shared__ __align__(16) u8 shared_bytes[];

// Sixteen bytes from global to shared memory, there after wait_for_copies.
__device__ __forceinline__ void copy16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from)
               : "memory");
#else
  *(float4*)to = *(const float4*)from;
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Lets the compiler move nothing that depends on x to before here.
__device__ __forceinline__ void keep_here(int& x) { asm volatile("" : "+r"(x)); }

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// ------------------------------------------------------------------ products

extern "C" __global__ void __launch_bounds__(128) deltanet_products(const __grid_constant__ DeltaNetArgs a) {
  launch_dependents();
  constexpr int CHUNKS = MAX_DIM / 32, ENTRIES = 4;  // eight lanes share a key; a warp has 16 entries of the list
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7;
  const int head = blockIdx.x, width = l.key_heads * l.dim;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  wait_for_inputs();
  const int rows_per = (a.pass.rows + gridDim.y - 1) / gridDim.y;
  const int end = min(a.pass.rows, (int)(blockIdx.y + 1) * rows_per);
  for (int row = blockIdx.y * rows_per; row < end; row++) {
    const int value_head = head + threadIdx.x * l.key_heads;
    if (value_head < l.value_heads) {
      const float x = a.alpha[row * l.value_heads + value_head] + a.dt_bias[value_head];
      // softplus, which is its argument where e^-x no longer counts
      const float softplus = x > 20.f ? x : log1pf(expf(x));
      a.gates[row * l.value_heads + value_head] = softplus * a.decay[value_head];
    }
    const int count = a.pass.recent_count[row];
    const int first = warp * 4 * ENTRIES + lane / 8;
    if (warp * 4 * ENTRIES > count) continue;
    const float* tape = a.pass.sequences[a.pass.sequence_of[row]].tape + (size_t)a.layer * l.tape_layer;
    const float* from[ENTRIES];
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
      const int i = first + 4 * j;
      const int tap = i < count ? a.pass.recent[row * TAPE_TOKENS + i] : row;
      from[j] = tap >= 0 ? a.keys + (size_t)tap * width : tape + (-2 - tap) % TAPE_TOKENS * width;
      from[j] += head * l.dim + 4 * part;
    }
    float4 keys[ENTRIES][CHUNKS], key[CHUNKS], query[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
      const size_t at = (size_t)row * width + head * l.dim + 4 * part + 32 * c;
      key[c] = query[c] = zero;
      if (32 * c < l.dim) key[c] = *(const float4*)(a.keys + at), query[c] = *(const float4*)(a.q + at);
#pragma unroll
      for (int j = 0; j < ENTRIES; j++) {
        keys[j][c] = zero;
        if (32 * c < l.dim) keys[j][c] = *(const float4*)(from[j] + 32 * c);
      }
    }
    float* out = a.products + ((size_t)row * l.key_heads + head) * 2 * TAPE_TOKENS;
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
      float2 dot = make_float2(0.f, 0.f);
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const float4 k = keys[j][c];
        dot.x = __fmaf_rn(k.x, key[c].x, dot.x);
        dot.y = __fmaf_rn(k.x, query[c].x, dot.y);
        dot.x = __fmaf_rn(k.y, key[c].y, dot.x);
        dot.y = __fmaf_rn(k.y, query[c].y, dot.y);
        dot.x = __fmaf_rn(k.z, key[c].z, dot.x);
        dot.y = __fmaf_rn(k.z, query[c].z, dot.y);
        dot.x = __fmaf_rn(k.w, key[c].w, dot.x);
        dot.y = __fmaf_rn(k.w, query[c].w, dot.y);
      }
#pragma unroll
      for (int step = 4; step > 0; step /= 2) {
        dot.x = __fadd_rn(dot.x, __shfl_xor_sync(ALL_LANES, dot.x, step));
        dot.y = __fadd_rn(dot.y, __shfl_xor_sync(ALL_LANES, dot.y, step));
      }
      if (part == 0 && first + 4 * j <= count) {
        out[first + 4 * j] = dot.x;
        out[TAPE_TOKENS + first + 4 * j] = dot.y;
      }
    }
  }
}

// ------------------------------------------------------------------ deltas and outputs

// What a block works on.
struct Block {
  int head, key_head, column;
  const float* tape;  // of this layer
};

// The block's own scratch: [dim][SLICE].
__device__ __forceinline__ float* scratch_of(const DeltaNetArgs& a, int slot) {
  const size_t block = ((size_t)blockIdx.z * a.layout.value_heads + blockIdx.y) * gridDim.x + blockIdx.x;
  return a.states + (block * a.slots + slot) * a.layout.dim * SLICE;
}

__device__ __forceinline__ StateView state_of(const DeltaNetArgs& a, const Block& b, int source, int slot) {
  if (source == 3) return {scratch_of(a, slot), SLICE};
  const RecurrentLayout& l = a.layout;
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  const float* anchor = source == 1 ? sequence.older : source == 2 ? sequence.anchor : nullptr;
  if (anchor) anchor += ((size_t)a.layer * l.value_heads + b.head) * l.dim * l.dim + b.column;
  return {anchor, l.dim};
}

// The rows since an anchor, as a tap says: a row of the pass or a committed position.
struct Earlier {
  const DeltaNetArgs& a;
  const Block& b;
  __device__ __forceinline__ const float* key(int tap) const {
    const int width = a.layout.key_heads * a.layout.dim;
    const float* row = tap >= 0 ? a.keys + (size_t)tap * width : b.tape + (-2 - tap) % TAPE_TOKENS * width;
    return row + b.key_head * a.layout.dim;
  }
  __device__ __forceinline__ const float* delta(int tap) const {
    const int width = a.layout.value_heads * a.layout.dim;
    const float* row = tap >= 0 ? a.deltas + (size_t)tap * width
                                : b.tape + a.layout.tape_deltas + (-2 - tap) % TAPE_TOKENS * width;
    return row + b.head * a.layout.dim + b.column;
  }
  __device__ __forceinline__ float gate(int tap) const {
    const int width = a.layout.value_heads;
    const float* row = tap >= 0 ? a.gates + (size_t)tap * width
                                : b.tape + a.layout.tape_gates + (-2 - tap) % TAPE_TOKENS * width;
    return row[b.head];
  }
};

// The 32 tokens that end with row `last`: its anchor stands right before the first of them.
struct FoldRows {
  Earlier earlier;
  const int* recent;
  int last;
  __device__ __forceinline__ int tap(int i) const { return i < ANCHOR_TOKENS - 1 ? recent[i] : last; }
  __device__ __forceinline__ const float* key(int i) const { return earlier.key(tap(i)); }
  __device__ __forceinline__ const float* delta(int i) const { return earlier.delta(tap(i)); }
  __device__ __forceinline__ float gate(int i) const { return earlier.gate(tap(i)); }
};

// One row of a group, as its warp holds it.
struct GroupRow {
  int row;                                // -1: none
  int count;                              // rows since its anchor
  int taps[2];                            // entries lane and lane + 32 of its list; itself after the last
  bool same[2];                           // whether the list of the group's first row has the same there
  float gates[2], to_key[2], to_query[2]; // of the entries
  float beta;
  float value;                            // v, a column a lane
  int outside;                            // entries that lie outside the group; they come first
  int staged;                             // of these, how many are also on the list of the group's first row
};

// Issues the loads of a row. `first` is the group's first row.
__device__ __forceinline__ void fetch(GroupRow& r, const DeltaNetArgs& a, const Block& b, int row, int first) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31;
  r.row = row;
  r.count = -1;
  r.beta = r.value = 0.f;
  r.outside = r.staged = 0;
  r.taps[0] = r.taps[1] = -1;
  r.same[0] = r.same[1] = false;
  if (row < 0) return;
  const float* products = a.products + ((size_t)row * l.key_heads + b.key_head) * 2 * TAPE_TOKENS + lane;
  r.count = a.pass.recent_count[row];
  const int first_count = a.pass.recent_count[first];
  r.beta = a.beta[row * l.value_heads + b.head];
  r.value = a.v[((size_t)row * l.value_heads + b.head) * l.dim + b.column + lane];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    // What lies behind the list's end is not used.
    const int tap = a.pass.recent[row * TAPE_TOKENS + i], other = a.pass.recent[first * TAPE_TOKENS + i];
    r.to_key[k] = products[32 * k];
    r.to_query[k] = products[TAPE_TOKENS + 32 * k];
    r.taps[k] = i < r.count ? tap : row;
    r.same[k] = i < r.count && i < first_count && tap == other;
    r.gates[k] = i <= r.count ? Earlier{a, b}.gate(r.taps[k]) : 0.f;
  }
}

// Weighs the rows on the list of row n of the group. `lane_row` is the group's row of the lane's number; `half` is
// where the weights go.
__device__ __forceinline__ void weigh(GroupRow& r, Shared& shared, int n, int half, int lane_row) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 ancestors = 0;
  float own = 0.f, total = 0.f;
  if (r.row >= 0) {
    float sums[2];
    sums[0] = sum_to_lane(r.gates[0]);
    sums[1] = __fadd_rn(__shfl_sync(ALL_LANES, sums[0], 31), sum_to_lane(r.gates[1]));
    total = __shfl_sync(ALL_LANES, r.count < 32 ? sums[0] : sums[1], r.count & 31);
    own = __shfl_sync(ALL_LANES, r.count < 32 ? r.to_query[0] : r.to_query[1], r.count & 31);
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
      const float decay = expf(__fsub_rn(total, sums[k]));
      const float2 weight = make_float2(__fmul_rn(r.to_key[k], decay), __fmul_rn(r.to_query[k], decay));
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

// Products of keys and queries of the group's first 8 HALVES rows with the warp's 16 keys of the state, which lie where
// the results go.
template <int HALVES>
__device__ __forceinline__ void through_state(Shared& shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int vector = lane / 8 * 4;
  float4 sums[HALVES][4];
#pragma unroll
  for (int half = 0; half < HALVES; half++)
#pragma unroll
    for (int v = 0; v < 4; v++) sums[half][v] = make_float4(0.f, 0.f, 0.f, 0.f);
  constexpr int UNROLL = HALVES == 1 ? 4 : 1;  // more does not fit the registers
#pragma unroll UNROLL
  for (int k = 0; k < WARP_KEYS; k++) {
    const float4 state = *(const float4*)&shared.partial[warp][k][tile_column()];
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const float4 x = *(const float4*)&shared.x[warp][k][half * GROUP + vector];
      fma4(sums[half][0], x.x, state);
      fma4(sums[half][1], x.y, state);
      fma4(sums[half][2], x.z, state);
      fma4(sums[half][3], x.w, state);
    }
  }
  __syncwarp();
#pragma unroll
  for (int half = 0; half < HALVES; half++)
#pragma unroll
    for (int v = 0; v < 4; v++)
      *(float4*)&shared.partial[warp][half * GROUP + vector + v][tile_column()] = sums[half][v];
}

// d of rows BEGIN to END of the group, a column a lane: each needs those before it.
template <int BEGIN, int END>
__device__ __forceinline__ void solve(const Shared& shared, float (&d)[GROUP]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = BEGIN; n < END; n++) {
    const float2 known = shared.sums[n][lane];
    const u32 ancestors = shared.ancestors[n];
    float sum = known.x;
#pragma unroll
    for (int j = 0; j < n; j++)
      if (ancestors >> j & 1) sum = __fmaf_rn(shared.key_weights[n][j], d[j], sum);
    d[n] = __fmul_rn(shared.beta[n], __fsub_rn(known.y, sum));
  }
}

// Up to 16 rows of a step, `begin` rows into it.
__device__ __forceinline__ void run_group(const DeltaNetArgs& a, Block b, Shared& shared, const Step& step,
                                          const StateView& state, int begin) {
  // Addresses are worked out anew for each group: kept from one to the next they would not fit the registers.
  keep_here(b.head);
  keep_here(b.key_head);
  keep_here(b.column);
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int rows = min(GROUP, step.rows - begin);
  const int lane_row = lane < rows ? a.pass.step_rows[step.first_row + begin + lane] : -1;
  const bool multiplies = state.at && warp * WARP_KEYS < l.dim;

  // Loads first: the warp's keys of the state, a vector a lane of the group's keys and queries, deltas of the rows
  // since the first row's anchor, and what the warp's two rows are weighed with.
  const int first = __shfl_sync(ALL_LANES, lane_row, 0);
  float4 x[WARP_KEYS / 4];
  if (multiplies) {
#pragma unroll
    for (int k = lane / 8; k < WARP_KEYS; k += 4) {
      const float* from = state.at + (size_t)(warp * WARP_KEYS + k) * state.stride;
      copy16(&shared.partial[warp][k][tile_column()], from + tile_column());
    }
    const int row = __shfl_sync(ALL_LANES, lane_row, lane / 2);
    const float* from = (lane & 1 ? a.q : a.keys) + ((size_t)max(row, 0) * l.key_heads + b.key_head) * l.dim;
#pragma unroll
    for (int k = 0; k < WARP_KEYS / 4; k++) {
      x[k] = make_float4(0.f, 0.f, 0.f, 0.f);
      if (row >= 0) x[k] = *(const float4*)(from + warp * WARP_KEYS + 4 * k);
    }
  }
  GroupRow r[2];
  fetch(r[0], a, b, __shfl_sync(ALL_LANES, lane_row, warp), first);
  fetch(r[1], a, b, __shfl_sync(ALL_LANES, lane_row, warp + WARPS), first);
  const int count = a.pass.recent_count[first];
  for (int i = threadIdx.x / 8; i < count; i += FOLD_THREADS / 8) {
    const float* delta = Earlier{a, b}.delta(a.pass.recent[first * TAPE_TOKENS + i]);
    copy16(&shared.earlier[i][tile_column()], delta + tile_column());
  }
  if (multiplies) {
#pragma unroll
    for (int k = 0; k < WARP_KEYS / 4; k++) {
      shared.x[warp][4 * k][lane] = x[k].x;
      shared.x[warp][4 * k + 1][lane] = x[k].y;
      shared.x[warp][4 * k + 2][lane] = x[k].z;
      shared.x[warp][4 * k + 3][lane] = x[k].w;
    }
  }
  weigh(r[0], shared, warp, 0, lane_row);
  weigh(r[1], shared, warp + WARPS, 1, lane_row);
  wait_for_copies();
  __syncwarp();
  if (multiplies) {
    if (rows > GROUP / 2) {
      through_state<2>(shared);
    } else {
      through_state<1>(shared);
    }
  }
  __syncthreads();

  // What the state and the rows outside the group give, a column a lane: [row][key, query].
  float sums[2][2] = {};
  if (state.at) {
    const int parts = l.dim / WARP_KEYS;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (r[k].row < 0) continue;
      const int vector = 2 * (warp + k * WARPS);
#pragma unroll
      for (int w = 0; w < WARPS; w++) {
        if (w >= parts) break;
        sums[k][0] = __fadd_rn(sums[k][0], shared.partial[w][vector][lane]);
        sums[k][1] = __fadd_rn(sums[k][1], shared.partial[w][vector + 1][lane]);
      }
      const float decay = shared.decay[warp + k * WARPS];
      sums[k][0] = __fmul_rn(sums[k][0], decay);
      sums[k][1] = __fmul_rn(sums[k][1], decay);
    }
  }
  const int both = min(r[0].staged, r[1].staged);
#pragma unroll 8
  for (int i = 0; i < both; i++) {
    const float delta = shared.earlier[i][lane];
    const float4 weight = shared.weights[warp][i];
    sums[0][0] = __fmaf_rn(weight.x, delta, sums[0][0]);
    sums[0][1] = __fmaf_rn(weight.y, delta, sums[0][1]);
    sums[1][0] = __fmaf_rn(weight.z, delta, sums[1][0]);
    sums[1][1] = __fmaf_rn(weight.w, delta, sums[1][1]);
  }
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

  if (warp == 0) {
    float d[GROUP];
    solve<0, GROUP / 2>(shared, d);
#pragma unroll
    for (int n = 0; n < GROUP / 2; n++) shared.deltas[n][lane] = d[n];
    if (rows > GROUP / 2) {
      solve<GROUP / 2, GROUP>(shared, d);
#pragma unroll
      for (int n = GROUP / 2; n < GROUP; n++) shared.deltas[n][lane] = d[n];
    }
  }
  __syncthreads();

#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int n = warp + k * WARPS;
    if (r[k].row < 0) continue;
    const u32 ancestors = shared.ancestors[n];
    float sum = sums[k][1];
#pragma unroll
    for (int j = 0; j < GROUP - 1; j++)
      if (ancestors >> j & 1) sum = __fmaf_rn(shared.query_weights[n][j], shared.deltas[j][lane], sum);
    const float delta = shared.deltas[n][lane];
    const size_t at = ((size_t)r[k].row * l.value_heads + b.head) * l.dim + b.column + lane;
    a.deltas[at] = delta;
    a.out.numbers[at] = __fmaf_rn(shared.own[n], delta, sum);
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, 2) deltanet(const __grid_constant__ DeltaNetArgs a) {
  launch_dependents();
  Shared& shared = *(Shared*)shared_bytes;
  const RecurrentLayout& l = a.layout;
  wait_for_inputs();
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b;
  b.head = blockIdx.y;
  b.key_head = b.head % l.key_heads;
  b.column = blockIdx.x * SLICE;
  b.tape = sequence.tape + (size_t)a.layer * l.tape_layer;

  const int end = sequence.first_step + sequence.steps;
  for (int s = sequence.first_step; s < end; s++) {
    const Step step = a.pass.steps[s];
    const StateView state = state_of(a, b, step.source, step.slot);
    if (step.source == 3) {
      const Step& from = a.pass.steps[step.from];
      float4 tile[4];
      load_tile(tile, state_of(a, b, from.source, from.slot), l.dim);
      const int* recent = a.pass.recent + step.last * TAPE_TOKENS;
      fold(tile, FoldRows{Earlier{a, b}, recent, step.last}, l.dim, shared.fold);
      store_tile(tile, scratch_of(a, step.slot), SLICE, l.dim);
      __syncthreads();
    }
    for (int begin = 0; begin < step.rows; begin += GROUP) run_group(a, b, shared, step, state, begin);
  }
}

// ------------------------------------------------------------------ norm and gate

extern "C" __global__ void __launch_bounds__(128) deltanet_gate(const __grid_constant__ DeltaNetArgs a) {
  launch_dependents();
  const RecurrentLayout& l = a.layout;
  // Sixteen lanes have a head, eight columns each.
  const int part = threadIdx.x & 15, head = blockIdx.x * 8 + threadIdx.x / 16, row = blockIdx.y;
  const bool active = head < l.value_heads && 8 * part < l.dim;
  const int column = head * l.dim + 8 * part;
  float norm[8] = {}, o[8] = {}, z[8] = {};
  if (active) {
    *(float4*)norm = *(const float4*)(a.norm + 8 * part);
    *(float4*)(norm + 4) = *(const float4*)(a.norm + 8 * part + 4);
  }
  wait_for_inputs();
  if (active) {
    const size_t at = (size_t)row * l.value_heads * l.dim + column;
    *(float4*)o = *(const float4*)(a.out.numbers + at);
    *(float4*)(o + 4) = *(const float4*)(a.out.numbers + at + 4);
    *(float4*)z = *(const float4*)(a.z + at);
    *(float4*)(z + 4) = *(const float4*)(a.z + at + 4);
  }
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = __fmaf_rn(o[i], o[i], squares);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
  const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = o[i] * factor * norm[i] * (z[i] * sigmoid(z[i]));
  if (active) store8(a.out, row, column, y);
}
