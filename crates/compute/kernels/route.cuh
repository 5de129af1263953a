// The router's choice, by a warp for one row or for several.
#pragma once
#include "forerun.cuh"

constexpr int MAX_EXPERTS = 512;

// Adds to the choices of an expert, where they are counted.
__device__ __forceinline__ void count_choice(u32* counts, u32 expert) {
  if (counts) atomicAdd(counts + expert, 1u);
}

// Compares as the float does; at least 1, so that 0 means taken.
__device__ __forceinline__ u32 sortable(float v) {
  const u32 bits = __float_as_uint(v);
  const u32 key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return key < 1u ? 1u : key;
}

__device__ __forceinline__ float logit_of(u32 key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// The choice of ROWS rows side by side, by one warp: the top_k experts of highest logit, best first
// and of equals the lowest id. A lane holds HELD logits of a row as integers that compare like
// them, and a warp reduction finds the best of the lanes' bests. Little code matters more than few
// steps: it is cold when it runs. A NaN anywhere in a row makes all its weights NaN; the ids are of
// distinct experts in any case.
template <int HELD, int ROWS> struct Choice {
  u32 keys[ROWS][HELD];  // of expert 32 i + lane; 0: taken, or there is none
  u32 mine[ROWS];        // lane k: the key of rank k
  u32 highest[ROWS];
  bool nan[ROWS];

  // visit(row of these, rank, id) is called for each, by the lane that holds it.
  template <class F>
  __device__ __forceinline__ void choose(const float* const (&logits)[ROWS], int experts, int top_k,
                                         F visit) {
    const int lane = threadIdx.x & 31;
    float numbers[ROWS][HELD];
    // Without conditions all are asked for before the first is looked at.
    if (experts == 32 * HELD) {
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < HELD; i++) numbers[r][i] = logits[r][i * 32 + lane];
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < HELD; i++)
          numbers[r][i] = i * 32 + lane < experts ? logits[r][i * 32 + lane] : 0.f;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      nan[r] = false;
      mine[r] = highest[r] = 0;
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        nan[r] |= numbers[r][i] != numbers[r][i];
        keys[r][i] = i * 32 + lane < experts ? sortable(numbers[r][i]) : 0;
      }
    }
#pragma unroll 1
    for (int k = 0; k < top_k; k++) {
      u32 key[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        u32 best = keys[r][0];
#pragma unroll
        for (int i = 1; i < HELD; i++) best = max(best, keys[r][i]);
        key[r] = __reduce_max_sync(~0u, best);
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        u32 id = ~0u;  // the lane's lowest that has the key
#pragma unroll
        for (int i = HELD - 1; i >= 0; i--) id = keys[r][i] == key[r] ? i * 32 + lane : id;
        bool best = id != ~0u;
        const u32 equal = __ballot_sync(~0u, best);
        if (equal & (equal - 1)) best = __reduce_min_sync(~0u, id) == id;
        if (best) {
          visit(r, k, id);
#pragma unroll
          for (int i = 0; i < HELD; i++) keys[r][i] = id == i * 32 + lane ? 0 : keys[r][i];
        }
        if (k == 0) highest[r] = key[r];
        if (lane == k) mine[r] = key[r];
      }
    }
  }
  // In lane k the weight of rank k: softmax probabilities divided by their sum, times `scale`.
  __device__ __forceinline__ float weight(int r, int top_k, float scale) const {
    const int lane = threadIdx.x & 31;
    const bool bad = __any_sync(~0u, nan[r]);
    const float weight = lane >= top_k ? 0.f
                         : bad         ? __uint_as_float(0x7fc00000u)
                                       : expf(logit_of(mine[r]) - logit_of(highest[r]));
    float sum = 0.f;
#pragma unroll 1
    for (int k = 0; k < top_k; k++) sum += __shfl_sync(~0u, weight, k);
    return weight / sum * scale;
  }
};
