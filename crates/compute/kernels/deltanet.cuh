// What the forms of Gated DeltaNet share. From the anchor's state S [dim key][dim value] and the
// rows i since then on the path of row n, in order of position, with G the log decay summed from
// the anchor:
//
//   d_n = sigmoid(beta_n) (v_n - e^{G_n} S^T k_n - sum_i e^{G_n - G_i} (k_i . k_n) d_i)
//   o_n =                        e^{G_n} S^T q_n + sum_i e^{G_n - G_i} (k_i . q_n) d_i + (k_n .
//   q_n) d_n
//   out = rms(o) * norm * silu(z), per head
//
// No state is written; keys, d and the gates stay for the commit. Value head h uses key head h %
// key_heads.
//
// A decode pass that folds no states is one launch, the convolution included: deltanet_texts where
// texts have few rows each, deltanet_decode where they have more and the device has clusters.
// Others are convolve, deltanet_products, deltanet (deltanet_prompt in prompts) and deltanet_gate.
//
// A block of FOLD_THREADS owns SLICE value columns of one head, which depend on no others, and
// takes rows that start from the same anchor in groups of GROUP: warp w has rows w and w + 8, a
// column a lane. dim is a multiple of 32 up to
// 128. Sums over keys go by warps of 16 keys, sums over rows by list index: neither knows of the
//      company.
//
// Every form has a struct of shared memory with these members, which the functions below use
// (deltanet_decode has only some, and sums and solves for itself, in the same orders):
//   partial[WARPS][VECTORS][SLICE]   products with the state, over the keys of each warp
//   earlier[][SLICE]                 deltas of rows since the anchor
//   weights[WARPS][]                 float4: of rows outside the group, for the key and the query
//   of rows w, w + 8
//   key_weights, query_weights       [GROUP][GROUP]: of rows inside the group
//   sums[GROUP][SLICE]               float2: what is known of the sum for d, and v
//   beta, decay, own                 [GROUP]: sigmoid(beta_n), e^{G_n}, k_n . q_n
//   ancestors_of(n)                  rows inside the group that precede row n, a bit each
#pragma once
#include "fold.cuh"

constexpr int GROUP = 16;  // rows whose products with the state are taken together
constexpr int WARPS = FOLD_THREADS / 32;
// Vector 2 n is the key of row n of the group, 2 n + 1 its query.
constexpr int VECTORS = 2 * GROUP;
constexpr int RECENT = 48;          // rows since an anchor, 47 at most, and the row itself
// A warp's keys of a vector: four vectors side by side lie in different banks.
constexpr int X_STRIDE = WARP_KEYS + 4;

extern __shared__ __align__(16) u8 shared_bytes[];

// Sixteen bytes from global to shared memory, there after wait_for_copies.
__device__ __forceinline__ void copy16(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)),
               "l"(from)
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

// ------------------------------------------------------------------ what a block works on

struct Block {
  int head, key_head, column;
  const float* tape;  // of this layer

  // Addresses are worked out anew for each group: kept from one to the next they would not fit the
  // registers.
  __device__ __forceinline__ void renew() {
    keep_here(head);
    keep_here(key_head);
    keep_here(column);
  }
};

// Of a grid (dim / SLICE, value_heads, sequences).
__device__ __forceinline__ Block this_block(const DeltaNetArgs& a) {
  const RecurrentLayout& l = a.layout;
  const int head = blockIdx.y;
  return {head, head % l.key_heads, (int)blockIdx.x * SLICE,
          a.pass.sequences[blockIdx.z].tape + (size_t)a.layer * l.tape_layer};
}

// A committed state as Step::source says, without folded ones.
__device__ __forceinline__ StateView state_of(const DeltaNetArgs& a, const Block& b, int source) {
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
    const float* row =
        tap >= 0 ? a.keys + (size_t)tap * width : b.tape + (u32)(-2 - tap) % TAPE_TOKENS * width;
    return row + b.key_head * a.layout.dim;
  }
  __device__ __forceinline__ const float* delta(int tap) const {
    const int width = a.layout.value_heads * a.layout.dim;
    const float* row = tap >= 0
                           ? a.deltas + (size_t)tap * width
                           : b.tape + a.layout.tape_deltas + (u32)(-2 - tap) % TAPE_TOKENS * width;
    return row + b.head * a.layout.dim + b.column;
  }
  __device__ __forceinline__ float gate(int tap) const {
    const int width = a.layout.value_heads;
    const float* row = tap >= 0
                           ? a.gates + (size_t)tap * width
                           : b.tape + a.layout.tape_gates + (u32)(-2 - tap) % TAPE_TOKENS * width;
    return row[b.head];
  }
};

// The log decay of a row.
__device__ __forceinline__ float gate_of(float alpha, float dt_bias, float decay) {
  const float x = alpha + dt_bias;
  // softplus, which is its argument where e^-x no longer counts
  const float softplus = x > 20.f ? x : log1pf(expf(x));
  return softplus * decay;
}
__device__ __forceinline__ float gate_of(const DeltaNetArgs& a, int row, int head) {
  return gate_of(a.alpha[row * a.layout.value_heads + head], a.dt_bias[head], a.decay[head]);
}

// ------------------------------------------------------------------ products and weights

// dot += four columns of x times those of a key and a query.
__device__ __forceinline__ void dot4(float2& dot, const float4& x, const float4& key,
                                     const float4& query) {
  dot.x = __fmaf_rn(x.x, key.x, dot.x);
  dot.y = __fmaf_rn(x.x, query.x, dot.y);
  dot.x = __fmaf_rn(x.y, key.y, dot.x);
  dot.y = __fmaf_rn(x.y, query.y, dot.y);
  dot.x = __fmaf_rn(x.z, key.z, dot.x);
  dot.y = __fmaf_rn(x.z, query.z, dot.y);
  dot.x = __fmaf_rn(x.w, key.w, dot.x);
  dot.y = __fmaf_rn(x.w, query.w, dot.y);
}

// Of values of a list that lanes hold, entries lane and lane + 32 each: the value of entry i.
__device__ __forceinline__ float entry(const float (&values)[2], int i) {
  return __shfl_sync(ALL_LANES, i < 32 ? values[0] : values[1], i & 31);
}
// The sums of such values up to each entry.
__device__ __forceinline__ void sum_list(float (&sums)[2], const float (&values)[2]) {
  sums[0] = sum_to_lane(values[0]);
  sums[1] = __fadd_rn(__shfl_sync(ALL_LANES, sums[0], 31), sum_to_lane(values[1]));
}

// An entry's products with a row's key and query, decayed from the entry, whose gates sum up to
// `sum`, to the row.
__device__ __forceinline__ float2 decayed(float to_key, float to_query, float sum, float total) {
  const float decay = expf(__fsub_rn(total, sum));
  return make_float2(__fmul_rn(to_key, decay), __fmul_rn(to_query, decay));
}

// ------------------------------------------------------------------ the state

// The warp's keys of the state.
__device__ __forceinline__ void copy_state(float (*to)[SLICE], const StateView& state) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int k = lane / 8; k < WARP_KEYS; k += 4)
    copy16(&to[k][tile_column()],
           state.at + (size_t)(warp * WARP_KEYS + k) * state.stride + tile_column());
}

// The warp's columns of the keys and queries of a group. row(n) is the pass's row, or less than 0
// where the group has no row n: what lies there gives what nobody reads.
template <class Row>
__device__ __forceinline__ void copy_vectors(float (*to)[X_STRIDE], const DeltaNetArgs& a,
                                             const Block& b, const Row& row) {
  const RecurrentLayout& l = a.layout;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int j = 0; j < VECTORS / 8; j++) {
    const int vector = lane / 4 + 8 * j, piece = 4 * (lane & 3), r = row(vector / 2);
    const float* from =
        (vector & 1 ? a.q : a.keys) + ((size_t)max(r, 0) * l.key_heads + b.key_head) * l.dim;
    if (r >= 0) copy16(&to[vector][piece], from + warp * WARP_KEYS + piece);
  }
}

// Products of 4 COUNT vectors with the warp's keys of the state. Lane group g (of 8 lanes) has
// vectors g, g + 4, ..., which begin at `x` and lie `stride` floats apart. `partial` may be where
// the state lies, so that `done` comes before anything is stored. Of the vectors those are stored
// that `wanted` says.
struct AllVectors {
  __device__ __forceinline__ bool operator()(int) const { return true; }
};
struct WarpDone {
  __device__ __forceinline__ void operator()() const { __syncwarp(); }
};
template <int COUNT, int UNROLL, class Done = WarpDone, class Wanted = AllVectors>
__device__ __forceinline__ void through_state(float (*partial)[SLICE], const float (*state)[SLICE],
                                              const float* x, int stride, const Done& done = Done(),
                                              const Wanted& wanted = Wanted()) {
  const int group = (threadIdx.x & 31) / 8;
  float4 sums[COUNT];
#pragma unroll
  for (int v = 0; v < COUNT; v++) sums[v] = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll UNROLL
  for (int k = 0; k < WARP_KEYS; k += 4) {
    float4 s[4];
#pragma unroll
    for (int j = 0; j < 4; j++) s[j] = *(const float4*)&state[k + j][tile_column()];
#pragma unroll
    for (int v = 0; v < COUNT; v++) {
      const float4 y = *(const float4*)(x + v * stride + k);
      fma4(sums[v], y.x, s[0]);
      fma4(sums[v], y.y, s[1]);
      fma4(sums[v], y.z, s[2]);
      fma4(sums[v], y.w, s[3]);
    }
  }
  done();
#pragma unroll
  for (int v = 0; v < COUNT; v++)
    if (wanted(4 * v + group)) *(float4*)&partial[4 * v + group][tile_column()] = sums[v];
}

// ------------------------------------------------------------------ deltas and outputs

// What the state gives to the warp's rows of a group of `count`, from row `first` on: sums
// [row][key, query].
template <class S>
__device__ __forceinline__ void add_state(float (&sums)[2][2], const S& shared, int count, int dim,
                                          int first = 0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, parts = dim / WARP_KEYS;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int n = warp + k * WARPS;
    if (n < first || n >= count) continue;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      if (w >= parts) break;
      sums[k][0] = __fadd_rn(sums[k][0], shared.partial[w][2 * n][lane]);
      sums[k][1] = __fadd_rn(sums[k][1], shared.partial[w][2 * n + 1][lane]);
    }
    sums[k][0] = __fmul_rn(sums[k][0], shared.decay[n]);
    sums[k][1] = __fmul_rn(sums[k][1], shared.decay[n]);
  }
}

// What `entries` rows from earlier[first] on give, which are the same for both rows of the warp. A
// second row that is not there gets anything, and is not used.
template <class S>
__device__ __forceinline__ void add_earlier(float (&sums)[2][2], const S& shared, int entries,
                                            int first = 0) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 8
  for (int i = 0; i < entries; i++) {
    const float delta = shared.earlier[first + i][lane];
    const float4 weight = shared.weights[warp][i];
    sums[0][0] = __fmaf_rn(weight.x, delta, sums[0][0]);
    sums[0][1] = __fmaf_rn(weight.y, delta, sums[0][1]);
    sums[1][0] = __fmaf_rn(weight.z, delta, sums[1][0]);
    sums[1][1] = __fmaf_rn(weight.w, delta, sums[1][1]);
  }
}

// d of rows BEGIN to END of the group, a column a lane: each needs those before it.
template <int BEGIN, int END, class S>
__device__ __forceinline__ void solve_rows(float (&d)[GROUP], const S& shared) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = BEGIN; n < END; n++) {
    const float2 known = shared.sums[n][lane];
    const u32 ancestors = shared.ancestors_of(n);
    float weights[GROUP];  // whatever lies there where the row is no ancestor
#pragma unroll
    for (int j = 0; j < n; j += 4)
      *(float4*)(weights + j) = *(const float4*)&shared.key_weights[n][j];
    float sum = known.x;
#pragma unroll
    for (int j = 0; j < n; j++) sum = ancestors >> j & 1 ? __fmaf_rn(weights[j], d[j], sum) : sum;
    d[n] = __fmul_rn(shared.beta[n], __fsub_rn(known.y, sum));
  }
}

// d of the group's rows by one warp, to deltas [count][SLICE].
template <class S>
__device__ __forceinline__ void solve(float* deltas, const S& shared, int count) {
  constexpr int HALF = GROUP / 2;
  const int lane = threadIdx.x & 31;
  float d[GROUP];
  solve_rows<0, HALF>(d, shared);
#pragma unroll
  for (int n = 0; n < HALF; n++)
    if (n < count) deltas[n * SLICE + lane] = d[n];
  if (count <= HALF) return;
  solve_rows<HALF, GROUP>(d, shared);
#pragma unroll
  for (int n = HALF; n < GROUP; n++)
    if (n < count) deltas[n * SLICE + lane] = d[n];
}

// o of row n of the group, a column a lane: `sum` and what the rows inside the group give.
template <class S>
__device__ __forceinline__ float output(const S& shared, const float* deltas, int n, float sum) {
  const int lane = threadIdx.x & 31;
  const u32 ancestors = shared.ancestors_of(n);
#pragma unroll
  for (int j = 0; j < GROUP - 1; j++)
    if (ancestors >> j & 1)
      sum = __fmaf_rn(shared.query_weights[n][j], deltas[j * SLICE + lane], sum);
  return __fmaf_rn(shared.own[n], deltas[n * SLICE + lane], sum);
}
