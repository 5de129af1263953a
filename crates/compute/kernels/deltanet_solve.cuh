// deltanet_decode.cu, a group of rows from products to deltas and outputs: products become weights,
// what came before the group is added up, then the rows follow each other.
#pragma once
#include "deltanet_block.cuh"

// What the warp's two rows of the group (w and w + 8) are weighed with. Of a row that is not there
// nothing is used.
struct Weigher {
  int listed[2];       // of each row
  int outside[2];      // entries of its list outside the group
  int number[2][2];    // of entries lane and lane + 32: the row's number, -1 on the tape
  float decay[2][2];   // from the entry to the row

  // The decays, which need only the gates.
  __device__ __forceinline__ void decays(DecodeShared& shared, const Group& g) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float gates[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = min(warp + r * WARPS, g.count - 1), on_tape = g.on_tape(n),
                row = shared.rows[g.local + n];
      listed[r] = shared.counts[row];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int i = lane + 32 * k;
        number[r][k] = -1;
        gates[r][k] = 0.f;
        if (i <= listed[r]) {
          if (i >= on_tape)
            number[r][k] = i < listed[r] ? shared.number[shared.recent[row][i]] : g.local + n;
          gates[r][k] =
              i < on_tape ? shared.tape_gates[i + g.before(n)] : shared.gates[number[r][k]];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sums[2];
      sum_list(sums, gates[r]);
      const float total = entry(sums, listed[r]);
#pragma unroll
      for (int k = 0; k < 2; k++) decay[r][k] = expf(__fsub_rn(total, sums[k]));
      if (lane == 0 && warp + r * WARPS < g.count) shared.decay[warp + r * WARPS] = expf(total);
    }
  }

  // Turns the products of row n, the r-th of the warp, into weights.
  __device__ __forceinline__ void weigh(DecodeShared& shared, const Group& g, int n, int r) {
    const int lane = threadIdx.x & 31;
    u32 ancestors = 0;
    outside[r] = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int i = lane + 32 * k, inside = number[r][k] - g.local;
      const bool before = i < listed[r] && inside < 0;
      if (i <= listed[r]) {
        const float2 product = shared.weights[n][i];
        const float2 weight =
            make_float2(__fmul_rn(product.x, decay[r][k]), __fmul_rn(product.y, decay[r][k]));
        if (before) {
          shared.weights[n][i] = weight;
        } else if (i < listed[r]) {
          shared.key_weights[inside][n] = weight.x;
          shared.query_weights[n][inside] = weight.y;
          ancestors |= 1u << inside;
        } else {
          shared.own[n] = product.y;
        }
      }
      outside[r] += __popc(__ballot_sync(ALL_LANES, before));
    }
    ancestors = __reduce_or_sync(ALL_LANES, ancestors);
    if (lane == 0) shared.ancestors[n] = ancestors;
  }
};

// What the state gives to the warp's rows from row `first` on: [row][key, query].
__device__ __forceinline__ void add_states(float (&sums)[2][2], const DecodeShared& shared,
                                           const Group& g, int dim, int first) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, parts = dim / WARP_KEYS;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int n = warp + r * WARPS;
    if (n < first || n >= g.count) continue;
    float part[WARPS][2];
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int x = 0; x < 2; x++) part[w][x] = shared.partial[w][2 * n + x][lane];
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int x = 0; x < 2; x++)
        sums[r][x] = w < parts ? __fadd_rn(sums[r][x], part[w][x]) : sums[r][x];
#pragma unroll
    for (int x = 0; x < 2; x++) sums[r][x] = __fmul_rn(sums[r][x], shared.decay[n]);
  }
}

// What the tape gives to one or both of the warp's rows: `entries` rows from earlier[first] on.
// [row][key, query].
template <bool FIRST, bool SECOND>
__device__ __forceinline__ void add_tape(float (&sums)[2][2], const DecodeShared& shared,
                                         int entries, int first) {
  constexpr int STEP = 8;  // loads go beyond the end, sums do not
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int begin = 0; begin < entries; begin += STEP) {
    float delta[STEP];
    float4 weights[2][STEP / 2];
#pragma unroll
    for (int i = 0; i < STEP; i++) delta[i] = shared.earlier[first + begin + i][lane];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int i = 0; i < STEP; i += 2)
        if (r ? SECOND : FIRST)
          weights[r][i / 2] = *(const float4*)&shared.weights[warp + r * WARPS][begin + i];
#pragma unroll
    for (int i = 0; i < STEP; i++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (!(r ? SECOND : FIRST)) continue;
        const float4 w = weights[r][i / 2];
        const bool listed = begin + i < entries;
        sums[r][0] = listed ? __fmaf_rn(i % 2 ? w.z : w.x, delta[i], sums[r][0]) : sums[r][0];
        sums[r][1] = listed ? __fmaf_rn(i % 2 ? w.w : w.y, delta[i], sums[r][1]) : sums[r][1];
      }
  }
}

// What rows of earlier groups give to the warp's r-th row, n of the group: those between the tape
// and the group.
__device__ __forceinline__ void add_groups(float (&sums)[2], const DecodeShared& shared,
                                           const float* deltas, const Weigher& weigher, int n,
                                           int r, int begin) {
  constexpr int STEP = 4;
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (; begin < weigher.outside[r]; begin += STEP) {
    float delta[STEP];
    float2 weights[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const int at = min(begin + i, RECENT - 1);
      const int number =
          __shfl_sync(ALL_LANES, at < 32 ? weigher.number[r][0] : weigher.number[r][1], at & 31);
      delta[i] = deltas[max(number, 0) * SLICE + lane];
      weights[i] = shared.weights[n][at];
    }
#pragma unroll
    for (int i = 0; i < STEP; i++) {
      const bool listed = begin + i < weigher.outside[r];
      sums[0] = listed ? __fmaf_rn(weights[i].x, delta[i], sums[0]) : sums[0];
      sums[1] = listed ? __fmaf_rn(weights[i].y, delta[i], sums[1]) : sums[1];
    }
  }
}

// d of rows BEGIN to BEGIN + HALF of the group, a column a lane, to deltas [count][SLICE]. Once a d
// is known it is added to the sums of all rows behind it: for each the order is that of the list,
// and they do not wait for each other.
constexpr int HALF = GROUP / 2;
template <int BEGIN>
__device__ __forceinline__ void solve_half(float (&d)[HALF], const DecodeShared& shared,
                                           float* deltas, int count, u32 ancestors) {
  const int lane = threadIdx.x & 31;
  float sum[HALF], v[HALF];
#pragma unroll
  for (int n = 0; n < HALF; n++) {
    const float2 known = shared.sums[BEGIN + n][lane];
    sum[n] = known.x;
    v[n] = known.y;
  }
  const auto add = [&](int j, int first, float x) {
    const u32 descendants = __ballot_sync(ALL_LANES, ancestors >> j & 1) >> BEGIN;
    float weights[HALF];  // whatever lies there where row j is no ancestor
#pragma unroll
    for (int n = 0; n < HALF; n += 4)
      if (n + 4 > first)
        *(float4*)(weights + n) = *(const float4*)&shared.key_weights[j][BEGIN + n];
#pragma unroll
    for (int n = first; n < HALF; n++)
      sum[n] = descendants >> n & 1 ? __fmaf_rn(weights[n], x, sum[n]) : sum[n];
  };
  if (BEGIN > 0) {
#pragma unroll
    for (int j = 0; j < HALF; j++) add(j, 0, d[j]);
  }
#pragma unroll
  for (int n = 0; n < HALF; n++) {
    d[n] = __fmul_rn(shared.beta[BEGIN + n], __fsub_rn(v[n], sum[n]));
    if (n + 1 < HALF) add(BEGIN + n, n + 1, d[n]);
  }
#pragma unroll
  for (int n = 0; n < HALF; n++)
    if (BEGIN + n < count) deltas[(BEGIN + n) * SLICE + lane] = d[n];
}
__device__ __forceinline__ void solve_group(float* deltas, const DecodeShared& shared, int count) {
  const int lane = threadIdx.x & 31;
  if (count == 1) {
    const float2 known = shared.sums[0][lane];
    deltas[lane] = __fmul_rn(shared.beta[0], __fsub_rn(known.y, known.x));
    return;
  }
  const u32 ancestors = lane < count ? shared.ancestors[lane] : 0;
  float d[HALF];
  solve_half<0>(d, shared, deltas, count, ancestors);
  if (count > HALF) solve_half<HALF>(d, shared, deltas, count, ancestors);
}

// o of row n of the group, a column a lane: `sum` and what the row itself and the rows before it in
// the group give, of which there are at most BEFORE.
template <int BEFORE>
__device__ __forceinline__ float output_of(const DecodeShared& shared, const float* deltas, int n,
                                           float sum) {
  const int lane = threadIdx.x & 31;
  const u32 ancestors = shared.ancestors[n];
  const float own = shared.own[n], last = deltas[n * SLICE + lane];
  if (ancestors) {
    float weights[BEFORE], delta[BEFORE];  // whatever lies there where row j is no ancestor
#pragma unroll
    for (int j = 0; j < BEFORE; j += 4)
      *(float4*)(weights + j) = *(const float4*)&shared.query_weights[n][j];
#pragma unroll
    for (int j = 0; j < BEFORE - 1; j++) delta[j] = deltas[j * SLICE + lane];
#pragma unroll
    for (int j = 0; j < BEFORE - 1; j++)
      if (ancestors >> j & 1) sum = __fmaf_rn(weights[j], delta[j], sum);
  }
  return __fmaf_rn(own, last, sum);
}
