// Gated DeltaNet in the tree form. From the anchor's state S [dim key][dim value] and the rows i since then on the path
// of row n, in order of position, with G the log decay summed from the anchor:
//
//   d_n = sigmoid(beta_n) (v_n - e^{G_n} S^T k_n - sum_i e^{G_n - G_i} (k_i . k_n) d_i)
//   o_n =                        e^{G_n} S^T q_n + sum_i e^{G_n - G_i} (k_i . q_n) d_i + (k_n . q_n) d_n
//   out = rms(o) * norm * silu(z), per head
//
// No state is written; keys, d and the gates stay for the commit. Value head h uses key head h % key_heads.
//
// A decode pass that folds no states, on a device with clusters, is one launch:
//
// deltanet_decode    all of it from the convolution on, see there. The convolution is not launched then.
//
// Others are three, in this order, after convolve; in prompts deltanet_prompt stands for deltanet:
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
// budget: deltanet_decode 128
// budget: deltanet_prompt 128
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
  const int first = warp * 4 * ENTRIES + lane / 8;
  // Lists are read a row ahead. What lies behind a list's end is not used.
  int count = 0, taps[ENTRIES] = {};
  const auto read_list = [&](int row) {
    count = a.pass.recent_count[row];
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) taps[j] = a.pass.recent[row * TAPE_TOKENS + first + 4 * j];
  };
  if ((int)blockIdx.y * rows_per < end) read_list(blockIdx.y * rows_per);
  for (int row = blockIdx.y * rows_per; row < end; row++) {
    const int value_head = head + threadIdx.x * l.key_heads;
    if (value_head < l.value_heads) {
      const float x = a.alpha[row * l.value_heads + value_head] + a.dt_bias[value_head];
      // softplus, which is its argument where e^-x no longer counts
      const float softplus = x > 20.f ? x : log1pf(expf(x));
      a.gates[row * l.value_heads + value_head] = softplus * a.decay[value_head];
    }
    const int listed = count;
    const float* tape = a.pass.sequences[a.pass.sequence_of[row]].tape + (size_t)a.layer * l.tape_layer;
    const float* from[ENTRIES];
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
      const int tap = first + 4 * j < listed ? taps[j] : row;
      from[j] = tap >= 0 ? a.keys + (size_t)tap * width : tape + (-2 - tap) % TAPE_TOKENS * width;
      from[j] += head * l.dim + 4 * part;
    }
    if (row + 1 < end) read_list(row + 1);
    if (warp * 4 * ENTRIES > listed) continue;
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
      if (part == 0 && first + 4 * j <= listed) {
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
template <int BEGIN, int END, class S>
__device__ __forceinline__ void solve(const S& shared, float (&d)[GROUP]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = BEGIN; n < END; n++) {
    const float2 known = shared.sums[n][lane];
    const u32 ancestors = shared.ancestors[n];
    float weights[GROUP];  // whatever lies there where the row is no ancestor
#pragma unroll
    for (int j = 0; j < n; j += 4) *(float4*)(weights + j) = *(const float4*)&shared.key_weights[n][j];
    float sum = known.x;
#pragma unroll
    for (int j = 0; j < n; j++) sum = ancestors >> j & 1 ? __fmaf_rn(weights[j], d[j], sum) : sum;
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

// ------------------------------------------------------------------ decoding in one launch

// Convolution, products, deltas, outputs, norm and gate of passes of up to DECODE_ROWS rows that fold no states. Grid
// (dim / 32, value_heads, sequences), 256 threads, clusters of dim / 32: the slices of a head. Dynamic shared memory
// 79984 + 656 rows of the pass: DecodeShared, then keys [rows][KEY_STRIDE] and deltas [rows][SLICE] of the sequence's
// rows, and what seven keys more would take. Every block takes the convolution of its key head's query and key for
// itself; the blocks of a cluster share the products of keys, row by row, and each other's sums of squares. Numbers and
// orders are those of the kernels above.
//
// Floor as theirs: states, 0.7 us at 27B. Limited by latency: the loads, some ten barriers, and the rows of a group,
// which need each other's deltas.

constexpr int RECENT = 48;               // rows since an anchor, 47 at most, and the row itself
constexpr int KEY_STRIDE = MAX_DIM + 4;  // four rows side by side lie in different banks
constexpr int TAPS = 4;
constexpr int PARTS = 16;                // sums of squares of eight columns each

struct DecodeArgs {
  DeltaNetArgs net;
  const float* inputs;  // [rows][channels]
  const float* weight;  // [TAPS][channels]
};
static_assert(sizeof(DecodeArgs) == 312, "as in src/cuda/ops/deltanet.rs");

// Rows of the sequence are numbered in the order of step_rows: parents come before their children.
struct DecodeShared {
  // First each warp's keys of the state and entries 4 w to 4 w + 3 of the tape's keys, then products with the state.
  union {
    float partial[WARPS][VECTORS][SLICE];
    struct {
      float state[WARP_KEYS][SLICE];
      float tape_keys[4][MAX_DIM];
    } loaded[WARPS];
  };
  float more_tape_keys[RECENT - 32][MAX_DIM];  // from entry 32 on
  float queries[GROUP][KEY_STRIDE];
  float earlier[RECENT][SLICE];          // deltas on the tape since the step's anchor
  float4 weights[WARPS][RECENT];         // products with the rows on the lists of rows w and w + 8, then their weights
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];  // of rows inside the group
  float2 sums[GROUP][SLICE];             // what is known of the sum for d, and v; then outputs
  float gate[GROUP][SLICE];              // silu(z)
  float squares[GROUP][PARTS];           // from all blocks of the cluster
  u32 ancestors[GROUP];                  // rows inside the group that precede a row, a bit each
  float beta[GROUP], decay[GROUP], own[GROUP];  // as in Shared
  float tape_gates[RECENT];
  float gates[DECODE_ROWS];
  int rows[DECODE_ROWS];                 // of the pass
  int taps[DECODE_ROWS][TAPS];           // the last one is the row itself
  int counts[DECODE_ROWS];
  u8 number[DECODE_ROWS];                // of a row of the pass
  u8 recent[DECODE_ROWS][RECENT];        // the numbers of the rows since the anchor, behind those on the tape
};
static_assert(sizeof(DecodeShared) == 76288, "as launched");

__device__ __forceinline__ void prefetch_line(const float* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

// Without clusters these serve a single slice.
// clusters begin
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}
// Writes to that place in the shared memory of a block of the cluster.
__device__ __forceinline__ void send(float* to, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"((u32)__cvta_generic_to_shared(to)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  *to = value;
#endif
}
// clusters end

__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }

// Where an input of the convolution lies, or nothing before the text.
__device__ __forceinline__ const float* input_of(const DecodeArgs& args, const float* tape, int tap) {
  const RecurrentLayout& l = args.net.layout;
  if (tap >= 0) return args.inputs + (size_t)tap * l.channels;
  return tap < -1 ? tape + l.tape_inputs + (-2 - tap) % l.kernel * l.channels : nullptr;
}

// Queries (even warps) or keys (odd ones) of the group's rows, into shared memory.
__device__ __forceinline__ void convolve_heads(const DecodeArgs& args, DecodeShared& shared, float* keys,
                                               const Block& b, int local, int count) {
  const RecurrentLayout& l = args.net.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kind = warp & 1;
  const bool active = 4 * lane < l.dim;
  const int channel = (kind * l.key_heads + b.key_head) * l.dim + 4 * lane;
  const float4 zero = make_float4(0.f, 0.f, 0.f, 0.f);
  float4 weight[TAPS];
#pragma unroll
  for (int j = 0; j < TAPS; j++)
    weight[j] = active ? *(const float4*)(args.weight + (size_t)j * l.channels + channel) : zero;
  for (int begin = warp / 2; begin < count; begin += WARPS) {
    float4 x[2][TAPS];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = begin + k * WARPS / 2;
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        x[k][j] = zero;
        if (n < count && active) {
          const float* from = input_of(args, b.tape, shared.taps[local + n][j]);
          if (from) x[k][j] = *(const float4*)(from + channel);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = begin + k * WARPS / 2;
      if (n >= count) break;
      float4 y = zero;
#pragma unroll
      for (int j = 0; j < TAPS; j++) {
        y.x = __fmaf_rn(x[k][j].x, weight[j].x, y.x);
        y.y = __fmaf_rn(x[k][j].y, weight[j].y, y.y);
        y.z = __fmaf_rn(x[k][j].z, weight[j].z, y.z);
        y.w = __fmaf_rn(x[k][j].w, weight[j].w, y.w);
      }
      if (active) y = make_float4(silu(y.x), silu(y.y), silu(y.z), silu(y.w));
      float squares = __fmaf_rn(y.w, y.w, __fmaf_rn(y.z, y.z, __fmaf_rn(y.y, y.y, __fmul_rn(y.x, y.x))));
#pragma unroll
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(ALL_LANES, squares, step);
      const float factor = (kind == 0 ? 1.f / sqrtf((float)l.dim) : 1.f) / sqrtf(squares + 1e-6f);
      y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
      *(float4*)((kind == 0 ? shared.queries[n] : keys + (local + n) * KEY_STRIDE) + 4 * lane) = y;
      // One of the blocks that share the key keeps it for the commit.
      if (kind == 1 && active && b.head < l.key_heads && n % gridDim.x == blockIdx.x) {
        const size_t at = ((size_t)shared.rows[local + n] * l.key_heads + b.key_head) * l.dim;
        *(float4*)((float*)args.net.keys + at + 4 * lane) = y;
      }
    }
  }
}

// Products of the block's share of the group's rows with the keys on their lists, to all blocks of the cluster. Eight
// lanes share a key; a warp has entries 4 w to 4 w + 3 of the lists, and those 32 further on.
__device__ __forceinline__ void share_products(const DeltaNetArgs& a, DecodeShared& shared, const float* keys,
                                               int tape_rows, int local, int count) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7, slices = gridDim.x;
  for (int n = blockIdx.x; n < count; n += slices) {
    const int listed = shared.counts[local + n];
    if (4 * warp > listed) continue;
    const float* own = keys + (local + n) * KEY_STRIDE + 4 * part;
    float4 key[MAX_DIM / 32], query[MAX_DIM / 32];
#pragma unroll
    for (int c = 0; c < MAX_DIM / 32; c++) {
      key[c] = *(const float4*)(own + 32 * c);
      query[c] = *(const float4*)&shared.queries[n][4 * part + 32 * c];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int i = 32 * k + 4 * warp + lane / 8;
      if (32 * k + 4 * warp > listed) break;
      const float* from = own;
      if (i < tape_rows) {
        from = (k ? shared.more_tape_keys[i - 32] : shared.loaded[warp].tape_keys[lane / 8]) + 4 * part;
      } else if (i < listed) {
        from = keys + shared.recent[local + n][i] * KEY_STRIDE + 4 * part;
      }
      float2 dot = make_float2(0.f, 0.f);
#pragma unroll
      for (int c = 0; c < MAX_DIM / 32; c++) {
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        if (32 * c < a.layout.dim) x = *(const float4*)(from + 32 * c);
        dot.x = __fmaf_rn(x.x, key[c].x, dot.x);
        dot.y = __fmaf_rn(x.x, query[c].x, dot.y);
        dot.x = __fmaf_rn(x.y, key[c].y, dot.x);
        dot.y = __fmaf_rn(x.y, query[c].y, dot.y);
        dot.x = __fmaf_rn(x.z, key[c].z, dot.x);
        dot.y = __fmaf_rn(x.z, query[c].z, dot.y);
        dot.x = __fmaf_rn(x.w, key[c].w, dot.x);
        dot.y = __fmaf_rn(x.w, query[c].w, dot.y);
      }
      // Lanes 0 to 3 of the eight add up the product with the key, the others that with the query.
      const bool second = part >= 4;
      const float other = __shfl_xor_sync(ALL_LANES, second ? dot.x : dot.y, 4);
      float sum = __fadd_rn(second ? dot.y : dot.x, other);
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2));
      sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 1));
      if (i <= listed && (part & 3) < slices)
        send((float*)&shared.weights[n % WARPS][i] + n / WARPS * 2 + second, part & 3, sum);
    }
  }
}

// Products with the state, as through_state above, from keys and queries that lie row by row.
template <int HALVES>
__device__ __forceinline__ void through_decode_state(DecodeShared& shared, const float* keys) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane / 8;
  // The lane has vectors group, group + 4, ...: keys if group is even, else queries.
  // Of rows that the group has not, what lies there gives what nobody reads.
  const float* x = (group & 1 ? shared.queries[0] : keys) + group / 2 * KEY_STRIDE + warp * WARP_KEYS;
  float4 sums[HALVES][4];
#pragma unroll
  for (int half = 0; half < HALVES; half++)
#pragma unroll
    for (int v = 0; v < 4; v++) sums[half][v] = make_float4(0.f, 0.f, 0.f, 0.f);
  constexpr int UNROLL = HALVES == 1 ? 4 : 1;  // more does not fit the registers
#pragma unroll UNROLL
  for (int k = 0; k < WARP_KEYS; k += 4) {
    float4 state[4];
#pragma unroll
    for (int j = 0; j < 4; j++) state[j] = *(const float4*)&shared.loaded[warp].state[k + j][tile_column()];
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
      for (int v = 0; v < 4; v++) {
        const float4 y = *(const float4*)(x + (8 * half + 2 * v) * KEY_STRIDE + k);
        fma4(sums[half][v], y.x, state[0]);
        fma4(sums[half][v], y.y, state[1]);
        fma4(sums[half][v], y.z, state[2]);
        fma4(sums[half][v], y.w, state[3]);
      }
  }
  __syncwarp();
#pragma unroll
  for (int half = 0; half < HALVES; half++)
#pragma unroll
    for (int v = 0; v < 4; v++)
      *(float4*)&shared.partial[warp][half * GROUP + 4 * v + group][tile_column()] = sums[half][v];
}

// Turns the products of row n of the group into weights. Gives the number of entries of its list outside the group.
__device__ __forceinline__ int weigh_decode(DecodeShared& shared, int n, int tape_rows, int local) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int listed = shared.counts[local + n];
  float2* const products = (float2*)shared.weights[warp] + n / WARPS;
  float gates[2], sums[2];
  float2 product[2];
  int number[2];  // of the entry's row; -1 on the tape
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    gates[k] = 0.f;
    product[k] = make_float2(0.f, 0.f);
    number[k] = -1;
    if (i <= listed) {
      if (i >= tape_rows) number[k] = i < listed ? shared.recent[local + n][i] : local + n;
      gates[k] = i < tape_rows ? shared.tape_gates[i] : shared.gates[number[k]];
      product[k] = products[2 * i];
    }
  }
  sums[0] = sum_to_lane(gates[0]);
  sums[1] = __fadd_rn(__shfl_sync(ALL_LANES, sums[0], 31), sum_to_lane(gates[1]));
  const float total = __shfl_sync(ALL_LANES, listed < 32 ? sums[0] : sums[1], listed & 31);
  const float own = __shfl_sync(ALL_LANES, listed < 32 ? product[0].y : product[1].y, listed & 31);
  u32 ancestors = 0;
  int outside = 0;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const bool before = i < listed && number[k] < local;
    const float decay = expf(__fsub_rn(total, sums[k]));
    const float2 weight = make_float2(__fmul_rn(product[k].x, decay), __fmul_rn(product[k].y, decay));
    if (before) products[2 * i] = weight;
    if (i < listed && !before) {
      shared.key_weights[n][number[k] - local] = weight.x;
      shared.query_weights[n][number[k] - local] = weight.y;
      ancestors |= 1u << (number[k] - local);
    }
    outside += __popc(__ballot_sync(ALL_LANES, before));
  }
  ancestors = __reduce_or_sync(ALL_LANES, ancestors);
  if (lane == 0) {
    shared.ancestors[n] = ancestors;
    shared.decay[n] = expf(total);
    shared.own[n] = own;
  }
  return outside;
}

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, 2) deltanet_decode(
    const __grid_constant__ DecodeArgs args) {
  launch_dependents();
  cluster_arrive();  // waited for before the first write to another block
  const DeltaNetArgs& a = args.net;
  const RecurrentLayout& l = a.layout;
  DecodeShared& shared = *(DecodeShared*)shared_bytes;
  float* const keys = (float*)(shared_bytes + sizeof(DecodeShared));
  float* const deltas = keys + a.pass.rows * KEY_STRIDE;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b;
  b.head = blockIdx.y;
  b.key_head = b.head % l.key_heads;
  b.column = blockIdx.x * SLICE;
  b.tape = sequence.tape + (size_t)a.layer * l.tape_layer;
  const int first_step = sequence.first_step, end_step = first_step + sequence.steps, rows = sequence.rows;
  const int first_row = rows ? a.pass.steps[first_step].first_row : 0;

  // The pass was there before the first kernel began, so were weights; states and tape are only brought nearer.
  for (int i = threadIdx.x; i < rows; i += FOLD_THREADS) {
    const int row = a.pass.step_rows[first_row + i];
    shared.rows[i] = row;
    shared.number[row] = i;
    shared.counts[i] = a.pass.recent_count[row];
#pragma unroll
    for (int j = 0; j < TAPS; j++) shared.taps[i][j] = j < TAPS - 1 ? a.pass.taps[row * 3 + j] : row;
  }
  for (int s = first_step; s < end_step; s++) {
    const Step& step = a.pass.steps[s];
    const StateView state = state_of(a, b, step.source, 0);
    if (state.at && threadIdx.x < l.dim) prefetch_line(state.at + (size_t)threadIdx.x * state.stride);
    const int i = threadIdx.x / 4, position = step.position + i;
    if (s == first_step && position < sequence.committed && i < RECENT) {
      const Earlier earlier{a, b};
      const int tap = -2 - position, piece = threadIdx.x & 3;
      if (piece * SLICE < l.dim) prefetch_line(earlier.key(tap) + piece * SLICE);
      if (piece == 0) prefetch_line(earlier.delta(tap));
    }
  }
  if (threadIdx.x < 12 * TAPS) {
    const int kind = threadIdx.x / (4 * TAPS), piece = threadIdx.x % 4 * SLICE;
    const int channel = kind < 2 ? (kind * l.key_heads + b.key_head) * l.dim : (2 * l.key_heads + b.head) * l.dim;
    if (piece < l.dim) prefetch_line(args.weight + (size_t)(threadIdx.x / 4 % TAPS) * l.channels + channel + piece);
  }
  const float norm = a.norm[b.column + lane];
  shared.squares[threadIdx.x / PARTS][threadIdx.x % PARTS] = 0.f;
  __syncthreads();
  for (int i = warp; i < rows; i += WARPS)
    for (int j = lane; j < shared.counts[i]; j += 32) {
      const int tap = a.pass.recent[shared.rows[i] * TAPE_TOKENS + j];
      shared.recent[i][j] = tap >= 0 ? shared.number[tap] : 0;
    }
  cluster_wait();
  wait_for_inputs();

  for (int s = first_step; s < end_step; s++) {
    const Step step = a.pass.steps[s];
    const StateView state = state_of(a, b, step.source, 0);
    const bool multiplies = state.at && warp * WARP_KEYS < l.dim;
    const int tape_rows = max(0, sequence.committed - step.position);
    for (int begin = 0; begin < step.rows; begin += GROUP) {
      const int local = step.first_row - first_row + begin, count = min(GROUP, step.rows - begin);
      // Addresses are worked out anew for each group: kept from one to the next they would not fit the registers.
      keep_here(b.head);
      keep_here(b.key_head);
      keep_here(b.column);
      const Earlier earlier{a, b};

      // Loads first: states and deltas into shared memory, keys of the tape for the block's share of the products.
      if (multiplies) {
#pragma unroll
        for (int k = lane / 8; k < WARP_KEYS; k += 4) {
          const float* from = state.at + (size_t)(warp * WARP_KEYS + k) * state.stride;
          copy16(&shared.loaded[warp].state[k][tile_column()], from + tile_column());
        }
      }
      for (int i = threadIdx.x / 8; i < tape_rows; i += FOLD_THREADS / 8)
        copy16(&shared.earlier[i][tile_column()], earlier.delta(-2 - step.position - i) + tile_column());
#pragma unroll
      for (int k = 0; k < RECENT; k += 32) {
        const int i = k + 4 * warp + lane / 8;
        float* to = k ? shared.more_tape_keys[(i - 32) % 16] : shared.loaded[warp].tape_keys[lane / 8];
        if (i < tape_rows && (int)blockIdx.x < count)
          for (int c = 4 * (lane & 7); c < l.dim; c += 32) copy16(to + c, earlier.key(-2 - step.position - i) + c);
      }
      if ((int)threadIdx.x < tape_rows) shared.tape_gates[threadIdx.x] = earlier.gate(-2 - step.position - threadIdx.x);
      const int gated = (int)threadIdx.x - 64;
      if (gated >= 0 && gated < count) {
        const int at = shared.rows[local + gated] * l.value_heads + b.head;
        const float x = a.alpha[at] + a.dt_bias[b.head];
        // softplus, which is its argument where e^-x no longer counts
        const float softplus = x > 20.f ? x : log1pf(expf(x));
        const float gate = softplus * a.decay[b.head];
        shared.gates[local + gated] = gate;
        shared.beta[gated] = sigmoid(a.beta[at]);
        if (blockIdx.x == 0) a.gates[at] = gate;
      }
      // The warp's own rows of the group, a column a lane.
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        if (n >= count) continue;
        const float z = a.z[(shared.rows[local + n] * l.value_heads + b.head) * l.dim + b.column + lane];
        const int channel = (2 * l.key_heads + b.head) * l.dim + b.column + lane;
        float x[TAPS], w[TAPS], y = 0.f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
          const float* from = input_of(args, b.tape, shared.taps[local + n][j]);
          x[j] = from ? from[channel] : 0.f;
          w[j] = args.weight[(size_t)j * l.channels + channel];
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++) y = __fmaf_rn(x[j], w[j], y);
        shared.sums[n][lane].y = silu(y);
        shared.gate[n][lane] = z * sigmoid(z);
      }
      convolve_heads(args, shared, keys, b, local, count);
      wait_for_copies();
      __syncthreads();

      share_products(a, shared, keys, tape_rows, local, count);
      cluster_arrive();
      __syncwarp();
      if (multiplies) {
        if (count > GROUP / 2) {
          through_decode_state<2>(shared, keys + local * KEY_STRIDE);
        } else {
          through_decode_state<1>(shared, keys + local * KEY_STRIDE);
        }
      }
      cluster_wait();
      int outside[2] = {0, 0};
#pragma unroll
      for (int k = 0; k < 2; k++)
        if (warp + k * WARPS < count) outside[k] = weigh_decode(shared, warp + k * WARPS, tape_rows, local);
      __syncthreads();

      // What the state and the rows outside the group give, a column a lane: [row][key, query].
      float sums[2][2] = {};
      if (state.at) {
        const int parts = l.dim / WARP_KEYS;
#pragma unroll
        for (int k = 0; k < 2; k++) {
          if (warp + k * WARPS >= count) continue;
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
      if (warp < count) {
#pragma unroll 8
        for (int i = 0; i < tape_rows; i++) {
          const float delta = shared.earlier[i][lane];
          const float4 w = shared.weights[warp][i];  // of a second row that is not there: anything, and not used
          sums[0][0] = __fmaf_rn(w.x, delta, sums[0][0]);
          sums[0][1] = __fmaf_rn(w.y, delta, sums[0][1]);
          sums[1][0] = __fmaf_rn(w.z, delta, sums[1][0]);
          sums[1][1] = __fmaf_rn(w.w, delta, sums[1][1]);
        }
      }
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        const float2* weights = (const float2*)shared.weights[warp] + k;
        for (int i = tape_rows; i < outside[k]; i++) {
          const float delta = deltas[shared.recent[local + n][i] * SLICE + lane];
          const float2 w = weights[2 * i];
          sums[k][0] = __fmaf_rn(w.x, delta, sums[k][0]);
          sums[k][1] = __fmaf_rn(w.y, delta, sums[k][1]);
        }
        shared.sums[n][lane].x = sums[k][0];
      }
      __syncthreads();

      float* const group_deltas = deltas + local * SLICE + lane;
      if (warp == 0) {
        float d[GROUP];
        solve<0, GROUP / 2>(shared, d);
#pragma unroll
        for (int n = 0; n < GROUP / 2; n++)
          if (n < count) group_deltas[n * SLICE] = d[n];
        if (count > GROUP / 2) {
          solve<GROUP / 2, GROUP>(shared, d);
#pragma unroll
          for (int n = GROUP / 2; n < GROUP; n++)
            if (n < count) group_deltas[n * SLICE] = d[n];
        }
      }
      __syncthreads();

      float out[2] = {};
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        if (n >= count) continue;
        const u32 ancestors = shared.ancestors[n];
        float sum = sums[k][1];
#pragma unroll
        for (int j = 0; j < GROUP - 1; j++)
          if (ancestors >> j & 1) sum = __fmaf_rn(shared.query_weights[n][j], group_deltas[j * SLICE], sum);
        const float delta = group_deltas[n * SLICE];
        a.deltas[(shared.rows[local + n] * l.value_heads + b.head) * l.dim + b.column + lane] = delta;
        out[k] = __fmaf_rn(shared.own[n], delta, sum);
        float squares = 0.f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
          const float x = __shfl_sync(ALL_LANES, out[k], (lane & 24) + j);
          squares = __fmaf_rn(x, x, squares);
        }
        if ((lane & 7) < (int)gridDim.x) send(&shared.squares[n][4 * blockIdx.x + lane / 8], lane & 7, squares);
      }
      cluster_arrive();
      cluster_wait();

#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        if (n >= count) continue;
        float squares = shared.squares[n][lane % PARTS];
#pragma unroll
        for (int step = 8; step > 0; step /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(ALL_LANES, squares, step));
        const float factor = 1.f / sqrtf(squares / (float)l.dim + a.eps);
        ((float*)shared.sums[n])[lane] = out[k] * factor * norm * shared.gate[n][lane];
      }
      __syncwarp();
      // Four lanes have a row, eight columns each.
      const int n = warp + lane / 4 * WARPS;
      if (lane < 8 && n < count) {
        float y[8];
        *(float4*)y = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3));
        *(float4*)(y + 4) = *(const float4*)((const float*)shared.sums[n] + 8 * (lane & 3) + 4);
        store8(a.out, shared.rows[local + n], b.head * l.dim + b.column + 8 * (lane & 3), y);
      }
      __syncwarp();
    }
  }
}

// ------------------------------------------------------------------ prompts

// As deltanet, for passes whose sequences are chains: row first_row + i has position committed + i, so that lists need
// not be read, and the anchors follow each other, so that state, deltas and gates since the anchor stay in shared
// memory. Launch as deltanet, with 88448 bytes of shared memory (sizeof PromptShared).
constexpr int X_STRIDE = WARP_KEYS + 4;  // four vectors side by side lie in different banks

struct PromptShared {
  union {
    FoldShared fold;
    float partial[WARPS][VECTORS][SLICE];
  };
  float state[WARPS][WARP_KEYS][SLICE];
  float x[WARPS][VECTORS][X_STRIDE];     // keys (2 n) and queries (2 n + 1) of the group
  float earlier[RECENT][SLICE];          // deltas since the anchor
  float4 weights[WARPS][RECENT];         // as in Shared
  float key_weights[GROUP][GROUP], query_weights[GROUP][GROUP];
  float2 sums[GROUP][SLICE];
  float gates[RECENT];                   // since the anchor
  float beta[GROUP], decay[GROUP], own[GROUP];
};
static_assert(sizeof(PromptShared) == 88448, "as launched");

// What is loaded ahead of a group beside its keys and queries: of the warp's rows w and w + 8.
struct Ahead {
  float to_key[2][2], to_query[2][2];  // entries lane and lane + 32 of a row's list
  float beta[2], value[2];
  float gate;                          // of the group's row of the lane's number
};

// The 32 positions from `begin` on.
struct PromptRows {
  Earlier earlier;
  PromptShared& shared;
  int begin, committed, first_row;
  __device__ __forceinline__ const float* key(int i) const {
    const int position = begin + i;
    return earlier.key(position < committed ? -2 - position : first_row + position - committed);
  }
  __device__ __forceinline__ const float* delta(int i) const { return shared.earlier[i]; }
  __device__ __forceinline__ float gate(int i) const { return shared.gates[i]; }
};

// Issues the loads of the group of `count` rows from `row` on.
__device__ __forceinline__ void fetch_ahead(Ahead& ahead, const DeltaNetArgs& a, const Block& b, PromptShared& shared,
                                            int row, int count) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (warp * WARP_KEYS < l.dim) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int vector = lane / 4 + 8 * j, piece = 4 * (lane & 3);
      const float* from = (vector & 1 ? a.q : a.keys) + ((size_t)(row + vector / 2) * l.key_heads + b.key_head) * l.dim;
      if (vector / 2 < count) copy16(&shared.x[warp][vector][piece], from + warp * WARP_KEYS + piece);
    }
  }
  ahead.gate = lane < count ? a.gates[(size_t)(row + lane) * l.value_heads + b.head] : 0.f;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int own = row + warp + k * WARPS;
    ahead.beta[k] = ahead.value[k] = 0.f;
    if (warp + k * WARPS >= count) continue;
    const float* products = a.products + ((size_t)own * l.key_heads + b.key_head) * 2 * TAPE_TOKENS + lane;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      // What lies behind the list's end is not used.
      ahead.to_key[k][part] = products[32 * part];
      ahead.to_query[k][part] = products[TAPE_TOKENS + 32 * part];
    }
    ahead.beta[k] = a.beta[(size_t)own * l.value_heads + b.head];
    ahead.value[k] = a.v[((size_t)own * l.value_heads + b.head) * l.dim + b.column + lane];
  }
}

// Weighs the rows on the list of row n of the group, of which `outside` come before the group.
__device__ __forceinline__ void weigh_ahead(const Ahead& ahead, PromptShared& shared, int n, int half, int outside) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, listed = outside + n;
  float gates[2], sums[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const float inside = __shfl_sync(ALL_LANES, ahead.gate, (i - outside) & 31);
    gates[k] = i < outside ? shared.gates[i] : i <= listed ? inside : 0.f;
  }
  sums[0] = sum_to_lane(gates[0]);
  sums[1] = __fadd_rn(__shfl_sync(ALL_LANES, sums[0], 31), sum_to_lane(gates[1]));
  const float total = __shfl_sync(ALL_LANES, listed < 32 ? sums[0] : sums[1], listed & 31);
  const float* to_query = ahead.to_query[half];
  const float own = __shfl_sync(ALL_LANES, listed < 32 ? to_query[0] : to_query[1], listed & 31);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    const float decay = expf(__fsub_rn(total, sums[k]));
    const float2 weight = make_float2(__fmul_rn(ahead.to_key[half][k], decay), __fmul_rn(to_query[k], decay));
    if (i < outside) {
      ((float2*)&shared.weights[warp][i])[half] = weight;
    } else if (i < listed) {
      shared.key_weights[n][i - outside] = weight.x;
      shared.query_weights[n][i - outside] = weight.y;
    }
  }
  shared.sums[n][lane].y = ahead.value[half];
  if (lane == 0) {
    shared.beta[n] = sigmoid(ahead.beta[half]);
    shared.decay[n] = expf(total);
    shared.own[n] = own;
  }
}

// Products of the keys and queries of eight rows with the warp's keys of the state. Sixteen rows at once would read the
// state once less and not fit the registers.
__device__ __forceinline__ void through_prompt_state(PromptShared& shared, int half) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane / 8;
  float4 sums[4];
#pragma unroll
  for (int v = 0; v < 4; v++) sums[v] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 2
  for (int k = 0; k < WARP_KEYS; k += 4) {
    float4 state[4];
#pragma unroll
    for (int j = 0; j < 4; j++) state[j] = *(const float4*)&shared.state[warp][k + j][tile_column()];
#pragma unroll
    for (int v = 0; v < 4; v++) {
      const float4 y = *(const float4*)&shared.x[warp][half * GROUP + 4 * v + group][k];
      fma4(sums[v], y.x, state[0]);
      fma4(sums[v], y.y, state[1]);
      fma4(sums[v], y.z, state[2]);
      fma4(sums[v], y.w, state[3]);
    }
  }
#pragma unroll
  for (int v = 0; v < 4; v++)
    *(float4*)&shared.partial[warp][half * GROUP + 4 * v + group][tile_column()] = sums[v];
}

extern "C" __global__ void __launch_bounds__(FOLD_THREADS, 2) deltanet_prompt(
    const __grid_constant__ DeltaNetArgs a) {
  launch_dependents();
  const RecurrentLayout& l = a.layout;
  PromptShared& shared = *(PromptShared*)shared_bytes;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  wait_for_inputs();
  const Sequence& sequence = a.pass.sequences[blockIdx.z];
  Block b;
  b.head = blockIdx.y;
  b.key_head = b.head % l.key_heads;
  b.column = blockIdx.x * SLICE;
  b.tape = sequence.tape + (size_t)a.layer * l.tape_layer;
  const int committed = sequence.committed, first_row = sequence.first_row, end = committed + sequence.rows;
  if (committed == end) return;
  const int newest = committed / ANCHOR_TOKENS * ANCHOR_TOKENS;
  // The anchor of a position lies 16 to 47 tokens before it, or at the beginning.
  int anchor = committed < GROUP ? 0 : (committed - GROUP) / ANCHOR_TOKENS * ANCHOR_TOKENS;
  bool has_state = false;
  Ahead ahead;
  fetch_ahead(ahead, a, b, shared, first_row, min(GROUP, min(anchor + RECENT, end) - committed));
  for (int i = threadIdx.x / 8; i < committed - anchor; i += FOLD_THREADS / 8)
    copy16(&shared.earlier[i][tile_column()], Earlier{a, b}.delta(-2 - anchor - i) + tile_column());
  if ((int)threadIdx.x < committed - anchor)
    shared.gates[threadIdx.x] = Earlier{a, b}.gate(-2 - anchor - (int)threadIdx.x);

  for (int begin = committed; begin < end; anchor += ANCHOR_TOKENS) {
    // The state at the anchor. Every warp reads and writes its own keys of it.
    if (anchor > newest) {
      float4 tile[4];
      load_tile(tile, StateView{has_state ? shared.state[0][0] : nullptr, SLICE}, l.dim);
      fold(tile, PromptRows{Earlier{a, b}, shared, anchor - ANCHOR_TOKENS, committed, first_row}, l.dim, shared.fold);
      store_tile(tile, shared.state[0][0], SLICE, l.dim);
      has_state = true;
    } else {
      const StateView from = state_of(a, b, anchor == 0 ? 0 : anchor == newest ? 2 : 1, 0);
      has_state = from.at != nullptr;
      __syncwarp();
      if (has_state && warp * WARP_KEYS < l.dim) {
#pragma unroll
        for (int k = lane / 8; k < WARP_KEYS; k += 4)
          copy16(&shared.state[warp][k][tile_column()],
                 from.at + (size_t)(warp * WARP_KEYS + k) * from.stride + tile_column());
      }
      __syncthreads();
    }
    if (begin > committed) {
      // Deltas and gates from the new anchor on.
      if (threadIdx.x < GROUP * 8) {
        const int i = threadIdx.x / 8;
        *(float4*)&shared.earlier[i][tile_column()] =
            *(const float4*)&shared.earlier[i + ANCHOR_TOKENS][tile_column()];
      }
      if (threadIdx.x < GROUP) shared.gates[threadIdx.x] = shared.gates[threadIdx.x + ANCHOR_TOKENS];
    }
    __syncthreads();

    const int stop = min(anchor + RECENT, end);
    for (; begin < stop; begin += GROUP) {
      // Addresses are worked out anew for each group: kept from one to the next they would not fit the registers.
      keep_here(b.head);
      keep_here(b.key_head);
      keep_here(b.column);
      const int count = min(GROUP, stop - begin), outside = begin - anchor, row = first_row + begin - committed;
      if (warp < count) weigh_ahead(ahead, shared, warp, 0, outside);
      if (warp + WARPS < count) weigh_ahead(ahead, shared, warp + WARPS, 1, outside);
      const float gate = ahead.gate;
      wait_for_copies();
      __syncwarp();
      if (has_state && warp * WARP_KEYS < l.dim) {
        through_prompt_state(shared, 0);
        if (count > GROUP / 2) through_prompt_state(shared, 1);
      }
      __syncthreads();
      if (warp == WARPS - 1 && lane < count) shared.gates[outside + lane] = gate;
      const int next = begin + count;
      if (next < end) {
        const int next_stop = next < anchor + RECENT ? stop : min(anchor + ANCHOR_TOKENS + RECENT, end);
        fetch_ahead(ahead, a, b, shared, row + count, min(GROUP, next_stop - next));
      }

      // What the state and the rows outside the group give, a column a lane: [row][key, query].
      float sums[2][2] = {};
      if (has_state) {
        const int parts = l.dim / WARP_KEYS;
#pragma unroll
        for (int k = 0; k < 2; k++) {
          if (warp + k * WARPS >= count) continue;
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
      if (warp < count) {
#pragma unroll 8
        for (int i = 0; i < outside; i++) {
          const float delta = shared.earlier[i][lane];
          const float4 w = shared.weights[warp][i];  // of a second row that is not there: anything, and not used
          sums[0][0] = __fmaf_rn(w.x, delta, sums[0][0]);
          sums[0][1] = __fmaf_rn(w.y, delta, sums[0][1]);
          sums[1][0] = __fmaf_rn(w.z, delta, sums[1][0]);
          sums[1][1] = __fmaf_rn(w.w, delta, sums[1][1]);
        }
      }
      shared.sums[warp][lane].x = sums[0][0];
      shared.sums[warp + WARPS][lane].x = sums[1][0];
      __syncthreads();

      if (warp == 0) {
        float d[GROUP];
#pragma unroll
        for (int n = 0; n < GROUP; n++) {
          if (n == GROUP / 2 && count <= n) break;
          const float2 known = shared.sums[n][lane];
          float weights[GROUP];
#pragma unroll
          for (int j = 0; j < n; j += 4) *(float4*)(weights + j) = *(const float4*)&shared.key_weights[n][j];
          float sum = known.x;
#pragma unroll
          for (int j = 0; j < n; j++) sum = __fmaf_rn(weights[j], d[j], sum);
          d[n] = __fmul_rn(shared.beta[n], __fsub_rn(known.y, sum));
          if (n < count) shared.earlier[outside + n][lane] = d[n];
        }
      }
      __syncthreads();

#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int n = warp + k * WARPS;
        if (n >= count) continue;
        float sum = sums[k][1];
#pragma unroll
        for (int j = 0; j < GROUP - 1; j++)
          if (j < n) sum = __fmaf_rn(shared.query_weights[n][j], shared.earlier[outside + j][lane], sum);
        const float delta = shared.earlier[outside + n][lane];
        const size_t at = ((size_t)(row + n) * l.value_heads + b.head) * l.dim + b.column + lane;
        a.deltas[at] = delta;
        a.out.numbers[at] = __fmaf_rn(shared.own[n], delta, sum);
      }
    }
    // `begin` may have gone past the last row of the step.
    begin = stop;
  }
}
