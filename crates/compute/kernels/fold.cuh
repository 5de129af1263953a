// Folding 32 rows into a state: how a Gated DeltaNet anchor follows from the one before it. The
// pass and the commit use this same function, so that a row gets the same bits from an anchor
// folded in its pass and from a committed one.
//
// A block of FOLD_THREADS owns SLICE value columns of one head: a state [dim][SLICE], of which warp
// w holds keys 16w to 16w + 15 and lane l four keys (16w + 4 (l / 8) on) times four columns (4 (l %
// 8) on).
#pragma once
#include "forerun.cuh"

constexpr int SLICE = 32;
constexpr int FOLD_THREADS = 256;
constexpr int WARP_KEYS = 16;
constexpr int MAX_DIM = 128;  // WARP_KEYS times warps
constexpr u32 ALL_LANES = 0xffffffffu;

struct FoldShared {
  float keys[ANCHOR_TOKENS][MAX_DIM];  // times the decay from each row to the last
  float deltas[ANCHOR_TOKENS][SLICE];
  float factors[ANCHOR_TOKENS];
  float decay;
};

// The state of one block, in an anchor or in scratch: [dim][stride], or nothing where it is zero.
struct StateView {
  const float* at;
  int stride;
};

// The sum of x over lanes 0 to the caller's. Its order follows from the lane alone.
__device__ __forceinline__ float sum_to_lane(float x) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(ALL_LANES, x, step);
    if (lane >= step) x = __fadd_rn(before, x);
  }
  return x;
}

__device__ __forceinline__ void fma4(float4& sum, float x, const float4& y) {
  sum.x = __fmaf_rn(x, y.x, sum.x);
  sum.y = __fmaf_rn(x, y.y, sum.y);
  sum.z = __fmaf_rn(x, y.z, sum.z);
  sum.w = __fmaf_rn(x, y.w, sum.w);
}

__device__ __forceinline__ float4 scale4(const float4& x, float factor) {
  return make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor),
                     __fmul_rn(x.w, factor));
}

// Where the caller's four keys times four columns begin.
__device__ __forceinline__ int tile_key() {
  return (threadIdx.x >> 5) * WARP_KEYS + (threadIdx.x & 31) / 8 * 4;
}
__device__ __forceinline__ int tile_column() { return (threadIdx.x & 7) * 4; }

__device__ __forceinline__ void load_tile(float4 (&tile)[4], const StateView& state, int dim) {
#pragma unroll
  for (int j = 0; j < 4; j++) {
    tile[j] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (state.at && tile_key() < dim)
      tile[j] =
          *(const float4*)(state.at + (size_t)(tile_key() + j) * state.stride + tile_column());
  }
}

__device__ __forceinline__ void store_tile(const float4 (&tile)[4], float* out, int stride,
                                           int dim) {
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (tile_key() < dim)
      *(float4*)(out + (size_t)(tile_key() + j) * stride + tile_column()) = tile[j];
}

// tile = e^G tile + sum_i e^{G - G_i} k_i d_i^T over 32 rows. `rows.key(i)` is [dim],
// `rows.delta(i)` [SLICE], `rows.gate(i)` the log decay. Begins with a barrier, so that `shared`
// may hold something else before.
template <class Rows>
__device__ __forceinline__ void fold(float4 (&tile)[4], const Rows& rows, int dim,
                                     FoldShared& shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float4 keys[4];  // of rows warp, warp + 8, ...
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (4 * lane < dim) keys[j] = *(const float4*)(rows.key(warp + 8 * j) + 4 * lane);
  const int row = threadIdx.x / 8;
  const float4 delta = *(const float4*)(rows.delta(row) + tile_column());
  __syncthreads();
  *(float4*)&shared.deltas[row][tile_column()] = delta;
  if (warp == 0) {
    const float sum = sum_to_lane(rows.gate(lane));
    const float total = __shfl_sync(ALL_LANES, sum, 31);
    shared.factors[lane] = expf(__fsub_rn(total, sum));
    if (lane == 0) shared.decay = expf(total);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (4 * lane < dim)
      *(float4*)&shared.keys[warp + 8 * j][4 * lane] =
          scale4(keys[j], shared.factors[warp + 8 * j]);
  __syncthreads();
  if (tile_key() >= dim) return;
  const float decay = shared.decay;
#pragma unroll
  for (int j = 0; j < 4; j++) tile[j] = scale4(tile[j], decay);
#pragma unroll 4
  for (int i = 0; i < ANCHOR_TOKENS; i++) {
    const float4 k = *(const float4*)&shared.keys[i][tile_key()];
    const float4 d = *(const float4*)&shared.deltas[i][tile_column()];
    fma4(tile[0], k.x, d);
    fma4(tile[1], k.y, d);
    fma4(tile[2], k.z, d);
    fma4(tile[3], k.w, d);
  }
}
